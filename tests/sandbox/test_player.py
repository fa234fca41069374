"""EC2 and AWS as the sandbox plays them, on a real emulator."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.core import ports
from planaria.sandbox import processes
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.head import Head
from planaria.sandbox.job_folder import read_json
from planaria.schedulers.process import HeadClient, ProcessScheduler
from tests.sandbox.heads import Mailbox, config, done, eventually, launch

pytestmark = pytest.mark.needs("emulator")
STATE = "EC2 Instance State-change Notification"


class Sandbox:
    """A head over an emulator, and all events."""

    def __init__(self, emulator: Emulator, head: Head, mailbox: Mailbox) -> None:
        self.emulator, self.head, self.mail = emulator, head, mailbox
        self.ec2 = emulator.client("ec2")
        self.api = HeadClient(head.url, head.token)

    def boot(self, name: str, **tags: str) -> str:
        node_id = launch(self.emulator, name, **tags)
        eventually(lambda: node_id in self.head.state.up, what=f"{name} is up")
        return node_id

    def inject(self, fault: str, node: str, **more: Any) -> str:
        return str(self.api.post("/inject", {"fault": fault, "node": node, **more})["injected"])

    def states(self, node_id: str) -> list[str]:
        return [e["detail"]["state"] for e in self.mail.find(STATE, instance_id=node_id)]

    def ask(self, request: ports.SchedulerRequest) -> dict[str, Any]:
        scheduler = ProcessScheduler(self.head.url, self.head.token)
        return done(scheduler.poll, scheduler.submit(request))


@pytest.fixture
def sandbox(tmp_path: Path, emulator: Emulator) -> Iterator[Sandbox]:
    mailbox = Mailbox(emulator)
    with Head(config(tmp_path, emulator.url)) as head:
        yield Sandbox(emulator, head, mailbox)


def test_an_instance_boots_runs_and_dies(sandbox: Sandbox) -> None:
    launched = time.time()
    node_id = sandbox.boot("demo-1")
    assert 0.5 <= time.time() - launched < 5
    ready = sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)
    assert ready["source"] == f"planaria.node/sandbox:{node_id}"
    assert ready["detail"]["name"] == "demo-1"
    assert ready["detail"]["check"] == {"passed": True, "reason": ""}
    assert sandbox.states(node_id) == ["pending", "running"]
    running = sandbox.mail.find(STATE, instance_id=node_id)[1]
    assert running["source"] == "planaria.gameday"
    assert running["resources"] == [f"arn:aws:ec2:us-east-1:000000000000:instance/{node_id}"]
    group = sandbox.head.player.nodes()[node_id].leader
    assert group is not None
    assert sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "IDLE"
    assert "terminated without a warning" in sandbox.inject("terminate", "demo-1")
    eventually(lambda: not processes.members(group), 5, "its processes are gone")
    eventually(lambda: sandbox.states(node_id) == ["pending", "running", "shutting-down", "terminated"])
    assert sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "DOWN"
    assert len(sandbox.mail.find("Planaria Node Ready", instance_id=node_id)) == 1


def test_other_clusters_instances_are_left_alone(sandbox: Sandbox) -> None:
    sandbox.ec2.run_instances(
        ImageId="ami-0abcdef1234567890", InstanceType="m7i.large", MinCount=1, MaxCount=1
    )
    node_id = sandbox.boot("demo-1")
    assert list(sandbox.head.player.nodes()) == [node_id]


def test_a_reboot_is_the_same_instance_with_a_new_boot(sandbox: Sandbox) -> None:
    node_id, other = sandbox.boot("demo-1"), sandbox.boot("demo-2")
    first = sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)["detail"]["boot_id"]
    old = sandbox.head.player.nodes()[node_id].leader
    assert old is not None
    sandbox.inject("broken-gpu", "demo-1")
    sandbox.ec2.reboot_instances(InstanceIds=[node_id])
    eventually(lambda: not processes.members(old), 5, "the old boot's processes are gone")
    assert sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "DOWN"
    eventually(lambda: len(sandbox.mail.find("Planaria Node Ready", instance_id=node_id)) == 2)
    second = sandbox.mail.find("Planaria Node Ready", instance_id=node_id)[1]["detail"]
    assert second["boot_id"] != first
    assert second["seq"] == 1
    assert second["check"] == {"passed": False, "reason": "1 of 8 GPUs are missing"}, "broken stays broken"
    time.sleep(1.2)
    assert len(sandbox.mail.find("Planaria Node Ready", instance_id=node_id)) == 2, "one call, one reboot"
    assert len(sandbox.mail.find("Planaria Node Ready", instance_id=other)) == 1
    assert sandbox.states(node_id) == ["pending", "running"]


def test_a_lost_gpu_is_back_after_a_reboot(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("demo-1")
    sandbox.inject("xid79", node_id)
    xid = sandbox.mail.wait("Planaria Node Signal", instance_id=node_id, kind="xid")["detail"]
    assert (xid["code"], xid["pci"], xid["injected"], xid["count"]) == ("79", "0000:b3:00", False, 1)
    sandbox.inject("reboot", "demo-1")
    eventually(lambda: len(sandbox.mail.find("Planaria Node Ready", instance_id=node_id)) == 2)
    assert sandbox.mail.find("Planaria Node Ready")[1]["detail"]["check"]["passed"]
    assert len(sandbox.mail.find("Planaria Node Signal")) == 1, "the old line is not read again"


def test_a_spot_instance_gets_its_notice_and_then_ends(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("demo-1")
    assert "spot notice" in sandbox.inject("spot", "demo-1")
    warning = sandbox.mail.wait("EC2 Spot Instance Interruption Warning", instance_id=node_id)
    assert warning["detail"] == {"instance-id": node_id, "instance-action": "terminate"}
    signal = sandbox.mail.wait("Planaria Node Signal", kind="spot_notice")["detail"]
    assert signal["code"] == "terminate"
    assert abs(signal["deadline"] - time.time()) < 3
    eventually(lambda: sandbox.states(node_id)[-1] == "terminated")


def test_a_notice_survives_a_restart_of_the_head(tmp_path: Path, emulator: Emulator) -> None:
    mail = Mailbox(emulator)
    settings = config(tmp_path, emulator.url)
    with Head(settings) as head:
        sandbox = Sandbox(emulator, head, mail)
        node_id = sandbox.boot("demo-1")
        sandbox.inject("spot", "demo-1")
    with Head(settings) as head:
        again = Sandbox(emulator, head, mail)
        eventually(lambda: again.states(node_id)[-1] == "terminated")
        assert again.states(node_id) == ["pending", "running", "shutting-down", "terminated"]


def test_a_killed_node_stays_dead_while_its_instance_runs(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("demo-1")
    group = sandbox.head.player.nodes()[node_id].leader
    assert group is not None
    sandbox.inject("kill-node", "demo-1")
    assert not processes.members(group)
    time.sleep(0.8)
    assert sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "DOWN"
    assert sandbox.states(node_id) == ["pending", "running"]
    sandbox.inject("reboot", "demo-1")
    eventually(lambda: sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "IDLE")


def test_a_node_whose_agent_dies_is_dead(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("demo-1")
    leader = sandbox.head.player.nodes()[node_id].leader
    assert leader is not None
    import os

    os.kill(leader, 9)
    eventually(lambda: node_id not in sandbox.head.state.up)


def test_a_replacement_waits_to_be_joined(sandbox: Sandbox) -> None:
    old = sandbox.boot("demo-1")
    new = sandbox.boot("demo-1", **{"planaria:replaces": old})
    spare = sandbox.boot("demo-7", **{"planaria:replaces": old})
    found = sandbox.ask(ports.NodeQuery(("demo-1", "demo-7")))
    assert (found["demo-1"]["node_id"], found["demo-7"]["state"]) == (old, "UNKNOWN")
    assert sandbox.ask(ports.Join("demo-1", new, "", "s-1")) == {"demo-1": "JOINED"}
    assert sandbox.ask(ports.NodeQuery(("demo-1",)))["demo-1"]["state"] == "DRAINED"
    assert {old, new, spare} <= sandbox.head.state.up


def test_someone_elses_drain(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("demo-1")
    assert "isolated by an operator (disks)" in sandbox.inject("foreign-drain", node_id, reason="disks")
    assert sandbox.ask(ports.Isolate(("demo-1",), "s-1")) == {"demo-1": "FOREIGN: disks"}
    saved = read_json(sandbox.head.folder / "nodes.json") or {}
    assert saved["demo-1"]["isolated"] == {"reason": "disks", "by": "operator"}


def test_a_killed_rank_is_reported_and_a_stopped_one_is_not(sandbox: Sandbox) -> None:
    for name in ("demo-1", "demo-2"):
        sandbox.boot(name)
    recipe = {"name": "gpt", "nodes": 2, "training": {"steps": 9}}
    sandbox.api.post("/jobs/submit", {"job_id": "gpt", "recipe": recipe})
    first = sandbox.mail.wait("Planaria Job Signal", event="step")["detail"]
    assert (first["job_id"], first["attempt"], first["rank"], first["step"]) == ("gpt", 1, 0, 1)
    assert "rank 1 of gpt was killed" in sandbox.inject("kill-rank", "", job_id="gpt", rank=1)
    ended = sandbox.mail.wait("Planaria Job Signal", event="exit")["detail"]
    assert (ended["job_id"], ended["attempt"], ended["rank"], ended["exit_code"]) == ("gpt", 1, 1, -9)
    eventually(lambda: not sandbox.head.state.jobs["gpt"].live_ranks)
    sandbox.ask(ports.Requeue("gpt", ("demo-2", "demo-1"), 2, -1))
    sandbox.mail.wait("Planaria Job Signal", event="step", attempt=2)
    eventually(lambda: sandbox.ask(ports.Stop(("gpt",), "TERM", 1.0)) == {"gpt": "STOPPED"})
    assert (sandbox.head.jobs.folder("gpt").attempts / "2" / "stopped").exists()
    time.sleep(0.3)
    assert [e["detail"]["attempt"] for e in sandbox.mail.find("Planaria Job Signal", event="exit")] == [1, 1]
    assert len(sandbox.mail.find("Planaria Job Signal", event="step")) == 2, "once per attempt"


def test_failed_and_stopped_executions_become_events(sandbox: Sandbox) -> None:
    workflows = sandbox.emulator.client("stepfunctions")
    role = "arn:aws:iam::000000000000:role/x"
    states = {
        "planaria-demo-fails": {"Type": "Fail", "Error": "E"},
        "planaria-demo-waits": {"Type": "Wait", "Seconds": 60, "End": True},
        "planaria-other-fails": {"Type": "Fail", "Error": "E"},
    }
    machines = {}
    for name, only in states.items():
        definition = json.dumps({"StartAt": "Only", "States": {"Only": only}})
        made = workflows.create_state_machine(name=name, definition=definition, roleArn=role)
        machines[name] = made["stateMachineArn"]
    runs = {
        name: workflows.start_execution(stateMachineArn=arn, name=f"{name}-1")["executionArn"]
        for name, arn in machines.items()
    }
    workflows.stop_execution(executionArn=runs["planaria-demo-waits"])
    kind = "Step Functions Execution Status Change"
    failed = sandbox.mail.wait(kind, status="FAILED")
    assert failed["source"] == "planaria.gameday"
    assert failed["detail"]["executionArn"] == runs["planaria-demo-fails"]
    assert failed["detail"]["stateMachineArn"] == machines["planaria-demo-fails"]
    assert failed["detail"]["name"] == "planaria-demo-fails-1"
    assert sandbox.mail.wait(kind, status="ABORTED")["detail"]["executionArn"] == runs["planaria-demo-waits"]
    time.sleep(1.5)
    assert len(sandbox.mail.find(kind)) == 2, "each once, and none of other clusters' machines"


def test_agents_speak_with_the_credentials_of_the_node_role(tmp_path: Path, emulator: Emulator) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
    made = emulator.client("iam").create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps(trust))[
        "Role"
    ]
    mail = Mailbox(emulator)
    with Head(config(tmp_path, emulator.url, node_role=made["Arn"])) as head:
        node_id = Sandbox(emulator, head, mail).boot("demo-1")
        ready = mail.wait("Planaria Node Ready", instance_id=node_id)
    assert ready["source"] == f"planaria.node/{made['RoleId']}:{node_id}"


def test_events_wait_until_the_bus_is_there(tmp_path: Path, emulator: Emulator) -> None:
    with Head(config(tmp_path, emulator.url)) as head:
        node_id = launch(emulator, "demo-1")
        eventually(lambda: node_id in head.state.up)
        mail = Mailbox(emulator)
        sandbox = Sandbox(emulator, head, mail)
        eventually(lambda: sandbox.states(node_id) == ["pending", "running"])
        mail.wait("Planaria Node Ready", instance_id=node_id)


@pytest.mark.needs("torch")
def test_a_real_job_fails_with_its_node_and_resumes_from_a_checkpoint(
    tmp_path: Path, emulator: Emulator
) -> None:
    mail = Mailbox(emulator)
    training = {"steps": 60, "save_every": 10, "step_seconds": 0.05, "timeout_seconds": 5, "nice": 0}
    training |= {"model": {"layers": 1, "heads": 2, "width": 32, "context": 16}, "batch": 2}
    with Head(config(tmp_path, emulator.url, rank_command=())) as head:
        sandbox = Sandbox(emulator, head, mail)
        for name in ("demo-1", "demo-2"):
            sandbox.boot(name)
        recipe = {"name": "gpt", "nodes": 2, "training": training}
        sandbox.api.post("/jobs/submit", {"job_id": "gpt", "recipe": recipe})
        folder = head.jobs.folder("gpt")
        eventually((folder.step(10) / "COMMITTED").exists, 30, "step 10 is saved")
        sandbox.inject("xid79", "demo-2")
        eventually(lambda: len(mail.find("Planaria Job Signal", event="exit")) == 2, 20)
        ends = [each["detail"] for each in mail.find("Planaria Job Signal", event="exit")]
        exits = {end["rank"]: end["exit_code"] for end in ends}
        assert exits == {0: 4, 1: -9}, "rank 0 says that it lost its peer"
        assert head.state.jobs["gpt"].state == "FAILED"
        newest = max(int(p.name[5:]) for p in folder.checkpoints.glob("step-*") if (p / "COMMITTED").exists())
        assert sandbox.ask(ports.Requeue("gpt", ("demo-1", "demo-2"), 2, newest)) == {"gpt": "RUNNING"}
        step = mail.wait("Planaria Job Signal", 30, event="step", attempt=2)["detail"]["step"]
        assert step == newest + 1
        eventually(lambda: head.state.jobs["gpt"].state == "COMPLETED", 30, "the job is done")
        assert folder.final.exists()
