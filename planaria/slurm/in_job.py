"""`planaria-run`: runs inside of a batch job and gives its steps what Planaria handed to this attempt.

    planaria-run srun python train.py        run a command with it
    eval "$(planaria-run --export)"          or take it into the batch script

It sets PLANARIA_JOB_ID, PLANARIA_ATTEMPT, PLANARIA_RESUME_STEP (-1: the job finds its checkpoint by itself),
PLANARIA_CHECKPOINTS, PLANARIA_MASTER (the node of rank 0), and where the ranks are not in Slurm's own order
SLURM_HOSTFILE with SLURM_DISTRIBUTION=arbitrary, so that every rank is where it was. The rank is
SLURM_PROCID, never SLURM_NODEID.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planaria.core.errors import InvalidInput, PermanentError, PlanariaError
from planaria.slurm import hostlist, marks
from planaria.slurm.handover import RESUME, resume_of
from planaria.slurm.kept_jobs import DOCUMENT

MARKER = ".planaria"
"""In the folder of the checkpoints from the submission on: without it another file system is seen."""

FIRST = 1
NONE = "-1"
SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Handed:
    """variables: to set. nodes: in rank order, () where they are in Slurm's own. folder: the job's."""

    variables: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    folder: str = ""


def main(words: Sequence[str] | None = None) -> int:
    """The exit status; a command that is run takes the place of this process."""
    given = list(sys.argv[1:] if words is None else words)
    try:
        if not given or given[0] in ("-h", "--help"):
            sys.stdout.write(f"{(__doc__ or '').strip()}\n")
            return 0 if given else 2
        handed = look(os.environ)
        variables = {**handed.variables, **_order(handed.nodes, Path(handed.folder), os.environ)}
        if given[0] == "--export":
            for name, value in variables.items():
                sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
            return 0
        if given[0] == "--":
            given = given[1:]
        _warn(given, variables)
        os.execvpe(given[0], given, {**os.environ, **variables})  # noqa: S606  the user's own command
    except PlanariaError as error:
        sys.stderr.write(f"planaria-run: {error}.\n")
    except OSError as error:
        # What execvpe names is the last place on PATH where it has looked.
        what = error.filename if isinstance(error.filename, str) else given[0]
        sys.stderr.write(f"planaria-run: {what}: {error.strerror}.\n")
    return 1


def look(environment: Mapping[str, str]) -> Handed:
    """What this attempt is told. Raises InvalidInput outside of a job, PermanentError where the attempt must
    not start."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise InvalidInput("this is no batch job (SLURM_JOB_ID is not set); call it in the script for sbatch")
    folder = environment.get("PLANARIA_FOLDER") or _folder_of(job)
    if not folder:
        return Handed()  # submitted by sbatch alone: nothing was handed to it
    restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
    nodes = hostlist.expand(environment.get("SLURM_JOB_NODELIST", ""))
    told = _told(Path(folder), job, restarts, nodes)
    kept = _json(Path(folder) / DOCUMENT)
    checkpoints = str(kept.get("checkpoints") or "")
    if checkpoints and (told or restarts):
        _see(checkpoints, job)
    ordered = tuple(str(name) for name in told.get("nodes", ())) or tuple(nodes)
    variables = {
        "PLANARIA_JOB_ID": str(told.get("job") or job),
        "PLANARIA_ATTEMPT": str(told.get("attempt") or FIRST + restarts),
        "PLANARIA_RESUME_STEP": str(told.get("resume_step", NONE)),
        "PLANARIA_CHECKPOINTS": checkpoints,
        "PLANARIA_MASTER": ordered[0] if ordered else "",
        "PLANARIA_FOLDER": folder,
    }
    return Handed(variables, ordered if list(ordered) != nodes else (), folder)


def _told(folder: Path, job: str, restarts: int, nodes: Sequence[str]) -> Mapping[str, Any]:
    """resume.json, if it is about this very start; {} for the first one and where Slurm started the job by
    itself, perhaps on other nodes."""
    told = _json(folder / resume_of(job)) or _json(folder / RESUME)
    same = told.get("version") == 1 and told.get("restart") == restarts
    same = same and str(told.get("slurm_job") or job) == job
    return told if same and sorted(map(str, told.get("nodes") or ())) == sorted(nodes) else {}


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _see(checkpoints: str, job: str) -> None:
    if not (Path(checkpoints) / MARKER).exists():
        raise PermanentError(
            f"job {job} starts again and its checkpoints in {checkpoints} are not to be seen on this node "
            f"({MARKER} is missing there); it is not started from step 0: mount the file system, or submit "
            "the job anew"
        )


def _folder_of(job: str) -> str:
    """From the job's Comment, where sbatch was told not to pass variables on (--export)."""
    try:
        done = subprocess.run(
            ["scontrol", "--oneliner", "show", "job", job],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    comments = re.findall(r"(?<!\S)Comment=(.*?)(?= [A-Z][A-Za-z]*=|$)", done.stdout)
    return marks.read(comments[0]).get("folder", "") if done.returncode == 0 and comments else ""


def _order(nodes: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """A host file with one line for each rank. Raises OSError where it cannot be written."""
    if not nodes:
        return {}
    counts = tasks(environment.get("SLURM_TASKS_PER_NODE") or "1", len(nodes))
    start = f"{environment['SLURM_JOB_ID']}-{environment.get('SLURM_RESTART_COUNT') or 0}"
    path = folder / f"hosts-{start}"
    lines = [name for name, count in zip(nodes, counts, strict=True) for _ in range(count)]
    made = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write("".join(f"{name}\n" for name in lines))
    made.replace(path)
    return {"SLURM_HOSTFILE": str(path), "SLURM_DISTRIBUTION": "arbitrary"}


def tasks(text: str, nodes: int) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1], as many as there are nodes. Raises InvalidInput."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise InvalidInput(f"SLURM_TASKS_PER_NODE is {text!r:.60}, which nobody here can read")
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != nodes:
        raise InvalidInput(f"SLURM_TASKS_PER_NODE is {text!r:.60} and the job has {nodes} nodes")
    return counts


def _warn(command: Sequence[str], variables: Mapping[str, str]) -> None:
    """An option of srun goes before the variables that are set here."""
    told = [word for word in command if word.startswith(("-m", "--distribution"))]
    if "SLURM_HOSTFILE" in variables and Path(command[0]).name == "srun" and told:
        sys.stderr.write(
            f"planaria-run: srun's own {told[0]} goes before --distribution=arbitrary, so the ranks of this "
            "attempt are not where they were; leave it out.\n"
        )


if __name__ == "__main__":
    sys.exit(main())
