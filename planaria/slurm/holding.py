"""hold: nodes are kept free for one job by a reservation that only its user may use.

    planaria_<job>   Users=<the job's user>   Flags=IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER,OVERLAP

IGNORE_JOBS, for the job runs there when it is made; FLEX, or Slurm would end the job with the reservation
and would not let it start when its time limit is longer. The job is bound to it, so that nothing but the job
starts there, also when Slurm requeues it by itself. Slurm deletes no reservation that a job refers to: the
job is released from it first. OVERLAP, since jobs that share a node come back to it together.
"""

import math
import re
from collections.abc import Sequence

from planaria.core.errors import InvalidInput
from planaria.slurm import hostlist, jobs, nodes, text_form
from planaria.slurm.alone import alone
from planaria.slurm.jobs import ENDED, Job
from planaria.slurm.programs import Slurm, SlurmError, Unreadable

PREFIX = "planaria_"
FLAGS = "IGNORE_JOBS,FLEX,NO_HOLD_JOBS_AFTER,OVERLAP"
LONGEST_SECONDS = 30 * 86400


def hold(slurm: Slurm, job: str, names: Sequence[str], seconds: float) -> dict[str, str]:
    """{job: HELD | UNKNOWN: <reason>}; without names the hold ends. The newer hold counts."""
    with alone(slurm, job) as mine:
        return _hold(slurm, job, names, seconds) if mine else {job: "UNKNOWN: another command is at work"}


def _hold(slurm: Slurm, job: str, names: Sequence[str], seconds: float) -> dict[str, str]:
    facts = jobs.one(slurm, job)
    if facts is None:
        return {job: f"UNKNOWN: no job {job}"}
    if not names:
        let_go(slurm, facts)
        return {job: "HELD"}
    if lacking := [name for name in names if name not in nodes.read(slurm, names)]:
        return {job: f"UNKNOWN: no node {lacking[0]}"}
    if facts.state in ENDED and facts.state in ("COMPLETED", "CANCELLED") and not facts.mark.get("signalled"):
        return {job: f"UNKNOWN: {job} has ended ({facts.state})"}
    try:
        keep(slurm, facts, names, seconds)
    except SlurmError as error:
        if not error.said:
            raise
        return {job: f"UNKNOWN: {error.said}"}
    return {job: "HELD"}


def own(job: Job) -> str:
    """The reservation that the job was submitted with, "" for none. It stays in it: Slurm lets a job use one
    reservation, and its nodes are kept from everybody who has no right to them already."""
    named = job.head.reservation
    return "" if job_of(named) else named


def keep(slurm: Slurm, job: Job, names: Sequence[str], seconds: float) -> None:
    """Make the reservation, or give it these nodes and this end, and bind the job to it. Nothing is done for
    a job that has a reservation of its own."""
    if own(job):
        return
    name = reservation(job)
    end = f"EndTime=now+{min(LONGEST_SECONDS, max(1, math.ceil(seconds)))}seconds"
    listed = hostlist.compress(names)
    if name in held(slurm):
        slurm.ask(
            "scontrol",
            "update",
            f"ReservationName={name}",
            f"Nodes={listed}",
            end,
        )
    else:
        slurm.ask(
            "scontrol",
            "create",
            "reservation",
            f"ReservationName={name}",
            "StartTime=now",
            end,
            f"Nodes={listed}",
            f"Users={job.head.user}",
            f"Flags={FLAGS}",
        )
    for record in job.records:
        if record.reservation != name and record.state not in ENDED:
            slurm.ask("scontrol", "update", f"JobId={record.part}", f"ReservationName={name}")


def let_go(slurm: Slurm, job: Job) -> None:
    """Others may have the nodes now. Nothing is done where nothing is held."""
    if own(job):
        return
    name = reservation(job)
    for record in job.records:
        if record.reservation == name and record.state not in ENDED:
            slurm.ask("scontrol", "update", f"JobId={record.part}", "ReservationName=")
    if name in held(slurm):
        slurm.ask("scontrol", "delete", f"ReservationName={name}")


def reservation(job: Job) -> str:
    return f"{PREFIX}{job.id.replace('+', '_')}"


def held(slurm: Slurm) -> dict[str, tuple[str, ...]]:
    """Every active reservation by name, whoever made it -> the nodes that it keeps from others."""
    what = "the answer of `scontrol show reservation`"
    try:
        printed = slurm.ask("scontrol", "--oneliner", "show", "reservation")
    except SlurmError as error:
        if "not found" in error.said:
            return {}
        raise
    if not printed.strip():
        # Where there is none, Slurm says so; it also ends well with no word when slurmctld is away.
        raise Unreadable(f"{what} is empty")
    found: dict[str, tuple[str, ...]] = {}
    for line in printed.splitlines():
        if not line.strip() or line.startswith("No reservations"):
            continue
        row = text_form.fields(line, KEYS, ("ReservationName", "Nodes", "State"), what)
        if row["State"] == "ACTIVE":
            try:
                found[row["ReservationName"]] = tuple(hostlist.expand(row["Nodes"]))
            except InvalidInput as error:
                raise Unreadable(f"{what} has nodes that cannot be read: {error}") from None
    return found


def job_of(name: str) -> str:
    """The job for which a reservation of ours was made, "" for another one."""
    found = re.fullmatch(PREFIX + r"(\d+(?:_\d+)?)", name)
    return found[1] if found else ""


KEYS = ("ReservationName", "StartTime", "EndTime", "Nodes", "NodeCnt", "Flags", "Users", "State")
