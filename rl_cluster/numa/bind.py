"""Binds this process: CPUs of every thread, memory policy of the calling one; then reads back what the kernel really holds.

`bind_process` never raises for what the environment refuses: the record says it. `verify` looks again, `unbind` gives back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, evolve

from rl_cluster.errors import BindingError
from rl_cluster.numa.choose import (
    CpuChoice,
    MemChoice,
    allowed_cpus,
    choose_cpus,
    choose_memory,
    choose_spread,
    default_environ,
    environ_flag,
)
from rl_cluster.numa.cpulist import format_cpulist, parse_cpulist
from rl_cluster.numa.gpus import Unidentified
from rl_cluster.numa.kernel import MODES, LinuxKernel, errno_name, format_policy
from rl_cluster.numa.report import REASONS, BindingReport
from rl_cluster.numa.sources import Location, Machine, find_gpu, merge_locations

if TYPE_CHECKING:
    from rl_cluster.schema import NumaSpec

DISABLE_BINDING = "NRL_DISABLE_NUMA_BINDING"
DISABLE_MEMBIND = "NRL_DISABLE_NUMA_MEMBIND"
_LOOK_AGAIN = 16  # rounds over the threads; two are enough unless threads keep starting


@define
class _Saved:
    """The state before the first binding, which `unbind` restores and later bindings start from."""

    masks: dict[int, frozenset[int]]
    main: frozenset[int]
    policy: tuple[int, frozenset[int]] | None = None
    policy_tid: int | None = None


_saved: dict[int, _Saved] = {}  # by id of the kernel object; a process binds through one


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
        spec: What is wanted.
        gpu_ids: What ``ray.get_gpu_ids()`` gave: indices, or UUIDs. Empty: a worker without a GPU.
        root: Folder that stands for ``/`` where sysfs and /proc are read.
        cpu_worker_index: Index of this worker on its machine, for ``cpu_workers="spread"``.
        kernel: The kernel to call; default: the running one.
        environ: Environment variables; default: the process's. ``NRL_DISABLE_NUMA_BINDING``, ``NRL_DISABLE_NUMA_MEMBIND`` and
            ``NRL_GPU_CPU_AFFINITY_FILE`` are honoured.

    Returns:
        What the kernel holds now. Calling it again gives the same answer.
    """
    kernel = kernel or _running_kernel()
    environ = default_environ(environ)
    if not spec.enabled:
        return _skipped("disabled", kernel)
    if environ_flag(environ, DISABLE_BINDING):
        return _skipped("disabled-by-env", kernel)
    if not gpu_ids and spec.cpu_workers != "spread":
        return _skipped("no-gpu", kernel)
    machine = Machine(root, environ=environ, affinity_path=spec.affinity_file)
    try:
        return _bind(spec, gpu_ids, cpu_worker_index or 0, machine, kernel, environ)
    except OSError as error:
        return evolve(
            _skipped("", kernel), cpu_status=f"failed: {errno_name(error)}", mem_status="skipped: cpus-not-bound", notes=(str(error),)
        )
    finally:
        machine.close()


