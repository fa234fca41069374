"""The Scheduler port in memory: the same state machine as the sandbox's head, without processes."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from planaria.core.errors import TransientError
from planaria.core.ports import Answer, AnswerState
from planaria.core.scheduling import SchedulerRequest
from planaria.memory.cluster_state import ClusterState, EndNode, EndRanks

SIGKILL, SIGTERM = 9, 15


class MemoryScheduler:
    """Processes obey at once; `stubborn` ones stay until the test calls `end_ranks`.

    pending_polls: so many polls of each ticket answer PENDING first. reachable: False makes every call
    raise TransientError. `state` is open to tests that play the world.
    """

    def __init__(self, now: Callable[[], float] = time.time, pending_polls: int = 0) -> None:
        self.state = ClusterState()
        self.pending_polls = pending_polls
        self.reachable = True
        self.stubborn = False
        self.requests: list[SchedulerRequest] = []
        self._now = now
        self._numbers = itertools.count(1)
        self._tickets: dict[str, tuple[SchedulerRequest, dict[str, Any], list[int]]] = {}

    # --- the port --------------------------------------------------------------------------------

    def submit(self, request: SchedulerRequest) -> str:
        self._reach()
        self.requests.append(request)
        value = self.state.answer(request, self._now())
        self._obey()
        ticket = f"memory-{next(self._numbers)}"
        self._tickets[ticket] = (request, value, [self.pending_polls])
        return ticket

    def poll(self, ticket: str) -> Answer:
        self._reach()
        if ticket not in self._tickets:
            return Answer(AnswerState.UNKNOWN, reason=f"no ticket {ticket}: ask again")
        request, value, waits = self._tickets[ticket]
        if waits[0] > 0:
            waits[0] -= 1
            return Answer(AnswerState.PENDING)
        value = self.state.review(request, value, self._now())
        self._obey()
        return Answer(AnswerState.DONE, value)

    # --- the world -------------------------------------------------------------------------------

    def add_node(self, name: str, node_id: str, address: str = "") -> None:
        """An instance booted; a name that is taken already stays with its present instance."""
        self.state.register(name, node_id, address)
        self.state.node_up(node_id)

    def add_job(self, job_id: str, nodes: int, ranks_per_node: int = 1) -> None:
        """Submit a job and let it start on the nodes that are free now."""
        self.state.submit_job(job_id, nodes, ranks_per_node, {})
        self.state.tick(self._now())
        self._obey()

    def end_ranks(self, job_id: str, code: int, *ranks: int) -> None:
        """These ranks (all live ones when none is given) end with this exit code."""
        job = self.state.jobs[job_id]
        for rank in ranks or tuple(job.live_ranks):
            self.state.rank_exited(job_id, job.attempt, rank, code, self._now())

    def kill_node(self, node_id: str) -> None:
        """The instance is gone, its ranks with it."""
        self.state.node_down(node_id)
        self._kill_ranks_on(node_id)

    def _reach(self) -> None:
        if not self.reachable:
            raise TransientError("the scheduler cannot be reached")

    def _obey(self) -> None:
        for effect in self.state.take_effects():
            match effect:
                case EndNode(node_id=node_id):
                    self._kill_ranks_on(node_id)
                case EndRanks(job_id=job_id, signal=name) if not self.stubborn:
                    self.end_ranks(job_id, -(SIGKILL if "KILL" in name else SIGTERM))
        self.state.tick(self._now())

    def _kill_ranks_on(self, node_id: str) -> None:
        for job in self.state.jobs.values():
            for rank in [r for r in job.live_ranks if job.placement[r] == node_id]:
                self.state.rank_exited(job.job_id, job.attempt, rank, -SIGKILL, self._now())
