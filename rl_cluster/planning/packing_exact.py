"""Least cost by exhaustive search with a memory, for small inputs.

It stops after a fixed number of steps, so that an answer never depends on how fast the machine is.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence

from attrs import frozen

MAX_ITEMS = 24
MAX_BINS = 200

Cost = tuple[int, ...]
Bins = tuple[tuple[int, int], ...]  # (room left, items on it) of each bin
Option = tuple[tuple[int, int], ...]  # ((bin, bundles), ...) of one item


@frozen
class Found:
    """The layout of least cost, or None where there is no layout."""

    places: list[tuple[int, ...]] | None
    steps: int


class _OutOfStepsError(Exception):
    pass


def search(sizes: Sequence[int], capacities: Sequence[int], *, strategy: str, max_steps: int) -> Found | None:
    """The lexicographically smallest layout of least cost, or None where that would take too many steps.

    Args:
        sizes: Bundles of each item, at least 1 each.
        capacities: Bundles that each bin takes, in topology order.
        strategy: STRICT_PACK, PACK or SPREAD.
        max_steps: When to give up; 100,000 steps are about 0.2 s.
    """
    if len(sizes) > MAX_ITEMS:
        return None
    # Of bins with equal room no more than these can be used, and the earliest ones are preferred: thousands come down to few.
    most = len(sizes) if strategy == "STRICT_PACK" else sum(sizes)
    counts: Counter[int] = Counter()
    kept = []
    for position, capacity in enumerate(capacities):
        if capacity and counts[capacity] < most:
            counts[capacity] += 1
            kept.append(position)
    if len(kept) > MAX_BINS:
        return None
    rooms = [capacities[position] for position in kept]
    steps = 0
    try:
        # Splits cost more than all else, so while everything can stay whole no split needs to be tried: that is a far smaller search.
        found = _Search(strategy, may_split=False, max_steps=max_steps).run(list(sizes), rooms)
        if found.places is None and strategy != "STRICT_PACK":
            steps = found.steps
            found = _Search(strategy, may_split=True, max_steps=max_steps - steps).run(list(sizes), rooms)
    except _OutOfStepsError:
        return None
    if found.places is None:
        return found
    return Found([tuple(kept[bin_] for bin_ in place) for place in found.places], steps + found.steps)


class _Search:
    def __init__(self, strategy: str, *, may_split: bool, max_steps: int) -> None:
        self.may_split = may_split
        self.max_steps = max_steps
        self.strategy = strategy
        self.steps = 0
        self.known: dict[tuple[tuple[int, ...], Bins], Cost | None] = {}

    def run(self, sizes: list[int], capacities: list[int]) -> Found:
        bins = tuple((capacity, 0) for capacity in capacities)
        least = self.least(_sorted(sizes), _canonical(bins))
        if least is None:
            return Found(None, self.steps)
        places = []
        for index, size in enumerate(sizes):
            rest = _sorted(sizes[index + 1 :])
            for positions, option in sorted((_positions(option), option) for option in self.options(size, bins)):
                cost, after = self.apply(option, bins)
                onward = self.least(rest, _canonical(after))
                if onward is not None and _add(cost, onward) == least:
                    bins, least = after, onward
                    places.append(positions)
                    break
        return Found(places, self.steps)

    def least(self, sizes: tuple[int, ...], bins: Bins) -> Cost | None:
        """The least cost of placing these items (largest first) into these bins, or None."""
        if not sizes:
            return (0, 0, 0)
        key = sizes, bins
        if key in self.known:
            return self.known[key]
        best: Cost | None = None
        room = sum(room for room, _ in bins)
        if sum(sizes) <= room and (self.may_split or sizes[0] <= max(room for room, _ in bins)):
            bound = self.bound(sizes, bins)
            for option in self.options(sizes[0], bins):
                if best is not None and (best == bound or (len(option) > 1 and best[0] == 0)):
                    break  # whole options come first, and a split costs more than all else
                self.count(len(bins) // 8)
                cost, after = self.apply(option, bins)
                onward = self.least(sizes[1:], _canonical(after))
                if onward is not None and (best is None or _add(cost, onward) < best):
                    best = _add(cost, onward)
        self.known[key] = best
        return best

    def bound(self, sizes: tuple[int, ...], bins: Bins) -> Cost:
        """A cost that no layout of these items goes below: a layout that reaches it ends the search."""
        if self.strategy == "SPREAD":
            counts = [items for _, items in bins]
            heapq.heapify(counts)
            pairs = 0
            for _ in sizes:
                least = counts[0]
                pairs += least
                heapq.heapreplace(counts, least + 1)
            return 0, pairs, len(sizes)
        left = sum(sizes) - sum(room for room, items in bins if items)
        opened = 0
        for room, items in bins:  # the largest rooms come first
            if left <= 0:
                break
            if not items:
                opened += 1
                left -= room
        return (opened, 0, 0) if self.strategy == "STRICT_PACK" else (0, len(sizes), opened)

    def apply(self, option: Option, bins: Bins) -> tuple[Cost, Bins]:
        after = list(bins)
        opened = pairs = 0
        for position, bundles in option:
            room, items = after[position]
            opened += items == 0
            pairs += items
            # Only SPREAD asks how many share a bin: fewer states are told apart elsewhere.
            after[position] = room - bundles, items + 1 if self.strategy == "SPREAD" else 1
        split = int(len(option) > 1)
        if self.strategy == "SPREAD":
            return (split, pairs, len(option)), tuple(after)
        if self.strategy == "PACK":
            return (split, len(option), opened), tuple(after)
        return (opened, 0, 0), tuple(after)

    def options(self, size: int, bins: Bins) -> Iterator[Option]:
        """Every way to place one item that differs, whole ones first; of equal bins the earliest is taken, and gets most."""
        seen = set()
        later: list[Option] = []
        for position, kind in enumerate(bins):
            if kind[0] >= size and kind not in seen:
                seen.add(kind)
                if self.strategy == "SPREAD" or kind[1]:
                    yield ((position, size),)
                else:
                    later.append(((position, size),))  # bins in use first: the search ends at the first layout that reaches the bound
        yield from later
        if self.may_split:
            yield from self.splits(size, bins, 0, {}, ())

    def count(self, bins: int) -> None:
        self.steps += 1 + bins
        if self.steps > self.max_steps:
            raise _OutOfStepsError

    def splits(self, left: int, bins: Bins, start: int, most: dict[tuple[int, int], int], chosen: Option) -> Iterator[Option]:
        self.count(0)
        if not left:
            if len(chosen) > 1:
                yield chosen
            return
        if start == len(bins):
            return
        kind = bins[start]
        limit = min(left, kind[0], most.get(kind, left))
        for bundles in range(limit, -1, -1):
            onward = (*chosen, (start, bundles)) if bundles else chosen
            yield from self.splits(left - bundles, bins, start + 1, {**most, kind: bundles}, onward)


def _sorted(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(sizes, reverse=True))


def _canonical(bins: Bins) -> Bins:
    return tuple(sorted((kind for kind in bins if kind[0]), reverse=True))


def _positions(option: Option) -> tuple[int, ...]:
    return tuple(position for position, bundles in option for _ in range(bundles))


def _add(left: Cost, right: Cost) -> Cost:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]
