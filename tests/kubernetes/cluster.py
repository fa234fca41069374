"""A small Kubernetes cluster for tests: API server over HTTP, controllers, and the adapter on it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.core import scheduling
from planaria.memory.clock import MemoryClock
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.scheduler import EksScheduler
from planaria.schedulers.eks.transport import Endpoint
from tests.kubernetes.api_server import TOKEN, ApiServer, Call
from tests.kubernetes.controllers import Controllers
from tests.kubernetes.store import Document, Store

NAMESPACE = "training"
OTHER = "team-b"
JOINING = {"key": "planaria/joining", "value": "new", "effect": "NoSchedule"}


@dataclass
class FixedAccess:
    """Where the test server is; counts how often it was asked to look anew."""

    url: str
    bearer: str = TOKEN
    ca: str | None = None
    renewed: int = 0

    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.ca)

    def token(self) -> str:
        return self.bearer

    def renew(self) -> None:
        self.renewed += 1


@dataclass
class Cluster:
    """ledger: {scheduler name: instance id}, as the control plane knows it."""

    clock: MemoryClock
    store: Store
    controllers: Controllers
    api: ApiServer
    ledger: dict[str, str] = field(default_factory=dict)
    namespaces: tuple[str, ...] = (NAMESPACE, OTHER)

    def adapter(self, **more: Any) -> EksScheduler:
        """A new one, as every Lambda makes it."""
        client = KubernetesClient(FixedAccess(self.api.url), sleep=lambda _: None)
        return EksScheduler(client, self.namespaces, self.clock.now, lambda: self.ledger, **more)

    def ask(
        self, request: scheduling.SchedulerRequest, adapter: EksScheduler | None = None
    ) -> dict[str, Any]:
        adapter = adapter or self.adapter()
        return adapter.poll(adapter.submit(request)).value

    # --- the world -------------------------------------------------------------------------------

    def add_node(
        self,
        key: str,
        instance: str,
        name: str | None = None,
        ready: str = "True",
        labels: Mapping[str, str] | None = None,
        joining: bool = False,
    ) -> None:
        """A Node registers: key is its Kubernetes name. name: the label that a Join writes. joining: with the
        taint of a new node."""
        marks = {**(labels or {}), **({"planaria/name": name} if name else {})}
        self.store.create(
            "nodes",
            {
                "metadata": {"name": key, "labels": marks},
                "spec": {
                    "providerID": f"aws:///us-east-1a/{instance}",
                    **({"taints": [JOINING]} if joining else {}),
                },
            },
            "kubelet",
        )
        self.set_ready(key, ready)

    def set_ready(self, key: str, ready: str) -> None:
        conditions = [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": ready, "reason": "KubeletReady"},
        ]
        self.store.set_status("nodes", "", key, conditions=conditions)

    def add_job(
        self,
        name: str,
        pods: int,
        namespace: str = NAMESPACE,
        labels: Mapping[str, str] | None = None,
        pod: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """An Indexed batch/v1 Job whose pods start at once where there is room."""
        self.store.create(
            "jobs",
            {
                "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
                "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "completionMode": "Indexed",
                    "template": template(name, pod),
                    **spec,
                },
            },
        )
        self.controllers.tick()

    def add_jobset(self, name: str, pods: int, namespace: str = NAMESPACE, **spec: Any) -> None:
        job = {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template(name),
        }
        self.store.create(
            "jobsets",
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}], **spec},
            },
        )
        self.controllers.tick()

    def add_budget(self, name: str, app: str, namespace: str = NAMESPACE, **spec: Any) -> None:
        self.store.create(
            "poddisruptionbudgets",
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
            },
        )
        self.controllers.tick()

    def lose(self, key: str) -> None:
        """The machine is gone: its kubelet is silent."""
        self.controllers.dead.add(key)
        self.set_ready(key, "Unknown")

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.controllers.tick()

    # --- looking ---------------------------------------------------------------------------------

    def node(self, key: str) -> Document:
        return self.store.get("nodes", "", key)

    def taints(self, key: str) -> list[str]:
        listed = (self.node(key).get("spec") or {}).get("taints") or []
        return [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in listed]

    def job(self, name: str, plural: str = "jobs", namespace: str = NAMESPACE) -> Document:
        return self.store.get(plural, namespace, name)

    def live(self, app: str, namespace: str = NAMESPACE) -> list[Document]:
        """Pods of this app that are not over, in the order of their names."""
        return [
            pod
            for pod in self.store.select("pods", namespace, f"app={app}")
            if pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def where(self, app: str, namespace: str = NAMESPACE) -> list[str]:
        return [pod["spec"].get("nodeName", "") for pod in self.live(app, namespace)]

    def writes(self) -> list[tuple[str, str]]:
        """(verb, resource or resource/subresource) of each write so far."""
        return [(call.verb, f"{call.resource}/{call.subresource}".rstrip("/")) for call in self.api.writes()]


def template(app: str, pod: Mapping[str, Any] | None = None) -> Document:
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {
            "containers": [{"name": "train", "image": "trainer"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            **(pod or {}),
        },
    }


@contextlib.contextmanager
def cluster(
    nodes: int = 3, named: bool = True, installed: set[str] | None = None, clock: MemoryClock | None = None
) -> Iterator[Cluster]:
    """`nodes` idle Nodes, demo-1 on instance i-000...1 and so on; Kubernetes calls them by address."""
    clock = clock or MemoryClock()
    store = Store(clock.now, installed)
    controllers = Controllers(store)
    api = ApiServer(store)

    def work_on(call: Call) -> None:
        controllers.tick()

    api.before = work_on
    with api.serving():
        made = Cluster(clock, store, controllers, api)
        for number in range(1, nodes + 1):
            name = f"demo-{number}"
            made.add_node(key_of(number), instance_of(number), name if named else None)
            made.ledger[name] = instance_of(number)
        yield made


def key_of(number: int) -> str:
    return f"ip-10-0-0-{number}.ec2.internal"


def instance_of(number: int) -> str:
    return f"i-{number:017x}"
