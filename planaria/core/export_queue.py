"""Whose turn it is at a file system: FSx runs one data repository task of a file system at a time.

`EXPORTS#<file system>`: one row `WISH#<job>` per job that waits {"number": of its sync, "saved_at": of the
step that it wants to export, "deadline" where a node is about to be taken, "until": its lease}, and the row
`TURN` {"job_id", "number", "until", "turn"} of the one that may. A lease is renewed by every look of its
sync; whoever let it run out is passed over, and its turn is taken.
"""

from typing import Any

from planaria.core.ports import Table
from planaria.core.sync_claims import Sync
from planaria.core.table import Conflict, Row, below, equals, missing

LEASE_SECONDS = 300.0
_TURN = "TURN"


def take(
    table: Table, file_system: str, sync: Sync, saved_at: float, deadline: float | None, now: float
) -> str:
    """Whether it is this sync's turn: "" when it is, else who comes first, in one sentence. May be
    repeated, and renews both leases."""
    pk, mine = _key(file_system), f"WISH#{sync.job}"
    wish: dict[Any, Any] = {
        "job_id": sync.job,
        "number": sync.number,
        "saved_at": saved_at,
        "until": now + LEASE_SECONDS,
    }
    wish |= {} if deadline is None else {"deadline": deadline}
    removes = () if deadline is not None else ("deadline",)
    table.write(pk, mine, sets=wish, removes=removes)
    rows = table.query(pk)
    turn = next((row for row in rows if row["sk"] == _TURN), {})
    if turn.get("job_id") == sync.job:
        return _hold(table, pk, sync, now, equals("job_id", sync.job))
    if turn.get("job_id") and float(turn["until"]) >= now:
        return f"job {turn['job_id']} exports from {file_system}"
    waiting = [row for row in rows if row["sk"] != _TURN and float(row.get("until", 0.0)) >= now]
    first = min(waiting, key=_before)
    if first["job_id"] != sync.job:
        return f"job {first['job_id']} has an older step to export from {file_system}"
    free = missing("job_id") | below("until", now)
    return _hold(table, pk, sync, now, free)


def release(table: Table, file_system: str, sync: Sync) -> None:
    """Let the next one go; quiet when it was not this job's turn."""
    pk = _key(file_system)
    table.write(pk, f"WISH#{sync.job}", sets={"until": 0.0}, removes=("deadline",))
    try:
        table.write(pk, _TURN, sets={"until": 0.0}, removes=("job_id",), when=equals("job_id", sync.job))
    except Conflict:
        return


def holder(table: Table, file_system: str) -> Row:
    """The row of the turn, {} before the first one."""
    return table.get(_key(file_system), _TURN) or {}


def _hold(table: Table, pk: str, sync: Sync, now: float, when: Any) -> str:
    sets = {"job_id": sync.job, "number": sync.number, "until": now + LEASE_SECONDS}
    try:
        table.write(pk, _TURN, sets=sets, when=when)
    except Conflict as conflict:
        return f"job {(conflict.row or {}).get('job_id')} was faster"
    return ""


def _before(row: Row) -> tuple[bool, float, str]:
    """Before a node is taken comes first, then the oldest step."""
    return "deadline" not in row, float(row.get("deadline") or row["saved_at"]), str(row["job_id"])


def _key(file_system: str) -> str:
    return f"EXPORTS#{file_system}"
