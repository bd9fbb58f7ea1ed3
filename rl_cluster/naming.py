"""How things are called in texts for a person: counts, amounts, physical nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def count_of(count: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(amount: float) -> str:
    """An amount of a resource as people write it: 8, 0.5, 12345."""
    return str(round(amount)) if abs(amount - round(amount)) < 5e-5 else f"{amount:.4f}".rstrip("0")


def node_names(addresses: Mapping[str, str]) -> dict[str, str]:
    """Names of physical nodes: their addresses; where several have the same one (simulated ones do), a piece of the id tells them apart.

    Args:
        addresses: The address, or host name, by Ray's node id; "" where neither is known.
    """
    times = Counter(addresses.values())
    return {node_id: name if name and times[name] == 1 else f"{name} ({node_id[:6]})".strip() for node_id, name in addresses.items()}
