"""One Task at a time: a session that is over, a repeated call, an end that is no success."""

from typing import Any

import pytest

from planaria.core.errors import CapacityError, PermanentError, TransientError
from planaria.core.incident import Phase
from planaria.core.ports import LaunchRequest
from planaria.core.scheduling import Isolate
from tests.lambdas.test_node_stories import SICK, fall_off
from tests.lambdas.world import JOB, NODES, World

TASKS: dict[str, dict[str, Any]] = {
    "handle_spot_interruption": {}, "isolate_node": {"carry": {}}, "launch_replacement": {},
    "await_node": {"node_id": SICK, "since": 0}, "reboot_node": {}, "admit_node": {"node_id": SICK},
    "retire_node": {}, "tell_job": {"replacement": ""}, "close_incident": {"outcome": "HEALED"},
}  # fmt: skip
RESUME_TASKS: dict[str, dict[str, Any]] = {
    "choose_checkpoint": {}, "requeue_job": {}, "await_steps": {}, "close_resume": {"outcome": "HEALED"},
}  # fmt: skip


def begun(world: World) -> dict[str, Any]:
    """The `incident` of a node whose first state has run; no machine walks on from here."""
    fall_off(world)
    row = world.node(SICK)
    document = {"incident_id": "x", "node_id": SICK, "session": row["session"]}
    event = {"document": document, "execution": "arn:by-test", "machine": "heal_node"}
    answer = world.call("begin_incident", event)
    assert answer["result"] == "DONE"
    incident: dict[str, Any] = answer["incident"]
    return incident


def rows(world: World) -> dict[Any, Any]:
    return {key: dict(row) for key, row in world.table._rows.items()}


@pytest.mark.parametrize("function", TASKS)
def test_a_session_that_is_over_changes_nothing(world: World, function: str) -> None:
    incident = begun(world)
    world.gw.ledger.close(SICK, incident["session"], Phase.CANCELLED, world.now, "over")
    before, calls = rows(world), list(world.fleet.calls)
    answer = world.call(function, {"incident": incident, **TASKS[function]})
    assert (answer["result"], "is over" in answer["reason"]) == ("FENCED", True)
    assert rows(world) == before
    assert world.fleet.calls == calls and world.scheduler.requests == [] and world.commands.calls == []


@pytest.mark.parametrize("function", TASKS)
def test_a_session_that_was_superseded_changes_nothing(world: World, function: str) -> None:
    incident = {**begun(world), "session": 1}
    before = rows(world)
    assert world.call(function, {"incident": incident, **TASKS[function]})["result"] == "FENCED"
    assert rows(world) == before


@pytest.mark.parametrize("end", [Phase.HEALED, Phase.CANCELLED])
def test_escalating_a_session_that_has_ended_mails_nobody(world: World, end: Phase) -> None:
    incident = begun(world)
    world.gw.ledger.close(SICK, incident["session"], end, world.now, "")
    event = {"incident": incident, "outcome": "ESCALATED", "reason": "state Close failed"}
    assert world.call("close_incident", event)["result"] == "FENCED"
    assert world.notices.sent == []


def test_an_escalation_delivered_twice_mails_once_and_stays_an_escalation(world: World) -> None:
    incident = begun(world)
    event = {"incident": incident, "outcome": "ESCALATED", "reason": "no capacity"}
    answers = [world.call("close_incident", event)["result"] for _ in range(2)]
    assert (answers, len(world.notices.sent)) == (["DONE", "DONE"], 1)


def test_an_escalation_ends_also_when_the_mail_cannot_be_sent(world: World) -> None:
    def denied(subject: str, text: str) -> None:
        raise PermanentError("AuthorizationError: the topic is gone")

    world.notices.publish = denied  # type: ignore[method-assign]
    world.fleet.refuse = lambda request: PermanentError("quota")
    fall_off(world)
    world.run(3600)
    assert world.ends == ["ESCALATED"] and len(world.driver.records) == 1


def resuming(world: World) -> dict[str, Any]:
    world.scheduler.end_ranks(JOB, -9, 2)
    world.run(1)
    document = {"job_id": JOB, "number": 2}
    answer = world.call("begin_resume", {"document": document, "execution": "arn:by-test"})
    assert (answer["result"], answer["reason"]) == ("DONE", "")
    world.clock.advance(world.gw.cluster.policy.job_settle_seconds)
    resume: dict[str, Any] = answer["resume"]
    return resume


@pytest.mark.parametrize("function", RESUME_TASKS)
def test_a_resume_that_is_over_changes_nothing(world: World, function: str) -> None:
    resume = resuming(world)
    world.gw.jobs.close_resume(JOB, 2, Phase.CANCELLED, "over", world.now)
    before = {key: row for key, row in rows(world).items() if not key[0].startswith("INCIDENT#")}
    answer = world.call(function, {"resume": resume, **RESUME_TASKS[function]})
    assert (answer["result"], "is over" in answer["reason"]) == ("FENCED", True)
    assert {key: row for key, row in rows(world).items() if not key[0].startswith("INCIDENT#")} == before
    assert world.attempts == []


