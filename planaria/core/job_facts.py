"""What a scheduler tells of a job (scheduling.JobQuery), read with care, and what follows for its row.

Attributes of a row that was made from it: origin ("submit": by `planaria submit`, "found": on a node that
failed), user, kept (folder with script and options), lineage {"folder": str, "continues": job id},
steps (False: nobody reports its steps), checkpoints ("own": the job finds its checkpoints by itself),
own_failures ("leave": only what failed for a node is started again), ended_at (epoch seconds).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core import attempts
from planaria.core.plans import STILL_WORKS, is_gone
from planaria.core.scheduling import JobState
from planaria.core.table import Row

SUBMITTED, FOUND = "submit", "found"
OWN_CHECKPOINTS = "own"
LEAVE, RESUME = "leave", "resume"

ENDED = frozenset({"COMPLETED", "CANCELLED", "TIMEOUT"})
"""States of a row whose job came to an end that no node is to blame for."""

AGENT_SECONDS = 90.0
"""The node's own agent reads its kernel's log as it is written, and bears the fault's own time. Others, as
EC2's status checks, need minutes."""

LIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.COMPLETING})
FAILED = frozenset({JobState.FAILED, JobState.NODE_FAIL})
WORKS = frozenset({JobState.RUNNING, JobState.COMPLETING})


@dataclass(frozen=True, slots=True)
class Told:
    """One entry of a JobQuery's answer. Fields as there; folder: of `planaria submit`, where it has one."""

    state: JobState
    nodes: tuple[str, ...] = ()
    ranks_per_node: int = 0
    attempt: int = 0
    restarts: int = 0
    exit_code: int = 0
    user: str = ""
    name: str = ""
    requeue: bool = True
    batch: bool = True
    reason: str = ""
    start: float = 0.0
    end: float = 0.0
    folder: str = ""

    @property
    def failed(self) -> bool:
        return self.state in FAILED

    def how(self) -> str:
        """How it failed, in words that are the same whenever it fails the same way."""
        return attempts.NODE if self.state is JobState.NODE_FAIL else attempts.signature(self.exit_code, "")


def read(entry: object) -> Told:
    """The entry of one job. What is missing or of a wrong type has its default, and a state that cannot be
    read is UNKNOWN, so that nothing is done for it."""
    given: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    word, nodes = _text(given.get("state")), given.get("nodes")
    return Told(
        state=JobState(word) if word in set(JobState) else JobState.UNKNOWN,
        nodes=tuple(str(name) for name in nodes) if isinstance(nodes, list | tuple) else (),
        ranks_per_node=_whole(given.get("ranks_per_node")),
        attempt=_whole(given.get("attempt")),
        restarts=_whole(given.get("restarts")),
        exit_code=_whole(given.get("exit_code")),
        user=_text(given.get("user")),
        name=_text(given.get("name")),
        requeue=given.get("requeue") is not False,
        batch=given.get("batch") is not False,
        reason=_text(given.get("reason")),
        start=_seconds(given.get("start")),
        end=_seconds(given.get("end")),
        folder=_text(given.get("folder")),
    )


def never_again(job: str, told: Told) -> str:
    """Why nobody may start this job again, in one sentence; "" when it may be."""
    if not told.batch:
        return (
            f"job {job} has no batch script (salloc, or srun outside of a batch job), so only its user can "
            "start it again"
        )
    if not told.requeue:
        return (
            f"job {job} was submitted with --no-requeue (Requeue=0), so it is not started again; "
            "its user can submit it anew"
        )
    return ""


def failed_for(end: float, node: Row) -> bool:
    """A job that failed at `end` (epoch seconds) did so for this node, by the row of its session: survivors
    often raise before a detector sees what they felt, by as much as that detector needs. An end that is only
    announced, or ordered by a person, is no fault that a job could have felt."""
    if not is_gone(node) and (node.get("verb") or (node.get("fault") or {}).get("kind") in STILL_WORKS):
        return False
    seen_at = float(node.get("detected_at") or node.get("opened_at") or 0.0)
    agent = str((node.get("fault") or {}).get("detector", "")).startswith("agent")
    return end >= seen_at - (AGENT_SECONDS if agent else attempts.BLAME_SECONDS)


def row_facts(told: Told, origin: str) -> dict[str, Any]:
    """The facts with which such a job is registered. What it was told before is not known."""
    facts: dict[str, Any] = {
        "attempt": max(1, told.attempt),
        "state": "RUNNING" if told.state in WORKS or told.failed else "PENDING",
        "recipe": told.name,
        "user": told.user,
        "origin": origin,
        "steps": False,
        "checkpoints": OWN_CHECKPOINTS,
        "own_failures": LEAVE,
        "ranks_per_node": told.ranks_per_node,
    }
    if told.folder:
        facts["kept"] = told.folder
    return facts


def reports_steps(job: Row) -> bool:
    return job.get("steps") is not False


def finds_its_checkpoints(job: Row) -> bool:
    return bool(job.get("checkpoints") == OWN_CHECKPOINTS)


def resumes_itself(job: Row) -> bool:
    """Whether a failure that no node is to blame for leads to another attempt (within the budget)."""
    return job.get("own_failures") != LEAVE


def over(job: Row) -> bool:
    """The job has come to an end that leaves nothing to do."""
    return job.get("state") in ENDED


def another(job: Row, told: Told) -> bool:
    """The scheduler has given this id to another job since the row was written: ids begin anew with a new
    head node. The same job can only live again by a restart."""
    if told.user and job.get("user") and told.user != job["user"]:
        return True
    return "ended_at" in job and told.state in LIVE and told.restarts == 0


def lives_again(job: Row, told: Told) -> bool:
    """The job had ended by its row, and its user or the scheduler has put it back into the queue."""
    return "ended_at" in job and told.state in LIVE and not another(job, told)


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
