"""EC2 and AWS as the sandbox plays them, on a real emulator."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planaria.core import scheduling
from planaria.core.manifest import FILE_NAME
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
        self.cluster = head.config.cluster
        self.ec2 = emulator.client("ec2")
        self.api = HeadClient(head.url, head.token)

    def launch(self, name: str, **tags: str) -> str:
        return launch(self.emulator, name, self.cluster, **tags)

    def up(self, *node_ids: str) -> None:
        eventually(lambda: set(node_ids) <= self.head.state.up, what=f"{node_ids} are up")

    def boot(self, name: str) -> str:
        node_id = self.launch(name)
        self.up(node_id)
        return node_id

    def inject(self, fault: str, node: str, **more: Any) -> str:
        return str(self.api.post("/inject", {"fault": fault, "node": node, **more})["injected"])

    def states(self, node_id: str) -> list[str]:
        return [e["detail"]["state"] for e in self.mail.find(STATE, instance_id=node_id)]

    def boots(self, node_id: str) -> list[dict[str, Any]]:
        """What the node said each time that it was ready."""
        return [e["detail"] for e in self.mail.find("Planaria Node Ready", instance_id=node_id)]

    def ask(self, request: scheduling.SchedulerRequest) -> dict[str, Any]:
        scheduler = ProcessScheduler(self.head.url, self.head.token)
        return done(scheduler.poll, scheduler.submit(request))

    def node_state(self, name: str) -> str:
        return str(self.ask(scheduling.NodeQuery((name,)))[name]["state"])

    def group(self, node_id: str) -> int:
        leader = self.head.player.nodes()[node_id].leader
        assert leader is not None
        return leader


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory, one_emulator: Emulator) -> Iterator[Sandbox]:
    """One for most tests; each uses node names of its own."""
    mailbox = Mailbox(one_emulator, "played")
    with Head(config(tmp_path_factory.mktemp("played"), one_emulator.url, "played")) as head:
        yield Sandbox(one_emulator, head, mailbox)


@contextmanager
def own_sandbox(folder: Path, emulator: Emulator, cluster: str, **settings: Any) -> Iterator[Sandbox]:
    mailbox = Mailbox(emulator, cluster)
    with Head(config(folder, emulator.url, cluster, **settings)) as head:
        yield Sandbox(emulator, head, mailbox)


def test_an_instance_boots_runs_and_dies(sandbox: Sandbox) -> None:
    launched = time.time()
    node_id = sandbox.boot("life-1")
    assert time.time() - launched >= 0.5
    ready = sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)
    assert ready["source"] == f"planaria.node/sandbox:{node_id}"
    assert ready["detail"]["name"] == "life-1"
    assert ready["detail"]["check"] == {"passed": True, "reason": ""}
    eventually(lambda: sandbox.states(node_id) == ["pending", "running"])
    running = sandbox.mail.find(STATE, instance_id=node_id)[1]
    assert running["source"] == "planaria.gameday"
    assert running["resources"] == [f"arn:aws:ec2:us-east-1:000000000000:instance/{node_id}"]
    group = sandbox.group(node_id)
    assert sandbox.node_state("life-1") == "IDLE"
    assert "terminated without a warning" in sandbox.inject("terminate", "life-1")
    eventually(lambda: not processes.members(group), 5, "its processes are gone")
    eventually(lambda: sandbox.states(node_id) == ["pending", "running", "shutting-down", "terminated"])
    assert sandbox.node_state("life-1") == "DOWN"
    assert len(sandbox.boots(node_id)) == 1


def test_a_stopped_instance_boots_again_when_it_is_started(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("stop-1")
    sandbox.ec2.stop_instances(InstanceIds=[node_id])
    eventually(lambda: sandbox.states(node_id)[-2:] == ["stopping", "stopped"])
    assert sandbox.node_state("stop-1") == "DOWN"
    sandbox.ec2.start_instances(InstanceIds=[node_id])
    eventually(lambda: sandbox.node_state("stop-1") == "IDLE")
    eventually(lambda: sandbox.states(node_id)[-2:] == ["pending", "running"])


def test_an_instance_that_ends_between_two_looks_is_told_whole(sandbox: Sandbox) -> None:
    with sandbox.head.player._lock:  # the player cannot look meanwhile
        node_id = sandbox.launch("brief-1")
        sandbox.ec2.terminate_instances(InstanceIds=[node_id])
    whole = ["pending", "running", "shutting-down", "terminated"]
    eventually(lambda: sandbox.states(node_id) == whole, what="all four states")


def test_other_instances_are_left_alone(sandbox: Sandbox) -> None:
    other = launch(sandbox.emulator, "other-1", "another-cluster")
    sandbox.boot("own-1")
    assert other not in sandbox.head.player.nodes()


def test_a_reboot_is_the_same_instance_with_a_new_boot(sandbox: Sandbox) -> None:
    node_id, other = sandbox.launch("reboot-1"), sandbox.launch("reboot-2")
    sandbox.up(node_id, other)
    sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)
    old = sandbox.group(node_id)
    sandbox.inject("broken-gpu", "reboot-1")
    sandbox.ec2.reboot_instances(InstanceIds=[node_id])
    eventually(lambda: not processes.members(old), 5, "the old boot's processes are gone")
    assert sandbox.node_state("reboot-1") == "DOWN"
    eventually(lambda: len(sandbox.boots(node_id)) == 2)
    first, second = sandbox.boots(node_id)
    assert second["boot_id"] != first["boot_id"]
    assert second["seq"] == 1
    assert second["check"] == {"passed": False, "reason": "1 of 8 GPUs are missing"}, "broken stays broken"
    time.sleep(1.0)
    assert len(sandbox.boots(node_id)) == 2, "one call, one reboot"
    assert len(sandbox.boots(other)) == 1
    assert sandbox.states(node_id) == ["pending", "running"]


def test_a_lost_gpu_is_back_after_a_reboot(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("gpu-1")
    sandbox.inject("xid79", node_id)
    xid = sandbox.mail.wait("Planaria Node Signal", instance_id=node_id, kind="xid")["detail"]
    assert (xid["code"], xid["pci"], xid["injected"], xid["count"]) == ("79", "0000:b3:00", False, 1)
    sandbox.inject("reboot", "gpu-1")
    eventually(lambda: len(sandbox.boots(node_id)) == 2)
    assert sandbox.boots(node_id)[1]["check"]["passed"]
    signals = sandbox.mail.find("Planaria Node Signal", instance_id=node_id)
    assert len(signals) == 1, "the old line is not read again"


def test_a_spot_instance_gets_its_notice_and_then_ends(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("spot-1")
    assert "spot notice" in sandbox.inject("spot", "spot-1")
    warning = sandbox.mail.wait("EC2 Spot Instance Interruption Warning", instance_id=node_id)
    assert warning["detail"] == {"instance-id": node_id, "instance-action": "terminate"}
    notice = sandbox.mail.wait("Planaria Node Signal", kind="spot_notice", instance_id=node_id)["detail"]
    assert notice["code"] == "terminate"
    assert abs(notice["deadline"] - time.time()) < 5
    eventually(lambda: sandbox.states(node_id)[-1] == "terminated")


def test_a_notice_survives_a_restart_of_the_head(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    with own_sandbox(tmp_path, one_emulator, cluster) as first:
        node_id, mail = first.boot("demo-1"), first.mail
        eventually(lambda: first.states(node_id) == ["pending", "running"])
        first.inject("spot", "demo-1")
    with Head(config(tmp_path, one_emulator.url, cluster)) as head:
        second = Sandbox(one_emulator, head, mail)
        eventually(lambda: second.states(node_id)[-1] == "terminated")
        assert second.states(node_id) == ["pending", "running", "shutting-down", "terminated"]


def test_a_killed_node_stays_dead_while_its_instance_runs(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("killed-1")
    group = sandbox.group(node_id)
    sandbox.inject("kill-node", "killed-1")
    assert not processes.members(group)
    time.sleep(0.8)
    assert sandbox.node_state("killed-1") == "DOWN"
    assert sandbox.states(node_id) == ["pending", "running"]
    sandbox.inject("reboot", "killed-1")
    eventually(lambda: sandbox.node_state("killed-1") == "IDLE")


def test_a_node_whose_agent_dies_is_dead(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("agent-1")
    os.kill(sandbox.group(node_id), signal.SIGKILL)
    eventually(lambda: node_id not in sandbox.head.state.up)


def test_a_replacement_waits_to_be_joined(sandbox: Sandbox) -> None:
    old = sandbox.boot("join-1")
    marks = {"planaria:replaces": old}
    new, spare = sandbox.launch("join-1", **marks), sandbox.launch("join-7", **marks)
    sandbox.up(new, spare)
    found = sandbox.ask(scheduling.NodeQuery(("join-1", "join-7")))
    assert (found["join-1"]["node_id"], found["join-7"]["state"]) == (old, "UNKNOWN")
    assert sandbox.ask(scheduling.Join("join-1", new, "", "s-1")) == {"join-1": "JOINED"}
    assert sandbox.node_state("join-1") == "DRAINED"


def test_a_spare_has_no_place_until_it_is_joined(sandbox: Sandbox) -> None:
    node_id = sandbox.launch("")
    sandbox.up(node_id)
    ready = sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)
    assert ready["detail"]["name"] == ""
    assert node_id not in {node.node_id for node in sandbox.head.state.nodes.values()}
    assert f"a spare ({node_id})" in sandbox.inject("kernel-line", node_id, line="all is well")
    old = sandbox.boot("spared-1")
    sandbox.inject("terminate", "spared-1")
    eventually(lambda: sandbox.node_state("spared-1") == "DOWN")
    join = scheduling.Join("spared-1", node_id, "10.0.0.9", "planaria:x")
    assert sandbox.ask(join) == {"spared-1": "JOINED"}
    assert sandbox.ask(scheduling.Readmit(("spared-1",), "planaria:x")) == {"spared-1": "READMITTED"}
    assert sandbox.node_state("spared-1") == "IDLE" and old != node_id
    assert f"spared-1 ({node_id})" in sandbox.inject("reboot", "spared-1")
    eventually(lambda: len(sandbox.boots(node_id)) == 2)
    eventually(lambda: sandbox.node_state("spared-1") == "IDLE")
    assert node_id not in sandbox.head.state.nodes


def test_someone_elses_drain(sandbox: Sandbox) -> None:
    node_id = sandbox.boot("drain-1")
    assert "isolated by an operator (disks)" in sandbox.inject("foreign-drain", node_id, reason="disks")
    assert sandbox.ask(scheduling.Isolate(("drain-1",), "s-1")) == {"drain-1": "FOREIGN: disks"}
    saved = read_json(sandbox.head.folder / "nodes.json") or {}
    assert saved["drain-1"]["isolated"] == {"reason": "disks", "by": "operator"}


def test_a_killed_rank_is_reported_and_a_stopped_one_is_not(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    with own_sandbox(tmp_path, one_emulator, cluster) as sandbox:
        sandbox.up(sandbox.launch("demo-1"), sandbox.launch("demo-2"))
        recipe = {"name": "gpt", "nodes": 2, "training": {"steps": 9}}
        sandbox.api.post("/jobs/submit", {"job_id": "gpt", "recipe": recipe})
        first = sandbox.mail.wait("Planaria Job Signal", event="step")["detail"]
        assert (first["job_id"], first["attempt"], first["rank"], first["step"]) == ("gpt", 1, 0, 1)
        assert "rank 1 of gpt was killed" in sandbox.inject("kill-rank", "", job_id="gpt", rank=1)
        ended = sandbox.mail.wait("Planaria Job Signal", event="exit")["detail"]
        assert (ended["job_id"], ended["attempt"], ended["rank"], ended["exit_code"]) == ("gpt", 1, 1, -9)
        eventually(lambda: not sandbox.head.state.jobs["gpt"].live_ranks)
        sandbox.ask(scheduling.Requeue("gpt", ("demo-2", "demo-1"), 2, -1))
        sandbox.mail.wait("Planaria Job Signal", event="step", attempt=2)
        eventually(lambda: sandbox.ask(scheduling.Stop(("gpt",), "TERM", 1.0)) == {"gpt": "STOPPED"})
        assert (sandbox.head.jobs.folder("gpt").attempts / "2" / "stopped").exists()
        time.sleep(0.3)
        exits = sandbox.mail.find("Planaria Job Signal", event="exit")
        assert [each["detail"]["attempt"] for each in exits] == [1, 1]
        assert len(sandbox.mail.find("Planaria Job Signal", event="step")) == 2, "once per attempt"


def test_failed_and_stopped_executions_become_events(sandbox: Sandbox) -> None:
    workflows = sandbox.emulator.client("stepfunctions")
    states = {
        "planaria-played-fails": {"Type": "Fail", "Error": "E"},
        "planaria-played-waits": {"Type": "Wait", "Seconds": 60, "End": True},
        "planaria-other-fails": {"Type": "Fail", "Error": "E"},
    }
    machines, runs = {}, {}
    for name, only in states.items():
        definition = json.dumps({"StartAt": "Only", "States": {"Only": only}})
        made = workflows.create_state_machine(
            name=name, definition=definition, roleArn="arn:aws:iam::000000000000:role/x"
        )
        machines[name] = made["stateMachineArn"]
        run = workflows.start_execution(stateMachineArn=machines[name], name=f"{name}-1")
        runs[name] = run["executionArn"]
    workflows.stop_execution(executionArn=runs["planaria-played-waits"])
    kind = "Step Functions Execution Status Change"
    failed = sandbox.mail.wait(kind, status="FAILED")
    assert failed["source"] == "planaria.gameday"
    assert failed["detail"]["executionArn"] == runs["planaria-played-fails"]
    assert failed["detail"]["stateMachineArn"] == machines["planaria-played-fails"]
    assert failed["detail"]["name"] == "planaria-played-fails-1"
    aborted = sandbox.mail.wait(kind, status="ABORTED")
    assert aborted["detail"]["executionArn"] == runs["planaria-played-waits"]
    time.sleep(1.2)
    assert len(sandbox.mail.find(kind)) == 2, "each once, and none of other clusters' machines"


def test_agents_speak_with_the_credentials_of_the_node_role(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    trust = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
    iam = one_emulator.client("iam")
    made = iam.create_role(RoleName=cluster, AssumeRolePolicyDocument=json.dumps(trust))["Role"]
    with own_sandbox(tmp_path, one_emulator, cluster, node_role=made["Arn"]) as sandbox:
        node_id = sandbox.boot("demo-1")
        ready = sandbox.mail.wait("Planaria Node Ready", instance_id=node_id)
    assert ready["source"] == f"planaria.node/{made['RoleId']}:{node_id}"


@pytest.mark.needs("torch")
def test_a_real_job_fails_with_its_node_and_resumes_from_a_checkpoint(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    model = {"layers": 1, "heads": 2, "width": 32, "context": 16}
    training = {"steps": 50, "save_every": 10, "step_seconds": 0.05, "timeout_seconds": 5, "nice": 0}
    recipe = {"name": "gpt", "nodes": 2, "training": {**training, "batch": 2, "model": model}}
    with own_sandbox(tmp_path, one_emulator, cluster, rank_command=()) as sandbox:
        head, mail = sandbox.head, sandbox.mail
        sandbox.up(sandbox.launch("demo-1"), sandbox.launch("demo-2"))
        sandbox.api.post("/jobs/submit", {"job_id": "gpt", "recipe": recipe})
        folder = head.jobs.folder("gpt")
        eventually((folder.step(10) / FILE_NAME).exists, 60, "step 10 is saved")
        sandbox.inject("xid79", "demo-2")
        eventually(lambda: len(mail.find("Planaria Job Signal", event="exit")) == 2, 20)
        ends = [each["detail"] for each in mail.find("Planaria Job Signal", event="exit")]
        exits = {end["rank"]: end["exit_code"] for end in ends}
        assert exits == {0: 4, 1: -9}, "rank 0 says that it lost its peer"
        assert head.state.jobs["gpt"].state == "FAILED"
        saved = [int(p.name[5:]) for p in folder.checkpoints.glob("step-*") if (p / FILE_NAME).exists()]
        newest = max(saved)
        assert sandbox.ask(scheduling.Requeue("gpt", ("demo-1", "demo-2"), 2, newest)) == {"gpt": "RUNNING"}
        step = mail.wait("Planaria Job Signal", 60, event="step", attempt=2)["detail"]["step"]
        assert step == newest + 1
        eventually(lambda: head.state.jobs["gpt"].state == "COMPLETED", 60, "the job is done")
        assert folder.final.exists()
