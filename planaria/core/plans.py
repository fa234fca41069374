"""What a workflow will do about an incident, as a small document that its states read."""

from typing import Any

from planaria.core.gates import ends_anyway
from planaria.core.incident import incident_id, isolation_reason
from planaria.core.ports import Instance
from planaria.core.table import Row
from planaria.core.tags import GROUP, NAME, OPT_OUT

GONE_STATES = frozenset({"shutting-down", "terminated"})

# Faults that announce an end or an order while the node itself still works: its ranks can save.
STILL_WORKS = frozenset(
    {"spot_interruption", "capacity_end", "scheduled_event", "lifecycle", "health_issue", "console"}
)


def facts(instance: Instance) -> dict[Any, Any]:
    """What EC2 says about an instance, as attributes of the node's row."""
    found: dict[Any, Any] = {
        "state": instance.state,
        "instance_type": instance.instance_type,
        "zone": instance.zone,
        "address": instance.address,
        "lifecycle": instance.lifecycle,
        "launched_at": instance.launched_at,
        "reservation": instance.reservation,
        "gone": instance.state in GONE_STATES,
        "opted_out": instance.tags.get(OPT_OUT, "false").lower() != "false",
    }
    if GROUP in instance.tags:
        found["group"] = instance.tags[GROUP]
    if NAME in instance.tags:
        found["name"] = instance.tags[NAME]
    return found


def is_gone(row: Row) -> bool:
    """EC2 has ended the instance or is about to: what runs there is lost."""
    return bool(row.get("gone")) or row.get("state") in GONE_STATES


def isolated_by(row: Row, mark: str) -> bool:
    """This incident's own isolation stands. An older session's has another mark and is written anew, for
    readmit undoes only what bears its own mark."""
    return (row.get("isolation") or {}).get("mark") == mark


def incident_document(row: Row, ask_first: bool = False) -> dict[str, Any]:
    """The `incident` of heal_node, isolate_node and launch_replacement: references and switches only.

    ask_first: the policy is that a person approves. approval: one is asked, for nobody has ordered it and AWS
    leaves the node to us. save: ask the ranks for a checkpoint first (the node still works: a planned end, a
    spot notice, a person's order). replacement: launch one. reboot: reboot instead. retire: terminate the
    old instance.
    """
    action, verb = row["action"], row.get("verb", "")
    name = incident_id(row["node_id"], row["session"])
    fault = row.get("fault") or {}
    works = fault.get("kind") in STILL_WORKS or fault.get("severity") != "FATAL"
    ask = ask_first and not verb and not ends_anyway(str(fault.get("kind")), is_gone(row))
    # What a superseded session began under a person's word or by AWS's needs no other one to be ended.
    ask = ask and not row.get("launch") and not (row.get("supersedes") or {}).get("taken")
    remove = verb in ("remove", "isolate")
    reboot = action in ("REBOOT", "RESET")
    return {
        "incident_id": name,
        "node_id": row["node_id"],
        "name": row.get("name") or row["node_id"],
        "session": row["session"],
        "action": action,
        "verb": verb,
        "job_id": row.get("job_id") or "",
        "mark": isolation_reason(name),
        "approval": ask,
        "save": bool(row.get("job_id")) and works and not is_gone(row),
        "replacement": not remove and not reboot,
        "reboot": reboot,
        "retire": verb not in ("isolate", "launch") and not reboot,
    }
