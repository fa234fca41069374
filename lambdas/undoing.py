"""Taking back what a cancelled session had begun: its launch and its isolation.

A healthy report cancels a session until a destructive act is recorded, so a replacement may be under way
and the node isolated by then. A Task of the cancelled execution may still be running: sweep therefore
repeats this until that Task must have ended. Everything here may be repeated.
"""

from lambdas import resuming
from lambdas.ending import give_back
from planaria.core.incident import Phase, incident_id, isolation_reason
from planaria.core.ports import AnswerState
from planaria.core.scheduling import Readmit
from planaria.core.table import Row, equals
from planaria.wiring import Gateways

LONGEST_TASK_SECONDS = 120.0


def outstanding(row: Row) -> bool:
    return row.get("phase") == Phase.CANCELLED and ("isolation_asked" in row or "launch" in row)


def undo(gw: Gateways, row: Row) -> bool:
    """Give back, readmit, free the jobs; True when nothing is left to repeat."""
    node, session = row["node_id"], int(row["session"])
    name = incident_id(node, session)
    give_back(gw, row)
    if "isolation_asked" in row and not _readmitted(gw, row, isolation_reason(name)):
        return False
    for job in sorted({row.get("job_id") or "", *row.get("stopped_jobs", [])} - {""}):
        resuming.node_settled(gw, {"job_id": job, "node_id": node, "incident_id": name}, "", "")
    if gw.clock.now() - float(row.get("closed_at") or 0) < LONGEST_TASK_SECONDS:
        return False
    gw.table.write(
        row["pk"],
        row["sk"],
        removes=("isolation_asked", "isolation", "launch", "replacement_id", "stopped_jobs"),
        when=equals("session", session),
    )
    return True


def _readmitted(gw: Gateways, row: Row, mark: str) -> bool:
    """Someone else's isolation stays, and is no reason to try again."""
    scheduler_name = row.get("name") or row["node_id"]
    answer = gw.scheduler.poll(gw.scheduler.submit(Readmit((scheduler_name,), mark)))
    if answer.state is not AnswerState.DONE:
        return False
    word = str(answer.value.get(scheduler_name, ""))
    if word == "READMITTED":
        gw.ledger.note_node(row["node_id"], {"health": "Schedulable"})
    return word == "READMITTED" or word.startswith("FOREIGN")
