"""The small document a person writes in the console, checked before anything is done."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.documents import matches, patterns
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.incident import node_id
from planaria.core.restores import Order

REASON_LENGTH = 256
_NODE_EXAMPLE = {
    "heal_node": '{"node_id": "i-0123456789abcdef0", "action": "replace", "reason": "GPU 3 is slow"}',
    "isolate_node": '{"node_id": "i-0123456789abcdef0", "reason": "inspect the cables"}',
    "launch_replacement": '{"node_id": "i-0123456789abcdef0", "reason": "the old node was terminated"}',
}
_BREAKER = {"heal_node", "isolate_node"}
"""Machines whose orders meet the breaker."""

_SPARE_EXAMPLE = '{"node_group": "workers", "reason": "one more before the weekend"}'
_JOB_EXAMPLE = '{"job_id": "gpt-demo", "reason": "resume by hand"}'
_RESTORE_EXAMPLE = '{"job_id": "gpt-demo", "reason": "the file system is new"}'
_SYNC_EXAMPLE = '{"job_id": "gpt-demo", "reason": "before the maintenance"}'
_ACTIONS = {
    "heal_node": {
        "replace": Action.REPLACE,
        "reboot": Action.REBOOT,
        "reset": Action.RESET,
        "remove": Action.DRAIN,
    },
    "isolate_node": {"isolate": Action.DRAIN},
    "launch_replacement": {"launch": Action.REPLACE},
}


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """verb: the person's word; action: what it is to the ledger and the breaker. override_breaker: the
    removal is counted, and goes on also where the breaker refuses it."""

    node_id: str
    verb: str
    action: Action
    reason: str
    override_breaker: bool = False


@dataclass(frozen=True, slots=True)
class JobOrder:
    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SyncOrder:
    """step: the one that is to come first, None for the oldest that is not safe."""

    job_id: str
    step: int | None
    deadline: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class SpareOrder:
    """One spare more for this node group's pool."""

    node_group: str
    reason: str


def node_order(machine: str, document: object) -> NodeOrder:
    """The order in a hand-written document for `machine`; InvalidInput names the wrong field."""
    example = _NODE_EXAMPLE[machine]
    verbs = _ACTIONS[machine]
    known = {"node_id", "action", "reason"} | ({"override_breaker"} if machine in _BREAKER else set())
    fields = _fields(document, known, example)
    node = _node(fields, machine)
    verb = fields.get("action", next(iter(verbs)) if len(verbs) == 1 else None)
    if not isinstance(verb, str) or verb not in verbs:
        raise InvalidInput(
            f"action must be one of {', '.join(sorted(verbs))}, got {verb!r:.40}; "
            f"a right document is {example}"
        )
    override = fields.get("override_breaker", False)
    if not isinstance(override, bool):
        raise InvalidInput(
            f"override_breaker must be true or false, got {override!r:.40}; a right document is {example}"
        )
    return NodeOrder(node, str(verb), verbs[str(verb)], _reason(fields, example), override)


def job_order(document: object) -> JobOrder:
    fields = _fields(document, {"job_id", "reason"}, _JOB_EXAMPLE)
    job = fields.get("job_id")
    if not isinstance(job, str) or not 0 < len(job) <= 128:
        raise InvalidInput(f"job_id must be a job's id, got {job!r:.60}; a right document is {_JOB_EXAMPLE}")
    return JobOrder(job, _reason(fields, _JOB_EXAMPLE))


def restore_order(document: object) -> Order:
    """The order of a person for restore_checkpoint; `step` and `directory` may be left out."""
    example = _RESTORE_EXAMPLE
    fields = _fields(document, {"job_id", "step", "directory", "reason"}, example)
    job, step, directory = fields.get("job_id"), fields.get("step"), fields.get("directory", "")
    if not isinstance(job, str) or not 0 < len(job) <= 128:
        raise InvalidInput(f"job_id must be a job's id, got {job!r:.60}; a right document is {example}")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise InvalidInput(
            f"step must be the number of a step, got {step!r:.40}; a right document is {example}"
        )
    if not isinstance(directory, str) or not matches(patterns()["folder_or_none"], directory):
        raise InvalidInput(
            f"directory must be an absolute path of letters, digits and _ . / @ + -, got {directory!r:.80}; "
            f"a right document is {example}"
        )
    return Order(job, step, directory.rstrip("/"), _reason(fields, example), person=True)


def restore_document(document: Mapping[str, Any]) -> tuple[str, int]:
    """Job and number of what Planaria starts a restore with."""
    job, number = document.get("job_id"), document.get("number")
    if not isinstance(job, str) or isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            f"job_id must be a text and number, Planaria's own, a whole number, got {job!r:.60} and "
            f"{number!r:.40}; a right document is {_RESTORE_EXAMPLE}"
        )
    return job, number