def _bind(
    spec: NumaSpec, gpu_ids: Sequence[str | int], index: int, machine: Machine, kernel: LinuxKernel, environ: Mapping[str, str]
) -> BindingReport:
    saved = _saved.get(id(kernel))
    inherited = kernel.get_affinity(kernel.main_thread()) if saved is None else saved.main
    allowed = allowed_cpus(kernel, machine, inherited, respect_inherited=spec.respect_inherited, environ=environ)
    report = _skipped("", kernel)
    if gpu_ids:
        found = [find_gpu(machine, gpu_id, spec.source) for gpu_id in gpu_ids]
        identities = tuple(gpu.identity() for gpu, _, _ in found if gpu is not None)
        notes = tuple(dict.fromkeys(note for _, _, each in found for note in each))
        report = evolve(report, gpus=identities, gpu=identities[0] if identities else None, source_notes=notes)
        lost = next((place for _, place, _ in found if isinstance(place, Unidentified)), None)
        if lost is not None:
            _warn("GPU %s: not bound, %s. %s", ",".join(map(str, gpu_ids)), REASONS.get(lost.reason, lost.reason), "; ".join(notes))
            return evolve(report, cpu_status=f"skipped: {lost.reason}", mem_status=_mem_off(spec, environ) or f"skipped: {lost.reason}")
        placed = [(gpu, place) for gpu, place, _ in found if gpu is not None and isinstance(place, Location)]
        location = merge_locations([place for _, place in placed])
        choice = choose_cpus(location, placed, machine, allowed.cpus, spec.cpu_bind)
        report = evolve(report, source=location.source, simulated=location.simulated)
        problems = machine.affinity.problems if "affinity_file" in location.source else ()
        for problem in problems:
            _warn("affinity file, line left out: %s", problem)
        if spec.source in ("auto", "affinity_file") and machine.affinity.untrusted:
            _warn("%s. Next source. Fix: chown it to root or this user, chmod 644", machine.affinity.refusal)
        device_order = _device_order(machine, environ)
        report = evolve(report, notes=(*allowed.notes, *choice.notes, *problems, *device_order))
    else:
        choice = choose_spread(machine, allowed.cpus, index) if spec.cpu_bind != "none" else CpuChoice(skip="disabled")
        report = evolve(report, notes=(*allowed.notes, *choice.notes), source="spread")
    report = evolve(report, numa_nodes=tuple(sorted(choice.nodes)), cpu_bind=choice.cpu_bind)
    if choice.skip == "no-allowed-local-cpu":
        _warn("CPUs not bound: %s (%s)", REASONS[choice.skip], "; ".join(choice.notes))
    report = _bind_cpus(report, choice, kernel)
    return _bind_memory(report, spec, choice, machine, kernel, environ)


# --- CPUs ---
def _bind_cpus(report: BindingReport, choice: CpuChoice, kernel: LinuxKernel) -> BindingReport:
    if choice.skip is not None:
        return evolve(report, cpu_status=f"skipped: {choice.skip}", cpus_held=format_cpulist(kernel.get_affinity(kernel.main_thread())))
    before = kernel.threads()
    saved = _remember(kernel, before)
    refused: dict[int, OSError] = {}
    bound: set[int] = set()
    for _ in range(_LOOK_AGAIN):
        new = kernel.threads() - bound - set(refused)
        if not new:
            break
        for tid in new:
            # A thread that started since inherits from its starter: what it has now is not what it would get back
            saved.masks.setdefault(tid, saved.main)
            try:
                kernel.set_affinity(tid, choice.cpus)
                bound.add(tid)
            except ProcessLookupError:
                bound.add(tid)  # it has ended
            except OSError as error:
                refused[tid] = error
    masks = _masks(kernel)
    held = frozenset().union(*masks.values())
    right = [tid for tid, mask in masks.items() if mask == choice.cpus]
    notes = report.notes
    if refused:
        notes += (f"{len(refused)} of {len(refused) + len(bound)} threads: {errno_name(next(iter(refused.values())))}",)
    if not right:
        status = (
            f"failed: {errno_name(next(iter(refused.values())))}"
            if refused
            else ("partial" if held and held < choice.cpus else "failed: not-held")
        )
    else:
        status = "bound" if len(right) == len(masks) and not choice.short else "partial"
    return evolve(
        report,
        cpu_status=status,
        cpus_wanted=format_cpulist(choice.cpus),
        cpus_held=format_cpulist(held),
        threads_bound=len(right),
        threads_before=len(before) - 1,
        notes=notes,
    )


def _masks(kernel: LinuxKernel) -> dict[int, frozenset[int]]:
    masks = {}
    for tid in kernel.threads():
        try:
            masks[tid] = kernel.get_affinity(tid)
        except OSError:
            continue  # it has ended
    return masks


def _remember(kernel: LinuxKernel, threads: frozenset[int]) -> _Saved:
    saved = _saved.get(id(kernel))
    if saved is None:
        masks = _masks(kernel)
        main = masks.get(kernel.main_thread()) or kernel.get_affinity(kernel.main_thread())
        saved = _saved[id(kernel)] = _Saved(masks=masks, main=main)
    return saved


# --- memory ---
def _mem_off(spec: NumaSpec, environ: Mapping[str, str]) -> str | None:
    if not spec.membind:
        return "skipped: disabled"
    return "skipped: disabled-by-env" if environ_flag(environ, DISABLE_MEMBIND) else None


