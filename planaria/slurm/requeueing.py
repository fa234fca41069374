"""requeue: start an attempt of a job on exactly these nodes.

Asked for, it is noted in the job's AdminComment and driven on by every further call with the same attempt:
back into the queue (held), bound to its nodes, told where to resume, let start. starting.py knows when.
"""

from collections.abc import Sequence

from planaria.core.errors import InvalidInput, PermanentError
from planaria.slurm import jobs, kept_jobs, placing, remembering, telling
from planaria.slurm.alone import alone
from planaria.slurm.jobs import ENDED, Job
from planaria.slurm.placing import Cluster
from planaria.slurm.programs import Slurm
from planaria.slurm.remembering import remember
from planaria.slurm.starting import LONGEST_SECONDS, LOOK_SECONDS, Attempt, adopt, drive, over, runs_on
from planaria.slurm.stopping import put_back

ENDING = "PENDING: its old processes are ending"
TWICE = "the list of nodes is empty or names one twice"


def requeue(
    slurm: Slurm, job: str, names: Sequence[str], attempt: int, resume_step: int, kept: str = ""
) -> dict[str, str]:
    """{job: RUNNING | PENDING | PENDING: <reason> | REFUSED: <reason>}, as core/scheduling.Requeue."""
    with alone(slurm, job) as mine:
        if not mine:
            return {job: "PENDING: another command for this job is at work"}
        try:
            return _requeue(slurm, job, names, attempt, resume_step, kept)
        except PermanentError as error:
            return {job: f"REFUSED: {error}"}


def _requeue(
    slurm: Slurm, job: str, names: Sequence[str], attempt: int, resume_step: int, kept: str
) -> dict[str, str]:
    every = _settled(slurm, job)
    facts = jobs.pick(every, [job]).get(job)
    if facts is not None and remembering.recall(slurm, facts):
        every = jobs.every(slurm)
        facts = jobs.pick(every, [job]).get(job)
    if facts is not None and facts.completing and not facts.head.held:
        return {job: ENDING}
    wanted = Attempt(attempt, tuple(names), resume_step)
    if facts is not None:
        newest = telling.started(facts)
        if attempt < max(1, newest):
            return {job: f"REFUSED: attempt {newest} of {job} was started already"}
        if attempt == newest:
            ours = facts.mark.get("attempt") == str(attempt)
            return {job: drive(slurm, job, _remembered(facts)) if ours else "RUNNING"}
    why = _refused(slurm, job, facts, wanted, every, kept)
    if why:
        return {job: f"REFUSED: {why}"}
    present = facts or _again(slurm, job, attempt, kept)
    if present.state in ENDED:
        present = _queued(slurm, job, present)
    if present.state in ENDED or present.state == "":
        return {job: ENDING}
    stopped_at = remembering.number(present, "signalled")
    if 0 < stopped_at < present.head.start and runs_on(slurm, present, remembering.number(present, "at")):
        return {job: adopt(slurm, present, wanted)}
    _note(slurm, present, wanted)
    return {job: drive(slurm, job, wanted)}


def _settled(slurm: Slurm, job: str) -> list[Job]:
    """All jobs, once nothing of this one is ending: until then nobody can tell how it ended."""
    until = slurm.now() + LONGEST_SECONDS
    while True:
        every = jobs.every(slurm)
        facts = jobs.pick(every, [job]).get(job)
        if facts is None or not facts.completing or facts.head.held or slurm.now() >= until:
            return every
        slurm.sleep(LOOK_SECONDS)


def _queued(slurm: Slurm, asked: str, job: Job) -> Job:
    """Back in the queue, held. Slurm takes no note about a job that has ended."""
    put_back(slurm, job)
    until = slurm.now() + LONGEST_SECONDS
    while job.state in ENDED and slurm.now() < until:
        slurm.sleep(LOOK_SECONDS)
        job = jobs.one(slurm, asked) or job
    return job


def _refused(
    slurm: Slurm, job: str, facts: Job | None, wanted: Attempt, every: Sequence[Job], kept: str
) -> str:
    if facts is None and not kept:
        return f"no job {job}"
    if facts is not None and (why := _over(facts)):
        return why
    if not wanted.nodes or len(set(wanted.nodes)) != len(wanted.nodes):
        return TWICE
    why = _unfit(placing.look(slurm, every), facts.id if facts else job, wanted.nodes)
    return why or (_size(facts, len(wanted.nodes)) if facts else "")


def _over(job: Job) -> str:
    """Why this job is not to be started any more."""
    if why := over(job):
        return why
    if not job.head.batch:
        return f"{job.id} is no batch job (salloc or srun), so Slurm cannot start it again"
    if not job.head.requeue and job.state != "PENDING":
        return f"{job.id} was submitted with --no-requeue, so Slurm does not start it again"
    return ""


def _unfit(cluster: Cluster, job: str, names: Sequence[str]) -> str:
    return next((why for name in names if (why := cluster.why_not(job, name))), "")


def _size(job: Job, count: int) -> str:
    least = sum(record.node_count for record in job.records)
    most = sum(record.most_nodes for record in job.records)
    if least <= count <= most or (len(job.records) == 1 and count == len(job.nodes)):
        return ""
    return f"{job.id} runs on {least} nodes, not on {count}"


def _again(slurm: Slurm, job: str, attempt: int, kept: str) -> Job:
    """Slurm has forgotten the job: submitted once more, held, and known by its first id from now on."""
    new = kept_jobs.resubmit(kept, job, attempt, slurm)
    found = jobs.one(slurm, new)
    if found is None:
        raise InvalidInput(f"job {job} was submitted again as {new}, which Slurm does not know")
    remember(slurm, found, {"job": job})
    return jobs.one(slurm, job) or found


def _note(slurm: Slurm, job: Job, wanted: Attempt) -> None:
    own: dict[str, str | None] = {}
    if "required" not in job.mark:
        own = {
            "required": "|".join(record.required for record in job.records),
            "excluded": "|".join(record.excluded for record in job.records),
        }
    remember(
        slurm,
        job,
        {
            **own,
            "attempt": str(wanted.number),
            "nodes": ",".join(wanted.nodes),
            "step": str(wanted.resume_step),
            "before": ",".join(job.nodes) or job.mark.get("nodes") or None,
            "from": str(job.head.restarts),
            "restart": None,
            "released": None,
            "launches": None,
        },
    )


def _remembered(job: Job) -> Attempt:
    mark = job.mark
    names = tuple(each for each in mark.get("nodes", "").split(",") if each)
    step = mark.get("step", "")
    return Attempt(int(mark["attempt"]), names, int(step) if step.lstrip("-").isdigit() else -1)
