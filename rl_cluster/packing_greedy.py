"""Layouts for inputs that are too large for an exhaustive search: largest first, into buckets of bins with equal room."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

Places = list[tuple[int, ...]]


class _Buckets:
    """Bins by (items on them, room left); in each bucket the earliest bin is found first."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self.heaps: dict[tuple[int, int], list[int]] = {}
        for position, capacity in enumerate(capacities):
            if capacity:
                self.heaps.setdefault((0, capacity), []).append(position)  # ascending, so already a heap

    def put(self, position: int, items: int, room: int) -> None:
        if room:
            heapq.heappush(self.heaps.setdefault((items, room), []), position)

    def take(self, kind: tuple[int, int]) -> int:
        heap = self.heaps[kind]
        position = heapq.heappop(heap)
        if not heap:
            del self.heaps[kind]
        return position

    def best(self, size: int, key: Callable[[tuple[int, int]], tuple[int, ...]]) -> tuple[int, int] | None:
        fitting = [kind for kind in self.heaps if kind[1] >= size]
        return min(fitting, key=lambda kind: (*key(kind), self.heaps[kind][0])) if fitting else None


def _best_fit(kind: tuple[int, int]) -> tuple[int, ...]:
    return (-min(kind[0], 1), kind[1])  # a bin in use first, then the least room


def _largest(kind: tuple[int, int]) -> tuple[int, ...]:
    return (-min(kind[0], 1), -kind[1])


def _least_shared(kind: tuple[int, int]) -> tuple[int, ...]:
    return (kind[0], kind[1])


def _largest_room(kind: tuple[int, int]) -> tuple[int, ...]:
    return (-kind[1], kind[0])


def _least_shared_largest(kind: tuple[int, int]) -> tuple[int, ...]:
    return (-kind[1], kind[0])


def search(sizes: Sequence[int], capacities: Sequence[int], *, strategy: str) -> tuple[Places | None, bool]:
    """A layout of low cost that keeps every hard rule.

    Returns:
        The layout or None, and whether that is proven: a None is where one item is larger than every bin, where the sizes divide one
        another (then largest-first packs whatever can be packed: Coffman, Garey and Johnson 1987), or where totals say so.
    """
    orders = [_largest, _best_fit] if strategy != "SPREAD" else [_least_shared, _largest, _best_fit]
    descending = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for order in orders:
        found = _whole(sizes, descending, capacities, order)
        if found is not None:
            return _in_topology_order(sizes, found[0]), False
    if strategy == "STRICT_PACK":
        return None, _divide_one_another(sizes) or max(sizes) > max(capacities, default=0)
    # Whole items first, the smallest ones: if any m items stay whole, the m smallest do.
    low, high = 0, len(sizes)
    kept: tuple[dict[int, tuple[int, ...]], _Buckets, list[int]] = ({}, _Buckets(capacities), list(capacities))
    while low + 1 < high:
        middle = (low + high) // 2
        chosen = descending[len(descending) - middle :]
        attempts = (_whole(sizes, chosen, capacities, order) for order in orders)
        found = next((attempt for attempt in attempts if attempt is not None), None)
        if found is None:
            high = middle
        else:
            low, kept = middle, found
    places, buckets, _ = kept
    for index in descending[: len(descending) - low]:
        place: list[int] = []
        left = sizes[index]
        while left:
            kind = buckets.best(1, _largest_room)
            if kind is None:
                return None, True  # not reached while the totals fit
            # The last piece goes where it leaves least room behind.
            kind = (buckets.best(left, _best_fit) or kind) if kind[1] >= left else kind
            position = buckets.take(kind)
            bundles = min(left, kind[1])
            place += [position] * bundles
            left -= bundles
            buckets.put(position, kind[0] + 1, kind[1] - bundles)
        places[index] = tuple(sorted(place))
    return _in_topology_order(sizes, places), False


def _whole(
    sizes: Sequence[int], chosen: Sequence[int], capacities: Sequence[int], order: Callable[[tuple[int, int]], tuple[int, ...]]
) -> tuple[dict[int, tuple[int, ...]], _Buckets, list[int]] | None:
    buckets = _Buckets(capacities)
    places: dict[int, tuple[int, ...]] = {}
    for index in chosen:
        kind = buckets.best(sizes[index], order)
        if kind is None:
            return None
        position = buckets.take(kind)
        places[index] = (position,) * sizes[index]
        buckets.put(position, kind[0] + 1, kind[1] - sizes[index])
    return places, buckets, []


def _divide_one_another(sizes: Sequence[int]) -> bool:
    kinds = sorted(set(sizes))
    return all(larger % smaller == 0 for smaller, larger in itertools.pairwise(kinds))


def _in_topology_order(sizes: Sequence[int], places: dict[int, tuple[int, ...]]) -> Places:
    """Items of equal size swap places so that the earlier one lies earlier."""
    answer: Places = [()] * len(sizes)
    for kind in set(sizes):
        indices = [index for index, size in enumerate(sizes) if size == kind]
        for index, place in zip(indices, sorted(places[index] for index in indices)):
            answer[index] = place
    return answer
