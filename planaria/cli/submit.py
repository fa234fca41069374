"""`planaria submit`: sbatch, and a job that Planaria can start again on other nodes."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria.cli import options, screen
from planaria.cli.failures import sentence
from planaria.cli.target import Target, connect
from planaria.core import job_facts
from planaria.core.errors import InvalidInput, PermanentError
from planaria.slurm import kept_jobs, marks, sbatch_words
from planaria.slurm.handover import FOLDER
from planaria.slurm.in_job import MARKER

app = typer.Typer()

KEPT = "~/.planaria/jobs"
MOST_BYTES = kept_jobs.MOST_BYTES
STRAY = re.compile(r"[^A-Za-z0-9_.-]+")
PRIVATE = frozenset({"export", "wrap", "comment"})
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints",
        metavar="DIR",
        help="Where the job saves its checkpoints. A job that names it is also started again after failures "
        "of its own, within the cluster's budget, and never where DIR is not to be seen.",
        show_default=False,
    ),
]
Keep = Annotated[
    list[str],
    typer.Option(
        "--keep",
        metavar="NAME",
        help="Keep this environment variable for a job that has to be submitted again. No other is kept.",
        show_default=False,
    ),
]
Jobs = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="DIR",
        envvar="PLANARIA_JOBS",
        help=f"Where script and options are kept; a file system that all nodes share. By default {KEPT}.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is handed to sbatch, and what is kept. batch: it submits one plain job that Planaria can know."""

    words: sbatch_words.Words
    given: Mapping[str, str]
    script: bytes | None
    name: str
    heterogeneous: bool

    @property
    def apart(self) -> str:
        """Why the job is not registered now, in words; "" when it is."""
        if self.heterogeneous:
            return "a heterogeneous job is registered when one of its nodes fails"
        if "array" in self.given:
            return "each task of a job array is registered when its node fails"
        return ""


