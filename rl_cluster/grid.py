"""The text drawing of a cluster: a row of cells per logical node, a cell per bundle, a line per worker group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from attrs import frozen

from rl_cluster.planning.naming import count_of
from rl_cluster.views.grid_data import create_visualization_grid, get_worker_cells, print_legend, print_visualization
from rl_cluster.views.picture import (
    CellWorker,
    GridCell,
    GridGroup,
    GridNode,
    Picture,
    build_group_picture,
    build_picture,
    build_role_picture,
)

__all__ = [
    "CellWorker",
    "GridCell",
    "GridGroup",
    "GridNode",
    "Picture",
    "build_group_picture",
    "build_picture",
    "build_role_picture",
    "create_visualization_grid",
    "get_worker_cells",
    "print_legend",
    "print_visualization",
    "render_grid",
]

FULL_UP_TO = 8  # machines' rows; more of them are drawn with a line per worker group only
NAME_WIDTH = 20  # columns of a group's name
SPAN_WIDTH = 14  # columns that a cell may grow to for its CPU list
GROUP_STYLES = ("bold cyan", "bold yellow", "bold magenta", "bold green", "bold blue", "bold red")
ASCII = str.maketrans("┌┬┐├┼┤└┴┘─│╶╴╷╵…·", "+++++++++-|--||.-")
# (line above, line below, cell to the left, cell to the right) of a corner
CORNERS = {
    (False, True, False, True): "┌",
    (False, True, True, True): "┬",
    (False, True, True, False): "┐",
    (True, True, False, True): "├",
    (True, True, True, True): "┼",
    (True, True, True, False): "┤",
    (True, False, False, True): "└",
    (True, False, True, True): "┴",
    (True, False, True, False): "┘",
}

Segment = tuple[str, str]  # text, style


@frozen
class _Row:
    label: str
    texts: tuple[str, ...]
    style: str = ""
    spans: bool = False  # equal neighbours share one wide cell


@frozen
class _Block:
    """The rows of one node, or of a piece of it where the node is wider than the page."""

    head: tuple[str, ...]
    columns: int
    rows: tuple[_Row, ...]


def render_grid(picture: Picture, *, width: int | None = None, color: bool = False, ascii_only: bool = False, detail: str = "auto") -> str:
    """Draws a picture as text.

    Args:
        picture: What to draw.
        width: Columns of the page; wider nodes are continued below. None: as wide as needed.
        color: Colour the groups by ANSI escapes (for a terminal).
        ascii_only: Draw the lines by ``+-|``, for an output whose encoding has no box characters.
        detail: ``full`` draws GPU ids, NUMA nodes and CPUs; ``ranks`` only the workers; ``auto`` is ``full`` for small clusters.

    Returns:
        The lines, joined by newlines, without one at the end.

    Raises:
        ValueError: ``detail`` is none of the three.
    """
    if detail not in ("auto", "full", "ranks"):
        raise ValueError(f"detail: must be auto, full or ranks, got {detail!r}. Fix: detail='auto'")
    full = detail == "full" or (detail == "auto" and len(picture.nodes) <= FULL_UP_TO)
    tables = [(node, _rows(node, picture, full)) for node in picture.nodes]
    inline = min((len(rows) for node, rows in tables if node.cells), default=1) == 1
    title_width = max((len(node.heading) for node in picture.nodes), default=0)
    heads = [_head(node, inline, title_width) for node in picture.nodes]
    head_width = max((len(line) for head in heads for line in head), default=0)
    label_width = max((len(row.label) for _, rows in tables for row in rows), default=0)
    cell_width = _cell_width(tables)
    margin = head_width + 2 + label_width + 1
    per_line = max((node_columns for node_columns in (len(node.cells) for node in picture.nodes)), default=0)
    if width is not None:
        per_line = max(1, min(per_line, (width - margin - 1) // (cell_width + 1)))
    blocks = [block for head, (node, rows) in zip(heads, tables, strict=True) for block in _pieces(head, len(node.cells), rows, per_line)]

    lines: list[list[Segment]] = [[(picture.title, "bold")]]
    if picture.simulated:
        lines.append([("SIMULATED: nodes and accelerators are made up, on this machine", "bold red")])
    lines.append([])
    above = 0
    for block in blocks:
        if above or block.columns:
            lines.append([(" " * margin + _border(above, block.columns, cell_width), "dim")])
        above = block.columns
        if not block.columns:
            lines.append([(block.head[0], "bold"), ("  (no bundles)", "dim")])
        for index, row in enumerate(block.rows):
            head = block.head[index] if index < len(block.head) else ""
            lines.append(
                [
                    (head.ljust(head_width + 2), "bold" if index == 0 else ""),
                    (row.label.ljust(label_width + 1), row.style),
                    *_cells(row, cell_width),
                ]
            )
    if above:
        lines.append([(" " * margin + _border(above, 0, cell_width), "dim")])
    if not blocks:
        lines.append([("(no nodes)", "dim")])
    lines += [[], *_legend(picture, full)] if picture.nodes else []
    paint = _painter(color)
    text = "\n".join("".join(paint(text, style) for text, style in line if text).rstrip() for line in lines)
    return text.translate(ASCII).encode("ascii", "replace").decode() if ascii_only else text


def _rows(node: GridNode, picture: Picture, full: bool) -> list[_Row]:
    bundles = tuple(str(cell.bundle_idx) for cell in node.cells)
    gpus = tuple(cell.gpu for cell in node.cells)
    rows: list[_Row] = []
    known = any(gpus)
    if not picture.groups or (full and (not known or gpus != bundles)):
        rows.append(_Row("bundle", bundles))
    if full and known:
        rows.append(_Row(picture.accelerator or "GPU", gpus))
    if full and any(cell.numa for cell in node.cells):
        rows.append(_Row("NUMA", tuple(cell.numa for cell in node.cells), spans=True))
    if full and any(cell.cpus for cell in node.cells):
        rows.append(_Row("CPUs", tuple(cell.cpus for cell in node.cells), spans=True))
    for index, group in enumerate(picture.groups):
        texts = tuple(
            ",".join(f"{worker.rank}{worker.mark}" for worker in cell.workers if worker.group == group.name) for cell in node.cells
        )
        # With several clusters in one picture most groups have nothing on a given node.
        if any(texts) or not any(cell.workers for cell in node.cells):
            rows.append(_Row(_clip(group.name, NAME_WIDTH), texts, GROUP_STYLES[index % len(GROUP_STYLES)]))
    return rows


def _head(node: GridNode, inline: bool, title_width: int) -> tuple[str, ...]:
    if inline:
        return (f"{node.heading:{title_width}}  {node.place}".rstrip(),)
    return (node.heading, node.place)


def _cell_width(tables: Sequence[tuple[GridNode, Sequence[_Row]]]) -> int:
    width = 2
    for _, rows in tables:
        for row in rows:
            for count, text in _spans(row):
                needed = -(-(len(text) + 3) // count) - 1 if row.spans else len(text) + 2
                width = max(width, min(needed, SPAN_WIDTH) if row.spans else needed)
    return width


def _spans(row: _Row) -> Iterable[tuple[int, str]]:
    if not row.spans:
        return ((1, text) for text in row.texts)
    return ((len(list(same)), text) for text, same in groupby(row.texts))


def _cells(row: _Row, cell_width: int) -> list[Segment]:
    segments: list[Segment] = [("│", "dim")]
    for count, text in _spans(row):
        room = count * (cell_width + 1) - 1
        clipped = _clip(text, room - 2)
        segments.append((f" {clipped:<{room - 1}}" if row.spans else f"{clipped:>{room - 1}} ", row.style))
        segments.append(("│", "dim"))
    return segments


def _pieces(head: tuple[str, ...], columns: int, rows: Sequence[_Row], per_line: int) -> Iterable[_Block]:
    if not columns:
        yield _Block(head, 0, ())
    for start in range(0, columns, max(per_line, 1)):
        part = slice(start, start + per_line)
        yield _Block(
            head if start == 0 else ("",),
            len(rows[0].texts[part]),
            tuple(_Row(row.label, row.texts[part], row.style, row.spans) for row in rows),
        )


def _border(above: int, below: int, cell_width: int) -> str:
    line = ""
    columns = max(above, below)
    for column in range(columns + 1 if columns else 0):
        up, down = bool(above) and column <= above, bool(below) and column <= below
        line += CORNERS.get((up, down, column > 0, column < columns), "─")
        line += "─" * cell_width if column < columns else ""
    return line


def _legend(picture: Picture, full: bool) -> list[list[Segment]]:
    lines: list[list[Segment]] = []
    for index, group in enumerate(picture.groups):
        lines.append([(group.name, GROUP_STYLES[index % len(GROUP_STYLES)]), (f": {count_of(group.size, 'worker')}, by rank", "")])
    texts = [
        ("!: not wholly bound to its CPUs", "!" in picture.marks),
        ("~: binding skipped", "~" in picture.marks),
        ("GPU ids, NUMA nodes and CPUs are left out at this size", bool(picture.groups) and not full),
    ]
    return lines + [[(text, "dim")] for text in [text for text, shown in texts if shown] + picture.sentences]


def _clip(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _painter(color: bool) -> Callable[[str, str], str]:
    if not color:
        return lambda text, style: text
    from rich.color import ColorSystem
    from rich.style import Style

    def paint(text: str, style: str) -> str:
        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD) if style else text

    return paint
