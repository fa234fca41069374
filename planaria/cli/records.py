"""The ledger's rows as people and scripts see them."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from planaria.cli import planned
from planaria.cli.screen import iso
from planaria.cli.suspicions import suspicions
from planaria.core import approval, attempts
from planaria.core.errors import InvalidInput
from planaria.core.incident import ACTIVE, NODE_ID, Phase, Step, incident_id
from planaria.core.plans import is_gone
from planaria.core.policy import Policy
from planaria.core.pool import state_of
from planaria.core.ports import Instance
from planaria.core.table import Row
from planaria.wiring import Gateways

Document = dict[str, Any]
_ORDER = {step.value: number for number, step in enumerate(Step)}
ENDED_WELL = ("HEALED", "RETIRED")


# --- nodes -----------------------------------------------------------------------------------------


def serves(row: Row) -> bool:
    """The node holds its scheduler name: it is there, and no replacement or spare without a place."""
    if state_of(row) is not None or is_gone(row) or row.get("retired"):
        return False
    return "replaces" not in row or "admitted_at" in row


def find_node(rows: Iterable[Row], text: str) -> str:
    """The instance id of a node that a person named by id or scheduler name.

    A replacement has the name of the node it replaces: the one that serves is meant, else the newest.
    An id that the ledger does not know is returned as it is. Raises InvalidInput.
    """
    if NODE_ID.match(text):
        return text
    rows = list(rows)
    named = [row for row in rows if row.get("name") == text]
    if named:
        best = max(named, key=lambda row: (serves(row), not is_gone(row), float(row.get("launched_at", 0))))
        return str(best["node_id"])
    known = sorted({str(row["name"]) for row in rows if row.get("name") and not is_gone(row)})
    has = f"it has {_some(known)}" if known else "it has no nodes yet"
    raise InvalidInput(f"no node of this cluster is called {text!r:.80}; {has}")


def node_document(row: Row, instance: Instance | None, suspect: list[Document]) -> Document:
    """instance: what EC2 says now, None when it has forgotten the instance. suspect: of suspicions.py."""
    gone = is_gone(row) or (instance is None and "ready_at" in row)
    state = instance.state if instance is not None else ("terminated" if gone else row.get("state"))
    health = row.get("health") or ("Schedulable" if "ready_at" in row else "Unschedulable")
    active = row.get("phase") in ACTIVE
    return {
        "node_id": row["node_id"],
        "name": row.get("name"),
        "group": row.get("group"),
        "instance_type": (instance.instance_type if instance else "") or row.get("instance_type"),
        "zone": (instance.zone if instance else "") or row.get("zone") or None,
        "lifecycle": (instance.lifecycle if instance else "") or row.get("lifecycle"),
        "state": state,
        "health": None if state in ("terminated", "shutting-down") else health,
        "job_id": row.get("job_id") or None,
        "incident_id": incident_id(row["node_id"], row["session"]) if active else None,
        "replaces": row.get("replaces"),
        "launched_at": iso(row.get("launched_at") or (instance.launched_at if instance else None)),
        "spare": state_of(row),
        "held": row.get("held_reason") if row.get("held") else None,
        "approval": waits_for(row),
        "planned": planned.plans(row),
        "suspect": suspect,
    }


def waits_for(row: Row) -> Document | None:
    """What a person is asked about this node; the task token stays in the ledger."""
    asked = approval.of(row)
    if asked is None or "answer" in asked:
        return None
    return {
        "incident_id": incident_id(row["node_id"], row["session"]),
        "asked_at": iso(asked["asked_at"]),
        "until": iso(asked["deadline"]),
    }


def node_documents(
    rows: Iterable[Row], instances: Iterable[Instance], policy: Policy, now: float
) -> list[Document]:
    """One per node of the ledger and of EC2, by name, then by launch. now: epoch seconds."""
    known = {row["node_id"]: row for row in rows}
    present = {instance.node_id: instance for instance in instances}
    documents = [
        node_document(row, present.get(node), suspicions(row, policy, now)) for node, row in known.items()
    ]
    for node, instance in present.items():
        if node not in known:
            row = {"node_id": node, "name": instance.tags.get("planaria:name"), "state": instance.state}
            documents.append(
                node_document(row | {"group": instance.tags.get("planaria:group")}, instance, [])
            )
    return sorted(documents, key=lambda d: (d["name"] or "~", d["launched_at"] or "", d["node_id"]))


# --- incidents -------------------------------------------------------------------------------------


def incident_document(head: Row, steps: Iterable[Row]) -> Document:
    """The keys that scripts may rely on. `seconds` counts from the moment at which the fault was seen."""
    began = float(head.get("detected_at") or head.get("opened_at") or 0.0)
    return {
        "incident_id": head["incident_id"],
        "node_id": head.get("node_id"),
        "session": head.get("session"),
        "mode": head.get("mode"),
        "action": head.get("action"),
        "outcome": head.get("outcome"),
        "opened_at": iso(head.get("opened_at")),
        "closed_at": iso(head.get("closed_at")),
        "execution_arn": head.get("execution_arn"),
        "replacement_id": head.get("replacement_id"),
        "job_id": head.get("job_id") or None,
        "resume_step": head.get("resume_step"),
        "climbed": [{**left, "at": iso(left["at"])} for left in head.get("climbed") or []],
        "timeline": [
            {"step": row["step"], "at": iso(row["at"]), "seconds": round(float(row["at"]) - began, 3)}
            for row in steps
        ],
    }


def incident_summary(head: Row, names: Mapping[str, str], waiting: Mapping[str, Document]) -> Document:
    """One line of `planaria incidents`. names: scheduler name by instance id. waiting: by incident."""
    began = head.get("detected_at") or head.get("opened_at")
    closed = head.get("closed_at")
    node = head.get("node_id")
    return {
        "incident_id": head["incident_id"],
        "node_id": node,
        "name": names.get(str(node)),
        "job_id": head.get("job_id") or None,
        "action": head.get("action"),
        "outcome": head.get("outcome"),
        "opened_at": iso(head.get("opened_at")),
        "closed_at": iso(closed),
        "seconds": round(float(closed) - float(began), 3) if closed and began else None,
        "reason": head.get("outcome_reason") or head.get("reason") or "",
        "approval": None if head.get("outcome") else waiting.get(head["incident_id"]),
    }


def waiting(rows: Iterable[Row]) -> dict[str, Document]:
    """What a person is asked, by incident."""
    asked = [document for row in rows if (document := waits_for(row)) is not None]
    return {document["incident_id"]: document for document in asked}


def newest_first(heads: Iterable[Row]) -> list[Row]:
    return sorted(heads, key=lambda head: float(head.get("opened_at") or 0), reverse=True)


def read_incident(gateways: Gateways, name: str) -> tuple[Row, list[Row]]:
    """The incident's row and its steps. Raises InvalidInput when there is none."""
    head, steps = gateways.ledger.incident(name)
    if head is None:
        raise InvalidInput(f"there is no incident {name!r:.80}; `planaria incidents` lists them")
    steps.sort(key=lambda row: (float(row["at"]), _ORDER.get(row["step"], len(_ORDER))))
    if not head.get("execution_arn") and head.get("node_id") is None and head.get("job_id"):
        # A resume that no node stands behind: its execution is on the job's row while it is the newest.
        job = gateways.jobs.job(str(head["job_id"])) or {}
        if job.get("resume_name") == name and job.get("resume_arn"):
            head = {**head, "execution_arn": job["resume_arn"]}
    return head, steps


