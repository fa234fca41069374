"""The job's half of the ledger: which nodes it waits for, and one resume at a time.

One row per job (`JOB#<id>`, `JOB`). `nodes` maps the rank position to the instance id, `names` lists the
scheduler names in the same order (a replacement takes the failed node's name, so it never changes).
`pending` maps every node that is being healed to its incident; the job is resumed once, by the write that
finds it empty. `attempts` tells how each one went (planaria/core/attempts.py), `aside` which checkpoints
are not used for now, `hold` until when its nodes are kept for it, `overdue` that it has waited for longer,
`given_up` why it is not resumed any more until a person orders it. What a scheduler told of it is described
in planaria/core/job_facts.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planaria.core import attempts, job_facts
from planaria.core.errors import Fenced
from planaria.core.ports import Table
from planaria.core.resume_claims import ResumeClaims
from planaria.core.table import Changes, Conflict, Path, Row, below, differs, equals, missing, not_empty

SETTLED_KEPT = 64


class JobLedger(ResumeClaims):
    def __init__(self, table: Table) -> None:
        self.table = table

    def jobs(self) -> list[Row]:
        return self.table.listing("JOB")

    def register(self, job: str, names: list[str], nodes: list[str], facts: Changes) -> Row:
        """A job as its submitter knows it; registering it again changes nothing. nodes: instance ids in the
        order of the ranks, "" where it is not known."""
        sets = _beginning(job, names, nodes, facts)
        try:
            return self.table.write(f"JOB#{job}", "JOB", sets=sets, when=missing("job_id"))
        except Conflict as conflict:
            assert conflict.row is not None
            return conflict.row

    def anew(self, row: Row, names: list[str], nodes: list[str], facts: Changes) -> Row:
        """The id is another job's now: nothing of the old one stays but the number of its resumes, by which
        executions are named. Raises Conflict when the row has changed since it was read."""
        sets = _beginning(str(row["job_id"]), names, nodes, facts)
        gone = tuple(name for name in row if name not in sets and name not in ("pk", "sk", "resume_number"))
        same = equals("attempt", row["attempt"]) & equals("state", row["state"])
        return self.write(str(row["job_id"]), sets, gone, same)

    def lives_again(self, row: Row, state: str) -> Row:
        """A job that had ended is in the queue again, or runs. Raises Conflict as `anew`."""
        ends: tuple[Path, ...] = ("ended_at", "ended_reason", "given_up", "owed")
        same = equals("attempt", row["attempt"]) & equals("state", row["state"])
        return self.write(str(row["job_id"]), {"state": state, "listing": "JOB"}, ends, same)

    # --- nodes of the job --------------------------------------------------------------------------

    def wait_for(self, job: str, node: str, incident: str) -> None:
        """The job must not be resumed before this incident has ended. A job that is not in the ledger, or
        was told of the end already, waits for nothing."""
        try:
            self.write(job, {("pending", node): incident}, when=differs(("settled", node), incident))
        except Conflict:
            return

    def stopping(self, job: str, node: str, incident: str, now: float = 0.0) -> None:
        """We are about to end the job's processes, so it is owed a resume. Written before the signal, so
        that the exits of its ranks are known as our doing. A job that is given up is owed nothing."""
        row = self.job(job)
        if row is None or job_facts.over(row):
            return
        sets: dict[Any, Any] = {"stopped_attempt": row["attempt"]}
        if not row.get("given_up"):
            sets |= {"state": "STOPPED", "owed": incident}
        mine = equals(("pending", node), incident) & equals("attempt", row["attempt"])
        if told := attempts.ended_for_node(row, int(row["attempt"]), now):
            sets, mine = {**sets, **told[0]}, mine & told[1]
        try:
            self.write(job, sets, when=mine)
        except Conflict as conflict:
            if (conflict.row or {}).get("pending", {}).get(node) != incident:
                raise Fenced(f"job {job} was told of the end of {incident} already") from None
            raise

    def failed(self, row: Row, attempt: int, what: str, at: float) -> Row:
        """A process of this attempt failed at `at` (epoch seconds). Raises Conflict when the attempts have
        changed since the row was read."""
        told = attempts.failed(row, attempt, what, at)
        return row if told is None else self.write(str(row["job_id"]), told[0], when=told[1])

    def completed(self, job: str) -> None:
        """The job had come to its own end: nothing is owed to it."""
        try:
            self.write(job, {"state": "COMPLETED"}, ("owed",))
        except Conflict:
            return

    def ended(self, row: Row, state: str, at: float) -> bool:
        """The scheduler tells that the attempt of this row has come to an end that is not ours to mend; False
        when the row has changed since it was read."""
        same = equals("attempt", row["attempt"]) & equals("state", row["state"])
        try:
            self.write(str(row["job_id"]), {"state": state, "ended_at": at}, ("owed",), same)
        except Conflict:
            return False
        return True

    def placed(self, row: Row, names: Sequence[str], nodes: Sequence[str], facts: Changes) -> Row:
        """The job runs on these nodes now, in the order of their ranks. Raises Conflict when its attempt or
        its places have changed since the row was read."""
        sets: dict[Any, Any] = {"names": list(names), "nodes": by_rank(nodes), **facts}
        same = equals("attempt", row["attempt"]) & equals("nodes", row["nodes"])
        return self.write(str(row["job_id"]), sets, when=same)

    def saved(self, job: str, step: int) -> None:
        """A checkpoint of this step is known to be complete. The newest one counts: a list of checkpoints
        that has none is then no reason to start from step 0."""
        try:
            self.write(job, {"saved_step": step}, when=missing("saved_step") | below("saved_step", step))
        except Conflict:
            return

    def owe(self, job: str, attempt: int, why: str) -> None:
        """This attempt ended and its resume cannot be opened now; whoever settles the job's last node opens
        it. Raises Conflict when the attempt or the nodes that it waits for have changed: judge anew."""
        still = equals("attempt", attempt) & (not_empty("pending") | not_empty("unresolved"))
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
        if replacement and not job_facts.over(row) and not row.get("given_up"):
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


def _beginning(job: str, names: list[str], nodes: list[str], facts: Changes) -> dict[Any, Any]:
    return {
        "listing": "JOB",
        "job_id": job,
        "names": names,
        "nodes": by_rank(nodes),
        "pending": {},
        "settled": {},
        "unresolved": {},
        "credits": {},
        "attempts": {},
        "aside": {},
        "attempt": 0,
        "state": "RUNNING",
        **facts,
    }


def by_rank(nodes: Sequence[str]) -> dict[str, str]:
    """Instance ids in the order of the ranks as a row's `nodes`; unknown ones are left out."""
    return {str(rank): node for rank, node in enumerate(nodes) if node}


def _oldest(settled: Mapping[str, str], node: str) -> list[Path]:
    """Entries beyond the newest; incident ids end with the session, which is a time."""
    others = sorted((name for name in settled if name != node), key=lambda name: settled[name][-13:])
    return [("settled", name) for name in others[:-SETTLED_KEPT]]
