"""The emulator starts, stops without a trace, dies with its starter and says plainly what is wrong."""

import importlib.util
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planaria.sandbox import emulator as emulators
from planaria.sandbox import ports, processes
from planaria.sandbox.emulator import Emulator
from planaria.sandbox.errors import SandboxError

pytestmark = pytest.mark.needs("emulator")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An emulator's folder. Whatever still runs from it at the end is stopped."""
    yield tmp_path / "emulator"
    if left := emulators.attach(tmp_path / "emulator"):
        left.stop(grace=0)


def _until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def _function(emulator: Emulator, name: str, code: str) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("main.py", textwrap.dedent(code))
    emulator.client("lambda").create_function(
        FunctionName=name,
        Runtime="python3.11",
        Role="arn:aws:iam::000000000000:role/any",
        Handler="main.handler",
        Code={"ZipFile": archive.getvalue()},
    )


def test_serves_on_loopback_and_leaves_only_its_log(folder: Path) -> None:
    with emulators.start(folder) as emulator:
        emulator.client("sqs").create_queue(QueueName="q")
        assert emulator.url == f"http://127.0.0.1:{emulator.port}"
        assert emulator.alive()
        assert not ports.is_free(emulator.port)
    assert not emulator.alive()
    assert ports.is_free(emulator.port)
    assert [path.name for path in folder.iterdir()] == ["emulator.log"]
    emulator.stop()


def test_stop_ends_lambda_workers_at_once(folder: Path) -> None:
    with emulators.start(folder) as emulator:
        _function(emulator, "pid", "import os\ndef handler(event, context): return os.getpid()")
        worker = int(emulator.client("lambda").invoke(FunctionName="pid")["Payload"].read())
        assert worker in processes.members(emulator.pid)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    assert processes.started_at(worker) is None
    assert processes.members(emulator.pid) == []


def test_lambdas_see_nothing_of_the_callers_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with emulators.start(folder) as emulator:
        _function(emulator, "env", "import os\ndef handler(event, context): return dict(os.environ)")
        seen = emulator.client("lambda").invoke(FunctionName="env")["Payload"].read().decode()
    assert "production" not in seen
    assert "proxy.invalid" not in seen
    assert "nowhere" not in seen
    assert emulator.url in seen


def test_enforces_iam_when_asked(folder: Path) -> None:
    code = """
        import boto3
        def handler(event, context):
            boto3.client("sqs").list_queues()
    """
    with emulators.start(folder, auth=True) as emulator:
        emulator.client("sqs").create_queue(QueueName="root-may")
        emulator.client("iam").create_role(RoleName="any", AssumeRolePolicyDocument="{}")
        _function(emulator, "denied", code)
        answer = emulator.client("lambda").invoke(FunctionName="denied")
        assert b"AccessDenied" in answer["Payload"].read()


def test_a_killed_starter_leaves_no_emulator(folder: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        from planaria.sandbox import emulator
        print(emulator.start(Path({str(folder)!r})).pid, flush=True)
        time.sleep(60)
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    group = int(starter.stdout.readline())
    assert processes.members(group)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    _until(lambda: not processes.members(group))


def test_outlives_its_starter_only_when_asked_and_is_found_again(folder: Path) -> None:
    script = f"""
        from pathlib import Path
        from planaria.sandbox import emulator
        emulator.start(Path({str(folder)!r}), outlive=True)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    found = emulators.attach(folder)
    assert found is not None
    assert found.client("sts").get_caller_identity()["Account"] == emulators.ACCOUNT
    with pytest.raises(SandboxError, match=r"runs from .* already .*sandbox down"):
        emulators.start(folder)
    found.stop()
    assert emulators.attach(folder) is None
    assert processes.members(found.pid) == []


def test_a_stale_record_is_no_emulator(folder: Path) -> None:
    folder.mkdir()
    (folder / "emulator.json").write_text(f'{{"pid": {os.getpid()}, "port": 1, "started": 1}}')
    assert emulators.attach(folder) is None
    (folder / "emulator.json").write_text("{")
    assert emulators.attach(folder) is None


def test_a_port_in_use_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SandboxError, match=f"Port {port} is in use .*--port"):
            emulators.start(folder, port)


def test_a_port_taken_between_choice_and_start_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(ports, "is_free", lambda _: True)
        with pytest.raises(SandboxError, match=f"Port {port} was taken"):
            emulators.start(folder, port)
    assert emulators.attach(folder) is None


@pytest.mark.parametrize("port", [-1, 80, 70000])
def test_no_port_number(port: int) -> None:
    with pytest.raises(SandboxError, match="not a port"):
        ports.choose(port)


def test_a_full_disk_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 * 2**20))
    with pytest.raises(SandboxError, match="has 5 MB free and the sandbox needs 300 MB"):
        emulators.start(folder)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match=r"Cannot write to .*--dir"):
        emulators.start(tmp_path / "file" / "emulator")


def test_a_missing_emulator_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SandboxError, match="not installed"):
        emulators.start(folder)


def test_a_time_scale_of_zero_is_refused(folder: Path) -> None:
    with pytest.raises(SandboxError, match="hot loop"):
        emulators.start(folder, time_scale=0)


def test_an_emulator_that_dies_shows_its_last_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        emulators, "_variables", lambda *_: {"GATEWAY_PORT": "no number", "PATH": os.environ["PATH"]}
    )
    with pytest.raises(SandboxError, match=r"ended while it started(.|\n)*no number"):
        emulators.start(folder)
    assert emulators.attach(folder) is None


def test_end_group_kills_what_ignores_sigterm() -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    stubborn = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    processes.end_group(stubborn.pid, grace=0.2)
    assert stubborn.wait() == -signal.SIGKILL
    stubborn.stdout.close()
    processes.end_group(stubborn.pid)
