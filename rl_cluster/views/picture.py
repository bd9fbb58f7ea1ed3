"""The frozen model of a drawing, built from a layout, worker records or foreign worker groups; the text grid and the SVG draw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from rl_cluster.planning.layout import Layout
from rl_cluster.planning.naming import count_of, node_names
from rl_cluster.planning.topology import gpu_domain
from rl_cluster.process.records import WorkerRecord

UNUSED_NAMED = 4  # unused machines that a note names one by one
DOMAIN_WIDTH = 20  # columns of the name of an NVLink domain; some are UUIDs


class WorkerGroupLike(Protocol):
    """What a foreign worker group must have to be drawn."""

    @property
    def name_prefix(self) -> str: ...

    @property
    def world_size(self) -> int: ...

    @property
    def worker_metadata(self) -> Sequence[Mapping[str, Any]]: ...


@frozen
class CellWorker:
    """One worker in a cell."""

    group: str
    rank: int
    status: str = ""  # of its CPU binding; "" where nothing is known
    mark: str = ""  # "!" not wholly bound, "~" skipped while others are bound


@frozen
class GridCell:
    """One bundle."""

    bundle_idx: int  # within the logical node
    gpu: str = ""  # ids of its accelerators as Ray gave them, "" where unknown or none
    numa: str = ""  # NUMA nodes, e.g. "0"
    cpus: str = ""  # cpulist that the worker holds
    workers: tuple[CellWorker, ...] = ()


@frozen
class GridNode:
    """The part of one logical node that lies on one machine: usually all of it."""

    node_idx: int
    title: str  # "node 0", "policy 0"
    machine: str  # "" where unknown
    cells: tuple[GridCell, ...] = ()
    part: int = 1  # 1-based
    parts: int = 1  # more than 1: the logical node is split over machines
    shared: bool = False  # other logical nodes lie on the same machine
    domain: str = ""  # NVLink domain of the machine, "" where unknown

    @property
    def heading(self) -> str:
        """``node 0``, or ``node 0 (1/2)`` for a part."""
        return f"{self.title} ({self.part}/{self.parts})" if self.parts > 1 else self.title

    @property
    def place(self) -> str:
        """The machine, with a star where other logical nodes lie on it too, and its NVLink domain in brackets."""
        domain = self.domain if len(self.domain) <= DOMAIN_WIDTH else f"{self.domain[: DOMAIN_WIDTH - 1]}…"
        return self.machine + ("*" if self.shared else "") + (f" [{domain}]" if domain else "")


@frozen
class GridGroup:
    """A worker group; groups are drawn in this order, top to bottom."""

    name: str
    size: int


@frozen
class Picture:
    """A whole drawing."""

    title: str
    nodes: tuple[GridNode, ...] = ()
    groups: tuple[GridGroup, ...] = ()
    accelerator: str = "GPU"
    simulated: bool = False
    notes: tuple[str, ...] = ()  # sentences below the drawing

    @property
    def marks(self) -> set[str]:
        """The marks that workers carry somewhere in the drawing."""
        return {worker.mark for node in self.nodes for cell in node.cells for worker in cell.workers if worker.mark}

    @property
    def sentences(self) -> list[str]:
        """What stands below the drawing: the signs at the nodes that occur in it, then the notes."""
        signs = [
            ("(1/2): part 1 of 2 of a logical node that lies on several machines", any(node.parts > 1 for node in self.nodes)),
            ("*: machine of several logical nodes", any(node.shared for node in self.nodes)),
            ("[...]: NVLink domain of a machine", any(node.domain for node in self.nodes)),
        ]
        return [text for text, shown in signs if shown] + list(self.notes)


def build_picture(layout: Layout, groups: Mapping[str, Sequence[WorkerRecord]] | None = None, *, title: str | None = None) -> Picture:
    """Builds the drawing of one cluster.

    Args:
        layout: The planned layout; without groups, the drawing shows the plan.
        groups: The running workers by the name of their group. A bundle is drawn on the machine that its worker reported,
            which is the planned one unless something went wrong.
        title: The heading; default: the size of the cluster in words.

    Returns:
        The drawing.
    """
    return build_role_picture({layout.spec.name: layout}, {layout.spec.name: groups or {}}, title=title or _title([layout]))


def build_role_picture(
    layouts: Mapping[str, Layout], groups: Mapping[str, Mapping[str, Sequence[WorkerRecord]]] | None = None, *, title: str | None = None
) -> Picture:
    """Builds one drawing of several clusters that were planned on the same machines.

    Args:
        layouts: The layouts by the name of their cluster.
        groups: For each cluster, its running workers by the name of their group. Names that occur in several clusters are drawn as
            ``cluster.group``.
        title: The heading; default: the size of all in words.
    """
    groups = _qualified(groups or {})
    machines = _machine_names(layouts.values(), [record for named in groups.values() for records in named.values() for record in records])
    statuses = [
        record.binding.cpu_status for named in groups.values() for records in named.values() for record in records if record.binding
    ]
    some_bound = "bound" in statuses
    placed: list[tuple[str, int, dict[str, list[GridCell]]]] = []  # cluster, logical node, cells by machine
    for cluster, layout in layouts.items():
        by_bundle: dict[tuple[int, int], list[tuple[str, WorkerRecord]]] = {}
        for group, records in groups.get(cluster, {}).items():
            for record in records:
                by_bundle.setdefault((record.node_idx, record.bundle_idx), []).append((group, record))
        parts: list[dict[str, list[GridCell]]] = [{} for _ in layout.spec.bundle_counts]
        for bundle in layout.bundles:
            here = by_bundle.get((bundle.node_idx, bundle.bundle_idx), [])
            node_id = here[0][1].node_id if here else bundle.node_id
            parts[bundle.node_idx].setdefault(node_id, []).append(_cell(bundle.bundle_idx, here, some_bound))
        placed += [(cluster, node_idx, part) for node_idx, part in enumerate(parts)]
    domains = {node.node_id: gpu_domain(node) or "" for layout in layouts.values() for node in layout.nodes}
    users = Counter(node_id for _, _, part in placed for node_id in part)
    prefix = len(layouts) > 1
    nodes: list[GridNode] = []
    for cluster, node_idx, part in placed:
        name = f"{cluster} {node_idx}" if prefix else f"node {node_idx}"
        if not part:
            nodes.append(GridNode(node_idx, name, ""))
        for number, (node_id, cells) in enumerate(part.items(), start=1):
            shared, domain = users[node_id] > 1, domains.get(node_id, "")
            nodes.append(GridNode(node_idx, name, machines[node_id], tuple(cells), number, len(part), shared=shared, domain=domain))
    used = set(users)
    notes = [note for layout in layouts.values() for note in layout.warnings]
    notes += _binding_notes(statuses) + _unused_note(list(layouts.values()), used, machines)
    return Picture(
        title=title or _title(list(layouts.values())),
        nodes=tuple(nodes),
        groups=tuple(GridGroup(group, len(records)) for named in groups.values() for group, records in named.items()),
        accelerator=_accelerator(list(layouts.values())),
        simulated=any(layout.simulated for layout in layouts.values()),
        notes=tuple(dict.fromkeys(notes)),
    )


def build_group_picture(
    bundle_counts: Sequence[int], worker_groups: Sequence[WorkerGroupLike] = (), *, title: str | None = None, simulated: bool = False
) -> Picture:
    """Builds the drawing of foreign worker groups, about which only ``worker_metadata`` is known.

    Args:
        bundle_counts: Bundles of each logical node, in order; 0 allowed.
        worker_groups: Anything with ``name_prefix``, ``world_size`` and ``worker_metadata``; each worker's rank is its place in that list,
            its cell is ``bundle_idx`` where the metadata has it, else ``local_rank``.
        title: The heading; default: the size of the cluster in words.
        simulated: Whether nodes and GPUs are made up.
    """
    names = group_names(worker_groups)
    cells: dict[tuple[int, int], list[CellWorker]] = {}
    for name, group in zip(names, worker_groups, strict=True):
        for rank, metadata in enumerate(group.worker_metadata):
            cells.setdefault((metadata["node_idx"], cell_of(metadata)), []).append(CellWorker(name, rank))
    nodes = tuple(
        GridNode(
            node_idx,
            f"node {node_idx}",
            "",
            tuple(GridCell(index, workers=tuple(cells.get((node_idx, index), ()))) for index in range(count)),
        )
        for node_idx, count in enumerate(bundle_counts)
    )
    groups = tuple(GridGroup(name, group.world_size) for name, group in zip(names, worker_groups, strict=True))
    total = sum(bundle_counts)
    heading = f"{count_of(len(bundle_counts), 'logical node')}, {count_of(total, 'bundle')}"
    return Picture(title or heading, nodes, groups, simulated=simulated)


def group_names(worker_groups: Sequence[WorkerGroupLike]) -> list[str]:
    """The names of the groups, made distinct: a drawing with two rows of one name can't be read."""
    names: list[str] = []
    for index, group in enumerate(worker_groups):
        name = getattr(group, "name_prefix", "") or f"group {index}"
        names.append(f"{name} #{index}" if name in names else name)
    return names


