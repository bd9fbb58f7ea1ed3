"""Why a spec does not fit: per physical node what is needed, free, and who holds the rest."""

from __future__ import annotations

from rl_cluster.inventory import Inventory
from rl_cluster.layout import NodeShortfall, Shortfall
from rl_cluster.problem import Problem


def diagnose(problem: Problem, inventory: Inventory) -> Shortfall:
    """The shortfall of a problem that has no layout on what is free."""
    spec = problem.spec
    never = problem.solve(problem.total).places is None
    each = spec.bundle_resources
    largest = max(problem.sizes)
    needed = {name: amount * largest for name, amount in each.items()}
    nodes = []
    for node, reason in zip(problem.nodes, problem.unusable):
        lacking = tuple(name for name, amount in needed.items() if node.free.get(name, 0.0) + 1e-4 < amount)
        if reason:
            nodes.append(NodeShortfall(node, needed, node.free, reason[1], kind=reason[0]))
        else:
            clause = ", ".join(f"{name}: {needed[name]:g} needed, {node.free.get(name, 0.0):g} free" for name in lacking) or "has room"
            nodes.append(NodeShortfall(node, needed, node.free, clause, kind="resource" if lacking else "fits", lacking=lacking))
    headline = f"{len(problem.sizes)} logical nodes of up to {largest} bundles ({spec.strategy}) do not fit on {len(problem.nodes)} nodes"
    return Shortfall(spec=spec, never=never, headline=headline, nodes=tuple(nodes))


def render_shortfall(shortfall: Shortfall) -> str:
    """The shortfall as plain text: headline, table, suggestions."""
    lines = [shortfall.headline]
    lines += [f"  {entry.node.address}: {entry.reason}" for entry in shortfall.nodes]
    return "\n".join([*lines, *shortfall.suggestions])
