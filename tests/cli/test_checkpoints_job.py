"""`planaria checkpoints` of a job: all tiers, and the state machines that are started and followed."""

from collections.abc import Mapping
from typing import Any

import pytest

from planaria.cli import checkpoint_tiers, orders
from planaria.core import restores
from planaria.core.checkpoint_ledger import CheckpointLedger, partition
from planaria.core.manifest import Format, Lineage, Manifest, Shard, digest
from planaria.core.ports import Execution
from planaria.memory.checkpoints import MemoryCheckpoints
from planaria.memory.commands import MemoryCommands
from planaria.memory.workflows import MemoryWorkflows
from tests.cli.conftest import NODES, NOW, Answer, Bench

JOB = "gpt-demo"
FOLDER = "/fsx/gpt"
URL = f"s3://planaria-bucket/checkpoints/{JOB}"


class Machines(MemoryWorkflows):
    """An execution ends at its third look; `ends` says how, and `at_work` what it notes meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.ends: dict[str, Any] = {"status": "SUCCEEDED"}
        self.at_work: dict[int, Any] = {}

    def describe_execution(self, executionArn: str) -> dict[str, Any]:  # noqa: N803  boto3's own name
        self.looks += 1
        if note := self.at_work.get(self.looks):
            note()
        return {"status": "RUNNING"} if self.looks < 3 else self.ends


def manifest(step: int, attempt: int = 1, parent: int = -1) -> Manifest:
    shards = (Shard("a", 1 << 20, "AAAAAAAAAAA="),)
    return Manifest(step, Lineage(JOB, attempt, parent), 8, Format.DCP, shards, NOW + step, {})


def told(step: int, state: str = "complete", attempt: int = 1, parent: int = -1) -> dict[str, Any]:
    """One entry of a node's list."""
    return {
        "step": step,
        "state": state,
        "reason": "" if state == "complete" else "a shard is missing",
        "size": 1 << 20,
        "attempt": attempt,
        "parent_step": parent,
        "saved_at": NOW + step,
        "digest": digest(manifest(step, attempt, parent).to_json()),
        "directory": f"step-{step}",
    }


@pytest.fixture
def machines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines()
    bench.add_nodes(job=JOB)
    bench.gateways.jobs.write(JOB, {"lineage": {"folder": FOLDER}})
    bench.gateways.workflows = bench.clients["stepfunctions"] = made
    store = MemoryCheckpoints(JOB, root=URL)
    for step in (100, 200):
        store.save(manifest(step, parent=step - 100), f"step-{step}")
    bench.clients["lambda"] = Functions()
    monkeypatch.setattr(type(bench.gateways), "checkpoints", lambda self, job, place="": store)
    answers = {"steps": [told(300, "partial", parent=200), told(200, parent=100)]}
    bench.gateways.commands = MemoryCommands({checkpoint_tiers.DOCUMENT: lambda node, given: answers})
    monkeypatch.setitem(orders.POLL_SECONDS, False, 0.0)
    return made


class Functions:
    def get_function_configuration(self, FunctionName: str) -> dict[str, Any]:  # noqa: N803
        return {"Environment": {"Variables": {"PLANARIA_BUCKET": "planaria-bucket"}}}


def run(bench: Bench, *words: object) -> Answer:
    return bench.run("checkpoints", *(str(word) for word in words))


def test_list_shows_all_tiers_as_a_resume_sees_them(bench: Bench, machines: Machines) -> None:
    listed = {one["step"]: one for one in run(bench, "list", JOB, "--json").json}
    assert {step: one["tiers"] for step, one in listed.items()} == {
        300: ["fsx"],
        200: ["fsx", "s3"],
        100: ["s3"],
    }
    assert [step for step, one in listed.items() if one["chosen"]] == [200]
    assert listed[200]["copies"][0]["place"] == f"{FOLDER}/step-200"
    assert "step 300 is partial" in run(bench, "list", JOB).out


def test_what_the_ledger_knows_to_be_durable_and_what_restores_found_bad(
    bench: Bench, machines: Machines
) -> None:
    table = bench.gateways.table
    body = manifest(200, parent=100)
    CheckpointLedger(table).durable(JOB, body, "step-200", f"{URL}/step-200", digest(body.to_json()), NOW)
    bad = f"s3/1/100/{digest(manifest(100, parent=0).to_json())[:16]}"
    table.write(*restores.key(JOB), sets={"bad": {bad: {"why": "a byte is wrong", "at": NOW + 9_999}}})
    listed = {one["step"]: one for one in run(bench, "list", JOB, "--json").json}
    assert listed[200]["state"] == "durable"
    assert (listed[100]["state"], listed[100]["reason"]) == ("corrupt", "a byte is wrong")


def test_a_tier_that_cannot_be_asked_is_said(bench: Bench, machines: Machines) -> None:
    bench.gateways.commands.reachable = False  # type: ignore[attr-defined]
    answer = run(bench, "list", JOB, "--json")
    assert {one["step"] for one in answer.json} == {100, 200}
    assert "Not all is seen: the file system could not be asked" in answer.err