def step_name(step: str) -> str:
    return step.replace("_", " ")


def step_line(head: Row, row: Row) -> Text:
    """A step as it comes in: its seconds, its name, what else it says."""
    began = float(head.get("detected_at") or head["opened_at"])
    line = Text(f"  {float(row['at']) - began:7.2f} s  ", style="cyan")
    detail = step_detail(row)
    name = step_name(row["step"])
    line.append(f"{name:<22}" if detail else name, style="default")
    return line.append(detail, style="dim")


def step_detail(row: Row) -> str:
    """What a step's row says beside its time."""
    match row["step"]:
        case "approval_asked":
            return f"of a person, until {iso(row.get('until'))}"
        case "approved":
            return f"by {row.get('by', 'a person')}"
        case "replacement_launched" | "node_joined":
            return str(row.get("node_id", ""))
        case "checkpoint_saved":
            return f"step {row['checkpoint_step']}" if "checkpoint_step" in row else ""
        case "went_on_to_reboot" | "went_on_to_replace":
            return str(row.get("reason", ""))
        case "gpu_reset":
            return f"GPU {row['pci']}" if row.get("pci") else "all GPUs"
        case "node_verified":
            return f"{row.get('suite', '')} check" + (f"; {row['unchecked']}" if row.get("unchecked") else "")
        case "job_resumed":
            step = row.get("resume_step")
            if step is None:
                return ""
            return f"attempt {row.get('job_attempt', '?')} from " + (
                f"step {step}" if int(step) >= 0 else "the beginning: there is no checkpoint"
            )
        case "first_new_step":
            return f"step {row['train_step']}" if row.get("train_step") is not None else ""
    return ""


