"""Bringing one step from S3 to the file system, from the restore's row alone, one look after the other.

Nodes carry the bytes. `work` on the row says how far it has come:

    via        "import": FSx makes the files known again, then nodes read them through and compare. "fetch":
               nodes download the objects into a scratch directory. An import that does not do is a fetch.
    task_id    of FSx's import; imported: it is done; instead: why it was left for a fetch
    got        {"files", "at"}: how far the import is, and when (epoch seconds) it last got on
    planned    {"chunks", "bytes", "files"}: the plan of the transfer, by `node`
    asked      the document that is out (lambdas/errands.py)
    moved      all chunks have ended; flaw {"cause", "reason"}: why the copy does not do, where it does not
    settled    the node's word about the whole step
    bytes, done_bytes, chunks, done_chunks   for whoever looks on

What is asked twice is done once: a transfer has one id per round, its chunks are claimed in the ledger, and a
data repository task has the transfer's id as its token.
"""

import contextlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from lambdas import errands
from lambdas.errands import PLAN, REMOVE, RUN, SETTLE, note
from planaria.core.checkpoint_ports import TaskState
from planaria.core.errors import PermanentError, PlanariaError, Waiting
from planaria.core.saved_step import USABLE
from planaria.core.table import Row
from planaria.core.transfer_ledger import Progress, TransferLedger
from planaria.core.transfers import Cause, Mode
from planaria.core.wording import span
from planaria.wiring import Gateways

IMPORT = "IMPORT_METADATA_FROM_REPOSITORY"
CHUNKS_PER_NODE = 4

IMPORT_SECONDS = 600.0
"""An import that has not begun, or not got on, for so long is left: nodes can fetch the copy at once."""

OF_THE_COPY = frozenset({Cause.BAD, Cause.DENIED})
"""An older copy may do. Of a full file system no copy is to blame; anything else may go better later."""

_DECIDES = (Cause.FULL, Cause.DENIED, Cause.BAD, Cause.CHANGED, Cause.OTHER)


class Via(StrEnum):
    IMPORT = "import"
    FETCH = "fetch"


def bring(gw: Gateways, row: Row, nodes: Sequence[str]) -> Row:
    """The row, once all bytes are there or it is clear that they will not be. Raises Waiting, and
    PermanentError where nodes cannot do it."""
    if row["work"].get("moved"):
        return row
    if row["work"]["via"] == Via.IMPORT and not row["work"].get("imported"):
        row = _imported(gw, row)
    if not row["work"].get("planned"):
        row = _planned(gw, row, nodes)
    return row if row["work"].get("moved") else _moved(gw, row, nodes)


def settle(gw: Gateways, row: Row, nodes: Sequence[str]) -> Mapping[str, Any]:
    """The node's word about the step at its place: {"state", "reason", "cause"}. Raises as `bring`."""
    work = row["work"]
    if "settled" not in work:
        parameters = {**_step(row), "Transfer": transfer_of(row)}
        told = next(iter(errands.send(gw, row, SETTLE, nodes, parameters).values()))
        row = note(gw, row, settled=dict(told))
    told = dict(row["work"]["settled"])
    if told.get("state") not in USABLE and work["via"] == Via.IMPORT:
        # It lies at its very place, and by names and sizes it is whole.
        copy = f"{work['attempt']}:{work['step']}"
        where = {"Job": str(row["job_id"]), "Directory": str(row["folder"]), "Steps": copy}
        errands.send(gw, row, REMOVE, nodes, where)
    return told


def stop(gw: Gateways, row: Row, reason: str) -> None:
    """No node takes another chunk, and what came so far is cleared away; nobody waits for it."""
    work = row.get("work") or {}
    if not work.get("imported"):
        _cancel(gw, work)
    if work.get("planned"):
        TransferLedger(gw.table).cancel(transfer_of(row), reason, gw.clock.now())
        gw.commands.submit(SETTLE, [work["node"]], {**_step(row), "Transfer": transfer_of(row)})


def transfer_of(row: Row) -> str:
    """Reading through after an import and fetching are two transfers of one round."""
    return f"{row['work']['transfer']}-{'read' if row['work']['via'] == Via.IMPORT else 'fetch'}"


def cause_of(word: object) -> Cause:
    return Cause(str(word)) if str(word) in set(Cause) else Cause.OTHER


# --- by FSx -----------------------------------------------------------------------------------------


def _imported(gw: Gateways, row: Row) -> Row:
    """FSx has made the files of the step known, or the step is fetched instead."""
    if not row["work"].get("got"):
        row = note(gw, row, got={"files": 0, "at": gw.clock.now()})
    work = row["work"]
    try:
        task_id = work.get("task_id") or gw.data_repository.start(
            work["file_system"], IMPORT, [work["place"]], work["transfer"]
        )
    except PermanentError as error:
        return _fetch_instead(gw, row, str(error))
    except Waiting as wait:
        return _patient(gw, row, 0, str(wait))
    if task_id != work.get("task_id"):
        row = note(gw, row, task_id=task_id)
    task = gw.data_repository.task(task_id)
    if task.state is TaskState.SUCCEEDED:
        return note(gw, row, imported=True)
    if task.state in (TaskState.PENDING, TaskState.EXECUTING, TaskState.CANCELING):
        told = f"FSx imports {work['name']} ({task.succeeded} of {task.total} files)"
        return _patient(gw, row, task.succeeded + task.failed, told)
    return _fetch_instead(gw, row, f"FSx's import task {task_id} ended {task.state}: {task.reason}")


