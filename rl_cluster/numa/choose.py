"""From where a GPU is to what is bound: which CPUs, which memory nodes, or the reason for none. Reads sysfs, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen

from rl_cluster.numa.cpulist import format_cpulist
from rl_cluster.numa.gpus import Gpu
from rl_cluster.numa.machine import Machine
from rl_cluster.numa.sources import Location, claim_key, claims, count_hidden
from rl_cluster.numa.split import split_cores
from rl_cluster.numa.system import read_ids, snapshot_cores, snapshot_sockets

_PINNERS = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")


class Masks(Protocol):
    """What of the kernel is needed here."""

    def get_affinity(self, tid: int) -> frozenset[int]: ...
    def set_affinity(self, tid: int, cpus: frozenset[int]) -> None: ...
    def this_thread(self) -> int: ...


class Mems(Protocol):
    """The same, for memory."""

    def mems_allowed(self) -> frozenset[int] | None: ...


@frozen
class Allowed:
    """The CPUs that may be bound to."""

    cpus: frozenset[int]
    notes: tuple[str, ...] = ()


@frozen
class CpuChoice:
    """The CPUs to bind to, or the reason for none."""

    cpus: frozenset[int] = frozenset()
    cpu_bind: str = "none"
    skip: str | None = None
    nodes: frozenset[int] = frozenset()  # host nodes that the choice is about
    lost: str | None = None  # the reason why the GPU's place is not known
    short: bool = False  # less than what was asked for: the status is partial
    notes: tuple[str, ...] = ()


@frozen
class MemChoice:
    """The memory nodes to bind to, or the reason for none."""

    nodes: frozenset[int] = frozenset()
    skip: str | None = None


def allowed_cpus(kernel: Masks, machine: Machine, inherited: frozenset[int], *, respect_inherited: bool) -> Allowed:
    """The CPUs that this process may use.

    The cpuset is the limit that the kernel keeps. The inherited mask is narrower where somebody chose so (``taskset``, Slurm's
    ``--cpu-bind``), and is kept; except the one CPU on which OpenMP's runtime pins the thread that loads it, which nobody chose
    for the whole process.

    Args:
        kernel: The kernel.
        machine: This machine, and its environment variables.
        inherited: Mask of the process's first thread, before anything was bound here.
        respect_inherited: Keep a narrower mask.

    Returns:
        The CPUs, and what was noticed.
    """
    pinner = next((name for name in _PINNERS if machine.environ.get(name, "").lower() not in ("", "false", "none", "disabled")), None)
    pinned = len(inherited) == 1 and pinner is not None
    if respect_inherited and not pinned:
        return Allowed(inherited)
    cpuset = _cpuset(kernel, machine) or inherited
    if cpuset == inherited:
        return Allowed(inherited)
    if pinned:
        return Allowed(cpuset, (f"the one-CPU mask {format_cpulist(inherited)} is {pinner}'s, the cpuset {format_cpulist(cpuset)} counts",))
    return Allowed(
        cpuset, (f"the inherited mask {format_cpulist(inherited)} is not respected, the cpuset {format_cpulist(cpuset)} counts",)
    )


def _cpuset(kernel: Masks, machine: Machine) -> frozenset[int] | None:
    """Asks for every CPU and reads back what the kernel leaves of it, which no file tells inside a container. Then restores."""
    everything = read_ids(f"{machine.root}/sys/devices/system/cpu/possible") or frozenset(range(4096))
    tid = kernel.this_thread()
    try:
        before = kernel.get_affinity(tid)
        kernel.set_affinity(tid, everything)
        try:
            return kernel.get_affinity(tid)
        finally:
            kernel.set_affinity(tid, before)
    except OSError:
        return None


def choose_cpus(
    location: Location, gpus: Sequence[tuple[Gpu, Location]], machine: Machine, allowed: frozenset[int], cpu_bind: str
) -> CpuChoice:
    """The CPUs for a worker near its GPUs.

    Args:
        location: Where the worker's GPUs are.
        gpus: Each of them with its own place.
        machine: This machine.
        allowed: CPUs that may be used.
        cpu_bind: node | exclusive | socket | none.

    Returns:
        CPUs or a reason.
    """
    local, nodes = location.cpus, location.nodes
    if cpu_bind == "none":
        return CpuChoice(skip="disabled", nodes=nodes)
    if not local:
        return CpuChoice(skip="node-without-cpus", nodes=nodes)
    notes: tuple[str, ...] = ()
    held_bind, short = cpu_bind, False
    if cpu_bind == "socket":
        local, nodes, notes = _widen_to_socket(local, nodes, machine)
        held_bind, short = ("node", True) if notes else ("socket", False)
    usable = local & allowed
    online = None if usable == local else read_ids(f"{machine.root}/sys/devices/system/cpu/online")
    if online is not None and local - online:
        notes += (f"CPUs {format_cpulist(local - online)} are named by {location.source} and offline",)
    if not usable:
        notes += (f"local CPUs {format_cpulist(local)}, allowed CPUs {format_cpulist(allowed)}",)
        return CpuChoice(skip="no-allowed-local-cpu", nodes=nodes, notes=notes)
    if cpu_bind == "exclusive":
        share = _exclusive_share(gpus, machine, allowed)
        if isinstance(share, str):
            return CpuChoice(cpus=usable, cpu_bind="node", nodes=nodes, short=True, notes=(*notes, share))
        return CpuChoice(cpus=share, cpu_bind="exclusive", nodes=nodes, notes=notes)
    return CpuChoice(cpus=usable, cpu_bind=held_bind, nodes=nodes, short=short, notes=notes)


def _widen_to_socket(
    local: frozenset[int], nodes: frozenset[int], machine: Machine
) -> tuple[frozenset[int], frozenset[int], tuple[str, ...]]:
    every = machine.system.cpus_of(machine.system.cpu_nodes()) | local
    sockets = snapshot_sockets(every, root=machine.root)
    mine = {sockets[cpu] for cpu in local if cpu in sockets}
    if not mine:
        return local, nodes, ("socket-fallback: the kernel does not tell the socket of the CPUs, bound to the node",)
    cpus = frozenset(cpu for cpu, socket in sockets.items() if socket in mine) | local
    return cpus, machine.system.nodes_of(cpus) or nodes, ()


def _exclusive_share(gpus: Sequence[tuple[Gpu, Location]], machine: Machine, allowed: frozenset[int]) -> frozenset[int] | str:
    share: set[int] = set()
    for gpu, place in gpus:
        known = claims(machine, place.source)
        hidden = count_hidden(machine, place.source)
        if hidden:
            return f"exclusive-fallback: {hidden} GPUs that this process can't see have an unknown share, bound to the node"
        near = {key: cpus & allowed for key, cpus in known.items() if cpus & place.cpus & allowed}
        key = claim_key(gpu, place.source)
        near.setdefault(key, place.cpus & allowed)
        cores = snapshot_cores(frozenset[int]().union(*near.values()), root=machine.root)
        shares = split_cores(cores, near)
        if shares is None:
            return f"exclusive-fallback: {len(cores)} allowed cores for {len(near)} GPUs, bound to the node"
        share |= shares[key]
    return frozenset(share)


def choose_spread(machine: Machine, allowed: frozenset[int], index: int) -> CpuChoice:
    """The CPUs for worker ``index`` of a machine, without a GPU: node ``index mod n`` of the nodes with allowed CPUs."""
    usable = [(node.id, node.cpus & allowed) for node in machine.system.nodes if node.cpus & allowed]
    if not machine.system.nodes:
        return CpuChoice(skip="no-numa")
    if not usable:
        return CpuChoice(skip="no-allowed-local-cpu")
    node, cpus = usable[index % len(usable)]
    return CpuChoice(cpus=cpus, cpu_bind="node", nodes=frozenset({node}))


def choose_memory(choice: CpuChoice, machine: Machine, kernel: Mems) -> MemChoice:
    """The memory nodes that go with the CPUs: host nodes with memory that the process may use."""
    system = machine.system
    if not system.nodes:
        return MemChoice(skip="no-numa")
    if len(system.memory_nodes()) < 2:
        return MemChoice(skip="single-node")
    hosts = choice.nodes & system.cpu_nodes()
    if not hosts:
        return MemChoice(skip="node-without-cpus" if choice.nodes else "unknown-node")
    with_memory = hosts & system.memory_nodes()
    if not with_memory:
        return MemChoice(skip="node-without-memory")
    mems_allowed = kernel.mems_allowed()
    usable = with_memory if mems_allowed is None else with_memory & mems_allowed
    return MemChoice(nodes=usable) if usable else MemChoice(skip="node-not-allowed")
