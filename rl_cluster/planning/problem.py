"""A spec against an inventory as numbers: how many bundles each physical node takes, now and with nothing held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.planning.naming import node_names
from rl_cluster.planning.packing import MAX_STEPS, Packing, pack
from rl_cluster.planning.segments import pack_segments, segment_notes
from rl_cluster.planning.selectors import unusable_reasons
from rl_cluster.planning.topology import DOMAIN_LABEL, gpu_domain, sort_nodes
from rl_cluster.schema import ClusterSpec

# Ray counts resources in ten-thousandths (its FixedPoint type), so the planner does too.
RESOURCE_UNIT = 10_000


@frozen
class Problem:
    """What is to be packed, and into what."""

    spec: ClusterSpec
    nodes: tuple[PhysicalNode, ...]  # in topology order
    unusable: tuple[tuple[str, str] | None, ...]  # per node: None, or (kind, clause)
    domains: tuple[str | None, ...]  # per node
    sizes: tuple[int, ...]  # bundles of each logical node
    free: tuple[int, ...]  # bundles that each node takes now; 0 where it may not be used
    total: tuple[int, ...]  # the same with nothing held

    def solve(
        self, capacities: Sequence[int], *, sizes: Sequence[int] | None = None, strategy: str | None = None, max_steps: int = MAX_STEPS
    ) -> Packing:
        """Packs these (or other) logical nodes by this (or another) strategy into nodes of these capacities."""
        sizes = self.sizes if sizes is None else sizes
        strategy = strategy or self.spec.strategy
        if self.spec.segment_size is None:
            return pack(sizes, capacities, strategy=strategy, max_steps=max_steps)
        return pack_segments(sizes, capacities, self.domains, segment_size=self.spec.segment_size, strategy=strategy, max_steps=max_steps)

    def capacities(
        self, amounts: Sequence[Mapping[str, float]], *, each: Mapping[str, float] | None = None, allowed: Sequence[str] = ()
    ) -> tuple[int, ...]:
        """Bundles that each node takes of these amounts.

        Args:
            amounts: Resources of each node, in the order of ``nodes``.
            each: What one bundle takes; default: the spec's.
            allowed: Kinds of reasons (see `rl_cluster.planning.selectors.unusable_reasons`) that are overlooked.
        """
        each = self.spec.bundle_resources if each is None else each
        most = max(1, sum(self.sizes))
        return tuple(
            0 if reason and reason[0] not in allowed else bundle_capacity(amount, each, most=most)
            for amount, reason in zip(amounts, self.unusable, strict=True)
        )

    def node_names(self) -> tuple[str, ...]:
        """What a text calls each node, in the order of ``nodes``."""
        names = node_names({node.node_id: node.address or node.hostname for node in self.nodes})
        return tuple(names[node.node_id] for node in self.nodes)

    def segment_notes(self, places: Sequence[tuple[int, ...]]) -> list[str]:
        """What of the segments and domains remains over, for a person; empty without ``segment_size``."""
        if self.spec.segment_size is None:
            return []
        return segment_notes(places, self.free, self.domains, segment_size=self.spec.segment_size)


def bundle_capacity(amounts: Mapping[str, float], each: Mapping[str, float], *, most: int) -> int:
    """How many bundles fit into these amounts; at most `most`, which is also the answer for a bundle that takes nothing.

    Counted in Ray's unit of 0.0001, so that 0.1 + 0.2 is 0.3.
    """
    count = most
    for name, amount in each.items():
        unit = round(amount * RESOURCE_UNIT)
        if unit > 0:
            count = min(count, max(0, round(amounts.get(name, 0.0) * RESOURCE_UNIT)) // unit)
    return count


def state_problem(spec: ClusterSpec, inventory: Inventory) -> Problem:
    """Puts a spec and an inventory into numbers.

    Raises:
        ConfigError: See `rl_cluster.plan.plan_layout`.
    """
    nodes = tuple(sort_nodes(inventory.nodes))
    unusable = unusable_reasons(spec, nodes)
    domains: tuple[str | None, ...] = (None,) * len(nodes)
    if spec.segment_size is not None:
        if spec.segment_size < 1:
            raise ConfigError(f"cluster.segment_size: must be at least 1, got {spec.segment_size}")
        domains = tuple(gpu_domain(node) for node in nodes)
        of_living = [
            domain for domain, reason in zip(domains, unusable, strict=True) if reason is None or reason[0] not in ("dead", "draining")
        ]
        if of_living and not any(of_living):
            raise ConfigError(
                f"cluster.segment_size: needs nodes in an NVLink domain, "
                f"got {spec.segment_size} with {len(of_living)} living node{'s' * (len(of_living) != 1)}, none of them in a domain. "
                f"Fix: start each node's Ray with a label {DOMAIN_LABEL}=<domain>, or unset cluster.segment_size"
            )
        no_domain = ("domain", f"belongs to no NVLink domain (label {DOMAIN_LABEL})")
        unusable = [reason or (None if domain else no_domain) for reason, domain in zip(unusable, domains, strict=True)]
    problem = Problem(spec=spec, nodes=nodes, unusable=tuple(unusable), domains=domains, sizes=tuple(spec.bundle_counts), free=(), total=())
    free = problem.capacities([node.free for node in nodes])
    return evolve(problem, free=free, total=problem.capacities([node.total for node in nodes]))
