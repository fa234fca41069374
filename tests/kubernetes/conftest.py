"""A cluster of three idle nodes for each test of the EKS adapter."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, cluster


@pytest.fixture
def k8s() -> Iterator[Cluster]:
    with cluster() as made:
        yield made
