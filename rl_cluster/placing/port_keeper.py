"""Ports for code that asks a cluster for them; a worker group leases its master port in rank 0's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_cluster.errors import ConfigError, RlClusterError
from rl_cluster.ground.arguments import check_sequence, check_wholes
from rl_cluster.ports import PortLease, lease_port

CHECK_EVERY_S = 2.0


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


def bundle_seats(groups: Sequence[PlacementGroup], pairs: Sequence[tuple[int, int]]) -> Iterator[PlacementGroupSchedulingStrategy]:
    """Ray's name of each (index of a placement group, bundle in it); with one group its index does not count.

    Raises:
        ConfigError: A pair names no bundle.
    """
    check_sequence("pg_bundle_pairs", pairs)
    for number, pair in enumerate(pairs):
        where = f"pg_bundle_pairs[{number}]"
        named = check_wholes(where, pair)
        if len(named) != 2:
            raise ConfigError(f"{where}: must be (placement group, bundle), got {pair!r}. Fix: write e.g. (0, 0)")
        index = named[0] if len(groups) > 1 else 0
        _check_index(where, "placement group", index, len(groups))
        _check_index(where, "bundle of its group", named[1], groups[index].bundle_count)
        yield PlacementGroupSchedulingStrategy(groups[index], named[1])


def _check_index(where: str, what: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise ConfigError(f"{where}: must name a {what} (0 to {count - 1}), got {index}. Fix: name one of them")


def free_ports(
    seats: Iterator[PlacementGroupSchedulingStrategy], ports: tuple[int, int], *, batch_size: int, check_alive: Callable[[], None]
) -> list[tuple[str, int]]:
    """Address and a free port of each bundle's node, asked by a task in each.

    Args:
        seats: The bundles.
        ports: The half-open range.
        batch_size: Results that are fetched at a time.
        check_alive: Raises when a bundle is gone.
    """
    refs = [_get_node_ip_and_free_port.options(scheduling_strategy=seat).remote(*ports) for seat in list(seats)]
    found: list[tuple[str, int]] = []
    for start in range(0, len(refs), max(1, batch_size)):
        found += [(str(address), int(port)) for address, port in results(refs[start : start + max(1, batch_size)], check_alive)]
    return found


def results(refs: Sequence[Any], check_alive: Callable[[], None]) -> list[Any]:
    """What tasks and actors in the bundles answer. Where a bundle is gone Ray itself would wait for it without end."""
    waiting = list(refs)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=CHECK_EVERY_S)
        if waiting:
            check_alive()
    try:
        return list(ray.get(list(refs)))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, RlClusterError) else error) from None
    except ray.exceptions.RayError:
        check_alive()
        raise
