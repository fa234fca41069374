"""The head: its HTTP API, its documents and faults, and that it leaves nothing behind."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.core import ports, scheduling
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.sandbox import processes
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.head import Head
from planaria.sandbox.job_folder import JobFolder, write_json
from planaria.sandbox.node_process import child_environment
from planaria.schedulers.process import TOKEN_HEADER, HeadClient, ProcessCommands, ProcessScheduler
from tests.sandbox.heads import config, done, eventually, launch

pytestmark = pytest.mark.needs("emulator")
RECIPE = {"name": "gpt", "nodes": 2, "training": {"steps": 9}}


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, one_emulator: Emulator
) -> Iterator[tuple[Head, list[str]]]:
    """A head with two nodes and the job `gpt` on them, for tests that leave them as they were."""
    with Head(config(tmp_path_factory.mktemp("shared"), one_emulator.url, "api")) as head:
        nodes = [launch(one_emulator, f"demo-{n}", "api") for n in (1, 2)]
        client(head).post("/jobs/submit", {"job_id": "gpt", "recipe": RECIPE})
        eventually((head.jobs.folder("gpt").train_log).exists, what="the job trains")
        yield head, nodes


@pytest.fixture
def head(shared: tuple[Head, list[str]]) -> Head:
    return shared[0]


@pytest.fixture
def nodes(shared: tuple[Head, list[str]]) -> list[str]:
    return shared[1]


def client(head: Head) -> HeadClient:
    return HeadClient(head.url, head.token)


def request(
    head: Head, path: str, body: bytes | None, token: str | None = None
) -> tuple[int, dict[str, Any]]:
    headers = {TOKEN_HEADER: head.token if token is None else token}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(head.url + path, data=body, headers=headers), timeout=5
        ) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize("token", ["", "wrong", "ünlike"])
def test_a_wrong_token_is_refused_whatever_is_asked(head: Head, token: str) -> None:
    token = token.encode().decode("latin-1")
    assert request(head, "/status", None, token)[0] == 403
    assert request(head, "/nothing", b"{}", token)[0] == 403
    with pytest.raises(PermanentError, match="token"):
        ProcessScheduler(head.url, "wrong").submit(scheduling.JobsOn(()))


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/scheduler/submit", b"{", "the body is not JSON"),
        ("/scheduler/submit", b"[]", "the body must be a JSON object"),
        ("/scheduler/submit", b'{"verb": "delete"}', "unknown verb 'delete': use one of"),
        ("/scheduler/submit", b'{"verb": "isolate", "nodes": ["a"]}', "isolate: reason is missing"),
        (
            "/scheduler/submit",
            b'{"verb": "isolate", "nodes": "a", "reason": ""}',
            "isolate: nodes has a wrong value",
        ),
        ("/scheduler/submit", b'{"verb": "jobs_on", "nodes": [], "x": 1}', "jobs_on: unknown field x"),
        (
            "/scheduler/submit",
            b'{"verb": "stop", "jobs": [], "signal": "BARK", "grace_seconds": 1}',
            "is no signal",
        ),
        ("/scheduler/poll", b"{}", "ticket must be a text"),
        ("/commands/submit", b'{"document": "x", "node_ids": 1}', "node_ids must be a list"),
        ("/commands/submit", b'{"document": "rm -rf", "node_ids": []}', "unknown document"),
        ("/commands/submit", b'{"document": "planaria-list-checkpoints", "node_ids": []}', "no job ''"),
        ("/jobs/submit", b'{"job_id": "../x", "recipe": {"name": "x"}}', "is no job id"),
        (
            "/jobs/submit",
            b'{"job_id": "x", "recipe": {"name": "x", "nodes": 0}}',
            "job x: nodes must be at least 1",
        ),
        ("/inject", b'{"fault": "fire", "node": "demo-1"}', "unknown fault 'fire'; known are"),
        (
            "/inject",
            b'{"fault": "xid79", "node": "demo-9"}',
            "no node 'demo-9' runs; running are demo-1, demo-2",
        ),
        ("/inject", b'{"fault": "kernel-line", "node": "demo-1"}', "needs the text"),
        ("/inject", b'{"fault": "kill-rank", "node": "demo-1", "rank": 9}', "no such rank runs on demo-1"),
    ],
)
def test_bad_input_gets_one_sentence(head: Head, path: str, body: bytes, sentence: str) -> None:
    status, answer = request(head, path, body)
    assert status == 400
    assert sentence in answer["error"]
    assert "\n" not in answer["error"]


def test_an_unknown_path_a_long_body_and_a_defect(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    assert request(head, "/nothing", None)[0] == 404
    assert request(head, "/status", b"{}")[0] == 404, "GET only"
    with socket.create_connection(("127.0.0.1", int(head.url.rpartition(":")[2]))) as raw:
        lines = ("POST /inject HTTP/1.0", f"{TOKEN_HEADER}: {head.token}", "Content-Length: 99999999", "", "")
        raw.sendall("\r\n".join(lines).encode())
        assert b" 400 " in raw.recv(4096)
    monkeypatch.setattr(head.state, "answer", lambda *_: 1 / 0)
    with pytest.raises(TransientError, match="500"):
        ProcessScheduler(head.url, head.token).submit(scheduling.JobsOn(()))


def test_the_api_listens_on_the_loopback_address_alone(head: Head) -> None:
    assert head.url.startswith("http://127.0.0.1:")


def test_nobody_there_and_a_mute_server_are_transient() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(TransientError, match="does not answer"):
            ProcessScheduler(f"http://127.0.0.1:{port}", "t", timeout=0.2).poll("x")
        assert time.monotonic() - started < 2
    with pytest.raises(TransientError, match="does not answer"):
        ProcessCommands(f"http://127.0.0.1:{port}", "t").poll("x")


def test_the_status_shows_nodes_and_jobs(head: Head, nodes: list[str]) -> None:
    status = client(head).get("/status")
    assert status["scheduler"]["demo-1"]["state"] == "ALLOCATED"
    assert status["jobs"]["gpt"]["live_ranks"] == [0, 1]
    assert status["nodes"][nodes[0]]["stage"] == "up"
    assert status["instances"] == dict.fromkeys(nodes, "running")
    assert status["rank_server"]["ready"]


def test_many_callers_at_once(head: Head, nodes: list[str]) -> None:
    scheduler = ProcessScheduler(head.url, head.token, timeout=10)
    answers: list[Any] = []

    def call() -> None:
        answers.extend(scheduler.poll(scheduler.submit(scheduling.NodeQuery(("demo-1",)))) for _ in range(10))

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    assert {a.value["demo-1"]["node_id"] for a in answers} == {nodes[0]}


# --- documents -------------------------------------------------------------------------------------


def test_the_check_passes_on_a_good_node_and_fails_on_a_broken_one(head: Head, nodes: list[str]) -> None:
    commands = ProcessCommands(head.url, head.token)

    def check() -> dict[str, Any]:
        return done(commands.poll, commands.submit("planaria-check", [*nodes, "i-gone"], {"suite": "light"}))

    good = {"status": "SUCCESS", "output": {"passed": True, "reason": ""}}
    gone = {"status": "FAILED", "output": {"reason": "i-gone is not running"}}
    assert check() == {nodes[0]: good, nodes[1]: good, "i-gone": gone}
    place = head.player.nodes()[nodes[1]].place
    place.set_gpus(7)
    try:
        assert check()[nodes[1]]["output"] == {"passed": False, "reason": "1 of 8 GPUs are missing"}
    finally:
        place.set_gpus(8)


def test_a_checkpoint_is_asked_for_and_waited_for(head: Head, nodes: list[str]) -> None:
    commands, folder = ProcessCommands(head.url, head.token), head.jobs.folder("gpt")
    ticket = commands.submit("planaria-checkpoint-now", nodes[:1], {"job_id": "gpt"})
    wish = json.loads(folder.request.read_text())["id"]
    second = commands.submit("planaria-checkpoint-now", nodes[1:], {"job_id": "gpt"})
    assert json.loads(folder.request.read_text())["id"] == wish, "an unserved wish is joined, not replaced"
    assert commands.poll(ticket).state is ports.AnswerState.PENDING
    write_json(folder.served, {"id": wish, "step": 17, "at": time.time()})
    saved = {"status": "SUCCESS", "output": {"step": 17}}
    assert done(commands.poll, ticket) == {nodes[0]: saved}
    assert done(commands.poll, second) == {nodes[1]: saved}
    late = commands.submit("planaria-checkpoint-now", nodes[:1], {"job_id": "gpt", "deadline": "1.5"})
    assert done(commands.poll, late)[nodes[0]] == {
        "status": "FAILED",
        "output": {"reason": "the deadline has passed"},
    }
    with pytest.raises(InvalidInput, match="deadline must be in epoch seconds"):
        commands.submit("planaria-checkpoint-now", nodes, {"job_id": "gpt", "deadline": "soon"})


def test_checkpoints_are_listed(head: Head, nodes: list[str]) -> None:
    commands = ProcessCommands(head.url, head.token)
    (head.jobs.folder("gpt").checkpoints / "step-20.tmp").mkdir(parents=True)
    answer = done(commands.poll, commands.submit("planaria-list-checkpoints", nodes[:1], {"job_id": "gpt"}))
    steps = answer[nodes[0]]["output"]["steps"]
    assert [(each["step"], each["state"]) for each in steps] == [(20, "partial")]


def test_an_unknown_command_ticket_is_unknown(head: Head) -> None:
    assert ProcessCommands(head.url, head.token).poll("x").state is ports.AnswerState.UNKNOWN


# --- a head of one's own ---------------------------------------------------------------------------


def test_a_restarted_head_continues(tmp_path: Path, one_emulator: Emulator, cluster: str) -> None:
    settings = config(tmp_path, one_emulator.url, cluster)
    with Head(settings) as first:
        launch(one_emulator, "demo-1", cluster)
        eventually(lambda: first.state.up)
        client(first).post("/jobs/submit", {"job_id": "gpt", "recipe": {**RECIPE, "nodes": 1}})
        eventually(first.jobs.folder("gpt").train_log.exists)
        scheduler = ProcessScheduler(first.url, first.token)
        ticket = scheduler.submit(scheduling.Isolate(("demo-1",), "planaria s-1"))
    with Head(settings) as second:
        scheduler = ProcessScheduler(second.url, second.token)
        assert scheduler.poll(ticket).state is ports.AnswerState.UNKNOWN
        eventually(lambda: second.state.up, what="the node boots again")
        job = second.state.jobs["gpt"]
        eventually(lambda: job.state == "FAILED", what="its ranks are dead")
        answer = done(scheduler.poll, scheduler.submit(scheduling.NodeQuery(("demo-1",))))
        assert (answer["demo-1"]["state"], answer["demo-1"]["reason"]) == ("DRAINED", "planaria s-1")
        done(scheduler.poll, scheduler.submit(scheduling.Readmit(("demo-1",), "planaria s-1")))
        requeue = scheduling.Requeue("gpt", ("demo-1",), 2, -1)
        assert done(scheduler.poll, scheduler.submit(requeue)) == {"gpt": "RUNNING"}
        assert eventually(lambda: client(second).get("/status")["jobs"]["gpt"]["live_ranks"]) == [0]


def test_two_heads_cannot_share_a_folder_or_a_port(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    url = one_emulator.url
    with Head(config(tmp_path / "one", url, cluster)) as first:
        with pytest.raises(SandboxError, match=r"runs from .* already"):
            Head(config(tmp_path / "one", url, cluster)).__enter__()
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(SandboxError, match=f"Port {port} cannot be used"):
            Head(config(tmp_path / "two", url, cluster, port=port))
        assert client(first).get("/status")["cluster"] == cluster


def test_a_folder_whose_name_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="choose a shorter one with --dir"):
        Head(config(tmp_path / ("x" * 100), "http://127.0.0.1:1"))


def test_a_rank_server_that_dies_is_started_again_and_its_ranks_count_as_failed(
    tmp_path: Path, one_emulator: Emulator, cluster: str
) -> None:
    with Head(config(tmp_path, one_emulator.url, cluster)) as head:
        launch(one_emulator, "demo-1", cluster)
        client(head).post("/jobs/submit", {"job_id": "gpt", "recipe": {**RECIPE, "nodes": 1}})
        eventually(head.jobs.folder("gpt").train_log.exists)
        old = head.jobs.ranks.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        eventually(lambda: head.state.jobs["gpt"].state == "FAILED")
        scheduler = ProcessScheduler(head.url, head.token)
        scheduler.submit(scheduling.Requeue("gpt", ("demo-1",), 2, -1))
        eventually(lambda: '"attempt": 2' in head.jobs.folder("gpt").train_log.read_text())


def start_head(
    folder: Path, emulator: Emulator, cluster: str
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """A head in a process of its own, with two nodes that run a job. -> it and its status."""
    path = folder / "head-config.json"
    path.write_text(json.dumps(dataclasses.asdict(config(folder / "sandbox", emulator.url, cluster))))
    head = subprocess.Popen(
        [sys.executable, "-m", "planaria.sandbox.head", "--config", str(path)],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert head.stdout is not None
    assert json.loads(head.stdout.readline())["ready"]
    for name in ("demo-1", "demo-2"):
        launch(emulator, name, cluster)
    made = json.loads((folder / "sandbox" / "head.json").read_text())
    api = HeadClient(made["url"], made["token"])
    api.post("/jobs/submit", {"job_id": "gpt", "recipe": RECIPE})
    status = eventually(lambda: (s := api.get("/status"))["jobs"]["gpt"]["live_ranks"] == [0, 1] and s)
    eventually((folder / "sandbox" / "jobs" / "gpt" / "train.jsonl").exists)
    return head, status


def children(folder: Path) -> list[int]:
    """Every process whose command line names this folder."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and processes.started_at(int(entry)) is not None:
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command and b"emulator_process" not in command:
                found.append(int(entry))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, 0])
