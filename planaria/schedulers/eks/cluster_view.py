"""Looking at the cluster: which Node stands behind a name, which pods and jobs are there.

One view lives for one request: what it has read once it does not read again, but for the object that a write
is about.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core.scheduling import NodeState
from planaria.schedulers.eks import kinds, names, nodes, pods
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.kinds import JobRef

Document = dict[str, Any]

NODES = "/api/v1/nodes"
REQUEST_SECONDS = 12.0
"""How long one request may go on with pods one by one; a Lambda has thirty seconds."""

FEW = 16
"""Up to so many nodes are asked about one by one; of more, all pods are read."""

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")


@dataclass(frozen=True, slots=True)
class Place:
    """A scheduler name and the Node behind it."""

    name: str
    node: Document

    @property
    def key(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def path(self) -> str:
        return f"{NODES}/{self.key}"


class ClusterView:
    """instances: {scheduler name: instance id} as the ledger knows it, asked for only where no Node bears the
    name. gone: whether EC2 has ended the instance of this name, which takes its Node away."""

    def __init__(
        self,
        client: KubernetesClient,
        namespaces: Sequence[str],
        instances: Callable[[], Mapping[str, str]],
        now: float,
        gone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.client = client
        self.namespaces = tuple(namespaces)
        self.now = now
        self.gone = gone
        self._instances = instances
        self._until = time.monotonic() + REQUEST_SECONDS
        self._places: dict[str, Place | None] = {}
        self._owners: dict[str, Document | None] = {}
        self._pods_of_node: dict[str, list[Document]] = {}
        self._all_nodes: list[Document] | None = None

    def in_time(self) -> bool:
        return time.monotonic() < self._until

    # --- nodes -----------------------------------------------------------------------------------

    def places(self, asked: Iterable[str]) -> dict[str, Place | None]:
        """{name: its Node, None when there is none}. A name is the label planaria/name of a Node; else what
        the ledger says, an instance id, or the Node's own name."""
        wanted = list(dict.fromkeys(asked))
        missing = [name for name in wanted if name not in self._places]
        if missing:
            found = self._labelled(missing)
            rest = [name for name in missing if name not in found]
            found |= self._by_instance(rest) if rest else {}
            self._places |= {name: found.get(name) for name in missing}
        return {name: self._places[name] for name in wanted}

    def place(self, name: str) -> Place | None:
        return self.places([name])[name]

    def forget(self, *gone: str) -> None:
        """These names were written about."""
        for name in gone:
            self._places.pop(name, None)
        self._all_nodes = None

    def all_places(self) -> list[Place]:
        """Every Node that has a name of ours, by label or in the ledger."""
        told = {instance: name for name, instance in self._instances().items()}
        found: dict[str, Place] = {}
        for node in sorted(self._every_node(), key=_joined):
            name = nodes.labels(node).get(names.NAME) or told.get(nodes.instance_of(node))
            if name and (nodes.labels(node).get(names.NAME) or name not in found):
                found[name] = Place(name, node)
        return list(found.values())

    def held(self) -> list[Document]:
        return self.client.list_all(NODES, labelSelector=names.HELD)

    def of_instance(self, instance: str) -> Document | None:
        return next((n for n in self._every_node() if nodes.instance_of(n) == instance), None)

    def _every_node(self) -> list[Document]:
        if self._all_nodes is None:
            self._all_nodes = self.client.list_all(NODES)
        return self._all_nodes

    def _labelled(self, missing: list[str]) -> dict[str, Place]:
        legal = [name for name in missing if LABEL.match(name)]
        if not legal:
            return {}
        listed = self.client.list_all(NODES, labelSelector=f"{names.NAME} in ({','.join(legal)})")
        # Between the two writes of a Join two Nodes bear the name: it is the newer one's.
        return {
            name: Place(name, node)
            for node in sorted(listed, key=_joined)
            if (name := nodes.labels(node).get(names.NAME)) is not None
        }

    def _by_instance(self, rest: list[str]) -> dict[str, Place]:
        told = self._instances()
        listed = self._every_node()
        by_instance = {nodes.instance_of(node): node for node in listed}
        by_key = {str(node["metadata"]["name"]): node for node in listed}
        found = {}
        for name in rest:
            node = by_instance.get(told.get(name, name) or name) or by_key.get(name)
            # A Node that bears another name is that one's.
            if node is not None and names.NAME not in nodes.labels(node):
                found[name] = Place(name, node)
        return found

    # --- pods and jobs ---------------------------------------------------------------------------

    def pods_on(self, keys: Sequence[str], anew: bool = False) -> dict[str, list[Document]]:
        """{Node: live pods there in our namespaces}, but those that belong to the node itself."""
        missing = [key for key in keys if anew or key not in self._pods_of_node]
        if missing:
            found: dict[str, list[Document]] = {key: [] for key in missing}
            for pod in self._pods_there(missing):
                if pods.node_of(pod) in found and pods.live(pod) and not pods.of_the_node(pod):
                    found[pods.node_of(pod)].append(pod)
            self._pods_of_node |= found
        return {key: self._pods_of_node[key] for key in keys}

    def _pods_there(self, keys: list[str]) -> Iterable[Document]:
        for namespace in self.namespaces:
            path = f"/api/v1/namespaces/{namespace}/pods"
            if len(keys) > FEW:
                yield from self.client.list_all(path)
                continue
            for key in keys:
                yield from self.client.list_all(path, fieldSelector=f"spec.nodeName={key}")

    def jobs_on(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """{Node: ids of the jobs with a live pod there}, sorted."""
        found: dict[str, list[str]] = {}
        for key, there in self.pods_on(keys).items():
            refs = {self.job_of(pod) for pod in there}
            found[key] = sorted(kinds.job_id(ref, self.namespaces) for ref in refs if ref is not None)
        return found

    def job_of(self, document: Document) -> JobRef | None:
        """The topmost owner of a kind of the table: pod -> Job -> JobSet -> TrainJob, say."""
        namespace = str(document["metadata"].get("namespace", ""))
        found: JobRef | None = None
        seen: Document | None = document
        for _ in range(len(kinds.KINDS)):
            owner = kinds.controller_of(seen) if seen is not None else None
            kind = kinds.owner_kind(owner) if owner is not None else None
            if owner is None or kind is None:
                break
            found = JobRef(kind, namespace, str(owner["name"]))
            seen = self._owner(found)
        return found

    def _owner(self, ref: JobRef) -> Document | None:
        if ref.path not in self._owners:
            self._owners[ref.path] = self.client.get(ref.path)
        return self._owners[ref.path]

    def pods_of(self, ref: JobRef) -> list[Document]:
        """Every pod of the job, also those that are over, in rank order."""
        path = f"/api/v1/namespaces/{ref.namespace}/pods"
        if ref.kind is kinds.HYPERPOD_JOB:
            # No label of its pods is documented.
            listed = [pod for pod in self.client.list_all(path) if self.job_of(pod) == ref]
        else:
            listed = self.client.list_all(path, labelSelector=f"{ref.kind.name_label}={ref.name}")
            listed = [pod for pod in listed if self.job_of(pod) == ref]
        return sorted(listed, key=pods.rank)

    def names_of(self, keys: Iterable[str]) -> dict[str, str]:
        """{Node: its scheduler name}; a Node that nobody has named goes by its instance, or its own name."""
        wanted = list(dict.fromkeys(keys))
        known = {place.key: place.name for place in self._places.values() if place is not None}
        if any(key not in known for key in wanted):
            known |= {place.key: place.name for place in self.all_places()}
        by_key = {}
        if any(key not in known for key in wanted):
            by_key = {str(n["metadata"]["name"]): nodes.instance_of(n) for n in self._every_node()}
        return {key: known.get(key) or by_key.get(key) or key for key in wanted}

    # --- both ------------------------------------------------------------------------------------

    def state(self, place: Place) -> NodeState:
        return nodes.state_of(place.node, bool(self.jobs_on([place.key])[place.key]))

    def why_not(self, job: str, name: str, place: Place | None) -> str:
        """Why this job cannot start there; "" when it can. UNKNOWN is not "down": see requeueing."""
        if place is None:
            return f"no node {name}"
        reason = nodes.reason_of(place.node)
        if reason:
            return f"{name} is isolated: {reason}"
        if self.state(place) is NodeState.DOWN:
            return f"{name} is down"
        others = [other for other in self.jobs_on([place.key])[place.key] if other != job]
        if others:
            return f"{name} runs {others[0]}"
        hold = nodes.hold_of(place.node, self.now)
        if hold is not None and hold.job != job:
            return f"{name} is held for {hold.job}"
        return ""


def _joined(node: Document) -> tuple[float, str]:
    try:
        at = float(nodes.annotations(node).get(names.JOINED, "0"))
    except ValueError:
        at = 0.0
    return at, str(node["metadata"].get("creationTimestamp", ""))
