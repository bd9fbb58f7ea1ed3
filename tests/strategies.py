"""Hypothesis strategies for inventories and specs, and the planner's truth by exhaustive search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from attrs import evolve
from hypothesis import strategies as st

from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.plan import Shortfall, plan_layout
from rl_cluster.planning.packing import packing_cost
from rl_cluster.schema import STRATEGIES, ClusterSpec

AMOUNTS = {"GPU": 8.0, "CPU": 64.0}

Place = tuple[int, ...]


def made_up_node(
    index: int,
    total: dict[str, float],
    free: dict[str, float] | None = None,
    labels: dict[str, str] | None = None,
    *,
    is_head: bool = False,
    state: str = "alive",
) -> PhysicalNode:
    """A node with address 10.0.0.<index + 1> and an id that sorts against its index."""
    return PhysicalNode(
        node_id=f"{9999 - index:056x}",
        address=f"10.0.0.{index + 1}",
        total=total,
        free=total if free is None else free,
        labels=labels or {},
        is_head=is_head,
        state=state,
    )


def made_up_inventory(*gpus: int, cpus: float = 128) -> Inventory:
    """One node per number of GPUs, nothing held."""
    return Inventory(tuple(made_up_node(index, {"GPU": float(count), "CPU": float(cpus)}) for index, count in enumerate(gpus)))


def held(
    node: PhysicalNode, gpus: float, *, name: str = "other-job-node0", kind: str = "placement_group", job: str = "02000000"
) -> PhysicalNode:
    """The node with so many GPUs held, and as many CPUs."""
    free = {"GPU": node.free["GPU"] - gpus, "CPU": node.free["CPU"] - gpus}
    holder = Holder(kind, name, f"id-{name}", job, {"GPU": gpus, "CPU": gpus})
    return evolve(node, free=free, holders=(*node.holders, holder))


def shortfall(inventory: Inventory, **keys: object) -> Shortfall:
    """Of a spec that does not fit."""
    answer = plan_layout(ClusterSpec(**keys), inventory)  # type: ignore[arg-type]
    assert isinstance(answer, Shortfall), answer
    return answer


def item_places(size: int, rooms: Sequence[int], *, may_split: bool) -> Iterator[Place]:
    """Every way to lay one item into bins, as the ascending bins of its bundles."""
    for bin_, room in enumerate(rooms):
        if size <= room and size:
            yield (bin_,) * size
    if not size:
        yield ()
    elif may_split:
        for amounts in product(*(range(min(size, room) + 1) for room in rooms)):
            if sum(amounts) == size and sum(amount > 0 for amount in amounts) > 1:
                yield tuple(bin_ for bin_, amount in enumerate(amounts) for _ in range(amount))


def every_layout(sizes: Sequence[int], rooms: Sequence[int], strategy: str) -> Iterator[tuple[Place, ...]]:
    """Every layout that keeps the hard rules of a strategy."""
    if not sizes:
        yield ()
        return
    for place in item_places(sizes[0], rooms, may_split=strategy in ("PACK", "SPREAD")):
        left = [room - place.count(bin_) for bin_, room in enumerate(rooms)]
        if strategy == "STRICT_SPREAD":
            left = [0 if bin_ in place else room for bin_, room in enumerate(left)]
        for others in every_layout(sizes[1:], left, strategy):
            yield place, *others


def best_layout(sizes: Sequence[int], rooms: Sequence[int], strategy: str) -> tuple[Place, ...] | None:
    """The layout that the planner promises: least cost, then the earliest bins, logical node by logical node."""
    return min(every_layout(sizes, rooms, strategy), key=lambda places: (packing_cost(places, strategy=strategy), places), default=None)


def all_fit(wanted: Sequence[tuple[Sequence[int], str]], rooms: Sequence[int]) -> bool:
    """Whether several clusters (sizes, strategy) fit side by side, by trying every layout of each."""
    left = {tuple(rooms)}
    for sizes, strategy in wanted:
        taken = {
            tuple(sum(place.count(bin_) for place in layout) for bin_ in range(len(rooms)))
            for layout in every_layout(sizes, rooms, strategy)
        }
        left = {tuple(room - some for room, some in zip(state, take, strict=True)) for state in left for take in taken}
        left = {state for state in left if min(state) >= 0}
    return bool(left)


def best_segment_cost(
    sizes: Sequence[int], rooms: Sequence[int], domains: Sequence[str | None], segment_size: int, strategy: str
) -> tuple[int, int, int] | None:
    """The least cost where each segment lies in one domain."""
    segments = [range(start, min(start + segment_size, len(sizes))) for start in range(0, len(sizes), segment_size)]
    costs = []
    for choice in product(sorted({domain for domain in domains if domain}), repeat=len(segments)):
        parts = []
        for domain in set(choice):
            mine = [room if domains[bin_] == domain else 0 for bin_, room in enumerate(rooms)]
            indices = [index for segment, chosen in zip(segments, choice, strict=True) if chosen == domain for index in segment]
            best = best_layout([sizes[index] for index in indices], mine, strategy)
            if best is None:
                break
            parts.append(packing_cost(best, strategy=strategy))
        else:
            costs.append((sum(part[0] for part in parts), sum(part[1] for part in parts), sum(part[2] for part in parts)))
    return min(costs, default=None)


strategies = st.sampled_from(STRATEGIES)


@st.composite
def packings(draw: st.DrawFn, *, bundles: int, bins: int) -> tuple[list[int], list[int]]:
    """Sizes of up to that many bundles in all, and up to that many bins."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        sizes.append(draw(st.integers(0, min(bundles - sum(sizes), 6))))
    return sizes, draw(st.lists(st.integers(0, 6), min_size=1, max_size=bins))


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    """Specs of up to 4 logical nodes with up to 4 bundles each, GPU or CPU only, with or without a custom resource and a selector."""
    use_gpus = draw(st.booleans())
    return ClusterSpec(
        bundle_ct_per_node_list=draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any)),
        strategy=draw(strategies),
        gpus_per_node=4 if use_gpus else 0,
        use_gpus=use_gpus,
        cpus_per_bundle=draw(st.sampled_from([None, 0.5, 2.0, 0.1])),
        resources=draw(st.sampled_from([{}, {"nic": 0.25}])),
        label_selector=draw(st.sampled_from([{}, {"kind": "in(a,b)"}, {"kind": "!a"}])),
        use_head=draw(st.sampled_from(["auto", "always", "never"])),
    )


