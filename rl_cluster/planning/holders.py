"""Who holds resources: how a holder is called, and what would be free if one ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set

from attrs import evolve

from rl_cluster.inventory import Holder, Inventory

MAX_NAMED = 3  # placement groups and actors of a job that a text names

Key = tuple[str, ...]


def holder_name(holder: Holder) -> str:
    """``placement group 'x' of job 02000000``."""
    if holder.kind == "unknown":
        return "something that Ray does not name (a task, or what ended a moment ago)"
    if holder.kind == "planned":
        return f"cluster {holder.name!r} of this plan" if holder.name else "another cluster of this plan"
    return _called(holder) + (f" of job {holder.job_id}" if holder.job_id else "")


def _called(holder: Holder) -> str:
    kind = holder.kind.replace("_", " ")
    return f"{kind} {holder.name!r}" if holder.name else f"{kind} {holder.id[:12]}" if holder.id else f"a nameless {kind}"


def endings(inventory: Inventory, names: Iterable[str], *, most: int) -> Iterator[tuple[str, Inventory]]:
    """What may end and give something back: the placement groups and actors of one job together.

    Args:
        inventory: With its holders.
        names: The resources that count; those that hold most of them come first.
        most: How many of them.

    Yields:
        A text, e.g. ``placement group 'x' of job 02000000 ends``, and the inventory as it is then.
    """
    wanted = set(names)
    held: dict[Key, list[tuple[int, int, Holder]]] = {}
    amounts: Counter[Key] = Counter()
    for position, node in enumerate(inventory.nodes):
        for index, holder in enumerate(node.holders):
            if holder.kind in ("placement_group", "actor"):
                key = _owner(holder, position, index)
                held.setdefault(key, []).append((position, index, holder))
                amounts[key] += sum(round(amount * 10_000) for name, amount in holder.resources.items() if name in wanted)
    texts = {key: _text([holder for _, _, holder in places], inventory.nodes[places[0][0]].address) for key, places in held.items()}
    for key in sorted(held, key=lambda key: (-amounts[key], texts[key]))[:most]:
        yield texts[key], _without(inventory, {(position, index) for position, index, _ in held[key]})


def _owner(holder: Holder, position: int, index: int) -> Key:
    """What tells the owners apart. A file may leave ids and jobs out: a group of one name is one group then, an actor sits in one place."""
    if holder.job_id:
        return "job", holder.job_id
    if holder.id:
        return "id", holder.kind, holder.id
    if holder.kind == "placement_group" and holder.name:
        return "name", holder.name
    return "place", str(position), str(index)


def _text(holders: list[Holder], address: str) -> str:
    first = holders[0]
    distinct = list({(holder.kind, holder.id, holder.name): holder for holder in holders}.values())
    if len(distinct) == 1:
        where = "" if first.job_id or first.id or (first.kind == "placement_group" and first.name) else f" on {address}"
        return f"{holder_name(first)}{where} ends"
    return f"job {first.job_id} ends ({_listed(distinct)})"


def _listed(holders: list[Holder]) -> str:
    """``placement groups 'a', 'b' and 2 more, actor 'c'``."""
    parts = []
    for kind in sorted({holder.kind for holder in holders}, reverse=True):
        names = sorted({repr(holder.name) if holder.name else holder.id[:12] for holder in holders if holder.kind == kind})
        count = sum(holder.kind == kind for holder in holders)
        noun = kind.replace("_", " ") + "s" * (count > 1)
        more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
        parts.append(f"{noun} {', '.join(names[:MAX_NAMED])}{more}")
    return ", ".join(parts)


def _without(inventory: Inventory, gone: Set[tuple[int, int]]) -> Inventory:
    positions = {position for position, _ in gone}
    nodes = []
    for position, node in enumerate(inventory.nodes):
        if position not in positions:
            nodes.append(node)
            continue
        free = dict(node.free)
        for index, holder in enumerate(node.holders):
            if (position, index) in gone:
                for name, amount in holder.resources.items():
                    free[name] = min(free.get(name, 0.0) + amount, node.total.get(name, 0.0))
        left = tuple(holder for index, holder in enumerate(node.holders) if (position, index) not in gone)
        nodes.append(evolve(node, free=free, holders=left))
    return evolve(inventory, nodes=tuple(nodes))


def nothing_held(inventory: Inventory) -> Inventory:
    """The inventory with everything free."""
    return evolve(inventory, nodes=tuple(evolve(node, free=node.total, holders=()) for node in inventory.nodes))
