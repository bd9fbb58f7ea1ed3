"""Made-up machines: a sysfs tree below a folder, and a kernel that keeps masks and policies in memory."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path

from rl_cluster.numa.cpulist import format_cpulist, parse_cpulist
from rl_cluster.numa.kernel import LinuxKernel


def write(path: Path, text: str) -> None:
    """One file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def make_machine(
    root: Path,
    nodes: Mapping[int, str],
    *,
    memory: str | None = None,
    online: str | None = None,
    cores: Iterable[str] = (),
    sockets: Mapping[int, str] | None = None,
    gpus: Mapping[str, int] | None = None,
    visible: Iterable[str] | None = None,
    vendor: str = "0x10de",
) -> Path:
    """Write a sysfs tree.

    Args:
        root: Folder that stands for /.
        nodes: NUMA node -> cpulist.
        memory: Nodes with memory; default: all.
        online: Online CPUs; default: those of the nodes.
        cores: cpulists of hardware threads that share a core.
        sockets: Socket -> cpulist.
        gpus: PCI address -> numa_node.
        visible: PCI addresses of the GPUs that the driver lists in /proc, UUID GPU-<address>; default: all.
        vendor: PCI vendor of the GPUs.
    """
    base = root / "sys/devices/system/node"
    cpus = frozenset[int]().union(*(parse_cpulist(text) for text in nodes.values())) if nodes else frozenset()
    for node, cpulist in nodes.items():
        write(base / f"node{node}/cpulist", cpulist)
    if nodes:
        write(base / "online", format_cpulist(nodes))
        write(base / "has_memory", format_cpulist(nodes) if memory is None else memory)
    write(root / "sys/devices/system/cpu/online", format_cpulist(cpus) if online is None else online)
    write(root / "sys/devices/system/cpu/possible", format_cpulist(cpus))
    for core in cores:
        for cpu in parse_cpulist(core):
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", core)
    for socket, cpulist in (sockets or {}).items():
        for cpu in parse_cpulist(cpulist):
            write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", str(socket))
    for bus_id, node in (gpus or {}).items():
        device = root / "sys/bus/pci/devices" / bus_id
        write(device / "numa_node", str(node))
        write(device / "vendor", vendor)
        write(device / "class", "0x030200")
    for bus_id in (gpus or {}) if visible is None else visible:
        if vendor == "0x10de":
            write(root / f"proc/driver/nvidia/gpus/{bus_id}/information", f"Model: \t\t A100\nGPU UUID: \t GPU-{bus_id}")
    return root


class MadeUpKernel(LinuxKernel):
    """Threads, masks, a cpuset and a memory policy, kept in memory.

    Args:
        cpus: cpulist of the masks that all threads have.
        cpuset: cpulist of what the kernel lets them have; default: ``cpus``.
        threads: How many.
        mems: Nodes that may be used, or None where the kernel does not say.
        refuses: Name of an error that set_mempolicy and get_mempolicy answer.
    """

    def __init__(
        self, cpus: str, *, cpuset: str | None = None, threads: int = 1, mems: str | None = None, refuses: str | None = None
    ) -> None:
        super().__init__()
        self.masks = {1000 + index: parse_cpulist(cpus) for index in range(threads)}
        self.cpuset = parse_cpulist(cpus if cpuset is None else cpuset)
        self.mems = None if mems is None else parse_cpulist(mems)
        self.refuses = refuses
        self.policy: tuple[int, frozenset[int]] = (0, frozenset())
        self.late: list[int] = []  # threads that start when others have been looked at

    def main_thread(self) -> int:
        return 1000

    def this_thread(self) -> int:
        return 1000

    def threads(self) -> frozenset[int]:
        return frozenset(self.masks)

    def get_affinity(self, tid: int) -> frozenset[int]:
        return self.masks[tid]

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        mask = frozenset(cpus) & self.cpuset
        if not mask:
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.late and tid != self.late[0]:
            self.masks[self.late.pop(0)] = self.masks[tid]  # started by this thread just before it was bound
        self.masks[tid] = mask

    def mems_allowed(self) -> frozenset[int] | None:
        return self.mems

    def supports_policy(self) -> bool:
        return True

    def set_mempolicy(self, mode: int, nodes: Iterable[int]) -> None:
        self._refuse()
        self.policy = (mode, frozenset(nodes))

    def get_mempolicy(self) -> tuple[int, frozenset[int]]:
        self._refuse()
        return self.policy

    def _refuse(self) -> None:
        if self.refuses is not None:
            raise OSError(getattr(errno, self.refuses), "refused")
