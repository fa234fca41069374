"""CloudWatch alarms on EC2's status checks, where users have them."""

from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, text, when
from planaria.core.signal import Kind, Signal

METRICS = frozenset(
    {
        "StatusCheckFailed",
        "StatusCheckFailed_System",
        "StatusCheckFailed_Instance",
        "StatusCheckFailed_AttachedEBS",
    }
)


def parse(envelope: Envelope) -> list[Signal]:
    """One signal per instance that the alarm's metrics name; other alarms are unknown events."""
    detail = envelope.detail
    if detail is None:
        return envelope.invalid(Kind.UNKNOWN, "a CloudWatch alarm must have a detail object")
    checks = _checks(detail)
    if not checks:
        return envelope.unknown()
    state = detail.get("state")
    state = state if isinstance(state, dict) else {}
    value = text(state.get("value"))
    if not value:
        return envelope.invalid(Kind.STATUS_CHECK, "a CloudWatch alarm must name detail.state.value")
    evidence = {
        "state": value,
        "alarm": text(detail.get("alarmName")),
        "reason": text(state.get("reason")),
        # An alarm over the sum of several instances cannot say which of them fails.
        "instances": len(checks),
    }
    time = when(state.get("timestamp"))
    return [
        envelope.signal(
            Kind.STATUS_CHECK,
            node_id,
            metric,
            key=f"{envelope.key}|{node_id}" if len(checks) > 1 else None,
            time=time,
            healthy=value == "OK",
            evidence=evidence,
        )
        for node_id, metric in checks.items()
    ]


def _checks(detail: dict[str, Any]) -> dict[str, str]:
    """Instance -> metric, of all status-check metrics that the alarm's configuration lists."""
    configuration = detail.get("configuration")
    metrics = configuration.get("metrics") if isinstance(configuration, dict) else None
    checks: dict[str, str] = {}
    for entry in metrics if isinstance(metrics, list) else []:
        stat = entry.get("metricStat") if isinstance(entry, dict) else None
        metric = stat.get("metric") if isinstance(stat, dict) else None
        if not isinstance(metric, dict) or metric.get("namespace") != "AWS/EC2":
            continue
        dimensions = metric.get("dimensions")
        node_id = instance_id(dimensions.get("InstanceId")) if isinstance(dimensions, dict) else None
        name = text(metric.get("name"))
        if node_id and name in METRICS:
            checks.setdefault(node_id, name)
    return checks
