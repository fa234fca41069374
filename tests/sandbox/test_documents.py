"""Checks and resets as the sandbox's nodes carry them out, with the faults that they find."""

from collections.abc import Iterator
from typing import Any

import pytest

from planaria.core import ports
from planaria.core.errors import InvalidInput
from planaria.sandbox import processes
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.head import Head
from planaria.sandbox.job_folder import read_json
from planaria.schedulers.process import HeadClient, ProcessCommands
from tests.sandbox.heads import config, done, eventually, launch

pytestmark = pytest.mark.needs("emulator")
DEEP = {"suite": "deep"}


class Sandbox:
    def __init__(self, emulator: Emulator, head: Head) -> None:
        self.emulator, self.head = emulator, head
        self.api = HeadClient(head.url, head.token, timeout=10.0)
        self.commands = ProcessCommands(head.url, head.token, timeout=10.0)

    def boot(self, name: str) -> str:
        node = launch(self.emulator, name, self.head.config.cluster)
        eventually(lambda: node in self.head.state.up, what=f"{name} is up")
        return node

    def run(self, document: str, node: str, parameters: dict[str, str]) -> dict[str, Any]:
        ticket = self.commands.submit(document, [node], parameters)
        eventually(
            lambda: self.commands.poll(ticket).state is not ports.AnswerState.PENDING, 60, f"{document} ends"
        )
        return dict(done(self.commands.poll, ticket)[node])

    def check(self, node: str, suite: str = "deep") -> dict[str, Any]:
        answer = self.run("planaria-check", node, {"suite": suite})
        assert answer["status"] == "SUCCESS", answer
        return dict(answer["output"])

    def inject(self, fault: str, node: str) -> str:
        return str(self.api.post("/inject", {"fault": fault, "node": node})["injected"])

    def reboot(self, node: str) -> None:
        boot = self.head.player.nodes()[node].boot_id
        self.emulator.client("ec2").reboot_instances(InstanceIds=[node])
        eventually(lambda: self.head.player.nodes()[node].boot_id != boot, what="a new boot")
        eventually(lambda: node in self.head.state.up, what="it is up again")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory, one_emulator: Emulator) -> Iterator[Sandbox]:
    with Head(config(tmp_path_factory.mktemp("documents"), one_emulator.url, "documents")) as head:
        yield Sandbox(one_emulator, head)


def test_a_good_node_passes_both_checks_and_says_what_was_not_looked_at(sandbox: Sandbox) -> None:
    node = sandbox.boot("good-1")
    assert sandbox.check(node, "light") == {"passed": True, "reason": ""}
    deep = sandbox.check(node)
    assert deep["passed"] is True and "nvlink (nccl-tests are not installed)" in deep["reason"]
    assert "gpus" not in deep["reason"]


def test_a_bad_gpu_passes_the_light_check_and_not_the_deep_one_whatever_is_done(sandbox: Sandbox) -> None:
    node = sandbox.boot("bad-1")
    assert "Xid 48" in sandbox.inject("bad-gpu", "bad-1")
    assert "48" in sandbox.head.player.nodes()[node].place.kernel_log.read_text()
    assert sandbox.run("planaria-reset-gpu", node, {"pci": ""})["status"] == "SUCCESS"
    sandbox.reboot(node)
    assert sandbox.check(node, "light")["passed"] is True
    deep = sandbox.check(node)
    assert deep["passed"] is False and "GPU Memory on GPU 3: memory test" in deep["reason"]


def test_a_stuck_gpu_is_not_reset_and_a_reboot_cures_it(sandbox: Sandbox) -> None:
    node = sandbox.boot("stuck-1")
    assert "Xid 119" in sandbox.inject("stuck-gpu", "stuck-1")
    refused = sandbox.run("planaria-reset-gpu", node, {"pci": "0000:b3:00"})
    assert refused["status"] == "FAILED" and "GPU 0000:b3:00 cannot be reset" in refused["output"]["reason"]
    sandbox.reboot(node)
    assert sandbox.run("planaria-reset-gpu", node, {"pci": "0000:b3:00"})["status"] == "SUCCESS"
    assert sandbox.check(node)["passed"] is True


def test_a_reset_brings_a_lost_gpu_back_unless_it_is_broken(sandbox: Sandbox) -> None:
    node = sandbox.boot("lost-1")
    place = sandbox.head.player.nodes()[node].place
    place.set_gpus(7)
    assert sandbox.run("planaria-reset-gpu", node, {"pci": ""})["status"] == "SUCCESS"
    assert (read_json(place.hardware) or {})["gpus"]["seen"] == 8
    sandbox.inject("broken-gpu", "lost-1")
    refused = sandbox.run("planaria-reset-gpu", node, {"pci": ""})
    assert refused["status"] == "FAILED" and "fallen off the bus" in refused["output"]["reason"]


def test_a_gpu_that_ranks_hold_is_not_reset(sandbox: Sandbox) -> None:
    node = sandbox.boot("busy-1")
    recipe = {"name": "held", "nodes": 1, "training": {"steps": 9}}
    sandbox.api.post("/jobs/submit", {"job_id": "held", "recipe": recipe})
    held = eventually(lambda: sandbox.head.state.jobs["held"].placement, what="it is placed")[0]
    eventually(lambda: sandbox.head.jobs.ranks_on(held), what="it runs")
    refused = sandbox.run("planaria-reset-gpu", held, {"pci": ""})
    assert refused["status"] == "FAILED" and "held rank 0" in refused["output"]["reason"]

    def ended() -> bool:
        sandbox.head.jobs.kill_ranks_on(held)  # again: a rank that is only being started has no process yet
        return not sandbox.head.jobs.ranks_on(held)

    eventually(ended, what="it has ended")
    assert sandbox.run("planaria-reset-gpu", node, {"pci": ""})["status"] == "SUCCESS"


def test_two_deep_checks_of_one_boot_are_one(sandbox: Sandbox) -> None:
    node = sandbox.boot("twice-1")
    tickets = [sandbox.commands.submit("planaria-check", [node], DEEP) for _ in range(2)]
    assert sandbox.head.documents._tickets[tickets[0]] == sandbox.head.documents._tickets[tickets[1]]
    for ticket in tickets:
        eventually(lambda t=ticket: sandbox.commands.poll(t).state is ports.AnswerState.DONE, 60)  # type: ignore[misc]
        assert done(sandbox.commands.poll, ticket)[node]["output"]["passed"] is True


def test_a_check_dies_with_its_node_and_says_nothing_of_it(sandbox: Sandbox) -> None:
    node = sandbox.boot("dies-1")
    group = sandbox.head.player.nodes()[node].leader
    assert group is not None
    ticket = sandbox.commands.submit("planaria-check", [node], DEEP)
    sandbox.inject("kill-node", node)
    eventually(lambda: not processes.members(group), 5, "its processes are gone")
    answer = done(sandbox.commands.poll, ticket)[node]
    assert answer["status"] == "FAILED" and "status -9" in answer["output"]["reason"]
    assert sandbox.run("planaria-check", node, DEEP)["status"] == "FAILED", "it is not running"


def test_a_suite_that_nobody_knows(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="suite must be light or deep"):
        sandbox.commands.submit("planaria-check", [sandbox.boot("suite-1")], {"suite": "soft"})
