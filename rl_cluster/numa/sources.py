"""The topology sources: each says which CPUs and NUMA nodes are near a GPU, or why it can't say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from rl_cluster.numa import affinity_file, gpus, pci
from rl_cluster.numa.gpus import Gpu, Unidentified
from rl_cluster.numa.system import NumaSystem, snapshot_system
from rl_cluster.numa.topo import parse_topo

if TYPE_CHECKING:
    from rl_cluster.numa.nvml import Nvml, NvmlGpu


@frozen
class Location:
    """Where a GPU is, by one source."""

    source: str
    cpus: frozenset[int]  # near CPUs; empty where the node has none
    nodes: frozenset[int]  # host nodes of those CPUs; or the GPU's node, where it has no CPUs
    simulated: bool = False


class Machine:
    """This machine as the sources see it. Everything is read on first use and kept, so one object serves one question.

    Args:
        root: Folder that stands for ``/``.
        environ: Environment variables, for CUDA_DEVICE_ORDER and NRL_GPU_CPU_AFFINITY_FILE.
        affinity_path: The affinity file; default: $NRL_GPU_CPU_AFFINITY_FILE, then `affinity_file.DEFAULT_PATH`.
    """

    def __init__(self, root: Path = Path("/"), *, environ: Mapping[str, str] | None = None, affinity_path: str | None = None) -> None:
        self.root = root
        self.environ = os.environ if environ is None else environ
        self.affinity_path = affinity_path or self.environ.get(affinity_file.ENV_NAME) or affinity_file.DEFAULT_PATH

    def close(self) -> None:
        """Give NVML back, where it was asked."""
        if "nvml" in self.__dict__:
            self.nvml.close()

    # --- what is read ---
    @cached_property
    def system(self) -> NumaSystem:
        """NUMA nodes."""
        return snapshot_system(self.root)

    @cached_property
    def affinity(self) -> affinity_file.AffinityFile:
        """The affinity file."""
        return affinity_file.read_affinity_file(self.affinity_path)

    @cached_property
    def nvml(self) -> Nvml:
        """NVML."""
        from rl_cluster.numa.nvml import Nvml  # here: a worker whose affinity file or sysfs answers needs none

        return Nvml()

    @cached_property
    def nvml_gpus(self) -> tuple[NvmlGpu, ...]:
        """NVML's GPUs."""
        return self.nvml.gpus()

    @cached_property
    def kernel_gpus(self) -> tuple[Gpu, ...]:
        """GPUs that /proc and sysfs name: cheap to read, but without the NVIDIA driver's /proc there are none."""
        return gpus.list_proc_gpus(self.root) or gpus.list_amd_gpus(self.root)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs of this machine: by /proc and sysfs, else NVML, else nvidia-smi."""
        return self.kernel_gpus or gpus.list_nvml_gpus(self.nvml) or self._smi_gpus[0]

    @cached_property
    def _smi_gpus(self) -> tuple[tuple[Gpu, ...], str]:
        return gpus.list_smi_gpus()

    @cached_property
    def topo(self) -> tuple[Mapping[int, int | None], str]:
        """nvidia-smi's table, GPU index -> node, and why there is none."""
        from rl_cluster.numa.commands import run_command

        text, refusal = run_command(["nvidia-smi", "topo", "-m"])
        return ({} if text is None else parse_topo(text, cpu_nodes=self.system.cpu_nodes() or None)), refusal

    # --- which GPU ---
    def identify(self, gpu_id: str | int, *, cheap: bool = False) -> Gpu | Unidentified:
        """The GPU that Ray's id means.

        Args:
            gpu_id: Index (int or text), GPU or MIG UUID, or PCI address.
            cheap: Stay with /proc and sysfs; an index that they don't list comes back without address and UUID.
        """
        text = str(gpu_id).strip()
        table = self.kernel_gpus if cheap else self.gpus
        found = gpus.match_gpu(text, table)
        if found is not None:
            return found
        if text.isdecimal():
            if table:
                return Unidentified("unknown-gpu", f"GPU {text} is none of the {len(table)} GPUs that are listed here")
            return Gpu(index=int(text))
        if not gpus.is_uuid(text):
            return Unidentified("unknown-gpu", f"GPU id must be an index, UUID or PCI address, got {text!r}")
        if text.upper().startswith("MIG-") or not self.kernel_gpus:
            parent = self.nvml.parent_of(text)
            if parent is not None:
                by_address = gpus.match_gpu(parent.bus_id or "", self.gpus)
                return by_address or Gpu(index=parent.index, bus_id=parent.bus_id, uuid=parent.uuid, model=parent.model)
        index = gpus.smi_parent_index(text)
        if index is not None:
            return gpus.match_gpu(str(index), self.gpus) or Gpu(index=index)
        return Unidentified("unresolved-uuid", f"{text} is known neither to /proc, NVML nor nvidia-smi")

    # --- where it is ---
    def locate(self, gpu: Gpu, source: str) -> Location | Unidentified:
        """Ask one source (a name of `SOURCES`)."""
        return SOURCES[source](self, gpu)

    def claims(self, source: str) -> Mapping[int, frozenset[int]]:
        """Near CPUs of every GPU that a source knows, those that this process can't see included, by a key of that source.

        The key is the GPU's index, for sysfs its PCI address as a number (an index only counts what this process sees).
        """
        if source == "affinity_file":
            return self.affinity.cpus_by_gpu
        if source == "sysfs":
            seen = {gpu.bus_id for gpu in self.gpus if gpu.bus_id}
            addresses = sorted(seen | {gpu.bus_id for gpu in pci.snapshot_pci_gpus(self.root)}, key=pci.bus_id_order)
            located = {address_key(address): ask_sysfs(self, Gpu(index=-1, bus_id=address)) for address in addresses}
        elif source == "nvidia_smi":
            located = {index: ask_nvidia_smi(self, Gpu(index=index)) for index in self.topo[0]}
        elif source == "nvml":
            located = {gpu.index: _nvml_location(self, gpu) for gpu in self.nvml_gpus}
        else:
            located = {gpu.index: only_node(self) for gpu in self.gpus}
        return {key: place.cpus for key, place in located.items() if isinstance(place, Location)}


def address_key(bus_id: str) -> int:
    """A PCI address as one number, in the order of addresses."""
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


def find_gpu(machine: Machine, gpu_id: str | int, source: str = "auto") -> tuple[Gpu | None, Location | Unidentified, tuple[str, ...]]:
    """Identify a GPU and ask the sources for it until one answers.

    Args:
        machine: This machine.
        gpu_id: As Ray assigned it.
        source: ``auto`` for all in order, or the name of one.

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
        if doubt is not None and name != "affinity_file":
            break
        if name == "sysfs" and gpu.bus_id is None:
            better = machine.identify(gpu.index)
            if isinstance(better, Unidentified):
                doubt = better
                break
            gpu = better
        place = machine.locate(gpu, name)
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
    last: Location | Unidentified = only_node(machine) if source == "auto" else Unidentified("unknown-node", "")
    if isinstance(last, Unidentified) and last.text:
        notes.append(last.text)
    return gpu, last, tuple(notes)


def merge_locations(places: Sequence[Location]) -> Location:
    """Where a worker with several GPUs is: near all of them."""
    return evolve(
        places[0],
        source="+".join(dict.fromkeys(place.source for place in places)),
        cpus=frozenset().union(*(place.cpus for place in places)),
        nodes=frozenset().union(*(place.nodes for place in places)),
        simulated=any(place.simulated for place in places),
    )
