"""How the attempts of a job went, on its own row, and what follows from that for the next one.

    attempts {"2": {"step": checkpoint it started from (-1: none), "at": epoch seconds of its start,
                    "stepped": true once it made a step,
                    "failure": {"what": how it failed, "at": epoch seconds}}}

An attempt that was ended for a node's sake failed as NODE, and says nothing of the job or its checkpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.policy import Policy
from planaria.core.table import Changes, Condition, Path, Row, equals, missing

NODE = "node"

ALIKE_FROM_ONE_COPY = 2
"""Attempts from one checkpoint that fail alike and bring no newer one: then an older checkpoint is tried."""

ALIKE_WITHOUT_STEP = 3
"""Attempts in a row that fail alike before their first step: then the job fails by itself. The third started
from an older checkpoint, if there was one, so it is neither the copy nor a whim."""

BLAME_SECONDS = 300.0
"""What failed so long before a node was taken out of work failed for the node: EC2's own status checks need
minutes to see what the ranks felt at once."""

KEPT = 16

_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b")


@dataclass(frozen=True, slots=True)
class Attempt:
    """step: None where it is not known. failure: "" while there is none."""

    number: int
    step: int | None
    failure: str
    failed_at: float
    stepped: bool

    @property
    def own(self) -> bool:
        """It failed, and no node was to blame."""
        return self.failure not in ("", NODE)


def of(job: Row) -> list[Attempt]:
    """What is known of the job's attempts, the oldest first."""
    first = job.get("first_step") or {}
    return sorted(
        (_attempt(int(number), entry, first) for number, entry in (job.get("attempts") or {}).items()),
        key=lambda attempt: attempt.number,
    )


def _attempt(number: int, entry: Mapping[str, Any], first: Mapping[str, Any]) -> Attempt:
    failure, step = entry.get("failure") or {}, entry.get("step")
    return Attempt(
        number,
        None if step is None else int(step),
        str(failure.get("what", "")),
        float(failure.get("at", 0.0)),
        bool(entry.get("stepped")) or first.get("attempt") == number,
    )


def signature(exit_code: int, reason: str) -> str:
    """How a rank failed, in words that are the same whenever it fails the same way."""
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    error = _ERROR.search(reason)
    return f"{how} ({error.group()})" if error else how


def by_itself(job: Row, policy: Policy, now: float) -> str:
    """Why the job is not resumed any more, "" when it is: it fails on its own, and no node is the reason.

    Failures before a person's own order do not count, nor do those of nodes.
    """
    since = float(job.get("ordered_at") or 0.0)
    attempts = of(job)
    own = [attempt for attempt in attempts if attempt.own and attempt.failed_at > since]
    stepped = max((attempt.number for attempt in attempts if attempt.stepped), default=0)
    # Whether the attempt that the job's submitter started had made a step is not known for sure.
    ours = [attempt for attempt in own if attempt.number > stepped and attempt.step is not None]
    last = ours[-ALIKE_WITHOUT_STEP:]
    if len(last) == ALIKE_WITHOUT_STEP and _alike(last):
        numbers = ", ".join(str(attempt.number) for attempt in last)
        return (
            f"job {job['job_id']} fails by itself: attempts {numbers} ended with {last[0].failure} before "
            f"their first step ({_copies(last)}); no node is to blame"
        )
    window = policy.resume_window_seconds
    recent = [attempt for attempt in own if attempt.failed_at > now - window]
    if len(recent) <= policy.max_resumes:
        return ""
    return (
        f"job {job['job_id']} was resumed {len(recent) - 1} times within {window:.0f} s "
        f"after failures of its own (policy.max_resumes is {policy.max_resumes}), the last with "
        f"{recent[-1].failure}; a person must look at it"
    )


