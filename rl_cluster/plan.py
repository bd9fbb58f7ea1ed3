"""spec + inventory -> layout or shortfall. Pure: no Ray call, no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve

from rl_cluster.diagnosis import diagnose, render_shortfall
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.layout import Layout, NodeShortfall, PlacedBundle, Shortfall
from rl_cluster.problem import Problem, state_problem
from rl_cluster.ranks import WorkerPosition, WorkerRank, engine_slices, layout_positions, order_workers, rank_workers, sorted_bundle_indices
from rl_cluster.schema import ClusterSpec, resolve_local
from rl_cluster.selectors import unknown_exclusions

__all__ = [
    "Layout",
    "NodeShortfall",
    "PlacedBundle",
    "Shortfall",
    "WorkerPosition",
    "WorkerRank",
    "engine_slices",
    "layout_positions",
    "order_workers",
    "plan_layout",
    "plan_layouts",
    "rank_workers",
    "render_shortfall",
    "sorted_bundle_indices",
]


def close_spec(spec: ClusterSpec, inventory: Inventory) -> ClusterSpec:
    """Size an open spec (``cluster=local``) by the node with the most free CPUs; any other spec stays as it is."""
    return resolve_local(spec, max((node.free.get("CPU", 0.0) for node in inventory.nodes if node.state == "alive"), default=0.0))


def plan_layout(spec: ClusterSpec, inventory: Inventory) -> Layout | Shortfall:
    """Places every bundle of a spec on a physical node of an inventory.

    The same nodes give the same layout in whatever order they come and whatever ids Ray gave them.

    Args:
        spec: What is wanted.
        inventory: What is there; only ``free`` resources are taken.

    Returns:
        A layout that keeps the strategy exactly, or the reason why there is none.

    Raises:
        ConfigError: The spec can't be read against these nodes: a label selector with wrong syntax, a topology rank that two
            nodes carry, ``segment_size`` where no node belongs to an NVLink domain.
    """
    problem = state_problem(spec, inventory)
    packing = problem.solve(problem.free)
    if packing.places is None:
        return diagnose(problem, inventory)
    bundles = tuple(
        PlacedBundle(node_idx, bundle_idx, problem.nodes[position].node_id)
        for node_idx, place in enumerate(packing.places)
        for bundle_idx, position in enumerate(place)
    )
    return Layout(
        spec=spec,
        bundles=bundles,
        nodes=problem.nodes,
        warnings=tuple(_warnings(problem, packing.places)),
        simulated=inventory.simulated,
        least_cost=packing.proven,
    )


def plan_layouts(specs: Sequence[ClusterSpec], inventory: Inventory) -> list[Layout] | Shortfall:
    """Plans several clusters, each on what the former ones leave: all of them, or the shortfall of the first that does not fit.

    Arguments and errors are those of `plan_layout`.
    """
    layouts: list[Layout] = []
    for spec in specs:
        layout = plan_layout(spec, inventory)
        if isinstance(layout, Shortfall):
            return layout
        layouts.append(layout)
        inventory = take_layout(inventory, layout)
    return layouts


def take_layout(inventory: Inventory, layout: Layout) -> Inventory:
    """The inventory that is left when a layout has been placed."""
    taken = Counter(bundle.node_id for bundle in layout.bundles)
    each = layout.spec.bundle_resources
    return evolve(inventory, nodes=tuple(_take(node, taken[node.node_id], each) for node in inventory.nodes))


def _take(node: PhysicalNode, bundles: int, each: Mapping[str, float]) -> PhysicalNode:
    if not bundles:
        return node
    left = {name: round(node.free.get(name, 0.0) - amount * bundles, 4) for name, amount in each.items()}
    return evolve(node, free={**node.free, **left})


def _warnings(problem: Problem, places: Sequence[tuple[int, ...]]) -> list[str]:
    spec = problem.spec
    warnings = [f"cluster.exclude_nodes: {name!r} names no node of this cluster" for name in unknown_exclusions(spec, problem.nodes)]
    split = [node_idx for node_idx, place in enumerate(places) if len(set(place)) > 1]
    if split:
        which = f"logical node {split[0]} is" if len(split) == 1 else f"{len(split)} logical nodes are"
        warnings.append(f"{spec.strategy}: {which} split over several physical nodes, because no one node has room for it")
    if spec.strategy == "SPREAD":
        users = Counter(position for place in places for position in set(place))
        shared = {position: count for position, count in users.items() if count > 1}
        if shared:
            names = ", ".join(f"{problem.nodes[position].address} ({count})" for position, count in sorted(shared.items())[:4])
            more = f" and {len(shared) - 4} more" if len(shared) > 4 else ""
            logical = sum(bool(place) for place in places)
            warnings.append(f"SPREAD: too few physical nodes with room for {logical} logical nodes each on its own; shared: {names}{more}")
    return [*warnings, *problem.segment_notes(places)]
