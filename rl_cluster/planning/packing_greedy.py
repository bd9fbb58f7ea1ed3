"""Layouts for inputs that are too large for an exhaustive search: largest first, into buckets of bins with equal room."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise

Places = list[tuple[int, ...]]
Kind = tuple[int, int]  # (items on the bin, room left)
Order = Callable[[Kind], tuple[int, ...]]


class _Buckets:
    """Bins by kind; in each bucket the earliest bin is found first."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self.heaps: dict[Kind, list[int]] = {}
        for position, capacity in enumerate(capacities):
            if capacity:
                self.heaps.setdefault((0, capacity), []).append(position)  # ascending, so already a heap

    def best(self, size: int, order: Order) -> Kind | None:
        """The kind of bin with room for `size` that comes first in an order, and of equals the one with the earliest bin."""
        fitting = [kind for kind in self.heaps if kind[1] >= size]
        return min(fitting, key=lambda kind: (order(kind), self.heaps[kind][0])) if fitting else None

    def fill(self, kind: Kind, bundles: int) -> int:
        """Puts an item on the earliest bin of a kind and returns its position."""
        items, room = kind
        heap = self.heaps[kind]
        position = heapq.heappop(heap)
        if not heap:
            del self.heaps[kind]
        if room > bundles:
            heapq.heappush(self.heaps.setdefault((items + 1, room - bundles), []), position)
        return position


def _tightest(kind: Kind) -> tuple[int, ...]:
    items, room = kind
    return -min(items, 1), room  # a bin in use first, then the least room


def _roomiest(kind: Kind) -> tuple[int, ...]:
    items, room = kind
    return -min(items, 1), -room


def _least_shared(kind: Kind) -> tuple[int, ...]:
    return kind  # the fewest items, then the least room


def _largest_piece(kind: Kind) -> tuple[int, ...]:
    items, room = kind
    return -room, items


def search(sizes: Sequence[int], capacities: Sequence[int], *, strategy: str) -> tuple[Places | None, bool]:
    """A layout of low cost that keeps every hard rule.

    Returns:
        The layout or None, and whether that is proven. A layout never is. A None is, where the bins have too few places for the items
        of one size and more, and where the sizes divide one another: then largest first packs whatever can be packed (Coffman, Garey
        and Johnson 1987).
    """
    orders = [_least_shared, _roomiest, _tightest] if strategy == "SPREAD" else [_roomiest, _tightest]
    descending = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    whole = _pack_whole(sizes, descending, capacities, orders)
    if whole is not None:
        return _in_topology_order(sizes, whole[0]), False
    if strategy == "STRICT_PACK":
        return None, _divide_one_another(sizes) or _too_few_places(sizes, capacities)
    # If any m items can stay whole, the m smallest can: keep as many of those as will go, and split the larger ones.
    kept: tuple[dict[int, tuple[int, ...]], _Buckets] = ({}, _Buckets(capacities))
    low, high = 0, len(sizes)
    while low + 1 < high:
        middle = (low + high) // 2
        attempt = _pack_whole(sizes, descending[len(sizes) - middle :], capacities, orders)
        if attempt is None:
            high = middle
        else:
            low, kept = middle, attempt
    places, buckets = kept
    for index in descending[: len(sizes) - low]:
        places[index] = _split(sizes[index], buckets)
    return _in_topology_order(sizes, places), False


def _pack_whole(
    sizes: Sequence[int], chosen: Sequence[int], capacities: Sequence[int], orders: Sequence[Order]
) -> tuple[dict[int, tuple[int, ...]], _Buckets] | None:
    """Every chosen item (largest first) on one bin, by the first order that gets all of them in."""
    for order in orders:
        buckets = _Buckets(capacities)
        places: dict[int, tuple[int, ...]] = {}
        for index in chosen:
            kind = buckets.best(sizes[index], order)
            if kind is None:
                break
            places[index] = (buckets.fill(kind, sizes[index]),) * sizes[index]
        else:
            return places, buckets
    return None


def _split(size: int, buckets: _Buckets) -> tuple[int, ...]:
    """One item in few pieces: the largest rooms first, the last piece where it leaves least room behind. The totals must fit."""
    place: list[int] = []
    while len(place) < size:
        left = size - len(place)
        kind = buckets.best(left, _least_room) or buckets.best(1, _largest_piece)
        assert kind is not None, "the totals fit"
        bundles = min(left, kind[1])
        place += [buckets.fill(kind, bundles)] * bundles
    return tuple(sorted(place))


def _least_room(kind: Kind) -> tuple[int, ...]:
    items, room = kind
    return room, items


def _too_few_places(sizes: Sequence[int], capacities: Sequence[int]) -> bool:
    """Whether some items would not fit even if they all were as small as the smallest of them."""
    return any(sum(capacity // least for capacity in capacities) < sum(size >= least for size in sizes) for least in set(sizes))


def _divide_one_another(sizes: Sequence[int]) -> bool:
    return all(larger % smaller == 0 for smaller, larger in pairwise(sorted(set(sizes))))


def _in_topology_order(sizes: Sequence[int], places: dict[int, tuple[int, ...]]) -> Places:
    """Items of equal size swap places so that the earlier one lies earlier."""
    answer: Places = [()] * len(sizes)
    indices: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        indices.setdefault(size, []).append(index)
    for alike in indices.values():
        for index, place in zip(alike, sorted(places[index] for index in alike), strict=True):
            answer[index] = place
    return answer