def test_a_pin_of_a_job_stands_in_the_ledger(bench: Bench, machines: Machines) -> None:
    body = manifest(200, parent=100)
    CheckpointLedger(bench.gateways.table).durable(JOB, body, "step-200", URL, digest(body.to_json()), NOW)
    answer = run(bench, "pin", JOB, 200, "--reason", "best")
    assert (answer.status, answer.out) == (
        0,
        f"Step 200 is pinned: attempt 1 of job {JOB}, in every tier.\n",
    )
    assert {one["pinned"] for one in run(bench, "list", JOB, "--json").json if one["step"] == 200} == {"best"}
    run(bench, "unpin", JOB, 200)
    assert not any(one["pinned"] for one in run(bench, "list", JOB, "--json").json)
    unknown = run(bench, "pin", JOB, 999)
    assert unknown.status == 2 and "knows no step 999" in unknown.err


def document(machines: Machines) -> Mapping[str, Any]:
    [found] = machines.inputs.values()
    return found


def test_sync_of_a_job_starts_the_machine_and_follows_it(bench: Bench, machines: Machines) -> None:
    work = {"step": 300, "bytes": 1000, "done_bytes": 400}

    def note(**more: Any) -> None:
        bench.gateways.table.write(partition(JOB), "SYNC", sets={"job_id": JOB, "work": work, **more})

    machines.at_work = {1: note, 3: lambda: note(phase="DONE", outcome_reason="step 300 is durable")}
    answer = run(bench, "sync", JOB, "--step", 300, "--reason", "before the weekend")
    assert answer.status == 0 and "step 300 is durable" in answer.out
    assert document(machines) == {"job_id": JOB, "step": 300, "reason": "before the weekend"}


def test_a_sync_that_is_under_way_already_is_followed(bench: Bench, machines: Machines) -> None:
    """The execution that was started finds it, and ends at once."""

    def note(phase: str, **more: Any) -> Any:
        sets = {"job_id": JOB, "phase": phase, **more}
        return lambda: bench.gateways.table.write(partition(JOB), "SYNC", sets=sets)

    newest = {"attempt": 1, "step": 300, "saved_at": NOW}
    machines.at_work = {1: note("RUNNING"), 6: note("DONE", durable=newest)}
    answer = run(bench, "sync", JOB)
    assert (answer.status, machines.looks) == (0, 6)
    assert f"job {JOB}: step 300 is the newest that is durable in S3" in answer.out
    machines.looks, machines.at_work = (
        0,
        {1: note("RUNNING"), 5: note("FAILED", outcome_reason="no node is there")},
    )
    answer = run(bench, "sync", JOB)
    assert answer.status == 1 and "no node is there" in answer.err.lower()


def test_restore_of_a_job(bench: Bench, machines: Machines) -> None:
    def note() -> None:
        sets = {"phase": "RESTORED", "step": 200, "place": "/fsx2/gpt/step-200", "passed_over": ["step 300"]}
        bench.gateways.table.write(*restores.key(JOB), sets=sets)

    machines.at_work = {2: note}
    answer = run(bench, "restore", JOB, "/fsx2/gpt", "--json")
    assert answer.status == 0
    assert {key: answer.json[key] for key in ("outcome", "step", "place", "passed_over")} == {
        "outcome": "RESTORED",
        "step": 200,
        "place": "/fsx2/gpt/step-200",
        "passed_over": ["step 300"],
    }
    assert document(machines)["directory"] == "/fsx2/gpt"
    assert "planaria checkpoints restore" in document(machines)["reason"]


def test_how_it_failed_is_said_in_the_machines_own_sentence(bench: Bench, machines: Machines) -> None:
    machines.ends = {"status": "FAILED", "cause": "restore 3 of job gpt-demo cannot be done: no copy is good"}
    answer = run(bench, "restore", JOB)
    assert answer.status == 1 and "cannot be done: no copy is good" in answer.err
    machines.looks = 0
    answer = run(bench, "restore", JOB, "--json")
    assert (answer.status, answer.json["status"]) == (1, "FAILED")


def test_nobody_has_to_wait(bench: Bench, machines: Machines) -> None:
    answer = run(bench, "sync", JOB, "--no-wait", "--json")
    [arn] = machines.inputs
    assert answer.json == {"job_id": JOB, "machine": "sync_checkpoints", "execution_arn": arn}
    assert machines.executions[arn] is Execution.RUNNING
    assert NODES


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("sync", JOB, "--step", 1, "--step", 2), "takes one --step"),
        (("restore", JOB, "fsx"), "from / on"),
        (("prune", JOB), "no rules for s3 are known here"),
    ],
)
def test_bad_input(bench: Bench, machines: Machines, words: tuple[object, ...], part: str) -> None:
    answer = run(bench, *words)
    assert (answer.status, machines.inputs) == (2, {})
    assert part in answer.err.lower() or part in answer.err
