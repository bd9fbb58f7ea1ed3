"""Ports for code that asks a cluster for them; a worker group leases its master port in rank 0's own process."""

from __future__ import annotations

import ray

from rl_cluster.ports import PortLease, lease_port


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def _get_node_ip_and_free_port(low: int = 1400, high: int = 2000) -> tuple[str, int]:
    """Address of the node that this task runs on, and a port that was free a moment ago (it is not held: prefer a lease)."""
    with lease_port(low, high) as lease:
        return ray.util.get_node_ip_address(), lease.port


class PortKeeper:
    """Holds leased ports on a cluster's first node for code that asks the cluster (and not a worker group) for a master port."""

    def __init__(self) -> None:
        self._leases: list[PortLease] = []

    def lease(self, low: int, high: int) -> tuple[str, int]:
        """Lease one more port of the half-open range; returns this node's address and the port."""
        lease = lease_port(low, high)
        lease.hand_over()  # a server that sets SO_REUSEADDR can listen on it from now on, nobody else gets it by chance
        self._leases.append(lease)
        return ray.util.get_node_ip_address(), lease.port
