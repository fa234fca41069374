"""Taking back what a cancelled session had begun: its launch and its isolation.

A healthy report cancels a session until a destructive act is recorded, so a replacement may be under way
and the node isolated by then. A Task of the cancelled execution may still be running: sweep therefore
repeats this until that Task must have ended. So it does where an escalated session had launched and died
before it knew of what: nobody else looks for that instance. Everything here may be repeated.
"""

from lambdas import replacement_rows, resuming, scaling
from lambdas.boundary import ask_scheduler
from lambdas.ending import give_back
from planaria.core.errors import Waiting
from planaria.core.incident import Phase, incident_id, isolation_reason
from planaria.core.plans import replaces
from planaria.core.scheduling import Readmit
from planaria.core.table import Row, equals
from planaria.wiring import Gateways

LONGEST_TASK_SECONDS = 120.0


def outstanding(row: Row) -> bool:
    """Something of the ended session is left that nobody else looks after."""
    launch, phase = row.get("launch") or {}, row.get("phase")
    if launch.get("token") and phase in (Phase.HEALED, Phase.RETIRED, Phase.ESCALATED):
        # A launch that a session took over and had no use for, or one that died before it was recorded.
        return not launch.get("given_back") and (phase == Phase.ESCALATED or not replaces(row))
    return row.get("phase") == Phase.CANCELLED and ("isolation_asked" in row or "launch" in row)


def undo(gw: Gateways, row: Row) -> bool:
    """Give back, readmit, free the jobs; True when nothing is left to repeat."""
    node, session = row["node_id"], int(row["session"])
    name = incident_id(node, session)
    row = gw.ledger.node(node) or {}
    if row.get("session") != session or not outstanding(row):
        return False  # the next session has begun, which has taken it over
    if row["phase"] != Phase.CANCELLED:
        return _launch_undone(gw, row)
    scaling.find_late(gw, row)
    give_back(gw, row)
    if "isolation_asked" in row and not _readmitted(gw, row):
        return False
    for job in sorted({row.get("job_id") or "", *row.get("stopped_jobs", [])} - {""}):
        resuming.node_settled(gw, {"job_id": job, "node_id": node, "incident_id": name}, "", "")
    if gw.clock.now() - float(row.get("closed_at") or 0) < LONGEST_TASK_SECONDS:
        return False
    gw.table.write(
        row["pk"],
        row["sk"],
        sets={"replacements": replacement_rows.without_unused(row)},
        removes=("isolation_asked", "isolation", "launch", "replacement_id", "stopped_jobs"),
        when=equals("session", session),
    )
    return True


def _launch_undone(gw: Gateways, row: Row) -> bool:
    give_back(gw, row)
    if gw.clock.now() - float(row.get("closed_at") or 0) < LONGEST_TASK_SECONDS:
        return False
    gw.table.write(row["pk"], row["sk"], removes=("launch",), when=equals("session", row["session"]))
    return True


def _readmitted(gw: Gateways, row: Row) -> bool:
    """Someone else's isolation stays, and is no reason to try again. Ours may bear an older session's mark:
    this one superseded it before it could write its own."""
    node, known = row["node_id"], (row.get("isolation") or {}).get("mark")
    marks = [isolation_reason(incident_id(node, row["session"])), row["isolation_asked"], known]
    word = ""
    for mark in dict.fromkeys(str(mark) for mark in marks if mark):
        word = _readmit(gw, row, mark)
        older = word.removeprefix("FOREIGN: ")
        if older != mark and _is_older(older, row):
            word = _readmit(gw, row, older)
        if word == "READMITTED" or not word:
            break
    if word == "READMITTED":
        gw.ledger.note_node(node, {"health": "Schedulable"})
    return word == "READMITTED" or word.startswith("FOREIGN")


def _is_older(mark: str, row: Row) -> bool:
    """This isolation was written by an earlier session of the same node."""
    prefix = isolation_reason(f"{row['node_id']}-")
    session = mark.removeprefix(prefix)
    return mark.startswith(prefix) and session.isdigit() and int(session) < int(row["session"])


def _readmit(gw: Gateways, row: Row, mark: str) -> str:
    """The scheduler's word, "" while it has not answered: the next sweep asks for the answer to this call."""
    node, name = row["node_id"], str(row.get("name") or row["node_id"])
    carry = (gw.ledger.node(node) or {}).get("readmitting") or {}
    try:
        word = str(ask_scheduler(gw, {"carry": carry}, mark, Readmit((name,), mark)).get(name, ""))
    except Waiting as wait:
        if wait.carry != carry:
            gw.ledger.note_node(node, {"readmitting": dict(wait.carry)})
        return ""
    if carry:  # the next look asks anew: a Task of the cancelled execution may isolate once more
        gw.table.write(row["pk"], row["sk"], removes=("readmitting",))
    return word
