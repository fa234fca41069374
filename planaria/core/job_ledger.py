"""The job's half of the ledger: which nodes it waits for, and one resume at a time.

One row per job (`JOB#<id>`, `JOB`). `nodes` maps the rank position to the instance id, `names` lists the
scheduler names in the same order (a replacement takes the failed node's name, so it never changes).
`pending` maps every node that is being healed to its incident; the job is resumed once, by the write that
finds it empty.
"""

from collections.abc import Mapping
from typing import Any

from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase, resume_name
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
    not_empty,
    one_of,
    smaller,
)

RESUME_IDLE = missing("resume_phase") | one_of(
    "resume_phase", tuple(p.value for p in Phase if p not in ACTIVE)
)

SETTLED_KEPT = 64


class JobLedger:
    def __init__(self, table: Table) -> None:
        self.table = table

    def job(self, job: str) -> Row | None:
        return self.table.get(f"JOB#{job}", "JOB")

    def jobs(self) -> list[Row]:
        return self.table.listing("JOB")

    def register(self, job: str, names: list[str], nodes: list[str], facts: Changes) -> Row:
        """A job as its submitter knows it; registering it again changes nothing."""
        sets: dict[Any, Any] = {
            "listing": "JOB",
            "job_id": job,
            "names": names,
            "nodes": {str(rank): node for rank, node in enumerate(nodes)},
            "pending": {},
            "settled": {},
            "unresolved": {},
            "credits": {},
            "resumes": {},
            "attempt": 0,
            "state": "RUNNING",
            **facts,
        }
        try:
            return self.table.write(f"JOB#{job}", "JOB", sets=sets, when=missing("job_id"))
        except Conflict as conflict:
            assert conflict.row is not None
            return conflict.row

    def write(
        self, job: str, sets: Changes, removes: tuple[Path, ...] = (), when: Condition | None = None
    ) -> Row:
        known = exists("job_id")
        return self.table.write(
            f"JOB#{job}", "JOB", sets=sets, removes=removes, when=known if when is None else known & when
        )

    # --- nodes of the job --------------------------------------------------------------------------

    def wait_for(self, job: str, node: str, incident: str) -> None:
        """The job must not be resumed before this incident has ended. A job that is not in the ledger, or
        was told of the end already, waits for nothing."""
        try:
            self.write(job, {("pending", node): incident}, when=differs(("settled", node), incident))
        except Conflict:
            return

    def stopping(self, job: str, node: str, incident: str) -> None:
        """We are about to end the job's processes, so it is owed a resume. Written before the signal, so
        that the exits of its ranks are known as our doing."""
        row = self.job(job)
        if row is None or row.get("state") == "COMPLETED":
            return
        sets = {"stopped_attempt": row["attempt"], "state": "STOPPED", "owed": incident}
        mine = equals(("pending", node), incident) & equals("attempt", row["attempt"])
        try:
            self.write(job, sets, when=mine)
        except Conflict as conflict:
            if (conflict.row or {}).get("pending", {}).get(node) != incident:
                raise Fenced(f"job {job} was told of the end of {incident} already") from None
            raise

    def completed(self, job: str) -> None:
        """The job had come to its own end: nothing is owed to it."""
        try:
            self.write(job, {"state": "COMPLETED"}, ("owed",))
        except Conflict:
            return

    def owe(self, job: str, attempt: int, why: str) -> None:
        """This attempt ended and its resume cannot be opened now; whoever settles the job's last node opens
        it. Raises Conflict when the attempt or the pending nodes have changed: judge anew."""
        still = equals("attempt", attempt) & not_empty("pending")
        self.write(job, {"owed": why}, when=still)

    def settle(
        self, job: str, node: str, incident: str, replacement: str | None, unresolved: str = ""
    ) -> Row | None:
        """The incident about `node` is over for this job; doing it again changes nothing.

        `replacement` takes the node's position; `unresolved` says why there is none, and holds the job
        until a later incident of that position heals it. None: the job is not in the ledger.
        """
        row = self.job(job)
        if row is None:
            return None
        new = replacement or node
        for rank, member in row["nodes"].items():
            if member == node and new != node:
                try:
                    self.write(job, {("nodes", rank): new}, when=equals(("nodes", rank), node))
                except Conflict:
                    continue
        sets: dict[Any, Any] = {("credits", incident): True, ("settled", node): incident}
        if replacement and row.get("state") != "COMPLETED":
            sets["owed"] = incident
        removes: tuple[Path, ...] = (("pending", node), *_oldest(row["settled"], node))
        if unresolved:
            sets[("unresolved", node)] = unresolved
        else:
            removes += (("unresolved", node),)
        try:
            return self.write(job, sets, removes, when=equals(("pending", node), incident))
        except Conflict as conflict:
            return conflict.row or row

    # --- the resume claim ----------------------------------------------------------------------------

    def claim_resume(
        self,
        job: Row,
        claim_id: str,
        reason: str,
        now: float,
        supersede: bool,
        failed_at: float | None = None,
    ) -> Row:
        """Claim the job's next attempt; `job` is the row that the decision rests on.

        failed_at: when a process of the job failed, which is what this resume is about (epoch seconds).
        With `supersede` (a heal has changed the job's nodes) a resume under way is void and replaced.
        Returns the row as claimed, also when an earlier try of the same claim won. Raises Conflict when
        nodes are pending or unresolved, another resume is under way, or the row changed.
        """
        last = int(job.get("resume_number", 0))
        number = max(last, int(job["attempt"])) + 1
        ready = smaller("pending", 1) & smaller("unresolved", 1) & differs("state", "COMPLETED")
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
            ("resumes", str(number)): now,
            "resume_superseded": {},
            "resume_failed_at": failed_at,
        }
        if job.get("resume_phase") in ACTIVE:
            old = {"name": job.get("resume_name", ""), "arn": job.get("resume_arn", "")}
            sets["resume_superseded"] = old
        try:
            return self.write(
                str(job["job_id"]), sets, ("resume_arn", "waiting", "resume_step_chosen", "owed"), when=ready
            )
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


def _oldest(settled: Mapping[str, str], node: str) -> list[Path]:
    """Entries beyond the newest; incident ids end with the session, which is a time."""
    others = sorted((name for name in settled if name != node), key=lambda name: settled[name][-13:])
    return [("settled", name) for name in others[:-SETTLED_KEPT]]