def test_escalating_a_resume_that_has_ended_mails_nobody(world: World) -> None:
    resume = resuming(world)
    world.gw.jobs.close_resume(JOB, 2, Phase.HEALED, "", world.now)
    world.call("close_resume", {"resume": resume, "outcome": "ESCALATED", "reason": "state Close failed"})
    assert world.notices.sent == []


def test_isolate_waits_until_the_scheduler_confirms(world: World) -> None:
    incident = begun(world)
    world.scheduler.pending_polls = 20
    first = world.call("isolate_node", {"incident": incident, "carry": {}})
    assert first["result"] == "WAIT" and set(first["carry"]) == {"isolate"}
    assert "isolation" not in world.node(SICK)
    # The ticket in `carry` is asked again, no second request is made.
    for _ in range(9):
        last = world.call("isolate_node", {"incident": incident, "carry": first["carry"]})
        if last["carry"].get("isolate") is None:
            break
    assert sum(isinstance(request, Isolate) for request in world.scheduler.requests) == 1


def test_isolate_that_cannot_reach_the_scheduler_is_tried_again(world: World) -> None:
    incident = begun(world)
    world.scheduler.reachable = False
    with pytest.raises(TransientError):
        world.call("isolate_node", {"incident": incident, "carry": {}})
    assert "isolation" not in world.node(SICK)


def test_isolate_of_a_name_that_the_scheduler_does_not_know_is_not_confirmed(world: World) -> None:
    incident = {**begun(world), "name": "demo-77"}
    answer = world.call("isolate_node", {"incident": incident, "carry": {}})
    assert (answer["result"], "not confirmed" in answer["reason"]) == ("WAIT", True)


@pytest.mark.parametrize("function", ["reboot_node", "retire_node"])
def test_nothing_destructive_happens_to_a_node_that_is_not_isolated(world: World, function: str) -> None:
    incident = begun(world)
    answer = world.call(function, {"incident": incident})
    assert (answer["result"], "not isolated by this incident" in answer["reason"]) == ("REFUSED", True)
    assert world.fleet.calls == [] and "acts" not in world.node(SICK)


def test_only_the_incidents_own_replacement_is_given_back(world: World) -> None:
    incident = begun(world)
    for other in (NODES[2], "i-0cccccccccccccccc"):
        answer = world.call("retire_node", {"incident": incident, "node_id": other})
        assert (answer["result"], "is not terminated" in answer["reason"]) == ("REFUSED", True)
    replacement = world.call("launch_replacement", {"incident": incident})["node_id"]
    for _ in range(2):
        again = {"incident": incident, "node_id": replacement}
        assert world.call("retire_node", again)["result"] == "DONE"
    assert set(world.terminated) == {replacement}


def test_two_launches_at_once_make_one_instance(world: World) -> None:
    incident = begun(world)
    second: list[Any] = []

    def meanwhile(request: LaunchRequest) -> None:
        if not second:
            second.append(world.call("launch_replacement", {"incident": incident}))

    world.fleet.refuse = meanwhile
    first = world.call("launch_replacement", {"incident": incident})
    assert (first["result"], second[0]["result"], len(world.launched)) == ("DONE", "WAIT", 1)
    assert "under way by another call" in second[0]["reason"]


def test_a_refusal_that_comes_late_does_not_undo_the_launch_of_another_call(world: World) -> None:
    """CreateFleet took longer than the lease; the next try has launched meanwhile."""
    incident = begun(world)
    asked: list[str] = []

    def late(request: LaunchRequest) -> CapacityError | None:
        asked.append(request.token)
        if len(asked) > 1:
            return None
        world.clock.advance(11)
        assert world.call("launch_replacement", {"incident": incident})["result"] == "DONE"
        return CapacityError("none left")

    world.fleet.refuse = late
    world.call("launch_replacement", {"incident": incident})
    world.clock.advance(11)
    world.call("launch_replacement", {"incident": incident})
    assert len(world.launched) == 1


def test_an_instance_that_was_launched_and_ended_gets_another_token(world: World) -> None:
    incident = begun(world)
    world.kill("launch_replacement", "fleet.launch")
    with pytest.raises(BaseException, match="launch_replacement after"):
        world.call("launch_replacement", {"incident": incident})
    world.lose(world.launched[0], tell=False)
    world.clock.advance(11)
    answer = world.call("launch_replacement", {"incident": incident})
    tokens = [token for what, token in world.fleet.calls if what == "launch"]
    assert answer["result"] == "DONE" and len(set(tokens)) == 2
    assert answer["node_id"] in world.alive


