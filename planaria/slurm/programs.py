"""Slurm's own programs, called with lists of arguments and a deadline each.

What a program says counts only if it ended well: an exit status other than 0, no end within the deadline, or
an answer that cannot be read is an error, never an empty answer.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planaria.core.errors import TransientError

DEADLINE_SECONDS = 12.0
"""Of one program. Slurm's own MessageTimeout is 10 s by default, so this ends only what hangs."""

KEPT = ("SLURM_CONF",)
"""Of the variables that Slurm's programs read; every other one would change what they print."""

PLACES = ("/opt/slurm/bin", "/usr/local/bin", "/usr/bin", "/bin")
"""Where Slurm's programs are looked for after PATH: the agent that starts us may know less than a login."""

STEERING = re.compile(r"(SLURM|SQUEUE|SINFO|SCANCEL|SCONTROL)_")


class SlurmError(TransientError):
    """A program of Slurm failed or could not be understood. said: its own words."""

    def __init__(self, sentence: str, said: str = "") -> None:
        super().__init__(sentence)
        self.said = said


class Unreadable(SlurmError):
    """The answer was cut, or is in a form that nobody here knows."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a program ended. code: exit status, negative for a signal."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str], float], Done]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """English messages, times as epoch seconds, and nothing of the caller's that steers the output."""
    kept = {name: value for name, value in given.items() if name in KEPT or not STEERING.match(name)}
    path = ":".join([*filter(None, [given.get("PATH", "")]), *PLACES])
    return {**kept, "PATH": path, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def run_program(arguments: Sequence[str], seconds: float) -> Done:
    """Raises SlurmError when the program is missing or does not end in time."""
    try:
        done = subprocess.run(
            list(arguments),
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"{arguments[0]} is not installed here, or not on PATH: this command runs on Slurm's head node"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{arguments[0]} did not answer within {seconds:.0f} s") from None
    except OSError as error:
        raise SlurmError(f"{arguments[0]} could not be started: {error}") from None
    return Done(done.returncode, _text(done.stdout), _text(done.stderr))


@dataclass(frozen=True, slots=True)
class Slurm:
    """The programs and the clock, as one thing that a test can replace."""

    run: Run = run_program
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def ask(self, *arguments: str, seconds: float = DEADLINE_SECONDS) -> str:
        """What the program printed. Raises SlurmError unless it ended with status 0."""
        done = self.run(arguments, seconds)
        if done.code != 0:
            said = _sentence(done.err or done.out)
            raise SlurmError(f"`{_shown(arguments)}` failed: {said or f'exit status {done.code}'}", said)
        return done.out

    def version(self) -> tuple[int, int]:
        """(year, month) of the release, such as (22, 5)."""
        printed = self.ask("scontrol", "--version")
        found = re.search(r"\b(\d{2})\.(\d{1,2})(?:\.|\b)", printed)
        if found is None:
            raise Unreadable(f"`scontrol --version` printed no version of Slurm: {printed.strip()!r:.80}")
        return int(found[1]), int(found[2])


def _text(raw: bytes) -> str:
    # Names and comments may be in any encoding; what is not UTF-8 must not hide the rest.
    return raw.decode("utf-8", "replace")


def _sentence(text: str) -> str:
    """The first line that says something, without the program's name before it."""
    for line in text.splitlines():
        said = re.sub(r"^(scontrol|squeue|sinfo|scancel): (error: )?", "", line.strip())
        if said:
            return said[:300]
    return ""


def _shown(arguments: Sequence[str]) -> str:
    line = " ".join(arguments)
    return line if len(line) <= 120 else f"{line[:117]}..."
