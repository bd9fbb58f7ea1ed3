"""spec + inventory -> layout or shortfall. Pure: no Ray call, no file."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, frozen

from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.schema import ClusterSpec


@frozen
class PlacedBundle:
    """One bundle and the physical node that it is planned on."""

    node_idx: int  # logical node, an index of spec.bundle_counts
    bundle_idx: int  # within the logical node
    node_id: str  # physical node


@frozen
class Layout:
    """Every bundle with its physical node."""

    spec: ClusterSpec
    bundles: tuple[PlacedBundle, ...]  # by (node_idx, bundle_idx)
    nodes: tuple[PhysicalNode, ...]  # every physical node of the inventory, in topology order
    warnings: tuple[str, ...] = ()
    simulated: bool = False


@frozen
class NodeShortfall:
    """What one physical node lacks."""

    node: PhysicalNode
    needed: Mapping[str, float]  # of the logical node that did not fit
    free: Mapping[str, float]
    reason: str  # one clause for a person


@frozen
class Shortfall:
    """Why there is no layout."""

    spec: ClusterSpec
    never: bool  # no waiting helps with the nodes there are (False: somebody holds what is needed)
    headline: str  # one line a person understands
    nodes: tuple[NodeShortfall, ...] = ()
    suggestions: tuple[str, ...] = ()  # the nearest things that would fit
    facts: Mapping[str, object] = Factory(dict)


def plan_layout(spec: ClusterSpec, inventory: Inventory) -> Layout | Shortfall:
    raise NotImplementedError
