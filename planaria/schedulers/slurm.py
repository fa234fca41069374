"""The Scheduler port on Slurm: each request is a document that Slurm's head node runs.

`python -m planaria.slurm` there answers {"version": 1, "value": {...}} or {"version": 1, "error": text}.
What is cut, unreadable, of another version or lacks an entry is UNKNOWN: nothing follows from it.
"""

import json
from collections.abc import Sequence
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.ports import Answer, AnswerState, Clock, Commands, Table
from planaria.core.scheduling import SchedulerRequest
from planaria.schedulers import slurm_documents as slurm
from planaria.schedulers.gathering import POLL_SECONDS, WINDOW_SECONDS, Gathering
from planaria.schedulers.wire import decode, encode

VERSION = 1
"""Of the answers; a head node with other software than ours answers another one."""


class SlurmScheduler:
    """head_node: the instance with slurmctld's commands. table, clock: through which calls are gathered.

    Raises InvalidInput for a name that Slurm cannot have, before anything is sent; else as the Commands do.
    """

    def __init__(
        self,
        commands: Commands,
        head_node: str,
        table: Table,
        clock: Clock,
        window: float = WINDOW_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._commands = commands
        self._head_node = head_node
        self._clock = clock
        self._gathering = Gathering(table, clock, self._send, self._hear, window, poll_seconds)

    # --- the port --------------------------------------------------------------------------------

    def submit(self, request: SchedulerRequest) -> str:
        slurm.check(request)
        ticket: dict[str, Any] = {"request": encode(request)}
        if (alone := slurm.single(request)) is not None:
            document, parameters = alone
            ticket["sent"] = self._commands.submit(document, [self._head_node], parameters)
        elif (together := slurm.gathered(request)) is not None and together[1]:
            ticket["slot"] = self._gathering.ask(*together)
        return json.dumps(ticket)

    def poll(self, ticket: str) -> Answer:
        try:
            given = json.loads(ticket)
            request = decode(given["request"])
        except (ValueError, KeyError, TypeError, InvalidInput):
            return Answer(AnswerState.UNKNOWN, reason=f"{ticket!r:.60} is no ticket of Slurm: ask again")
        try:
            return self._poll(given, request)
        except slurm.Unreadable as error:
            return Answer(AnswerState.UNKNOWN, reason=str(error))

    def _poll(self, given: dict[str, Any], request: SchedulerRequest) -> Answer:
        if "sent" in given:
            answer = self._hear(str(given["sent"]))
            if answer.state is not AnswerState.DONE:
                return answer
            return Answer(AnswerState.DONE, slurm.picked(request, (), answer.value))
        group, items = slurm.gathered(request) or ("", ())
        if "slot" not in given or not items:
            return Answer(AnswerState.DONE)  # nothing was asked for
        found = self._gathering.poll(group, int(given["slot"]), items, request.verb not in slurm.READS)
        if isinstance(found, Answer):
            return found
        value: dict[str, Any] = {}
        for part, answer in found:
            value |= slurm.picked(request, part, answer.value)
        return Answer(AnswerState.DONE, value)

    # --- the head node ---------------------------------------------------------------------------

    def _send(self, group: str, items: Sequence[str]) -> str:
        document, parameters = slurm.command(group, items, self._clock.now())
        return self._commands.submit(document, [self._head_node], parameters)

    def _hear(self, ticket: str) -> Answer:
        """The verb's own value; UNKNOWN with the head node's sentence where it has none."""
        answer = self._commands.poll(ticket)
        if answer.state is not AnswerState.DONE:
            return answer
        entry = answer.value.get(self._head_node)
        output = entry.get("output") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or entry.get("status") != "SUCCESS" or not isinstance(output, dict):
            said = output.get("reason") if isinstance(output, dict) else output
            return self._unknown(str(said or "no answer"))
        if output.get("version") != VERSION:
            return self._unknown(
                f"its answer is of version {output.get('version')!r:.20}, not {VERSION}: "
                "install the same release of Planaria there"
            )
        if output.get("error"):
            return self._unknown(str(output["error"]))
        if not isinstance(output.get("value"), dict):
            return self._unknown("its answer has no value")
        return Answer(AnswerState.DONE, output["value"])

    def _unknown(self, reason: str) -> Answer:
        return Answer(AnswerState.UNKNOWN, reason=f"head node {self._head_node}: {reason[:300]}")
