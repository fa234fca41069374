"""A real Slurm on one machine, without root: munged, slurmctld and one slurmd for each node.

    python -m planaria.sandbox.slurm_cluster up --dir FOLDER [--nodes 8]
    python -m planaria.sandbox.slurm_cluster down --dir FOLDER

What is real: every daemon and command, scheduling, jobs with their processes, requeue, reservations, GRES.
What is played: all nodes share this machine, a node's GPUs are no GPUs, and each name has a port of its own,
so that at most one instance can run under a name; any address 127.0.0.x reaches it.

Everything is found by a mark in its environment, so it can be ended by whoever comes later, too.
"""

import argparse
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from planaria.sandbox import environments, slurm_files
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.slurm_files import Places, SlurmSettings

MARK, NODE_MARK = "PLANARIA_SLURM", "PLANARIA_SLURM_NODE"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "sinfo", "scontrol", "scancel")
BOOT_SECONDS = 30.0
POLL_SECONDS = 0.05
NOT_READY = ("down", "unknown")
LONGEST_CALL = 60.0


def missing() -> str:
    """A sentence that says what to install; empty when a Slurm is here."""
    lacking = [name for name in PROGRAMS if _program(name) is None]
    if not lacking:
        return ""
    return (
        f"Slurm is not installed here ({', '.join(lacking)} not found); `apt install slurm-wlm` installs it."
    )


class SlurmCluster:
    """As a context manager it starts the cluster and leaves no process behind; the files stay."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        self.places = Places(settings.folder.resolve())

    @property
    def environment(self) -> dict[str, str]:
        """For every program that shall speak to this Slurm and to no other."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        path = f"{kept.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        return {**kept, "PATH": path, "SLURM_CONF": str(self.places.conf), MARK: str(self.places.folder)}

    # --- up and down -----------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns once all nodes are idle. Raises SandboxError with one sentence, after it ended them all."""
        if lack := missing():
            raise SandboxError(lack)
        if environments.find(self._marked()):
            raise SandboxError(f"A Slurm runs from {self.places.folder} already; end it first.")
        try:
            slurm_files.write(self.settings, _version())
            self._munged()
            self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.places.conf))
            self._wait(self._answers, "slurmctld answers", "slurmctld")
            for name in self.settings.names:
                self._slurmd(name)
            for name in self.settings.names:
                self.wait_for_node(name)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of this cluster, also of one that another process started and left."""
        stop(self.places.folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- nodes -----------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        """An instance boots under this name; one that runs there already ends first, for the name's port is
        one. Slurm takes the node when its address is right and nothing else keeps it out."""
        self.kill_node(name)
        self._slurmd(name)

    def kill_node(self, name: str) -> None:
        """All processes of the node end at this moment: slurmd, job steps and what the job had started."""
        if not environments.end(self._on_node(name)):
            raise SandboxError(f"The processes of {name} do not end.")

    def stop_controller(self) -> None:
        """slurmctld saves what it knows and ends; `start_controller` brings it back."""
        marked = self._marked()
        environments.end(lambda e: marked(e) and e.get(NODE_MARK) == "/slurmctld", signal.SIGTERM)

    def start_controller(self) -> None:
        self._daemon("slurmctld", "slurmctld", "-D", "-f", str(self.places.conf))
        self._wait(self._answers, "slurmctld answers", "slurmctld")

    def runs(self, name: str) -> bool:
        """Does any process of this node live?"""
        return bool(environments.find(self._on_node(name)))

    def wait_for_node(self, name: str, seconds: float = BOOT_SECONDS) -> None:
        """Until slurmd has registered and the node could work; raises SandboxError."""

        def ready() -> bool:
            state = self.node_state(name)
            return bool(state) and state[-1] not in "*~#!%$" and state.partition("+")[0] not in NOT_READY

        self._wait(ready, f"{name} is ready ({self.node_state(name)!r} now)", name, seconds)

    def node_state(self, name: str) -> str:
        """As sinfo says it, such as idle, mixed, drained*; empty for an unknown name."""
        lines = self.run("sinfo", "--noheader", "--Node", "--nodes", name, "--format=%T").split()
        return lines[0] if lines else ""

    # --- programs --------------------------------------------------------------------------------

    def run(self, program: str, *arguments: str, timeout: float = LONGEST_CALL, stdin: str = "") -> str:
        """stdout of srun, sbatch, squeue, scontrol and their like. Raises SandboxError with what it said."""
        path = _program(program)
        if path is None:
            raise SandboxError(missing() or f"{program} is not installed here.")
        try:
            ended = subprocess.run(
                [path, *arguments],
                env=self.environment,
                cwd=self.places.folder,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SandboxError(f"{program} {' '.join(arguments)} took longer than {timeout:.0f} s.") from None
        if ended.returncode != 0:
            said = " ".join((ended.stderr or ended.stdout).split())
            raise SandboxError(f"{program} {' '.join(arguments)} ended with {ended.returncode}: {said}")
        return ended.stdout

    # --- small things ----------------------------------------------------------------------------

    def _munged(self) -> None:
        run = self.places.key.parent
        files = {"key-file": self.places.key, "socket": self.places.socket}
        files |= {"pid-file": run / "munged.pid", "seed-file": run / "munged.seed"}
        files["log-file"] = self.places.log("munged")
        options = [f"--{name}={path}" for name, path in files.items()]
        # --force: munged complains of /tmp and of root, which are no matter for a cluster of one machine.
        self._daemon("munged", "munged", "--foreground", "--force", *options)
        self._wait(self.places.socket.is_socket, "munged answers", "munged")

    def _slurmd(self, name: str) -> None:
        (self.places.folder / "s" / name).mkdir(parents=True, exist_ok=True)
        self._daemon(name, "slurmd", "-D", "-N", name, "-f", str(self.places.conf))

    def _daemon(self, name: str, program: str, *arguments: str) -> None:
        """A session of its own: Ctrl-C in the terminal is for the program that started it."""
        mark = name if program == "slurmd" else f"/{name}"
        environment = {**self.environment, NODE_MARK: mark}
        with self.places.log(f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [_program(program) or program, *arguments],
                env=environment,
                cwd=self.places.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _children.append(process)

    def _answers(self) -> bool:
        try:
            return " UP" in self.run("scontrol", "ping")
        except SandboxError:
            return False

    def _wait(self, ready: Callable[[], bool], what: str, log: str, seconds: float = BOOT_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            reap()
            if time.monotonic() > deadline:
                said = last_lines(self.places.log(log))
                raise SandboxError(f"Slurm did not start: waited {seconds:.0f} s until {what}. {said}")
            time.sleep(POLL_SECONDS)

    def _marked(self) -> Callable[[environments.Environment], bool]:
        return functools.partial(_belongs, str(self.places.folder))

    def _on_node(self, name: str) -> Callable[[environments.Environment], bool]:
        """slurmd and slurmstepd inherit the mark; what a step starts has Slurm's own word for its node."""
        conf, marked = str(self.places.conf), self._marked()

        def here(environment: environments.Environment) -> bool:
            if marked(environment) and environment.get(NODE_MARK) == name:
                return True
            return environment.get("SLURMD_NODENAME") == name and environment.get("SLURM_CONF") == conf

        return here


