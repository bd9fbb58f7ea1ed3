"""The one place of rank order: which worker is rank 0, 1, 2, ..., and what the rank variables of each are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from attrs import frozen

from rl_cluster.errors import ConfigError, WorkerStartError
from rl_cluster.planning.layout import Layout
from rl_cluster.planning.naming import node_names
from rl_cluster.planning.topology import AddressKey, NaturalKey, address_key, natural_key

GpuId = str | int


@frozen
class WorkerPosition:
    """Where a worker (or a planned bundle) lies."""

    node_idx: int  # logical node
    bundle_idx: int  # within the logical node
    node_id: str  # physical node
    address: str = ""  # of the physical node
    gpu_ids: Sequence[GpuId] = ()  # as Ray gave them: numbers, strings of digits, or UUIDs
    topology: int = 0  # position of the physical node in Layout.nodes, where that is known


@frozen
class WorkerRank:
    """The rank variables of one worker. A "node" of theirs is the part of one logical node that lies on one physical node."""

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int  # dense, in rank order


def order_workers(items: Sequence[WorkerPosition], *, max_colocated: int = 1) -> list[int]:
    """Rank order: logical node, physical node (topology, then address as a number), first GPU id as a number, bundle.

    Args:
        items: The workers of one group, in any order: the ranks don't depend on it.
        max_colocated: How many workers of these may share one GPU.

    Returns:
        Indices of `items`; the one at position r is the worker of rank r.

    Raises:
        WorkerStartError: More than `max_colocated` workers hold the same GPU of the same physical node.
    """
    _check_shared_gpus(items, max_colocated)
    nodes: dict[tuple[int, str, str], tuple[int, AddressKey, str]] = {}
    for item in items:
        where = (item.topology, item.address, item.node_id)
        if where not in nodes:
            nodes[where] = (item.topology, address_key(item.address), item.node_id)

    def key(index: int) -> tuple[int, tuple[int, AddressKey, str], NaturalKey, int]:
        item = items[index]
        gpus = min((natural_key(gpu) for gpu in item.gpu_ids), default=())
        return item.node_idx, nodes[item.topology, item.address, item.node_id], gpus, item.bundle_idx

    return sorted(range(len(items)), key=key)


def rank_workers(items: Sequence[WorkerPosition], *, max_colocated: int = 1, keep_order: bool = False) -> list[WorkerRank]:
    """The rank variables of each worker, in the order of `items`. Arguments and errors are those of `order_workers`.

    With `keep_order` the ranks follow `items` as they are given: the user listed the bundles in the order wanted.
    """
    order = order_workers(items, max_colocated=max_colocated)
    if keep_order:
        order = list(range(len(items)))
    sizes = Counter((item.node_idx, item.node_id) for item in items)
    node_ranks: dict[Hashable, int] = {}
    used: Counter[Hashable] = Counter()
    ranks: dict[int, WorkerRank] = {}
    for rank, index in enumerate(order):
        part = (items[index].node_idx, items[index].node_id)
        node_rank = node_ranks.setdefault(part, len(node_ranks))
        ranks[index] = WorkerRank(rank, used[part], sizes[part], node_rank)
        used[part] += 1
    return [ranks[index] for index in range(len(items))]


def layout_positions(layout: Layout) -> list[WorkerPosition]:
    """The planned bundles as worker positions, in the order of ``layout.bundles``; GPU ids are not known yet."""
    places = {node.node_id: (index, node.address) for index, node in enumerate(layout.nodes)}
    return [
        WorkerPosition(
            bundle.node_idx, bundle.bundle_idx, bundle.node_id, address=places[bundle.node_id][1], topology=places[bundle.node_id][0]
        )
        for bundle in layout.bundles
    ]


def sorted_bundle_indices(layout: Layout) -> list[int]:
    """Indices of ``layout.bundles`` in rank order."""
    return order_workers(layout_positions(layout))


def engine_slices(where: Layout | Sequence[WorkerPosition], k: int, *, key: str = "cluster") -> list[list[int]]:
    """Slices of `k` bundles, each on one physical node, in rank order: for engines that span several GPUs.

    Args:
        where: A layout, or the positions of running workers.
        k: Bundles per engine.
        key: Where the cluster's keys stand in the config, for the message.

    Returns:
        Lists of `k` indices of ``layout.bundles`` (or of the positions).

    Raises:
        ConfigError: On some physical node the bundles are not a multiple of `k`.
    """
    if k < 1:
        raise ConfigError(f"engine_slices: k must be at least 1, got {k}")
    positions = layout_positions(where) if isinstance(where, Layout) else list(where)
    by_node: dict[str, list[int]] = {}
    for index in order_workers(positions, max_colocated=len(positions) or 1):
        by_node.setdefault(positions[index].node_id, []).append(index)
    for node_id, indices in by_node.items():
        if len(indices) % k:
            # Whole logical nodes help only if each of them can be sliced.
            whole = all(count % k == 0 for count in Counter(position.node_idx for position in positions).values())
            names = node_names({position.node_id: position.address for position in positions})
            raise ConfigError(
                f"engine_slices: the bundles on one physical node must be a multiple of {k}, got {len(indices)} on node {names[node_id]}. "
                f"Fix: choose a k that divides them{f', or {key}.strategy=STRICT_PACK' if whole else ''}"
            )
    return [indices[start : start + k] for indices in by_node.values() for start in range(0, len(indices), k)]


def _check_shared_gpus(items: Sequence[WorkerPosition], max_colocated: int) -> None:
    holders: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(items):
        for gpu in item.gpu_ids:
            holders.setdefault((item.node_id, str(gpu)), []).append(index)
    for (node_id, gpu), indices in holders.items():
        if len(indices) > max_colocated:
            names = " and ".join(f"bundle {items[index].bundle_idx} of logical node {items[index].node_idx}" for index in indices)
            node = items[indices[0]].address or node_id
            raise WorkerStartError(
                f"GPU {gpu} of node {node}: at most {max_colocated} worker(s) of a group may hold one GPU, got {len(indices)}: {names}. "
                "Fix: raise cluster.max_colocated_worker_groups, or give each worker a whole GPU",
                rank=None,
                bundle=items[indices[1]].bundle_idx,
                node=node,
                cause_text="duplicate GPU",
            )
