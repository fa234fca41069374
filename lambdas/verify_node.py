"""State "Verify": nothing works again before its check has passed.

The agent's own word after the boot first, then the check of the suite that the fault asks for, run on the
isolated node. A check that cannot be run is neither passed nor failed: it is asked for again until the time
for that is over, and then the node is not verified.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import quarantining, running
from lambdas.boundary import Event, Fields, task
from lambdas.running import Noted, Run
from planaria.core import ladder, verification
from planaria.core.errors import PermanentError
from planaria.core.fault import Action
from planaria.core.incident import Step
from planaria.core.table import Row
from planaria.core.verification import Suite
from planaria.wiring import Gateways

NOT_VERIFIED = "not verified"


@task
def handler(event: Event, gw: Gateways) -> Fields:
    incident, node = event["incident"], event["node_id"]
    row = gw.ledger.enter(incident["node_id"], int(incident["session"]))
    mine = node == incident["node_id"]
    target = row if mine else gw.ledger.node(node) or {"node_id": node}
    if not mine and target.get("admitted_at"):
        return {"node_id": node}  # by an execution that died since; what happens to it now is its own affair
    suite = verification.suite_for(row, gw.cluster.policy, spare=bool(target.get("spare")))
    run = _run(gw, row, node, suite)
    noted = running.noted(gw, row, run)
    if "end" not in noted:
        if not mine and "ticket" not in noted and (why := quarantining.refusal(gw, target)):
            raise PermanentError(why)
        _verify(gw, row, target, run, noted)
    if noted["end"] != ladder.PASSED:
        raise PermanentError(noted["reason"])
    said = {"node_id": node, "suite": suite.value, "unchecked": noted["reason"]}
    gw.ledger.step(incident["incident_id"], Step.VERIFIED, float(noted["at"]), **said)
    return {"node_id": node}


def _run(gw: Gateways, row: Row, node: str, suite: Suite) -> Run:
    action, session = Action(row["action"]), int(row["session"])
    # A check from before the act says nothing of what the act has cured.
    since = ladder.acted_at(row, action)
    return Run(
        attribute=ladder.VERIFYING,
        document=verification.DOCUMENT,
        node=node,
        parameters={"suite": suite.value},
        key=f"{session}/{node}/{suite}/{since:.3f}",
        times=verification.times_of(suite, gw.cluster.policy),
        owner=row["node_id"],
        session=session,
    )


def _verify(gw: Gateways, row: Row, target: Row, run: Run, noted: Noted) -> None:
    """Notes how it ended. Raises Waiting until that is known."""
    passed, reason = _agents_word(row, target)
    if passed:
        try:
            passed, reason = _answer(gw, run, noted)
        except PermanentError as error:  # no answer in time, or nobody may ask
            running.end(gw, run, noted, ladder.UNKNOWN, f"{NOT_VERIFIED}: {error}")
            return
    mine = target["node_id"] == row["node_id"]
    if passed and mine:
        running.end(gw, run, noted, ladder.PASSED, reason, **ladder.remembered(row, ladder.PASSED))
        quarantining.cleared(gw, row)
        return
    if passed:
        # Not written: nothing rests on it, and a delivery after this one polls the same ticket.
        noted.update(end=ladder.PASSED, reason=reason, at=gw.clock.now())
        return
    if not mine or run.parameters["suite"] == Suite.DEEP:
        name = f"{row['node_id']}-{row['session']}"
        quarantining.quarantine(gw, target, f"it did not pass its check: {reason}", name)
    running.end(gw, run, noted, ladder.FAILED, reason)


def _agents_word(row: Row, target: Row) -> tuple[bool, str]:
    """What the agent found after the boot; a GPU's reset is none."""
    if Action(row["action"]) is Action.RESET:
        return True, ""
    check = target.get("check") or {}
    return bool(check.get("passed")), str(check.get("reason") or "no result reported")


def _answer(gw: Gateways, run: Run, noted: Noted) -> tuple[bool, str]:
    status, output = running.ask(gw, run, noted)
    if status == "SUCCESS" and isinstance(output, Mapping) and isinstance(output.get("passed"), bool):
        said = str(output.get("reason") or "")[: ladder.REASON_LENGTH]
        return output["passed"], said if output["passed"] else said or "no reason was given"
    raise running.again(
        gw, run, noted, f"the {run.parameters['suite']} check could not be run: {_said(output)}"
    )


def _said(output: Any) -> str:
    said = output.get("reason") if isinstance(output, Mapping) else output
    return str(said or "no answer")[: ladder.REASON_LENGTH]
