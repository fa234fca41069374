"""`planaria resume` and what `planaria jobs` says of a job that needs a person."""

from collections.abc import Mapping
from typing import Any

import pytest

from planaria.core.incident import Phase, Step
from tests.cli.conftest import NODES, NOW, Bench

JOB = "gpt-demo"


def stands_still(bench: Bench, **row: Any) -> None:
    bench.add_nodes(job=JOB)
    bench.gateways.jobs.write(JOB, {"state": "FAILED", "resume_phase": "ESCALATED", **row})


def test_a_job_that_stands_still_is_resumed(bench: Bench) -> None:
    stands_still(bench, given_up="job gpt-demo fails by itself")
    answer = bench.run("resume", JOB, "--reason", "the loader is mended", "--json")
    assert answer.status == 0
    [(arn, document)] = bench.workflows.inputs.items()
    assert document == {"job_id": JOB, "reason": "the loader is mended"}
    assert answer.json == {
        "incident_id": "resume-gpt-demo-2",
        "job_id": JOB,
        "attempt": 2,
        "execution_arn": arn,
    }
    row = bench.gateways.jobs.job(JOB) or {}
    assert (row["resume_reason"], row["resume_phase"]) == ("the loader is mended", "RUNNING")
    assert "given_up" not in row


def test_without_a_reason_the_ledger_says_who_asked(bench: Bench) -> None:
    stands_still(bench)
    answer = bench.run("resume", JOB)
    assert "planaria incident resume-gpt-demo-2" in answer.out
    assert "planaria resume" in (bench.gateways.jobs.job(JOB) or {})["resume_reason"]


def test_a_job_that_runs_is_not_ended_by_mistake(bench: Bench) -> None:
    bench.add_nodes(job=JOB)
    answer = bench.run("resume", JOB)
    assert (answer.status, bench.workflows.inputs) == (1, {})
    assert "--restart ends its processes" in answer.err
    assert bench.run("resume", JOB, "--restart", "--json").json["attempt"] == 2


def test_an_unknown_job_is_bad_input(bench: Bench) -> None:
    bench.add_nodes(job=JOB)
    answer = bench.run("resume", "gpt-dmeo")
    assert answer.status == 2
    assert answer.err == "planaria: No job of this cluster is called 'gpt-dmeo'; it has gpt-demo.\n"
    assert bench.workflows.inputs == {}


def test_what_the_workflow_refuses_is_said_in_its_own_sentence(bench: Bench) -> None:
    stands_still(bench, pending={NODES[2]: f"{NODES[2]}-7"})
    answer = bench.run("resume", JOB)
    assert answer.status == 1
    assert f"it waits for {NODES[2]} (incident {NODES[2]}-7)" in answer.err


def test_a_node_that_fails_meanwhile_is_said(bench: Bench) -> None:
    """Its claim stands on the node's row, and triage did not live to tell the job of it."""
    stands_still(bench)
    bench.add_incident(closed=False)
    answer = bench.run("resume", JOB)
    assert answer.status == 1
    assert "one of its nodes is being healed" in answer.err


def test_wait_follows_to_the_end(bench: Bench) -> None:
    stands_still(bench)

    def end(resume: Mapping[str, Any]) -> None:
        jobs, number = bench.gateways.jobs, int(resume["number"])
        bench.gateways.ledger.step("resume-gpt-demo-2", Step.JOB_RESUMED, NOW + 21, resume_step=40)
        facts = {"outcome": "HEALED", "closed_at": NOW + 22}
        bench.gateways.ledger.note_incident("resume-gpt-demo-2", facts)
        jobs.close_resume(JOB, number, Phase.HEALED, "", NOW + 22)

    bench.workflows.afterwards = end
    answer = bench.run("resume", JOB, "--wait", "--json")
    assert (answer.status, answer.json["outcome"]) == (0, "HEALED")


def test_jobs_say_what_needs_a_person(bench: Bench) -> None:
    attempts = {"2": {"step": 40, "at": NOW, "failure": {"what": "exit code 1", "at": NOW + 2}}}
    aside = {"40": {"why": "attempts 2 and 3 from it ended with exit code 1", "copy": None, "at": NOW}}
    stands_still(bench, attempts=attempts, aside=aside, given_up="job gpt-demo fails by itself: exit code 1")
    (document,) = bench.run("jobs", "--json").json
    assert document["needs_you"] == "job gpt-demo fails by itself: exit code 1"
    assert document["attempts"] == [{"attempt": 2, "from_step": 40, "failure": "exit code 1"}]
    assert [(one["step"], one["reason"]) for one in document["set_aside"]] == [(40, aside["40"]["why"])]
    assert "NEEDS YOU" in bench.run("jobs").out


@pytest.mark.parametrize(
    ("overdue", "state"), [({"reason": "it waits for demo-3"}, "ESCALATED"), ({}, "STOPPED")]
)
def test_a_job_that_waits_too_long_is_escalated(bench: Bench, overdue: dict[str, Any], state: str) -> None:
    bench.add_nodes(job=JOB)
    bench.gateways.jobs.write(JOB, {"state": "STOPPED", "overdue": overdue})
    (document,) = bench.run("jobs", "--json").json
    assert (document["state"], document["needs_you"]) == (state, overdue.get("reason"))
