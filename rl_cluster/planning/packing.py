"""The planner's arithmetic: items (logical nodes, counted in bundles) into bins (physical nodes, in topology order), per strategy.

All bundles of a spec are alike, so a physical node with several resources comes down to one number: how many bundles it takes.
Least cost first; among layouts of equal cost the one whose vector of bin positions (item by item, bundle by bundle) is
lexicographically smallest. The cost is a tuple, compared from the left:

* STRICT_PACK: (bins used)
* PACK: (split items, pieces, bins used)
* SPREAD: (split items, pairs of items that share a bin, pieces)
* STRICT_SPREAD: ()

Exact: distinct placement (any sizes), equal sizes that stay whole, and everything small (`packing_exact`). Where that is too
large, `packing_greedy` answers: its layouts keep every hard rule; its "no" is a proof only where it says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import frozen

from rl_cluster.planning import packing_exact, packing_greedy

Places = list[tuple[int, ...]]

MAX_STEPS = 100_000  # of an exhaustive search, about 0.2 s


@frozen
class Packing:
    """The answer: for each item the bin of each of its bundles, in ascending order; or None."""

    places: Places | None
    proven: bool  # of an answer: it has the least cost; of a None: there is no layout
    steps: int = 0  # of an exhaustive search


def pack(sizes: Sequence[int], capacities: Sequence[int], *, strategy: str, max_steps: int = MAX_STEPS) -> Packing:
    """Places items into bins.

    Args:
        sizes: Bundles of each item; 0 takes nothing.
        capacities: Bundles that each bin takes, in topology order.
        strategy: STRICT_PACK, PACK, SPREAD or STRICT_SPREAD.
        max_steps: How far small inputs without a closed form are searched whole; 100,000 steps are about 0.2 s, 0 is not at all.
    """
    items = [index for index, size in enumerate(sizes) if size]
    wanted = [sizes[index] for index in items]
    most = sum(wanted)
    found = _pack(wanted, [min(capacity, most) for capacity in capacities], strategy, max_steps)
    if found.places is None:
        return found
    places: Places = [()] * len(sizes)
    for index, place in zip(items, found.places, strict=True):
        places[index] = place
    return Packing(places, found.proven, found.steps)


def _pack(sizes: list[int], capacities: list[int], strategy: str, max_steps: int) -> Packing:
    if not sizes:
        return Packing([], True)
    if sum(sizes) > sum(capacities):
        return Packing(None, True)
    if strategy in ("SPREAD", "STRICT_SPREAD"):
        distinct = match_distinct(sizes, capacities)
        if distinct is not None or strategy == "STRICT_SPREAD":
            return Packing(distinct, True)
    if len(set(sizes)) == 1:
        slots = [capacity // sizes[0] for capacity in capacities]
        if sum(slots) >= len(sizes):
            counts = even_counts(len(sizes), slots) if strategy == "SPREAD" else fewest_counts(len(sizes), slots)
            positions = [position for position, count in enumerate(counts) for _ in range(count)]
            return Packing([(position,) * sizes[0] for position in positions], True)
        if strategy == "STRICT_PACK":
            return Packing(None, True)
    exact = packing_exact.search(sizes, capacities, strategy=strategy, max_steps=max_steps) if max_steps > 0 else None
    if exact is not None:
        return Packing(exact.places, True, exact.steps)
    places, proven = packing_greedy.search(sizes, capacities, strategy=strategy)
    return Packing(places, proven, max_steps)


def packing_cost(places: Sequence[Sequence[int]], *, strategy: str) -> tuple[int, int, int]:
    """The cost of a layout, see the head of this module; parts that a strategy does not count are 0."""
    pieces = [set(place) for place in places]
    users = Counter(position for parts in pieces for position in parts)
    split = sum(len(parts) > 1 for parts in pieces)
    if strategy == "STRICT_PACK":
        return len(users), 0, 0
    if strategy == "PACK":
        return split, sum(users.values()), len(users)
    if strategy == "SPREAD":
        return split, sum(count * (count - 1) // 2 for count in users.values()), sum(users.values())
    return 0, 0, 0


def match_distinct(sizes: Sequence[int], capacities: Sequence[int]) -> Places | None:
    """Every item on a bin of its own: the lexicographically smallest such layout, or None where there is none.

    Bins that take an item take every smaller one, so Hall's condition is one number per size: bins of at least that
    capacity less items of at least that size. Giving a bin to an item lowers it for the sizes between the two only.
    """
    kinds = sorted(set(sizes))
    slack = {kind: sum(capacity >= kind for capacity in capacities) - sum(size >= kind for size in sizes) for kind in kinds}
    if min(slack.values()) < 0:
        return None
    taken = [False] * len(capacities)
    start = dict.fromkeys(kinds, 0)  # a bin that was passed over stays unfit: slack never grows
    places: Places = []
    for size in sizes:
        position = start[size]
        while True:
            capacity = capacities[position]
            between = [kind for kind in kinds if size < kind <= capacity]
            if not taken[position] and capacity >= size and all(slack[kind] > 0 for kind in between):
                break
            position += 1
        taken[position] = True
        start[size] = position + 1
        for kind in between:
            slack[kind] -= 1
        places.append((position,) * size)
    return places


def fewest_counts(items: int, slots: Sequence[int]) -> list[int]:
    """How many equal items each bin gets so that as few bins as possible are used, the earliest ones first."""
    later = Counter(slots)
    kinds = sorted(later, reverse=True)

    def best_of(bins: int) -> int:
        room = 0
        for kind in kinds:
            count = min(bins, later[kind])
            room += count * kind
            bins -= count
        return room

    bins, room = 0, 0
    for kind in kinds:
        if room >= items:
            break
        count = min(later[kind], -(-(items - room) // kind)) if kind else 0
        bins += count
        room += count * kind
    counts = [0] * len(slots)
    left = items
    for position, slot in enumerate(slots):
        later[slot] -= 1
        if not left:
            break
        if slot and min(slot, left) + best_of(bins - 1) >= left:
            counts[position] = min(slot, left)
            left -= counts[position]
            bins -= 1
    return counts


def even_counts(items: int, slots: Sequence[int]) -> list[int]:
    """How many equal items each bin gets so that as few pairs as possible share one; a remainder goes to the earliest bins."""
    counts = [0] * len(slots)
    left = items
    level = 0
    while left:
        open_bins = [position for position, slot in enumerate(slots) if slot > level]
        for position in open_bins[:left]:
            counts[position] += 1
        left -= min(left, len(open_bins))
        level += 1
    return counts
