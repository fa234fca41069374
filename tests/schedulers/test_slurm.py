"""The Slurm adapter: what it sends, and what it believes of an answer."""

import json
from typing import Any, get_args

import pytest

from planaria.core import documents, scheduling
from planaria.core.errors import InvalidInput, TransientError
from planaria.core.ports import Answer, AnswerState
from planaria.core.scheduling import (
    Hold,
    Isolate,
    JobQuery,
    JobsOn,
    Join,
    Lost,
    NodeQuery,
    Place,
    Readmit,
    Requeue,
    SchedulerRequest,
    Stop,
)
from planaria.memory.clock import MemoryClock
from planaria.memory.scheduler import MemoryScheduler
from planaria.memory.table import MemoryTable
from planaria.schedulers import slurm_documents
from planaria.schedulers.slurm import SlurmScheduler
from tests.schedulers.head_node import HEAD, HeadNode

MARK = "planaria:i-0123456789abcdef0-1793610845000"
I = "i-0123456789abcdef0"  # noqa: E741


class World:
    def __init__(self) -> None:
        self.clock = MemoryClock(1000.0)
        self.twin = MemoryScheduler(self.clock.now)
        self.head = HeadNode(self.twin)
        self.table = MemoryTable()
        for name in ("a-1", "a-2", "a-3"):
            self.twin.add_node(name, f"i-{name}")

    def function(self) -> SlurmScheduler:
        return SlurmScheduler(self.head.commands, HEAD, self.table, self.clock)

    def ask(self, request: SchedulerRequest) -> Answer:
        """Asked in one Lambda, polled a second later in another one."""
        ticket = self.function().submit(request)
        self.clock.advance(1.0)
        return self.function().poll(ticket)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("request_", "document", "parameters"),
    [
        (NodeQuery(("a-1", "a-2")), "planaria-slurm-node", {"Nodes": "a-1,a-2"}),
        (NodeQuery(()), "planaria-slurm-node", {"Nodes": ""}),
        (Isolate(("a-1",), MARK), "planaria-slurm-isolate", {"Entries": f"a-1={MARK}"}),
        (Lost(("a-1", "a-2"), MARK), "planaria-slurm-lost", {"Entries": f"a-1={MARK},a-2={MARK}"}),
        (Readmit(("a-1",), MARK), "planaria-slurm-readmit", {"Entries": f"a-1={MARK}"}),
        (
            Join("a-1", I, "10.0.0.7", MARK),
            "planaria-slurm-join",
            {"Name": "a-1", "NodeId": I, "Address": "10.0.0.7", "Reason": MARK},
        ),
        (JobsOn(("a-1",)), "planaria-slurm-jobs-on", {"Nodes": "a-1"}),
        (JobQuery(("12_3", "12+1")), "planaria-slurm-jobs", {"Jobs": "12_3,12+1", "Nodes": ""}),
        (JobQuery(("7",), ("a-1",)), "planaria-slurm-jobs", {"Jobs": "7", "Nodes": "a-1"}),
        (
            Stop(("7",), "TERM", 2.0),
            "planaria-slurm-stop",
            {"Jobs": "7", "Signal": "TERM", "Grace": "2", "Sent": "1001"},
        ),
        (
            Hold("7", ("a-1", "a-2"), 3600.0),
            "planaria-slurm-hold",
            {"Job": "7", "Nodes": "a-1,a-2", "Seconds": "3600"},
        ),
        (Hold("7", (), 0.0), "planaria-slurm-hold", {"Job": "7", "Nodes": "", "Seconds": "0"}),
        (
            Requeue("7", ("a-2", "a-1"), 3, -1, "/fsx/kept/7"),
            "planaria-slurm-requeue",
            {
                "Job": "7",
                "Nodes": "a-2,a-1",
                "Attempt": "3",
                "ResumeStep": "-1",
                "Kept": "/fsx/kept/7",
            },
        ),
        (Place("7", 2), "planaria-slurm-place", {"Job": "7", "Count": "2"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | dict) else "",
)
def test_each_request_is_a_document_with_these_parameters(
    world: World, request_: SchedulerRequest, document: str, parameters: dict[str, str]
) -> None:
    world.ask(request_)
    assert world.head.calls == [(document, parameters)]
    known = documents.find(document)
    assert known is not None
    assert known.checked(parameters) == parameters


def test_every_request_and_every_head_document_is_in_use() -> None:
    """A new request needs a row here: nothing falls through to another one's document."""
    kinds = [NodeQuery, Isolate, Lost, Readmit, Join, JobsOn, JobQuery, Stop, Hold, Requeue, Place]
    assert set(kinds) == set(get_args(scheduling.SchedulerRequest))
    heads = {name for name, each in documents.documents().items() if each.runs_on == "head"}
    asked = {f"planaria-slurm-{kind.verb.replace('_', '-')}" for kind in _instances()}
    assert asked == heads - {"planaria-slurm-topology"}


def _instances() -> list[Any]:
    return [
        NodeQuery(()), Isolate((), ""), Lost((), ""), Readmit((), ""), Join("", "", "", ""), JobsOn(()),
        JobQuery(()), Stop((), "", 0), Hold("", (), 0), Requeue("", (), 0, 0), Place("", 0),
    ]  # fmt: skip


WRONG = ("a-1;reboot", "$(id)", "`id`", "a 1", "", "-a", "a-1,a-2", "a-[1-2]", "a\n", "ä", "a'", 'a"', "a=b")


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_slurm_cannot_have_is_never_sent(world: World, name: str) -> None:
    requests: list[SchedulerRequest] = [
        NodeQuery(("a-1", name)),
        Isolate((name,), MARK),
        Lost((name,), MARK),
        Readmit((name,), MARK),
        Join(name, I, "", MARK),
        JobsOn((name,)),
        JobQuery((), (name,)),
        JobQuery((name,)),
        Stop(("7", name), "TERM", 0.0),
        Stop(("7",), name, 0.0),
        Hold(name, (), 1.0),
        Hold("7", (name,), 1.0),
        Requeue(name, ("a-1",), 1, -1),
        Requeue("7", ("a-1", name), 1, -1),
        Requeue("7", ("a-1",), 1, -1, kept=name or "relative"),
        Place(name, 1),
        Isolate(("a-1",), name),
    ]
    for request in requests:
        with pytest.raises(InvalidInput, match="must match"):
            world.function().submit(request)
    assert world.head.calls == []
    assert world.table.query("GATHER#node#2000") == []


def test_incidents_share_a_command_and_each_gets_its_own_words(world: World) -> None:
    world.twin.state.foreign_isolate("a-2", "by hand", by="operator")
    tickets = {name: world.function().submit(Isolate((name,), f"{MARK}-{name}")) for name in ("a-1", "a-2")}
    world.clock.advance(1.0)
    answers = {name: world.function().poll(ticket) for name, ticket in tickets.items()}
    assert answers["a-1"] == Answer(AnswerState.DONE, {"a-1": "ISOLATED"})
    assert answers["a-2"] == Answer(AnswerState.DONE, {"a-2": "FOREIGN: by hand"})
    ((_, parameters),) = world.head.calls
    assert sorted(parameters["Entries"].split(",")) == [f"a-1={MARK}-a-1", f"a-2={MARK}-a-2"]


def test_a_question_about_a_node_finds_its_jobs_and_no_others(world: World) -> None:
    for job, node in (("11", "a-1"), ("12", "a-2")):
        world.twin.add_job(job, 1)
        assert world.twin.state.jobs[job].nodes == [node]
    tickets = {
        request: world.function().submit(request)
        for request in (JobQuery((), ("a-1",)), JobQuery(("12", "99")), JobQuery(("99",), ("a-2",)))
    }
    world.clock.advance(1.0)
    found = [sorted(world.function().poll(ticket).value) for ticket in tickets.values()]
    assert found == [["11"], ["12", "99"], ["12", "99"]]
    assert len(world.head.calls) == 1


def test_nothing_asked_is_nothing_sent(world: World) -> None:
    for request in (JobsOn(()), JobQuery(()), Stop((), "TERM", 0.0), Isolate((), MARK)):
        assert world.ask(request) == Answer(AnswerState.DONE)
    assert world.head.calls == []


OUT = {"state": "DRAINED", "node_id": "i-a-2", "reason": "Prolog error", "jobs": []}


def test_without_names_it_is_about_what_slurm_keeps_out_by_itself(world: World) -> None:
    assert world.ask(NodeQuery(())) == Answer(AnswerState.DONE)
    world.twin.state.isolate_by_itself("a-2", "Prolog error", ["Slurm/PrologError"], 990.0)
    world.twin.state.foreign_isolate("a-3", "Prolog error, says ada", by="operator")
    told = {"a-2": {**OUT, "codes": ["Slurm/PrologError"], "since": 990.0}}
    assert world.ask(NodeQuery(())) == Answer(AnswerState.DONE, told)


@pytest.mark.parametrize("more", [{}, {"codes": [], "since": 1.0}, {"codes": ["Slurm/x"], "since": "today"}])
def test_slurms_own_words_without_code_or_time_are_not_believed(world: World, more: dict[str, Any]) -> None:
    world.head.answers["planaria-slurm-node"] = {"version": 1, "value": {"a-2": {**OUT, **more}}}
    assert world.ask(NodeQuery(())).state is AnswerState.UNKNOWN


def test_a_ticket_survives_until_the_answer_is_there(world: World) -> None:
    ticket = world.function().submit(JobsOn(("a-1",)))
    assert world.function().poll(ticket).state is AnswerState.PENDING
    out = dict(world.head.commands.documents)
    world.head.commands.documents = dict.fromkeys(out, lambda node, parameters: None)
    world.clock.advance(1.0)
    assert world.function().poll(ticket).state is AnswerState.PENDING
    world.head.commands.documents = out
    world.clock.advance(60.0)
    assert world.function().poll(ticket) == Answer(AnswerState.DONE, {"a-1": []})
    assert len(world.head.calls) == 1


@pytest.mark.parametrize("ticket", ["", "memory-1", "{}", '{"request": {"verb": "reboot"}}', "[]", "7"])
def test_a_foreign_ticket_is_unknown(world: World, ticket: str) -> None:
    assert world.function().poll(ticket).state is AnswerState.UNKNOWN


def test_an_unreachable_head_node_is_transient(world: World) -> None:
    world.head.commands.reachable = False
    with pytest.raises(TransientError):
        world.function().submit(Place("7", 1))
    ticket = world.function().submit(NodeQuery(("a-1",)))
    world.clock.advance(1.0)
    with pytest.raises(TransientError):
        world.function().poll(ticket)


ENVELOPES = [
    ({"version": 1, "error": "slurmctld does not answer"}, "slurmctld does not answer"),
    ({"version": 1, "value": {}, "error": "half"}, "half"),
    ({"version": 2, "value": {"a-1": []}}, "version 2, not 1"),
    ({"value": {"a-1": []}}, "version None, not 1"),
    ({"version": 1}, "has no value"),
    ({"version": 1, "value": [["a-1", []]]}, "has no value"),
    ({"version": 1, "value": {}}, "lacks a-1"),
    ({"version": 1, "value": {"a-2": []}}, "lacks a-1"),
    ("text", "text"),
    ([], ""),
    (RuntimeError("No such file: /opt/planaria/bin/python"), "No such file"),
]


@pytest.mark.parametrize(("said", "reason"), ENVELOPES)
def test_an_answer_that_is_none_is_unknown(world: World, said: Any, reason: str) -> None:
    world.head.answers["planaria-slurm-jobs-on"] = said
    answer = world.ask(JobsOn(("a-1",)))
    assert (answer.state, answer.value) == (AnswerState.UNKNOWN, {})
    assert reason in answer.reason


def test_what_a_failed_program_says_is_not_believed(world: World) -> None:
    ticket = world.function().submit(JobsOn(("a-1",)))
    world.clock.advance(1.0)
    output = {"version": 1, "value": {"a-1": []}}
    value = {HEAD: {"status": "FAILED", "output": output}}
    world.head.commands.poll = lambda ticket: Answer(AnswerState.DONE, value)  # type: ignore[method-assign]
    assert world.function().poll(ticket).state is AnswerState.UNKNOWN


def test_a_late_question_is_sent_and_a_late_act_is_not(world: World) -> None:
    """Sweep asks, and polls again a minute later."""
    question = world.function().submit(JobQuery(("7",)))
    act = world.function().submit(Isolate(("a-1",), MARK))
    world.clock.advance(60.0)
    assert world.function().poll(question) == Answer(AnswerState.DONE, {"7": None})
    assert world.function().poll(act).state is AnswerState.UNKNOWN
    assert [document for document, _ in world.head.calls] == ["planaria-slurm-jobs"]


BAD = [
    (NodeQuery(("a-1",)), "IDLE"),
    (NodeQuery(("a-1",)), {"state": "IDLE"}),
    (Isolate(("a-1",), MARK), "DRAINED"),
    (Isolate(("a-1",), MARK), ["ISOLATED"]),
    (Isolate(("a-1",), MARK), "isolated"),
    (Lost(("a-1",), MARK), "LOST"),
    (Readmit(("a-1",), MARK), "ISOLATED"),
    (Readmit(("a-1",), MARK), None),
    (Join("a-1", I, "", MARK), ""),
    (JobsOn(("a-1",)), None),
    (JobsOn(("a-1",)), [7]),
    (JobsOn(("a-1",)), "7"),
    (JobQuery(("a-1",)), "RUNNING"),
    (JobQuery(("a-1",)), {"state": "RUNNING"}),
    (Stop(("a-1",), "TERM", 0.0), "FINE"),
    (Hold("a-1", (), 0.0), True),
    (Requeue("a-1", ("b",), 1, -1), "STARTED"),
    (Place("a-1", 1), "a-2"),
]


@pytest.mark.parametrize(("request_", "entry"), BAD)
def test_a_word_that_is_none_is_unknown(world: World, request_: SchedulerRequest, entry: Any) -> None:
    """Above all: no list of jobs is not an empty list, and what is not said to be stopped is not stopped."""
    name = f"planaria-slurm-{request_.verb.replace('_', '-')}"
    world.head.answers[name] = {"version": 1, "value": {"a-1": entry}}
    answer = world.ask(request_)
    assert (answer.state, answer.value) == (AnswerState.UNKNOWN, {})
    assert "cannot be read" in answer.reason


def test_a_state_that_nobody_knows_is_unknown(world: World) -> None:
    entry: dict[str, Any] = {"state": "PLANNED_FOR_MARS", "jobs": [], "node_id": None, "more": 1}
    world.head.answers["planaria-slurm-node"] = {"version": 1, "value": {"a-1": entry}}
    assert world.ask(NodeQuery(("a-1",))).value == {
        "a-1": {"state": "UNKNOWN", "jobs": [], "node_id": "", "reason": "", "more": 1}
    }


def test_a_job_without_an_entry_has_none(world: World) -> None:
    world.head.answers["planaria-slurm-jobs"] = {"version": 1, "value": {"7": None}}
    assert world.ask(JobQuery(("7", "8"))).value == {"7": None}


def test_long_lists_are_written_as_slurm_writes_them() -> None:
    numbers = (*range(8, 40), *range(100, 140), 7, 8)
    names = (*(f"p5-{number:03}" for number in numbers), "x", "p5-a", "p5-9")
    text = slurm_documents._hosts(names)
    assert text == "p5-[008-039],p5-[100-139],p5-[007-008],x,p5-a,p5-9"
    many = ("b", "b", "a-9", "a-10", *("c",) * 50)
    assert slurm_documents._hosts(many).startswith("b,b,a-9,a-10,c,c,")
    assert slurm_documents._hosts(names[:50]) == ",".join(names[:50])
    known = documents.find("planaria-slurm-requeue")
    assert known is not None and known.parameters["Nodes"].fits(text)


def test_tickets_are_small(world: World) -> None:
    """They travel in the state of a workflow."""
    ticket = world.function().submit(Isolate(("a-1",), MARK))
    assert len(ticket) < 300
    assert set(json.loads(ticket)) == {"request", "slot"}