def suspect(job: Row) -> tuple[int, str] | None:
    """(step, why) of the checkpoint from which the last attempts failed alike. Whoever asks knows whether a
    newer one has come since."""
    since = float(job.get("ordered_at") or 0.0)
    last = [a for a in of(job) if a.own and a.failed_at > since][-ALIKE_FROM_ONE_COPY:]
    if len(last) < ALIKE_FROM_ONE_COPY or not _alike(last):
        return None
    step = last[0].step
    if step is None or step < 0 or any(attempt.step != step for attempt in last):
        return None
    numbers = " and ".join(str(attempt.number) for attempt in last)
    return step, f"attempts {numbers} from it ended with {last[0].failure} before a newer one was saved"


def _alike(attempts: list[Attempt]) -> bool:
    return len({attempt.failure for attempt in attempts}) == 1


def _copies(attempts: list[Attempt]) -> str:
    steps = {attempt.step for attempt in attempts if attempt.step is not None}
    named = [f"step {step}" if step >= 0 else "the beginning" for step in sorted(steps, reverse=True)]
    return f"started from {' and from '.join(named)}" if named else "wherever they started"


# --- writes on the job's row ------------------------------------------------------------------------

Write = tuple[dict[Any, Any], Condition]
"""What to set, and what must still be true of the row that it rests on."""


def started(job: Row, number: int, step: int, now: float) -> tuple[Changes, tuple[Path, ...]]:
    """(sets, removes) where attempt `number` starts: by the one resume that may."""
    entries = job.get("attempts")
    entry = {"step": step, "at": now}
    if entries is None:
        return {"attempts": {str(number): entry}}, ()
    sets: dict[Any, Any] = {("attempts", str(number)): entry}
    first = str((job.get("first_step") or {}).get("attempt"))
    if first in entries and first != str(number):
        sets["attempts", first, "stepped"] = True
    others = sorted((int(name) for name in entries if int(name) < number), reverse=True)
    # Of one that neither failed nor made a step there is nothing to tell: the scheduler never started it.
    told = [
        str(old) for old in others if entries[str(old)].get("failure") or entries[str(old)].get("stepped")
    ]
    gone = [str(old) for old in others if str(old) not in told[: KEPT - 1] and str(old) != first]
    return sets, tuple(("attempts", old) for old in gone)


def failed(job: Row, number: int, what: str, at: float) -> Write | None:
    """A process of this attempt failed at `at`; None when that is known. The earliest failure counts: what
    fails after it fails because of it."""
    entry = _entry(job, number)
    known = entry.get("failure") or {}
    if known and (known["what"] == NODE or float(known["at"]) <= at):
        return None
    return _written(job, {number: {**entry, "failure": {"what": what, "at": at}}})


def ended_for_node(job: Row, number: int, now: float) -> Write | None:
    """This attempt is ended for a node's sake, which is why the failures shortly before happened too."""
    blamed = {
        attempt.number for attempt in of(job) if attempt.own and attempt.failed_at >= now - BLAME_SECONDS
    }
    changed = {}
    for each in blamed | {number}:
        entry = _entry(job, each)
        known = entry.get("failure") or {"at": now}
        if known.get("what") != NODE:
            changed[each] = {**entry, "failure": {"what": NODE, "at": known["at"]}}
    return _written(job, changed) if changed else None


def _entry(job: Row, number: int) -> dict[str, Any]:
    return dict((job.get("attempts") or {}).get(str(number)) or {})


def _written(job: Row, changed: Mapping[int, Mapping[str, Any]]) -> Write:
    if job.get("attempts") is None:
        return {"attempts": {str(number): dict(entry) for number, entry in changed.items()}}, missing(
            "attempts"
        )
    sets: dict[Any, Any] = {}
    when: Condition | None = None
    for number, entry in changed.items():
        path, old = ("attempts", str(number)), job["attempts"].get(str(number))
        sets[path] = dict(entry)
        same = missing(path) if old is None else equals(path, old)
        when = same if when is None else when & same
    assert when is not None
    return sets, when