def _bind_memory(
    report: BindingReport, spec: NumaSpec, choice: CpuChoice, machine: Machine, kernel: LinuxKernel, environ: Mapping[str, str]
) -> BindingReport:
    off = _mem_off(spec, environ)
    memory = MemChoice() if off else choose_memory(choice, machine, kernel.mems_allowed())
    if off is None and memory.skip is None and choice.skip != "disabled" and report.cpu_status not in ("bound", "partial"):
        memory = MemChoice(skip="cpus-not-bound")
    if off is None and memory.skip is None and not kernel.supports_policy():
        memory = MemChoice(skip="unsupported-machine")
    if off or memory.skip:
        return evolve(report, mem_status=off or f"skipped: {memory.skip}", policy_held=_policy_text(kernel))
    nodes = memory.nodes
    wanted = _policy(spec.mempolicy, nodes)
    report = evolve(report, mem_nodes=tuple(sorted(nodes)), policy_wanted=format_policy(*wanted))
    try:
        before = _read_policy(kernel)
        try:
            kernel.set_mempolicy(*wanted)
        except OSError as error:
            if wanted[0] != MODES.index("preferred-many") or errno_name(error) != "EINVAL":  # older than Linux 5.15
                raise
            wanted = (MODES.index("preferred"), frozenset({min(nodes)}))
            report = evolve(
                report, notes=(*report.notes, f"this kernel prefers one node only, node {min(nodes)} of {format_cpulist(nodes)}")
            )
            kernel.set_mempolicy(*wanted)
    except OSError as error:
        _warn("memory policy %s refused: %s", report.policy_wanted, errno_name(error))
        return evolve(
            report, mem_status=f"failed: {errno_name(error)}", policy_held=_policy_text(kernel), notes=(*report.notes, str(error))
        )
    saved = _remember(kernel, kernel.threads())
    if saved.policy_tid is None:
        saved.policy, saved.policy_tid = before, kernel.this_thread()
    held = _read_policy(kernel)
    status = "bound" if held == wanted else "failed: not-held"
    if held is None:
        status = "partial"
        report = evolve(report, notes=(*report.notes, "the policy was accepted and can't be read back (get_mempolicy is refused)"))
    elif held[0] == wanted[0] and held[1] and held[1] < wanted[1]:
        status = "partial"
    report = evolve(report, mem_status=status, policy_held=_policy_text(kernel), policy_tid=kernel.this_thread())
    return _migrate(report, machine, nodes, kernel) if spec.migrate and status != "failed: not-held" else report


def _policy(mempolicy: str, nodes: frozenset[int]) -> tuple[int, frozenset[int]]:
    name = "preferred-many" if mempolicy == "preferred" and len(nodes) > 1 else mempolicy
    return MODES.index(name), nodes


def _read_policy(kernel: LinuxKernel) -> tuple[int, frozenset[int]] | None:
    try:
        return kernel.get_mempolicy()
    except OSError:
        return None


def _policy_text(kernel: LinuxKernel) -> str:
    held = _read_policy(kernel)
    return "unknown" if held is None else format_policy(*held)


def _migrate(report: BindingReport, machine: Machine, nodes: frozenset[int], kernel: LinuxKernel) -> BindingReport:
    others = machine.system.memory_nodes() - nodes
    before = sum(count for node, count in kernel.pages_by_node().items() if node in others)
    try:
        kernel.migrate_pages(others, nodes)
    except OSError as error:
        return evolve(report, pages_moved=0, pages_elsewhere=before, notes=(*report.notes, f"pages not moved: {errno_name(error)}"))
    after = sum(count for node, count in kernel.pages_by_node().items() if node in others)
    return evolve(report, pages_moved=max(before - after, 0), pages_elsewhere=after)


