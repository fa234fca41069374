"""Event in at EventBridge, through SQS, Lambda and Step Functions on the emulator, job resumed.

The tests run in the order of this file on one sandbox, with IAM enforced; each heals what it breaks.
"""

import json
import time

import pytest

from planaria.core.claim import Claim
from planaria.core.incident import incident_id
from tests.e2e.conftest import Bench

SHORT = {"steps": 60, "save_every": 10}
JOB = "long"


@pytest.fixture(scope="module")
def job(bench: Bench) -> str:
    """A job that trains through all the faults below."""
    bench.submit(JOB, steps=100_000, save_every=10)
    bench.train_to(JOB, 12)
    return JOB


def healthy(bench: Bench) -> None:
    """Four running nodes, none isolated, nothing pending."""
    row = bench.gw.jobs.job(JOB) or {}
    assert (row["pending"], row["unresolved"]) == ({}, {})
    assert len(bench.until("four instances", lambda: n if len(n := bench.instances()) == 4 else None)) == 4
    scheduler = bench.world.head().get("/status")["scheduler"]
    assert [node["isolated"] for node in scheduler.values()] == [None] * 4


def test_xid_79_heals_and_the_weights_are_those_of_the_undisturbed_run(bench: Bench) -> None:
    bench.submit("undisturbed", **SHORT)
    expected = bench.final("undisturbed")
    bench.submit("disturbed", **SHORT)
    bench.train_to("disturbed", 25)
    node = bench.node("e2e-3")
    bench.inject("xid79", "e2e-3")
    row = bench.incident(node)
    assert (row["action"], row["rule"], row["fault"]["code"]) == ("REPLACE", "xid-79", "79")
    final = bench.final("disturbed")
    assert final["weights_sha256"] == expected["weights_sha256"]
    assert final["step"] == expected["step"] == 60
    job = bench.resumed("disturbed", 1)
    assert job["resume_step"] >= 20
    first = next(step for step in bench.steps("disturbed") if step["attempt"] == job["attempt"])
    assert first["step"] == job["resume_step"] + 1
    timeline = bench.timeline(row["incident_id"])
    order = (
        "detected",
        "triaged",
        "begun",
        "isolated",
        "node_ready",
        "node_joined",
        "job_resumed",
        "first_new_step",
    )
    assert [timeline[name] for name in order] == sorted(timeline[name] for name in order)
    assert bench.node("e2e-3") == row["replacement_id"] != node
    assert node not in bench.instances()


def test_a_spot_notice_saves_a_checkpoint_before_the_node_goes(bench: Bench, job: str) -> None:
    node, before = bench.node("e2e-2"), bench.gw.jobs.job(job) or {}
    at = bench.inject("spot", "e2e-2")
    row = bench.incident(node)
    assert row["fault"]["kind"] == "spot_interruption"
    _, steps = bench.gw.ledger.incident(row["incident_id"])
    saved = next(step for step in steps if step["step"] == "checkpoint_saved")
    after = bench.resumed(job, int(before["attempt"]))
    assert after["resume_step"] >= saved["checkpoint_step"] >= 0  # a regular one may follow before the stop
    noticed = max(step["step"] for step in bench.steps(job) if step["at"] <= at)
    assert after["resume_step"] >= noticed, "no step from before the notice is done again"
    healthy(bench)


def test_an_instance_terminated_without_warning(bench: Bench, job: str) -> None:
    node, before = bench.node("e2e-1"), bench.gw.jobs.job(job) or {}
    bench.inject("terminate", "e2e-1")
    row = bench.incident(node)
    assert row["rule"] == "instance-terminated"
    bench.resumed(job, int(before["attempt"]))
    healthy(bench)


def test_a_replacement_started_by_hand_in_the_console(bench: Bench, job: str) -> None:
    node, before = bench.node("e2e-4"), bench.gw.jobs.job(job) or {}
    document = {"node_id": node, "action": "replace", "reason": "GPU 3 is slow"}
    at = time.time()
    arn, _ = bench.gw.workflows.start("heal_node", "by-hand-1", document)
    row = bench.incident(node)
    assert (row["rule"], row["reason"], row["execution_arn"]) == ("console", "GPU 3 is slow", arn)
    after = bench.resumed(job, int(before["attempt"]))
    ordered = max(step["step"] for step in bench.steps(job) if step["at"] <= at)
    assert after["resume_step"] >= ordered, "a node that works saves a checkpoint first"
    healthy(bench)


