# pyright: reportMissingImports=false
"""A Ray cluster of two raylets on this machine, asked as the doctor asks one of two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

from mempo.cluster.machine import Machine


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 2, "include_dashboard": False})
    try:
        yield made
    finally:
        made.shutdown()


def test_every_node_tells_its_gpus_and_versions(cluster: Cluster) -> None:
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    found = Machine().nodes(cluster.address)
    assert sorted(node.gpus for node in found) == [1, 2]
    assert [node.problems for node in found] == [(), ()]
