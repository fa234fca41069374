"""The rank server as a child of the head: started, watched, asked and ended."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planaria.sandbox.node_process import child_environment
from planaria.sandbox.rank_server import ask


class RankServerProcess:
    """command: the program without its --socket; tests run a smaller one. The process ends when the pipe to
    its stdin closes, that is with the head, however that ends."""

    def __init__(self, folder: Path, command: Sequence[str] = ()) -> None:
        self.socket = folder / "ranks.sock"
        self._log = folder / "rank-server.log"
        self._command = list(command) or [sys.executable, "-m", "planaria.sandbox.rank_server"]
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False

    def start(self) -> None:
        """Start it, or start it again after it died, and return at once: it needs seconds to load PyTorch."""
        self.stop()
        self._ready = False
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--socket", str(self.socket)],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Out of the terminal's group, so that Ctrl-C leaves the order of things to the head.
                process_group=0,
            )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def died(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def ready(self) -> bool:
        """It answers requests."""
        if not self._ready:
            try:
                ask(self.socket, {"verb": "status"}, timeout=1.0)
                self._ready = True
            except OSError:
                return False
        return self._ready

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises InvalidInput when it refuses and OSError when it does not answer."""
        return ask(self.socket, request, timeout=5.0)

    def wait_for_earlier(self, seconds: float = 5.0) -> None:
        """Until the rank server of a head that was killed has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                ask(self.socket, {"verb": "stop"}, timeout=1.0)
            except OSError:
                return
            time.sleep(0.05)

    def stop(self) -> None:
        """End it and all its ranks."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self.socket.unlink(missing_ok=True)
