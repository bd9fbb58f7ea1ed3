"""Least cost by exhaustive search with a memory, for small inputs.

It stops after a fixed number of steps, so that an answer never depends on how fast the machine is.
"""

from __future__ import annotations

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
    try:
        found = _Search(strategy, max_steps).run(list(sizes), [capacities[position] for position in kept])
    except _OutOfStepsError:
        return None
    if found.places is None:
        return found
    return Found([tuple(kept[bin_] for bin_ in place) for place in found.places], found.steps)


class _Search:
    def __init__(self, strategy: str, max_steps: int) -> None:
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
        if sum(sizes) <= sum(room for room, _ in bins):
            for option in self.options(sizes[0], bins):
                if best is not None and len(option) > 1 and self.strategy != "STRICT_PACK" and best[0] == 0:
                    break  # whole options come first, and a split costs more than all else
                self.count(len(bins) // 8)
                cost, after = self.apply(option, bins)
                onward = self.least(sizes[1:], _canonical(after))
                if onward is not None and (best is None or _add(cost, onward) < best):
                    best = _add(cost, onward)
        self.known[key] = best
        return best

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
        """Every way to place one item that differs, whole ones first; of equal bins the earliest come first and get most."""
        seen = set()
        for position, (room, items) in enumerate(bins):
            if room >= size and (room, items) not in seen:
                seen.add((room, items))
                yield ((position, size),)
        if self.strategy != "STRICT_PACK":
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
