"""The rank server with ranks that sleep: no torch needed."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planaria.core.errors import InvalidInput
from planaria.sandbox.job_folder import JobFolder
from planaria.sandbox.rank_server import ask
from tests.sandbox.ranks import IDLE_SERVER, ROOT, Cluster, alive, cluster, within


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, nodes=2) as ready:
        yield ready


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "jobs" / "job-1")


def test_the_socket_is_private_and_status_lists_the_ranks(running: Cluster, folder: JobFolder) -> None:
    assert stat.S_IMODE(running.socket.stat().st_mode) == 0o600
    pids = running.start(folder, 2, attempt=3)
    status = running.ask(verb="status")
    assert status["pid"] == running.server.pid
    assert [(each["pid"], each["attempt"], each["node_id"]) for each in status["ranks"]] == [
        (pids[0], 3, "i-0"),
        (pids[1], 3, "i-1"),
    ]


def test_a_rank_is_in_its_nodes_group_and_has_nothing_of_the_servers(
    running: Cluster, folder: JobFolder
) -> None:
    (pid,) = running.start(folder, 1)
    assert os.getpgid(pid) == running.nodes[0].pid
    descriptors = Path(f"/proc/{pid}/fd")
    within(5, "descriptors closed", lambda: sorted(os.listdir(descriptors)) == ["0", "1", "2"])
    log = str(folder.rank_log(1, 0))
    assert [str((descriptors / each).readlink()) for each in "012"] == [os.devnull, log, log]
    caught = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("SigCgt"))
    assert int(caught.split()[1], 16) == 0


def test_exit_codes_are_recorded(running: Cluster, tmp_path: Path) -> None:
    short = JobFolder(tmp_path / "jobs" / "short")
    running.start(short, 1)
    assert running.ended(short, 1) == [7]
    long = JobFolder(tmp_path / "jobs" / "long")
    (pid,) = running.start(long, 1)
    os.kill(pid, signal.SIGSEGV)
    assert running.ended(long, 1) == [-signal.SIGSEGV]
    assert running.ask(verb="status")["ranks"] == []


def test_an_exit_that_cannot_be_written_is_written_later(running: Cluster, folder: JobFolder) -> None:
    running.start(folder, 1)
    in_the_way = folder.rank_exit(1, 0)
    in_the_way.mkdir()
    running.ask(verb="stop", job_id="job-1")
    within(2, "rank ended", lambda: running.ask(verb="status")["ranks"] == [])
    in_the_way.rmdir()
    assert running.ended(folder, 1) == [-signal.SIGKILL]


def test_the_end_of_a_node_ends_its_ranks_alone(running: Cluster, folder: JobFolder) -> None:
    pids = running.start(folder, 2)
    running.replace(1)
    within(2, "exit file", folder.rank_exit(1, 1).exists)
    assert not alive(pids[1])
    assert alive(pids[0])
    assert not folder.rank_exit(1, 0).exists()


def test_stop_ends_one_job_or_one_attempt(running: Cluster, tmp_path: Path) -> None:
    first, second = JobFolder(tmp_path / "first"), JobFolder(tmp_path / "second")
    running.start(first, 2)
    (kept,) = running.start(second, 1)
    (newer,) = running.start(second, 1, attempt=2)
    running.ask(verb="stop", job_id="first")
    assert running.ended(first, 2) == [-signal.SIGKILL, -signal.SIGKILL]
    assert running.ask(verb="stop", job_id="second", attempt=1) == {"stopped": [kept]}
    assert running.ended(second, 1) == [-signal.SIGKILL]
    assert alive(newer)


@pytest.mark.parametrize("how", ["stop", "SIGTERM", "SIGINT", "stdin"])
def test_the_server_ends_with_all_ranks_and_without_its_socket(
    running: Cluster, folder: JobFolder, how: str
) -> None:
    pids = running.start(folder, 2)
    os.kill(pids[0], signal.SIGSTOP)
    if how == "stop":
        assert running.ask(verb="stop") == {"stopped": pids}
    elif how == "stdin":
        assert running.server.stdin
        running.server.stdin.close()
    else:
        running.server.send_signal(signal.Signals[how])
    assert running.server.wait(5) == 0
    assert not any(alive(pid) for pid in pids)
    assert running.ended(folder, 2) == [-signal.SIGKILL, -signal.SIGKILL]
    assert not running.socket.exists()
    assert all(alive(node.pid) for node in running.nodes)


def test_ranks_do_not_outlive_a_killed_server(running: Cluster, folder: JobFolder) -> None:
    pids = running.start(folder, 2)
    running.server.kill()
    within(2, "ranks ended", lambda: not any(alive(pid) for pid in pids))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rank": 1}, "rank 1 is not below world_size 1"),
        ({"attempt": 0}, "attempt must be at least 1, got 0"),
        ({"resume_step": None}, "resume_step must be a whole number, got None"),
        ({"dir": "jobs/x"}, "dir must be the absolute path"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"config": {"steps": 0}}, "config: steps must be at least 1, got 0"),
        ({"config": {"model": {"width": 10}}}, "width 10 is no multiple of heads 4"),
        ({"pgid_of": 2**22}, "the process 4194304 of node i-0 is gone"),
        ({"pgid_of": 1}, "pgid_of must be at least 2"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(
    running: Cluster, folder: JobFolder, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        running.ask(verb="fork", **(running.request(folder) | change))
    assert running.ask(verb="status")["ranks"] == []


def test_a_node_that_has_died_gets_no_rank(running: Cluster, folder: JobFolder) -> None:
    node = running.nodes[0]
    os.killpg(node.pid, signal.SIGKILL)
    within(2, "node ended", lambda: not alive(node.pid))
    with pytest.raises(InvalidInput, match=f"the process {node.pid} of node i-0 is dead"):
        running.start(folder, 1)


def test_a_node_of_another_session_is_refused(running: Cluster, folder: JobFolder) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        with pytest.raises(InvalidInput, match="is not in the rank server's session"):
            running.ask(verb="fork", **running.request(folder, pgid_of=stranger.pid))
        stranger.kill()


def test_a_process_that_leads_no_group_is_refused(running: Cluster, folder: JobFolder) -> None:
    with subprocess.Popen(["sleep", "600"]) as member:
        with pytest.raises(InvalidInput, match="leads no process group"):
            running.ask(verb="fork", **running.request(folder, pgid_of=member.pid))
        member.kill()


def test_the_same_rank_runs_once(running: Cluster, folder: JobFolder) -> None:
    running.start(folder, 1)
    with pytest.raises(InvalidInput, match="rank 0 of job-1, attempt 1, runs already"):
        running.start(folder, 1)


def test_nonsense_does_not_disturb_the_server(running: Cluster) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(running.socket))
        connection.sendall(b'{"verb":\n[1]\n\xff\xfe\n{"verb": "dance"}\n{"verb": "status"}\n')
        with connection.makefile("r") as stream:
            answers = [stream.readline() for _ in range(5)]
    assert "one line of JSON" in answers[0]
    assert "a JSON object" in answers[1]
    assert "one line of JSON" in answers[2]
    assert "unknown verb 'dance'" in answers[3]
    assert '"ranks": []' in answers[4]


def test_two_servers_do_not_share_a_socket(running: Cluster) -> None:
    second = subprocess.run(
        [sys.executable, *IDLE_SERVER, "--socket", str(running.socket)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (second.returncode, second.stderr) == (
        2,
        f"rank server: another rank server answers at {running.socket}\n",
    )
    assert running.ask(verb="status")["ranks"] == []


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "ranks.sock"))
    with cluster(tmp_path, nodes=0) as ready:
        assert ready.ask(verb="status")["ranks"] == []


def test_a_path_that_cannot_be_a_socket_is_said(tmp_path: Path) -> None:
    for path, sentence in (
        (tmp_path / ("x" * 120), "is longer than the 107 bytes"),
        (tmp_path / "absent" / "s", "No such file or directory"),
    ):
        ended = subprocess.run(
            [sys.executable, *IDLE_SERVER, "--socket", str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 2
        assert sentence in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_no_server_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "absent.sock", {"verb": "status"})
