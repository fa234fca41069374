"""What `planaria submit` keeps of a job, and the job made from it once Slurm has forgotten the first one.

The folder is the user's own (mode 0700) on a file system that head node and nodes share:

    job.json        {"version": 1, "options": [sbatch's], "script": name below script/ or "",
                     "arguments": [...], "variables": {name: value}, "work_dir": str, "checkpoints": folder
                     or "", "ranks_per_node": int, "comment": the user's own, "submitted_at": epoch seconds}
    script/<name>   the batch script as it was submitted
    hostfile, resume.json   what an attempt is told (handover.py, in_job.py)

The new job is the folder's owner's, whoever asks for it: nobody gains a right by naming a folder.
"""

import json
import os
import pwd
import re
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.slurm import handover, marks, sbatch_words
from planaria.slurm.programs import DEADLINE_SECONDS, Slurm, SlurmError, environment

VERSION = 1
DOCUMENT = "job.json"
SCRIPT = "script"
MOST_BYTES = 4 * 1024 * 1024

TASK = re.compile(r"\d+_(\d+)")
"""The id of one task of a job array."""

ONCE = frozenset({"dependency", "begin", "deadline", "wait", "hold", "parsable", "comment", "chdir"})
"""Options of the first submission that would keep the new job from starting, or that are written anew."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder that was read and found to be one user's own. array: the job that was submitted is one."""

    folder: str
    uid: int
    document: Mapping[str, Any]
    array: bool = False

    @property
    def script(self) -> str:
        name = str(self.document["script"])
        return f"{self.folder}/{SCRIPT}/{name}" if name else ""


def read(folder: str) -> Kept:
    """With the owner's rights: on a file system that squashes root, root may not look into a user's folder.

    Raises InvalidInput with one sentence: it is not there, not of our making, or others could have written
    into it."""
    try:
        owner = pwd.getpwuid(_owner(folder)).pw_name
    except KeyError:
        raise InvalidInput(f"{folder} belongs to a user whom nobody knows here") from None
    with handover.as_user(owner):
        return _look(folder)


def _owner(folder: str) -> int:
    """The uid of the folder, or of the first folder above it that may not be entered. Whoever names somebody
    else's gains nothing: what is read there must be that one's own."""
    found: os.stat_result | None = None
    path = Path("/")
    for part in Path(folder).parts[1:]:
        path /= part
        try:
            found = os.lstat(path)
        except PermissionError:
            break
        except OSError as error:
            raise InvalidInput(f"what was kept of the job is not there: {path}: {error.strerror}") from None
    if found is None:
        raise InvalidInput(f"{folder!r:.80} is no folder of a job")
    return found.st_uid


def _look(folder: str) -> Kept:
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise InvalidInput(f"what was kept of the job is not there: {folder}: {error.strerror}") from None
    try:
        owner = os.fstat(place)
        _safe(folder, owner, owner.st_uid)
        raw = _read(place, DOCUMENT, owner.st_uid, folder)
        text = _script(place, raw, owner.st_uid, folder)
    finally:
        os.close(place)
    try:
        document = json.loads(raw)
        wrong = document["version"] != VERSION
        texts = [*document["options"], *document["arguments"], document["script"], document["work_dir"]]
        wrong = wrong or not all(isinstance(text, str) for text in texts)
        wrong = wrong or os.path.basename(document["script"]) != document["script"]
    except (ValueError, KeyError, TypeError):
        wrong = True
    if wrong:
        raise InvalidInput(f"{folder}/{DOCUMENT} is not what `planaria submit` of this release writes")
    words = [*sbatch_words.directives(text)[0], *document["options"]]
    return Kept(folder, owner.st_uid, document, "array" in sbatch_words.values(words))


