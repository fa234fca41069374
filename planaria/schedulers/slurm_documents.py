"""Scheduler requests as documents of Slurm's head node, and what may stand in their answers.

A gathered request becomes items, which are joined with those of other incidents in one command; of its
answer each asker picks its own. The others are commands by themselves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planaria.core import documents, scheduling
from planaria.core.errors import InvalidInput
from planaria.core.scheduling import NodeState, SchedulerRequest

Parameters = dict[str, str]

_LISTS = {"node": "planaria-slurm-node", "jobs_on": "planaria-slurm-jobs-on"}
_MARKED = {name: f"planaria-slurm-{name}" for name in ("isolate", "lost", "readmit")}
_PLAIN_HOSTS = 50
_NUMBERED = re.compile(r"(.*?)([0-9]{0,9})")
_JOB, _NODE = "job ", "node "  # of a JobQuery's items

READS = frozenset({"node", "jobs_on", "jobs", "place"})

_WORDS: Mapping[str, frozenset[str]] = {
    "isolate": frozenset({"ISOLATED", "FOREIGN", "UNKNOWN"}),
    "lost": frozenset({"ISOLATED", "FOREIGN", "UNKNOWN"}),
    "readmit": frozenset({"READMITTED", "FOREIGN", "UNKNOWN"}),
    "join": frozenset({"JOINED", "BUSY", "UNKNOWN"}),
    "stop": frozenset({"STOPPED", "COMPLETING", "COMPLETED", "UNKNOWN"}),
    "hold": frozenset({"HELD", "UNKNOWN"}),
    "requeue": frozenset({"RUNNING", "PENDING", "REFUSED", "UNKNOWN"}),
}


class Unreadable(Exception):
    """An answer that must not be believed; the message says why."""


def check(request: SchedulerRequest) -> None:
    """Raises InvalidInput, one sentence, when a name in it is none that Slurm could have."""
    match request:
        case scheduling.NodeQuery() | scheduling.JobsOn():
            _fit("host", "a node of Slurm", request.nodes)
        case scheduling.Isolate() | scheduling.Lost() | scheduling.Readmit():
            _fit("host", "a node of Slurm", request.nodes)
            _fit("mark", "a reason of ours", (request.reason,))
        case scheduling.JobQuery():
            _fit("job", "a job of Slurm", request.jobs)
            _fit("host", "a node of Slurm", request.nodes)
        case scheduling.Stop():
            _fit("job", "a job of Slurm", request.jobs)
            shared = {"Signal": request.signal, "Grace": _seconds(request.grace_seconds)}
            _checked("planaria-slurm-stop", {"Jobs": "1", **shared})
        case scheduling.Hold() | scheduling.Requeue():
            _fit("host", "a node of Slurm", request.nodes)
    if (alone := single(request)) is not None:
        _checked(*alone)


def gathered(request: SchedulerRequest) -> tuple[str, tuple[str, ...]] | None:
    """(group, items) of a request that may share its command; None when it is one by itself."""
    match request:
        case scheduling.NodeQuery(nodes=()):
            return None  # about no node in particular
        case scheduling.NodeQuery() | scheduling.JobsOn():
            return request.verb, request.nodes
        case scheduling.Isolate() | scheduling.Lost() | scheduling.Readmit():
            return request.verb, tuple(f"{name}={request.reason}" for name in request.nodes)
        case scheduling.JobQuery():
            jobs = [f"{_JOB}{job}" for job in request.jobs]
            return request.verb, (*jobs, *(f"{_NODE}{name}" for name in request.nodes))
        case scheduling.Stop():
            return f"{request.verb} {request.signal} {_seconds(request.grace_seconds)}", request.jobs
    return None


def command(group: str, items: Sequence[str], now: float) -> tuple[str, Parameters]:
    """(document, parameters) of one command for these items of a group. now: epoch seconds; SSM may deliver a
    command minutes later, and a job must not be stopped by an order that is older than its last start."""
    verb, *shared = group.split(" ")
    if verb in _LISTS:
        return _checked(_LISTS[verb], {"Nodes": ",".join(items)})
    if verb in _MARKED:
        return _checked(_MARKED[verb], {"Entries": ",".join(items)})
    if verb == "stop":
        given = {"Jobs": ",".join(items), "Signal": shared[0], "Grace": shared[1], "Sent": str(int(now))}
        return _checked("planaria-slurm-stop", given)
    jobs = ",".join(item.removeprefix(_JOB) for item in items if item.startswith(_JOB))
    nodes = ",".join(item.removeprefix(_NODE) for item in items if item.startswith(_NODE))
    return _checked("planaria-slurm-jobs", {"Jobs": jobs, "Nodes": nodes})


def single(request: SchedulerRequest) -> tuple[str, Parameters] | None:
    """(document, parameters) of a request that is a command by itself; None when it is gathered."""
    match request:
        case scheduling.NodeQuery(nodes=()):
            return _LISTS[request.verb], {"Nodes": ""}
        case scheduling.Join():
            return "planaria-slurm-join", {
                "Name": request.name,
                "NodeId": request.node_id,
                "Address": request.address,
                "Reason": request.reason,
            }
        case scheduling.Hold():
            return "planaria-slurm-hold", {
                "Job": request.job,
                "Nodes": _hosts(request.nodes),
                "Seconds": _seconds(request.seconds),
            }
        case scheduling.Requeue():
            return "planaria-slurm-requeue", {
                "Job": request.job,
                "Nodes": _hosts(request.nodes),
                "Attempt": str(request.attempt),
                "ResumeStep": str(request.resume_step),
                "Kept": request.kept,
            }
        case scheduling.Place():
            return "planaria-slurm-place", {"Job": request.job, "Count": str(request.count)}
    return None


def picked(request: SchedulerRequest, items: Sequence[str], value: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer says about these items of the request (gathered), or about its name (single).

    Raises Unreadable: an entry is missing or none of the contract's.
    """
    if isinstance(request, scheduling.JobQuery):
        return _jobs(items, value)
    if request == scheduling.NodeQuery(()):
        return {name: _kept_out(name, entry) for name, entry in value.items()}
    names: Iterable[str] = (item.partition("=")[0] for item in items)
    if not items:
        names = (request.name,) if isinstance(request, scheduling.Join) else (_job_of(request),)
    return {name: _entry(request, name, value) for name in names}


