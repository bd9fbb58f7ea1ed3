"""What holds for every inventory and every spec, and that small answers are those of an exhaustive search."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

import yaml
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.plan import Layout, Shortfall, plan_layout, plan_layouts
from rl_cluster.planning.packing import pack, packing_cost
from rl_cluster.planning.segments import pack_segments
from rl_cluster.schema import ClusterSpec
from tests.strategies import (
    all_fit,
    best_layout,
    best_segment_cost,
    every_layout,
    inventories,
    made_up_node,
    packings,
    specs,
    strategies,
    written_specs,
)

SOFT = ("PACK", "SPREAD")

# No deadline and no complaint of slow data: a busy machine fails no test.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(patient, max_examples=100)
few = settings(patient, max_examples=60)
fewer = settings(patient, max_examples=30)


def may_use(spec: ClusterSpec, node: PhysicalNode) -> bool:
    kind = node.labels.get("kind")
    labelled = {None: True, "in(a,b)": kind in ("a", "b"), "!a": kind != "a"}[spec.label_selector.get("kind")]
    head = {"always": True, "never": False, "auto": bool(node.total["GPU"]) or not spec.use_gpus}[spec.use_head] or not node.is_head
    return node.state == "alive" and labelled and head


def rooms(spec: ClusterSpec, inventory: Inventory, *, total: bool = False) -> list[int]:
    """Bundles that each node takes, in exact decimal arithmetic."""
    each = {name: Decimal(str(amount)) for name, amount in spec.bundle_resources.items()}

    def room(node: PhysicalNode) -> int:
        amounts = node.total if total else node.free
        return min(int(Decimal(str(amounts[name])) / amount) for name, amount in each.items())

    return [room(node) if may_use(spec, node) else 0 for node in inventory.nodes]


def exists(spec: ClusterSpec, capacities: list[int]) -> bool:
    if spec.strategy in SOFT:  # whatever the totals hold can be split
        return sum(spec.bundle_counts) <= sum(capacities)
    return next(every_layout(spec.bundle_counts, capacities, spec.strategy), None) is not None


def places(layout: Layout) -> dict[int, list[str]]:
    lie: dict[int, list[str]] = {}
    for bundle in layout.bundles:
        lie.setdefault(bundle.node_idx, []).append(bundle.node_id)
    return lie


@many
@given(specs(), inventories())
def test_every_bundle_is_placed_once_and_no_node_gives_more_than_is_free(spec: ClusterSpec, inventory: Inventory) -> None:
    """A layout has each bundle once, on usable nodes only, within what is free of every resource."""
    layout = plan_layout(spec, inventory)
    if isinstance(layout, Shortfall):
        return
    wanted = [(node_idx, bundle_idx) for node_idx, count in enumerate(spec.bundle_counts) for bundle_idx in range(count)]
    assert [(bundle.node_idx, bundle.bundle_idx) for bundle in layout.bundles] == wanted
    taken = Counter(bundle.node_id for bundle in layout.bundles)
    for node in inventory.nodes:
        assert may_use(spec, node) or not taken[node.node_id]
        for name, amount in spec.bundle_resources.items():
            assert taken[node.node_id] * Decimal(str(amount)) <= Decimal(str(node.free[name]))


@many
@given(specs(), inventories())
def test_a_strict_strategy_is_kept_exactly(spec: ClusterSpec, inventory: Inventory) -> None:
    """STRICT: a logical node on one physical node; STRICT_SPREAD: no two on the same."""
    layout = plan_layout(spec, inventory)
    if isinstance(layout, Shortfall) or spec.strategy in SOFT:
        return
    machines = [set(nodes) for nodes in places(layout).values()]
    assert all(len(nodes) == 1 for nodes in machines)
    if spec.strategy == "STRICT_SPREAD":
        assert len(set().union(*machines)) == len(machines)


@many
@given(specs(), inventories(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_and_their_ids_change_nothing(spec: ClusterSpec, inventory: Inventory, chance: random.Random) -> None:
    """The same machines in another order and with other Ray ids give the same layout, machine by machine."""

    def by_address(inventory: Inventory) -> object:
        answer = plan_layout(spec, inventory)
        if isinstance(answer, Shortfall):
            return answer.never, answer.headline, answer.suggestions
        addresses = {node.node_id: node.address for node in answer.nodes}
        return [addresses[bundle.node_id] for bundle in answer.bundles], answer.warnings

    ids = chance.sample(range(1000), len(inventory.nodes))
    shuffled = [evolve(node, node_id=f"{number:056x}") for number, node in zip(ids, inventory.nodes, strict=True)]
    chance.shuffle(shuffled)
    assert by_address(inventory) == by_address(evolve(inventory, nodes=tuple(shuffled)))


@many
@given(specs(), inventories())
def test_there_is_a_layout_exactly_when_an_exhaustive_search_finds_one(spec: ClusterSpec, inventory: Inventory) -> None:
    """Complete: a shortfall means that there is no layout, and "never" means that there is none with nothing held either."""
    answer = plan_layout(spec, inventory)
    assert isinstance(answer, Layout) == exists(spec, rooms(spec, inventory))
    if isinstance(answer, Shortfall):
        assert answer.never != exists(spec, rooms(spec, inventory, total=True))


@many
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 3), min_size=1, max_size=3), strategies), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=4),
)
def test_of_several_clusters_never_means_never(wanted: list[tuple[list[int], str]], machines: list[tuple[int, bool]]) -> None:
    """All are placed only where that is possible; "never" is said only where it is impossible with nothing held, else it is "not now"."""
    nodes = [
        made_up_node(index, {"GPU": float(total), "CPU": 64.0}, {"GPU": float(total // 2 if held else total), "CPU": 64.0})
        for index, (total, held) in enumerate(machines)
    ]
    clusters = [ClusterSpec(bundle_ct_per_node_list=sizes, strategy=strategy) for sizes, strategy in wanted]
    answer = plan_layouts(clusters, Inventory(tuple(nodes)))
    assert isinstance(answer, Shortfall) != all_fit(wanted, [int(node.free["GPU"]) for node in nodes])
    if isinstance(answer, Shortfall):
        assert answer.never != all_fit(wanted, [int(node.total["GPU"]) for node in nodes])


def with_words(spec: ClusterSpec, suggestion: str) -> ClusterSpec:
    """The spec with the words of ``cluster.key=value cluster.key=value fits now``."""
    changes = {}
    for word in suggestion.removesuffix(" fits now").split(" "):
        key, _, value = word.partition("=")
        changes[key.removeprefix("cluster.")] = yaml.safe_load(value)
    return evolve(spec, **changes)


LIFTED = {
    "relax cluster.label_selector": {"label_selector": {}},
    "shorten cluster.exclude_nodes": {"exclude_nodes": []},
    "cluster.use_head=always": {"use_head": "always"},
}


@many
@given(st.lists(written_specs(), min_size=1, max_size=3), inventories())
def test_what_is_said_to_fit_fits(wanted: list[ClusterSpec], inventory: Inventory) -> None:
    """Each suggestion, pasted behind the same command, is valid and plans, together with all other clusters."""
    answer = plan_layouts(wanted, inventory)
    if not isinstance(answer, Shortfall):
        return
    freed = evolve(inventory, nodes=tuple(evolve(node, free=node.total) for node in inventory.nodes))
    for text in answer.suggestions:
        if text.endswith(" fits now"):
            changed, nodes = with_words(answer.spec, text), inventory
        elif text.partition(": ")[2] in LIFTED:
            changed = evolve(answer.spec, **LIFTED[text.partition(": ")[2]])
            nodes = freed if "if nothing were held" in text else inventory
        else:
            assert text.startswith(("wait: it fits when ", "no node has a resource gpu: write GPU"))
            continue
        others = [*wanted[: answer.index], changed, *wanted[answer.index + 1 :]]
        assert not isinstance(plan_layouts(others, nodes), Shortfall), text


@many
@given(packings(bundles=12, bins=6), st.sampled_from(["STRICT_PACK", "STRICT_SPREAD"]))
def test_a_strict_layout_is_the_best_of_all(packing: tuple[list[int], list[int]], strategy: str) -> None:
    """Of all layouts the one of least cost, and of those the one on the earliest nodes."""
    sizes, capacities = packing
    best = best_layout(sizes, capacities, strategy)
    found = pack(sizes, capacities, strategy=strategy)
    assert (found.places and tuple(found.places), found.proven) == (best, True)


@few
@given(packings(bundles=8, bins=4), st.sampled_from(SOFT))
def test_a_soft_layout_is_the_best_of_all(packing: tuple[list[int], list[int]], strategy: str) -> None:
    """Fewest split logical nodes first, then what the strategy prefers, then the earliest nodes."""
    sizes, capacities = packing
    best = best_layout(sizes, capacities, strategy)
    found = pack(sizes, capacities, strategy=strategy)
    assert (found.places and tuple(found.places), found.proven) == (best, True)


@few
@given(packings(bundles=7, bins=4), strategies, st.integers(1, 3), st.lists(st.sampled_from(["x", "y", None]), min_size=4, max_size=4))
def test_segments_are_whole_and_cost_least(
    packing: tuple[list[int], list[int]], strategy: str, segment_size: int, domains: list[str | None]
) -> None:
    """Each run of k logical nodes lies in one domain, never on a node without one, at the least cost that an exhaustive search finds."""
    sizes, capacities = packing
    domains = domains[: len(capacities)]
    found = pack_segments(sizes, capacities, domains, segment_size=segment_size, strategy=strategy)
    if not any(sizes):
        assert found.places == [()] * len(sizes)
        return
    assert found.proven
    best = best_segment_cost(sizes, capacities, domains, segment_size, strategy)
    assert (found.places and packing_cost(found.places, strategy=strategy)) == best
    if found.places is None:
        return
    for start in range(0, len(sizes), segment_size):
        used = {domains[position] for place in found.places[start : start + segment_size] for position in place}
        assert None not in used
        assert len(used) <= 1
    taken = Counter(position for place in found.places for position in place)
    assert all(taken[position] <= capacity for position, capacity in enumerate(capacities))


@many
@given(
    packings(bundles=7, bins=4),
    strategies,
    st.integers(1, 3),
    st.lists(st.sampled_from(["x", "y", None]), min_size=4, max_size=4),
    st.booleans(),
)
def test_what_is_never_possible_is_so_also_where_little_was_searched(
    packing: tuple[list[int], list[int]], strategy: str, segment_size: int, domains: list[str | None], alike: bool
) -> None:
    """Without any step of a search, "never" means never; and it is known wherever all logical nodes are alike."""
    sizes, capacities = packing
    sizes = [max(sizes)] * len(sizes) if alike else sizes
    domains = domains[: len(capacities)]
    in_segments = pack_segments(sizes, capacities, domains, segment_size=segment_size, strategy=strategy, max_steps=0)
    if in_segments.places is None:
        assert not in_segments.proven or best_segment_cost(sizes, capacities, domains, segment_size, strategy) is None
        assert in_segments.proven or not alike
    anywhere = pack(sizes, capacities, strategy=strategy, max_steps=0)
    if anywhere.places is None:
        assert not anywhere.proven or best_layout(sizes, capacities, strategy) is None
        assert anywhere.proven or not alike


@fewer
@given(st.lists(st.integers(0, 9), min_size=30, max_size=60), st.lists(st.integers(0, 9), min_size=20, max_size=50), strategies)
def test_large_layouts_keep_the_hard_rules(sizes: list[int], capacities: list[int], strategy: str) -> None:
    """Where a search would be too long: no bin over its room, strict strategies kept, and soft ones answer whenever the totals fit."""
    found = pack(sizes, capacities, strategy=strategy)
    if found.places is None:
        assert strategy in ("STRICT_PACK", "STRICT_SPREAD") or sum(sizes) > sum(capacities)
        return
    assert [len(place) for place in found.places] == sizes
    taken = Counter(position for place in found.places for position in place)
    assert all(taken[position] <= capacity for position, capacity in enumerate(capacities))
    pieces = [set(place) for place in found.places if place]
    if strategy in ("STRICT_PACK", "STRICT_SPREAD"):
        assert all(len(parts) == 1 for parts in pieces)
    if strategy == "STRICT_SPREAD":
        assert len(set().union(*pieces)) == len(pieces)


@fewer
@given(st.lists(st.sampled_from([8, 4, 2, 1]), min_size=25, max_size=60), st.lists(st.integers(0, 16), min_size=10, max_size=40))
def test_sizes_that_divide_one_another_are_packed_whenever_they_can_be(sizes: list[int], capacities: list[int]) -> None:
    """For any number of logical nodes: larger ones take the same number of smaller places wherever they lie, so counting places decides."""
    places = {size: sum(capacity // size for capacity in capacities) for size in (8, 4, 2, 1)}
    taken = {size: sum(larger for larger in sizes if larger >= size) // size for size in (8, 4, 2, 1)}
    found = pack(sizes, capacities, strategy="STRICT_PACK")
    assert (found.places is not None) == all(places[size] >= taken[size] for size in sizes)
    assert found.places is not None or found.proven
