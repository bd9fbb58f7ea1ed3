"""The record of a binding: what was wanted, what the kernel holds."""

from __future__ import annotations

from attrs import Factory, asdict, frozen


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

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)