def _entry(request: SchedulerRequest, name: str, value: Mapping[str, Any]) -> Any:
    if name not in value:
        raise Unreadable(f"the head node's answer lacks {name}")
    entry = value[name]
    match request:
        case scheduling.NodeQuery():
            return _node(name, entry)
        case scheduling.JobsOn() | scheduling.Place():
            if isinstance(entry, list) and all(isinstance(each, str) for each in entry):
                return entry
        case _:
            if isinstance(entry, str) and entry.partition(":")[0] in _WORDS[request.verb]:
                return entry
    raise Unreadable(f"the head node's answer about {name} cannot be read: {entry!r:.120}")


def _node(name: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("jobs"), list):
        raise Unreadable(f"the head node's answer about {name} cannot be read: {entry!r:.120}")
    state = str(entry.get("state"))
    known = state if state in set(NodeState) else NodeState.UNKNOWN.value
    texts = {key: str(entry.get(key) or "") for key in ("node_id", "reason")}
    return {**entry, **texts, "state": known}


def _kept_out(name: str, entry: Any) -> dict[str, Any]:
    told = _node(name, entry)
    codes, since = entry.get("codes"), entry.get("since")
    if not isinstance(codes, list) or not codes or not isinstance(since, int | float):
        raise Unreadable(f"the head node's answer about {name} cannot be read: {entry!r:.120}")
    return {**told, "codes": [str(code) for code in codes], "since": float(since)}


def _jobs(items: Sequence[str], value: Mapping[str, Any]) -> dict[str, Any]:
    """The jobs that are asked for, and those with a node that is; a job without an entry has none."""
    jobs = {item.removeprefix(_JOB) for item in items if item.startswith(_JOB)}
    nodes = {item.removeprefix(_NODE) for item in items if item.startswith(_NODE)}
    found = {}
    for job, entry in value.items():
        if entry is not None and not (isinstance(entry, dict) and isinstance(entry.get("nodes"), list)):
            raise Unreadable(f"the head node's answer about job {job} cannot be read: {entry!r:.120}")
        if job in jobs or (entry is not None and nodes & set(entry["nodes"])):
            found[job] = entry
    return found


def _job_of(request: SchedulerRequest) -> str:
    assert isinstance(request, scheduling.Hold | scheduling.Requeue | scheduling.Place)
    return request.job


def _checked(document: str, parameters: Parameters) -> tuple[str, Parameters]:
    known = documents.find(document)
    if known is not None:
        known.checked(parameters)
    return document, parameters


def _fit(pattern: str, what: str, names: Sequence[str]) -> None:
    for name in names:
        if not documents.matches(documents.patterns()[pattern], name):
            raise InvalidInput(
                f"{name!r:.80} cannot be {what}: it must match {documents.patterns()[pattern]}"
            )


def _hosts(names: Sequence[str]) -> str:
    """A list of hosts in this order; of many, runs of numbered names as Slurm writes them: a-[08-11],b-1."""
    if len(names) <= _PLAIN_HOSTS:
        return ",".join(names)
    runs: list[tuple[str, int, list[str]]] = []
    for name in names:
        found = _NUMBERED.fullmatch(name)
        head, digits = found.groups() if found is not None else (name, "")
        last = runs[-1] if runs else ("", 0, [""])
        follows = last[:2] == (head, len(digits)) and digits and int(digits) == int(last[2][-1]) + 1
        if follows:
            last[2].append(digits)
        else:
            runs.append((head, len(digits), [digits]))
    return ",".join(
        f"{head}[{run[0]}-{run[-1]}]" if len(run) > 1 else f"{head}{run[0]}" for head, _, run in runs
    )


def _seconds(value: float) -> str:
    return f"{max(0.0, value):.3f}".rstrip("0").rstrip(".")
