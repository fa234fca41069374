"""sandbox up, down, status and inject, as far as they go without an emulator."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.cli import sandbox, target
from planaria.core.errors import InvalidInput, PermanentError
from planaria.sandbox import faults, folder
from planaria.sandbox.demo import FAULTS as DEMO_FAULTS
from planaria.sandbox.demo import recipe
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.kept_logs import LoggedWorld, keep_logs
from planaria.sandbox.world import DEMO_CLUSTER, WorldConfig
from tests.cli.conftest import Bench


def test_status_of_nothing(bench: Bench, tmp_path: Path) -> None:
    answer = bench.run("sandbox", "status")
    assert answer.status == 1
    assert "`planaria sandbox up` starts one" in answer.out
    document = bench.run("sandbox", "status", "--json").json
    assert document["running"] is False


def test_down_of_nothing_is_no_failure(bench: Bench) -> None:
    answer = bench.run("sandbox", "down", "--json")
    assert answer.status == 0
    assert answer.json["ended"] is False


def test_down_leaves_a_folder_alone_that_is_no_sandbox(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert bench.run("sandbox", "down", "--dir", str(tmp_path), "--json").json["ended"] is False
    assert (tmp_path / "thesis.tex").exists()


def test_down_does_not_kill_the_program_that_has_the_pid_now(bench: Bench, tmp_path: Path) -> None:
    place = tmp_path / "sandbox"
    place.mkdir()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (place / "sandbox.json").write_text(json.dumps({"head": {"pid": other.pid}}))
        assert bench.run("sandbox", "down", "--dir", str(place), "--json").json["ended"] is True
        assert not place.exists()
        assert other.poll() is None
    finally:
        other.communicate(b"\n")


def test_up_does_not_take_a_folder_that_holds_something_else(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    answer = bench.run("sandbox", "up", "--dir", str(tmp_path))
    assert answer.status == 2
    assert "is not empty; choose a new folder with --dir" in answer.err
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["thesis.tex"]


@pytest.mark.parametrize(
    "words",
    [("nodes",), ("replay", "--since", "1h"), ("sandbox", "status"), ("sandbox", "down"), ("breaker",)],
)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_name_that_is_not_the_sandboxs_is_refused(
    bench: Bench, tmp_path: Path, words: tuple[str, ...], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignored, the name would show, or even end, another cluster than the one that was named."""
    (tmp_path / "sandbox.json").write_text(json.dumps({"cluster": "mine"}))
    monkeypatch.setenv("PLANARIA_SANDBOX", str(tmp_path))
    more: tuple[str, ...] = ("--cluster", "nosuch")
    if by == "environment":
        monkeypatch.setenv("PLANARIA_CLUSTER", "nosuch")
        more = ()
    answer = bench.run(*words, *more)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == (
        f"planaria: --cluster (or PLANARIA_CLUSTER) says 'nosuch', but the sandbox in {tmp_path} (--dir or "
        "PLANARIA_SANDBOX) is mine; leave one of the two out.\n"
    )
    assert (tmp_path / "sandbox.json").exists()


@pytest.mark.parametrize("more", [(), ("--cluster", "mine")])
def test_a_folder_alone_says_which_sandbox_it_is(
    bench: Bench, tmp_path: Path, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sandbox.json").write_text(json.dumps({"cluster": "mine"}))
    monkeypatch.setenv("PLANARIA_SANDBOX", str(tmp_path))
    answer = bench.run("nodes", *more)
    assert (answer.status, "is dead" in answer.err) == (2, True)


def test_up_with_a_cluster_file(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Made(LoggedWorld):
        def up(self) -> Any:
            made.append(self)
            raise InvalidInput("far enough")

    monkeypatch.setattr("planaria.sandbox.kept_logs.LoggedWorld", Made)
    document = yaml.safe_load(DEMO_CLUSTER.read_text()) | {"name": "mine"}
    document["policy"]["mode"] = "approve"
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(document))
    assert bench.run("sandbox", "up", "--cluster-file", str(file)).status == 2
    (world,) = made
    assert (world.file.name, world.file.policy.mode.value, world.folder.name) == ("mine", "approve", "mine")
    slurm = {"scheduler": "slurm", "slurm": {"head_node": "i-0123456789abcdef0"}}
    file.write_text(yaml.safe_dump(document | slurm))
    answer = bench.run("sandbox", "up", "--cluster-file", str(file))
    assert (answer.status, len(made)) == (2, 1)
    assert "scheduler must be 'process' for a sandbox, not 'slurm'" in answer.err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"sandbox.json": "{}"}, "a dead sandbox lies in"),
        ({"head.config.json": "{}"}, "a dead sandbox lies in"),
        ({"x": ""}, "is not empty"),
    ],
)
def test_what_keeps_a_folder_from_being_taken(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=said):
        folder.check_free(tmp_path)


