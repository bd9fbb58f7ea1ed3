"""One simulated cluster that is large enough for each of several jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.planning.topology import TOPO_RANK_LABEL


def union_inventory(wanted: Sequence[Inventory]) -> Inventory:
    """The smallest number of nodes, each as large as needed, on which every one of several simulations finds its own nodes again.

    Nodes of different simulations become one where their labels are equal; a node with other labels stays one of its own, because a
    selector like ``!spot`` asks for nodes *without* a label.

    Args:
        wanted: At least one; what each job would start alone.

    Returns:
        The nodes, numbered anew by their topology rank. With a head without resources if any of them has one.
    """
    if all(inventory == wanted[0] for inventory in wanted[1:]):
        return wanted[0]
    nodes: list[PhysicalNode] = []
    heads: list[PhysicalNode] = []
    for inventory in wanted:
        taken: set[int] = set()
        for node in inventory.nodes:
            if _is_empty(node):
                heads = heads or [node]
                continue
            labels = _labels(node)
            index = next((at for at, there in enumerate(nodes) if at not in taken and _labels(there) == labels), len(nodes))
            taken.add(index)
            if index == len(nodes):
                nodes.append(node)
            else:
                total = _larger(nodes[index].total, node.total)
                nodes[index] = attrs.evolve(nodes[index], total=total, free=total)
    return attrs.evolve(wanted[0], nodes=(*heads, *(_numbered(node, index, bool(heads)) for index, node in enumerate(nodes))))


def covers(running: Inventory, wanted: Inventory) -> bool:
    """Whether a cluster that was started for ``running`` is large enough for ``wanted``, too."""
    both = union_inventory([running, wanted])
    return len(both.nodes) == len(running.nodes) and all(
        dict(now.total) == dict(then.total) for now, then in zip(both.nodes, running.nodes, strict=True)
    )


def _is_empty(node: PhysicalNode) -> bool:
    return not any(node.total.values())


def _labels(node: PhysicalNode) -> dict[str, str]:
    return {name: value for name, value in node.labels.items() if name != TOPO_RANK_LABEL}


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in {**one, **other}}


def _numbered(node: PhysicalNode, index: int, has_empty_head: bool) -> PhysicalNode:
    labels = {**node.labels, TOPO_RANK_LABEL: str(index)} if TOPO_RANK_LABEL in node.labels else node.labels
    return attrs.evolve(node, node_id=f"simulated-{index}", labels=labels, is_head=index == 0 and not has_empty_head)
