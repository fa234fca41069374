"""Documents as local processes: what a program prints is the answer, and what goes wrong is said."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.core import documents
from planaria.core.documents import Document, Parameter
from planaria.core.errors import InvalidInput
from planaria.core.ports import AnswerState
from planaria.sandbox.local_commands import AT_ONCE, LocalCommands
from tests.sandbox.heads import done

NAME = "planaria-test"
HEAD = "i-0head"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The text of this file is what the document runs; it has two seconds."""
    monkeypatch.setattr(
        documents,
        "find",
        lambda name: (
            Document(
                NAME,
                "A test's.",
                "head",
                "python",
                "program_of_a_test",
                "say",
                2,
                {"Text": Parameter("Text", "--text", "^[a-z;$ ]{0,20}$")},
            )
            if name == NAME
            else None
        ),
    )
    return tmp_path / "program_of_a_test.py"


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[LocalCommands]:
    running = LocalCommands({**os.environ, "PYTHONPATH": str(tmp_path), "MARK": "here"})
    yield running
    running.close()


def run(commands: LocalCommands, text: str = "") -> dict[str, object]:
    answer = done(commands.poll, commands.submit(NAME, [HEAD], {"Text": text}), 20.0)
    assert set(answer) == {HEAD}
    return dict(answer[HEAD])


def test_what_the_program_prints_is_the_output(program: Path, commands: LocalCommands) -> None:
    program.write_text(
        "import json, os, sys, planaria\n"
        "print(json.dumps({'version': 1, 'value': [sys.argv[1:], os.environ['MARK']]}))"
    )
    found = run(commands, "a; $b")
    assert found == {
        "status": "SUCCESS",
        "output": {"version": 1, "value": [["say", "--text=a; $b"], "here"]},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit('it broke')", "ended with status 1: it broke"),
        ("print('hello')", "did not answer with JSON: 'hello'"),
        ("print('[' + '1,' * 20000 + '1]')", "did not answer with JSON"),
        ("import time; time.sleep(60)", "took longer than 2 s"),
    ],
)
def test_what_goes_wrong_is_failed_with_a_reason(
    program: Path, commands: LocalCommands, text: str, said: str
) -> None:
    program.write_text(text)
    found = run(commands)
    assert found["status"] == "FAILED"
    assert said in str(found["output"])


def test_a_document_that_nobody_has_fails_and_wrong_parameters_are_refused(
    program: Path, commands: LocalCommands
) -> None:
    answer = done(commands.poll, commands.submit("planaria-nothing", [HEAD], {}))
    assert answer[HEAD] == {"status": "FAILED", "output": {"reason": "there is no document planaria-nothing"}}
    with pytest.raises(InvalidInput, match="Text must match"):
        commands.submit(NAME, [HEAD], {"Text": "`id`"})
    assert commands.poll("local-nobody").state is AnswerState.UNKNOWN


def test_as_many_run_at_once_as_with_ssms_agent(
    program: Path, commands: LocalCommands, tmp_path: Path
) -> None:
    program.write_text(
        "import os, time; from pathlib import Path\n"
        f"Path({str(tmp_path)!r}, f'{{os.getpid()}}.ran').touch(); time.sleep(0.8); print('1')"
    )
    tickets = [commands.submit(NAME, [HEAD], {"Text": ""}) for _ in range(AT_ONCE + 2)]
    began = time.monotonic()
    while len(list(tmp_path.glob("*.ran"))) < AT_ONCE and time.monotonic() < began + 10:
        time.sleep(0.02)
    assert commands.poll(tickets[-1]).state is AnswerState.PENDING
    for ticket in tickets:
        assert done(commands.poll, ticket, 20.0)[HEAD]["output"] == 1
    assert len(list(tmp_path.glob("*.ran"))) == AT_ONCE + 2