def test_a_new_and_an_empty_folder_are_free(tmp_path: Path) -> None:
    folder.check_free(tmp_path)
    folder.check_free(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is no folder"):
        folder.check_free(tmp_path / "file")


@pytest.fixture(autouse=True)
def _temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kept logs go where pytest clears up."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("logs")))


class _Broken(LoggedWorld):
    """Fails while it comes up, as a full disk or a broken template makes it."""

    error: BaseException = SandboxError("The disk is full.")

    def _start_emulator(self) -> None:
        (self.folder / "head.log").write_text("the reason")
        (self.folder / "head.config.json").write_text("a secret")
        raise self.error


def test_a_failed_start_leaves_nothing_but_its_logs(tmp_path: Path) -> None:
    world = _Broken(WorldConfig(tmp_path / "sandbox"))
    with pytest.raises(SandboxError) as caught, world.ended_by_failure():
        world.up()
    assert not (tmp_path / "sandbox").exists()
    said, _, kept = str(caught.value).partition("\nThe logs are kept in ")
    assert said == "The disk is full."
    place = Path(kept.rstrip("."))
    assert [path.name for path in place.iterdir()] == ["head.log"]


def test_ctrl_c_leaves_not_even_logs(tmp_path: Path) -> None:
    world = _Broken(WorldConfig(tmp_path / "sandbox"))
    world.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), world.ended_by_failure():
        world.up()
    assert world.kept is None
    assert not (tmp_path / "sandbox").exists()


def test_a_start_beside_a_running_sandbox_leaves_that_one_alone(tmp_path: Path) -> None:
    (tmp_path / "sandbox.json").write_text("{}")
    world = _Broken(WorldConfig(tmp_path))
    with pytest.raises(InvalidInput), world.ended_by_failure():
        world.up()
    assert (tmp_path / "sandbox.json").exists()


def test_kept_logs_hold_no_tokens(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "i-1"
    node.mkdir(parents=True)
    for name in ("kernel.log", "agent.log", "agent-config.json"):
        (node / name).write_text(name)
    (tmp_path / "sandbox.json").write_text("token")
    kept = keep_logs(tmp_path)
    assert sorted(p.name for p in kept.rglob("*") if p.is_file()) == ["agent.log", "kernel.log"]


def test_the_help_lists_every_fault_that_there_is(bench: Bench) -> None:
    assert set(sandbox.FAULTS) == set(faults.FAULTS)
    assert set(DEMO_FAULTS) <= set(faults.FAULTS)
    shown = bench.run("inject", "--help").out
    assert all(name in shown for name in faults.FAULTS)


class _Head:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, document))
        if document.get("node") == "demo-9":
            raise InvalidInput("no node 'demo-9' runs; running are demo-1")
        return {"injected": "done to it."}


@pytest.fixture
def head(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> _Head:
    head = _Head()
    made = target.Target("demo", bench.gateways, lambda service: None, head, Path("/x"))  # type: ignore[arg-type]
    monkeypatch.setattr(target, "_aws", lambda name: made)
    return head


def test_inject(bench: Bench, head: _Head) -> None:
    answer = bench.run("inject", "xid79", "--node", "demo-3")
    assert (answer.status, answer.out) == (0, "done to it.\n")
    assert head.asked == [("/inject", {"fault": "xid79", "node": "demo-3"})]
    words = ("kill-rank", "--job", "gpt-demo", "--rank", "2", "--json")
    assert bench.run("inject", *words).json == {"fault": "kill-rank", "node": None, "injected": "done to it."}
    assert head.asked[-1][1] == {"fault": "kill-rank", "node": "", "job_id": "gpt-demo", "rank": 2}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("xid80", "--node", "demo-3"), "unknown fault 'xid80'; known are xid79"),
        (("xid79",), "say which node with --node"),
        (("xid79", "--node", "demo-9"), "no node 'demo-9' runs"),
    ],
)
def test_inject_refuses_in_one_sentence(bench: Bench, head: _Head, words: tuple[str, ...], said: str) -> None:
    answer = bench.run("inject", *words)
    assert answer.status == 2
    assert said.lower() in answer.err.lower()


def test_the_demos_recipe_is_right_and_can_be_changed() -> None:
    assert recipe()["nodes"] == 4
    assert recipe(sandbox.ENDLESS)["training"]["steps"] == 100_000
    with pytest.raises(InvalidInput):
        recipe({"steps": -1})


def test_a_head_that_does_not_answer_is_a_status_not_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def attached(place: Path) -> None:
        raise PermanentError("the sandbox's head does not answer")

    monkeypatch.setattr("planaria.sandbox.world.attached", attached)
    answer = bench.run("sandbox", "status", "--json", "--dir", os.fspath(tmp_path))
    assert answer.status == 1
    assert answer.json["reason"] == "the sandbox's head does not answer"
