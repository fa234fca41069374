"""The nodes' share in a sync: they copy a step in chunks, or only find out its checksums.

    work["plan"] {"files", "chunks", "size", "manifest": the step has one} work["runs"] {"nodes", "ticket",
    "at", "rounds": how often nodes were sent, "done": chunks when they were sent}

Nodes claim chunks until none is open. Where one dies its chunk's lease runs out, and others are sent.
"""

from typing import Any

from lambdas import sync_nodes, sync_work
from lambdas.boundary import Event, Fields, ask_command
from lambdas.sync_work import At
from planaria.core.errors import PermanentError, Waiting
from planaria.core.ports import AnswerState
from planaria.core.sync_plan import COPY, transfer_id
from planaria.core.table import Row
from planaria.core.transfer_ledger import Progress, TransferLedger
from planaria.wiring import Gateways

PLAN, RUN, SETTLE = "planaria-plan-transfer", "planaria-run-transfer", "planaria-settle-step"
CHUNKS = 64
"""A step is cut into at most so many: four for each of the most nodes that copy it."""

SILENT_SECONDS = 120.0
"""So long may nodes that were sent take until the first of them has claimed a chunk."""

ROUNDS = 5
"""So often nodes are sent without one chunk more being done; then the step waits for its next try."""

REFUSALS = 4
"""So many nodes in a row may fail to do what one of them is asked for."""

LONGEST_WAIT = 20.0


def start(gw: Gateways, event: Event, at: At) -> Fields:
    """Plan once, open the transfer, send nodes. Raises Waiting while the plan is out."""
    job = gw.jobs.job(at.job) or {}
    if "plan" not in at.work:
        told = _ask(gw, event, at, job, PLAN, Mode=at.work["stage"].upper(), Chunks=str(CHUNKS))
        if told.get("state") != "complete":
            return sync_work.put_aside(gw, at, _said("the step cannot be copied", told))
        plan = {name: int(told.get(name) or 0) for name in ("files", "chunks", "size")}
        sets = {
            "plan": {**plan, "manifest": bool(told.get("manifest"))},
            "transfer": transfer_id(at.job, at.work),
        }
        figures = {"files": plan["files"], "chunks": plan["chunks"], "bytes": plan["size"]}
        at = sync_work.note(gw, at, {**sets, **figures, "done_bytes": 0, "done_chunks": 0})
    work = at.work
    facts = {
        "job_id": at.job,
        "step": work["name"],
        "directory": _folder(job),
        "place": _place(at),
        "bandwidth_share": _share(gw, at, job),
    }
    now = gw.clock.now()
    TransferLedger(gw.table).open(
        work["transfer"], work["stage"].upper(), chunks=work["plan"]["chunks"], facts=facts, now=now
    )
    if "runs" not in work:
        _send(gw, at, job, 0)
    return {"next": "follow"}


def follow(gw: Gateways, event: Event, at: At) -> Fields:
    """WAIT while nodes are at it."""
    ledger, work, now = TransferLedger(gw.table), at.work, gw.clock.now()
    progress = ledger.progress(work["transfer"], now)
    if progress.failed:
        first = progress.failed[0]
        more = f" and {len(progress.failed) - 1} more" if len(progress.failed) > 1 else ""
        return sync_work.put_aside(gw, at, f"{first.name}{more} could not be copied: {first.reason}")
    if not progress.finished:
        return _wait(gw, at, progress)
    at = sync_work.note(gw, at, {"done_bytes": work["bytes"], "done_chunks": progress.done})
    return _settle(gw, event, at)


def _settle(gw: Gateways, event: Event, at: At) -> Fields:
    work = at.work
    after = "verify" if work["stage"] == COPY else work["via"]
    digest = work["digest"]
    if not work["plan"]["manifest"]:
        told = _ask(gw, event, at, gw.jobs.job(at.job) or {}, SETTLE)
        if told.get("state") != "complete":
            return sync_work.put_aside(gw, at, _said("the step's manifest could not be written", told))
        digest = str(told.get("digest") or "")
    sync_work.note(gw, at, {"stage": after, "digest": digest, "copied_at": gw.clock.now()}, ("runs",))
    return {"next": "verify"} if after == "verify" else sync_work.NEXT