def test_nothing_lives_on_when_the_head_ends(
    tmp_path: Path, one_emulator: Emulator, cluster: str, number: int
) -> None:
    head, status = start_head(tmp_path, one_emulator, cluster)
    folder = tmp_path / "sandbox"
    groups = [node["pid"] for node in status["nodes"].values()]
    assert sum(len(processes.members(group)) for group in groups) == 4, "two agents and two ranks"
    before = set(os.listdir("/tmp"))
    if number:
        head.send_signal(number)
    assert head.stdin is not None
    head.stdin.close()
    code = head.wait(10)
    assert head.stdout is not None
    head.stdout.close()
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    eventually(lambda: not any(processes.members(group) for group in groups), 5, "the nodes are gone")
    eventually(lambda: not children(folder), 5, "no process is left")
    assert set(os.listdir("/tmp")) <= before
    if number != signal.SIGKILL:
        assert not (folder / "head.json").exists()
        assert not (folder / "ranks.sock").exists()
    assert JobFolder(folder / "jobs" / "gpt").rank_exit(1, 0).exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "cannot be used"), ('{"folder": "/x"}', "cannot be used"), ('{"colour": 1}', "known are folder")],
)
def test_a_broken_configuration_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "head.json"
    path.write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "planaria.sandbox.head", "--config", str(path)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert sentence in run.stderr
    assert run.stderr.count("\n") == 1


def test_files_of_another_version_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('{"demo-1": {"colour": "red"}}')
    with pytest.raises(InvalidInput, match="files of another version"):
        Head(config(tmp_path, "http://127.0.0.1:1")).__enter__()
    assert children(tmp_path) == []
