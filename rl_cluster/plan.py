"""spec + inventory -> layout or shortfall. Pure: no Ray call, no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from attrs import evolve

from rl_cluster.diagnosis import diagnose, render_shortfall
from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.layout import Layout, NodeShortfall, PlacedBundle, Shortfall
from rl_cluster.problem import RESOURCE_UNIT, Problem, state_problem
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
    "take_layout",
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
    layout = _place(problem, inventory)
    return diagnose(problem, inventory) if layout is None else layout


def _place(problem: Problem, inventory: Inventory) -> Layout | None:
    packing = problem.solve(problem.free)
    if packing.places is None:
        return None
    bundles = tuple(
        PlacedBundle(node_idx, bundle_idx, problem.nodes[position].node_id)
        for node_idx, place in enumerate(packing.places)
        for bundle_idx, position in enumerate(place)
    )
    return Layout(
        spec=problem.spec,
        bundles=bundles,
        nodes=problem.nodes,
        warnings=tuple(_warnings(problem, packing.places)),
        simulated=inventory.simulated,
        least_cost=packing.proven,
    )


def plan_layouts(specs: Sequence[ClusterSpec], inventory: Inventory) -> list[Layout] | Shortfall:
    """Plans several clusters together: all of them, or a shortfall.

    Each is planned on what the ones before it left. Where that does not work in the given order, other orders are tried (all of them
    for up to four clusters, else the largest first): a small cluster must not take the one node that a large one needs.

    Args:
        specs: What is wanted.
        inventory: What is there.

    Returns:
        A layout for each spec, in the order given; or the shortfall of the first one that did not fit in the given order, where
        the nodes name what the clusters before it took.

    Raises:
        ConfigError: See `plan_layout`.
    """
    first: tuple[ClusterSpec, Inventory] | None = None
    for order in _orders(specs):
        layouts: dict[int, Layout] = {}
        left = inventory
        for index in order:
            layout = _place(state_problem(specs[index], left), left)
            if layout is None:
                first = first or (specs[index], left)
                break
            layouts[index] = layout
            left = take_layout(left, layout)
        else:
            return [layouts[index] for index in range(len(specs))]
    assert first is not None, "there is at least one order"
    answer = diagnose(state_problem(*first), first[1])
    if not answer.never and _exceed_all(specs, inventory):
        waiting = tuple(text for text in answer.suggestions if not text.startswith("wait:"))
        return evolve(answer, never=True, suggestions=waiting)
    return answer


def _orders(specs: Sequence[ClusterSpec]) -> Iterator[tuple[int, ...]]:
    if len(specs) <= 4:
        yield from permutations(range(len(specs)))
    else:
        yield tuple(range(len(specs)))
        yield tuple(sorted(range(len(specs)), key=lambda index: (-max(specs[index].bundle_counts), -specs[index].world_size)))


def _exceed_all(specs: Sequence[ClusterSpec], inventory: Inventory) -> bool:
    """Whether the clusters together need more of some resource than all living nodes have."""
    wanted: Counter[str] = Counter()
    for spec in specs:
        wanted.update({name: round(amount * spec.world_size * RESOURCE_UNIT) for name, amount in spec.bundle_resources.items()})
    alive = [node for node in inventory.nodes if node.state == "alive"]
    return any(amount > sum(round(node.total.get(name, 0.0) * RESOURCE_UNIT) for node in alive) for name, amount in wanted.items())


def take_layout(inventory: Inventory, layout: Layout) -> Inventory:
    """The inventory that is left when a layout has been placed; its share is held by a holder of kind ``planned``."""
    taken = Counter(bundle.node_id for bundle in layout.bundles)
    return evolve(inventory, nodes=tuple(_take(node, taken[node.node_id], layout.spec) for node in inventory.nodes))


def _take(node: PhysicalNode, bundles: int, spec: ClusterSpec) -> PhysicalNode:
    if not bundles:
        return node
    share = {name: amount * bundles for name, amount in spec.bundle_resources.items()}
    left = {name: round(node.free.get(name, 0.0) - amount, 4) for name, amount in share.items()}
    holder = Holder("planned", spec.name, f"planned-{spec.name}", "", share)
    return evolve(node, free={**node.free, **left}, holders=(*node.holders, holder))


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
