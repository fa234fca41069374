"""What a Node object says. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.scheduling import NodeState
from planaria.schedulers.eks import names
from planaria.schedulers.eks.managed_fields import writer

Document = dict[str, Any]

INSTANCE = re.compile(r"i-[0-9a-zA-Z-]+$")
NOT_JOINED = "new: it has not joined yet"


@dataclass(frozen=True, slots=True)
class Isolation:
    """Our isolation of a node, as its annotation tells it."""

    reason: str
    at: float
    lost: bool
    out_of_service: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The node is kept free for this job until then (epoch seconds)."""

    job: str
    until: float


def labels(node: Document) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def annotations(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}


def taints(node: Document) -> list[Document]:
    return list((node.get("spec") or {}).get("taints") or [])


def cordoned(node: Document) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def instance_of(node: Document) -> str:
    """The EC2 instance behind it: providerID is `aws:///<zone>/<instance id>`; "" for anything else."""
    provider = str((node.get("spec") or {}).get("providerID") or "")
    last = provider.rpartition("/")[2]
    return last if provider.startswith("aws:///") and INSTANCE.match(last) else ""


def ready(node: Document) -> str:
    """The Ready condition: "True", "False" or "Unknown" (its kubelet is silent)."""
    for condition in (node.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Ready":
            return str(condition.get("status"))
    return "Unknown"


def our_cordon(node: Document) -> bool:
    """We set the cordon, and nobody has lifted and set it anew since. Where Kubernetes does not tell who did,
    our taint beside it does."""
    program, _ = writer(node, ("spec", "unschedulable"))
    return cordoned(node) and (program == names.MANAGER or (not program and _tainted(node)))


def isolation_of(node: Document) -> Isolation | None:
    """Ours, while our taint or our cordon is left: a person who takes back both has readmitted the node, and
    whatever the annotation says is over. His next cordon is his."""
    told = json_of(annotations(node).get(names.ISOLATED))
    if not told or not (_tainted(node) or our_cordon(node)):
        return None
    return Isolation(
        str(told.get("reason", "")),
        _number(told.get("at")),
        bool(told.get("lost")),
        bool(told.get("out_of_service")),
    )


def _tainted(node: Document) -> bool:
    return any(taint.get("key") == names.ISOLATED for taint in taints(node))


def foreign(node: Document) -> str:
    """Who else has taken the node out of work, and how; "" when nobody has."""
    keep_out = annotations(node).get(names.KEEP_OUT)
    if keep_out is not None:
        return keep_out or f"the annotation {names.KEEP_OUT}"
    if node["metadata"]["name"].startswith(names.HYPERPOD_PREFIX) or any(
        label in labels(node) for label in names.HYPERPOD_NODES
    ):
        return "SageMaker HyperPod manages this node"
    for taint in taints(node):
        for isolator in names.ISOLATORS:
            if str(taint.get("key", "")).startswith(isolator.prefix):
                value = f"={taint['value']}" if taint.get("value") else ""
                return f"taint {taint['key']}{value} of {isolator.who}"
    if cordoned(node) and not our_cordon(node):
        program, at = writer(node, ("spec", "unschedulable"))
        return f"cordoned by {program or 'someone else'}" + (f" at {at}" if at else "")
    return ""


def reason_of(node: Document) -> str:
    """Why it is out of work; "" when it is in it. Someone else's word counts before ours."""
    ours = isolation_of(node)
    return foreign(node) or (ours.reason if ours else "") or (NOT_JOINED if joining(node) else "")


def joining(node: Document) -> bool:
    """It is new, and nothing may run there before it is readmitted for the first time."""
    return any(taint.get("key") == names.JOINING for taint in taints(node))


def hold_of(node: Document, now: float) -> Hold | None:
    """Whom it is kept free for; past its end a hold counts no more, though its taint may still be there."""
    told = json_of(annotations(node).get(names.HELD))
    if not told or not any(taint.get("key") == names.HELD for taint in taints(node)):
        return None
    hold = Hold(str(told.get("job", "")), _number(told.get("until")))
    return hold if hold.until > now else None


def state_of(node: Document, busy: bool) -> NodeState:
    """busy: pods of jobs are there. A kubelet that is silent is UNKNOWN: the node may work on."""
    ours = isolation_of(node)
    if (ours is not None and ours.lost) or ready(node) == "False":
        return NodeState.DOWN
    if ready(node) != "True":
        return NodeState.UNKNOWN
    if reason_of(node):
        return NodeState.DRAINING if busy else NodeState.DRAINED
    return NodeState.ALLOCATED if busy else NodeState.IDLE


def json_of(text: str | None) -> dict[str, Any]:
    """A JSON object from an annotation; {} for anything else: others may write there."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