# --- later ---
def verify(report: BindingReport, *, kernel: LinuxKernel | None = None) -> BindingReport:
    """Look again at what the kernel holds, in the process that was bound. Changes nothing.

    Args:
        report: What `bind_process` gave.
        kernel: The kernel to ask; default: the running one.

    Returns:
        The same record with today's ``cpus_held``, ``policy_held``, ``threads_bound``; a status that was ``bound`` or ``partial``
        becomes ``partial`` (some threads) or ``failed: drift`` (none, or another policy) where somebody changed it, with a note.
    """
    kernel = kernel or _running_kernel()
    if report.cpu_status in ("bound", "partial"):
        wanted = parse_cpulist(report.cpus_wanted)
        masks = _masks(kernel)
        drifted = {tid: mask for tid, mask in masks.items() if mask != wanted}
        notes = (
            [f"drift: {len(drifted)} of {len(masks)} threads now hold {format_cpulist(frozenset().union(*drifted.values()))}"]
            if drifted
            else []
        )
        status = report.cpu_status if not drifted else ("partial" if len(drifted) < len(masks) else "failed: drift")
        held = format_cpulist(frozenset().union(*masks.values()))
        count = len(masks) - len(drifted)
        report = evolve(report, cpu_status=status, cpus_held=held, threads_bound=count, notes=(*report.notes, *notes))
    if report.mem_status in ("bound", "partial") and report.policy_tid is not None:
        here = kernel.this_thread() == report.policy_tid
        held = _policy_text(kernel) if here else kernel.thread_policy(report.policy_tid) or "unknown"
        if held != report.policy_held:
            note = f"drift: the memory policy is {held}, it was {report.policy_held}"
            report = evolve(report, mem_status="failed: drift", policy_held=held, notes=(*report.notes, note))
    return report


def unbind(*, kernel: LinuxKernel | None = None) -> BindingReport:
    """Restore masks and policy as they were before the first binding; a thread that is younger gets the first thread's mask.

    The policy belongs to a thread, so it is restored where that thread calls; another one gets a note. Twice is once.

    Args:
        kernel: The kernel to call; default: the running one.

    Returns:
        What the kernel holds now, status ``skipped: unbound``, or ``failed: <error>`` where it refused.
    """
    kernel = kernel or _running_kernel()
    saved = _saved.pop(id(kernel), None)
    report = _skipped("unbound", kernel)
    if saved is not None:
        restored = 0
        for tid in kernel.threads():
            try:
                kernel.set_affinity(tid, saved.masks.get(tid, saved.main))
                restored += 1
            except ProcessLookupError:
                continue
            except OSError as error:
                report = evolve(report, cpu_status=f"failed: {errno_name(error)}")
        report = evolve(report, notes=(f"{restored} threads restored",))
        if saved.policy is not None and saved.policy_tid == kernel.this_thread():
            try:
                kernel.set_mempolicy(*saved.policy)
            except OSError as error:
                report = evolve(report, mem_status=f"failed: {errno_name(error)}")
        elif saved.policy_tid is not None:
            note = f"the memory policy of thread {saved.policy_tid} stays: only that thread can change it"
            report = evolve(report, mem_status="failed: not-held", notes=(*report.notes, note))
    held = frozenset().union(*_masks(kernel).values())
    return evolve(report, cpus_held=format_cpulist(held), policy_held=_policy_text(kernel))


def raise_if_not_bound(report: BindingReport, *, rank: int | None, node: str) -> None:
    """What ``numa.strict`` means: anything short of a verified binding is an error. What the config turned off is not.

    Raises:
        BindingError: With ``rank``, ``node``, ``reason``.
    """
    reason = report.shortcoming
    if reason is None:
        return
    word = reason.rpartition(": ")[2]
    why = f" ({REASONS[word]})" if word in REASONS else ""
    where = f"worker {node}" if rank is None else f"rank {rank} on {node}"
    detail = f" [{'; '.join((*report.source_notes, *report.notes))}]" if report.source_notes or report.notes else ""
    key = "numa.membind=false" if reason.startswith("memory") else "numa.cpu_bind=none"
    raise BindingError(
        f"{where}: numa.strict needs a verified binding, got {reason}{why}{detail}. Fix: {key}, or numa.strict=false",
        rank=rank,
        node=node,
        reason=reason,
    )


_kernel: list[LinuxKernel] = []


def _running_kernel() -> LinuxKernel:
    if not _kernel:
        _kernel.append(LinuxKernel())
    return _kernel[0]


def _skipped(reason: str, kernel: LinuxKernel) -> BindingReport:
    status = f"skipped: {reason}"
    return BindingReport(cpu_status=status, mem_status=status, pid=kernel.main_thread(), main_tid=kernel.main_thread())


def _device_order(machine: Machine, environ: Mapping[str, str]) -> tuple[str, ...]:
    from rl_cluster.numa.gpus import device_order_note

    note = device_order_note(machine.kernel_gpus, environ)
    return () if note is None else (note,)


def _warn(message: str, *arguments: object) -> None:
    import logging  # here: a worker that binds in its first breath should not wait for it

    logging.getLogger(__name__).warning(message, *arguments)
