"""Segments: runs of k logical nodes that lie wholly in one NVLink domain.

Least cost first, as in `rl_cluster.planning.packing` (domains share no bin, so costs add up); then the domains that are left with the
fewest nodes beside whole segments take as many segments as they can; then topology order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from rl_cluster.planning.packing import MAX_STEPS, Packing, Places, pack, packing_cost

MAX_ITEMS = 24  # of the exhaustive search
MAX_DOMAINS = 100
MAX_KINDS = 8  # of segments that are counted for a proof
STEPS_PER_TRY = 50

Shape = tuple[int, ...]  # the sizes of a segment, largest first
Cost = tuple[int, int, int]


def pack_segments(
    sizes: Sequence[int],
    capacities: Sequence[int],
    domains: Sequence[str | None],
    *,
    segment_size: int,
    strategy: str,
    max_steps: int = MAX_STEPS,
) -> Packing:
    """Places whole segments into domains; within a domain the strategy rules.

    Args:
        sizes: Bundles of each logical node; the segments are the runs of `segment_size` of them, the last one may be shorter.
        capacities: Bundles that each bin takes, in topology order.
        domains: The domain of each bin; bins without one are never used.
        segment_size: Logical nodes per segment.
        strategy: As in `rl_cluster.planning.packing.pack`.
        max_steps: As in `rl_cluster.planning.packing.pack`, for all domains together.
    """
    segments = [list(range(start, min(start + segment_size, len(sizes)))) for start in range(0, len(sizes), segment_size)]
    segments = [segment for segment in segments if any(sizes[index] for index in segment)]
    if not segments:
        return Packing([()] * len(sizes), True)
    smallest = min(size for size in sizes if size)
    members = domain_members(capacities, domains, segment_size=segment_size, smallest=smallest)
    task = _Task(sizes, capacities, segments, members, strategy)
    try:
        counts = task.exact(max_steps)
        return Packing(None, True) if counts is None else Packing(task.place(counts, max_steps=MAX_STEPS), True)
    except _OutOfStepsError:
        counts = task.greedy()
    if counts is None:
        return Packing(None, task.is_hopeless())
    places = task.place(counts, max_steps=MAX_STEPS // 20 if len(sizes) <= MAX_ITEMS else 0)
    cost = packing_cost(places, strategy=strategy)
    return Packing(places, strategy == "STRICT_SPREAD" or (strategy == "SPREAD" and cost[:2] == (0, 0)))


def domain_members(capacities: Sequence[int], domains: Sequence[str | None], *, segment_size: int, smallest: int) -> list[list[int]]:
    """The positions of each domain's bins with room, the least fragmenting domains first.

    That is: those with the fewest bins (of room for the smallest logical node) beside whole segments; then topology order.
    """
    members: dict[str, list[int]] = {}
    for position, (capacity, domain) in enumerate(zip(capacities, domains, strict=True)):
        if domain and capacity:
            members.setdefault(domain, []).append(position)

    def key(positions: list[int]) -> tuple[int, int]:
        return sum(capacities[position] >= smallest for position in positions) % segment_size, positions[0]

    return sorted(members.values(), key=key)


class _OutOfStepsError(Exception):
    pass


class _Task:
    """Which domain takes which segments: each answer is, per domain, how many segments of each shape."""

    def __init__(
        self, sizes: Sequence[int], capacities: Sequence[int], segments: Sequence[list[int]], members: Sequence[list[int]], strategy: str
    ) -> None:
        self.sizes = sizes
        self.segments = segments
        self.members = members
        self.capacities = capacities
        self.rooms = [[capacities[position] for position in positions] for positions in members]
        self.strategy = strategy
        self.shapes: list[Shape] = [tuple(sorted((sizes[index] for index in segment), reverse=True)) for segment in segments]
        self.kinds: list[Shape] = list(dict.fromkeys(self.shapes))
        self.wanted = tuple(Counter(self.shapes)[kind] for kind in self.kinds)
        self.steps = self.max_steps = 0
        self.guessed: set[str] = set()  # strategies of which a "does not fit" of a domain was not proven
        self.costs: dict[tuple[tuple[int, ...], tuple[int, ...]], Cost | None] = {}
        self.fitting: dict[tuple[tuple[int, ...], tuple[int, ...], str], bool] = {}
        self.known: dict[tuple[int, tuple[int, ...]], tuple[Cost, tuple[int, ...]] | None] = {}

    def items(self, counts: Sequence[int]) -> list[int]:
        return [size for kind, count in zip(self.kinds, counts, strict=True) for _ in range(count) for size in kind]

    def fits(self, domain: int, counts: Sequence[int], strategy: str) -> bool:
        items = self.items(counts)
        if strategy in ("PACK", "SPREAD"):
            return sum(items) <= sum(self.rooms[domain])  # split items fit wherever the totals do
        key = tuple(self.rooms[domain]), tuple(counts), strategy  # domains are mostly alike
        if key not in self.fitting:
            packing = pack(items, self.rooms[domain], strategy=strategy, max_steps=0)
            if packing.places is None and not packing.proven:
                self.guessed.add(strategy)
            self.fitting[key] = packing.places is not None
        return self.fitting[key]

    # --- small: every assignment ---
    def exact(self, max_steps: int) -> list[tuple[int, ...]] | None:
        if len(self.sizes) > MAX_ITEMS or len(self.members) > MAX_DOMAINS:
            raise _OutOfStepsError
        self.max_steps = max_steps
        answer = []
        left = self.wanted
        for domain in range(len(self.members)):
            found = self.least(domain, left)
            if found is None:
                return None
            answer.append(found[1])
            left = tuple(have - taken for have, taken in zip(left, found[1], strict=True))
        return None if any(left) else answer

    def least(self, domain: int, left: tuple[int, ...]) -> tuple[Cost, tuple[int, ...]] | None:
        """The least cost of placing what is left into this and the later domains, and what this domain takes then."""
        if domain == len(self.members):
            return None if any(left) else ((0, 0, 0), ())
        key = domain, left
        if key not in self.known:
            best: tuple[Cost, tuple[int, ...]] | None = None
            for taken in _most_first(left):
                onward = self.least(domain + 1, tuple(have - some for have, some in zip(left, taken, strict=True)))
                cost = self.cost(domain, taken) if onward is not None else None
                if onward is not None and cost is not None:
                    total = cost[0] + onward[0][0], cost[1] + onward[0][1], cost[2] + onward[0][2]
                    if best is None or total < best[0]:
                        best = total, taken
            self.known[key] = best
        return self.known[key]

    def cost(self, domain: int, counts: tuple[int, ...]) -> Cost | None:
        if not any(counts):
            return 0, 0, 0
        key = tuple(self.rooms[domain]), counts
        if key not in self.costs:
            packing = pack(self.items(counts), self.rooms[domain], strategy=self.strategy, max_steps=self.max_steps - self.steps)
            self.steps += STEPS_PER_TRY + packing.steps
            if self.steps > self.max_steps or not packing.proven:
                raise _OutOfStepsError
            self.costs[key] = None if packing.places is None else packing_cost(packing.places, strategy=self.strategy)
        return self.costs[key]

    # --- large: one domain after the other, the hardest wish first ---
    def greedy(self) -> list[tuple[int, ...]] | None:
        wishes = {"SPREAD": ["STRICT_SPREAD", "STRICT_PACK", "SPREAD"], "PACK": ["STRICT_PACK", "PACK"]}
        for wish in wishes.get(self.strategy, [self.strategy]):
            found = self.fill(wish, self.wanted)
            if found is not None:
                return found
        return None

    def is_hopeless(self) -> bool:
        """Whether it is sure that there is no answer, where `greedy` found none; False is no proof of the contrary."""
        bins = [room for rooms in self.rooms for room in rooms]
        anywhere = pack(self.items(self.wanted), bins, strategy=self.strategy, max_steps=0)
        if anywhere.places is None and anywhere.proven:
            return True  # nor would it fit without segments
        # Alike segments are counted per domain, and no count depends on another domain; a larger segment takes a smaller one's place.
        for kind in self.kinds[:MAX_KINDS]:
            count = sum(_holds(shape, kind) for shape in self.shapes)
            if (
                self.fill(self.strategy, [count if each == kind else 0 for each in self.kinds]) is None
                and self.strategy not in self.guessed
            ):
                return True
        # One short segment beside alike ones: they have no other way to fit, or they leave room for one more of their own.
        short, long = sorted(self.kinds, key=sum)[0], sorted(self.kinds, key=sum)[-1]
        one_more = len(self.kinds) == 2 and self.wanted[self.kinds.index(short)] == 1 and _holds(long, short)
        return one_more and self.strategy not in self.guessed

    def fill(self, wish: str, wanted: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Each domain in turn takes as many of the next segments as it can."""
        answer = [[0] * len(self.kinds) for _ in self.members]
        left = list(wanted)
        for kind in sorted(range(len(self.kinds)), key=lambda kind: (-sum(self.kinds[kind]), kind)):
            for domain, counts in enumerate(answer):
                room = sum(self.rooms[domain]) - sum(self.items(counts))
                low, high = 0, min(left[kind], room // sum(self.kinds[kind]))
                middle = high  # the totals are mostly the truth, so they are tried first
                while low < high:
                    if self.fits(domain, [*counts[:kind], counts[kind] + middle, *counts[kind + 1 :]], wish):
                        low = middle
                    else:
                        high = middle - 1
                    middle = (low + high + 1) // 2
                counts[kind] += low
                left[kind] -= low
        return None if any(left) else [tuple(counts) for counts in answer]

    def place(self, answer: Sequence[Sequence[int]], *, max_steps: int) -> Places:
        """The bins of every bundle; of segments of one shape the earlier one goes to the earlier domain."""
        places: Places = [()] * len(self.sizes)
        queues = {kind: [s for s, shape in zip(self.segments, self.shapes, strict=True) if shape == kind] for kind in self.kinds}
        given: list[tuple[list[int], list[int]]] = []
        for positions, counts in sorted(zip(self.members, answer, strict=True), key=lambda pair: pair[0][0]):
            taken: list[int] = []
            for kind, count in zip(self.kinds, counts, strict=True):
                taken += [index for segment in queues[kind][:count] for index in segment]
                queues[kind] = queues[kind][count:]
            given.append((positions, sorted(taken)))
        for positions, indices in given:
            rooms = [self.capacities[position] for position in positions]
            packing = pack([self.sizes[index] for index in indices], rooms, strategy=self.strategy, max_steps=max_steps)
            assert packing.places is not None, "the domain was found to have room"
            for index, place in zip(indices, packing.places, strict=True):
                places[index] = tuple(positions[bin_] for bin_ in place)
        return places


def _holds(shape: Shape, other: Shape) -> bool:
    """Whether a segment is at least as large as another, logical node by logical node."""
    return len(shape) >= len(other) and all(size >= least for size, least in zip(shape, other, strict=False))


def _most_first(left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to take some of what is left: the most segments first, of equals the earlier shapes first."""
    ways = product(*(range(count, -1, -1) for count in left))
    return iter(sorted(ways, key=lambda taken: -sum(taken)))


def segment_notes(
    places: Sequence[tuple[int, ...]], capacities: Sequence[int], domains: Sequence[str | None], *, segment_size: int
) -> list[str]:
    """What remains over: a last segment that is not full, and the usable nodes of the domains in use that got nothing."""
    notes = []
    remainder = len(places) % segment_size
    if remainder:
        notes.append(f"cluster.segment_size={segment_size}: the last segment has only {remainder} of {segment_size} logical nodes")
    used = {position for place in places for position in place}
    in_use = {domains[position] for position in used}
    idle: Counter[str] = Counter()
    for position, (domain, capacity) in enumerate(zip(domains, capacities, strict=True)):
        if domain and domain in in_use and capacity and position not in used:
            idle[domain] += 1
    if idle:
        names = ", ".join(f"{domain} ({count})" for domain, count in list(idle.items())[:4])
        more = f" and {len(idle) - 4} more" if len(idle) > 4 else ""
        notes.append(f"cluster.segment_size={segment_size}: nodes left over in the domains that are used: {names}{more}")
    return notes
