"""Which bundles of a cluster the workers of a group sit on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rl_cluster.errors import ConfigError
from rl_cluster.ground.arguments import check_sequence, check_whole, check_wholes
from rl_cluster.plan import PlacedBundle
from rl_cluster.virtual_cluster import RayVirtualCluster


def choose_bundles(
    cluster: RayVirtualCluster,
    workers_per_node: int | Sequence[int] | None,
    bundle_indices_list: Sequence[tuple[int, Sequence[int]]] | None,
) -> list[PlacedBundle]:
    """The bundles that the workers of a group sit on: all, the first ones of each logical node, or those of an explicit list.

    Raises:
        ConfigError: More workers than bundles, or a bundle that is not there or is listed twice.
    """
    bundles = list(cluster.layout.bundles)
    by_node: dict[int, list[PlacedBundle]] = {}
    for bundle in bundles:
        by_node.setdefault(bundle.node_idx, []).append(bundle)
    nodes = [by_node[node_idx] for node_idx in sorted(by_node)]
    if bundle_indices_list is not None:
        check_sequence("bundle_indices_list", bundle_indices_list)
        groups = [bundles] if cluster.spec.unified else nodes
        return list(_listed(groups, bundle_indices_list))
    if workers_per_node is None:
        return bundles
    if isinstance(workers_per_node, Iterable):
        counts = check_wholes("workers_per_node", workers_per_node)
    else:
        counts = [check_whole("workers_per_node", workers_per_node)] * len(nodes)
    if len(counts) != len(nodes):
        raise ConfigError(
            f"workers_per_node: must have {len(nodes)} entries, one per logical node with bundles, got {counts}. Fix: add or remove"
        )
    for number, (count, node) in enumerate(zip(counts, nodes, strict=True)):
        if not 0 <= count <= len(node):
            raise ConfigError(
                f"workers_per_node[{number}]: must be between 0 and {len(node)} (its bundles), got {count}. Fix: ask for fewer"
            )
    return [bundle for count, node in zip(counts, nodes, strict=True) for bundle in node[:count]]


def _listed(groups: Sequence[Sequence[PlacedBundle]], wanted: Sequence[tuple[int, Sequence[int]]]) -> Iterator[PlacedBundle]:
    seen: set[PlacedBundle] = set()
    for number, pair in enumerate(wanted):
        where = f"bundle_indices_list[{number}]"
        if isinstance(pair, (str, bytes)) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ConfigError(f"{where}: must be (placement group, [bundles]), got {pair!r}. Fix: write e.g. (0, [0, 1])")
        group, indices = pair
        group, indices = check_whole(f"{where}[0]", group), check_wholes(f"{where}[1]", indices)
        chosen = 0 if len(groups) == 1 else group
        if not 0 <= chosen < len(groups):
            raise ConfigError(f"{where}: the placement group must be between 0 and {len(groups) - 1}, got {group}. Fix: correct it")
        for index in indices:
            if not 0 <= index < len(groups[chosen]):
                raise ConfigError(f"{where}: the bundle must be between 0 and {len(groups[chosen]) - 1}, got {index}. Fix: correct it")
            bundle = groups[chosen][index]
            if bundle in seen:
                raise ConfigError(f"{where}: bundle {index} of placement group {group} is listed twice. Fix: list each bundle once")
            seen.add(bundle)
            yield bundle


def bundle_share(cluster: RayVirtualCluster) -> dict[str, Any]:
    """What one worker takes of its bundle, as options of a Ray actor: everything, or 1/max of it where groups share bundles."""
    parts = {name: amount / cluster.max_colocated_worker_groups for name, amount in cluster.spec.bundle_resources.items()}
    share: dict[str, Any] = {"num_cpus": parts.pop("CPU", 0), "num_gpus": parts.pop("GPU", 0)}
    if "memory" in parts:  # Ray has an option of its own for it
        share["memory"] = parts.pop("memory")
    return {**share, "resources": parts} if parts else share
