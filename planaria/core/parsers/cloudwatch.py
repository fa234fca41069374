"""CloudWatch alarms on EC2's status checks, where users have them."""

from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, text, when
from planaria.core.signal import Kind, Signal

ANY = "StatusCheckFailed"
METRICS = frozenset(
    {
        ANY,
        "StatusCheckFailed_System",
        "StatusCheckFailed_Instance",
        "StatusCheckFailed_AttachedEBS",
    }
)


def parse(envelope: Envelope) -> list[Signal]:
    """One signal per instance whose status checks the alarm watches; other alarms are unknown events.

    Such are composite ones (they name alarms, each of which reports for itself), queries, and those that mix
    a status check with something else, whose state says nothing about the check.
    """
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
    """Instance -> metric, where all metrics of the alarm's configuration are status checks.

    Of several checks of one instance (metric math) the alarm does not say which one fails; the expression
    itself is an entry without metric.
    """
    configuration = detail.get("configuration")
    metrics = configuration.get("metrics") if isinstance(configuration, dict) else None
    checks: dict[str, str] = {}
    for entry in metrics if isinstance(metrics, list) else []:
        if not isinstance(entry, dict) or "metricStat" not in entry:
            continue
        stat = entry["metricStat"]
        metric = stat.get("metric") if isinstance(stat, dict) else None
        metric = metric if isinstance(metric, dict) else {}
        dimensions = metric.get("dimensions")
        node_id = instance_id(dimensions.get("InstanceId")) if isinstance(dimensions, dict) else None
        name = text(metric.get("name"))
        if metric.get("namespace") != "AWS/EC2" or node_id is None or name not in METRICS:
            return {}
        checks[node_id] = name if checks.get(node_id, name) == name else ANY
    return checks
