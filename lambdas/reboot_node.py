"""State "Reboot": record the act, then reboot; a delivery after that does not reboot again."""

from lambdas.boundary import Event, Fields, task
from planaria.core.errors import PermanentError
from planaria.core.incident import Step
from planaria.core.plans import emptied, is_gone, isolated_by
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident = event["incident"]
    node, session = incident["node_id"], int(incident["session"])
    row = gw.ledger.enter(node, session)
    if is_gone(row):
        raise PermanentError(f"{node} is gone")
    if not isolated_by(row, incident["mark"]):
        raise PermanentError(f"{node} is not isolated by this incident; it is not rebooted")
    if not emptied(row):
        raise PermanentError(f"{node} is not known to be empty; it is not rebooted")
    sent_at = float(row.get("reboot_sent_at", 0.0))
    if sent_at <= float(row["opened_at"]):
        # Two marks: an act without "sent" crashed in between and is done again. A second reboot of an
        # isolated, empty node is harmless; a reboot that never happened would leave the incident waiting.
        sent_at = gw.clock.now()
        gw.ledger.act(node, session, row, "reboot", sent_at)
        gw.fleet.reboot(node)
        gw.ledger.write(node, session, sets={"reboot_sent_at": sent_at})
        gw.ledger.step(incident["incident_id"], Step.REBOOTED, sent_at)
    return {"node_id": node, "since": sent_at}
