"""The table of a sweep and its last line, as text for a person."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from rl_cluster.ground.secrets import mask_word
from rl_cluster.planning.naming import count_of
from rl_cluster.views.sweep_summary import STATUSES, JobRow, render_counts

HEADERS = ("job", "overrides", "status", "machines", "placed", "ready", "total", "CPU binding", "error")
RIGHT = {"job", "machines", "placed", "ready", "total"}
GAP = 2
LEAST_ERROR = 24  # columns that the error keeps on a narrow page
GOOD = ("ok", "planned")


def split_overrides(rows: Sequence[JobRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The words that all jobs share, and for each job those that make it this one."""
    common = tuple(word for word in rows[0].overrides if all(word in row.overrides for row in rows)) if len(rows) > 1 else ()
    return common, [tuple(word for word in row.overrides if word not in common) for row in rows]


def seconds_after_ray(row: JobRow, moment: float | None) -> float | None:
    """Seconds from the connection to Ray to a moment of the job: what jobs can be compared by, as one of them starts a shared cluster."""
    return None if moment is None or row.ray_s is None else max(0.0, moment - row.ray_s)


def render_sweep_table(rows: Sequence[JobRow], *, width: int | None = None) -> str:
    """Draws the rows of a sweep.

    Args:
        rows: In the order of the table.
        width: Columns of the page; errors are shortened to fit. None: as wide as needed.

    Returns:
        The lines, joined by newlines, without one at the end. ``placed``, ``ready`` and ``total`` are seconds after Ray was connected.
    """
    if not rows:
        return "no jobs"
    common, own = split_overrides(rows)
    cells = [[_text(cell) for cell in _cells(row, words)] for row, words in zip(rows, own, strict=True)]
    shown = [index for index, name in enumerate(HEADERS) if name in ("job", "status") or any(line[index] for line in cells)]
    headers = [HEADERS[index] for index in shown]
    cells = [[line[index] for index in shown] for line in cells]
    widths = [max(len(header), *(len(line[index]) for line in cells)) for index, header in enumerate(headers)]
    if width is not None and headers[-1] == "error":
        excess = max(sum(widths) + GAP * (len(widths) - 1) - width, 0)
        widths[-1] = max(min(widths[-1], LEAST_ERROR), widths[-1] - excess)
        for line in cells:
            line[-1] = line[-1] if len(line[-1]) <= widths[-1] else line[-1][: widths[-1] - 3] + "..."
    lines = [
        (" " * GAP)
        .join(text.rjust(size) if name in RIGHT else text.ljust(size) for name, text, size in zip(headers, line, widths, strict=True))
        .rstrip()
        for line in [headers, *cells]
    ]
    return "\n".join([*([f"all with: {_text(shlex.join(map(mask_word, common)))}"] if common else []), *lines])


def render_sweep_verdict(rows: Sequence[JobRow]) -> str:
    """The last line: ``OK: 8 of 8 jobs ok (simulated)``, or ``FAILED: 6 of 8 jobs ok, 1 failed, 1 interrupted``."""
    times = Counter(row.status for row in rows)
    good = sum(times[status] for status in GOOD)
    word = "planned" if good and times["planned"] == good else "ok"
    others = [f"{times[status]} {status}" for status in STATUSES if times[status] and status not in GOOD]
    suffix = " (simulated)" if any(row.simulated for row in rows) else ""
    counted = ", ".join([f"{good} of {count_of(len(rows), 'job')} {word}", *others])
    return f"{'OK' if good == len(rows) else 'FAILED'}: {counted}{suffix}"


def _cells(row: JobRow, words: Sequence[str]) -> tuple[str, ...]:
    return (
        str(row.job),
        " ".join(words),
        row.status if row.exit_code in (None, 0) else f"{row.status} ({row.exit_code})",
        "" if row.physical_nodes is None else str(row.physical_nodes),
        *(_seconds(seconds_after_ray(row, moment)) for moment in (row.placed_s, row.workers_s, row.total_s)),
        render_counts(row.cpu_bindings),
        row.error or "",
    )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _text(cell: str) -> str:
    """Without what would break a line or a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in cell)
