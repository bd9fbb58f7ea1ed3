"""Splits cores among the GPUs near them, so that each has its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def split_cores(cores: Sequence[frozenset[int]], claims: Mapping[int, frozenset[int]]) -> dict[int, frozenset[int]] | None:
    """Give each GPU its own physical cores out of those it is near to.

    Cores that the same GPUs are near to are split among those in contiguous runs (neighbours share caches); what does not divide
    goes to the GPUs that have least so far, so that two GPUs with the same claim differ by at most one core.

    Args:
        cores: Physical cores, each as its hardware threads, in order.
        claims: GPU key -> CPUs near it. Every worker must pass the same claims, or shares overlap.

    Returns:
        GPU key -> its CPUs, disjoint, together every core that somebody claims; None where some GPU would get no core.
    """
    groups: dict[tuple[int, ...], list[frozenset[int]]] = {}
    for core in cores:
        near = tuple(sorted(key for key, cpus in claims.items() if not core.isdisjoint(cpus)))
        if near:
            groups.setdefault(near, []).append(core)
    shares: dict[int, list[frozenset[int]]] = {key: [] for key in claims}
    for near, group in groups.items():
        base, rest = divmod(len(group), len(near))
        most = sorted(near, key=lambda key: (len(shares[key]), key))[:rest]
        start = 0
        for key in near:
            count = base + (key in most)
            shares[key] += group[start : start + count]
            start += count
    if not all(shares.values()):
        return None
    return {key: frozenset().union(*share) for key, share in shares.items()}
