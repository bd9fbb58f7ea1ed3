"""RayVirtualCluster and its companions: the interface of NeMo-RL's module of this name, over planned and verified placement."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypedDict

import attrs
import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_cluster import python_env
from rl_cluster.connection.session import init_ray
from rl_cluster.errors import ConfigError, ResourceInsufficientError, RlClusterError
from rl_cluster.ground.arguments import check_flag, check_whole, check_wholes
from rl_cluster.placing import placement
from rl_cluster.placing.port_keeper import PortKeeper, bundle_seats, free_ports, results
from rl_cluster.placing.port_keeper import _get_node_ip_and_free_port as _get_node_ip_and_free_port
from rl_cluster.plan import Layout, PlacedBundle
from rl_cluster.planning import ranks
from rl_cluster.schema import ClusterSpec
from rl_cluster.views import grid_data as drawing

__all__ = [
    "PY_EXECUTABLES",
    "ClusterConfig",
    "RayVirtualCluster",
    "ResourceInsufficientError",
    "dir_path",
    "git_root",
    "init_ray",
    "logger",
]

logger = logging.getLogger(__name__)

dir_path = os.path.dirname(os.path.abspath(__file__))
git_root = os.path.dirname(dir_path)


class ClusterConfig(TypedDict, total=False):
    """The keys of a cluster's config that NeMo-RL's recipes know; all others are in :class:`rl_cluster.schema.ClusterSpec`."""

    gpus_per_node: int
    num_nodes: int
    master_port_range_low: int
    master_port_range_high: int
    segment_size: int | None


class PY_EXECUTABLES:
    """Command lines of the Pythons that workers can run in."""

    SYSTEM = python_env.SYSTEM
    BASE = python_env.BASE
    VLLM = python_env.VLLM


def _as_argument(problem: str) -> str:
    """A spec's problem with the name that NeMo-RL's argument has."""
    key, colon, rest = problem.partition(":")
    return f"{ {'gpus_per_node': 'num_gpus_per_node', 'strategy': 'placement_group_strategy'}.get(key, key) }{colon}{rest}"


class RayVirtualCluster:
    """Logical nodes of bundles on a Ray cluster, held as placement groups.

    Call-compatible with NeMo-RL's class. What the strategies mean is said in docs/placement.md. Placement happens at the first
    use (or by :meth:`_init_placement_groups`); ``shutdown()``, the end of a ``with`` block, or the end of the driver gives
    everything back.

    Args:
        bundle_ct_per_node_list: Bundles of each logical node; 0 is allowed.
        use_gpus: Whether a bundle holds one GPU.
        max_colocated_worker_groups: How many worker groups may share a bundle; each worker then gets 1/max of the GPU.
        num_gpus_per_node: GPUs of one logical node.
        name: Prefix of the placement groups.
        placement_group_strategy: STRICT_PACK, PACK, SPREAD or STRICT_SPREAD.
        spec: Everything at once, instead of the arguments above (keyword only; ``from_spec`` reads better).
        on_progress: Gets a line of text while resources are waited for (keyword only).

    Raises:
        ConfigError: A value breaks a rule.
    """

    def __init__(
        self,
        bundle_ct_per_node_list: Sequence[int] | None = None,
        use_gpus: bool = True,
        max_colocated_worker_groups: int = 1,
        num_gpus_per_node: int = 8,
        name: str = "",
        placement_group_strategy: str = "STRICT_PACK",
        *,
        spec: ClusterSpec | None = None,
        on_progress: placement.Progress | None = None,
    ) -> None:
        self._placement: placement.Placement | None = None  # first, so that __del__ works after an error below
        self._lock = threading.RLock()
        self._groups_per_bundle: dict[PlacedBundle, int] = {}
        self._port_keeper: Any = None
        self._once = False  # True: given back means given back, nothing is placed again
        self._given_back = False
        self._on_progress = on_progress
        if spec is None:
            if bundle_ct_per_node_list is None:
                raise ConfigError("bundle_ct_per_node_list: must be a list of bundle counts, got None. Fix: give one, e.g. [8, 8]")
            counts = check_wholes("bundle_ct_per_node_list", bundle_ct_per_node_list)
            check_flag("use_gpus", use_gpus)
            max_colocated_worker_groups = check_whole("max_colocated_worker_groups", max_colocated_worker_groups)
            num_gpus_per_node = check_whole("num_gpus_per_node", num_gpus_per_node)
            try:
                spec = ClusterSpec(
                    bundle_ct_per_node_list=counts,
                    use_gpus=use_gpus,
                    max_colocated_worker_groups=max_colocated_worker_groups,
                    gpus_per_node=num_gpus_per_node if use_gpus else 0,
                    name=name,
                    strategy=placement_group_strategy,
                )
            except ConfigError as error:
                raise ConfigError(problems=[_as_argument(problem) for problem in error.problems]) from None
        elif not isinstance(spec, ClusterSpec):
            raise ConfigError(f"spec: must be a ClusterSpec, got {spec!r}. Fix: from_config(..., kind=ClusterSpec) makes one")
        self.spec = spec
        self.num_gpus_per_node = num_gpus_per_node if bundle_ct_per_node_list is not None else spec.gpus_per_node
        self.use_gpus = spec.use_gpus
        self.max_colocated_worker_groups = spec.max_colocated_worker_groups
        self.name = spec.name
        self.placement_group_strategy = spec.strategy

    @classmethod
    def from_spec(cls, spec: ClusterSpec, *, on_progress: placement.Progress | None = None) -> RayVirtualCluster:
        """A cluster of this spec, not placed yet."""
        return cls(spec=spec, on_progress=on_progress)

    @classmethod
    def of_placement(cls, placed: placement.Placement) -> RayVirtualCluster:
        """A cluster that takes over placement groups which are there already, and removes them at its end."""
        cluster = cls(spec=placed.layout.spec)
        cluster._placement, cluster._once = placed, True
        return cluster

    @classmethod
    def placed(cls, spec: ClusterSpec, *, on_progress: placement.Progress | None = None) -> RayVirtualCluster:
        """A cluster of this spec, placed now. Once it has been given back it can't be used any more.

        Raises:
            ResourceInsufficientError: It does not fit; nothing stays behind.
        """
        cluster = cls.from_spec(spec, on_progress=on_progress)
        cluster._once = True
        try:
            cluster._init_placement_groups()
        except BaseException:
            cluster.shutdown()
            raise
        return cluster

    # --- placement ---

    def _init_placement_groups(self, strategy: str | None = None, use_unified_pg: bool | None = None) -> list[PlacementGroup]:
        """Place, once. One group per logical node (an empty one for a node without bundles), or one unified group.

        Args:
            strategy: Instead of the cluster's own.
            use_unified_pg: Instead of the spec's ``unified``.

        Raises:
            ResourceInsufficientError: It does not fit (with the diagnosis); nothing stays behind.
            PlacementTimeoutError: It did not become free in time; nothing stays behind.
            RlClusterError: The cluster has been given back, by its ``with`` block or, if it was built, by ``shutdown()``.
        """
        with self._lock:
            if self._placement is None:
                if self._given_back:
                    raise RlClusterError(
                        f"cluster{f' {self.name}' * bool(self.name)}: it must be in use, but has been given back. Fix: build it again"
                    )
                unified = self.spec.unified if use_unified_pg is None else use_unified_pg
                spec = attrs.evolve(self.spec, strategy=strategy or self.spec.strategy, unified=unified)
                self._placement = placement.place(spec, on_progress=self._on_progress)
                self.spec = self._placement.layout.spec
                for warning in self._placement.layout.warnings:
                    logger.warning("%s", warning)
            return list(self._placement.groups)

    @property
    def layout(self) -> Layout:
        """Every bundle with its physical node; places first if that has not happened."""
        self._init_placement_groups()
        assert self._placement is not None
        return self._placement.layout

    def get_placement_groups(self) -> list[PlacementGroup]:
        """The placement groups without the empty ones; places first if that has not happened."""
        return [group for group in self._init_placement_groups() if not group.is_empty]

    def bundle_address(self, bundle: PlacedBundle) -> tuple[PlacementGroup, int]:
        """Ray's name of a planned bundle: its placement group, and its index in that group."""
        groups = self._init_placement_groups()
        if self.spec.unified:
            return groups[0], sum(self.spec.bundle_counts[: bundle.node_idx]) + bundle.bundle_idx
        return groups[bundle.node_idx], bundle.bundle_idx

    # --- the one order of bundles, for whoever uses the cluster ---

    def bundle_nodes(self) -> list[str]:
        """Ray's node id of each bundle, in the order of ``layout.bundles``, as Ray's own table says it.

        Raises:
            WorkerLostError: A bundle has no node: the one that it lay on is gone.
        """
        tables = {group: placement_group_table(group) for group in self.get_placement_groups()}
        nodes = []
        for bundle in self.layout.bundles:
            group, index = self.bundle_address(bundle)
            node = tables[group]["bundles_to_node_id"].get(index, "")
            if not node or tables[group]["state"] == "REMOVED":
                self.check_alive()
            nodes.append(str(node))
        return nodes

    def sorted_bundle_indices(self) -> list[int]:
        """Indices of ``layout.bundles`` in rank order: logical node, physical node in topology order, bundle.

        Workers and engine slices follow the same order; a worker group also looks at the GPU ids that its workers report.
        """
        return ranks.sorted_bundle_indices(self.layout)

    def engine_slices(self, k: int) -> list[list[int]]:
        """Slices of ``k`` bundles for engines that span several GPUs: each on one machine, in rank order.

        Returns:
            Lists of ``k`` indices of ``layout.bundles``; with ``unified`` these are also the bundle indices of the placement group.

        Raises:
            ConfigError: On some machine the bundles are not a multiple of ``k``.
        """
        return ranks.engine_slices(self.layout, check_whole("k", k))

    def world_size(self) -> int:
        """Bundles in all."""
        return self.spec.world_size

    def node_count(self) -> int:
        """Logical nodes that have bundles."""
        return sum(1 for count in self.spec.bundle_counts if count > 0)

    def get_master_address_and_port(self) -> tuple[str, int]:
        """Address of the first bundle's node and a port there, another one at each call, kept for its server until ``shutdown()``.

        A worker group does not need this: its rank 0 leases the port in its own process.

        Raises:
            PortError: No port of the range is free on that node.
        """
        first = self.layout.bundles[0]
        with self._lock:
            if self._port_keeper is None:
                group, index = self.bundle_address(first)
                self._port_keeper = (
                    ray.remote(PortKeeper).options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote()
                )
            keeper = self._port_keeper
        lease = keeper.lease.remote(self.spec.master_port_range_low, self.spec.master_port_range_high)
        ((address, port),) = results([lease], self.check_alive)
        return str(address), int(port)

    def get_available_address_and_port(self, pg_idx: int, bundle_idx: int) -> tuple[str, int]:
        """Address of one bundle's node, and a port of the range that was free there a moment ago; see the batch below."""
        return self.get_available_addresses_and_ports_batch([(pg_idx, bundle_idx)])[0]

    def get_available_addresses_and_ports_batch(
        self, pg_bundle_pairs: Sequence[tuple[int, int]], batch_size: int = 256
    ) -> list[tuple[str, int]]:
        """What NeMo-RL's own worker groups ask of their cluster: a task in each bundle finds the address and a free port.

        Nothing holds these ports (two bundles of one node may get the same one); the workers of our groups lease theirs instead.

        Args:
            pg_bundle_pairs: (index of ``get_placement_groups()``, bundle in it) pairs; with one group its index does not count.
            batch_size: Results that are fetched at a time.

        Returns:
            (address, port) pairs in the same order.

        Raises:
            ConfigError: A pair names no bundle.
            WorkerLostError: A bundle is gone.
        """
        ports = (self.spec.master_port_range_low, self.spec.master_port_range_high)
        seats = bundle_seats(self.get_placement_groups(), pg_bundle_pairs)
        return free_ports(seats, ports, batch_size=check_whole("batch_size", batch_size), check_alive=self.check_alive)

    # --- who uses which bundle ---

    def claim(self, bundles: Sequence[PlacedBundle]) -> None:
        """Note one more worker on each of these bundles.

        Raises:
            ConfigError: A bundle already has ``max_colocated_worker_groups`` workers (Ray would let the new ones wait for ever).
        """
        with self._lock:
            for bundle in bundles:
                if self._groups_per_bundle.get(bundle, 0) >= self.max_colocated_worker_groups:
                    raise ConfigError(
                        f"cluster.max_colocated_worker_groups: must be at least {self.max_colocated_worker_groups + 1} for one more worker "
                        f"on bundle {bundle.bundle_idx} of logical node {bundle.node_idx}, got {self.max_colocated_worker_groups}. "
                        "Fix: raise it, or shut down the other worker group first"
                    )
            for bundle in bundles:
                self._groups_per_bundle[bundle] = self._groups_per_bundle.get(bundle, 0) + 1

    def unclaim(self, bundles: Sequence[PlacedBundle]) -> None:
        """The opposite of :meth:`claim`."""
        with self._lock:
            for bundle in bundles:
                self._groups_per_bundle[bundle] = max(0, self._groups_per_bundle.get(bundle, 0) - 1)

    def check_alive(self) -> None:
        """Ask Ray whether every node of the layout and every placement group is still there.

        Raises:
            WorkerLostError: A node is gone, or somebody has removed a group; says which logical nodes that is.
        """
        self._init_placement_groups()
        assert self._placement is not None
        placement.check_alive(self._placement)

    # --- the end ---

    def shutdown(self) -> bool:
        """Remove all placement groups, and with them every worker. Idempotent; True when nothing is left.

        A cluster that was made by its class and is in no ``with`` block places again at its next use, as NeMo-RL's does; others don't.
        """
        with self._lock:
            held, self._placement, self._port_keeper = self._placement, None, None
            self._groups_per_bundle.clear()
            self._given_back = self._once
            if held is not None:
                placement.remove(held.groups)
        return True

    def __enter__(self) -> RayVirtualCluster:
        self._once = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def __del__(self) -> None:
        # Python may be half gone, or Ray: groups are never detached, so what can't be removed here ends with the driver
        try:
            if getattr(self, "_placement", None) is not None and not sys.is_finalizing():
                self.shutdown()
        except (RlClusterError, AttributeError, TypeError, ImportError, RuntimeError):
            return

    # --- pictures (NeMo-RL's names) ---

    def _create_visualization_grid(self, worker_groups: Any = None, is_global_view: bool = False) -> dict[str, Any]:
        """Data of a drawing: one entry for each logical node and bundle, with the workers on it."""
        return drawing.create_visualization_grid(self.spec.bundle_counts, worker_groups, is_global_view)

    def _get_worker_cells(self, node_idx: int, gpu_idx: int, worker_groups: Any, cell_width: int, is_global_view: bool) -> list[str]:
        """The text lines of one cell."""
        return drawing.get_worker_cells(node_idx, gpu_idx, worker_groups, cell_width, is_global_view)

    def _print_visualization(self, grid_data: dict[str, Any]) -> None:
        """Print what :meth:`_create_visualization_grid` made."""
        drawing.print_visualization(grid_data)

    def _print_legend(self, grid_data: dict[str, Any]) -> None:
        """Print which colour or letter is which group."""
        drawing.print_legend(grid_data)

    def print_cluster_grid(self, worker_group: Any = None) -> None:
        """Print the cluster, with the workers of one group."""
        self._print_visualization(self._create_visualization_grid(worker_group, is_global_view=False))

    def print_all_worker_groups(self, worker_groups: Any = None) -> None:
        """Print the cluster with the workers of several groups, colocated ones in one cell."""
        self._print_visualization(self._create_visualization_grid(worker_groups, is_global_view=True))
