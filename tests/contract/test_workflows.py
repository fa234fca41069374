"""One suite for the Workflows port, on the memory twin and on Step Functions of the emulator."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from planaria.aws.stepfunctions import StepFunctions
from planaria.core.errors import PermanentError, PlanariaError, TransientError
from planaria.core.ports import Execution, Workflows
from planaria.memory.workflows import MemoryWorkflows

DOCUMENT = {"node_id": "i-0123456789abcdef0", "session": 5}
WAITS = {
    "StartAt": "W",
    "QueryLanguage": "JSONata",
    "States": {"W": {"Type": "Wait", "Seconds": 60, "End": True}},
}


class World:
    """workflows; end: the execution comes to its own end, in this state."""

    def __init__(self, workflows: Workflows, end: Callable[[str, Execution], None], unknown: str) -> None:
        self.workflows, self.end, self.unknown = workflows, end, unknown


@pytest.fixture(scope="module")
def stepfunctions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("ministack", reason="the emulator is not installed")
    from planaria.sandbox import emulator

    with emulator.start(tmp_path_factory.mktemp("workflows") / "emulator") as running:
        yield running.client("stepfunctions")


@pytest.fixture(params=["memory", "emulator"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        twin = MemoryWorkflows()
        arn = "arn:aws:states:us-east-1:111122223333:execution:heal_node:never"
        return World(twin, lambda arn, state: twin.executions.update({arn: state}), arn)
    client = request.getfixturevalue("stepfunctions")
    name = f"heal-{time.monotonic_ns()}"
    machine = client.create_state_machine(
        name=name, definition=json.dumps(WAITS), roleArn="arn:aws:iam::000000000000:role/x"
    )["stateMachineArn"]

    def end(arn: str, state: Execution) -> None:
        client.stop_execution(executionArn=arn)

    workflows = StepFunctions(client, {"heal_node": machine})
    return World(workflows, end, f"{machine.replace(':stateMachine:', ':execution:')}:never")


def test_started_twice_is_one_execution(world: World) -> None:
    first = world.workflows.start("heal_node", "heal-1", DOCUMENT)
    again = world.workflows.start("heal_node", "heal-1", dict(reversed(list(DOCUMENT.items()))))
    assert first == again == (first[0], Execution.RUNNING)
    assert first[0].endswith(":heal-1") and ":execution:" in first[0]
    assert world.workflows.state(first[0]) is Execution.RUNNING


def test_another_name_is_another_execution(world: World) -> None:
    first, second = (world.workflows.start("heal_node", name, DOCUMENT)[0] for name in ("a-1", "a-2"))
    assert first != second


def test_an_ended_execution_under_that_name_says_how_it_ended(world: World) -> None:
    arn, _ = world.workflows.start("heal_node", "heal-2", DOCUMENT)
    world.end(arn, Execution.ABORTED)
    assert world.workflows.start("heal_node", "heal-2", DOCUMENT) == (arn, Execution.ABORTED)
    assert world.workflows.state(arn) is Execution.ABORTED


def test_an_unknown_execution_is_none(world: World) -> None:
    assert world.workflows.state(world.unknown) is Execution.NONE


def test_stop_is_a_set_and_quiet_about_what_is_not_there(world: World) -> None:
    arn, _ = world.workflows.start("heal_node", "heal-3", DOCUMENT)
    for _ in range(2):
        world.workflows.stop(arn, "superseded " * 40)
    world.workflows.stop(world.unknown, "why")
    assert world.workflows.state(arn) is Execution.ABORTED


def test_nobody_waits_for_an_unknown_token(world: World) -> None:
    assert world.workflows.answer("no-such-token", {"result": "DONE"}) is False


# --- what the emulator does not say ------------------------------------------------------------------

MACHINE = "arn:aws:states:us-east-1:111122223333:stateMachine:planaria-demo-heal_node"
ARN = MACHINE.replace(":stateMachine:", ":execution:") + ":heal-1"


@pytest.fixture
def stubbed() -> Iterator[tuple[StepFunctions, Stubber]]:
    client = boto3.client(
        "stepfunctions", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    with Stubber(client) as stub:
        yield StepFunctions(client, {"heal_node": MACHINE}), stub


def described(status: str) -> dict[str, Any]:
    return {"executionArn": ARN, "stateMachineArn": MACHINE, "status": status, "startDate": 0}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("RUNNING", Execution.RUNNING),
        ("SUCCEEDED", Execution.SUCCEEDED),
        ("FAILED", Execution.FAILED),
        ("TIMED_OUT", Execution.TIMED_OUT),
        ("ABORTED", Execution.ABORTED),
        ("PENDING_REDRIVE", Execution.RUNNING),
    ],
)
def test_a_name_that_is_taken_is_described(stubbed: Any, status: str, state: Execution) -> None:
    workflows, stub = stubbed
    stub.add_client_error("start_execution", "ExecutionAlreadyExists")
    stub.add_response("describe_execution", described(status), {"executionArn": ARN})
    assert workflows.start("heal_node", "heal-1", DOCUMENT) == (ARN, state)


def test_the_input_is_the_same_text_whatever_the_order_of_its_fields(stubbed: Any) -> None:
    workflows, stub = stubbed
    text = '{"node_id": "i-0123456789abcdef0", "session": 5}'
    wanted = {"stateMachineArn": MACHINE, "name": "heal-1", "input": text}
    for document in (DOCUMENT, dict(reversed(list(DOCUMENT.items())))):
        stub.add_response("start_execution", {"executionArn": ARN, "startDate": 0}, wanted)
        assert workflows.start("heal_node", "heal-1", document) == (ARN, Execution.RUNNING)


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_an_answer_that_comes_too_late_is_no_error(stubbed: Any, code: str) -> None:
    workflows, stub = stubbed
    stub.add_client_error("send_task_success", code)
    assert workflows.answer("t", {"result": "DONE"}) is False


@pytest.mark.parametrize(
    ("code", "error"), [("ThrottlingException", TransientError), ("AccessDeniedException", PermanentError)]
)
def test_other_errors_are_ours(stubbed: Any, code: str, error: type[PlanariaError]) -> None:
    workflows, stub = stubbed
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("start_execution", lambda: workflows.start("heal_node", "heal-1", DOCUMENT)),
        ("describe_execution", lambda: workflows.state(ARN)),
        ("stop_execution", lambda: workflows.stop(ARN, "why")),
        ("send_task_success", lambda: workflows.answer("t", {})),
    ]
    for operation, call in calls:
        stub.add_client_error(operation, code)
        with pytest.raises(error):
            call()
