"""The CPU mask of every thread of this process: ``sched_setaffinity(0, ...)`` binds one of the twenty that a Ray worker has."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from rl_cluster.numa.choose import CpuChoice
from rl_cluster.numa.cpulist import format_cpulist
from rl_cluster.numa.kernel import LinuxKernel, SavedState, errno_name
from rl_cluster.numa.report import BindingReport

_LOOK_AGAIN = 16  # rounds over the threads; two are enough unless threads keep starting


def read_masks(kernel: LinuxKernel, tids: Iterable[int] | None = None) -> dict[int, frozenset[int]]:
    """Mask of each thread that is alive, by thread id; default: of all threads."""
    masks = {}
    for tid in kernel.threads() if tids is None else tids:
        try:
            masks[tid] = kernel.get_affinity(tid)
        except ProcessLookupError:
            continue
    return masks


def union_of(masks: dict[int, frozenset[int]]) -> str:
    """Every CPU that some thread may run on, as a cpulist."""
    return format_cpulist(frozenset[int]().union(*masks.values()))


def remember(kernel: LinuxKernel) -> SavedState:
    """The state before the first binding, kept with the kernel object."""
    if kernel.saved is None:
        masks = read_masks(kernel)
        main = masks.get(kernel.main_thread()) or kernel.get_affinity(kernel.main_thread())
        kernel.saved = SavedState(masks=masks, main=main)
    return kernel.saved


def bind_threads(report: BindingReport, choice: CpuChoice, *, kernel: LinuxKernel) -> BindingReport:
    """Give every thread the chosen CPUs, new ones too, and read back what each of them holds.

    Args:
        report: The record so far.
        choice: The CPUs, or the reason for none.
        kernel: The kernel.

    Returns:
        The record with the CPUs' part filled in.
    """
    if choice.skip is not None:
        return evolve(report, cpu_status=f"skipped: {choice.skip}", cpus_held=union_of(read_masks(kernel)))
    saved = remember(kernel)
    new = kernel.threads()
    before = len(new) - 1
    done: set[int] = set()
    refused: dict[int, OSError] = {}
    for _ in range(_LOOK_AGAIN):
        for tid in new:
            saved.masks.setdefault(tid, saved.main)
            try:
                kernel.set_affinity(tid, choice.cpus)
            except ProcessLookupError:
                pass  # it has ended
            except OSError as error:
                refused[tid] = error
            done.add(tid)
        new = kernel.threads() - done
        if not new:  # a thread that starts from now on inherits from a bound one
            break
    masks = read_masks(kernel, done)
    right = sum(mask == choice.cpus for mask in masks.values())
    notes = report.notes
    first_refusal = next((errno_name(error) for error in refused.values()), None)
    if first_refusal is not None:
        notes += (f"{first_refusal} for {len(refused)} of {len(done)} threads",)
    if right == len(masks) and not choice.short:
        status = "bound"
    elif right or (first_refusal is None and any(mask < choice.cpus for mask in masks.values())):
        status = "partial"
    else:
        status = f"failed: {first_refusal or 'not-held'}"
    return evolve(
        report,
        cpu_status=status,
        cpus_wanted=format_cpulist(choice.cpus),
        cpus_held=union_of(masks),
        threads_bound=right,
        threads_before=before,
        notes=notes,
    )