def _wait(gw: Gateways, at: At, progress: Progress) -> Fields:
    work, now = at.work, gw.clock.now()
    told = {"done_bytes": progress.bytes, "done_chunks": progress.done}
    if any(work.get(name) != value for name, value in told.items()):
        at = sync_work.note(gw, at, told)
    runs = work.get("runs") or {"at": now, "rounds": 0, "done": 0, "nodes": []}
    if not progress.owners and (_ended(gw, runs) or now > float(runs["at"]) + SILENT_SECONDS):
        rounds = 0 if progress.done > int(runs["done"]) else int(runs["rounds"])
        if rounds >= ROUNDS:
            asked = ", ".join(runs["nodes"][:4])
            return sync_work.put_aside(
                gw, at, f"no node gets on with copying it; the last that were asked: {asked}"
            )
        _send(gw, at, gw.jobs.job(at.job) or {}, rounds, progress.done)
    age = now - float(work["began_at"])
    left = progress.chunks - progress.done
    return sync_work.wait(
        f"{left} of {progress.chunks} chunks are still to copy", min(LONGEST_WAIT, 2.0 + age / 10)
    )


def _ended(gw: Gateways, runs: Row) -> bool:
    """All nodes that were sent have come back, or nobody knows of them any more."""
    if not runs.get("ticket"):
        return True
    return gw.commands.poll(runs["ticket"]).state is not AnswerState.PENDING


def _send(gw: Gateways, at: At, job: Row, rounds: int, done: int = 0) -> None:
    """Sent twice after a crash they only share the work with themselves."""
    place = gw.cluster.checkpoints.place(_folder(job)) if gw.cluster.checkpoints else None
    zone = place.file_system.zone if place else ""
    nodes, _ = sync_nodes.copiers(gw, job, at.work["plan"]["chunks"], zone)
    last = (at.work.get("runs") or {}).get("nodes") or []
    if rounds and len(nodes) > 1:
        nodes = sorted(nodes, key=lambda node: node in last)
    ticket = gw.commands.submit(RUN, nodes, {"Transfer": at.work["transfer"]})
    runs = {"nodes": nodes, "ticket": ticket, "at": gw.clock.now(), "rounds": rounds + 1, "done": done}
    sync_work.note(gw, at, {"runs": runs})


def _share(gw: Gateways, at: At, job: Row) -> float:
    """Of each node's network: all of it where no job runs on the nodes that will copy."""
    _, idle = sync_nodes.copiers(gw, job, at.work["plan"]["chunks"])
    return 1.0 if idle or gw.cluster.checkpoints is None else gw.cluster.checkpoints.bandwidth_share


def _ask(gw: Gateways, event: Event, at: At, job: Row, document: str, **more: str) -> dict[str, Any]:
    """The answer of one node; another one is asked where it fails. Raises Waiting, and PermanentError when
    one after the other has failed."""
    nodes = sync_nodes.witnesses(gw, job)
    carry = event.get("carry") or {}
    node = str(carry["witness"]) if carry.get("witness") in nodes else nodes[0]
    work = at.work
    parameters = {
        "Job": at.job,
        "Directory": _folder(job),
        "Step": work["name"],
        "Transfer": transfer_id(at.job, at.work),
        "Attempt": str(work["attempt"]),
        "Parent": str(work["parent_step"]),
        **more,
    }
    if document == PLAN:
        parameters["Place"] = _place(at)
    try:
        entry = ask_command(gw, event, document, [node], parameters).get(node) or {}
    except Waiting as wait:
        kept = {"failed": str(carry["failed"])} if "failed" in carry else {}
        raise Waiting(str(wait), {**kept, **wait.carry, "witness": node} if wait.carry else kept) from None
    if entry.get("status") != "SUCCESS":
        reason, failed = (
            f"{document} failed on {node}: {str(entry.get('output'))[:300]}",
            int(carry.get("failed", 0)) + 1,
        )
        if failed >= REFUSALS:
            raise PermanentError(reason)
        following = nodes[(nodes.index(node) + 1) % len(nodes)]
        raise Waiting(reason, {"witness": following, "failed": str(failed)})
    return dict(entry["output"])


def _place(at: At) -> str:
    """Of the job in S3: the step's directory has the same name there."""
    return str(at.work["url"]).rpartition("/")[0]


def _folder(job: Row) -> str:
    return str((job.get("lineage") or {}).get("folder") or "")


def _said(what: str, told: dict[str, Any]) -> str:
    return f"{what}: it is {told.get('state')} ({told.get('reason') or 'no reason is given'})"
