"""A simulated Ray cluster on this machine: real Ray nodes (raylets) with made-up GPUs, addresses and CPU maps.

Everything Ray does is real: placement, actors, processes. Made up are the amounts of GPUs and CPUs, the second and later
addresses (127.0.0.x), and the map from GPU to CPUs, which lies over this machine's real CPUs so that binding really happens.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from rl_cluster.connection.ray_home import ray_home
from rl_cluster.connection.ray_start import inherited, quick_worker_starts, real_devices_hidden, unannounced
from rl_cluster.errors import ConfigError, RlClusterError
from rl_cluster.inventory import FILE_ADDRESS_LABEL, Inventory, PhysicalNode
from rl_cluster.numa.affinity_file import ENV_NAME, write_affinity_file

logger = logging.getLogger(__name__)

SIMULATED_LABEL = "rl_cluster/simulated"  # node label of every simulated node
OWNER_LABEL = "rl_cluster/owner"  # node label of a Ray that ends with the process of this id, so that others don't join it
OBJECT_STORE_BYTES = 80_000_000  # per simulated node; Ray's own minimum is 75 MiB


@frozen
class SimulatedCluster:
    """A running simulated cluster."""

    address: str
    home: Path
    affinity_file: Path  # made-up GPU->cpulist map over this machine's real CPUs
    node_ids: tuple[str, ...]


def made_up_affinity(gpus: int, cpus: list[int]) -> dict[int, list[int]]:
    """A GPU->CPUs map: the GPUs of a node in two halves, over two halves of the CPUs (two pretended sockets).

    Args:
        gpus: GPUs of one simulated node.
        cpus: This machine's CPUs that this process may use, ascending.
    """
    half = max(1, len(cpus) // 2)
    sockets = [cpus[:half], cpus[half:] or cpus[:half]]
    return {gpu: sockets[0 if gpu < (gpus + 1) // 2 else 1] for gpu in range(gpus)}


@contextlib.contextmanager
def simulated_cluster(inventory: Inventory) -> Iterator[SimulatedCluster]:
    """Start one Ray node for each node of the inventory; stop them all on every way out.

    Args:
        inventory: What to start: all of each node's resources, whole amounts, and its labels; Ray's head is the node that is head here,
            else the first. Addresses are made up by Ray and us.

    Yields:
        The running cluster. Connect with ``ray.init(address=cluster.address)``; disconnect before this context ends.

    Raises:
        ConfigError: Ray can't start a node with a resource of such a name.
    """
    if not inventory.nodes:
        raise RlClusterError("ray.simulated_nodes: must be at least 1, got 0. Fix: leave it out, the size then follows from the cluster")
    names = sorted({name for node in inventory.nodes for name in node.total if "," in name})
    if names:  # Ray hands its nodes their resources as name,amount,name,amount
        listed = ", ".join(map(repr, names))
        raise ConfigError(f"ray.kind: a simulated Ray must have resources without a comma in their names, got {listed}")
    with ray_home() as home:
        gpus = int(max(node.total.get("GPU", 0) for node in inventory.nodes))
        affinity = home / "gpu_cpu_affinity"
        write_affinity_file(str(affinity), made_up_affinity(gpus, sorted(os.sched_getaffinity(0))), simulated=True)
        with _nodes(inventory, home, {ENV_NAME: str(affinity)}) as (address, node_ids):
            yield SimulatedCluster(address=address, home=home, affinity_file=affinity, node_ids=node_ids)


@contextlib.contextmanager
def _nodes(inventory: Inventory, home: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    node_ids: list[str] = []
    try:
        head_first = sorted(inventory.nodes, key=lambda node: not node.is_head)
        for number, node in enumerate(head_first):
            arguments = _node_arguments(node, home)
            if number:
                high, low = divmod(number, 250)
                arguments["node_ip_address"] = f"127.0.{high}.{low + 1}"  # 127.0.0.2, 127.0.0.3, ...
            else:
                arguments["include_dashboard"] = False
            # what a node inherits its workers inherit, also those of drivers that join later, and those of other frameworks
            with unannounced(), real_devices_hidden(), quick_worker_starts(), inherited(environ):
                node_ids.append(cluster.add_node(wait=number == 0, **arguments).node_id)
        cluster.wait_for_nodes(timeout=60 + 5 * len(inventory.nodes))
        yield cluster.address, tuple(node_ids)
    finally:
        ray.shutdown()  # a driver that is still connected keeps Ray from ending its node; without one this does nothing
        cluster.shutdown()


def _node_arguments(node: PhysicalNode, home: Path) -> dict[str, object]:
    known = {"CPU", "GPU", "memory", "object_store_memory"}
    resources = {name: amount for name, amount in node.total.items() if name not in known and not name.startswith("node:")}
    labels = {name: value for name, value in node.labels.items() if name != "ray.io/node-id"}
    arguments: dict[str, object] = {
        "num_cpus": int(node.total.get("CPU", 0)),
        "num_gpus": int(node.total.get("GPU", 0)),
        "resources": resources or None,
        "labels": {**labels, SIMULATED_LABEL: "true", OWNER_LABEL: str(os.getpid())},
        "object_store_memory": OBJECT_STORE_BYTES,
        "temp_dir": str(home),
    }
    if "memory" in node.total or FILE_ADDRESS_LABEL in labels:  # else it is this machine's
        arguments["memory"] = int(node.total.get("memory", 0))
    return arguments
