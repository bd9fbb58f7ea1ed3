"""A frozen snapshot of the physical nodes: total and free resources, labels, address, who holds what."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, evolve, frozen

HEAD_RESOURCE = "node:__internal_head__"  # Ray gives it to its head node


@frozen
class Holder:
    """Who holds resources of a node: a placement group, an actor, what Ray does not name, or a cluster of the same plan."""

    kind: str  # "placement_group" | "actor" | "unknown" | "planned"
    name: str
    id: str
    job_id: str
    resources: Mapping[str, float]


@frozen
class PhysicalNode:
    """A machine that Ray knows."""

    node_id: str  # Ray's, 56 hex digits; random at each start, so never an order
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    hostname: str = ""
    labels: Mapping[str, str] = Factory(dict)
    is_head: bool = False
    state: str = "alive"  # alive | draining | dead
    holders: tuple[Holder, ...] = ()


@frozen
class Inventory:
    """The physical nodes at one moment."""

    nodes: tuple[PhysicalNode, ...]
    source: str = ""  # for a person: "ray at 10.0.0.1:6379", "file tomorrow.yaml", "simulated"
    simulated: bool = False
    can_grow: bool = False  # others may still add nodes or free resources
    notes: tuple[str, ...] = ()  # for a person: what its source has and it has not

    @property
    def living(self) -> tuple[PhysicalNode, ...]:
        """The nodes that are not dead: what a person calls the machines of a cluster."""
        return tuple(node for node in self.nodes if node.state != "dead")


# --- a machine of a file whose part a simulated node plays: the node's labels say its names there ---

FILE_ID_LABEL = "rl_cluster/file-node-id"
FILE_ADDRESS_LABEL = "rl_cluster/file-address"
FILE_HOSTNAME_LABEL = "rl_cluster/file-hostname"
FILE_HEAD_LABEL = "rl_cluster/file-head"  # only the head has it
FILE_LABELS = (FILE_ID_LABEL, FILE_ADDRESS_LABEL, FILE_HOSTNAME_LABEL, FILE_HEAD_LABEL)


def without_file_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that are the machine's own."""
    return {name: value for name, value in labels.items() if name not in FILE_LABELS}


def names_in_file(node: PhysicalNode) -> dict[str, str]:
    """Labels for the simulated node that plays the part of this machine."""
    names = {FILE_ID_LABEL: node.node_id, FILE_ADDRESS_LABEL: node.address}
    if node.hostname:
        names[FILE_HOSTNAME_LABEL] = node.hostname
    if node.is_head:
        names[FILE_HEAD_LABEL] = "true"
    return names


def named_as_in_file(node: PhysicalNode) -> PhysicalNode:
    """A simulated node under the names of its machine in the file, so that the same words mean the same in a plan and its rehearsal."""
    address = node.labels.get(FILE_ADDRESS_LABEL)
    if address is None:
        return node
    return evolve(node, address=address, hostname=node.labels.get(FILE_HOSTNAME_LABEL, ""), is_head=FILE_HEAD_LABEL in node.labels)
