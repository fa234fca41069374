"""The Scheduler port on Kubernetes.

`submit` does the work and puts the answer into the ticket, so a Lambda that dies afterwards asks anew, and
asking twice is the same. Only what goes on after the call (pods that end, pods that start) is looked at again
by `poll`, from what the job's own object says: nothing is kept between two calls.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from planaria.core import scheduling
from planaria.core.errors import InvalidInput
from planaria.core.ports import Answer, AnswerState
from planaria.schedulers import wire
from planaria.schedulers.eks import describing, holding, isolating, nodes, requeueing, stopping
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.cluster_view import ClusterView
from planaria.schedulers.eks.finding import find
from planaria.schedulers.eks.isolating import Faults
from planaria.schedulers.eks.node_patches import Fault

HOUSEKEEPING_SECONDS = 30.0


class EksScheduler:
    """namespaces: those whose jobs and pods are ours, the first one's Jobs have plain names. instances:
    {scheduler name: instance id} of the ledger. faults: what to write about a node, by our reason. gone:
    whether EC2 has ended the instance of this name.

    Raises TransientError when the API server does not answer, PermanentError when it refuses us.
    """

    def __init__(
        self,
        client: KubernetesClient,
        namespaces: Sequence[str],
        now: Callable[[], float],
        instances: Callable[[], Mapping[str, str]] = dict,
        faults: Faults = lambda reason: Fault(message=reason),
        gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        if not namespaces:
            raise InvalidInput("eks.namespaces in the cluster file is empty: name the namespaces of the jobs")
        self._client = client
        self._namespaces = tuple(namespaces)
        self._now = now
        self._instances = instances
        self._faults = faults
        self._gone = gone
        self._kept_house = float("-inf")

    def submit(self, request: scheduling.SchedulerRequest) -> str:
        view = self._view()
        self._keep_house(view)
        value = self._answer(view, request)
        return _encode({"request": asdict(request), "at": view.now, "value": value})

    def poll(self, ticket: str) -> Answer:
        found = _decode(ticket)
        if found is None:
            return Answer(AnswerState.UNKNOWN, reason=f"no ticket {ticket:.40}: ask again")
        request, at, value = found
        return Answer(AnswerState.DONE, self._review(self._view(), request, at, value))

    def _view(self) -> ClusterView:
        return ClusterView(self._client, self._namespaces, self._instances, self._now(), self._gone)

    def _keep_house(self, view: ClusterView) -> None:
        """Take away the taints of holds whose time is over: Kubernetes itself never does."""
        if view.now >= self._kept_house + HOUSEKEEPING_SECONDS:
            holding.lift_expired(view)
            self._kept_house = view.now

    def _answer(self, view: ClusterView, request: scheduling.SchedulerRequest) -> dict[str, Any]:
        match request:
            case scheduling.NodeQuery(nodes=asked):
                return self._describe(view, asked)
            case scheduling.Isolate(nodes=asked, reason=reason):
                view.places(asked)
                fault = self._faults(reason)
                return {name: isolating.isolate(view, name, reason, fault) for name in asked}
            case scheduling.Lost(nodes=asked, reason=reason):
                view.places(asked)
                fault = self._faults(reason)
                return {name: isolating.give_up(view, name, reason, fault) for name in asked}
            case scheduling.Readmit(nodes=asked, reason=reason):
                view.places(asked)
                return {name: isolating.readmit(view, name, reason) for name in asked}
            case scheduling.Join():
                return {request.name: isolating.join(view, request, self._faults(request.reason))}
            case scheduling.JobsOn(nodes=asked):
                return self._jobs_on(view, asked)
            case scheduling.JobQuery():
                return dict(describing.jobs(view, request))
            case scheduling.Stop(jobs=jobs):
                return {job: stopping.stop(view, job, request) for job in jobs}
            case scheduling.Hold(job=job):
                work = find(view, job)
                known = work is not None and not work.deleted
                return {
                    job: holding.hold(view, work, request) if work and known else f"UNKNOWN: no job {job}"
                }
            case scheduling.Requeue(job=job):
                return {job: requeueing.requeue(view, request)}
            case scheduling.Place(job=job, count=count):
                return {job: requeueing.place(view, job, count)}
        raise InvalidInput(f"unknown scheduler request {request!r:.80}")

    def _review(
        self, view: ClusterView, request: scheduling.SchedulerRequest, at: float, value: dict[str, Any]
    ) -> dict[str, Any]:
        """The present value of an answer given earlier."""
        if isinstance(request, scheduling.Stop):
            open_jobs = [job for job, word in value.items() if word == "COMPLETING"]
            return {**value, **{job: stopping.review(view, job, request) for job in open_jobs}}
        if isinstance(request, scheduling.Requeue) and str(value.get(request.job)).startswith("PENDING"):
            if requeueing.overtaken(view, request, at):
                return {request.job: "REFUSED: another request came between"}
            return {request.job: requeueing.requeue(view, request)}
        return value

    def _describe(self, view: ClusterView, asked: tuple[str, ...]) -> dict[str, Any]:
        places = view.places(asked)
        jobs = view.jobs_on([place.key for place in places.values() if place is not None])
        return {
            name: _unknown(name)
            if place is None
            else {
                "state": str(view.state(place)),
                "node_id": nodes.instance_of(place.node),
                "reason": nodes.reason_of(place.node),
                "jobs": jobs[place.key],
            }
            for name, place in places.items()
        }

    def _jobs_on(self, view: ClusterView, asked: tuple[str, ...]) -> dict[str, Any]:
        places = view.places(asked)
        jobs = view.jobs_on([place.key for place in places.values() if place is not None])
        return {name: [] if place is None else jobs[place.key] for name, place in places.items()}


def _unknown(name: str) -> dict[str, Any]:
    return {
        "state": str(scheduling.NodeState.UNKNOWN), "node_id": "", "reason": f"no node {name}", "jobs": [],
    }  # fmt: skip


def _encode(document: Mapping[str, Any]) -> str:
    packed = zlib.compress(json.dumps(document, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(packed).decode()


def _decode(ticket: str) -> tuple[scheduling.SchedulerRequest, float, dict[str, Any]] | None:
    try:
        document = json.loads(zlib.decompress(base64.urlsafe_b64decode(ticket.encode())))
        return wire.decode(document["request"]), float(document["at"]), dict(document["value"])
    except (ValueError, KeyError, TypeError, zlib.error, binascii.Error, InvalidInput):
        return None
