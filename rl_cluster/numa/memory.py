"""The memory policy of the calling thread, by syscall and read back; threads that it starts later inherit it."""

from __future__ import annotations

from attrs import evolve

from rl_cluster.numa.choose import MemChoice
from rl_cluster.numa.cpulist import format_cpulist
from rl_cluster.numa.kernel import MODES, LinuxKernel, errno_name, format_policy
from rl_cluster.numa.report import BindingReport
from rl_cluster.numa.system import NumaSystem
from rl_cluster.numa.threads import remember

Policy = tuple[int, frozenset[int]]


def read_policy(kernel: LinuxKernel) -> Policy | None:
    """What the kernel holds for the calling thread, or None where it does not say (seccomp refuses get_mempolicy too)."""
    try:
        return kernel.get_mempolicy()
    except OSError:
        return None


def policy_text(kernel: LinuxKernel) -> str:
    """The policy for a person; ``unknown`` where the kernel does not say."""
    held = read_policy(kernel)
    return "unknown" if held is None else format_policy(*held)


def bind_memory(report: BindingReport, choice: MemChoice, mempolicy: str, *, kernel: LinuxKernel) -> BindingReport:
    """Set the policy and read it back.

    Args:
        report: The record so far.
        choice: The nodes, or the reason for none.
        mempolicy: bind | preferred | interleave.
        kernel: The kernel.

    Returns:
        The record with the memory's part filled in.
    """
    if choice.skip is not None:
        return evolve(report, mem_status=f"skipped: {choice.skip}", policy_held=policy_text(kernel))
    wanted = _policy(mempolicy, choice.nodes)
    report = evolve(report, mem_nodes=tuple(sorted(choice.nodes)), policy_wanted=format_policy(*wanted))
    before = read_policy(kernel)
    try:
        wanted = _set(kernel, wanted)
    except OSError as error:
        notes = (*report.notes, f"memory policy {report.policy_wanted} refused: {error.strerror or error}")
        return evolve(report, mem_status=f"failed: {errno_name(error)}", policy_held=policy_text(kernel), notes=notes)
    saved = remember(kernel)
    if saved.policy_tid is None:
        saved.policy, saved.policy_tid = before or (0, frozenset()), kernel.this_thread()
    held = read_policy(kernel)
    notes = report.notes
    if format_policy(*wanted) != report.policy_wanted:
        notes += (f"this kernel prefers one node only: node {min(choice.nodes)} of {format_cpulist(choice.nodes)}",)
    if held is None:
        notes += ("the policy was accepted and can't be read back: get_mempolicy is refused",)
        status = "partial"
    elif held == wanted:
        status = "bound"
    else:
        status = "partial" if held[0] == wanted[0] and held[1] and held[1] < wanted[1] else "failed: not-held"
    return evolve(report, mem_status=status, policy_held=policy_text(kernel), policy_tid=kernel.this_thread(), notes=notes)


def _policy(mempolicy: str, nodes: frozenset[int]) -> Policy:
    name = "preferred-many" if mempolicy == "preferred" and len(nodes) > 1 else mempolicy
    return MODES.index(name), nodes


def _set(kernel: LinuxKernel, wanted: Policy) -> Policy:
    try:
        kernel.set_mempolicy(*wanted)
    except OSError as error:
        if wanted[0] != MODES.index("preferred-many") or errno_name(error) != "EINVAL":
            raise
        wanted = MODES.index("preferred"), frozenset({min(wanted[1])})  # before Linux 5.15 one node can be preferred
        kernel.set_mempolicy(*wanted)
    return wanted


def migrate(report: BindingReport, system: NumaSystem, *, kernel: LinuxKernel) -> BindingReport:
    """Move the process's pages that lie on other nodes to the policy's; best effort, counted before and after."""
    others = system.memory_nodes() - set(report.mem_nodes)
    before = _count(kernel, others)
    notes = report.notes
    try:
        kernel.migrate_pages(others, report.mem_nodes)
    except OSError as error:
        notes += (f"pages not moved: {errno_name(error)}",)
    after = _count(kernel, others)
    return evolve(report, pages_moved=max(before - after, 0), pages_elsewhere=after, notes=notes)


def _count(kernel: LinuxKernel, nodes: frozenset[int]) -> int:
    return sum(pages for node, pages in kernel.pages_by_node().items() if node in nodes)
