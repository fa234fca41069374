"""What is written to a Node, as merge patches. Pure: the Node goes in, what has to differ comes out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from planaria.schedulers.eks import names
from planaria.schedulers.eks.nodes import (
    Document,
    Hold,
    Isolation,
    annotations,
    cordoned,
    isolation_of,
    joining,
    labels,
    our_cordon,
    ready,
    taints,
)

NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
DETAILS = 20
"""Faults in the annotation, as many as HyperPod keeps there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is written about an isolated node, in HyperPod's words. health: one of the four of the label."""

    health: str = "Unschedulable"
    type: str = "Planaria"
    reason: str = "Isolated"
    message: str = ""


def isolated(
    node: Document, reason: str, fault: Fault, now: float, lost: bool = False, shut_down: bool = False
) -> Document | None:
    """The patch that isolates: cordon, taint, labels and annotations at once. None: it is so already.

    Our taint says who cordoned, and pods that tolerate a cordon (those of DaemonSets) stay off as well. lost:
    the node is given up. shut_down: where its kubelet is not well either, it also gets Kubernetes' own taint
    for that, which ends all its pods and takes its volumes away.
    """
    before = isolation_of(node)
    lost = lost or (before is not None and before.lost)
    told = {"reason": reason, "at": before.at if before else now, "lost": lost}
    if before is not None and before.out_of_service:
        told["out_of_service"] = True
    wanted = [taint for taint in taints(node) if taint.get("key") != names.ISOLATED]
    wanted.append({"key": names.ISOLATED, "value": _short(reason), "effect": NO_SCHEDULE})
    tainted = any(taint.get("key") == names.OUT_OF_SERVICE for taint in wanted)
    if shut_down and ready(node) != "True" and not tainted:
        wanted.append({"key": names.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": NO_EXECUTE})
        told["out_of_service"] = True
    return _patch(
        node,
        {
            names.HEALTH: fault.health,
            names.FAULT_TYPES: names.label_value(fault.type),
            names.FAULT_REASONS: names.label_value(fault.reason),
        },
        {names.ISOLATED: _json(told), names.FAULT_DETAILS: _details(node, fault, now, before)},
        wanted,
        True,
    )


def readmitted(node: Document, held: bool) -> Document | None:
    """The patch that takes back what we wrote, and nothing else. held: another program taints the node as
    well, and may count on the cordon, for who cordons a cordoned node leaves no trace."""
    if names.ISOLATED not in annotations(node) and not joining(node):
        return None
    before = isolation_of(node)
    ours = [names.ISOLATED, names.JOINING]
    ours += [names.OUT_OF_SERVICE] if before is not None and before.out_of_service else []
    return _patch(
        node,
        {names.HEALTH: names.SCHEDULABLE, names.FAULT_TYPES: None, names.FAULT_REASONS: None},
        {names.ISOLATED: None, names.FAULT_DETAILS: None},
        [taint for taint in taints(node) if taint.get("key") not in ours],
        False if our_cordon(node) and not held else None,
    )


def named(node: Document, name: str | None, now: float) -> Document | None:
    """The patch that gives the node its name, or takes it away."""
    if labels(node).get(names.NAME) == name:
        return None
    joined = None if name is None else f"{now:.3f}"
    return _patch(node, {names.NAME: name}, {names.JOINED: joined}, None, None)


def held(node: Document, hold: Hold | None) -> Document | None:
    """The patch that keeps the node free for a job, or for nobody any more."""
    wanted = [taint for taint in taints(node) if taint.get("key") != names.HELD]
    told = None
    if hold is not None:
        wanted.append({"key": names.HELD, "value": names.label_value(hold.job), "effect": NO_SCHEDULE})
        told = _json({"job": hold.job, "until": hold.until})
    label = names.label_value(hold.job) if hold else None
    return _patch(node, {names.HELD: label}, {names.HELD: told}, wanted, None)


def _patch(
    node: Document,
    marks: Mapping[str, str | None],
    notes: Mapping[str, str | None],
    wanted: list[Document] | None,
    unschedulable: bool | None,
) -> Document | None:
    """A merge patch of what differs; taints are one list there, so all of them are in it."""
    metadata = {
        part: different
        for part, new, old in (("labels", marks, labels(node)), ("annotations", notes, annotations(node)))
        if (different := {key: value for key, value in new.items() if old.get(key) != value})
    }
    spec: Document = {}
    if wanted is not None and wanted != taints(node):
        spec["taints"] = wanted or None
    if unschedulable is not None and unschedulable != cordoned(node):
        spec["unschedulable"] = unschedulable or None
    patch = {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}
    return patch or None


def _details(node: Document, fault: Fault, now: float, before: Isolation | None) -> str | None:
    text = annotations(node).get(names.FAULT_DETAILS)
    try:
        listed = json.loads(text or "[]")
    except ValueError:
        listed = []
    listed = listed if isinstance(listed, list) else []
    entry = {"type": fault.type, "reason": fault.reason, "message": fault.message[:500]}
    if any(isinstance(e, dict) and {**e, "time": 0} == {**entry, "time": 0} for e in listed) and before:
        return text
    return _json([*listed[1 - DETAILS :], {**entry, "time": int(now)}])


def _short(reason: str) -> str:
    """Our mark without its prefix: an incident's id fits into a taint as it is."""
    return names.label_value(reason.removeprefix("planaria:"))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
