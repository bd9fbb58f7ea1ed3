"""A frozen snapshot of the physical nodes: total and free resources, labels, address, who holds what."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, frozen


@frozen
class Holder:
    """Who holds resources of a physical node: a placement group, an actor, or something that Ray does not name."""

    kind: str  # "placement_group" | "actor" | "unknown"
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
