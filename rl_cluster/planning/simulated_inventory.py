"""The nodes that a simulated Ray cluster starts, for a spec or for the machines of a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import Inventory, PhysicalNode, names_in_file, without_file_labels
from rl_cluster.planning.packing import pack
from rl_cluster.planning.selectors import parse_selector
from rl_cluster.planning.topology import DOMAIN_LABEL, TOPO_RANK_LABEL, node_key, sort_nodes
from rl_cluster.schema import ClusterSpec, RaySpec, resolve_local


def simulated_inventory(spec: ClusterSpec, ray_spec: RaySpec) -> Inventory:
    """As many nodes as a spec needs, each as large as its largest logical node, with the labels that it asks for.

    ``ray.simulated_nodes``, ``ray.simulated_gpus_per_node`` and ``ray.simulated_cpus_per_node`` say it otherwise. With fewer
    accelerators per node than a logical node has, there are as many nodes as its strategy needs (or one per logical node where
    no number will do: the plan then says why).

    Args:
        spec: A spec whose number of bundles is known.
        ray_spec: The simulated sizes.

    Returns:
        Nodes with nothing held, the first of them the head; with ``cluster.use_head=never`` a head without resources comes before them.
    """
    counts = [count for count in spec.bundle_counts if count]
    largest = max(counts, default=1)
    each = spec.bundle_resources
    bundles = largest
    if spec.use_gpus and ray_spec.simulated_gpus_per_node is not None:
        bundles = ray_spec.simulated_gpus_per_node
    cpus: float = math.ceil(each.get("CPU", 0.0) * max(bundles, 1))
    if ray_spec.simulated_cpus_per_node is not None:
        cpus = ray_spec.simulated_cpus_per_node
        if each.get("CPU"):
            bundles = min(bundles, int(cpus / each["CPU"] + 1e-9)) if spec.use_gpus else int(cpus / each["CPU"] + 1e-9)
    total = {"CPU": float(max(cpus, 1))}
    if spec.use_gpus:
        gpus = largest if ray_spec.simulated_gpus_per_node is None else ray_spec.simulated_gpus_per_node
        total[spec.accelerator] = float(gpus)
    total.update({name: _whole(amount * max(bundles, 1)) for name, amount in spec.resources.items()})
    labels = _labels(spec)
    number = ray_spec.simulated_nodes or _nodes_needed(counts, bundles, spec)
    per_domain = spec.segment_size
    if per_domain is not None and counts:
        per_domain = max(1, math.ceil(number * per_domain / len(counts)))
    nodes = []
    if spec.use_head == "never":
        nodes.append(PhysicalNode("simulated-head", "127.0.0.1", {"CPU": 0.0}, {"CPU": 0.0}, hostname="simulated", is_head=True))
    for index in range(number):
        address = f"127.0.{(len(nodes) + 1) // 250}.{(len(nodes) + 1) % 250}"
        # Ray gives the first node this machine's own address, so the order is said by a label.
        place = {TOPO_RANK_LABEL: str(index)}
        domain = {DOMAIN_LABEL: f"simulated-{index // per_domain}"} if per_domain is not None else {}
        is_head = index == 0 and spec.use_head != "never"
        name = f"simulated-{index}"
        nodes.append(PhysicalNode(name, address, total, total, hostname="simulated", labels={**labels, **place, **domain}, is_head=is_head))
    return Inventory(tuple(nodes), source="a simulated cluster, made up to fit", simulated=True)


def simulated_inventory_for_all(specs: Sequence[ClusterSpec], ray_spec: RaySpec, *, cpus: int = 1) -> Inventory:
    """The nodes that a simulated Ray starts for several clusters that run at once: those of each, one after the other.

    ``ray.simulated_nodes`` says their number in all; each is then as large as the largest one needed. The other two sizes
    of the simulation mean every node.

    Args:
        specs: All clusters.
        ray_spec: The simulated sizes.
        cpus: This machine's CPUs, for a cluster whose number of bundles is open.

    Returns:
        Nodes with nothing held, the first of them the head.
    """
    sizes = attrs.evolve(ray_spec, simulated_nodes=None)
    wanted = [simulated_inventory(resolve_local(spec, cpus), sizes).nodes for spec in specs]
    nodes = [node for some in wanted for node in some if any(node.total.values())]
    if ray_spec.simulated_nodes is not None:
        names = dict.fromkeys(name for node in nodes for name in node.total)
        total = {name: math.ceil(max(node.total.get(name, 0.0) for node in nodes)) * 1.0 for name in names}
        labels = {key: value for node in nodes for key, value in node.labels.items()}
        nodes = [PhysicalNode("", "", total, total, hostname="simulated", labels=labels)] * ray_spec.simulated_nodes
    headless = any(spec.use_head == "never" for spec in specs)
    if headless:
        nodes.insert(0, PhysicalNode("", "", {"CPU": 0.0}, {"CPU": 0.0}, hostname="simulated"))
    return Inventory(
        tuple(_numbered(node, index) for index, node in enumerate(nodes)), source="a simulated cluster, made up to fit", simulated=True
    )


def _whole(amount: float) -> float:
    """Rounded up, for Ray starts no node with a part of a resource; not for what only binary fractions add."""
    return float(math.ceil(round(amount, 4)))


def inventory_of_file(found: Inventory) -> Inventory:
    """What a simulated Ray starts for the machines of a file: the living ones, each with what is free on it.

    Args:
        found: The machines as the file has them.

    Returns:
        Nodes in topology order with nothing held, each with its names in the file as labels; ``notes`` says what is not started.

    Raises:
        ConfigError: No machine is alive, a topology rank stands twice, or an amount is not whole.
    """
    living = [node for node in sort_nodes(found.nodes) if node.state == "alive"]
    if not living:
        raise ConfigError(f"inventory {found.source}: must have a living machine to be simulated, got {len(found.nodes)} that are not")
    problems = [
        f"inventory {found.source}: {node.address}: {name} must be a whole number to be simulated (Ray starts no other), got {amount:g}"
        for node in living
        for name, amount in node.total.items()
        if amount != int(amount)
    ]
    if problems:
        raise ConfigError(problems=problems)
    return Inventory(
        tuple(_played(node) for node in living),
        source=f"a simulated cluster ({found.source})",
        simulated=True,
        notes=tuple(_not_started(found, living)),
    )


def _played(node: PhysicalNode) -> PhysicalNode:
    """A part of a GPU is free beside a worker that holds the other part; Ray starts no node with that."""
    free = {name: float(int(amount + 1e-6)) for name, amount in node.free.items()}
    return attrs.evolve(node, total=free, free=free, labels={**without_file_labels(node.labels), **names_in_file(node)}, holders=())


def _not_started(found: Inventory, living: Sequence[PhysicalNode]) -> Iterator[str]:
    held = {}
    for node in living:
        started = _played(node).total
        short = [f"{amount - started[name]:g} of {amount:g} {name}" for name, amount in node.total.items() if started[name] < amount]
        if short:
            held[node.address] = f"{' and '.join(short)} on {node.address}"
    if held:
        yield f"held in {found.source} and so not started: {_first_few(list(held.values()))}"
    gone = [f"{node.address} ({node.state})" for node in sorted(found.nodes, key=node_key) if node.state != "alive"]
    if gone:
        yield f"not alive in {found.source} and so not started: {_first_few(gone)}"


def _first_few(texts: Sequence[str], *, most: int = 8) -> str:
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most} more" if len(texts) > most else "")


def _numbered(node: PhysicalNode, index: int) -> PhysicalNode:
    high, low = divmod(index, 250)
    # Ray gives the first node this machine's own address, so the order is said by a label.
    labels = {**node.labels, TOPO_RANK_LABEL: str(index)}
    return attrs.evolve(node, node_id=f"simulated-{index}", address=f"127.0.{high}.{low + 1}", labels=labels, is_head=index == 0)


def _nodes_needed(counts: Sequence[int], bundles: int, spec: ClusterSpec) -> int:
    if not counts:
        return 1
    apart = spec.strategy in ("SPREAD", "STRICT_SPREAD") or spec.segment_size is not None
    fewest = len(counts) if apart else 1
    most = max(len(counts), math.ceil(sum(counts) / bundles) if bundles else 1)
    strategy = "SPREAD" if spec.strategy == "STRICT_SPREAD" else spec.strategy
    number = max(fewest, min(most, math.ceil(sum(counts) / bundles) if bundles else 1))
    while number < most and pack(counts, [bundles] * number, strategy=strategy).places is None:
        number += 1
    return number


def _labels(spec: ClusterSpec) -> dict[str, str]:
    """Labels that fulfil the selector; what must not be is left out."""
    labels = {}
    for key, value in spec.label_selector.items():
        wanted, values = parse_selector(value, where=f"cluster.label_selector.{key}")
        if wanted:
            labels[key] = min(values)
    return labels
