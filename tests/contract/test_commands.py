"""The Commands port: one suite for the memory twin and for SSM Run Command over SSM's own wire format; and
what only SSM can answer."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from moto import mock_aws

from infra import ssm_documents
from planaria.aws import ssm
from planaria.aws.ssm import SsmCommands
from planaria.core import documents
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.ports import Answer, AnswerState, Commands
from planaria.memory.clock import MemoryClock
from planaria.memory.commands import MemoryCommands
from tests.contract.ssm_service import Ended, SsmService

ROOT = Path(__file__).resolve().parents[2]
A, B, C = "i-0000000000000000a", "i-0000000000000000b", "i-0000000000000000c"
CHECK, NODE, JOIN = "planaria-check", "planaria-slurm-node", "planaria-slurm-join"
ISOLATE = "planaria-slurm-isolate"
BUCKET = "planaria-bucket"
GOOD = {"passed": True, "reason": ""}


def ssm_contents() -> dict[str, dict[str, Any]]:
    """Every document, as infra makes it for cluster `demo`."""
    table = ssm_documents.read(ROOT)
    return {
        documents.aws_name("demo", name): ssm_documents.content(table, name) for name in table["documents"]
    }


class World(Protocol):
    """Three nodes. play: what a document does on a node: its output, None while it runs, or an Exception."""

    @property
    def commands(self) -> Commands: ...
    def play(self, document: str, does: Callable[[str, Mapping[str, str]], Any]) -> None: ...
    def cut_off(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.commands = MemoryCommands()

    def play(self, document: str, does: Callable[[str, Mapping[str, str]], Any]) -> None:
        self.commands.documents[document] = does

    def cut_off(self) -> None:
        self.commands.reachable = False


class SsmWorld:
    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.service = SsmService(ssm_contents(), self.clock.now)
        self.service.managed = {A, B, C}
        read = self.service.objects.__getitem__
        self.commands = SsmCommands(self.service.client(), "demo", BUCKET, read, self.clock.now)

    def play(self, document: str, does: Callable[[str, Mapping[str, str]], Any]) -> None:
        names = {documents.table_name(n): n for n in ("suite", "pci")}

        def run(node: str, parameters: Mapping[str, str]) -> Ended | None:
            output = does(node, {names.get(name, name): value for name, value in parameters.items()})
            if output is None:
                return None
            if isinstance(output, Exception):
                return Ended("Failed", "", str(output), 1)
            return Ended("Success", json.dumps(output) + "\n")

        self.service.run[documents.aws_name("demo", document)] = run

    def end(self, document: str, how: Ended) -> None:
        self.service.run[documents.aws_name("demo", document)] = lambda node, parameters: how

    def cut_off(self) -> None:
        self.service.unable = dict.fromkeys(
            ("SendCommand", "GetCommandInvocation", "ListCommandInvocations"), "InternalServerError"
        )


@pytest.fixture
def ssm_world() -> SsmWorld:
    return SsmWorld()


@pytest.fixture(params=["memory", "ssm"])
def world(request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if request.param == "memory" else SsmWorld()


# --- the suite -----------------------------------------------------------------------------------------


def test_the_output_comes_by_node(world: World) -> None:
    world.play(CHECK, lambda node, parameters: {"passed": node == A, "reason": parameters["suite"]})
    answer = world.commands.poll(world.commands.submit(CHECK, [A, B], {"suite": "deep"}))
    assert answer == Answer(
        AnswerState.DONE,
        {
            A: {"status": "SUCCESS", "output": {"passed": True, "reason": "deep"}},
            B: {"status": "SUCCESS", "output": {"passed": False, "reason": "deep"}},
        },
    )


def test_pending_until_every_node_is_through(world: World) -> None:
    ends: dict[str, Any] = {A: GOOD}
    world.play(CHECK, lambda node, parameters: ends.get(node))
    ticket = world.commands.submit(CHECK, [A, B], {"suite": "light"})
    assert world.commands.poll(ticket) == Answer(AnswerState.PENDING)
    ends[B] = GOOD
    assert world.commands.poll(ticket).state is AnswerState.DONE
    assert world.commands.poll(ticket) == world.commands.poll(ticket)


def test_a_program_that_ends_badly_has_failed(world: World) -> None:
    world.play(CHECK, lambda node, parameters: RuntimeError("no such device"))
    answer = world.commands.poll(world.commands.submit(CHECK, [A], {"suite": "light"}))
    assert answer.state is AnswerState.DONE
    assert answer.value[A]["status"] == "FAILED"
    assert "no such device" in str(answer.value[A]["output"])


def test_a_document_that_is_not_there_fails(world: World) -> None:
    ticket = world.commands.submit("planaria-no-such-document", [A, B], {"job_id": "7"})
    answer = world.commands.poll(ticket)
    assert answer.state is AnswerState.DONE
    assert {node: entry["status"] for node, entry in answer.value.items()} == {A: "FAILED", B: "FAILED"}


def test_no_nodes_no_answers(world: World) -> None:
    world.play(CHECK, lambda node, parameters: GOOD)
    ticket = world.commands.submit(CHECK, [], {"suite": "light"})
    assert world.commands.poll(ticket) == Answer(AnswerState.DONE)


def test_a_ticket_of_nobody_is_unknown(world: World) -> None:
    for ticket in ("", "command-none", "{}", "[1]"):
        assert world.commands.poll(ticket).state is AnswerState.UNKNOWN


def test_cut_off_is_transient(world: World) -> None:
    world.play(CHECK, lambda node, parameters: GOOD)
    ticket = world.commands.submit(CHECK, [A], {"suite": "light"})
    world.cut_off()
    with pytest.raises(TransientError):
        world.commands.poll(ticket)
    with pytest.raises(TransientError):
        world.commands.submit(CHECK, [A], {"suite": "light"})


# --- SSM's words ---------------------------------------------------------------------------------------

STATES = {
    "Pending": "PENDING",
    "InProgress": "PENDING",
    "In Progress": "PENDING",
    "Delayed": "PENDING",
    "Cancelling": "PENDING",
    "Success": "SUCCESS",
    "Failed": "FAILED",
    "TimedOut": "UNKNOWN",
    "DeliveryTimedOut": "UNKNOWN",
    "Delivery Timed Out": "UNKNOWN",
    "ExecutionTimedOut": "UNKNOWN",
    "Execution Timed Out": "UNKNOWN",
    "Cancelled": "UNKNOWN",
    "Undeliverable": "UNKNOWN",
    "Terminated": "UNKNOWN",
    "InvalidPlatform": "UNKNOWN",
    "AccessDenied": "UNKNOWN",
    "RateExceeded": "UNKNOWN",
    "SomethingNewOfNextYear": "UNKNOWN",
}


@pytest.mark.parametrize(("word", "meaning"), STATES.items())
@pytest.mark.parametrize("others", [[], [B]], ids=["one", "two"])
def test_every_status_by_its_meaning(ssm_world: SsmWorld, word: str, meaning: str, others: list[str]) -> None:
    ssm_world.end(CHECK, Ended(word, json.dumps(GOOD), "it broke", 2))
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A, *others], {"suite": "light"}))
    if meaning in ("PENDING", "UNKNOWN"):
        assert answer.state == meaning
        assert answer.value == {}
        assert bool(answer.reason) == (meaning == "UNKNOWN")
    else:
        assert answer.state is AnswerState.DONE
        assert {entry["status"] for entry in answer.value.values()} == {meaning}


def test_every_known_end_but_two_is_told_of_in_words() -> None:
    ends = {word.replace(" ", "") for word, meaning in STATES.items() if meaning == "UNKNOWN"}
    assert ends - {"RateExceeded", "SomethingNewOfNextYear"} == set(ssm.UNREACHED)


def test_one_node_out_of_reach_does_not_hide_the_others(ssm_world: SsmWorld) -> None:
    ends = {A: Ended("Success", json.dumps(GOOD)), B: Ended("Undeliverable")}
    ssm_world.service.run["planaria-demo-check"] = lambda node, parameters: ends[node]
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A, B], {}))
    assert answer.state is AnswerState.DONE
    assert [answer.value[node]["status"] for node in (A, B)] == ["SUCCESS", "UNKNOWN"]
    assert "cannot be reached" in answer.value[B]["output"]["reason"]


def test_an_instance_that_ssm_does_not_know_spoils_no_other(ssm_world: SsmWorld) -> None:
    ssm_world.play(CHECK, lambda node, parameters: GOOD)
    ssm_world.service.managed = {A, C}
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A, B, C], {}))
    assert [answer.value[node]["status"] for node in (A, B, C)] == ["SUCCESS", "UNKNOWN", "SUCCESS"]
    ssm_world.service.managed = set()
    with pytest.raises(TransientError, match="SSM cannot reach"):
        ssm_world.commands.submit(CHECK, [A, B], {})


def test_right_after_the_send_nothing_is_shown_yet(ssm_world: SsmWorld) -> None:
    ssm_world.play(CHECK, lambda node, parameters: GOOD)
    ssm_world.service.hidden_seconds = 5.0
    one = ssm_world.commands.submit(CHECK, [A], {})
    two = ssm_world.commands.submit(CHECK, [A, B], {})
    assert ssm_world.commands.poll(one).state is AnswerState.PENDING
    assert ssm_world.commands.poll(two).state is AnswerState.PENDING
    ssm_world.clock.advance(5.0)
    assert ssm_world.commands.poll(one).state is AnswerState.DONE
    assert ssm_world.commands.poll(two).state is AnswerState.DONE
    ssm_world.service.hidden_seconds = 1e9
    ssm_world.clock.advance(ssm.APPEARS_SECONDS)
    assert ssm_world.commands.poll(one).state is AnswerState.UNKNOWN
    assert ssm_world.commands.poll(two).state is AnswerState.UNKNOWN


@pytest.mark.parametrize("word", ["Pending", "Delayed"])
def test_what_is_not_delivered_is_not_waited_for_for_ever(ssm_world: SsmWorld, word: str) -> None:
    """SSM itself would wait as long as the document may run, hours for a deep check."""
    ssm_world.end(CHECK, Ended(word))
    ticket = ssm_world.commands.submit(CHECK, [A], {"suite": "deep"})
    ssm_world.clock.advance(ssm.UNDELIVERED_SECONDS - 1)
    assert ssm_world.commands.poll(ticket).state is AnswerState.PENDING
    ssm_world.clock.advance(1)
    assert ssm_world.commands.poll(ticket).state is AnswerState.UNKNOWN


def test_a_command_that_runs_is_waited_for(ssm_world: SsmWorld) -> None:
    ssm_world.end(CHECK, Ended("InProgress"))
    ticket = ssm_world.commands.submit(CHECK, [A], {"suite": "deep"})
    ssm_world.clock.advance(3 * 3600.0)
    assert ssm_world.commands.poll(ticket).state is AnswerState.PENDING


@pytest.mark.parametrize("length", [ssm.CUT_LENGTH - 300, ssm.CUT_LENGTH + 1, 300_000])
def test_a_long_answer_is_read_from_the_bucket(ssm_world: SsmWorld, length: int) -> None:
    text = "x" * length
    ssm_world.end(CHECK, Ended("Success", json.dumps({"text": text})))
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A], {}))
    assert answer.value == {A: {"status": "SUCCESS", "output": {"text": text}}}


def test_a_long_answer_that_is_not_in_the_bucket_is_unknown() -> None:
    world = SsmWorld()

    def gone(key: str) -> bytes:
        raise TransientError(f"NoSuchKey: {key}")

    commands = SsmCommands(world.service.client(), "demo", BUCKET, gone, world.clock.now)
    world.end(CHECK, Ended("Success", json.dumps({"text": "x" * 30_000})))
    answer = commands.poll(commands.submit(CHECK, [A], {}))
    assert answer.state is AnswerState.UNKNOWN
    assert "the answer is cut" in answer.reason


@pytest.mark.parametrize(
    "url",
    [
        "",
        "https://s3.us-east-1.amazonaws.com/other-bucket/commands/a/stdout",
        "https://other-bucket.s3.amazonaws.com/commands/a/stdout",
        f"https://s3.us-east-1.amazonaws.com/{BUCKET}/checkpoints/a",
    ],
)
def test_only_answers_in_our_bucket_are_read(ssm_world: SsmWorld, url: str) -> None:
    with pytest.raises(ValueError, match=r"does not lie in the bucket|is no answer of a command"):
        ssm_world.commands._whole(url)


def test_both_forms_of_an_objects_address_are_read(ssm_world: SsmWorld) -> None:
    ssm_world.service.objects["commands/a b/stdout"] = b"text"
    for home in (f"https://s3.eu-west-1.amazonaws.com/{BUCKET}", f"https://{BUCKET}.s3.amazonaws.com"):
        assert ssm_world.commands._whole(f"{home}/commands/a%20b/stdout") == "text"


@pytest.mark.parametrize("output", ["", "done", '{"passed": tr', '{"passed": true}\n{"passed": false}'])
def test_an_answer_that_is_no_json_is_unknown(ssm_world: SsmWorld, output: str) -> None:
    ssm_world.end(CHECK, Ended("Success", output))
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A], {}))
    assert answer.state is AnswerState.UNKNOWN
    assert "no JSON" in answer.reason


def test_a_failed_program_may_give_its_own_reason(ssm_world: SsmWorld) -> None:
    ssm_world.end(CHECK, Ended("Failed", '{"reason": "in use"}', "noise", 1))
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A], {}))
    assert answer.value[A] == {"status": "FAILED", "output": {"reason": "in use"}}
    ssm_world.end(CHECK, Ended("Failed", "", "sh: 1: /opt/planaria/bin/python: not found", 127))
    answer = ssm_world.commands.poll(ssm_world.commands.submit(CHECK, [A], {}))
    assert answer.value[A]["output"]["reason"] == (
        "the program ended with status 127: sh: 1: /opt/planaria/bin/python: not found"
    )


def test_more_than_fifty_instances_take_several_commands(ssm_world: SsmWorld) -> None:
    nodes = [f"i-{number:017x}" for number in range(120)]
    ssm_world.service.managed = set(nodes)
    ssm_world.play(CHECK, lambda node, parameters: {"node": node})
    ticket = ssm_world.commands.submit(CHECK, [*nodes, nodes[0]], {})
    sent = [given for action, given in ssm_world.service.requests if action == "SendCommand"]
    assert [len(given["InstanceIds"]) for given in sent] == [50, 50, 20]
    answer = ssm_world.commands.poll(ticket)
    assert {node: entry["output"]["node"] for node, entry in answer.value.items()} == {n: n for n in nodes}


def test_what_is_sent(ssm_world: SsmWorld) -> None:
    ssm_world.play(JOIN, lambda node, parameters: {})
    ssm_world.commands.submit(
        JOIN, [A], {"name": "a-1", "node_id": B, "Address": "", "Reason": "planaria:s-1"}
    )
    ((action, given),) = ssm_world.service.requests
    assert action == "SendCommand"
    assert given == {
        "DocumentName": "planaria-demo-slurm-join",
        "InstanceIds": [A],
        "Parameters": {"Name": ["a-1"], "NodeId": [B], "Reason": ["planaria:s-1"]},
        "TimeoutSeconds": 30,
        "OutputS3BucketName": BUCKET,
        "OutputS3KeyPrefix": "commands",
        "MaxConcurrency": "100%",
        "MaxErrors": "100%",
    }


@pytest.mark.parametrize(
    ("document", "parameters", "sentence"),
    [
        (NODE, {"Nodes": "a-1;reboot"}, "planaria-slurm-node: Nodes must match"),
        (NODE, {"Nodes": "a-1\n"}, "planaria-slurm-node: Nodes must match"),
        (ISOLATE, {"Entries": ""}, "planaria-slurm-isolate: Entries must match"),
        (ISOLATE, {}, "planaria-slurm-isolate needs the parameter Entries"),
        (CHECK, {"suite": "thorough"}, "planaria-check: Suite must match"),
        (CHECK, {"sweet": "deep"}, "planaria-check has no parameter 'Sweet'; it has: Suite"),
    ],
)
def test_a_wrong_parameter_is_never_sent(
    ssm_world: SsmWorld, document: str, parameters: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        ssm_world.commands.submit(document, [A], parameters)
    assert ssm_world.service.requests == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("ThrottlingException", TransientError),
        ("InternalServerError", TransientError),
        ("AccessDeniedException", PermanentError),
        ("InvalidDocument", PermanentError),
        ("InvalidParameters", PermanentError),
        ("UnsupportedPlatformType", PermanentError),
    ],
)
def test_refusals_by_meaning(ssm_world: SsmWorld, code: str, error: type[Exception]) -> None:
    ssm_world.service.unable["SendCommand"] = code
    with pytest.raises(error, match=code):
        ssm_world.commands.submit(CHECK, [A], {})


def test_moto_takes_what_is_sent() -> None:
    """A second opinion on the request; moto ends every command at once and runs nothing."""
    with mock_aws():
        client = boto3.client("ssm", region_name="us-east-1")
        commands = SsmCommands(client, "demo", BUCKET, lambda key: b"", MemoryClock().now)
        answer = commands.poll(commands.submit(CHECK, [A], {"suite": "light"}))
        listed = client.list_commands()["Commands"]
    assert answer.state is AnswerState.UNKNOWN
    assert "no JSON" in answer.reason
    assert [(each["DocumentName"], each["InstanceIds"]) for each in listed] == [("planaria-demo-check", [A])]