def test_no_capacity_anywhere_begins_anew_with_other_tokens(world: World) -> None:
    incident = begun(world)
    world.fleet.refuse = lambda request: CapacityError("none")
    for _ in range(2):
        assert world.call("launch_replacement", {"incident": incident})["result"] == "NO_CAPACITY"
    tokens = [token for _, token in world.fleet.calls]
    assert len(tokens) == len(set(tokens)) == 4 and all(len(token) <= 64 for token in tokens)


@pytest.mark.parametrize(
    ("error", "result"), [(PermanentError("quota"), "REFUSED"), (CapacityError("none"), "NO_CAPACITY")]
)
def test_what_ec2_says_becomes_a_result(world: World, error: Exception, result: str) -> None:
    incident = begun(world)
    world.fleet.refuse = lambda request: error  # type: ignore[assignment, return-value]
    assert world.call("launch_replacement", {"incident": incident})["result"] == result


def test_a_node_group_that_the_cluster_file_does_not_have_is_named(world: World) -> None:
    world.gw.ledger.note_node(SICK, {"group": "ghosts"})
    answer = world.call("launch_replacement", {"incident": begun(world)})
    assert (answer["result"], "'ghosts'" in answer["reason"]) == ("INVALID", True)


def test_a_throttled_launch_is_tried_again_with_the_same_token(world: World) -> None:
    incident = begun(world)
    errors = [TransientError("RequestLimitExceeded")]
    world.fleet.refuse = lambda request: errors.pop() if errors else None
    with pytest.raises(TransientError):
        world.call("launch_replacement", {"incident": incident})
    world.clock.advance(11)
    assert world.call("launch_replacement", {"incident": incident})["result"] == "DONE"
    assert len({token for _, token in world.fleet.calls}) == 1 and len(world.launched) == 1


def test_await_node_answers_its_own_token_when_the_node_was_faster(world: World) -> None:
    incident = begun(world)
    new = world.call("launch_replacement", {"incident": incident})["node_id"]
    world.gw.ledger.note_node(new, {"ready_at": world.now})
    world.workflows.waiting.add("t")
    event = {"incident": incident, "node_id": new, "since": 0, "token": "t"}
    for _ in range(2):
        assert world.call("await_node", event)["result"] == "DONE"
    assert world.workflows.answers["t"]["node_id"] == new


def test_looking_for_a_node_says_what_it_sees(world: World) -> None:
    incident = begun(world)
    new = world.call("launch_replacement", {"incident": incident})["node_id"]
    event = {"incident": incident, "node_id": new, "since": 0}
    assert world.call("await_node", event)["result"] == "WAIT"
    world.lose(new, tell=False)
    answer = world.call("await_node", event)
    assert (answer["result"], "ended before it was ready" in answer["reason"]) == ("REFUSED", True)


def test_a_node_that_someone_isolated_meanwhile_is_not_readmitted(world: World) -> None:
    incident = begun(world)
    world.call("isolate_node", {"incident": incident, "carry": {}})
    world.scheduler.state.foreign_isolate("demo-1", "maintenance", by="bob")
    new = world.call("launch_replacement", {"incident": incident})["node_id"]
    world.gw.ledger.note_node(new, {"check": {"passed": True, "reason": ""}, "ready_at": world.now})
    answer = world.call("admit_node", {"incident": incident, "node_id": new, "carry": {}})
    assert (answer["result"], "maintenance" in answer["reason"]) == ("REFUSED", True)
    assert world.isolated == {"demo-1": "maintenance"}


def test_a_refused_requeue_says_why(world: World) -> None:
    resume = resuming(world)
    world.call("choose_checkpoint", {"resume": resume, "carry": {}})
    world.scheduler.state.foreign_isolate("demo-3", "maintenance", by="bob")
    answer = world.call("requeue_job", {"resume": resume, "carry": {}})
    assert (answer["result"], "demo-3 is isolated" in answer["reason"]) == ("REFUSED", True)


def test_the_chosen_checkpoint_stays_chosen(world: World) -> None:
    resume = resuming(world)
    first = world.call("choose_checkpoint", {"resume": resume, "carry": {}})
    world.saved.insert(0, {"step": 99, "state": "complete", "reason": ""})
    assert world.call("choose_checkpoint", {"resume": resume, "carry": {}})["step"] == first["step"] == 30


def test_a_list_that_is_still_out_waits_with_its_ticket(world: World) -> None:
    resume = resuming(world)
    world.commands.documents["planaria-list-checkpoints"] = lambda node, parameters: None
    answer = world.call("choose_checkpoint", {"resume": resume, "carry": {}})
    assert answer["result"] == "WAIT" and set(answer["carry"]) == {"planaria-list-checkpoints", "witness"}
    again = world.call("choose_checkpoint", {"resume": resume, "carry": answer["carry"]})
    assert again["carry"] == answer["carry"]
    assert sum(call[0] == "planaria-list-checkpoints" for call in world.commands.calls) == 1
