"""The process that has imported torch once and forks the ranks of every training job.

    python -m planaria.sandbox.rank_server --socket PATH

One JSON object per line in, one per line out, on a Unix socket of mode 0600:

    {"verb": "fork", job_id, attempt, rank, world_size, node_id, pgid_of, master_port, dir, resume_step,
     config}                                   -> {"pid", "forked_at"}
    {"verb": "status"}                         -> {"pid", "import_seconds", "ranks": [...]}
    {"verb": "stop", "job_id": J, "attempt": K} -> {"stopped": [pid]}: ends those ranks (attempt optional)
    {"verb": "stop"}                           -> {"stopped": [pid]}: ends all ranks and the server

What is wrong is answered with {"error": sentence}. The socket accepts once torch is imported; then the line
{"ready": true, ...} appears on stdout. The server ends on `stop`, on SIGTERM and SIGINT, and when its stdin,
if that is a pipe, closes. All ranks end with it, however it ends.
"""

import argparse
import gc
import json
import os
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.sandbox.job_folder import JobFolder, write_json
from planaria.sandbox.job_recipe import RankRequest, parse_rank_request
from planaria.sandbox.rank_process import RankMain, become_rank, check_group

_LONGEST_LINE = 1 << 20
_RETRY_SECONDS = 2.0


