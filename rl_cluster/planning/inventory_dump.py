"""The text of an inventory file, for what was seen of a Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rl_cluster.inventory import HEAD_RESOURCE, Holder, Inventory, PhysicalNode, without_file_labels
from rl_cluster.planning.inventory_file import near_resource, slack

__all__ = ["dump_inventory"]


def dump_inventory(inventory: Inventory) -> str:
    """The text of an inventory file that `load_inventory` reads as the same nodes.

    Left out is what Ray makes up for each node (``node:`` resources, the object store, the label with its random id), and dead nodes
    whose address has come back. What Ray says of who holds what is a moment older or younger than what it says is free; where the two
    contradict each other, the smaller ``free`` is written, and no holder of more than there is.
    """
    import yaml  # type: ignore[import-untyped]

    nodes = _without_the_past(inventory.nodes)
    of_address = Counter(node.address for node in nodes)
    left_out = len(inventory.nodes) - len(nodes)
    past = f"# left out: {left_out} dead node{'s' * (left_out != 1)} whose address has come back\n" if left_out else ""
    content = {"source": inventory.source, "nodes": [_entry(node, with_id=of_address[node.address] > 1) for node in nodes]}
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=140)
    return past + text


def _without_the_past(nodes: Sequence[PhysicalNode]) -> list[PhysicalNode]:
    """Without a dead node that another one has followed at its address."""
    last = {node.address: node.node_id for node in sorted(nodes, key=lambda node: node.state != "dead")}
    return [node for node in nodes if node.state != "dead" or last[node.address] == node.node_id]


def _entry(node: PhysicalNode, *, with_id: bool) -> dict[str, Any]:
    node = _settled(node)
    total = dict(node.total)
    if node.state != "dead":
        # Ray leaves out what a node has none of. Where a resource is nearly named like one of Ray's own, none of that is said, too.
        near = {known: 0 for known in map(near_resource, total) if known is not None}
        total = {"CPU": 0, **near, **total}
    held = {name: node.free.get(name, 0) for name, amount in total.items() if node.free.get(name, 0) != amount}
    labels = {name: text for name, text in without_file_labels(node.labels).items() if name != "ray.io/node-id"}
    entry: dict[str, Any] = {"address": node.address, "resources": total}
    if with_id:
        entry["node_id"] = node.node_id
    if held and node.state != "dead":
        entry["free"] = held
    if labels:
        entry["labels"] = labels
    if node.hostname:
        entry["hostname"] = node.hostname
    if node.is_head:
        entry["head"] = True
    if node.state != "alive":
        entry["state"] = node.state
    if node.holders:
        entry["holders"] = [attrs.asdict(holder) for holder in node.holders]
    return entry


def _settled(node: PhysicalNode) -> PhysicalNode:
    total, free = _kept(node.total), _kept(node.free)
    left = dict(total)
    holders: list[Holder] = []
    for holder in node.holders:
        amounts = _kept(holder.resources)
        if all(amount <= left.get(name, 0) + slack(total.get(name, 0)) for name, amount in amounts.items()):
            left.update({name: max(0, left[name] - amount) for name, amount in amounts.items() if name in left})
            holders.append(attrs.evolve(holder, resources=amounts))
    free = {name: _plain(min(amount, round(left.get(name, 0), 4))) for name, amount in free.items()}
    return attrs.evolve(node, total=total, free=free, holders=tuple(holders))


def _kept(resources: Mapping[str, float]) -> dict[str, float]:
    made_by_ray = (HEAD_RESOURCE, "object_store_memory")
    return {name: _plain(amount) for name, amount in sorted(resources.items()) if name not in made_by_ray and not name.startswith("node:")}


def _plain(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
