"""The topology sources: each says which CPUs and NUMA nodes are near a GPU, or why it can't say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from rl_cluster.numa import pci
from rl_cluster.numa.gpus import Gpu, Unidentified
from rl_cluster.numa.machine import Machine

if TYPE_CHECKING:
    from rl_cluster.numa.nvml import NvmlGpu


@frozen
class Location:
    """Where a GPU is, by one source."""

    source: str
    cpus: frozenset[int]  # near CPUs; empty where the node has none
    nodes: frozenset[int]  # host nodes of those CPUs; or the GPU's node, where it has no CPUs
    simulated: bool = False


def claims(machine: Machine, source: str) -> Mapping[int, frozenset[int]]:
    """Near CPUs of every GPU that a source knows, by `claim_key`; where sysfs can tell, those that this process can't see included."""
    if source == "affinity_file":
        return machine.affinity.cpus_by_gpu
    if source == "nvidia_smi":
        asked = {index: ask_nvidia_smi(machine, Gpu(index=index)) for index in machine.topo[0]}
    elif source == "nvml":
        asked = {gpu.index: _nvml_location(machine, gpu) for gpu in machine.nvml_gpus}
    elif source == "sysfs":
        asked = {_address_key(bus_id): ask_sysfs(machine, Gpu(index=-1, bus_id=bus_id)) for bus_id in machine.addresses}
    else:
        keys = [_address_key(bus_id) for bus_id in machine.addresses] or [gpu.index for gpu in machine.gpus]
        asked = {key: only_node(machine) for key in keys}
    return {key: place.cpus for key, place in asked.items() if isinstance(place, Location)}


def count_hidden(machine: Machine, source: str) -> int:
    """GPUs on the PCI bus whose claims a source can't tell."""
    return max(0, len(machine.addresses) - len(claims(machine, source))) if source in ("nvml", "nvidia_smi") else 0


def claim_key(gpu: Gpu, source: str) -> int:
    """Names a GPU among the claims of a source: its index, or its PCI address as a number where every GPU of the bus counts."""
    by_address = source in ("sysfs", "only_node") and gpu.bus_id is not None
    return _address_key(gpu.bus_id) if by_address and gpu.bus_id is not None else gpu.index


def _address_key(bus_id: str) -> int:
    domain, bus, device, function = pci.bus_id_order(bus_id)
    return ((domain << 8 | bus) << 5 | device) << 3 | function


def ask_affinity_file(machine: Machine, gpu: Gpu) -> Location | Unidentified:
    """The file written at node start-up."""
    file = machine.affinity
    if file.refusal is not None:
        return Unidentified("unknown-node", f"affinity_file: {file.refusal}")
    cpus = file.cpus_by_gpu.get(gpu.index)
    if cpus is None:
        return Unidentified("unknown-node", f"affinity_file: {machine.affinity_path} has no line for GPU {gpu.index}")
    return Location(source="affinity_file", cpus=cpus, nodes=machine.system.nodes_of(cpus), simulated=file.simulated)


def ask_sysfs(machine: Machine, gpu: Gpu) -> Location | Unidentified:
    """The kernel's own word: ``numa_node`` of the PCI device."""
    if gpu.bus_id is None:
        return Unidentified("unknown-node", f"sysfs: the PCI address of GPU {gpu.index} is not known")
    node = pci.numa_node_of(gpu.bus_id, root=machine.root)
    if node is None:
        return Unidentified("unknown-node", f"sysfs: no device {gpu.bus_id}")
    if node < 0:
        return Unidentified("unknown-node", f"sysfs: numa_node of {gpu.bus_id} is {node}, the firmware does not say")
    return _at_node(machine, "sysfs", node)


def ask_nvml(machine: Machine, gpu: Gpu) -> Location | Unidentified:
    """The driver's word: memory affinity, and CPU affinity where that names no host node."""
    if machine.nvml.refusal is not None:
        return Unidentified("unknown-node", machine.nvml.refusal)
    for candidate in machine.nvml_gpus:
        if candidate.bus_id == gpu.bus_id if gpu.bus_id is not None else candidate.index == gpu.index:
            return _nvml_location(machine, candidate)
    return Unidentified("unknown-node", f"nvml: no GPU {gpu.bus_id or gpu.index}")


def _nvml_location(machine: Machine, gpu: NvmlGpu) -> Location | Unidentified:
    hosts = machine.system.cpu_nodes()
    nodes = (gpu.nodes & hosts) or machine.system.nodes_of(gpu.cpus)
    if not nodes:
        return Unidentified("unknown-node", f"nvml: no host node near GPU {gpu.index}")
    if len(nodes) > 1 and nodes == hosts:
        return Unidentified("unknown-node", f"nvml: names every node for GPU {gpu.index}, which tells nothing")
    return Location(source="nvml", cpus=machine.system.cpus_of(nodes), nodes=nodes)