def sync_order(document: object) -> SyncOrder:
    """The order of a person for sync_checkpoints; `step` and `deadline` (epoch seconds) may be left out."""
    fields = _fields(document, {"job_id", "step", "deadline", "reason"}, _SYNC_EXAMPLE)
    job, step, deadline = fields.get("job_id"), fields.get("step"), fields.get("deadline")
    if not isinstance(job, str) or not 0 < len(job) <= 128:
        raise InvalidInput(f"job_id must be a job's id, got {job!r:.60}; a right document is {_SYNC_EXAMPLE}")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
        raise InvalidInput(
            f"step must be the number of a step, got {step!r:.40}; a right document is {_SYNC_EXAMPLE}"
        )
    if deadline is not None and (isinstance(deadline, bool) or not isinstance(deadline, int | float)):
        raise InvalidInput(
            f"deadline must be in epoch seconds, got {deadline!r:.40}; a right document is {_SYNC_EXAMPLE}"
        )
    return SyncOrder(job, step, deadline, _reason(fields, _SYNC_EXAMPLE))


def sync_document(document: Mapping[str, Any]) -> tuple[str, int]:
    """Job and number of what Planaria starts a sync with."""
    job, number = document.get("job_id"), document.get("number")
    if not isinstance(job, str) or isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            f"job_id must be a text and number, Planaria's own, a whole number, got {job!r:.60} and "
            f"{number!r:.40}; a right document is {_SYNC_EXAMPLE}"
        )
    return job, number


def spare_order(document: object, groups: Collection[str]) -> SpareOrder:
    """groups: the names of the cluster's node groups; empty where they are not known."""
    fields = _fields(document, {"node_group", "reason"}, _SPARE_EXAMPLE)
    group = fields.get("node_group")
    if not isinstance(group, str) or not group or (groups and group not in groups):
        known = f"one of {', '.join(sorted(groups))}" if groups else "the name of a node group"
        raise InvalidInput(
            f"node_group must be {known}, got {group!r:.60}; a right document is {_SPARE_EXAMPLE}"
        )
    return SpareOrder(group, _reason(fields, _SPARE_EXAMPLE))


def slot_document(document: Mapping[str, Any]) -> tuple[str, int, int]:
    """Node group, slot and generation of what sweep starts a refill with."""
    group, numbers = document.get("node_group"), [document.get("slot"), document.get("generation")]
    whole = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
    if not isinstance(group, str) or len(whole) != 2:
        raise InvalidInput(
            f"node_group must be a text, slot and generation, Planaria's own, whole numbers, "
            f"got {group!r:.60} and {numbers!r:.60}; a right document is {_SPARE_EXAMPLE}"
        )
    return group, whole[0], whole[1]


def session_document(document: Mapping[str, Any]) -> tuple[str, int]:
    """Node and session of what triage and sweep start an execution with."""
    node, session = _node(document, "heal_node"), document.get("session")
    if isinstance(session, bool) or not isinstance(session, int):
        raise InvalidInput(
            f"session is Planaria's own and must be a whole number, got {session!r:.40}; "
            f"a right document is {_NODE_EXAMPLE['heal_node']}"
        )
    return node, session


def resume_document(document: Mapping[str, Any]) -> tuple[str, int]:
    """Job and number of what a resume is started with."""
    job, number = document.get("job_id"), document.get("number")
    if not isinstance(job, str) or isinstance(number, bool) or not isinstance(number, int):
        raise InvalidInput(
            f"job_id must be a text and number, Planaria's own, a whole number, got {job!r:.60} and "
            f"{number!r:.40}; a right document is {_JOB_EXAMPLE}"
        )
    return job, number


def _node(document: Mapping[str, Any], machine: str) -> str:
    try:
        return node_id(document.get("node_id"), "node_id")
    except InvalidInput as error:
        raise InvalidInput(f"{error}; a right document is {_NODE_EXAMPLE[machine]}") from None


def _fields(document: object, known: set[str], example: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidInput(f"the input must be a JSON object; a right document is {example}")
    unknown = sorted(str(key) for key in document if key not in known)
    if unknown:
        raise InvalidInput(
            f"the field {unknown[0]!r:.60} is not known (known: {', '.join(sorted(known))}); "
            f"a right document is {example}"
        )
    return document


def _reason(fields: Mapping[str, Any], example: str) -> str:
    reason = fields.get("reason", "")
    if not isinstance(reason, str) or len(reason) > REASON_LENGTH:
        raise InvalidInput(
            f"reason must be a text of at most {REASON_LENGTH} characters; a right document is {example}"
        )
    return reason
