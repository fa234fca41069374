"""The adapter as the Lambdas have it: the cluster file's EKS cluster, the ledger, boto3 for signing in."""

from collections.abc import Callable, Sequence
from typing import Any

from planaria.core.ledger import Ledger
from planaria.core.topology import NetworkTopology
from planaria.schedulers.eks.access import EksAccess
from planaria.schedulers.eks.client import KubernetesClient
from planaria.schedulers.eks.ledger_words import LedgerWords
from planaria.schedulers.eks.places import EksTopology
from planaria.schedulers.eks.scheduler import EksScheduler


def connect(
    cluster: str,
    namespaces: Sequence[str],
    client: Callable[[str], Any],
    ledger: Ledger,
    now: Callable[[], float],
) -> EksScheduler:
    """client: makes a boto3 client of a service; none is made before the first request."""
    api = KubernetesClient(EksAccess(cluster, client, now))
    words = LedgerWords(ledger)
    return EksScheduler(api, namespaces, now, words.instances, words.fault, words.gone)


def places(
    cluster: str, client: Callable[[str], Any], now: Callable[[], float], ec2: NetworkTopology
) -> EksTopology:
    """Where nodes are, by their labels first."""
    return EksTopology(KubernetesClient(EksAccess(cluster, client, now)), ec2)
