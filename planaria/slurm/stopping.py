"""stop: end all processes of jobs, and keep the jobs in Slurm.

A batch job is signalled, given its grace, and put back into the queue, held: so it is known for longer than
MinJobAge and does not start by itself on whatever is free. What cannot be put back (salloc, srun,
--no-requeue) is cancelled.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack

from planaria.slurm import jobs
from planaria.slurm.alone import alone
from planaria.slurm.jobs import ENDED, Job, Record
from planaria.slurm.programs import Slurm, SlurmError
from planaria.slurm.remembering import number, remember

LONGEST_SECONDS = 10.0
"""One command waits so long; asked again it goes on."""

LOOK_SECONDS = 0.25

STEP = re.compile(r"\d+(?:_\d+|\+\d+)?\.\d+")
"""A step that srun started; `.batch` and `.extern` are Slurm's own."""


def stop(
    slurm: Slurm, ids: Sequence[str], signal: str, grace_seconds: float, sent: int = 0
) -> dict[str, str]:
    """As core/scheduling.Stop. sent: when it was asked for (epoch seconds; 0: just now). An order that comes
    after the job's next start does nothing: whoever still wants it stopped asks again. Raises SlurmError when
    Slurm cannot be asked."""
    with ExitStack() as locks:
        mine = [job for job in sorted(ids) if locks.enter_context(alone(slurm, job, LONGEST_SECONDS))]
        if sent:
            found = jobs.read(slurm, mine)
            mine = [job for job in mine if job not in found or number(found[job], "released") <= sent + 1]
        words = _stop(slurm, mine, signal, grace_seconds) if mine else {}
        return {job: words.get(job, "COMPLETING") for job in ids}


def _stop(slurm: Slurm, ids: Sequence[str], signal: str, grace_seconds: float) -> dict[str, str]:
    until = slurm.now() + LONGEST_SECONDS
    words: dict[str, str] = {}
    found = jobs.read(slurm, ids)
    signalled = [job.id for job in found.values() if _signal(slurm, job, signal)]
    if signalled:
        found = jobs.read(slurm, ids)  # with what is noted about the signal
    while True:
        for asked in ids:
            if words.get(asked, "COMPLETING") == "COMPLETING":
                words[asked] = _go_on(slurm, asked, found.get(asked), grace_seconds)
        if "COMPLETING" not in words.values() or slurm.now() >= until:
            return words
        slurm.sleep(LOOK_SECONDS)
        found = jobs.read(slurm, ids)


def stopped_by_us(job: Job) -> bool:
    """It ended because of our signal, or waits in the queue because of it: no end of its own.

    Slurm calls a job CANCELLED only when somebody cancels it, which we do only to one that cannot return. And
    what ended after it was put back into the queue ended by somebody else's word.
    """
    signalled = number(job, "signalled")
    if not signalled:
        return False
    if job.state not in ENDED:
        return True
    if job.can_requeue and (job.state == "CANCELLED" or job.head.restarts > number(job, "at")):
        return False
    return job.head.end >= signalled


def can_return(job: Job) -> bool:
    """It ended badly, or by our doing, and Slurm may put it back into the queue."""
    if not job.can_requeue or job.state not in ENDED:
        return False
    return stopped_by_us(job) or job.state not in ("COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE")


def put_back(slurm: Slurm, job: Job) -> None:
    """Into the queue, held; a job that cannot go there is cancelled. Slurm signals what is left of it."""
    if job.can_requeue:
        slurm.ask("scontrol", "requeuehold", job.target)
    else:
        slurm.ask("scancel", job.target)


def end_now(slurm: Slurm, job: Job) -> None:
    """Kill its steps and put it back: Slurm itself would first wait for KillWait."""
    if steps := _steps(slurm, job):
        _quietly(slurm, "scancel", "--signal=KILL", *steps)
    put_back(slurm, job)


