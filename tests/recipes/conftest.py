"""One simulated cluster for all recipe tests that need a Ray; nothing may stay on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NODES, GPUS_PER_NODE, CPUS_PER_NODE = 3, 2, 16


@pytest.fixture(scope="package")
def cluster_address() -> Iterator[str]:
    """The address of a simulated Ray of three nodes with two GPUs each; no process is connected to it."""
    pytest.importorskip("ray.actor")
    from rl_cluster.inventory import Inventory, PhysicalNode
    from rl_cluster.simulate import simulated_cluster

    amounts = {"CPU": float(CPUS_PER_NODE), "GPU": float(GPUS_PER_NODE)}
    nodes = tuple(PhysicalNode("made-up", "", amounts, amounts) for _ in range(NODES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # a token in the home folder would lock out the nodes
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "NRL_VIRTUAL_CLUSTER_MAX_RETRIES", "OMP_NUM_THREADS"):
            patch.delenv(name, raising=False)
        # what the nodes inherit is where workers find the classes of these tests
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
        with simulated_cluster(Inventory(nodes, simulated=True)) as simulated:
            yield simulated.address


@pytest.fixture
def connected(cluster_address: str) -> Iterator[None]:
    """This process is connected to the cluster; at the end everything on it must be free again."""
    import time

    import ray

    from rl_cluster.connection.session import look_around, open_ray
    from rl_cluster.schema import RaySpec

    with open_ray(RaySpec(address=cluster_address)):
        yield
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            free = sum(node.free.get("GPU", 0.0) for node in look_around().nodes)
            if free == NODES * GPUS_PER_NODE:
                break
            time.sleep(0.05)
        assert free == NODES * GPUS_PER_NODE
        groups = ray.util.placement_group_table()
        assert [group["name"] for group in groups.values() if group["state"] != "REMOVED"] == []
