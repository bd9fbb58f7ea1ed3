"""One simulated cluster for the jobs of a sweep: started by the first that needs it, large enough for all, given back at the end.

Only the nodes are shared. Each job connects as a driver of its own, so whatever a job leaves behind ends with its connection.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence

from rl_cluster.inventory import FILE_ADDRESS_LABEL, Inventory
from rl_cluster.planning.simulated_union import covers, union_inventory
from rl_cluster.schema import RaySpec
from rl_cluster.simulate import SimulatedCluster, simulated_cluster

logger = logging.getLogger(__name__)


class SharedSimulation:
    """Starts, keeps and ends it.

    Args:
        all_jobs: Asked once, when the first job needs a cluster: what each job of the sweep would start alone, as far as it is known.
            A job that asks for more than was known (a sweeper that decides as it goes) gets a larger one, started anew.
    """

    def __init__(self, all_jobs: Callable[[], Sequence[tuple[RaySpec, Inventory]]] = tuple) -> None:
        self._all_jobs = all_jobs
        self._known: dict[Hashable, list[Inventory]] | None = None
        self._held = contextlib.ExitStack()
        self._running: tuple[Hashable, Inventory, SimulatedCluster] | None = None
        self.starts = 0

    def cluster_for(self, spec: RaySpec, wanted: Inventory) -> SimulatedCluster:
        """The running cluster if it is large enough and of the kind that the job asks for, else one that is started now."""
        if self._running is not None and self.runs_for(spec, wanted):
            return self._running[2]
        if self._running is not None:
            logger.info("this job needs another simulated cluster: giving the running one back")
        self.close()
        kind = _kind(spec, wanted)
        if self._known is None:
            self._known = {}
            for each, inventory in self._all_jobs():
                self._known.setdefault(_kind(each, inventory), []).append(inventory)
        known = self._known.setdefault(kind, [])
        if wanted not in known:
            known.append(wanted)
        size = union_inventory(known)
        self.starts += 1
        cluster = self._held.enter_context(simulated_cluster(size))
        self._running = kind, size, cluster
        return cluster

    def runs_for(self, spec: RaySpec, wanted: Inventory) -> bool:
        """Whether the running cluster is large enough for a job, and of the kind that it asks for."""
        if self._running is None:
            return False
        kind, size, _ = self._running
        return kind == _kind(spec, wanted) and covers(size, wanted)

    def close(self) -> None:
        """Give the cluster back; the next job that needs one gets it afresh."""
        self._running = None
        self._held.close()


def _kind(spec: RaySpec, wanted: Inventory) -> Hashable:
    """Jobs whose sizes of the simulation were said by the user (or described in a file) mean just those, and share with their like."""
    of_file = repr(wanted.nodes) if any(FILE_ADDRESS_LABEL in node.labels for node in wanted.nodes) else ""
    return wanted.source, of_file, spec.simulated_nodes, spec.simulated_gpus_per_node, spec.simulated_cpus_per_node


_SHARED: list[SharedSimulation] = []


@contextlib.contextmanager
def sharing(simulation: SharedSimulation) -> Iterator[None]:
    """Within the block, whoever opens a simulated Ray in this process gets this one."""
    _SHARED.append(simulation)
    try:
        yield
    finally:
        _SHARED.pop()


def shared_simulation() -> SharedSimulation | None:
    """The simulation to take, or None where each run starts its own."""
    return _SHARED[-1] if _SHARED else None