def _patient(gw: Gateways, row: Row, files: int, told: str) -> Row:
    """Raises Waiting as long as the import gets on; then it is cancelled, and the copy is fetched."""
    now, got = gw.clock.now(), row["work"]["got"]
    if files != got["files"]:
        note(gw, row, got={"files": files, "at": now})
    elif now >= float(got["at"]) + IMPORT_SECONDS:
        _cancel(gw, row["work"])
        return _fetch_instead(gw, row, f"it got on no more for {span(IMPORT_SECONDS)}: {told}")
    raise Waiting(told)


def _cancel(gw: Gateways, work: Mapping[str, Any]) -> None:
    """Our own import, as only those are noted. One that cannot be cancelled does no harm: it brings the same
    files."""
    if work.get("task_id"):
        with contextlib.suppress(PlanariaError):
            gw.data_repository.cancel(str(work["task_id"]))


def _fetch_instead(gw: Gateways, row: Row, why: str) -> Row:
    return note(gw, row, via=Via.FETCH.value, instead=why[:300], planned=None, asked=None)


# --- by nodes ---------------------------------------------------------------------------------------


def _planned(gw: Gateways, row: Row, nodes: Sequence[str]) -> Row:
    """The transfer is planned and open. An imported step that is not whole is fetched instead."""
    work, place = row["work"], str(row["work"]["place"]).rpartition("/")[0]
    mode = Mode.HASH if row["work"]["via"] == Via.IMPORT else Mode.FETCH
    parameters = {
        **_step(row),
        "Transfer": transfer_of(row),
        "Mode": mode.value.upper(),
        "Chunks": str(CHUNKS_PER_NODE * len(nodes)),
        "Place": place,
    }
    [(node, told)] = errands.send(gw, row, PLAN, nodes, parameters).items()
    if told.get("state") not in USABLE:
        reason = str(told.get("reason") or f"it is {told.get('state')}")
        if mode is Mode.HASH:
            return _planned(gw, _fetch_instead(gw, row, reason), nodes)
        return _ended(gw, row, {"cause": cause_of(told.get("cause")).value, "reason": reason})
    chunks, now = int(told["chunks"]), gw.clock.now()
    facts = {"job": row["job_id"], "step": work["step"], "directory": row["folder"], "place": place}
    TransferLedger(gw.table).open(transfer_of(row), mode, chunks, facts, now)
    planned = {"chunks": chunks, "bytes": int(told.get("size", 0)), "files": int(told.get("files", 0))}
    counts = {"bytes": planned["bytes"], "chunks": chunks, "done_bytes": 0, "done_chunks": 0}
    return note(gw, row, planned=planned, node=node, **counts)


def _moved(gw: Gateways, row: Row, nodes: Sequence[str]) -> Row:
    """All chunks have ended. A node that died leaves its own to those that are asked next, once its lease is
    over."""
    progress = _progress(gw, row)
    if progress.done != row["work"].get("done_chunks"):
        row = note(gw, row, done_bytes=progress.bytes, done_chunks=progress.done)
    flaw = _flaw(progress)
    if flaw and flaw["cause"] in (Cause.FULL, *OF_THE_COPY):
        TransferLedger(gw.table).cancel(transfer_of(row), flaw["reason"], gw.clock.now())
        return _ended(gw, row, flaw, progress)
    if progress.finished:
        return _ended(gw, row, flaw, progress)
    told = f"{progress.done} of {progress.chunks} chunks of {row['work']['name']} are there"
    asked = row["work"].get("asked") or {}
    if asked.get("what") == RUN and not asked.get("ticket") and progress.owners:
        raise Waiting(told)
    errands.send(gw, row, RUN, nodes, {"Transfer": transfer_of(row)})
    progress = _progress(gw, row)
    if progress.finished:
        return _ended(gw, row, _flaw(progress), progress)
    errands.anew(gw, row, told)
    raise Waiting(told)


def _progress(gw: Gateways, row: Row) -> Progress:
    return TransferLedger(gw.table).progress(transfer_of(row), gw.clock.now())


def _ended(gw: Gateways, row: Row, flaw: Mapping[str, str] | None, progress: Progress | None = None) -> Row:
    done = {} if progress is None else {"done_bytes": progress.bytes, "done_chunks": progress.done}
    return note(gw, row, moved=True, flaw=dict(flaw) if flaw else None, asked=None, **done)


def _flaw(progress: Progress) -> dict[str, str] | None:
    """The failure that decides: a full disk before a bad copy, and what nobody knows last."""
    found = sorted(progress.failed, key=lambda each: _DECIDES.index(each.cause))
    if not found:
        return None
    more = f" (and {progress.failures - 1} more)" if progress.failures > 1 else ""
    return {"cause": found[0].cause.value, "reason": f"{found[0].name}: {found[0].reason}{more}"[:500]}


def _step(row: Row) -> dict[str, str]:
    return {"Job": str(row["job_id"]), "Directory": str(row["folder"]), "Step": str(row["work"]["name"])}