def _script(place: int, raw: bytes, uid: int, folder: str) -> str:
    """The batch script; "" where there is none that can be read (then sbatch will say so)."""
    try:
        name = json.loads(raw)["script"]
        inside = os.open(SCRIPT, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
    except (ValueError, KeyError, TypeError, OSError):
        return ""
    try:
        return _read(inside, os.path.basename(str(name)), uid, f"{folder}/{SCRIPT}").decode(
            "utf-8", "replace"
        )
    except InvalidInput:
        return ""
    finally:
        os.close(inside)


def resubmit(folder: str, job: str, attempt: int, slurm: Slurm) -> str:
    """Submit the job `job` anew, held, and return its new id; asked twice it is one job. Of a job array only
    the task that is asked for is submitted.

    Raises InvalidInput for a folder that cannot be used, SlurmError when Slurm refuses or does not answer.
    """
    kept = read(folder)
    task = TASK.fullmatch(job)
    if kept.array and task is None:
        raise InvalidInput(
            f"job {job} was submitted as a job array, and which of its tasks is to start again is not known; "
            f"submit the task anew"
        )
    mark = {"folder": folder, "job": job, "again": str(attempt)}
    if found := _submitted(slurm, mark, kept.uid):
        return found
    per_node = kept.document.get("ranks_per_node") or 0
    if per_node:
        mark["ranks_per_node"] = str(per_node)
    comment = marks.write(str(kept.document.get("comment") or ""), mark)
    options = sbatch_words.without([str(word) for word in kept.document["options"]], ONCE | {"array"})
    if task is not None:
        options.append(f"--array={task[1]}")
    words = [
        "sbatch",
        *options,
        "--parsable",
        "--hold",
        f"--chdir={kept.document['work_dir']}",
        f"--comment={comment}",
        *([kept.script] if kept.script else []),
        *(str(word) for word in kept.document["arguments"]),
    ]
    printed = _as_owner(kept, words)
    new = printed.strip().partition(";")[0]
    if not new.isdigit():
        raise SlurmError(f"sbatch printed no job id but {printed.strip()!r:.80}")
    return f"{new}_{task[1]}" if task is not None else new


def _submitted(slurm: Slurm, mark: Mapping[str, str], uid: int) -> str:
    """The id of the job that an earlier call has submitted, "" when there is none."""
    listed = slurm.ask("squeue", "--all", "--array", "--states=all", "--noheader", "--format=%i %U %k")
    for line in listed.splitlines():
        job, _, rest = line.strip().partition(" ")
        owner, _, comment = rest.partition(" ")
        told = marks.read(comment)
        # Anybody may write any comment; only the folder's owner submits what is kept in it.
        if owner == str(uid) and all(told.get(name) == value for name, value in mark.items()):
            return job
    return ""


def _as_owner(kept: Kept, words: list[str]) -> str:
    """Run the program with the owner's rights and an environment of its own: the one of the first submission
    was never kept, but for the variables that the user named."""
    account = pwd.getpwuid(kept.uid)
    passed = {
        name: value for name, value in environment(os.environ).items() if name in ("PATH", "SLURM_CONF")
    }
    variables = {str(name): str(value) for name, value in kept.document.get("variables", {}).items()}
    mine = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "LC_ALL": "C"}
    who: dict[str, Any] = {}
    if os.geteuid() == 0 and kept.uid != 0:
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
        who = {"user": kept.uid, "group": account.pw_gid, "extra_groups": groups}
    try:
        done = subprocess.run(
            words,
            env={**variables, **mine, **passed, "PLANARIA_FOLDER": kept.folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
            cwd="/",
            **who,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"sbatch could not be run as {account.pw_name}: {error}") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise SlurmError(f"sbatch refused the job that was kept in {kept.folder}: {said}", said)
    printed: bytes = done.stdout
    return printed.decode("utf-8", "replace")


def _read(place: int, name: str, uid: int, folder: str) -> bytes:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    except OSError as error:
        raise InvalidInput(f"{folder}/{name} cannot be read: {error.strerror}") from None
    with os.fdopen(file, "rb") as stream:
        _safe(f"{folder}/{name}", os.fstat(file), uid)
        return stream.read(MOST_BYTES)


def _safe(path: str, found: os.stat_result, uid: int) -> None:
    if found.st_uid != uid or stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidInput(f"{path} can be written by others than its owner, so it is not used")


def write(folder: Path, document: Mapping[str, Any], script: bytes | None) -> None:
    """Make the folder with what is kept, so that only its owner can read it. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    if script is not None:
        (folder / SCRIPT).mkdir(mode=0o700)
        _write(folder / SCRIPT / str(document["script"]), script, 0o700)
    text = json.dumps({"version": VERSION, **document}, indent=1) + "\n"
    _write(folder / DOCUMENT, text.encode(), 0o600)


def _write(path: Path, content: bytes, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
