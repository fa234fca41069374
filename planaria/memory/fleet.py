"""The Fleet port in memory: instances run at once, a launch token launches once."""

import dataclasses
from collections.abc import Callable, Sequence

from planaria.core import tags
from planaria.core.cluster import Capacity
from planaria.core.errors import PlanariaError
from planaria.core.ports import Instance, InstanceStatus, LaunchRequest


class MemoryFleet:
    """refuse: asked before each launch; an error it returns is raised instead. checks: what EC2 says of an
    instance's status, where that is not `ok`. zones: the Availability Zone of each subnet."""

    def __init__(self, cluster: str, now: Callable[[], float] = lambda: 0.0) -> None:
        self._cluster = cluster
        self._now = now
        self.instances: dict[str, Instance] = {}
        self.checks: dict[str, InstanceStatus] = {}
        self.zones: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.refuse: Callable[[LaunchRequest], PlanariaError | None] = lambda request: None

    def add(self, node_id: str, **facts: object) -> Instance:
        instance = Instance(node_id=node_id, state="running", tags={tags.CLUSTER: self._cluster})
        self.instances[node_id] = dataclasses.replace(instance, **facts)  # type: ignore[arg-type]
        return self.instances[node_id]

    def describe(self, node_ids: Sequence[str]) -> list[Instance]:
        return [instance for instance in self.cluster() if instance.node_id in node_ids]

    def cluster(self) -> list[Instance]:
        return [i for i in self.instances.values() if i.tags.get(tags.CLUSTER) == self._cluster]

    def statuses(self, node_ids: Sequence[str]) -> list[InstanceStatus]:
        running = [i.node_id for i in self.instances.values() if i.state == "running"]
        well = {node: InstanceStatus(node, "ok", "ok", "ok") for node in running if node in node_ids}
        return [self.checks.get(node, status) for node, status in well.items()]

    def launched(self, token: str) -> list[Instance]:
        return [i for i in self.cluster() if i.tags.get(tags.LAUNCH) == token]

    def launch(self, request: LaunchRequest) -> str:
        self.calls.append(("launch", request.token))
        error = self.refuse(request)
        if error is not None:
            raise error
        earlier = self.launched(request.token)
        if earlier:
            return earlier[0].node_id
        node_id = f"i-{len(self.instances) + 1:017x}"
        self.add(
            node_id,
            instance_type=request.instance_type,
            # EC2 has a word for an instance in a Capacity Block, and none for one in a reservation.
            lifecycle=str(
                Capacity.ON_DEMAND if request.capacity == Capacity.RESERVATION else request.capacity
            ),
            reservation=request.reservation,
            zone=self.zones.get(request.subnet, ""),
            launched_at=self._now(),
            address=f"10.0.0.{len(self.instances) + 1}",
            tags={**request.tags, tags.CLUSTER: self._cluster, tags.LAUNCH: request.token},
        )
        return node_id

    def reboot(self, node_id: str) -> None:
        self.calls.append(("reboot", node_id))

    def terminate(self, node_id: str) -> None:
        self.calls.append(("terminate", node_id))
        if node_id in self.instances:
            self.instances[node_id] = dataclasses.replace(self.instances[node_id], state="terminated")
