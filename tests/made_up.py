"""Made-up layouts and workers for the tests of drawings, checks and reports: plain values, written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rl_cluster.inventory import PhysicalNode
from rl_cluster.numa.report import BindingReport
from rl_cluster.planning.layout import Layout, PlacedBundle
from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import ClusterSpec


def make_node(number: int, gpus: int = 8) -> PhysicalNode:
    """The machine 10.0.0.<number + 1>; its node id begins with its number."""
    resources = {"GPU": float(gpus), "CPU": 32.0}
    return PhysicalNode(f"{number:02x}" * 28, f"10.0.0.{number + 1}", resources, resources, hostname=f"host{number}")


def make_layout(
    counts: Sequence[int], *, on: Sequence[Sequence[int]] | None = None, machines: int | None = None, simulated: bool = False, **spec: Any
) -> Layout:
    """A layout of `counts` bundles per logical node.

    Args:
        counts: Bundles of each logical node.
        on: For each logical node the machine of each of its bundles; default: logical node i wholly on machine i.
        machines: How many there are; default: as many as are used.
        simulated: What the layout says.
        spec: Further keys of the ClusterSpec.
    """
    on = on if on is not None else [[node_idx] * count for node_idx, count in enumerate(counts)]
    used = max((machine for part in on for machine in part), default=-1) + 1
    nodes = tuple(make_node(number) for number in range(machines if machines is not None else used))
    bundles = tuple(
        PlacedBundle(node_idx, bundle_idx, nodes[machine].node_id)
        for node_idx, part in enumerate(on)
        for bundle_idx, machine in enumerate(part)
    )
    return Layout(ClusterSpec(bundle_ct_per_node_list=list(counts), **spec), bundles, nodes, simulated=simulated)


def make_binding(gpu: int, *, cpu_status: str = "bound", mem_status: str = "bound") -> BindingReport:
    """The binding of a worker on a machine with two NUMA nodes of 16 CPUs, GPUs 0-3 on the first one."""
    numa = 0 if gpu < 4 else 1
    cpus = f"{16 * numa}-{16 * numa + 15}"
    return BindingReport(
        cpu_status,
        mem_status,
        source="sysfs",
        numa_nodes=(numa,),
        cpus_wanted=cpus,
        cpus_held=cpus if cpu_status == "bound" else "0-31",
        policy_wanted=f"bind:{numa}",
        policy_held=f"bind:{numa}" if mem_status == "bound" else "default",
    )


def make_workers(layout: Layout, *, name: str = "worker", python: str = "/env/bin/python", binding: bool = True) -> list[WorkerRecord]:
    """One worker per bundle, ranked and bound as they should be; GPU ids count up on each machine."""
    addresses = {node.node_id: (node.address, node.hostname) for node in layout.nodes}
    sizes = Counter((bundle.node_idx, bundle.node_id) for bundle in layout.bundles)
    parts = list(sizes)
    local: Counter[tuple[int, str]] = Counter()
    taken: Counter[str] = Counter()
    workers = []
    for rank, bundle in enumerate(layout.bundles):
        part = (bundle.node_idx, bundle.node_id)
        gpu = taken[bundle.node_id]
        address, hostname = addresses[bundle.node_id]
        workers.append(
            WorkerRecord(
                rank=rank,
                local_rank=local[part],
                local_world_size=sizes[part],
                node_rank=parts.index(part),
                node_idx=bundle.node_idx,
                bundle_idx=bundle.bundle_idx,
                node_id=bundle.node_id,
                address=address,
                hostname=hostname,
                gpu_ids=(str(gpu),) if layout.spec.use_gpus else (),
                pid=1000 + rank,
                python=python,
                name=f"{name}-{bundle.node_idx}-{bundle.bundle_idx}",
                binding=make_binding(gpu) if binding else None,
            )
        )
        local[part] += 1
        taken[bundle.node_id] += 1
    return workers
