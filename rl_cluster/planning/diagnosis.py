"""Why a spec does not fit: which resource is short, where, who holds it, and the nearest things that would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_cluster.inventory import Inventory
from rl_cluster.planning.layout import NodeShortfall, Shortfall
from rl_cluster.planning.problem import Problem
from rl_cluster.planning.shortfall_text import held_text, kind_of, lonely_head, needed_text, render_shortfall, write_headline
from rl_cluster.planning.suggestions import Question, fits, fits_now, lift, lifts, misspelt, waits

__all__ = ["diagnose", "render_shortfall"]

TOLERANCE = 5e-5  # half of Ray's unit of resources


def diagnose(problem: Problem, inventory: Inventory, *, never: bool, proven: bool, question: Question | None, index: int = 0) -> Shortfall:
    """The shortfall of a problem that has no layout on what is free.

    Args:
        problem: On the nodes that are shown: what is there now less what the clusters before it took, or, for a "never" of several
            clusters, the same with nothing held.
        inventory: Those nodes.
        never: Whether nothing would fit with nothing held either, the other clusters of the plan considered.
        proven: Whether that, or its contrary, is known.
        question: For the suggestions; None where the clusters before it have no room now.
        index: Of the cluster, where several are planned together.
    """
    spec = problem.spec
    too_large = never and problem.solve(problem.total).places is None  # alone, on all machines
    amounts = [node.total if too_large else node.free for node in problem.nodes]
    size = _blocked_size(problem, problem.total if too_large else problem.free)
    needed = {name: amount * size for name, amount in spec.bundle_resources.items()}
    names = problem.node_names()
    nodes = tuple(_node_shortfall(problem, position, needed, names[position]) for position in range(len(problem.nodes)))
    culprits = [spec.accelerator] if lonely_head(spec, nodes) else _culprits(problem, inventory, amounts, nodes, too_large)
    facts: dict[str, object] = {
        "kind": kind_of(culprits[0], spec) if culprits else "nodes",
        "lacking": list(culprits),
        "bundles_wanted": sum(problem.sizes),
        "bundles_room": sum(problem.free),
        "blocked_bundles": size,
        "proven": proven,
    }
    return Shortfall(
        spec=spec,
        never=never,
        headline=write_headline(problem, nodes, culprits, size=size, never=too_large),
        nodes=nodes,
        suggestions=tuple(_suggestions(problem, question, culprits, may_wait=proven and not never)),
        facts=facts,
        index=index,
    )


def _suggestions(problem: Problem, question: Question | None, culprits: Sequence[str], *, may_wait: bool) -> Iterator[str]:
    if question is not None:
        if may_wait:
            yield from waits(question)
        yield from fits_now(question, culprits)
        yield from lifts(question, culprits)
    yield from misspelt(problem, question)


def _blocked_size(problem: Problem, capacities: Sequence[int]) -> int:
    """Bundles of the largest logical node that does not find a place for itself; else of the largest one."""
    sizes = sorted((size for size in problem.sizes if size), reverse=True)
    if problem.spec.strategy == "STRICT_SPREAD":
        for count, size in enumerate(sizes, start=1):
            if sum(capacity >= size for capacity in capacities) < count:
                return size
    return sizes[0]


def _node_shortfall(problem: Problem, position: int, needed: Mapping[str, float], name: str) -> NodeShortfall:
    node = problem.nodes[position]
    reason = problem.unusable[position]
    if reason is not None:
        return NodeShortfall(node, needed, node.free, reason[1], kind=reason[0], never=True, name=name)
    lacking = tuple(each for each, amount in needed.items() if node.free.get(each, 0.0) < amount - TOLERANCE)
    if not lacking:
        return NodeShortfall(node, needed, node.free, "has room for one", kind="fits", name=name)
    never = any(node.total.get(each, 0.0) < needed[each] - TOLERANCE for each in lacking)
    clauses = [f"{each}: {needed_text([node], each, needed[each])} needed, {held_text(node, each, needed[each])}" for each in lacking]
    return NodeShortfall(node, needed, node.free, "; ".join(clauses), lacking=lacking, never=never, name=name)


def _culprits(
    problem: Problem, inventory: Inventory, amounts: Sequence[Mapping[str, float]], nodes: Sequence[NodeShortfall], never: bool
) -> list[str]:
    """What is short: the one thing that would do if there were enough of it; else all that lacks on the nodes that come nearest.

    Entries are resource names, or the kinds ``label``, ``excluded``, ``head``, ``domain``, ``draining`` of nodes that may not be used.
    """
    each = problem.spec.bundle_resources
    left_out = _left_out_with_room(problem, inventory, never)
    short = _short_alone(problem, amounts)
    # Machines that are there but may not be used say more than amounts that nobody has; what is held will come back.
    first = (short or left_out) if not never else (left_out or short)
    if first is not None:
        return [first]
    usable = [entry for entry in nodes if entry.kind in ("resource", "fits")]
    nearest = [entry for entry in usable if all(entry.node.total.get(name) for name in each)] or usable
    lacking: set[str] = set()
    for entry in nearest:
        have = entry.node.total if never else entry.node.free
        bundles = {name: have.get(name, 0.0) / each[name] for name in each if have.get(name, 0.0) < entry.needed[name] - TOLERANCE}
        lacking |= {name for name, count in bundles.items() if count == min(bundles.values())}  # what limits this node most
    return [name for name in _by_interest(each, problem) if name in lacking]


def _left_out_with_room(problem: Problem, inventory: Inventory, never: bool) -> str | None:
    """The kind of reason without which there would be room on nodes that may not be used."""
    for kind in ("label", "excluded", "head", "draining", "domain"):
        lifted = lift(problem, inventory, kind)
        if lifted is not None and fits(lifted, lifted.total if never else lifted.free):
            return kind
    return None


def _short_alone(problem: Problem, amounts: Sequence[Mapping[str, float]]) -> str | None:
    """The resource that would do if it alone were plenty."""
    each = problem.spec.bundle_resources
    for name in _by_interest(each, problem):
        others = {other: amount for other, amount in each.items() if other != name}
        if others and fits(problem, problem.capacities(amounts, each=others)):
            return name
    return None


def _by_interest(each: Mapping[str, float], problem: Problem) -> list[str]:
    order = {problem.spec.accelerator: 0, "CPU": 1}
    return sorted(each, key=lambda name: (order.get(name, 2), name))
