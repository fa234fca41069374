"""Events of source aws.health: one signal per affected instance.

Facts: AWS Health user guide, EventBridge schema and samples. An entity is an ARN in one sample and a bare
id in another; the samples differ in `resources`, `eventArn` and `endTime`; one event may come in pages and
as a backup copy from another region. All copies share eventArn, communicationId, page and entity, which
make the dedupe key.
"""

from typing import Any

from planaria.core.parsers.envelope import Envelope, instance_id, text, when
from planaria.core.signal import Kind, Signal

OVER = frozenset({"closed", "completed", "cancelled", "canceled"})
ENTITY_WELL = frozenset({"RESOLVED", "UNIMPAIRED"})
_KINDS = {"scheduledChange": Kind.SCHEDULED_EVENT, "issue": Kind.NODE_HEALTH}


def parse(envelope: Envelope) -> list[Signal]:
    detail = envelope.detail
    if detail is None:
        return envelope.invalid(Kind.UNKNOWN, "an AWS Health event must have a detail object")
    code = text(detail.get("eventTypeCode"))
    kind = _KINDS.get(text(detail.get("eventTypeCategory")), Kind.UNKNOWN)
    if detail.get("service") != "EC2":
        kind = Kind.UNKNOWN
    common = {
        "category": text(detail.get("eventTypeCategory")),
        "service": text(detail.get("service")),
        "status": text(detail.get("statusCode")),
        "starts_at": when(detail.get("startTime")),
        "ends_at": when(detail.get("endTime")),
        "backup": detail.get("backupEvent") in ("true", True),
        "event_arn": text(detail.get("eventArn")),
    }
    over = text(detail.get("statusCode")).lower() in OVER
    nodes = _nodes(envelope, detail)
    if not nodes:
        return [envelope.signal(kind, None, code, key=_key(envelope, detail, ""), evidence=common)]
    return [
        envelope.signal(
            kind,
            node_id,
            code,
            key=_key(envelope, detail, node_id),
            healthy=over or status in ENTITY_WELL,
            evidence=common,
        )
        for node_id, status in nodes.items()
    ]


def _nodes(envelope: Envelope, detail: dict[str, Any]) -> dict[str, str]:
    """Affected instance -> the entity's status; resources only where no entity is listed."""
    entities = detail.get("affectedEntities")
    nodes: dict[str, str] = {}
    if isinstance(entities, list) and entities:
        for entity in entities:
            value = entity.get("entityValue") if isinstance(entity, dict) else None
            if node_id := instance_id(value):
                nodes.setdefault(node_id, text(entity.get("status")))
        return nodes
    return {node_id: "" for node_id in map(instance_id, envelope.resources()) if node_id}


def _key(envelope: Envelope, detail: dict[str, Any], entity: str) -> str:
    """An event without eventArn and communicationId is known by its id alone."""
    arn, communication = text(detail.get("eventArn")), text(detail.get("communicationId"))
    if not arn and not communication:
        return f"{envelope.key}|{entity}"
    return f"{arn}|{communication or envelope.key}|{_page(detail.get('page'))}|{entity}"


def _page(value: object) -> str:
    """AWS writes the page as text; a number means the same."""
    return str(value) if isinstance(value, int) and 1 < value < 10**6 else text(value) or "1"
