"""Why a spec does not fit: which resource is short, where, who holds it, and the nearest things that would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.layout import NodeShortfall, Shortfall
from rl_cluster.packing import pack
from rl_cluster.problem import Problem
from rl_cluster.schema import STRATEGIES
from rl_cluster.shortfall_text import held_text, kind_of, lonely_head, number, render_shortfall, write_headline

__all__ = ["diagnose", "render_shortfall"]

QUICK_STEPS = 5_000  # of each what-if question: there are dozens of them
MAX_HOLDERS_TRIED = 8
TOLERANCE = 5e-5  # half of Ray's unit of resources


def diagnose(problem: Problem, inventory: Inventory) -> Shortfall:
    """The shortfall of a problem that has no layout on what is free now."""
    spec = problem.spec
    whole = problem.solve(problem.total)
    never = whole.places is None and whole.proven
    amounts = [node.total if never else node.free for node in problem.nodes]
    size = _blocked_size(problem, problem.total if never else problem.free)
    needed = {name: amount * size for name, amount in spec.bundle_resources.items()}
    nodes = tuple(_node_shortfall(problem, position, needed) for position in range(len(problem.nodes)))
    culprits = [spec.accelerator] if lonely_head(spec, nodes) else _culprits(problem, amounts, nodes, never)
    facts: dict[str, object] = {
        "kind": kind_of(culprits[0], spec) if culprits else "nodes",
        "lacking": list(culprits),
        "bundles_wanted": sum(problem.sizes),
        "bundles_room": sum(problem.free),
        "blocked_bundles": size,
        "proven": whole.places is not None or whole.proven,
    }
    return Shortfall(
        spec=spec,
        never=never,
        headline=write_headline(problem, nodes, culprits, size=size, never=never),
        nodes=nodes,
        suggestions=tuple(_suggestions(problem, culprits, never)),
        facts=facts,
    )


def _blocked_size(problem: Problem, capacities: Sequence[int]) -> int:
    """Bundles of the largest logical node that does not find a place for itself; else of the largest one."""
    sizes = sorted((size for size in problem.sizes if size), reverse=True)
    if problem.spec.strategy == "STRICT_SPREAD":
        for count, size in enumerate(sizes, start=1):
            if sum(capacity >= size for capacity in capacities) < count:
                return size
    return sizes[0]


def _node_shortfall(problem: Problem, position: int, needed: Mapping[str, float]) -> NodeShortfall:
    node = problem.nodes[position]
    reason = problem.unusable[position]
    if reason is not None:
        return NodeShortfall(node, needed, node.free, reason[1], kind=reason[0], never=True)
    lacking = tuple(name for name, amount in needed.items() if node.free.get(name, 0.0) < amount - TOLERANCE)
    if not lacking:
        return NodeShortfall(node, needed, node.free, "has room for one", kind="fits")
    never = any(node.total.get(name, 0.0) < needed[name] - TOLERANCE for name in lacking)
    clauses = [f"{name}: {number(needed[name])} needed, {held_text(node, name)}" for name in lacking]
    return NodeShortfall(node, needed, node.free, "; ".join(clauses), lacking=lacking, never=never)


def _culprits(problem: Problem, amounts: Sequence[Mapping[str, float]], nodes: Sequence[NodeShortfall], never: bool) -> list[str]:
    """What is short: the one thing that would do if there were enough of it; else all that lacks on the nodes that come nearest.

    Entries are resource names, or the kinds ``label``, ``excluded``, ``head``, ``domain``, ``draining`` of nodes that may not be used.
    """
    each = problem.spec.bundle_resources
    left_out = _left_out_with_room(problem, amounts)
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


def _left_out_with_room(problem: Problem, amounts: Sequence[Mapping[str, float]]) -> str | None:
    """The kind of reason without which there would be room on nodes that may not be used."""
    for kind in ("label", "excluded", "head", "draining"):
        if any(reason and reason[0] == kind for reason in problem.unusable):
            capacities = problem.capacities(amounts, allowed=(kind,))
            if problem.solve(capacities, max_steps=QUICK_STEPS).places is not None:
                return kind
    if any(reason and reason[0] == "domain" for reason in problem.unusable):
        capacities = problem.capacities(amounts, allowed=("domain",))
        if pack(problem.sizes, capacities, strategy=problem.spec.strategy, max_steps=QUICK_STEPS).places is not None:
            return "domain"
    return None


def _short_alone(problem: Problem, amounts: Sequence[Mapping[str, float]]) -> str | None:
    """The resource that would do if it alone were plenty."""
    each = problem.spec.bundle_resources
    for name in _by_interest(each, problem):
        others = {other: amount for other, amount in each.items() if other != name}
        if others and problem.solve(problem.capacities(amounts, each=others), max_steps=QUICK_STEPS).places is not None:
            return name
    return None


def _by_interest(each: Mapping[str, float], problem: Problem) -> list[str]:
    order = {problem.spec.accelerator: 0, "CPU": 1}
    return sorted(each, key=lambda name: (order.get(name, 2), name))


def _suggestions(problem: Problem, culprits: Sequence[str], never: bool) -> Iterator[str]:
    spec, sizes = problem.spec, problem.sizes

    def fits(capacities: Sequence[int], sizes: Sequence[int] = sizes, strategy: str = spec.strategy) -> bool:
        return problem.solve(capacities, sizes=sizes, strategy=strategy, max_steps=QUICK_STEPS).places is not None

    if not never:
        ending = [name for name, freed in _endings(problem) if fits(problem.capacities(freed))]
        yield from (f"wait: it fits when {name} ends" for name in ending[:3])
        if not ending:
            yield "wait: it fits when enough of what is held is given back"
    for strategy in STRATEGIES:
        if strategy != spec.strategy and fits(problem.free, strategy=strategy):
            yield f"cluster.strategy={strategy} fits now"
    most = _largest(len(sizes) - 1, lambda count: fits(problem.free, sizes=sizes[:count])) if len(sizes) > 1 else 0
    if spec.segment_size is not None and most > spec.segment_size:
        most -= most % spec.segment_size
    if any(sizes[:most]):
        if spec.bundle_ct_per_node_list is None:
            yield f"cluster.num_nodes={most} fits now"
        else:
            yield f"cluster.bundle_ct_per_node_list=[{','.join(map(str, sizes[:most]))}] fits now"
    if len(set(sizes)) == 1:
        bundles = _largest(sizes[0] - 1, lambda count: fits(problem.free, sizes=[count] * len(sizes)))
        if bundles:
            gpus = spec.use_gpus and spec.bundles_per_node is None and spec.bundle_ct_per_node_list is None
            yield f"cluster.{'gpus_per_node' if gpus else 'bundles_per_node'}={bundles} fits now"
    if culprits == ["CPU"]:
        yield from _smaller_cpus(problem, fits)
    if culprits == ["label"]:
        yield "other nodes have room: relax cluster.label_selector"
    if culprits == ["excluded"]:
        yield "the nodes left out have room: shorten cluster.exclude_nodes"
    if culprits == ["head"]:
        yield "the head node has room: cluster.use_head=always"
    if culprits == ["domain"]:
        yield "nodes without an NVLink domain have room: unset cluster.segment_size"


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count from 1 to `most` that fits, where every smaller one fits too; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _smaller_cpus(problem: Problem, fits: Callable[[Sequence[int]], bool]) -> Iterator[str]:
    each = problem.spec.bundle_resources
    size = max(problem.sizes)
    shares = {int(node.free.get("CPU", 0.0) / size * 10) / 10 for node in problem.nodes}
    amounts = [node.free for node in problem.nodes]
    for share in sorted((share for share in shares if 0 < share < each["CPU"]), reverse=True)[:10]:
        if fits(problem.capacities(amounts, each={**each, "CPU": share})):
            yield f"cluster.cpus_per_bundle={number(share)} fits now"
            return


def _endings(problem: Problem) -> Iterator[tuple[str, list[Mapping[str, float]]]]:
    """For each of the largest holders its name, and what would be free per node if it alone ended."""
    held: dict[tuple[str, str, str, str], float] = {}
    for node in problem.nodes:
        for holder in node.holders:
            if holder.kind in ("placement_group", "actor"):
                key = holder.kind, holder.name, holder.id, holder.job_id
                held[key] = held.get(key, 0.0) + sum(holder.resources.get(name, 0.0) for name in problem.spec.bundle_resources)
    largest = sorted(held, key=lambda key: (-held[key], key))[:MAX_HOLDERS_TRIED]
    for kind, name, id_, job_id in largest:
        freed = [_without(node, id_) for node in problem.nodes]
        yield f"{kind.replace('_', ' ')} {name!r} of job {job_id}", freed


def _without(node: PhysicalNode, holder_id: str) -> Mapping[str, float]:
    free = dict(node.free)
    for holder in node.holders:
        if holder.id == holder_id:
            for name, amount in holder.resources.items():
                free[name] = min(free.get(name, 0.0) + amount, node.total.get(name, 0.0))
    return free