@app.command(
    "submit",
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
)
def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[SBATCH OPTIONS] SCRIPT [ARGUMENTS]", help="What sbatch would be given."),
    ],
    checkpoints: Checkpoints = None,
    keep: Keep = [],  # noqa: B006  typer copies it
    jobs: Jobs = None,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Submit a batch job to Slurm that goes on when one of its nodes is replaced.

    Everything behind Planaria's own options goes to sbatch as it is, and sbatch alone decides about it. The
    script, its options and the variables named by --keep are kept, so that the job can be submitted again
    when Slurm has forgotten it; nothing else of your environment is.

    In the script, start the job's steps with `planaria-run srun ...`: each rank then keeps its number on
    other nodes, and the step to go on from is in PLANARIA_RESUME_STEP.

    Example: planaria submit --checkpoints /fsx/ada/gpt --nodes 4 --gpus-per-node 8 train.sh
    """
    plan = _plan(words)
    if shutil.which("sbatch") is None:
        raise InvalidInput(
            "there is no sbatch on PATH: run this where you would run sbatch, such as a login node"
        )
    if set(plan.given) & sbatch_words.ENDS_AT_ONCE:
        with _passed(["sbatch", *words], plan) as running:
            raise typer.Exit(running.wait())
    kept = _keep(plan, jobs, keep, checkpoints)
    target, trouble = _target(cluster, folder, aws)
    with _passed(_command(plan, kept), plan, kept) as running:
        job = _job_of(running, kept)
        lineage = _mark(checkpoints, job)
        trouble = trouble or plan.apart or _register(target, job, plan, kept, lineage)
        _say(job, kept, plan, lineage, trouble, as_json)
        raise typer.Exit(running.wait())  # with --wait sbatch stays until the job has ended


def _job_of(running: "subprocess.Popen[bytes]", kept: Path) -> str:
    """The id that sbatch prints at once. Raises Exit with its status where it has submitted nothing."""
    assert running.stdout is not None
    printed = running.stdout.readline().decode("utf-8", "replace").strip()
    job = printed.partition(";")[0]
    if job.isdigit():
        return job
    status = running.wait()
    shutil.rmtree(kept, ignore_errors=True)
    if status == 0:
        raise PermanentError(f"sbatch printed no job id but {printed!r:.80}")
    raise typer.Exit(status)  # it has said why, on stderr


def _plan(words: Sequence[str]) -> Plan:
    """Raises InvalidInput: no script, or one that cannot be read."""
    split = sbatch_words.split(words)
    given = sbatch_words.values(split.options)
    if set(given) & sbatch_words.ENDS_AT_ONCE:
        return Plan(split, given, None, "", False)
    script: bytes | None = None
    if split.script is not None:
        script = _read(split.script)
    elif "wrap" not in given:
        if sys.stdin.isatty():
            raise InvalidInput("no script is given; `planaria submit --help` shows how it is used")
        script = sys.stdin.buffer.read(MOST_BYTES + 1)
    if script is not None:
        _check(script, split.script or "stdin")
    lines, heterogeneous = sbatch_words.directives((script or b"").decode("utf-8", "replace"))
    # What stands on the command line goes before the script's own lines.
    given = {**sbatch_words.values(lines), **given}
    name = given.get("job-name") or (Path(split.script).name if split.script else "sbatch")
    return Plan(split, given, script, name, heterogeneous or ":" in words)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"the script {path!r:.120} cannot be read: {error.strerror}; sbatch's options stand before it, "
            "with their values as in --nodes=4"
        ) from None


def _check(script: bytes, where: str) -> None:
    if len(script) > MOST_BYTES:
        raise InvalidInput(f"the script {where!r:.120} is larger than 4 MiB, which sbatch refuses too")
    if not script.startswith(b"#!"):
        raise InvalidInput(
            f"{where!r:.120} is no batch script: its first line must name its interpreter, as in #!/bin/bash"
        )


def _keep(plan: Plan, jobs: Path | None, keep: Sequence[str], checkpoints: Path | None) -> Path:
    """The job's new folder with all that is kept. Raises InvalidInput."""
    variables = {}
    for name in keep:
        if not VARIABLE.fullmatch(name) or name not in os.environ:
            raise InvalidInput(f"--keep {name!r:.60}: there is no environment variable of that name")
        variables[name] = os.environ[name]
    base = (jobs or Path(KEPT)).expanduser().absolute()
    label = STRAY.sub("-", plan.name)[:40].strip("-.") or "job"
    made = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{label}-{secrets.token_hex(3)}"
    if not FOLDER.fullmatch(str(made)):
        raise InvalidInput(
            f"--jobs {str(base)!r:.120}: use a path of letters, digits and / _ . @ + - alone, for it becomes "
            "part of the job's comment in Slurm"
        )
    if checkpoints is not None and checkpoints.exists() and not checkpoints.is_dir():
        raise InvalidInput(f"--checkpoints {str(checkpoints)!r:.120} is no folder")
    source = plan.words.script
    document = {
        "options": list(plan.words.options),
        "script": "" if plan.script is None else STRAY.sub("-", Path(source or "script.sh").name),
        "arguments": list(plan.words.arguments),
        "variables": variables,
        "work_dir": str(Path(plan.given.get("chdir") or ".").absolute()),
        "checkpoints": "" if checkpoints is None else str(checkpoints.absolute()),
        "ranks_per_node": _per_node(plan.given),
        "comment": plan.given.get("comment", ""),
        "submitted_at": time.time(),
    }
    try:
        kept_jobs.write(made, document, plan.script)
        if checkpoints is not None:
            checkpoints.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}; --jobs DIR names another place") from None
    return made


def _per_node(given: Mapping[str, str]) -> int:
    """Ranks of a node as far as the options say so; 0 where Slurm decides."""

    def number(name: str) -> int:
        return int(given[name]) if given.get(name, "").isdigit() else 0

    if number("ntasks-per-node"):
        return number("ntasks-per-node")
    tasks, nodes = number("ntasks"), number("nodes")
    return tasks // nodes if tasks and nodes and tasks % nodes == 0 else 0