_children: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Take note of daemons of this process that have ended, so that no zombies stay."""
    for process in list(_children):
        if process.poll() is not None:
            _children.remove(process)


def stop(folder: Path) -> None:
    """End all processes of the cluster in this folder by their ids; one that is down already is no error.

    Raises SandboxError when some do not end.
    """
    marked = functools.partial(_belongs, str(folder.resolve()))
    ended = environments.end(marked)
    reap()
    if not ended:
        raise SandboxError(f"Processes of the Slurm in {folder} do not end.")


def last_lines(log: Path, count: int = 3) -> str:
    """The end of a log in one line, for an error's sentence."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-count:]
    except OSError:
        return f"{log} says nothing."
    return f"{log} ends with: {' | '.join(line[-200:] for line in lines)}"


def _belongs(folder: str, environment: Mapping[str, str]) -> bool:
    return environment.get(MARK) == folder


def _program(name: str) -> str | None:
    """Daemons are in /usr/sbin, which an ordinary user's PATH may lack."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def _version() -> tuple[int, int]:
    path = _program("slurmctld")
    assert path is not None, "missing() has been asked"
    said = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=LONGEST_CALL, check=False)
    return slurm_files.parse_version(said.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="planaria.sandbox.slurm_cluster", description=__doc__)
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("--dir", type=Path, required=True, help="folder of the cluster")
    parser.add_argument("--nodes", type=int, default=8, help="how many nodes run (8)")
    parser.add_argument("--spares", type=int, default=0, help="names that Slurm knows and nobody runs (0)")
    options = parser.parse_args(arguments)
    names = tuple(f"demo-{number}" for number in range(1, options.nodes + options.spares + 1))
    try:
        if options.verb == "down":
            stop(options.dir)
            return 0
        settings = SlurmSettings(options.dir.resolve(), names[: options.nodes], names[options.nodes :])
        started = SlurmCluster(settings).start()
    except SandboxError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"export SLURM_CONF={started.places.conf}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
