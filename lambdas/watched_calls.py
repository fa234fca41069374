"""The calls of sweep that ask a scheduler about many jobs, a bounded number at a time and in turn.

Row `WATCH`, `JOBS`: {"after": the last job id that was asked about,
                      "calls": [{"ticket": str, "jobs": [job id], "at": epoch seconds}]}
"""

import time
from typing import Any

from lambdas import boundary
from planaria.core.ports import AnswerState
from planaria.core.scheduling import JobQuery
from planaria.wiring import Gateways

KEY = ("WATCH", "JOBS")

JOBS_OF_A_CALL = 40
"""Their answer fits into the 24,000 characters that come back from a head node."""

CALLS = 5
"""Of one sweep."""

POLLS = 30
"""A tenth of a second apart: a command on a head node takes a second or two."""

OUT_SECONDS = 300.0
"""A call that has no answer by then never gets one."""


def ask(gw: Gateways, jobs: list[str]) -> dict[str, Any]:
    """What the scheduler has told by now, by job id: in answer to the calls of earlier sweeps, and to those
    made now about the jobs whose turn it is, where it answers at once."""
    row, now = gw.table.get(*KEY) or {}, gw.clock.now()
    calls = [call for call in row.get("calls", []) if now - float(call["at"]) < OUT_SECONDS]
    out = {job for call in calls for job in call["jobs"]}
    turn, after = _turn(
        sorted(set(jobs) - out), str(row.get("after", "")), (CALLS - len(calls)) * JOBS_OF_A_CALL
    )
    for first in range(0, len(turn), JOBS_OF_A_CALL):
        asked = turn[first : first + JOBS_OF_A_CALL]
        calls.append({"ticket": gw.scheduler.submit(JobQuery(tuple(asked))), "jobs": asked, "at": now})
    answers: dict[str, Any] = {}
    left = calls
    for number in range(POLLS):
        left = [call for call in left if not _answered(gw, call, answers)]
        if not left or number + 1 == POLLS:
            break
        time.sleep(boundary.POLL_SECONDS)
    if left or row.get("calls") or after != row.get("after", ""):
        gw.table.write(*KEY, sets={"calls": left, "after": after}, quiet=True)
    return answers


def _answered(gw: Gateways, call: dict[str, Any], answers: dict[str, Any]) -> bool:
    """The call is over; what it told is added to `answers`."""
    answer = gw.scheduler.poll(str(call["ticket"]))
    if answer.state is AnswerState.DONE:
        answers |= {job: answer.value[job] for job in call["jobs"] if job in answer.value}
    return answer.state is not AnswerState.PENDING


def _turn(jobs: list[str], after: str, most: int) -> tuple[list[str], str]:
    """The next `most` jobs in the order of their ids, beginning behind `after`, and where that ends."""
    if most <= 0 or not jobs:
        return [], after
    if len(jobs) <= most:
        return jobs, ""
    first = next((number for number, job in enumerate(jobs) if job > after), 0)
    turn = (jobs[first:] + jobs[:first])[:most]
    return turn, turn[-1]