@dataclass(frozen=True, slots=True)
class Followed:
    """ended: the incident has its outcome and the job it stopped is on its way again, or waits for others.
    waits: what is still open, for people."""

    head: Row
    steps: list[Row]
    ended: bool
    waits: str


def look(gateways: Gateways, name: str) -> Followed:
    head, steps = read_incident(gateways, name)
    job = gateways.jobs.job(str(head["job_id"])) if head.get("job_id") else None
    waits = ""
    if not head.get("outcome"):
        waits = _next_step({row["step"] for row in steps}, head)
    elif job is not None and name in job.get("credits", {}) and job.get("resume_phase") in ACTIVE:
        waits = f"job {job['job_id']} is resumed"
    return Followed(head, steps, not waits, waits)


def follow(
    gateways: Gateways,
    name: str,
    seconds: float,
    told: Callable[[Row, Row], None],
    waiting: Callable[[str], None],
    poll: float,
) -> Followed:
    """Look again every `poll` seconds until the incident has ended, for `seconds` at most.

    told: called once for every new step with the incident's row and the step's. waiting: with what is
    open. The answer's `ended` is False when the time was over first.
    """
    known: set[str] = set()
    deadline = time.monotonic() + seconds
    while True:
        seen = look(gateways, name)
        for row in seen.steps:
            if row["step"] not in known:
                known.add(row["step"])
                told(seen.head, row)
        if seen.ended or time.monotonic() > deadline:
            return seen
        waiting(seen.waits)
        time.sleep(poll)


def _next_step(done: set[str], head: Row) -> str:
    if head.get("node_id") is None:
        return "the job is resumed"
    if "begun" not in done:
        return "the workflow starts"
    if "approval_asked" in done and "approved" not in done:
        return f"a person approves it: planaria approve {head['incident_id']}"
    if "isolated" not in done:
        return "the node is isolated"
    for before, after, what in (
        (
            "went_on_to_replace",
            "replacement_launched",
            "a replacement is launched, for the reboot did not help",
        ),
        ("replacement_launched", "node_ready", "the replacement boots"),
        ("rebooted", "node_ready", "the node boots"),
        ("gpu_reset", "node_verified", "the node passes its check"),
        ("node_ready", "node_verified", "the node passes its check"),
        ("node_verified", "node_joined", "the node joins the scheduler"),
    ):
        if before in done and after not in done:
            return what
    return "the incident is closed"


# --- jobs ------------------------------------------------------------------------------------------


def job_document(row: Row, names: Mapping[str, str]) -> Document:
    nodes = [row.get("nodes", {})[rank] for rank in sorted(row.get("nodes", {}), key=int)]
    first, overdue = row.get("first_step") or {}, row.get("overdue") or {}
    return {
        "job_id": row["job_id"],
        "state": "ESCALATED" if overdue else row.get("state"),
        "attempt": row.get("attempt"),
        "recipe": row.get("recipe"),
        "user": row.get("user"),
        "checkpoints": (row.get("lineage") or {}).get("folder"),
        "kept": row.get("kept"),
        "ended_at": iso(row.get("ended_at")),
        "ended_reason": row.get("ended_reason"),
        "nodes": [{"node_id": node, "name": names.get(node)} for node in nodes],
        "waits_for": [
            {"node_id": node, "name": names.get(node), "incident_id": incident}
            for node, incident in sorted(row.get("pending", {}).items())
        ],
        "unresolved": [
            {"node_id": node, "name": names.get(node), "reason": why}
            for node, why in sorted(row.get("unresolved", {}).items())
        ],
        "resume": row.get("resume_phase"),
        "resume_reason": row.get("resume_outcome_reason") or row.get("resume_reason"),
        "resume_step": row.get("resume_step"),
        "first_step": first.get("step"),
        "attempts": [
            {"attempt": one.number, "from_step": one.step, "failure": one.failure or None}
            for one in attempts.of(row)
        ],
        "set_aside": [
            {"step": int(step), "reason": mark["why"], "at": iso(mark["at"])}
            for step, mark in sorted((row.get("aside") or {}).items(), key=lambda item: -int(item[0]))
        ],
        "needs_you": row.get("given_up") or overdue.get("reason") or _given_up_resume(row),
    }


def _given_up_resume(row: Row) -> str | None:
    """Why the job stands still and a person was called; None when it does not."""
    ended = row.get("resume_phase") == Phase.ESCALATED and row.get("state") == "FAILED"
    return str(row.get("resume_outcome_reason") or "") if ended else None


def names_of(rows: Iterable[Row]) -> dict[str, str]:
    """Scheduler name by instance id."""
    return {str(row["node_id"]): str(row["name"]) for row in rows if row.get("name")}


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
