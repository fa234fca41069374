"""State "Reset the GPU": one GPU of an isolated, empty node, or all of them where the fault names none.

The act is recorded first and the document sent once, unless the Lambda dies before its ticket is noted: then
it is sent again, and a second reset of an isolated, empty node is harmless.
"""

from lambdas import running
from lambdas.boundary import Event, Fields, task
from lambdas.running import Hangs, Noted, Run
from planaria.core import ladder, plans
from planaria.core.errors import PermanentError
from planaria.core.incident import Step
from planaria.core.table import Row
from planaria.core.verification import Times
from planaria.wiring import Gateways

DOCUMENT = "planaria-reset-gpu"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    run = _run(gw, row)
    mine = running.noted(gw, row, run)
    if "end" not in mine:
        _check(row, incident["mark"])
        _reset(gw, run, mine)
    if mine["end"] != ladder.PASSED:
        raise PermanentError(mine["reason"])
    gw.ledger.step(incident["incident_id"], Step.RESET, float(mine["at"]), pci=run.parameters["pci"])
    return {"node_id": node}


def _run(gw: Gateways, row: Row) -> Run:
    node, session, policy = row["node_id"], int(row["session"]), gw.cluster.policy
    limit = policy.reset_timeout_seconds
    return Run(
        attribute=ladder.RESETTING,
        document=DOCUMENT,
        node=node,
        parameters={"pci": str((row.get("fault") or {}).get("pci") or "")},
        key=str(session),
        times=Times(limit, max(limit, policy.boot_timeout_seconds)),
        owner=node,
        session=session,
        begin=lambda now: gw.ledger.act(node, session, row, "reset", now),
    )


def _check(row: Row, mark: str) -> None:
    node = row["node_id"]
    if plans.is_gone(row):
        raise PermanentError(f"{node} is gone")
    if not plans.isolated_by(row, mark):
        raise PermanentError(f"{node} is not isolated by this incident; no GPU of it is reset")
    if not plans.emptied(row):
        raise PermanentError(f"{node} is not known to be empty; no GPU of it is reset")


def _reset(gw: Gateways, run: Run, mine: Noted) -> None:
    """Raises Waiting until it is known how it ended."""
    word, reason = ladder.PASSED, ""
    try:
        status, output = running.ask(gw, run, mine)
        if status != "SUCCESS":
            word, reason = ladder.FAILED, _reason(output)
    except Hangs as error:
        word, reason = ladder.FAILED, str(error)
    except PermanentError as error:  # no answer in time, or nobody may ask
        word, reason = ladder.UNKNOWN, str(error)
    running.end(gw, run, mine, word, reason)


def _reason(output: object) -> str:
    said = output.get("reason") if isinstance(output, dict) else output
    return str(said or "the tool gave no reason")[: ladder.REASON_LENGTH]
