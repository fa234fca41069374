"""Every failure is one sentence on stderr that names the way out; never a traceback."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore import exceptions as aws

from planaria.aws.errors import translated
from planaria.cli.failures import sentence
from planaria.core.errors import InvalidInput, PermanentError, PlanariaError, TransientError
from planaria.core.table import Conflict
from planaria.sandbox.errors import SandboxError
from tests.cli.conftest import Bench

Failing = Callable[[BaseException], tuple[int, str, str]]


def _client_error(code: str) -> aws.ClientError:
    return aws.ClientError({"Error": {"Code": code, "Message": "who are you"}}, "GetItem")


@pytest.mark.parametrize(
    ("error", "status", "part"),
    [
        (InvalidInput("the file x is wrong"), 2, "The file x is wrong."),
        (PermanentError("i-0abc is gone."), 1, "i-0abc is gone."),
        (TransientError("node_id is late"), 1, "node_id is late."),
        (
            SandboxError("app.py failed; its last lines:\n  a\n  b"),
            1,
            "app.py failed; its last lines:\n  a\n  b",
        ),
        (Conflict(None), 1, "run the same command again"),
        (OSError(28, "No space left on device"), 1, "No space left on device."),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1, "/x: No such file or directory."),
        (aws.NoCredentialsError(), 1, "planaria sandbox up"),
        (aws.ProfileNotFound(profile="x"), 1, "AWS_PROFILE"),
        (aws.NoRegionError(), 1, "AWS_REGION"),
        (aws.EndpointConnectionError(endpoint_url="http://x"), 1, "AWS_ENDPOINT_URL"),
        (_client_error("ExpiredToken"), 1, "log in again"),
        (_client_error("AccessDeniedException"), 1, "These credentials may not do that: Who are you."),
        (_client_error("ResourceNotFoundException"), 1, "`make deploy` deploys it"),
        (_client_error("Strange"), 1, "AWS refuses GetItem: Strange"),
    ],
)
def test_sentences(error: Exception, status: int, part: str) -> None:
    found = sentence(error)
    assert found is not None
    assert found[1] == status
    assert part in found[0]


def test_what_an_adapter_has_translated_still_names_the_way_out() -> None:
    with pytest.raises(PlanariaError) as caught, translated():
        raise aws.NoCredentialsError
    found = sentence(caught.value)
    assert found is not None
    assert "aws sso login" in found[0]


@pytest.fixture
def failing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Failing:
    def fail(error: BaseException) -> tuple[int, str, str]:
        def listing(kind: str) -> list[object]:
            raise error

        monkeypatch.setattr(bench.gateways.table, "listing", listing)
        answer = bench.run("jobs", "--json")
        return answer.status, answer.out, answer.err

    return fail


def test_a_failure_in_a_command(failing: Failing) -> None:
    assert failing(PermanentError("no")) == (1, "", "planaria: No.\n")


def test_ctrl_c(failing: Failing) -> None:
    assert failing(KeyboardInterrupt()) == (130, "", "Stopped.\n")


_INTERRUPTED = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
import planaria.cli
assert "typer" not in sys.modules and "rich" not in sys.modules
if {run}:
    import runpy
    sys.argv = ["planaria", "nodes"]
    runpy.run_module("planaria.cli", run_name="__main__")
sys.exit(planaria.cli.main(["nodes"]))
"""


@pytest.mark.parametrize("module", ["typer", "rich", "botocore", "boto3"])
@pytest.mark.parametrize("run", [False, True])
def test_ctrl_c_while_it_starts(module: str, run: bool, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED.format(module=module, run=run)],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


def test_a_defect_says_so_without_a_traceback(failing: Failing) -> None:
    assert failing(ZeroDivisionError("oops")) == (
        1,
        "",
        "planaria: This is a defect of Planaria (ZeroDivisionError: oops); PLANARIA_DEBUG=1 shows where.\n",
    )


def test_debug_shows_where(failing: Failing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANARIA_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError("oops"))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("nodes", "--jsn"), "No such option: --jsn"),
        (("incident",), "Missing argument 'ID'"),
        (("incidents", "--limit", "0"), "--limit"),
        (("sandbox", "up", "--time-scale", "7"), "--time-scale"),
    ],
)
def test_a_wrong_word_is_one_line_that_points_to_help(
    bench: Bench, words: tuple[str, ...], part: str
) -> None:
    answer = bench.run(*words)
    assert (answer.status, answer.out) == (2, "")
    assert part in answer.err
    assert "--help` shows how it is used.\n" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--help",), ("sandbox",), ("sandbox", "--help")])
def test_help_is_no_failure(bench: Bench, words: tuple[str, ...]) -> None:
    answer = bench.run(*words)
    assert answer.status == 0
    assert "Usage" in answer.out


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "nodes",
        "incidents",
        "incident",
        "jobs",
        "replace",
        "reboot",
        "remove",
        "triage",
        "redrive",
        "inject",
        "sandbox up",
        "sandbox down",
        "sandbox status",
    ],
)
def test_the_help_of_every_command_teaches_with_an_example_and_json_is_everywhere(
    bench: Bench, command: str
) -> None:
    answer = bench.run(*command.split(), "--help")
    assert answer.status == 0
    assert f"planaria {command}" in answer.out.split("Usage:")[1].replace("\n", " ")
    assert "Example: planaria" in answer.out
    assert "--json" in answer.out


def test_version(bench: Bench) -> None:
    assert bench.run("--version").out.startswith("planaria 0.")


def test_a_reader_that_leaves_early_sees_no_traceback() -> None:
    code = "import sys; from planaria.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()