def _command(plan: Plan, kept: Path) -> list[str]:
    fields = {"folder": str(kept)}
    if per_node := _per_node(plan.given):
        fields["ranks_per_node"] = str(per_node)
    comment = marks.write(plan.given.get("comment", ""), fields)
    script = [] if plan.words.script is None else [plan.words.script, *plan.words.arguments]
    return ["sbatch", *plan.words.options, "--parsable", f"--comment={comment}", *script]


def _passed(command: Sequence[str], plan: Plan, kept: Path | None = None) -> "subprocess.Popen[bytes]":
    """sbatch, with its own stderr; its stdout is read where a job is submitted."""
    environment = {**os.environ, **({} if kept is None else {"PLANARIA_FOLDER": str(kept)})}
    piped = plan.script is not None and plan.words.script is None
    running = subprocess.Popen(
        list(command),
        env=environment,
        stdin=subprocess.PIPE if piped else None,
        stdout=None if kept is None else subprocess.PIPE,
    )
    if piped and running.stdin is not None:
        try:
            running.stdin.write(plan.script or b"")
            running.stdin.close()
        except BrokenPipeError:
            pass  # sbatch has refused its options and said so
    return running


def _target(cluster: str, folder: Path | None, aws: bool) -> tuple[Target | None, str]:
    """The cluster's ledger, or why it cannot be written to: no reason to keep a job from Slurm."""
    try:
        return connect(cluster, folder, aws), ""
    except Exception as error:  # noqa: BLE001  whatever it is, sbatch can go on
        return None, _why(error)


def _register(target: Target | None, job: str, plan: Plan, kept: Path, lineage: Mapping[str, str]) -> str:
    """ "" when the ledger has the job, else why it has not."""
    if target is None:
        return "the ledger cannot be reached"
    facts: dict[str, Any] = {
        "attempt": 1,
        "state": "PENDING",
        "recipe": plan.name,
        "user": _user(),
        "origin": job_facts.SUBMITTED,
        "steps": False,
        "checkpoints": job_facts.OWN_CHECKPOINTS,
        "own_failures": job_facts.RESUME if lineage else job_facts.LEAVE,
        "ranks_per_node": _per_node(plan.given),
        "kept": str(kept),
        "script": plan.words.script or "",
        # Others read the ledger: what may hold a password stays in the user's own folder.
        "options": sbatch_words.without(plan.words.options, PRIVATE),
        "submitted_at": time.time(),
    }
    if lineage:
        facts["lineage"] = dict(lineage)
    try:
        row = target.gateways.jobs.register(job, [], [], facts)
        if row.get("kept") != facts["kept"]:  # an older job's: a new head node begins its ids anew
            target.gateways.jobs.anew(row, [], [], facts)
    except Exception as error:  # noqa: BLE001  the job is submitted, whatever becomes of the row
        return _why(error)
    return ""


def _why(error: Exception) -> str:
    found = sentence(error)
    return found[0].rstrip(".") if found else f"{type(error).__name__}: {error}"


def _mark(checkpoints: Path | None, job: str) -> dict[str, str]:
    """The lineage of the job's checkpoints: {"folder", "continues": the job that began them}. The marker in
    their folder tells every later attempt that it sees the right file system."""
    if checkpoints is None:
        return {}
    path = checkpoints.absolute() / MARKER
    before = path.read_text(encoding="utf-8").split() if path.is_file() else []
    path.write_text("\n".join([*before, job]) + "\n", encoding="utf-8")
    lineage = {"folder": str(checkpoints.absolute())}
    return {**lineage, "continues": before[-1]} if before else lineage


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _say(job: str, kept: Path, plan: Plan, lineage: Mapping[str, str], trouble: str, as_json: bool) -> None:
    if as_json:
        screen.emit(
            {
                "job_id": job,
                "name": plan.name,
                "folder": str(kept),
                "checkpoints": lineage.get("folder"),
                "continues": lineage.get("continues"),
                "registered": not trouble,
                "reason": trouble or None,
            }
        )
        return
    if "parsable" in plan.given:
        screen.say(job, stderr=False)
    else:
        screen.say(f"Submitted batch job {job}", stderr=False)
    if trouble:
        screen.say(f"Not in Planaria's ledger yet: {trouble}. It is healed all the same, found by its nodes.")
