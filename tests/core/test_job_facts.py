"""What a scheduler tells of a job is read with care: nothing that is unclear leads to a deed."""

from typing import Any

import pytest

from planaria.core import job_facts
from planaria.core.attempts import BLAME_SECONDS
from planaria.core.job_facts import FOUND, Told, read
from planaria.core.scheduling import JobState

ENTRY = {
    "state": "FAILED", "nodes": ["demo-1", "demo-2"], "ranks_per_node": 8, "attempt": 2, "restarts": 3,
    "exit_code": -9, "user": "ada", "name": "gpt", "requeue": True, "batch": True, "reason": "NonZero",
    "submit": 1.0, "start": 2.0, "end": 3.5, "folder": "/fsx/ada/kept",
}  # fmt: skip


def test_an_entry_is_read_as_it_is() -> None:
    assert read(ENTRY) == Told(
        JobState.FAILED, ("demo-1", "demo-2"), 8, 2, 3, -9, "ada", "gpt", True, True, "NonZero",
        2.0, 3.5, "/fsx/ada/kept",
    )  # fmt: skip


@pytest.mark.parametrize(
    "entry", [None, "", [], 7, {}, {"state": None}, {"state": "MOSTLY"}, {"state": ["FAILED"]}]
)
def test_what_cannot_be_read_is_unknown_and_no_end(entry: Any) -> None:
    told = read(entry)
    assert told.state is JobState.UNKNOWN and not told.failed
    assert (told.nodes, told.attempt, told.end, told.folder) == ((), 0, 0.0, "")
    assert job_facts.never_again("12", told) == "", "only a clear no keeps a job from being started again"


@pytest.mark.parametrize("name", [name for name in ENTRY if name != "state"])
@pytest.mark.parametrize("wrong", [None, "x", [], {}, 1.5, True, object()])
def test_one_wrong_field_spoils_no_other(name: str, wrong: Any) -> None:
    told = read({**ENTRY, name: wrong})
    assert told.state is JobState.FAILED
    others = [each for each in ("user", "attempt", "end", "nodes") if each != name]
    assert [getattr(told, each) for each in others] == [getattr(read(ENTRY), each) for each in others]


@pytest.mark.parametrize(("fact", "said"), [("batch", "no batch script"), ("requeue", "--no-requeue")])
def test_why_nobody_may_start_it_again(fact: str, said: str) -> None:
    assert said in job_facts.never_again("12", read({**ENTRY, fact: False}))
    assert job_facts.never_again("12", read(ENTRY)) == ""


@pytest.mark.parametrize(
    ("seconds", "nodes"),
    [(-BLAME_SECONDS - 1, False), (-BLAME_SECONDS, True), (-1, True), (0, True), (50, True)],
)
def test_a_failure_shortly_before_the_fault_is_the_nodes(seconds: float, nodes: bool) -> None:
    row = {"detected_at": 1000.0, "opened_at": 5000.0, "fault": {"detector": "status"}}
    assert job_facts.failed_for(1000.0 + seconds, row) is nodes
    assert job_facts.failed_for(1000.0 + seconds, {"opened_at": 1000.0}) is nodes


@pytest.mark.parametrize(("seconds", "nodes"), [(-91, False), (-89, True), (5, True)])
def test_an_agent_sees_its_own_node_at_once(seconds: float, nodes: bool) -> None:
    row = {"detected_at": 1000.0, "fault": {"detector": "agent_xid"}}
    assert job_facts.failed_for(1000.0 + seconds, row) is nodes


def test_how_it_failed_is_the_same_whenever_it_fails_alike() -> None:
    assert read(ENTRY).how() == "signal 9"
    assert read({**ENTRY, "exit_code": 3}).how() == "exit code 3"
    assert read({**ENTRY, "state": "NODE_FAIL"}).how() == "node"


def test_a_found_job_is_left_when_it_fails_by_itself() -> None:
    facts = job_facts.row_facts(read(ENTRY), FOUND)
    assert not job_facts.resumes_itself(facts) and job_facts.resumes_itself({})
    assert job_facts.finds_its_checkpoints(facts) and not job_facts.finds_its_checkpoints({})
    assert not job_facts.reports_steps(facts) and job_facts.reports_steps({})
    assert facts["kept"] == "/fsx/ada/kept" and "kept" not in job_facts.row_facts(
        Told(JobState.RUNNING), FOUND
    )
    assert job_facts.row_facts(Told(JobState.PENDING), FOUND)["state"] == "PENDING"


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "TIMEOUT"])
def test_what_is_over(state: str) -> None:
    assert job_facts.over({"state": state}) and not job_facts.over({"state": "FAILED"})
