"""spec + inventory -> layout or shortfall. Pure: no Ray call, no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from attrs import evolve, frozen

from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.planning.diagnosis import diagnose, render_shortfall
from rl_cluster.planning.holders import nothing_held
from rl_cluster.planning.layout import Layout, NodeShortfall, PlacedBundle, Shortfall
from rl_cluster.planning.packing import Packing
from rl_cluster.planning.packing_joint import Cluster, search_joint
from rl_cluster.planning.problem import RESOURCE_UNIT, Problem, state_problem
from rl_cluster.planning.ranks import (
    WorkerPosition,
    WorkerRank,
    engine_slices,
    layout_positions,
    order_workers,
    rank_workers,
    sorted_bundle_indices,
)
from rl_cluster.planning.selectors import unknown_exclusions
from rl_cluster.planning.suggestions import Question
from rl_cluster.schema import ClusterSpec, resolve_local

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


JOINT_STEPS = 5_000  # of the search for several clusters at once


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
    answer = plan_layouts([spec], inventory)
    return answer if isinstance(answer, Shortfall) else answer[0]


def _layout(problem: Problem, packing: Packing, inventory: Inventory) -> Layout:
    assert packing.places is not None
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
    for up to four clusters, else the largest first): a small cluster must not take the one node that a large one needs. Where no
    order works all are searched together, as far as 5,000 steps go.

    Args:
        specs: What is wanted.
        inventory: What is there.

    Returns:
        A layout for each spec, in the order given; or the shortfall of the first one that did not fit in the given order (its
        ``index``), where the nodes name what the clusters before it took.

    Raises:
        ConfigError: See `plan_layout`.
    """
    tried = _place_all(specs, inventory)
    if tried.layouts is not None:
        return tried.layouts
    with_all_free = _place_all(specs, nothing_held(inventory))
    never = with_all_free.layouts is None and with_all_free.proven
    # Where all of them together are too much, who holds something now has nothing to do with it.
    blocked = with_all_free.blocked if never and len(specs) > 1 else tried.blocked
    index, shown = blocked
    left = tried.blocked[1] if tried.blocked[0] == index else _left_by(specs[:index], inventory)

    def plans(spec: ClusterSpec, nodes: Inventory) -> bool:
        return _left_by([*specs[:index], spec, *specs[index + 1 :]], nodes) is not None

    question = None
    if left is not None:
        question = Question(state_problem(specs[index], left), left, inventory, plans if len(specs) > 1 else None)
    proven = never or with_all_free.layouts is not None
    return diagnose(state_problem(specs[index], shown), shown, never=never, proven=proven, question=question, index=index)


@frozen
class _Tried:
    """Every order of some clusters on some nodes."""

    layouts: list[Layout] | None  # by spec
    blocked: tuple[int, Inventory]  # the first that did not fit in the given order, and what the ones before it had left
    proven: bool  # of a None: no step of it was guessed


def _place_all(specs: Sequence[ClusterSpec], inventory: Inventory) -> _Tried:
    blocked: tuple[int, Inventory] | None = None
    proven = True
    for order in _orders(specs):
        layouts: dict[int, Layout] = {}
        left = inventory
        for index in order:
            problem = state_problem(specs[index], left)
            packing = problem.solve(problem.free)
            if packing.places is None:
                blocked = blocked or (index, left)
                proven &= packing.proven
                break
            layouts[index] = _layout(problem, packing, left)
            left = take_layout(left, layouts[index])
        else:
            return _Tried([layouts[index] for index in range(len(specs))], blocked or (0, inventory), True)
    assert blocked is not None, "there is at least one order"
    if len(specs) == 1:
        return _Tried(None, blocked, proven)
    together, proven = _place_side_by_side(specs, inventory)
    return _Tried(together, blocked, proven)


def _place_side_by_side(specs: Sequence[ClusterSpec], inventory: Inventory) -> tuple[list[Layout] | None, bool]:
    """Some layouts of clusters that fit in no order, one after the other; or None, and whether there are none."""
    problems = [state_problem(spec, inventory) for spec in specs]
    for problem in problems:
        alone = problem.solve(problem.free)
        if alone.places is None and alone.proven:
            return None, True
    names = sorted({name for spec in specs for name in spec.bundle_resources})
    clusters = [
        Cluster(
            sizes=problem.sizes,
            each=tuple(round(problem.spec.bundle_resources.get(name, 0.0) * RESOURCE_UNIT) for name in names),
            usable=tuple(reason is None for reason in problem.unusable),
            strategy=problem.spec.strategy,
        )
        for problem in problems
    ]
    amounts = tuple(tuple(round(node.free.get(name, 0.0) * RESOURCE_UNIT) for name in names) for node in problems[0].nodes)
    joint = search_joint(clusters, amounts, max_steps=JOINT_STEPS)
    if any(spec.segment_size is not None for spec in specs):
        return None, joint.counts is None and joint.proven  # segments are one more rule
    if joint.counts is None:
        return None, joint.proven
    layouts: list[Layout] = []
    left = inventory
    for spec, counts in zip(specs, joint.counts, strict=True):
        problem = state_problem(spec, left)
        packing = problem.solve(counts)
        if packing.places is None:
            return None, False
        layouts.append(_layout(problem, evolve(packing, proven=False), left))
        left = take_layout(left, layouts[-1])
    return layouts, True


def _left_by(specs: Sequence[ClusterSpec], inventory: Inventory) -> Inventory | None:
    """What clusters leave that are placed in this order; None where they don't fit."""
    for spec in specs:
        problem = state_problem(spec, inventory)
        packing = problem.solve(problem.free)
        if packing.places is None:
            return None
        inventory = take_layout(inventory, _layout(problem, packing, inventory))
    return inventory


def _orders(specs: Sequence[ClusterSpec]) -> Iterator[tuple[int, ...]]:
    if len(specs) <= 4:
        yield from permutations(range(len(specs)))
    else:
        yield tuple(range(len(specs)))
        yield tuple(sorted(range(len(specs)), key=lambda index: (-max(specs[index].bundle_counts), -specs[index].world_size)))


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
            called = problem.node_names()
            names = ", ".join(f"{called[position]} ({count})" for position, count in sorted(shared.items())[:4])
            more = f" and {len(shared) - 4} more" if len(shared) > 4 else ""
            logical = sum(bool(place) for place in places)
            warnings.append(f"SPREAD: too few physical nodes with room for {logical} logical nodes each on its own; shared: {names}{more}")
    return [*warnings, *problem.segment_notes(places)]