def cell_of(metadata: Mapping[str, Any]) -> int:
    """The bundle within its logical node that a worker's metadata stands for.

    ``local_rank`` counts the workers on one machine, so in a logical node that is split over machines only ``bundle_idx`` tells them apart.
    """
    return int(metadata["bundle_idx"] if metadata.get("bundle_idx") is not None else metadata["local_rank"])


def _qualified(groups: Mapping[str, Mapping[str, Sequence[WorkerRecord]]]) -> dict[str, dict[str, Sequence[WorkerRecord]]]:
    times = Counter(group for named in groups.values() for group in named)
    return {
        cluster: {f"{cluster}.{group}" if times[group] > 1 else group: records for group, records in named.items()}
        for cluster, named in groups.items()
    }


def _cell(bundle_idx: int, here: Sequence[tuple[str, WorkerRecord]], some_bound: bool) -> GridCell:
    bindings = [record.binding for _, record in here if record.binding is not None]
    return GridCell(
        bundle_idx=bundle_idx,
        gpu=_distinct(",".join(record.gpu_ids) for _, record in here),
        numa=_distinct(",".join(map(str, binding.numa_nodes)) for binding in bindings),
        cpus=_distinct(binding.cpus_held for binding in bindings),
        workers=tuple(CellWorker(group, record.rank, *_status(record, some_bound)) for group, record in here),
    )