def ask(socket_path: Path | str, request: Mapping[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises InvalidInput with the server's sentence when it refuses, and OSError (ConnectionError,
    FileNotFoundError, TimeoutError) when there is no server that answers.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(socket_path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionResetError("the rank server ended without an answer")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise InvalidInput(str(answer["error"]))
    return answer


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class _Child:
    request: RankRequest
    forked_at: float


class RankServer:
    """The loop: one thread, so that forked children start from a sane state."""

    def __init__(self, listener: socket.socket, rank_main: RankMain, import_seconds: float) -> None:
        self._listener, self._rank_main, self._import_seconds = listener, rank_main, import_seconds
        self._children: dict[int, _Child] = {}
        self._exits: dict[Path, dict[str, Any]] = {}
        self._selector = selectors.DefaultSelector()
        self._ending = False
        self._wakeup, wakeup_end = socket.socketpair()
        for each in (self._wakeup, wakeup_end, listener):
            each.setblocking(False)
        self._wakeup_end = wakeup_end
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._drain)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        if _is_pipe(0):
            self._selector.register(0, selectors.EVENT_READ, self._read_stdin)

    def serve(self) -> None:
        """Until told to end; then ends and reaps every child."""
        try:
            while not self._ending:
                for key, _ in self._selector.select(_RETRY_SECONDS if self._exits else None):
                    key.data()
                self._reap()
                self._write_exits()
        finally:
            self._kill(list(self._children))
            for pid in list(self._children):
                self._record(pid, os.waitpid(pid, 0)[1])
            self._write_exits()

    def _end(self, *_: object) -> None:
        self._ending = True

    def _read_stdin(self) -> None:
        if not os.read(0, 4096):
            self._ending = True

    def _drain(self) -> None:
        self._wakeup.recv(4096)

    # --- requests --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client has gone again
        connection.settimeout(5.0)
        client = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: _Client) -> None:
        try:
            chunk = client.connection.recv(65536)
            client.received += chunk
            while b"\n" in client.received:
                line, _, rest = bytes(client.received).partition(b"\n")
                client.received = bytearray(rest)
                client.connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")
        except OSError:
            chunk = b""
        if not chunk or len(client.received) > _LONGEST_LINE:
            self._selector.unregister(client.connection)
            client.connection.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise InvalidInput("a request must be a JSON object")
            match request.get("verb"):
                case "fork":
                    return self._fork(parse_rank_request(request))
                case "status":
                    return self._status()
                case "stop":
                    return self._stop(request.get("job_id"), request.get("attempt"))
            raise InvalidInput(f"unknown verb {request.get('verb')!r}; known are fork, status, stop")
        except ValueError:
            return {"error": "a request must be one line of JSON"}
        except (InvalidInput, OSError) as error:
            return {"error": str(error)}

    def _status(self) -> dict[str, Any]:
        ranks = [
            {
                "pid": pid,
                "job_id": child.request.job_id,
                "attempt": child.request.attempt,
                "rank": child.request.rank,
                "node_id": child.request.node_id,
                "forked_at": child.forked_at,
            }
            for pid, child in self._children.items()
        ]
        return {"pid": os.getpid(), "import_seconds": self._import_seconds, "ranks": ranks}

    def _stop(self, job_id: object, attempt: object) -> dict[str, Any]:
        if job_id is None:
            self._ending = True
        pids = [
            pid
            for pid, child in self._children.items()
            if job_id in (None, child.request.job_id) and attempt in (None, child.request.attempt)
        ]
        self._kill(pids)
        return {"stopped": pids}

    # --- children --------------------------------------------------------------------------------

    def _fork(self, request: RankRequest) -> dict[str, Any]:
        forked_at = time.time()
        for child in self._children.values():
            other = child.request
            if (other.job_id, other.attempt, other.rank) == (request.job_id, request.attempt, request.rank):
                raise InvalidInput(
                    f"rank {request.rank} of {request.job_id}, attempt {request.attempt}, runs already"
                )
        check_group(request)
        folder = JobFolder(Path(request.dir))
        log_path = folder.rank_log(request.attempt, request.rank)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        server_pid = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
            if pid == 0:
                become_rank(request, forked_at, self._rank_main, log, server_pid)
        finally:
            os.close(log)
        self._children[pid] = _Child(request, forked_at)
        try:
            # The child does this too; whoever comes first. When the answer is out, the rank is in the group.
            os.setpgid(pid, request.pgid_of)
            check_group(request)
        except (OSError, InvalidInput) as error:
            self._kill([pid])
            raise InvalidInput(f"node {request.node_id} died while the rank was started: {error}") from error
        return {"pid": pid, "forked_at": forked_at}

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            # Not reaped yet, so the pid is still ours. SIGKILL, since a stopped rank ignores SIGTERM.
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._children):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                self._record(pid, status)

    def _record(self, pid: int, status: int) -> None:
        child = self._children.pop(pid)
        path = JobFolder(Path(child.request.dir)).rank_exit(child.request.attempt, child.request.rank)
        self._exits[path] = {"exit_code": os.waitstatus_to_exitcode(status), "at": time.time()}

    def _write_exits(self) -> None:
        """On a full disk they stay, and the loop tries again; a folder that is gone wants no exit file."""
        for path, document in list(self._exits.items()):
            try:
                write_json(path, document)
            except FileNotFoundError:
                pass
            except OSError as error:
                _say(f"cannot write {path}: {error.strerror}")
                continue
            del self._exits[path]


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _bind(path: Path) -> socket.socket:
    """A bound socket of mode 0600 that does not listen yet. Raises InvalidInput with one sentence."""
    if len(os.fsencode(path)) > 107:
        raise InvalidInput(f"the socket path {path} is longer than the 107 bytes that the system allows")
    listener = socket.socket(socket.AF_UNIX)
    if path.is_socket():
        if listener.connect_ex(str(path)) == 0:
            raise InvalidInput(f"another rank server answers at {path}")
        path.unlink(missing_ok=True)
        listener.close()
        listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise InvalidInput(f"cannot make the socket {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    return listener


def _say(sentence: str) -> None:
    sys.stderr.write(f"rank server: {sentence}\n")
    sys.stderr.flush()


def _import_training() -> RankMain:
    # Pools of threads do not survive a fork: one thread for everything, set before the libraries load.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    from planaria.sandbox import training

    # Objects that the collector never touches again stay on pages that the ranks share with the server.
    gc.collect()
    gc.freeze()
    return training.main


def main(
    arguments: list[str] | None = None, load_rank_main: Callable[[], RankMain] = _import_training
) -> int:
    """Run the server; returns its exit status. load_rank_main imports what every rank needs, once."""
    parser = argparse.ArgumentParser(prog="rank_server", description="Forks the ranks of training jobs.")
    parser.add_argument("--socket", type=Path, required=True)
    path: Path = parser.parse_args(arguments).socket
    try:
        listener = _bind(path)
    except InvalidInput as error:
        _say(str(error))
        return 2
    mine = path.stat()
    try:
        # While torch is imported nobody waits for signals; the default ends the process and leaves the file.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(0))
        started = time.monotonic()
        try:
            rank_main = load_rank_main()
        except ImportError as error:
            _say(f"PyTorch cannot be imported ({error}); requirements-torch.txt says which one to install")
            return 2
        import_seconds = round(time.monotonic() - started, 3)
        server = RankServer(listener, rank_main, import_seconds)
        listener.listen(64)
        sys.stdout.write(json.dumps({"ready": True, "import_seconds": import_seconds}) + "\n")
        sys.stdout.flush()
        server.serve()
    finally:
        listener.close()
        try:
            if path.stat().st_ino == mine.st_ino:
                path.unlink()
        except FileNotFoundError:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