@st.composite
def written_specs(draw: st.DrawFn) -> ClusterSpec:
    """Small specs in every way in which the bundles can be written down, with nodes left out."""
    count, bundles = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    ways: list[dict[str, object]] = [
        {"num_nodes": count, "gpus_per_node": bundles},
        {"num_nodes": count, "gpus_per_node": 6, "bundles_per_node": bundles},
        {"num_nodes": count, "gpus_per_node": 6, "bundles_per_node": bundles, "use_gpus": False},
        {"bundle_ct_per_node_list": [bundles] * count, "gpus_per_node": 6},
        {"bundle_ct_per_node_list": [bundles] * count, "bundles_per_node": bundles, "gpus_per_node": 6},
        {"bundle_ct_per_node_list": [*range(count), bundles], "gpus_per_node": 6},
    ]
    return ClusterSpec(
        **draw(st.sampled_from(ways)),  # type: ignore[arg-type]
        strategy=draw(strategies),
        cpus_per_bundle=draw(st.sampled_from([None, 0.5, 2.0])),
        accelerator=draw(st.sampled_from(["GPU", "GPU", "gpu"])),
        label_selector=draw(st.sampled_from([{}, {"kind": "in(a,b)"}])),
        exclude_nodes=draw(st.sampled_from([[], ["10.0.0.2"]])),
        use_head=draw(st.sampled_from(["auto", "always", "never"])),
    )


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    """Up to 6 nodes in topology order, partly held, some of them head, draining, dead, labelled."""
    nodes = []
    for index in range(draw(st.integers(1, 6))):
        total = {name: float(draw(st.integers(0, most))) for name, most in (("GPU", 4), ("CPU", 8), ("nic", 2))}
        free = {name: draw(st.sampled_from([amount, float(int(amount / 2))])) for name, amount in total.items()}
        labels = draw(st.sampled_from([{}, {"kind": "a"}, {"kind": "b"}, {"kind": "c"}]))
        state = draw(st.sampled_from(["alive", "alive", "alive", "draining", "dead"]))
        nodes.append(made_up_node(index, total, free, labels, is_head=index == 0 and draw(st.booleans()), state=state))
    return Inventory(tuple(nodes))