def _status(record: WorkerRecord, some_bound: bool) -> tuple[str, str]:
    if record.binding is None:
        return "", ""
    status = record.binding.cpu_status
    if status == "bound":
        return status, ""
    return status, ("~" if some_bound else "") if status.startswith("skipped") else "!"


def _distinct(texts: Any) -> str:
    return " / ".join(dict.fromkeys(text for text in texts if text))


def _machine_names(layouts: Any, records: Sequence[WorkerRecord]) -> dict[str, str]:
    """What the drawing calls each machine, by node id."""
    names = {record.node_id: record.address or record.hostname for record in records}
    names.update({node.node_id: node.address or node.hostname for layout in layouts for node in layout.nodes})
    names.update({b.node_id: "" for layout in layouts for b in layout.bundles if b.node_id not in names})
    return node_names(names)


def _accelerator(layouts: Sequence[Layout]) -> str:
    return next((layout.spec.accelerator for layout in layouts if layout.spec.use_gpus), "")


def _title(layouts: Sequence[Layout]) -> str:
    nodes = sum(len(layout.spec.bundle_counts) for layout in layouts)
    bundles = sum(layout.spec.world_size for layout in layouts)
    machines = len({bundle.node_id for layout in layouts for bundle in layout.bundles})
    noun = _accelerator(layouts) or "CPU bundle"
    strategies = ", ".join(dict.fromkeys(layout.spec.strategy for layout in layouts))
    names = [layout.spec.name for layout in layouts if layout.spec.name]
    head = f"{', '.join(names)}: " if names else ""
    return f"{head}{count_of(nodes, 'logical node')}, {count_of(bundles, noun)} on {count_of(machines, 'machine')}, {strategies}"


def _binding_notes(statuses: Sequence[str]) -> list[str]:
    if not statuses:
        return []
    return ["CPU binding: " + ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common())]


def _unused_note(layouts: Sequence[Layout], used: set[str], machines: Mapping[str, str]) -> list[str]:
    living = [node.node_id for layout in layouts for node in layout.nodes if node.state != "dead"]
    unused = list(dict.fromkeys(machines[node_id] for node_id in living if node_id not in used))
    if not unused:
        return []
    named = ", ".join(unused[:UNUSED_NAMED]) + (f" and {len(unused) - UNUSED_NAMED} more" if len(unused) > UNUSED_NAMED else "")
    return [f"not used: {count_of(len(unused), 'machine')} ({named})"]
