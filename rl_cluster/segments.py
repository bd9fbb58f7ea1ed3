"""Segments: runs of k logical nodes that lie wholly in one NVLink domain."""

from __future__ import annotations

from collections.abc import Sequence

from rl_cluster.packing import Packing, Places, pack


def domain_members(capacities: Sequence[int], domains: Sequence[str | None], *, segment_size: int) -> list[list[int]]:
    """The positions of each domain's usable bins; the domains that are left with the fewest bins beside whole segments come first."""
    members: dict[str, list[int]] = {}
    for position, (capacity, domain) in enumerate(zip(capacities, domains)):
        if domain and capacity:
            members.setdefault(domain, []).append(position)
    return sorted(members.values(), key=lambda positions: (len(positions) % segment_size, positions[0]))


def pack_segments(
    sizes: Sequence[int], capacities: Sequence[int], domains: Sequence[str | None], *, segment_size: int, strategy: str
) -> Packing:
    """Places whole segments into domains; within a domain the strategy rules.

    Args:
        sizes: Bundles of each logical node; the segments are the runs of `segment_size` of them, the last one may be shorter.
        capacities: Bundles that each bin takes, in topology order.
        domains: The domain of each bin; bins without one are never used.
        segment_size: Logical nodes per segment.
        strategy: As in `rl_cluster.packing.pack`.
    """
    segments = [list(range(start, min(start + segment_size, len(sizes)))) for start in range(0, len(sizes), segment_size)]
    members = domain_members(capacities, domains, segment_size=segment_size)
    levels = {"SPREAD": ["STRICT_SPREAD", "STRICT_PACK", "SPREAD"], "PACK": ["STRICT_PACK", "PACK"]}.get(strategy, [strategy])
    for level in levels:
        chosen = _assign(segments, sizes, capacities, members, level)
        if chosen is None:
            continue
        places: Places = [()] * len(sizes)
        for positions, indices in sorted(chosen):
            part = pack([sizes[index] for index in indices], [capacities[position] for position in positions], strategy=strategy)
            assert part.places is not None
            for index, place in zip(indices, part.places):
                places[index] = tuple(positions[bin_] for bin_ in place)
        return Packing(places, False)
    return Packing(None, len(set(sizes)) <= 1)


def _assign(
    segments: Sequence[list[int]], sizes: Sequence[int], capacities: Sequence[int], members: Sequence[list[int]], level: str
) -> list[tuple[list[int], list[int]]] | None:
    """Gives each domain in turn as many of the next segments as fit, or None where some remain."""
    chosen: list[tuple[list[int], list[int]]] = []
    next_segment = 0
    for positions in members:
        rooms = [capacities[position] for position in positions]
        low, high = 0, len(segments) - next_segment
        while low < high:
            middle = (low + high + 1) // 2
            indices = [index for segment in segments[next_segment : next_segment + middle] for index in segment]
            if pack([sizes[index] for index in indices], rooms, strategy=level).places is None:
                high = middle - 1
            else:
                low = middle
        if low:
            chosen.append((positions, [index for segment in segments[next_segment : next_segment + low] for index in segment]))
            next_segment += low
    return chosen if next_segment == len(segments) else None


def segment_notes(
    places: Sequence[tuple[int, ...]], capacities: Sequence[int], domains: Sequence[str | None], *, segment_size: int
) -> list[str]:
    """What remains over: a last segment that is not full, and the usable bins of the domains in use that got nothing."""
    notes = []
    remainder = len(places) % segment_size
    if remainder:
        notes.append(f"cluster.segment_size={segment_size}: the last segment has only {remainder} of {segment_size} logical nodes")
    used = {position for place in places for position in place}
    in_use = {domains[position] for position in used}
    idle: dict[str, int] = {}
    for position, (domain, capacity) in enumerate(zip(domains, capacities)):
        if domain and domain in in_use and capacity and position not in used:
            idle[domain] = idle.get(domain, 0) + 1
    if idle:
        names = ", ".join(f"{domain} ({count})" for domain, count in list(idle.items())[:4])
        more = f" and {len(idle) - 4} more" if len(idle) > 4 else ""
        notes.append(f"cluster.segment_size={segment_size}: usable nodes left over in the domains that are used: {names}{more}")
    return notes