def ask_nvidia_smi(machine: Machine, gpu: Gpu) -> Location | Unidentified:
    """``nvidia-smi topo -m``."""
    nodes, refusal = machine.topo
    if refusal:
        return Unidentified("unknown-node", f"nvidia_smi: {refusal}")
    node = nodes.get(gpu.index)
    if node is None:
        return Unidentified("unknown-node", f"nvidia_smi: its table names no single host node for GPU {gpu.index}")
    return _at_node(machine, "nvidia_smi", node)


def _at_node(machine: Machine, source: str, node: int) -> Location | Unidentified:
    if not machine.system.nodes:
        return Unidentified("no-numa", f"{source}: says node {node}, but the kernel shows no NUMA nodes")
    if node not in {each.id for each in machine.system.nodes}:
        return Unidentified("unknown-node", f"{source}: says node {node}, which this machine does not have")
    return Location(source=source, cpus=machine.system.cpus_of([node]), nodes=frozenset({node}))


def only_node(machine: Machine) -> Location | Unidentified:
    """The machine's one node with CPUs: then every GPU is on it, whatever the sources know."""
    hosts = machine.system.cpu_nodes()
    if not machine.system.nodes:
        return Unidentified("no-numa", "the kernel shows no NUMA nodes")
    if len(hosts) != 1:
        return Unidentified("unknown-node", f"the machine has {len(hosts)} nodes with CPUs")
    return Location(source="only_node", cpus=machine.system.cpus_of(hosts), nodes=hosts)


SOURCES: Mapping[str, Callable[[Machine, Gpu], Location | Unidentified]] = {
    "affinity_file": ask_affinity_file,
    "sysfs": ask_sysfs,
    "nvml": ask_nvml,
    "nvidia_smi": ask_nvidia_smi,
}
"""By name, in the order in which ``numa.source=auto`` asks them."""


def find_gpu(
    machine: Machine, gpu_id: str | int, source: str = "auto", *, without: Collection[str] = ()
) -> tuple[Gpu | None, Location | Unidentified, tuple[str, ...]]:
    """Identify a GPU and ask the sources for it until one answers.

    Args:
        machine: This machine.
        gpu_id: As Ray assigned it.
        source: ``auto`` for all in order, or the name of one.
        without: Sources to leave out.

    Returns:
        The GPU (None where the id means none), the answer or the reason that stands for the lack of one, and why the earlier
        sources did not answer.
    """
    notes: list[str] = []
    doubt: Unidentified | None = None
    fallback: Location | None = None
    gpu = machine.identify(gpu_id, cheap=True) if str(gpu_id).strip().isdecimal() else machine.identify(gpu_id)
    if isinstance(gpu, Unidentified):
        if not str(gpu_id).strip().isdecimal():
            return None, gpu, (gpu.text,)
        doubt, gpu = gpu, Gpu(index=int(gpu_id))  # the affinity file may still know the index of a GPU that is hidden here
    for name in SOURCES if source == "auto" else (source,):
        if name in without:
            continue
        if doubt is not None and name != "affinity_file":
            break
        if name == "sysfs" and gpu.bus_id is None:
            better = machine.identify(gpu.index)
            if isinstance(better, Unidentified):
                doubt = better
                break
            gpu = better
        place = SOURCES[name](machine, gpu)
        if isinstance(place, Location) and place.cpus:
            return gpu, place, tuple(notes)
        if isinstance(place, Location):
            fallback = fallback or place
            notes.append(f"{name}: node {min(place.nodes)} has no CPUs")
        else:
            notes.append(place.text)
    if doubt is not None:
        return None, doubt, (*notes, doubt.text)
    if fallback is not None:
        return gpu, fallback, tuple(notes)
    last: Location | Unidentified = only_node(machine)
    if source not in ("auto", "sysfs") or (isinstance(last, Location) and gpu.bus_id is None):  # that it exists at all is not known
        last = Unidentified("unknown-node", "")
    if isinstance(last, Unidentified) and last.text:
        notes.append(last.text)
    return gpu, last, tuple(notes)


def merge_locations(places: Sequence[Location]) -> Location:
    """Where a worker with several GPUs is: near all of them."""
    if len(places) == 1:
        return places[0]
    return evolve(
        places[0],
        source="+".join(dict.fromkeys(place.source for place in places)),
        cpus=frozenset().union(*(place.cpus for place in places)),
        nodes=frozenset().union(*(place.nodes for place in places)),
        simulated=any(place.simulated for place in places),
    )
