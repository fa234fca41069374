"""State "Go on later": a new execution waits on for capacity, before this one's history is full.

The node's row is handed to it in one conditional write; who is asked again starts the same one. It is the
same attempt of the session, for nothing has failed.
"""

from lambdas import opening
from lambdas.boundary import Event, Fields, task
from planaria.core.incident import Phase, continuation_name
from planaria.core.table import Conflict, equals
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, execution = event["incident"], event["execution"]
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    number = int(row.get("continued", 0)) + 1
    sets = {
        "phase": Phase.CLAIMED.value,
        "continued": number,
        "execution": continuation_name(node, session, int(row["attempt"]), number),
        "opened_at_attempt": gw.clock.now(),
    }
    try:
        row = gw.ledger.write(
            node, session, sets, ("execution_arn", "waiting"), equals("execution_arn", execution)
        )
    except Conflict as conflict:
        row = conflict.row or {}
    if not row.get("execution_arn"):
        opening.start(gw, row)
    return {"execution": row["execution"]}
