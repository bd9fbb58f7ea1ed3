"""The answers of planning: a layout, or a shortfall that says why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import Factory, evolve, frozen

from rl_cluster.errors import ResourceInsufficientError
from rl_cluster.inventory import PhysicalNode
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
    least_cost: bool = True  # False: too large for a proof that no layout keeps the soft preferences better


@frozen
class NodeShortfall:
    """What one physical node lacks."""

    node: PhysicalNode
    needed: Mapping[str, float]  # of the logical node that did not fit
    free: Mapping[str, float]
    reason: str  # one clause for a person
    kind: str = "resource"  # fits | resource | dead | draining | excluded | head | label | domain
    lacking: tuple[str, ...] = ()  # the resources of which too little is free here
    never: bool = False  # even with nothing held it would not do
    name: str = ""  # what texts call the node


@frozen
class Shortfall:
    """Why there is no layout."""

    spec: ClusterSpec
    never: bool  # no waiting helps with the nodes there are (False: somebody holds what is needed)
    headline: str  # one line a person understands
    nodes: tuple[NodeShortfall, ...] = ()
    suggestions: tuple[str, ...] = ()  # the nearest things that would fit
    facts: Mapping[str, object] = Factory(dict)
    index: int = 0  # of the cluster that did not fit, where several are planned together
    name: str = ""  # what a plan of several calls that cluster
    key: str = "cluster"  # where its keys stand in the config, for the suggestions

    def at(self, name: str, key: str) -> Shortfall:
        """The same of a cluster whose keys stand elsewhere: the suggestions say ``policy.cluster.num_nodes=1`` then.

        Args:
            name: Of the cluster, begins the text; "" for the only one.
            key: The path of its keys.
        """
        ours = re.compile(rf"(?<![\w.]){re.escape(self.key)}\.(?=[a-z_])")
        moved = (text if text.startswith("wait:") else ours.sub(lambda _: f"{key}.", text) for text in self.suggestions)
        return evolve(self, name=name, key=key, suggestions=tuple(moved))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "never": self.never,
            "headline": self.headline,
            "suggestions": list(self.suggestions),
            "facts": dict(self.facts),
            "nodes": [
                {
                    "node_id": entry.node.node_id,
                    "address": entry.node.address,
                    "state": entry.node.state,
                    "needed": dict(entry.needed),
                    "free": {name: entry.node.free.get(name, 0.0) for name in entry.needed},
                    "total": {name: entry.node.total.get(name, 0.0) for name in entry.needed},
                    "kind": entry.kind,
                    "lacking": list(entry.lacking),
                    "never": entry.never,
                    "reason": entry.reason,
                    "holders": [
                        {
                            "kind": holder.kind,
                            "name": holder.name,
                            "id": holder.id,
                            "job_id": holder.job_id,
                            "resources": dict(holder.resources),
                        }
                        for holder in entry.node.holders
                    ],
                }
                for entry in self.nodes
            ],
        }

    def to_error(self) -> ResourceInsufficientError:
        """The error to raise: the headline, the table, the suggestions; ``shortfall`` is this record."""
        from rl_cluster.planning.diagnosis import render_shortfall

        return ResourceInsufficientError(render_shortfall(self), shortfall=self)


def error_at(error: ResourceInsufficientError, name: str, key: str) -> ResourceInsufficientError:
    """The error in the words of `Shortfall.at`; one without a shortfall stays as it is."""
    shortfall = error.facts.get("shortfall")
    return reworded(error, shortfall, shortfall.at(name, key)) if isinstance(shortfall, Shortfall) else error


def reworded(error: ResourceInsufficientError, old: Shortfall, new: Shortfall) -> ResourceInsufficientError:
    """The error with another shortfall, in the record and in the text."""
    from rl_cluster.planning.diagnosis import render_shortfall

    message = error.message.replace(render_shortfall(old), render_shortfall(new))
    return type(error)(message, **{**error.facts, "shortfall": new})
