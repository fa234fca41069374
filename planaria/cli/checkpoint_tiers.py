"""A job's checkpoints over all tiers, as a resume sees them: its folder as a node lists it, and S3."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planaria.cli.target import Target
from planaria.core import listed_steps, restores
from planaria.core.errors import PermanentError, PlanariaError, TransientError
from planaria.core.plans import is_gone
from planaria.core.ports import Answer, AnswerState, Commands
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.core.table import Row
from planaria.schedulers.process import HeadClient, decode_answer

DOCUMENT = "planaria-list-checkpoints"
PATIENCE_SECONDS = 130.0
"""A little more than the document's own time."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Seen:
    """unseen: what could not be asked and why, one sentence each."""

    copies: list[StepCopy]
    unseen: tuple[str, ...] = ()


def look(target: Target, job: Row, url: str, rows: Iterable[Row]) -> Seen:
    """url: of the job in S3. rows: of the ledger's steps. A tier that cannot be asked is said; raises what
    the last one raises when none can be."""
    told: list[StepCopy] = []
    unseen: list[str] = []
    last: PlanariaError | None = None
    for what, ask in (
        ("the file system", lambda: _on_file_system(target, job)),
        ("S3", lambda: target.gateways.checkpoints(str(job["job_id"]), url).steps()),
    ):
        try:
            told += ask()
        except (PermanentError, TransientError) as error:
            unseen.append(f"{what} could not be asked: {error}")
            last = error
    if len(unseen) == 2 and last is not None:
        raise last
    bad = restores.read(target.gateways.table, str(job["job_id"])).get("bad") or {}
    safe = {str(row["digest"]) for row in rows if row.get("state") == StepState.DURABLE and row.get("digest")}
    return Seen([_as_known(copy, bad, safe) for copy in told], tuple(unseen))


def _as_known(copy: StepCopy, bad: Mapping[str, Mapping[str, Any]], safe: set[str]) -> StepCopy:
    """What restores have found bad, and what the ledger knows to be durable."""
    if not copy.usable:
        return copy
    mark = bad.get(restores.copy_key(copy))
    if mark is not None and (copy.touched_at or 0.0) <= float(mark["at"]):
        return replace(copy, state=StepState.CORRUPT, reason=str(mark["why"]))
    return replace(copy, state=StepState.DURABLE) if copy.tier is Tier.S3 and copy.digest in safe else copy


def _on_file_system(target: Target, job: Row) -> list[StepCopy]:
    """Raises TransientError where no node of the job is there, or none answers."""
    folder = str((job.get("lineage") or {}).get("folder") or "")
    parameters = {"Job": str(job["job_id"])} | ({"Directory": folder} if folder else {})
    why = f"no node of job {job['job_id']} is there"
    for node in _nodes(target, job):
        entry = _run(target, node, parameters)
        if entry.get("status") == "SUCCESS":
            return listed_steps.copies(entry.get("output"), str(job["job_id"]), folder)
        output = entry.get("output")
        said = output.get("reason") if isinstance(output, Mapping) else output
        why = f"{node} cannot list them ({said or entry.get('status')})"
    raise TransientError(why)


def _nodes(target: Target, job: Row) -> Sequence[str]:
    nodes = [str(job["nodes"][rank]) for rank in sorted(job.get("nodes") or {}, key=int)]
    rows = {row["node_id"]: row for row in target.gateways.ledger.nodes_by_id(nodes)}
    return [node for node in nodes if not is_gone(rows.get(node, {}))][:2]


def _run(target: Target, node: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
    commands = _commands(target)
    ticket = commands.submit(DOCUMENT, [node], parameters)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := commands.poll(ticket)).state is AnswerState.PENDING:
        if time.monotonic() > deadline:
            return {"status": f"no answer within {PATIENCE_SECONDS:.0f} s"}
        time.sleep(POLL_SECONDS)
    found = answer.value.get(node)
    return found if isinstance(found, Mapping) else {"status": answer.reason or "UNKNOWN"}


def _commands(target: Target) -> Commands:
    return target.gateways.commands if target.head is None else _HeadCommands(target.head)


class _HeadCommands:
    """The sandbox's head runs documents itself."""

    def __init__(self, head: HeadClient) -> None:
        self._head = head

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        body = {"document": document, "node_ids": list(node_ids), "parameters": dict(parameters)}
        return str(self._head.post("/commands/submit", body)["ticket"])

    def poll(self, ticket: str) -> Answer:
        return decode_answer(self._head.post("/commands/poll", {"ticket": ticket}))
