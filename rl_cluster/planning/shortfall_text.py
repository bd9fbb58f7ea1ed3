"""A shortfall in words: the one line that a person understands, and the table below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from rl_cluster.inventory import PhysicalNode
from rl_cluster.planning.holders import holder_name
from rl_cluster.planning.layout import NodeShortfall, Shortfall
from rl_cluster.planning.naming import amount_writer, count_of
from rl_cluster.planning.problem import Problem
from rl_cluster.planning.topology import gpu_domain
from rl_cluster.schema import ClusterSpec

MAX_ROWS = 40
NODES_IN_HEADLINE = 3
DOMAINS_IN_HEADLINE = 4

_LEFT_OUT = {
    "dead": "dead",
    "draining": "draining",
    "excluded": "left out by cluster.exclude_nodes",
    "head": "",  # see _head_text
    "label": "without the labels of cluster.label_selector",
    "domain": "in no NVLink domain",
}


def kind_of(culprit: str, spec: ClusterSpec) -> str:
    """What is short: ``accelerator``, ``cpu``, ``custom``, or the reason why nodes may not be used (``label``, ...)."""
    if culprit == spec.accelerator and spec.use_gpus:
        return "accelerator"
    if culprit == "CPU":
        return "cpu"
    return "custom" if culprit in spec.bundle_resources else culprit


def held_text(node: PhysicalNode, resource: str, needed: float) -> str:
    """``4 free, 4 held by placement group 'x' of job 02000000``, or ``4 in all`` where nothing is held. ``needed`` stands beside it."""
    write = amount_writer(resource, needed, _amounts(node, resource))
    total = node.total.get(resource, 0.0)
    free = node.free.get(resource, 0.0)
    held = total - free
    if held < 5e-5:
        return f"{write(total)} in all"
    holders = [holder for holder in node.holders if holder.resources.get(resource, 0.0) > 5e-5]
    if not holders:
        return f"{write(free)} free, {write(held)} held"
    clauses = [f"{write(holder.resources[resource])} held by {holder_name(holder)}" for holder in holders[:2]]
    if len(holders) > 2:
        rest = sum(holder.resources[resource] for holder in holders[2:])
        clauses.append(f"{write(rest)} held by {len(holders) - 2} more")
    return ", ".join([f"{write(free)} free", *clauses])


def _amounts(node: PhysicalNode, resource: str) -> tuple[float, float]:
    return node.free.get(resource, 0.0), node.total.get(resource, 0.0)


def write_headline(problem: Problem, nodes: Sequence[NodeShortfall], culprits: Sequence[str], *, size: int, never: bool) -> str:
    """What was wanted, and what there is instead, in one line."""
    left_out = Counter(entry.kind for entry in nodes if entry.kind in _LEFT_OUT)
    usable = [
        (entry, room) for entry, room in zip(nodes, problem.total if never else problem.free, strict=True) if entry.kind not in _LEFT_OUT
    ]
    resource = culprits[0] if culprits and culprits[0] in problem.spec.bundle_resources else None
    want = _want(problem, resource)
    if not usable:
        if lonely_head(problem.spec, nodes):
            return f"{want}: no {problem.spec.accelerator} anywhere: the only node is the head node {nodes[0].name}, which has none"
        return f"{want}: no node may be used: {_left_out_text(problem.spec, left_out) or 'there are none'}"
    parts = [_enough_where(problem, usable, resource, size=size, never=never)]
    if resource is not None:
        short = [(entry, room) for entry, room in usable if _has(entry.node, resource, never) < entry.needed[resource] - 5e-5]
        near = sorted(range(len(short)), key=lambda index: (-short[index][1], index))[:NODES_IN_HEADLINE]
        parts += [f"{short[index][0].name} has {_there_text(short[index][0], resource, never)}" for index in near]
        if len(short) > NODES_IN_HEADLINE:
            more = len(short) - NODES_IN_HEADLINE
            needed = needed_text((entry.node for entry, _ in usable), resource, short[0][0].needed[resource])
            parts.append(f"{more} more {'has' if more == 1 else 'have'} less than {needed}")
    if left_out:
        parts.append(f"not used: {_left_out_text(problem.spec, left_out)}")
    return f"{want}: {'; '.join(parts)}"


def _there_text(entry: NodeShortfall, resource: str, never: bool) -> str:
    """What a node has; who holds it is beside the point where the machine itself is too small."""
    needed, total = entry.needed[resource], entry.node.total.get(resource, 0.0)
    return f"{amount_writer(resource, needed, [total])(total)} in all" if never else held_text(entry.node, resource, needed)


def needed_text(nodes: Iterable[PhysicalNode], resource: str, needed: float) -> str:
    """What is needed on one node, beside what the nodes have."""
    return amount_writer(resource, needed, [amount for node in nodes for amount in _amounts(node, resource)])(needed)


def _has(node: PhysicalNode, resource: str, never: bool) -> float:
    return (node.total if never else node.free).get(resource, 0.0)


def lonely_head(spec: ClusterSpec, nodes: Sequence[NodeShortfall]) -> bool:
    """Whether the only node is a head node without accelerators: they are short then, whatever the rule for head nodes."""
    return len(nodes) == 1 and nodes[0].kind == "head" and spec.use_head == "auto"


def _left_out_text(spec: ClusterSpec, left_out: Mapping[str, int]) -> str:
    return ", ".join(_head_text(spec, count) if kind == "head" else f"{count} {_LEFT_OUT[kind]}" for kind, count in left_out.items())


def _head_text(spec: ClusterSpec, count: int) -> str:
    """There is one head node; a file may name more."""
    who = "the head node, " if count == 1 else f"{count} head nodes, "
    if spec.use_head != "auto":
        return f"{who}left out by cluster.use_head=never"
    return f"{who}which {'has' if count == 1 else 'have'} no {spec.accelerator}"


def _want(problem: Problem, resource: str | None) -> str:
    spec = problem.spec
    sizes = [size for size in problem.sizes if size]
    each = spec.bundle_resources
    if resource in (None, spec.accelerator) and each.get(spec.accelerator) == 1:
        noun, of = spec.accelerator, ""
    else:
        noun, of = "bundle", " of {" + ", ".join(f"{name} {amount_writer(name, amount)(amount)}" for name, amount in each.items()) + "}"
    kinds = sorted(set(sizes), reverse=True)
    amount = " and ".join(map(str, sizes)) if 1 < len(sizes) <= 3 and len(kinds) > 1 else str(kinds[0])
    if len(kinds) > 1 and len(sizes) > 3:
        amount = f"{kinds[-1]} to {kinds[0]}"
    where = {"STRICT_SPREAD": " on distinct machines", "STRICT_PACK": " each on one machine"}.get(spec.strategy, "")
    if spec.segment_size is not None:
        where += f", in segments of {spec.segment_size} in one NVLink domain"
    if len(sizes) == 1:
        where = where.replace(" on distinct machines", " on one machine").replace(" each on one", " on one")
    return f"{count_of(len(sizes), 'logical node')} of {amount} {noun}{'s' * (amount != '1')}{of}{where}"


def _enough_where(problem: Problem, usable: Sequence[tuple[NodeShortfall, int]], resource: str | None, *, size: int, never: bool) -> str:
    spec = problem.spec
    room = sum(room for _, room in usable)
    wanted = sum(problem.sizes)
    have = [entry.name for entry, room in usable if room >= size]
    if resource is None and spec.strategy == "STRICT_SPREAD" and len(have) < len([size for size in problem.sizes if size]):
        return f"only {count_of(len(have), 'node')} {'has' if len(have) == 1 else 'have'} room for {'that' if never else 'that now'}"
    if spec.strategy in ("PACK", "SPREAD") or resource is None or len(have) == len(usable):
        held = "with nothing held there is" if never else "there is now"
        if room >= wanted:
            places = "the right places" if spec.segment_size is None else f"whole segments: {_in_domains(problem, usable, size)}"
            return f"{held} room for {count_of(room, 'bundle')}, {wanted} wanted, but not in {places}"
        return f"{held} room for {room} of {count_of(wanted, 'bundle')}{f', {resource} is short' if resource else ''}"
    need = needed_text((entry.node for entry, _ in usable), resource, usable[0][0].needed[resource])
    unit = resource + "s" * (resource in ("CPU", spec.accelerator) and need != "1")
    state = "" if never else " free"
    if not have:
        return f"{'no machine is that large' if never else 'no node has that free'}: {need} {unit} needed on one"
    if len(have) == 1:
        return f"only node {have[0]} has {need} {unit}{state}"
    names = ", ".join(have[:NODES_IN_HEADLINE]) + (", ..." if len(have) > NODES_IN_HEADLINE else "")
    return f"only {len(have)} nodes have {need} {unit}{state} ({names})"


def _in_domains(problem: Problem, usable: Sequence[tuple[NodeShortfall, int]], size: int) -> str:
    """What each NVLink domain has room for: logical nodes where all are of one size, else bundles."""
    rooms: dict[str, list[int]] = {}
    for entry, room in usable:
        rooms.setdefault(gpu_domain(entry.node) or "", []).append(room)
    if len({each for each in problem.sizes if each}) > 1:
        texts = [f"{name} has room for {count_of(sum(room), 'bundle')}" for name, room in rooms.items()]
    else:
        takes: dict[str, Callable[[list[int]], int]] = {
            "STRICT_SPREAD": lambda room: sum(one >= size for one in room),
            "STRICT_PACK": lambda room: sum(one // size for one in room),
        }
        count: Callable[[list[int]], int] = takes.get(problem.spec.strategy, lambda room: sum(room) // size)
        texts = [f"{name} has room for {count_of(count(room), 'logical node')}" for name, room in rooms.items()]
    return ", ".join(texts[:DOMAINS_IN_HEADLINE]) + (f", and {len(texts) - DOMAINS_IN_HEADLINE} more" * (len(texts) > DOMAINS_IN_HEADLINE))


def render_shortfall(shortfall: Shortfall) -> str:
    """The shortfall as plain text: the headline, a table with a line per physical node and resource, and what would fit.

    Neighbouring nodes that are alike share their lines; a ``!`` marks what is short.
    """
    lines = [f"{shortfall.name}: {shortfall.headline}" if shortfall.name else shortfall.headline]
    rows = [row for group in _alike(shortfall) for row in _rows(group, shortfall.spec)]
    if rows:
        table = [("node", "resource", "needed", "free", "total", "", "held by"), *rows[:MAX_ROWS]]
        widths = [max(len(row[column]) for row in table) for column in range(6)]
        for row in table:
            left = [row[column].ljust(widths[column]) for column in (0, 1)]
            right = [row[column].rjust(widths[column]) for column in (2, 3, 4)]
            lines.append("  " + "  ".join([*left, *right, row[5].ljust(widths[5]), row[6]]).rstrip())
        if len(rows) > MAX_ROWS:
            lines.append(f"  ... and {len(rows) - MAX_ROWS} more lines")
    if shortfall.never:
        lines.append("No waiting helps with the nodes there are.")
    elif shortfall.facts.get("proven", True):
        lines.append("It would fit if nothing were held.")
    else:
        lines.append("No layout was found with nothing held either; it is too large to try all, so there may be one.")
    lines += [f"Fix: {suggestion}" for suggestion in shortfall.suggestions]
    return "\n".join(lines)


def _domain_text(entry: NodeShortfall, spec: ClusterSpec) -> str:
    """The NVLink domain in brackets where it matters, as in a drawing."""
    domain = gpu_domain(entry.node) if spec.segment_size is not None else None
    return f" [{domain}]" if domain else ""


def _alike(shortfall: Shortfall) -> list[list[NodeShortfall]]:
    groups: list[list[NodeShortfall]] = []
    last: object = None
    for entry in shortfall.nodes:
        amounts = [(entry.node.free.get(name), entry.node.total.get(name)) for name in entry.needed]
        look = (
            amounts,
            entry.reason if entry.kind in _LEFT_OUT else "",
            _domain_text(entry, shortfall.spec),
            [(holder.kind, holder.name, holder.id, holder.job_id, holder.resources) for holder in entry.node.holders],
        )
        if groups and look == last:
            groups[-1].append(entry)
        else:
            groups.append([entry])
        last = look
    return groups


def _rows(group: Sequence[NodeShortfall], spec: ClusterSpec) -> list[tuple[str, ...]]:
    entry = group[0]
    name = entry.name if len(group) == 1 else f"{entry.name} to {group[-1].name} ({len(group)} nodes)"
    name += _domain_text(entry, spec)
    if entry.kind in _LEFT_OUT:
        return [(name, "-", "-", "-", "-", "", entry.reason)]
    rows: list[tuple[str, ...]] = []
    for resource, needed in entry.needed.items():
        free, total = _amounts(entry.node, resource)
        write = amount_writer(resource, needed, [free, total])
        holders = [
            f"{write(holder.resources[resource])} by {holder_name(holder)}"
            for holder in entry.node.holders
            if holder.resources.get(resource, 0.0) > 5e-5
        ]
        mark = "!" if resource in entry.lacking else ""
        rows.append((name if not rows else "", resource, write(needed), write(free), write(total), mark, ", ".join(holders)))
    return rows
