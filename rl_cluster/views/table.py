"""The tables of workers and of environments, and the one last line, as text for a person."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.planning.naming import count_of
from rl_cluster.process.python_prefetch import Prefetched
from rl_cluster.process.records import WorkerRecord
from rl_cluster.views.checks import Check

HEADERS = ("rank", "node", "address", "GPUs", "CPUs", "memory", "Python", "pid")
RIGHT = {"rank", "node", "pid"}
LEAST_PYTHON = 12  # columns that the interpreter's path keeps on a narrow page
GAP = 2
_ON_NODE = re.compile(r" on node \S+?( \(.*?\))?: ")  # in an error's first line


def render_table(workers: Mapping[str, Any] | Sequence[WorkerRecord], *, width: int | None = None, color: bool = False) -> str:
    """Draws the table of workers, by rank.

    Args:
        workers: The records, or a report (its ``workers`` are drawn).
        width: Columns of the page; the path of the interpreter is shortened from its left to fit. None: as wide as needed.
        color: Draw it by rich, with colours, for a terminal; else aligned plain text.

    Returns:
        The lines, joined by newlines, without one at the end.
    """
    rows = sorted((_row(worker) for worker in (workers["workers"] if isinstance(workers, Mapping) else workers)), key=_by_rank)
    if not rows:
        return "no workers"
    with_group = len({row[0] for row in rows}) > 1
    headers = (("group",) if with_group else ()) + HEADERS
    cells = [list(row if with_group else row[1:]) for row in rows]
    widths = [max(len(header), *(len(row[index]) for row in cells)) for index, header in enumerate(headers)]
    python = headers.index("Python")
    if width is not None:
        excess = sum(widths) + GAP * (len(widths) - 1) - width
        widths[python] = max(min(widths[python], LEAST_PYTHON), widths[python] - max(excess, 0))
        for row in cells:
            row[python] = _end_of(row[python], widths[python])
    if color:
        return _rich(headers, cells)
    lines = [headers, *cells]
    return "\n".join(
        (" " * GAP)
        .join(text.rjust(size) if name in RIGHT else text.ljust(size) for name, text, size in zip(headers, line, widths, strict=True))
        .rstrip()
        for line in lines
    )


def render_verdict(
    checks: Sequence[Check], *, workers: Sequence[WorkerRecord] = (), simulated: bool = False, error: str | None = None
) -> str:
    """The last line: whether all checks held, and who broke the rules if not.

    Args:
        checks: The checks that were made.
        workers: The running workers, for the counts.
        simulated: Whether nodes and accelerators were made up.
        error: What ended the run before the checks, if anything did.

    Returns:
        One line: ``OK: 16 workers on 2 machines, 9 of 9 checks held (simulated)`` or ``FAILED: ...``.
    """
    suffix = " (simulated)" if simulated else ""
    there = f"{count_of(len(workers), 'worker')} on {count_of(len({record.node_id for record in workers}), 'machine')}, " if workers else ""
    held = sum(check.ok for check in checks)
    counted = f"{there}{held} of {count_of(len(checks), 'check')} held{suffix}"
    broken = [check for check in checks if not check.ok]
    if error:
        return "FAILED: " + " ".join(error.split()) + suffix
    if not checks:
        return f"FAILED: {there}nothing was checked{suffix}"
    if broken:
        others = f"; also broken: {', '.join(check.name for check in broken[1:])}" if broken[1:] else ""
        return f"FAILED: {counted}; {broken[0].name}: {broken[0].detail}{others}"
    return f"OK: {counted}"


def render_checks(checks: Sequence[Check]) -> str:
    """A line per check: whether it held, its name, its finding."""
    size = max((len(check.name) for check in checks), default=0)
    return "\n".join(f"{'ok' if check.ok else 'FAILED':6}  {check.name:{size}}  {check.detail}" for check in checks)


def _row(worker: WorkerRecord | Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(worker, WorkerRecord):
        binding: Any = worker.binding.to_dict() if worker.binding else {}
        group, rank, node, address = "", worker.rank, worker.node_idx, worker.address
        gpus, python, pid = worker.gpu_ids, worker.python, worker.pid
    else:
        binding = worker.get("binding") or {}
        group, rank, node, address = worker.get("group", ""), worker["rank"], worker["node_idx"], worker["address"]
        gpus, python, pid = worker["gpu_ids"], worker["python"], worker["pid"]
    cpus = _held(binding.get("cpus_held", ""), binding.get("cpu_status", ""))
    memory = _held(binding.get("policy_held", ""), binding.get("mem_status", ""))
    return group, str(rank), str(node), address, ",".join(gpus) or "-", cpus, memory, python, str(pid)


def _held(value: str, status: str) -> str:
    """What the kernel holds, and why it is not what was wanted where it is not."""
    if status in ("bound", ""):
        return value or "-"
    return f"{value} ({status})" if value else status


def _by_rank(row: tuple[str, ...]) -> tuple[str, int]:
    return row[0], int(row[1])


def _end_of(text: str, room: int) -> str:
    return text if len(text) <= room else "..." + text[len(text) - room + 3 :]


def _rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(
            header, justify="right" if header in RIGHT else "left", style="bold cyan" if header == "rank" else "", no_wrap=True
        )
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    output = io.StringIO()
    # The width was settled before: here nothing may be shortened again.
    Console(file=output, force_terminal=True, color_system="standard", width=10_000, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def render_prefetched(rows: Sequence[Prefetched]) -> str:
    """The table of environments and nodes: what became of each."""
    if not rows:
        return "none"
    headers = ["state", "seconds", "address", "python", "folder"]
    cells = [[row.state, f"{row.seconds:.1f}", row.address, row.python, row.folder or "-"] for row in rows]
    if any(row.error for row in rows):
        headers.append("error")
        cells = [[*line, _cause(row.error)] for line, row in zip(cells, rows, strict=True)]
    widths = [max(len(header), *(len(line[index]) for line in cells)) for index, header in enumerate(headers)]
    return "\n".join(
        (" " * GAP)
        .join(text.rjust(size) if name == "seconds" else text.ljust(size) for name, text, size in zip(headers, line, widths, strict=True))
        .rstrip()
        for line in (headers, *cells)
    )


def _cause(error: str | None) -> str:
    """The key, the rule and the value, without the node, which the row names, and the command and the fix, which the error below names."""
    return _ON_NODE.sub(": ", error.splitlines()[0].partition(" (command: ")[0], count=1) if error else "-"


def render_prefetched_verdict(rows: Sequence[Prefetched], *, simulated: bool) -> str:
    """The last line of mode ``prefetch``: ``PREFETCHED: 2 environments on 3 machines, 4 built, 2 ready already``.

    Where some failed it begins with ``FAILED`` and ends with their number.
    """
    environments, machines = len({row.python for row in rows}), len({row.node_id for row in rows})
    built, failed = (sum(row.state == state for row in rows) for state in ("built", "failed"))
    return (
        f"{'FAILED' if failed else 'PREFETCHED'}: {count_of(environments, 'environment')} on {count_of(machines, 'machine')}, "
        f"{built} built, {len(rows) - built - failed} ready already"
        f"{f', {failed} failed' if failed else ''}{' (simulated)' if simulated else ''}"
    )
