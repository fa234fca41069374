"""One command at a time for one job, and one that writes to nodes: the head node's agent runs five, and a
Task that is tried again may send the same order while the first one is still at work."""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planaria.core.errors import PermanentError
from planaria.slurm.programs import Slurm

NODES = "nodes"
LOOK_SECONDS = 0.1
WAIT_SECONDS = 10.0


@contextmanager
def alone(slurm: Slurm, what: str, seconds: float = WAIT_SECONDS) -> Iterator[bool]:
    """what: a job's id, or NODES. True inside where this is the only command for it; False when another one
    did not end in time."""
    until = slurm.now() + seconds
    with file(f"{what}.lock").open("a") as lock:
        while not (mine := _locked(lock.fileno())) and slurm.now() < until:
            slurm.sleep(LOOK_SECONDS)
        yield mine


def file(name: str) -> Path:
    """Of this Slurm alone: machines that try things out have several, whose jobs bear the same ids."""
    conf = os.environ.get("SLURM_CONF")
    return folder() / (f"{hashlib.sha256(conf.encode()).hexdigest()[:8]}-{name}" if conf else name)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def folder() -> Path:
    """A folder that only we can write. Raises PermanentError when somebody else has made it."""
    user = os.geteuid()
    place = Path("/run/planaria") if user == 0 else Path(tempfile.gettempdir()) / f"planaria-{user}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        raise PermanentError(f"{place} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise PermanentError(f"{place} is not ours alone; remove it")
    return place