def test_a_process_crash_resumes_the_job_and_touches_no_node(bench: Bench, job: str) -> None:
    before = bench.gw.jobs.job(job) or {}
    nodes, incidents = sorted(bench.instances()), len(bench.gw.ledger.incidents())
    bench.inject("kill-rank", "e2e-2")
    after = bench.resumed(job, int(before["attempt"]))
    assert after["nodes"] == before["nodes"]
    assert sorted(bench.instances()) == nodes
    own = bench.gw.ledger.incidents()
    assert len(own) == incidents + 1
    head, steps = bench.gw.ledger.incident(f"resume-{job}-{after['resume_number']}")
    assert head is not None
    assert (head["node_id"], head["rule"]) == (None, "job-exit")
    assert {"job_resumed", "first_new_step"} <= {step["step"] for step in steps}
    healthy(bench)


def test_the_same_event_five_times_at_once_and_later_is_one_incident(bench: Bench, job: str) -> None:
    assert bench.world.emulator is not None
    node, before = bench.node("e2e-3"), bench.gw.jobs.job(job) or {}
    replacements = set(bench.instances())
    event = {
        "version": "0",
        "id": "11111111-2222-3333-4444-555555555555",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": "000000000000",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "region": "us-east-1",
        "resources": [],
        "detail": {"instance-id": node, "instance-action": "terminate"},
    }
    sqs = bench.world.emulator.client("sqs")
    url = sqs.get_queue_url(QueueName="planaria-e2e-urgent")["QueueUrl"]
    for _ in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event))
    # EventBridge may deliver a put twice; two puts are two events that mean the same.
    detail = json.dumps(event["detail"])
    entry = {"Source": "planaria.gameday", "DetailType": event["detail-type"], "Detail": detail}
    bench.world.emulator.client("events").put_events(Entries=[{**entry, "EventBusName": "planaria-e2e"}] * 2)
    row = bench.incident(node)
    bench.resumed(job, int(before["attempt"]))
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event))  # and once more, when all is over
    bench.until("empty queue", lambda: bench.queue_depth("urgent") == 0)
    assert [r["incident_id"] for r in bench.incidents_of(node)] == [row["incident_id"]]
    assert set(bench.instances()) - replacements == {row["replacement_id"]}
    healthy(bench)


def test_triage_killed_between_claim_and_start_ends_well(bench: Bench, job: str) -> None:
    """What a kill at that point leaves is the claim alone; the message may be lost with it."""
    node, before = bench.node("e2e-4"), bench.gw.jobs.job(job) or {}
    now = time.time()
    fault = {"kind": "xid", "code": "79", "severity": "FATAL", "detector": "agent_xid"}
    claim = Claim(node, "killed-triage", "REPLACE", "claimed, then killed", "xid-79", "act", now, fault)
    claimed = bench.gw.ledger.claim(claim, bench.gw.ledger.node(node), now)
    row = bench.incident(node, seconds=120)
    assert row["incident_id"] == incident_id(node, claimed["session"])
    assert float(row["closed_at"]) - now < 120
    bench.resumed(job, int(before["attempt"]))
    healthy(bench)


def test_a_stopped_execution_is_restarted_and_launches_nothing_twice(bench: Bench, job: str) -> None:
    node, before = bench.node("e2e-1"), bench.gw.jobs.job(job) or {}
    replacements = set(bench.instances())
    at = bench.inject("xid79", "e2e-1")

    def launched() -> bool:
        return any(
            "replacement_launched" in bench.timeline(r["incident_id"]) for r in bench.incidents_of(node)
        )

    bench.until("launch", launched)
    arn = (bench.gw.ledger.node(node) or {})["execution_arn"]
    bench.gw.workflows.stop(arn, "a person pressed Stop")
    row = bench.incident(node, seconds=120)
    assert float(row["closed_at"]) - at < 120
    assert row["execution_arn"] != arn
    bench.resumed(job, int(before["attempt"]))
    assert set(bench.instances()) - replacements == {row["replacement_id"]}
    healthy(bench)


