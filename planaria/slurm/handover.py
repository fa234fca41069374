"""What an attempt is told: `resume.json` and `hostfile` in the folder that its job registered.

The folder belongs to the job's user and this program runs as root, so everything here is done with the user's
own rights: a link that the user put there leads nowhere that the user could not go.
"""

import json
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planaria.core.errors import PermanentError

FOLDER = re.compile(r"/[A-Za-z0-9/_.@+-]{0,500}")

RESUME = "resume.json"
HOSTFILE = "hostfile"


def resume_of(slurm_job: str) -> str:
    """The file of one Slurm job alone: the tasks of an array share their folder, and each is told its own."""
    return f"resume-{slurm_job}.json"


def hand_over(
    folder: str, user: str, nodes: Sequence[str], ranks_per_node: int, told: dict[str, Any]
) -> None:
    """Write both files, each whole or not at all; the same again writes the same.

    `hostfile` names the node of every rank, one a line, for `srun --distribution=arbitrary`. Raises
    PermanentError with one sentence when the folder cannot be written.
    """
    if not FOLDER.fullmatch(folder) or ".." in Path(folder).parts:
        raise PermanentError(f"the job's folder {folder!r:.80} must be an absolute path of plain characters")
    hosts = "".join(f"{name}\n" for name in nodes for _ in range(max(1, ranks_per_node)))
    try:
        with as_user(user):
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # The hostfile first: who sees the new resume.json finds its hostfile.
                _replace(place, HOSTFILE, hosts)
                if slurm_job := str(told.get("slurm_job") or ""):
                    _replace(place, resume_of(slurm_job), json.dumps(told) + "\n")
                _replace(place, RESUME, json.dumps(told) + "\n")
            finally:
                os.close(place)
    except (OSError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else "nobody here knows this user"
        raise PermanentError(f"the job's folder {folder} cannot be written as {user}: {why}") from None


def _replace(place: int, name: str, content: str) -> None:
    made = f".{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    file = os.open(made, flags, 0o644, dir_fd=place)
    try:
        os.write(file, content.encode())
        os.fsync(file)
    finally:
        os.close(file)
    os.rename(made, name, src_dir_fd=place, dst_dir_fd=place)


@contextmanager
def as_user(user: str) -> Iterator[None]:
    """The user's rights on files, for as long as this lasts. A program that is not root has only its own."""
    if os.geteuid() != 0:
        yield
        return
    account = pwd.getpwnam(user)
    groups = os.getgroups()
    os.setgroups(os.getgrouplist(user, account.pw_gid))
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
