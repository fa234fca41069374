"""The resume claim on a job's row: one resume at a time, fenced by its number."""

from typing import Any

from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase, resume_name
from planaria.core.job_facts import ENDED
from planaria.core.ports import Table
from planaria.core.table import (
    Changes,
    Condition,
    Conflict,
    Path,
    Row,
    differs,
    equals,
    exists,
    missing,
    one_of,
    smaller,
)

RESUME_IDLE = missing("resume_phase") | one_of(
    "resume_phase", tuple(p.value for p in Phase if p not in ACTIVE)
)


class ResumeClaims:
    """Rows `JOB#<id>`, `JOB`; see planaria/core/job_ledger.py."""

    table: Table

    def job(self, job: str) -> Row | None:
        return self.table.get(f"JOB#{job}", "JOB")

    def write(
        self, job: str, sets: Changes, removes: tuple[Path, ...] = (), when: Condition | None = None
    ) -> Row:
        known = exists("job_id")
        return self.table.write(
            f"JOB#{job}", "JOB", sets=sets, removes=removes, when=known if when is None else known & when
        )

    def claim_resume(
        self,
        job: Row,
        claim_id: str,
        reason: str,
        now: float,
        supersede: bool,
        failed_at: float | None = None,
        ordered: bool = False,
        deaths: int = 0,
    ) -> Row:
        """Claim the job's next attempt; `job` is the row that the decision rests on.

        failed_at: when a process of the job failed, which is what this resume is about (epoch seconds).
        ordered: a person has looked at the job, so nothing that happened before counts against it.
        deaths: how many executions in a row have died over this resume.
        With `supersede` (a heal has changed the job's nodes) a resume under way is void and replaced.
        Returns the row as claimed, also when an earlier try of the same claim won. Raises Conflict when
        nodes are pending or unresolved, another resume is under way, or the row changed.
        """
        last = int(job.get("resume_number", 0))
        number = max(last, int(job["attempt"])) + 1
        ready = smaller("pending", 1) & smaller("unresolved", 1)
        for state in sorted(ENDED):
            ready = ready & differs("state", state)
        ready = ready & (missing("resume_number") if last == 0 else equals("resume_number", last))
        if not supersede:
            ready = ready & RESUME_IDLE
        sets: dict[Any, Any] = {
            "resume_number": number,
            "resume_claim": claim_id,
            "resume_phase": Phase.CLAIMED.value,
            "resume_reason": reason,
            "resume_name": resume_name(str(job["job_id"]), number),
            "resume_opened_at": now,
            "resume_superseded": {},
            "resume_failed_at": failed_at,
            "resume_deaths": deaths,
        }
        removes: tuple[Path, ...] = ("resume_arn", "waiting", "resume_step_chosen", "owed", "overdue")
        if ordered:
            sets |= {"ordered_at": now, "aside": {}}
            removes += ("given_up", "no_room")
        if job.get("resume_phase") in ACTIVE:
            old = {"name": job.get("resume_name", ""), "arn": job.get("resume_arn", "")}
            sets["resume_superseded"] = old
        try:
            return self.write(str(job["job_id"]), sets, removes, when=ready)
        except Conflict as conflict:
            if conflict.row is not None and conflict.row.get("resume_claim") == claim_id:
                return conflict.row
            raise

    def enter(self, job: str, number: int) -> Row:
        """The job's row, if this resume is still its active one."""
        row = self.job(job)
        if row is None or row.get("resume_number") != number or row.get("resume_phase") not in ACTIVE:
            raise Fenced(f"resume {number} of job {job} is over")
        return row

    def write_resume(
        self,
        job: str,
        number: int,
        sets: Changes,
        removes: tuple[Path, ...] = (),
        when: Condition | None = None,
    ) -> Row:
        """A write fenced by the resume's number. Raises Fenced, or Conflict when only `when` failed."""
        fence = equals("resume_number", number) & one_of("resume_phase", ACTIVE)
        try:
            return self.write(job, sets, removes, when=fence if when is None else fence & when)
        except Conflict as conflict:
            row = conflict.row or {}
            if row.get("resume_number") == number and row.get("resume_phase") in ACTIVE:
                raise
            raise Fenced(f"resume {number} of job {job} is over") from None

    def close_resume(self, job: str, number: int, outcome: Phase, reason: str, now: float) -> bool:
        """End the resume; False when it had ended already."""
        sets: dict[Any, Any] = {
            "resume_phase": outcome.value,
            "resume_outcome_reason": reason,
            "resume_ended_at": now,
        }
        if outcome is Phase.HEALED:
            sets["credits"] = {}
        elif outcome is Phase.ESCALATED:
            sets["state"] = "FAILED"
        try:
            self.write_resume(job, number, sets, ("waiting",))
        except Fenced:
            return False
        return True
