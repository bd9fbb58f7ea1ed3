"""What the kernel says of the machine: NUMA nodes, their CPUs and memory, cores and sockets. Read from sysfs, never guessed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import Factory, frozen

from rl_cluster.numa.cpulist import parse_cpulist

_MAX_BYTES = 1 << 16  # sysfs gives a page at most


@frozen
class NumaNode:
    """One NUMA node of the machine."""

    id: int
    cpus: frozenset[int]  # online ones; empty for a node of GPU or CXL memory
    has_memory: bool
    distances: Mapping[int, int] = Factory(dict)  # to other nodes, 10 is local (ACPI SLIT)


@frozen
class NumaSystem:
    """The NUMA nodes that are online, by ascending id. Ids need not be contiguous (POWER9: 0, 8, 252-255)."""

    nodes: tuple[NumaNode, ...] = ()

    def cpu_nodes(self) -> frozenset[int]:
        """Nodes with CPUs."""
        return frozenset(node.id for node in self.nodes if node.cpus)

    def memory_nodes(self) -> frozenset[int]:
        """Nodes with memory, a GPU's own included."""
        return frozenset(node.id for node in self.nodes if node.has_memory)

    def cpus_of(self, nodes: Iterable[int]) -> frozenset[int]:
        """CPUs of the nodes."""
        wanted = set(nodes)
        return frozenset(cpu for node in self.nodes if node.id in wanted for cpu in node.cpus)

    def nodes_of(self, cpus: Iterable[int]) -> frozenset[int]:
        """Nodes that any of the CPUs lies on."""
        wanted = set(cpus)
        return frozenset(node.id for node in self.nodes if not wanted.isdisjoint(node.cpus))


def read_text(path: str | os.PathLike[str]) -> str | None:
    """A small file of sysfs or /proc without the white space around it, or None where it can't be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a third of the cost of open(), and a binding reads a dozen of them
    except OSError:
        return None
    try:
        return os.read(handle, _MAX_BYTES).decode("utf-8", errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(handle)


def read_ids(path: str | os.PathLike[str]) -> frozenset[int] | None:
    """A cpulist file, or None where it is missing or no cpulist."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return parse_cpulist(text)
    except ValueError:
        return None


def snapshot_system(root: Path = Path("/"), *, distances: bool = False) -> NumaSystem:
    """Read the NUMA nodes below ``root/sys/devices/system/node``: the kernel shows those that are online, with their online CPUs.

    Args:
        root: Folder that stands for ``/``.
        distances: Also read the table of distances (one more file per node).

    Returns:
        The nodes; none where the kernel has no NUMA support or hides it (gVisor).
    """
    base = f"{root}/sys/devices/system/node"
    try:
        found = sorted(int(name[4:]) for name in os.listdir(base) if name.startswith("node") and name[4:].isdigit())
    except OSError:
        return NumaSystem()
    with_memory = read_ids(f"{base}/has_memory")
    nodes = []
    for node in found:
        cpus = read_ids(f"{base}/node{node}/cpulist") or frozenset()
        has_memory = _has_memory(f"{base}/node{node}/meminfo") if with_memory is None else node in with_memory
        text = read_text(f"{base}/node{node}/distance") if distances else None
        nodes.append((node, cpus, has_memory, [] if text is None else [int(word) for word in text.split() if word.isdigit()]))
    ids = [node[0] for node in nodes]
    return NumaSystem(
        nodes=tuple(
            NumaNode(id=node, cpus=cpus, has_memory=memory, distances=dict(zip(ids, row, strict=True)) if len(row) == len(ids) else {})
            for node, cpus, memory, row in nodes
        )
    )


def _has_memory(meminfo: str) -> bool:
    match = re.search(r"MemTotal:\s*(\d+)", read_text(meminfo) or "")
    return match is None or int(match[1]) > 0  # unknown: the kernel will say at set_mempolicy


def snapshot_cores(cpus: Iterable[int], *, root: Path = Path("/")) -> tuple[frozenset[int], ...]:
    """The physical cores that the CPUs belong to, each as its hardware threads among ``cpus``, by ascending first CPU.

    A CPU whose topology files are missing counts as a core of its own.
    """
    left = set(cpus)
    wanted = frozenset(left)
    cores = []
    for cpu in sorted(wanted):
        if cpu not in left:
            continue
        base = f"{root}/sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = read_ids(f"{base}/core_cpus_list") or read_ids(f"{base}/thread_siblings_list") or frozenset()
        core = ((siblings & wanted) | {cpu}) & left
        left -= core
        cores.append(frozenset(core))
    return tuple(cores)


def snapshot_sockets(cpus: Iterable[int], *, root: Path = Path("/")) -> Mapping[int, int]:
    """The physical package id of each CPU; CPUs whose kernel does not say (-1 or no file) are left out."""
    sockets = {}
    for cpu in sorted(set(cpus)):
        text = read_text(f"{root}/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id")
        if text is not None and text.isdigit():
            sockets[cpu] = int(text)
    return sockets
