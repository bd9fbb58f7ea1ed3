"""Binds this process: CPUs of every thread, memory policy of the calling one; then reads back what the kernel really holds.

`bind_process` never raises for what the environment refuses: the record says it. `verify` looks again, `unbind` gives back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from rl_cluster.errors import BindingError
from rl_cluster.numa.choose import CpuChoice, MemChoice, allowed_cpus, choose_cpus, choose_memory, choose_spread
from rl_cluster.numa.cpulist import parse_cpulist
from rl_cluster.numa.gpus import Unidentified, device_order_note
from rl_cluster.numa.kernel import LinuxKernel, errno_name
from rl_cluster.numa.machine import Machine
from rl_cluster.numa.memory import bind_memory, migrate, policy_text
from rl_cluster.numa.report import REASONS, BindingReport
from rl_cluster.numa.sources import Location, find_gpu, merge_locations
from rl_cluster.numa.threads import bind_threads, read_masks, union_of

if TYPE_CHECKING:
    from rl_cluster.schema import NumaSpec

DISABLE_BINDING = "NRL_DISABLE_NUMA_BINDING"
DISABLE_MEMBIND = "NRL_DISABLE_NUMA_MEMBIND"

_running = LinuxKernel()


def bind_process(
    spec: NumaSpec,
    *,
    gpu_ids: Sequence[str | int] = (),
    root: Path = Path("/"),
    cpu_worker_index: int | None = None,
    kernel: LinuxKernel | None = None,
    environ: Mapping[str, str] | None = None,
) -> BindingReport:
    """Bind this process near its GPUs, as the spec says.

    Args:
        spec: What is wanted. ``spec.strict`` changes nothing here: see `raise_if_not_bound`.
        gpu_ids: What ``ray.get_gpu_ids()`` gave: indices, or UUIDs. Empty: a worker without a GPU.
        root: Folder that stands for ``/`` where sysfs and /proc are read.
        cpu_worker_index: Index of this worker on its machine, for ``cpu_workers="spread"``; default 0.
        kernel: The kernel to call; default: the running one.
        environ: Environment variables; default: the process's. ``NRL_DISABLE_NUMA_BINDING``, ``NRL_DISABLE_NUMA_MEMBIND`` and
            ``NRL_GPU_CPU_AFFINITY_FILE`` are honoured.

    Returns:
        What the kernel holds now. Calling it again gives the same answer.
    """
    kernel = kernel or _running
    environ = os.environ if environ is None else environ
    if not spec.enabled:
        return _skipped("disabled", kernel)
    if _is_on(environ, DISABLE_BINDING):
        return _skipped("disabled-by-env", kernel)
    if not gpu_ids and spec.cpu_workers != "spread":
        return _skipped("no-gpu", kernel)
    if not kernel.supports_affinity():
        return _skipped("unsupported-machine", kernel)
    machine = Machine(root, environ=environ, affinity_path=spec.affinity_file)
    try:
        report = _bind(spec, gpu_ids, cpu_worker_index or 0, machine, kernel)
    except OSError as error:  # the kernel refuses even to tell the mask
        report = _skipped("cpus-not-bound", kernel)
        report = evolve(report, cpu_status=f"failed: {errno_name(error)}", notes=(str(error),))
    finally:
        machine.close()
    if report.cpu_status not in ("bound", "skipped: disabled") or report.mem_status.startswith("failed"):
        why = "; ".join((*report.source_notes, *report.notes))
        _warn("NUMA binding: CPUs %s, memory %s%s", report.cpu_status, report.mem_status, f" ({why})" if why else "")
    return report


def _bind(spec: NumaSpec, gpu_ids: Sequence[str | int], index: int, machine: Machine, kernel: LinuxKernel) -> BindingReport:
    inherited = kernel.get_affinity(kernel.main_thread()) if kernel.saved is None else kernel.saved.main
    allowed = allowed_cpus(kernel, machine, inherited, respect_inherited=spec.respect_inherited)
    facts: dict[str, Any] = {}
    if gpu_ids:
        choice, facts = _choose_near_gpus(spec, gpu_ids, machine, allowed.cpus)
    elif spec.cpu_bind == "none":
        choice = CpuChoice(skip="disabled")
    else:
        choice, facts = choose_spread(machine, allowed.cpus, index), {"source": "spread"}
    facts["notes"] = (*allowed.notes, *facts.get("notes", ()), *choice.notes)
    report = _skipped("", kernel, numa_nodes=tuple(sorted(choice.nodes)), cpu_bind=choice.cpu_bind, **facts)
    report = bind_threads(report, choice, kernel=kernel)
    report = bind_memory(report, _memory_for(report, choice, spec, machine, kernel), spec.mempolicy, kernel=kernel)
    return migrate(report, machine.system, kernel=kernel) if spec.migrate and report.mem_status in ("bound", "partial") else report


def _choose_near_gpus(
    spec: NumaSpec, gpu_ids: Sequence[str | int], machine: Machine, allowed: frozenset[int]
) -> tuple[CpuChoice, dict[str, Any]]:
    """The CPUs, and what the record says of the GPUs and where they are."""
    found = [find_gpu(machine, gpu_id, spec.source) for gpu_id in gpu_ids]
    identities = tuple(gpu.identity() for gpu, _, _ in found if gpu is not None)
    source_notes = tuple(dict.fromkeys(note for _, _, notes in found for note in notes))
    facts: dict[str, Any] = {"gpus": identities, "gpu": identities[0] if identities else None, "source_notes": source_notes}
    if spec.source in ("auto", "affinity_file"):
        if machine.affinity.untrusted:
            _warn("affinity file: %s. Fix: chown it to root or this user and chmod it to 644", machine.affinity.refusal)
        for problem in machine.affinity.problems:
            _warn("affinity file: %s; the other lines count", problem)
    order = device_order_note(machine.kernel_gpus, machine.environ)
    if order is not None:
        facts["notes"] = (order,)
    lost = next((place for _, place, _ in found if isinstance(place, Unidentified)), None)
    if lost is not None:
        return CpuChoice(skip="disabled" if spec.cpu_bind == "none" else lost.reason, lost=lost.reason), facts
    placed = [(gpu, place) for gpu, place, _ in found if gpu is not None and isinstance(place, Location)]
    location = merge_locations([place for _, place in placed])
    facts |= {"source": location.source, "simulated": location.simulated}
    return choose_cpus(location, placed, machine, allowed, spec.cpu_bind), facts


def _memory_for(report: BindingReport, choice: CpuChoice, spec: NumaSpec, machine: Machine, kernel: LinuxKernel) -> MemChoice:
    if not spec.membind:
        return MemChoice(skip="disabled")
    if _is_on(machine.environ, DISABLE_MEMBIND):
        return MemChoice(skip="disabled-by-env")
    if choice.lost is not None:
        return MemChoice(skip=choice.lost)
    memory = choose_memory(choice, machine, kernel)
    if memory.skip is None and report.cpu_status not in ("bound", "partial", "skipped: disabled"):
        return MemChoice(skip="cpus-not-bound")
    if memory.skip is None and not kernel.supports_policy():
        return MemChoice(skip="unsupported-machine")
    return memory


def verify(report: BindingReport, *, kernel: LinuxKernel | None = None) -> BindingReport:
    """Look again at what the kernel holds, in the process that was bound. Changes nothing.

    Args:
        report: What `bind_process` gave.
        kernel: The kernel to ask; default: the running one.

    Returns:
        The same record with today's ``cpus_held``, ``policy_held`` and ``threads_bound``; a status that was ``bound`` or ``partial``
        becomes ``partial`` (some threads drifted) or ``failed: drift`` (all of them, or the policy), with a note.
    """
    kernel = kernel or _running
    if report.cpu_status in ("bound", "partial"):
        wanted = parse_cpulist(report.cpus_wanted)
        masks = read_masks(kernel)
        drifted = {tid: mask for tid, mask in masks.items() if mask != wanted}
        status, notes = report.cpu_status, report.notes
        if drifted:
            status = "partial" if len(drifted) < len(masks) else "failed: drift"
            notes = _with(
                notes, f"drift: {len(drifted)} of {len(masks)} threads hold CPUs {union_of(drifted)} instead of {report.cpus_wanted}"
            )
        report = evolve(report, cpu_status=status, cpus_held=union_of(masks), threads_bound=len(masks) - len(drifted), notes=notes)
    if report.mem_status in ("bound", "partial") and report.policy_tid is not None:
        here = kernel.this_thread() == report.policy_tid or report.policy_tid not in kernel.threads()  # not there: a forked child
        held = policy_text(kernel) if here else kernel.thread_policy(report.policy_tid) or "unknown"
        if held != report.policy_held:
            note = f"drift: the memory policy of thread {report.policy_tid} is {held}, it was {report.policy_held}"
            report = evolve(report, mem_status="failed: drift", policy_held=held, notes=_with(report.notes, note))
    return report


def unbind(*, kernel: LinuxKernel | None = None) -> BindingReport:
    """Restore masks and policy as they were before the first binding; a thread that is younger gets the first thread's mask.

    A policy belongs to its thread, so it is restored where that thread calls; elsewhere the record says that it stays.
    Calling it again changes nothing.

    Args:
        kernel: The kernel to call; default: the running one.

    Returns:
        What the kernel holds now, status ``skipped: unbound``, or ``failed: <error>`` where it refused.
    """
    kernel = kernel or _running
    saved, kernel.saved = kernel.saved, None
    report = _skipped("unbound", kernel)
    if saved is not None:
        for tid in kernel.threads():
            try:
                kernel.set_affinity(tid, saved.masks.get(tid, saved.main))
            except ProcessLookupError:
                continue
            except OSError as error:
                report = evolve(report, cpu_status=f"failed: {errno_name(error)}")
    if saved is not None and saved.policy is not None:
        if saved.policy_tid == kernel.this_thread() or saved.policy_tid not in kernel.threads():  # not there: a forked child
            try:
                kernel.set_mempolicy(*saved.policy)
            except OSError as error:
                report = evolve(report, mem_status=f"failed: {errno_name(error)}")
        else:
            note = f"the memory policy of thread {saved.policy_tid} stays: only that thread can change it"
            report = evolve(report, mem_status="failed: other-thread", notes=(note,))
    return evolve(report, cpus_held=union_of(read_masks(kernel)), policy_held=policy_text(kernel))


def raise_if_not_bound(report: BindingReport, *, rank: int | None, node: str) -> None:
    """What ``numa.strict`` means: anything short of a verified binding is an error. What the config turned off is not.

    Args:
        report: The worker's record.
        rank: Its rank, or None where there are no ranks.
        node: Its machine, for the message.

    Raises:
        BindingError: With ``rank``, ``node``, ``reason``.
    """
    reason = report.shortcoming
    if reason is None:
        return
    word = reason.rpartition(": ")[2]
    why = f" ({REASONS[word]})" if word in REASONS else ""
    where = node if rank is None else f"rank {rank} on {node}"
    detail = "; ".join((*report.source_notes, *report.notes))
    key = "numa.membind=false" if reason.startswith("memory") else "numa.cpu_bind=none"
    got = f"{reason}{why}" + (f" [{detail}]" if detail else "")
    raise BindingError(
        f"{where}: numa.strict needs a verified binding, got {got}. Fix: {key} or numa.strict=false",
        rank=rank,
        node=node,
        reason=reason,
    )


def _skipped(reason: str, kernel: LinuxKernel, **facts: Any) -> BindingReport:
    status = f"skipped: {reason}"
    return BindingReport(cpu_status=status, mem_status=status, pid=os.getpid(), main_tid=kernel.main_thread(), **facts)


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _with(notes: tuple[str, ...], note: str) -> tuple[str, ...]:
    return notes if note in notes else (*notes, note)


def _warn(message: str, *arguments: object) -> None:
    import logging  # here: a worker that binds in its first breath should not wait for it

    logging.getLogger(__name__).warning(message, *arguments)
