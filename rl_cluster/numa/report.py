"""The record of a binding: what was wanted, what the kernel holds."""

from __future__ import annotations

from attrs import Factory, asdict, frozen

REASONS = {
    "disabled": "the config turned it off (numa.enabled, numa.cpu_bind or numa.membind)",
    "disabled-by-env": "NRL_DISABLE_NUMA_BINDING or NRL_DISABLE_NUMA_MEMBIND turned it off",
    "no-gpu": "the worker has no GPU, and numa.cpu_workers is none",
    "ray-task": "called in a Ray task, whose process runs other tasks later",
    "unresolved-uuid": "the GPU or MIG UUID is unknown to /proc, NVML and nvidia-smi",
    "unknown-gpu": "the GPU id is none of this machine's",
    "unknown-node": "no source knows the NUMA node of the GPU",
    "node-without-cpus": "the GPU's NUMA node has no CPUs",
    "node-without-memory": "the GPU's NUMA node has no memory of the host",
    "node-not-allowed": "the GPU's NUMA node is outside Mems_allowed of the process",
    "no-allowed-local-cpu": "the process may use none of the CPUs of the GPU's node",
    "cpus-not-bound": "memory is not bound to a node whose CPUs are not",
    "single-node": "the machine has one NUMA node with memory: there is nothing to choose",
    "no-numa": "the kernel shows no NUMA nodes",
    "unsupported-machine": "not Linux, or a processor whose syscall numbers are not known here",
    "other-thread": "unbind() was called in another thread than the one that holds the memory policy",
    "drift": "somebody changed it after it was bound",
    "not-held": "the kernel accepted the call and holds something else",
    "unbound": "unbind() gave it back",
}
"""Every reason that follows ``skipped:`` or ``failed:``, beside the kernel's own error names (``EPERM``, ``EINVAL``, ...)."""


@frozen
class GpuIdentity:
    """The GPU that Ray assigned to this process."""

    index: int | None  # physical index, as nvidia-smi numbers them
    bus_id: str | None = None
    uuid: str | None = None


@frozen
class BindingReport:
    """What a worker process was really given. Statuses: ``bound``, ``partial``, ``skipped: <reason>``, ``failed: <reason>``."""

    cpu_status: str
    mem_status: str
    gpu: GpuIdentity | None = None
    source: str | None = None  # which topology source answered
    source_notes: tuple[str, ...] = ()  # why the earlier ones did not
    numa_nodes: tuple[int, ...] = ()
    cpus_wanted: str = ""  # cpulists
    cpus_held: str = ""  # read back from the kernel
    policy_wanted: str = ""  # e.g. "bind:0"
    policy_held: str = ""  # read back from the kernel, e.g. "default"
    threads_bound: int = 0
    threads_before: int = 0  # threads that existed before, whose memory policy can't be set
    extra: dict[str, object] = Factory(dict)
    gpus: tuple[GpuIdentity, ...] = ()  # all of them, where the worker has several
    simulated: bool = False  # the GPU -> CPU map is made up
    cpu_bind: str = ""  # node | exclusive | socket | none: what was done, which may fall short of what was asked
    mem_nodes: tuple[int, ...] = ()  # nodes of the memory policy
    policy_tid: int | None = None  # the thread that holds the policy; threads that it starts inherit it
    main_tid: int | None = None  # the process's first thread, so policy_tid == main_tid means that all later code inherits
    pages_moved: int | None = None  # with numa.migrate: pages that lay elsewhere and were moved; None: not asked
    pages_elsewhere: int | None = None  # with numa.migrate: pages that stayed elsewhere
    notes: tuple[str, ...] = ()  # for a person: what was left out, and what surprised
    pid: int | None = None

    @property
    def bound(self) -> bool:
        """CPUs and memory are both verified, or the config turned one of them off."""
        return self.shortcoming is None

    @property
    def shortcoming(self) -> str | None:
        """The first thing short of a verified binding (``cpu skipped: no-gpu``), or None; what the config turned off is none."""
        for what, status in (("cpu", self.cpu_status), ("memory", self.mem_status)):
            if status not in ("bound", "skipped: disabled"):
                return f"{what} {status}"
        return None

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)