def _signal(slurm: Slurm, job: Job, signal: str) -> bool:
    """Once for each start of the job; noted first, so that what it then does is known as our doing."""
    if job.state not in ("RUNNING", "SUSPENDED") or job.completing or _signalled(job):
        return False
    steps = bool(_steps(slurm, job))
    remember(
        slurm,
        job,
        {
            "signalled": str(int(slurm.now())),
            "at": str(job.head.restarts),
            "steps": "1" if steps else "0",
        },
    )
    if job.state == "SUSPENDED":
        _quietly(slurm, "scontrol", "resume", job.target)
    # Only the steps where there are any: the signal would make srun in the script kill them at once.
    whole = () if steps else ("--full",)
    _quietly(slurm, "scancel", f"--signal={signal}", *whole, job.target)
    return True


def _signalled(job: Job) -> bool:
    return number(job, "signalled") >= job.head.start > 0


def _go_on(slurm: Slurm, asked: str, job: Job | None, grace_seconds: float) -> str:
    if job is None:
        return f"UNKNOWN: no job {asked}"
    if job.completing:
        if _signalled(job) and not job.head.held and job.can_requeue:
            put_back(slurm, job)
        return "COMPLETING"
    if job.state == "PENDING":
        if not job.head.held:
            slurm.ask("scontrol", "hold", job.target)
        _own_lists(slurm, job)
        return "STOPPED"
    if job.state in ENDED:
        if can_return(job):
            put_back(slurm, job)
            return "COMPLETING"
        return "COMPLETED" if job.state == "COMPLETED" and not stopped_by_us(job) else "STOPPED"
    return _running(slurm, job, grace_seconds)


def _running(slurm: Slurm, job: Job, grace_seconds: float) -> str:
    over = slurm.now() >= number(job, "signalled") + grace_seconds
    steps = _steps(slurm, job) if over or job.mark.get("steps") == "1" else []
    if not over and (steps or job.mark.get("steps") != "1"):
        return "COMPLETING"
    # The script is never killed alone, which would leave its children; and where the signal has ended all
    # steps, it would go on with its next line.
    end_now(slurm, job)
    return "COMPLETING"


def _own_lists(slurm: Slurm, job: Job) -> None:
    """Put back the user's own --nodelist and --exclude. Slurm allows that in the queue alone: of a job that
    runs, a change of ReqNodeList means to shrink it."""
    if "required" not in job.mark:
        return
    required, excluded = (job.mark.get(name, "").split("|") for name in ("required", "excluded"))
    for at, record in enumerate(job.records):
        set_lists(slurm, record, "".join(required[at : at + 1]), "".join(excluded[at : at + 1]))
    remember(slurm, job, {"required": None, "excluded": None})


def unpin(slurm: Slurm, job: Job) -> None:
    """Somebody else has put the job back into the queue since we started it: it need not wait for the nodes
    of our attempt."""
    started = number(job, "released") > 0 and "required" in job.mark
    if started and job.startable and not job.head.held and job.head.restarts > number(job, "restart"):
        with alone(slurm, job.id, 0.0) as mine:
            if mine:
                _own_lists(slurm, job)


def set_lists(slurm: Slurm, record: Record, required: str, excluded: str) -> None:
    """--nodelist and --exclude of one record. scontrol takes no ReqNodeList for the leader of a heterogeneous
    job (its number stands for all components), so that one is bound by what it excludes."""
    if record.leads:
        slurm.ask("scontrol", "update", f"JobId={record.part}", f"ExcNodeList={excluded}")
        return
    name = record.raw if record.root != record.raw else record.target
    slurm.ask("scontrol", "update", f"JobId={name}", f"ReqNodeList={required}", f"ExcNodeList={excluded}")


def _steps(slurm: Slurm, job: Job) -> list[str]:
    """The steps that srun has started and that are not over."""
    ids = ",".join(record.target for record in job.records)
    printed = slurm.ask("squeue", "--noheader", "--steps", f"--jobs={ids}", "--format=%i")
    return [step for line in printed.splitlines() if STEP.fullmatch(step := line.strip())]


def _quietly(slurm: Slurm, *arguments: str) -> None:
    """An order that fails when the job has just ended; the next look tells."""
    try:
        slurm.ask(*arguments)
    except SlurmError as error:
        if not re.search(
            r"not running|already|Invalid job id|no longer|not suspended|[Cc]ompleting", error.said
        ):
            raise
