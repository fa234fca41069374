"""The ladder of repairs: GPU reset, reboot, replacement. What follows one that did not help, and why nothing
may.

A stronger repair is bounded by the policy, and a replacement by climbing needs a proof beside the fault: a
node that stayed silent after its reboot, or that failed its check. A person's order never becomes one: who
ordered a reboot wants this machine back, or the say in losing it.

What became of an attempt stands in the node's row, tried.<act>.result:

    passed        the node passed its check afterwards
    failed: why   the act failed, the node did not come back from it, or it failed its check
    refused: why  it was recorded and never done
    unknown: why  it was done, and the node could not be checked
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import PermanentError
from planaria.core.fault import Action
from planaria.core.gates import too_many
from planaria.core.incident import Step
from planaria.core.plans import is_gone
from planaria.core.policy import Policy
from planaria.core.table import Row
from planaria.core.tags import OPT_OUT

HEALTH = {
    Action.RESET.value: "Unschedulable",
    Action.REBOOT.value: "UnschedulablePendingReboot",
    Action.REPLACE.value: "UnschedulablePendingReplacement",
}
"""HyperPod's word for a node on which this is to be done."""

ACTS = {Action.RESET: "reset", Action.REBOOT: "reboot"}
"""The act of a repair, as `acts` and `tried` of the node's row name it."""

STEPS = {Action.REBOOT.value: Step.TO_REBOOT, Action.REPLACE.value: Step.TO_REPLACE}

PASSED = "passed"
FAILED = "failed"
REFUSED = "refused"
UNKNOWN = "unknown"

RESETTING = "resetting"
VERIFYING = "verifying"
CLIMBED = "climbed"
"""Attributes of the incident's row: the reset and the check under way with how they ended (`end`), and the
steps that the incident has gone on from."""

REASON_LENGTH = 400

_NEXT = {Action.RESET: Action.REBOOT, Action.REBOOT: Action.REPLACE}
_CALLED = {Action.RESET: "GPU reset", Action.REBOOT: "reboot", Action.REPLACE: "replacement"}


@dataclass(frozen=True, slots=True)
class Climb:
    """The next repair, and in words why it is done."""

    action: Action
    reason: str


def following(row: Row, reason: str, policy: Policy, now: float) -> Climb:
    """What is done after the repair on this node's row, which did not help for `reason`.

    Raises PermanentError with a sentence for the person who has to go on.
    """
    action = Action(row["action"])
    if action not in _NEXT:
        raise PermanentError(reason)
    if row.get("opted_out") and not is_gone(row):
        raise PermanentError(f"{reason}; it has the tag {OPT_OUT}, so nothing more is done to it by itself")
    step = Action.REPLACE if is_gone(row) else _NEXT[action]
    if step is Action.REPLACE and row.get("verb"):
        raise PermanentError(
            f"{reason}; a person ordered the {row['verb']}, which never becomes a replacement by itself: "
            f"{_advice(row, action)}"
        )
    name, before = str(row.get("name") or row["node_id"]), row.get("replacements") or ()
    if step is Action.REPLACE and (limit := too_many(name, before, policy, now)):
        raise PermanentError(f"{reason}; {limit}")
    if is_gone(row):
        # Whatever the policy allows: triage would open just that for the instance's end.
        return Climb(step, f"{reason}; the instance is gone, so it is replaced")
    if step.strength > policy.escalate_to.strength:
        raise PermanentError(
            f"{reason}; policy escalate_to {policy.escalate_to} allows no {_CALLED[step]}: "
            f"{_advice(row, action)}"
        )
    if step is Action.REPLACE and not _proven(row):
        raise PermanentError(
            f"{reason}; that is no proof that the node is broken, so it is not replaced by itself: "
            f"{_advice(row, action)}"
        )
    return Climb(step, reason)


def result_of(row: Row, reason: str) -> str:
    """What becomes of the present attempt, for tried.<act>.result."""
    return f"{_outcome(row)}: {reason}"[:REASON_LENGTH]


def remembered(row: Row, result: str) -> dict[str, Any]:
    """The change that notes this result on the node's row; {} where the act was not this session's, or a
    person's, whose orders say nothing of the hardware."""
    name = ACTS.get(Action(row["action"]), "")
    tried = dict(row.get("tried") or {})
    if row.get("verb") or name not in tried or float(tried[name]["at"]) < float(row["opened_at"]):
        return {}
    if tried[name].get("result") == result:
        return {}
    return {"tried": {**tried, name: {**tried[name], "result": result}}}


def acted_at(row: Row, action: Action) -> float:
    """When this session did the act of that repair (epoch seconds), 0.0 when it has not."""
    at = float((row.get("acts") or {}).get(ACTS.get(action, ""), 0.0))
    return at if at >= float(row.get("opened_at") or 0.0) else 0.0


def tried_so_far(row: Row) -> str:
    """What the incident has gone on from, in words; "" when nothing."""
    steps: list[Mapping[str, Any]] = list(row.get(CLIMBED) or [])
    return ", ".join(f"a {_CALLED[Action(step['action'])]} ({step['reason']})" for step in steps)


def left_last(row: Row) -> str:
    """What people call the repair that the incident has gone on from last; "" when it is its first."""
    steps = row.get(CLIMBED) or [{}]
    return _CALLED[Action(steps[-1]["action"])] if steps[-1] else ""


def _rebooted(row: Row) -> bool:
    return float(row.get("reboot_sent_at") or 0.0) > float(row["opened_at"])


def _silent(row: Row) -> bool:
    """It has not reported since its reboot."""
    return float(row.get("ready_at") or 0.0) <= float(row["reboot_sent_at"])


def _end(row: Row, attribute: str) -> str:
    return str((row.get(attribute) or {}).get("end") or "")


def _outcome(row: Row) -> str:
    if Action(row["action"]) is Action.RESET:
        if RESETTING not in row:
            return REFUSED
        end = _end(row, RESETTING)
        if end != PASSED:
            return end or UNKNOWN
    elif not _rebooted(row):
        return REFUSED
    elif _silent(row):
        return FAILED
    return _end(row, VERIFYING) or UNKNOWN


def _proven(row: Row) -> bool:
    """Beside the fault there is a second proof that the node is broken."""
    return _rebooted(row) and _outcome(row) == FAILED


def _advice(row: Row, action: Action) -> str:
    node = row["node_id"]
    weaker = f"planaria reboot {node} or " if action is Action.RESET and not is_gone(row) else ""
    return f"{weaker}planaria replace {node}"