def test_a_replacement_that_dies_while_it_boots_is_followed_by_another(bench: Bench, job: str) -> None:
    assert bench.world.emulator is not None
    node, before = bench.node("e2e-3"), bench.gw.jobs.job(job) or {}
    bench.inject("xid79", "e2e-3")
    first = bench.until("launch", lambda: (bench.gw.ledger.node(node) or {}).get("replacement_id"))
    bench.world.emulator.client("ec2").terminate_instances(InstanceIds=[first])
    row = bench.incident(node)
    assert row["replacement_id"] not in (None, first)
    assert bench.incidents_of(first) == []
    bench.resumed(job, int(before["attempt"]))
    healthy(bench)


def test_a_foreign_drain_is_left_alone_and_the_replacement_given_back(bench: Bench, job: str) -> None:
    node = bench.node("e2e-2")
    bench.inject("foreign-drain", "e2e-2", reason="cable swap")
    document = {"node_id": node, "action": "replace", "reason": "by mistake"}
    bench.gw.workflows.start("heal_node", "by-hand-2", document)
    row = bench.incident(node, "ESCALATED")
    assert "cable swap" in row["outcome_reason"]
    assert node in bench.instances()
    isolated = bench.world.head().get("/status")["scheduler"]["e2e-2"]["isolated"]
    assert isolated["reason"] == "cable swap"
    bench.until("four instances", lambda: len(bench.instances()) == 4)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"node_id": "i-0000000000000dead", "action": "replace", "reason": "x"},
            "is not an instance of cluster e2e",
        ),
        ({"node_id": "demo-3", "action": "replace"}, "must be an EC2 instance id"),
        ({"node_id": "i-0123456789abcdef0", "action": "explode"}, "action must be one of"),
        ({"node": "i-0123456789abcdef0", "action": "replace"}, "the field 'node' is not known"),
        (["i-0123456789abcdef0"], "must be a JSON object"),
    ],
)
def test_a_bad_console_document_is_refused_in_a_sentence(bench: Bench, document: object, says: str) -> None:
    assert bench.world.emulator is not None
    client = bench.world.emulator.client("stepfunctions")
    arn = json.loads(bench.gw._need("PLANARIA_MACHINES"))["heal_node"]
    started = client.start_execution(stateMachineArn=arn, input=json.dumps(document))["executionArn"]

    def over() -> dict[str, str] | None:
        found = client.describe_execution(executionArn=started)
        return found if found["status"] != "RUNNING" else None

    ended = bench.until("end of the execution", over)
    assert ended["status"] == "FAILED"
    assert says in ended["cause"]
    if isinstance(document, dict) and "is not an instance" not in says:
        assert '{"node_id": "i-0123456789abcdef0"' in ended["cause"]


def test_bad_events_end_recorded_and_make_no_retry_storm(bench: Bench) -> None:
    assert bench.world.emulator is not None
    events = bench.world.emulator.client("events")
    title = "EC2 Instance State-change Notification"
    put = {"Source": "planaria.gameday", "DetailType": title, "EventBusName": "planaria-e2e"}
    events.put_events(Entries=[{**put, "Detail": json.dumps({"state": "stopped"})}])
    sqs = bench.world.emulator.client("sqs")
    url = sqs.get_queue_url(QueueName="planaria-e2e-urgent")["QueueUrl"]
    bodies = [
        "no JSON",
        "{}",
        json.dumps({"detail-type": title, "source": "aws.ec2", "id": "without-detail"}),
    ]
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    bench.until("empty queue", lambda: bench.queue_depth("urgent") == 0)
    bench.until("recorded outcomes", lambda: len(bench.outcomes(outcome="INVALID")) >= 3)
    assert bench.queue_depth("urgent-dlq") == 0
