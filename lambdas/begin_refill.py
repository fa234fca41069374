"""State "Begin" of refill_spares: take over sweep's claim of a slot, or claim one for a person."""

from collections.abc import Mapping

from lambdas import refilling
from lambdas.boundary import Event, Fields, task
from planaria.core import console, refills
from planaria.core.errors import Fenced
from planaria.core.incident import Phase
from planaria.core.refills import Refill
from planaria.core.table import Conflict, equals, missing
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    document, execution = event["document"], event["execution"]
    if isinstance(document, Mapping) and "generation" in document:
        refill = Refill(*console.slot_document(document))
        refills.enter(gw.table, refill)
    else:
        order = console.spare_order(document, gw.cluster.node_groups)
        refill = Refill.of(refilling.claim_for_person(gw, order.node_group, order.reason, execution))
    mine = missing("execution_arn") | equals("execution_arn", execution)
    sets = {"phase": Phase.RUNNING.value, "execution_arn": execution}
    try:
        refills.write(gw.table, refill, sets=sets, when=mine)
    except Conflict:
        raise Fenced(f"another execution runs refill {refill.name}") from None
    return {"refill": refill.document()}
