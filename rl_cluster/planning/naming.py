"""How things are called in texts for a person: counts, amounts, physical nodes."""

from __future__ import annotations

from collections.abc import Mapping

ID_LENGTH = 6  # letters of a node's id in a text, at least


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
    sharing: dict[str, list[str]] = {}
    for node_id, address in addresses.items():
        sharing.setdefault(address, []).append(node_id)
    names = {}
    for address, node_ids in sharing.items():
        length = ID_LENGTH  # Ray's ids are random; those of a file may differ in the last letter only
        while len({node_id[:length] for node_id in node_ids}) < len(node_ids):
            length += 1
        for node_id in node_ids:
            names[node_id] = address if address and len(node_ids) == 1 else f"{address} ({node_id[:length]})".strip()
    return {node_id: names[node_id] for node_id in addresses}
