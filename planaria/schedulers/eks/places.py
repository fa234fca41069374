"""Where nodes are in EC2's network, by the labels that EKS puts on them; EC2 is asked about the others."""

from collections.abc import Mapping, Sequence

from planaria.core.topology import Located, NetworkTopology, of_labels
from planaria.schedulers.eks import nodes
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.cluster_view import NODES


class EksTopology:
    """The NetworkTopology port. ec2: for instances whose Node has no such label, or that are no Node yet, and
    for reservations. Raises TransientError and PermanentError as the client does."""

    def __init__(self, client: KubernetesClient, ec2: NetworkTopology) -> None:
        self._client = client
        self._ec2 = ec2

    def instances(self, types: Mapping[str, str]) -> dict[str, Located]:
        if not types:
            return {}
        told = {
            nodes.instance_of(node): Located(path)
            for node in self._client.list_all(NODES)
            if (path := of_labels(nodes.labels(node)))
        }
        found = {instance: told[instance] for instance in types if instance in told}
        rest = {instance: kind for instance, kind in types.items() if instance not in found}
        return {**found, **(self._ec2.instances(rest) if rest else {})}

    def reservations(self, ids: Sequence[str]) -> dict[str, Located]:
        return self._ec2.reservations(ids)
