"""Several clusters side by side by exhaustive search, for small inputs: how many bundles each bin gives to each cluster.

Planned one after the other, a cluster may take just what a later one needs, in every order: two STRICT_SPREAD of [1, 1] on bins of
1, 1 and 2. Here every way is tried; nothing is preferred, so this is asked only where the usual way finds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

MAX_BINS = 100
MAX_ITEMS = 300  # also the depth of the recursion

Amounts = tuple[tuple[int, ...], ...]  # per bin, per resource
Counts = list[list[int]]  # per cluster, per bin


@frozen
class Cluster:
    """What one cluster asks for."""

    sizes: tuple[int, ...]  # bundles of each item
    each: tuple[int, ...]  # of one bundle, per resource
    usable: tuple[bool, ...]  # per bin
    strategy: str


@frozen
class Joint:
    """The answer: for each cluster the bundles that each bin gives it; or None."""

    counts: Counts | None
    proven: bool  # of a None: there is no layout


class _OutOfStepsError(Exception):
    pass


def search_joint(clusters: Sequence[Cluster], amounts: Amounts, *, max_steps: int) -> Joint:
    """Finds room for all clusters, or shows that there is none.

    Args:
        clusters: What is wanted; sizes of 0 take nothing.
        amounts: What each bin has.
        max_steps: When to give up; 5,000 steps are about 0.2 s.
    """
    for index in range(len(amounts[0]) if amounts else 0):
        wanted = sum(cluster.each[index] * sum(cluster.sizes) for cluster in clusters)
        if wanted > sum(amount[index] for place, amount in enumerate(amounts) if any(cluster.usable[place] for cluster in clusters)):
            return Joint(None, True)
    if len(amounts) > MAX_BINS or sum(len(cluster.sizes) for cluster in clusters) > MAX_ITEMS:
        return Joint(None, False)
    # Strict ones first: what may be split fits wherever the totals do.
    order = sorted(range(len(clusters)), key=lambda index: (_may_split(clusters[index]), -max(clusters[index].sizes, default=0), index))
    search = _Search([clusters[index] for index in order], len(amounts), max_steps)
    try:
        found = search.items(0, 0, amounts, frozenset(), 0)
    except _OutOfStepsError:
        return Joint(None, False)
    if not found:
        return Joint(None, True)
    counts: Counts = [[] for _ in clusters]
    for index, own in zip(order, search.counts, strict=True):
        counts[index] = own
    return Joint(counts, True)


def _may_split(cluster: Cluster) -> bool:
    return cluster.strategy in ("PACK", "SPREAD")


class _Search:
    """Item by item, bin by bin; a state that failed once is not tried again, nor are bins that are alike."""

    def __init__(self, clusters: Sequence[Cluster], bins: int, max_steps: int) -> None:
        self.clusters = clusters
        self.sizes = [sorted((size for size in cluster.sizes if size), reverse=True) for cluster in clusters]
        self.counts: Counts = [[0] * bins for _ in clusters]
        self.looks = [tuple(cluster.usable[bin_] for cluster in clusters) for bin_ in range(bins)]
        self.bins = bins
        self.failed: set[object] = set()
        self.steps_left = max_steps

    def items(self, which: int, item: int, amounts: Amounts, used: frozenset[int], start: int) -> bool:
        """Whether the rest fits, from this item of this cluster on; fills in ``counts``."""
        if which == len(self.clusters):
            return True
        cluster, sizes = self.clusters[which], self.sizes[which]
        if _may_split(cluster):
            return self.bundles(which, 0, sum(sizes), amounts)
        if item == len(sizes):
            return self.items(which + 1, 0, amounts, frozenset(), 0)
        size = sizes[item]
        begin = start if item and sizes[item - 1] == size else 0  # equal items lie in the order of the bins
        key = (which, item, amounts, used, begin)
        if self._known(key):
            return False
        for bin_ in self._distinct(which, amounts, used, begin):
            if _room(amounts[bin_], cluster.each) < size:
                continue
            taken = used | {bin_} if cluster.strategy == "STRICT_SPREAD" else used
            self.counts[which][bin_] += size
            if self.items(which, item + 1, _less(amounts, bin_, cluster.each, size), taken, bin_):
                return True
            self.counts[which][bin_] -= size
        self.failed.add(key)
        return False

    def bundles(self, which: int, bin_: int, left: int, amounts: Amounts) -> bool:
        """The same for a cluster that may be split, from this bin on."""
        cluster = self.clusters[which]
        if not left:
            return self.items(which + 1, 0, amounts, frozenset(), 0)
        rooms = [_room(amount, cluster.each) if cluster.usable[place] else 0 for place, amount in enumerate(amounts[bin_:], start=bin_)]
        if sum(rooms) < left:
            return False
        key = (which, "split", bin_, left, amounts)
        if self._known(key):
            return False
        for count in range(min(rooms[0], left), -1, -1):
            self.counts[which][bin_] = count
            if self.bundles(which, bin_ + 1, left - count, _less(amounts, bin_, cluster.each, count)):
                return True
        self.counts[which][bin_] = 0
        self.failed.add(key)
        return False

    def _known(self, key: object) -> bool:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _OutOfStepsError
        return key in self.failed

    def _distinct(self, which: int, amounts: Amounts, used: frozenset[int], begin: int) -> Iterator[int]:
        seen = set()
        for bin_ in range(begin, self.bins):
            look = (amounts[bin_], self.looks[bin_])
            if self.clusters[which].usable[bin_] and bin_ not in used and look not in seen:
                seen.add(look)
                yield bin_


def _room(amount: Sequence[int], each: Sequence[int]) -> int:
    return min(have // need for have, need in zip(amount, each, strict=True) if need)


def _less(amounts: Amounts, bin_: int, each: Sequence[int], count: int) -> Amounts:
    if not count:
        return amounts
    taken = tuple(have - need * count for have, need in zip(amounts[bin_], each, strict=True))
    return (*amounts[:bin_], taken, *amounts[bin_ + 1 :])
