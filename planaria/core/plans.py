"""What a workflow will do about an incident, as a small document that its states read."""

from typing import Any

from planaria.core.gates import ends_anyway
from planaria.core.incident import incident_id, isolation_reason
from planaria.core.policy import Drain, Mode, Policy
from planaria.core.ports import Instance
from planaria.core.table import Row
from planaria.core.tags import GROUP, NAME, OPT_OUT

GONE_STATES = frozenset({"shutting-down", "terminated"})

# Faults that announce an end or an order while the node itself still works: its ranks can save.
STILL_WORKS = frozenset(
    {
        "spot_interruption",
        "rebalance",
        "capacity_end",
        "scheduled_event",
        "lifecycle",
        "health_issue",
        "console",
    }
)

LAST_SECONDS = 30.0
"""Before an announced end: for ending the ranks and taking the node out."""


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
        "host": instance.host,
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


def emptied(row: Row) -> bool:
    """Nothing runs on the node any more since its present isolation, or its time for that is over."""
    return "emptied_at" in (row.get("isolation") or {}) or is_gone(row)


def drain_until(row: Row, policy: Policy) -> float:
    """Until when the jobs of an isolated node may run on (epoch seconds)."""
    until = float(row["isolation"]["at"]) + policy.drain_deadline_seconds
    end = (row.get("fault") or {}).get("deadline")
    return until if end is None else min(until, float(end) - LAST_SECONDS)


def incident_document(row: Row, policy: Policy) -> dict[str, Any]:
    """The `incident` of heal_node, isolate_node and launch_replacement: references and switches only.

    approval: a person is asked first. drain: how the node is emptied. first: the node works on until its
    replacement is ready (begin_incident says so). save: ask the ranks for a checkpoint first. replacement:
    launch one. reset, reboot: that instead. retire: terminate the old instance.
    """
    action, verb = row["action"], row.get("verb", "")
    name = incident_id(row["node_id"], row["session"])
    fault = row.get("fault") or {}
    works = fault.get("kind") in STILL_WORKS or fault.get("severity") != "FATAL"
    repair = action in ("REBOOT", "RESET")
    drain = _drain(row, works, policy)
    return {
        "incident_id": name,
        "node_id": row["node_id"],
        "name": row.get("name") or row["node_id"],
        "session": row["session"],
        "action": action,
        "verb": verb,
        "job_id": row.get("job_id") or "",
        "mark": isolation_reason(name),
        "approval": policy.mode is Mode.APPROVE and needs_word(row),
        "drain": drain.value,
        "first": False,
        "save": bool(row.get("job_id")) and drain is Drain.CHECKPOINT,
        "replacement": replaces(row),
        "reset": action == "RESET",
        "reboot": action == "REBOOT",
        "retire": verb not in ("isolate", "launch") and not repair,
    }


def replaces(row: Row) -> bool:
    """The session brings another instance for this node."""
    return row.get("verb", "") not in ("remove", "isolate") and row["action"] not in ("REBOOT", "RESET")


def needs_word(row: Row) -> bool:
    """In mode approve a person is asked: nobody has ordered it and AWS leaves the node to us."""
    fault = row.get("fault") or {}
    ask = not row.get("verb") and not ends_anyway(str(fault.get("kind")), is_gone(row))
    # What a superseded session began under a person's word or by AWS's needs no other one to be ended.
    return ask and not row.get("launch") and not (row.get("supersedes") or {}).get("taken")


def _drain(row: Row, works: bool, policy: Policy) -> Drain:
    """A broken node is not waited for; EC2's wish for a spot node leaves time for a checkpoint alone."""
    if is_gone(row) or not works:
        return Drain.STOP
    if (row.get("fault") or {}).get("kind") in ("spot_interruption", "rebalance"):
        return Drain.CHECKPOINT
    return policy.drain
