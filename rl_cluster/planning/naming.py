"""How things are called in texts for a person: counts, amounts, physical nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

ID_LENGTH = 6  # letters of a node's id in a text, at least
IN_BYTES = ("memory", "object_store_memory")  # resources of Ray's
DIGITS = 3  # of an amount in bytes, at least
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def count_of(count: int, noun: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(amount: float) -> str:
    """An amount of a resource as people write it: 8, 0.5, 12345."""
    return str(round(amount)) if abs(amount - round(amount)) < 5e-5 else f"{amount:.4f}".rstrip("0")


def amount_writer(resource: str, needed: float, there: Iterable[float] = ()) -> Callable[[float], str]:
    """What writes amounts of a resource for a person: those in bytes as ``745 GiB``, all others as `number` does.

    Args:
        resource: By Ray's name.
        needed: The amount that the others are compared with.
        there: The others of the same line. One that differs from `needed` looks different, however little it is.
    """
    if resource not in IN_BYTES:
        return number
    others = {round(amount) for amount in there} - {round(needed)}
    digits = DIGITS
    while digits < 17 and _bytes(needed, digits) in {_bytes(amount, digits) for amount in others}:
        digits += 1
    return lambda amount: _bytes(amount, digits)


def _bytes(amount: float, digits: int) -> str:
    larger = ""
    for unit, size in _UNITS:
        text = f"{amount / size:.{max(digits, len(str(int(amount / size))))}g}"
        if larger and float(text) >= 1024:
            return f"1 {larger}"
        if float(text) >= 1:
            return f"{text} {unit}"
        larger = unit
    return count_of(round(amount), "byte") if round(amount) else "0"


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
