"""The drawing of a cluster as one self-contained SVG: no script, no outside font, readable on light and dark pages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from attrs import frozen

from rl_cluster.planning.naming import count_of
from rl_cluster.views.picture import GridCell, GridNode, Picture
from rl_cluster.views.svg_shapes import CHARACTER, PALETTE, STYLE, clip, is_light, legal, rectangle, text_width, words

ASPECT = 1.6  # width to height that a page of many nodes aims at
CELLS_PER_LINE = 8
PAGE = 20  # margins and lengths are in pixels
GAP = 10
CELL_WIDTH = 46
WIDE_CELL = 60  # where there are few nodes
FEW_NODES = 4  # these stand one below the other, as in the text
CELL_HEAD = 15
WORKER_HEIGHT = 20
WORKER_GAP = 2
NODE_HEAD = 26
NUMA_HEAD = 14
PAD = 6
LEGEND_LINE = 20
LEAST_NODE = 150
MOST_NODE_HEAD = 460
TITLE_SIZE = 17


@frozen
class _Numa:
    """The cells of one node that hang on the same NUMA node."""

    label: str
    cells: tuple[GridCell, ...]
    columns: int
    lines: int


@frozen
class _Card:
    """One node, laid out."""

    node: GridNode
    numas: tuple[_Numa, ...]
    groups: tuple[str, ...]  # that have workers here: a line each in every cell
    cell: float  # width of one
    side_by_side: bool
    width: float
    height: float


def render_svg(picture: Picture) -> str:
    """Draws a picture as SVG.

    Args:
        picture: What to draw.

    Returns:
        An XML document that needs nothing else: nodes as boxes, their accelerators as cells that are grouped by NUMA node, a coloured
        line per worker with its rank, a legend. Details stand in tooltips. A simulated cluster carries a banner.
    """
    colors = {group.name: PALETTE[index % len(PALETTE)] for index, group in enumerate(picture.groups)}
    cell = WIDE_CELL if len(picture.nodes) <= FEW_NODES else CELL_WIDTH
    cards = [_card(node, picture, cell) for node in picture.nodes]
    width = max((card.width for card in cards), default=0)
    columns = _columns(cards, width)
    inner = max(columns * (width + GAP) - GAP, text_width(picture.title, TITLE_SIZE), 330 if picture.simulated else 0)
    width = (inner + GAP) / columns - GAP
    shapes: list[str] = []
    y = float(PAGE)
    if picture.simulated:
        shapes.append(rectangle(PAGE, y, inner, 24, "banner", radius=4))
        shapes.append(words(PAGE + 8, y + 17, "SIMULATED: made-up nodes and accelerators", "alarm"))
        y += 24 + GAP
    shapes.append(words(PAGE, y + TITLE_SIZE, picture.title, "title"))
    y += TITLE_SIZE + 2 * GAP
    for start in range(0, len(cards), columns):
        line = cards[start : start + columns]
        for index, card in enumerate(line):
            shapes += _draw_card(card, PAGE + index * (width + GAP), y, width, picture, colors)
        y += max(card.height for card in line) + GAP
    if not cards:
        shapes.append(words(PAGE, y + 12, "no nodes", "text soft"))
        y += LEGEND_LINE
    legend, y = _legend(picture, colors, y + PAD, inner)
    page_width, page_height = math.ceil(inner + 2 * PAGE), math.ceil(y + PAGE - GAP)
    label = f"{picture.title}{' (simulated)' if picture.simulated else ''}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{page_width}" height="{page_height}" viewBox="0 0 {page_width} {page_height}"'
        f' role="img" aria-label={quoteattr(legal(label))}>\n<style>{STYLE}</style>\n'
        + "\n".join([rectangle(0, 0, page_width, page_height, "page", radius=8), *shapes, *legend])
        + "\n</svg>\n"
    )


def _card(node: GridNode, picture: Picture, cell: float) -> _Card:
    present = {worker.group for cell in node.cells for worker in cell.workers}
    groups = tuple(group.name for group in picture.groups if group.name in present)
    by_numa: dict[str, list[GridCell]] = {}
    for bundle in node.cells:
        by_numa.setdefault(bundle.numa, []).append(bundle)
    numas = []
    for numa, cells in by_numa.items():
        cpus = dict.fromkeys(bundle.cpus for bundle in cells if bundle.cpus)
        shown = f"CPUs {' / '.join(cpus)}" if cpus else ""
        label = " · ".join(text for text in (f"NUMA {numa}" if numa else "", shown) if text)
        columns = min(len(cells), CELLS_PER_LINE)
        numas.append(_Numa(label, tuple(cells), columns, -(-len(cells) // columns)))
    side_by_side = sum(numa.columns for numa in numas) <= CELLS_PER_LINE
    widths = [_numa_width(numa, cell) for numa in numas]
    heights = [_numa_height(numa, len(groups)) for numa in numas]
    across = sum(widths) + PAD * (len(numas) - 1) if side_by_side else max(widths, default=0)
    down = max(heights, default=LEGEND_LINE) if side_by_side else sum(heights) + PAD * (len(numas) - 1)
    head = min(text_width(node.heading, 13) + 16 + text_width(node.place, 12), MOST_NODE_HEAD)
    return _Card(node, tuple(numas), groups, cell, side_by_side, max(across, head, LEAST_NODE) + 2 * PAD, NODE_HEAD + down + PAD)


def _numa_width(numa: _Numa, cell: float) -> float:
    return max(numa.columns * cell + PAD, min(text_width(numa.label, 10) + 2 * PAD, 4 * cell))


def _cell_height(groups: int) -> float:
    return CELL_HEAD + max(groups, 1) * (WORKER_HEIGHT + WORKER_GAP) + WORKER_GAP


def _numa_height(numa: _Numa, groups: int) -> float:
    return (NUMA_HEAD if numa.label else 2) + numa.lines * _cell_height(groups) + 2


def _columns(cards: Sequence[_Card], width: float) -> int:
    def distance(columns: int) -> float:
        height = sum(max(card.height for card in cards[start : start + columns]) + GAP for start in range(0, len(cards), columns))
        return abs(math.log(columns * (width + GAP) / height / ASPECT))

    return min(range(1, len(cards) + 1), key=distance) if len(cards) > FEW_NODES else 1


def _draw_card(card: _Card, x: float, y: float, width: float, picture: Picture, colors: dict[str, str]) -> list[str]:
    node = card.node
    room = width - 2 * PAD
    title = clip(node.heading, room, 13)
    machine = clip(node.place, room - text_width(title, 13) - 8, 12)
    shapes = [
        rectangle(x, y, width, card.height, "node", radius=6),
        words(x + PAD + 2, y + 18, title, "name"),
        words(x + width - PAD - 2, y + 18, machine, "where soft", anchor="end"),
    ]
    if not node.cells:
        return [*shapes, words(x + PAD + 2, y + NODE_HEAD + 12, "no bundles", "text soft")]
    left, top = x + PAD, y + NODE_HEAD
    for numa in card.numas:
        numa_width, numa_height = _numa_width(numa, card.cell), _numa_height(numa, len(card.groups))
        shapes.append(rectangle(left, top, numa_width, numa_height, "numa", radius=4))
        if numa.label:
            shapes.append(words(left + PAD, top + 12, clip(numa.label, numa_width - 2 * PAD, 10), "small soft"))
        for index, cell in enumerate(numa.cells):
            line, column = divmod(index, numa.columns)
            cell_top = top + (NUMA_HEAD if numa.label else 2) + line * _cell_height(len(card.groups))
            shapes += _draw_cell(cell, card, left + PAD / 2 + column * card.cell, cell_top, picture, colors)
        if card.side_by_side:
            left += numa_width + PAD
        else:
            top += numa_height + PAD
    return shapes


def _draw_cell(cell: GridCell, card: _Card, x: float, y: float, picture: Picture, colors: dict[str, str]) -> list[str]:
    middle = x + card.cell / 2
    device = f"{picture.accelerator} {cell.gpu}" if cell.gpu else f"#{cell.bundle_idx}"
    facts = (("", device if cell.gpu else ""), ("NUMA ", cell.numa), ("CPUs ", cell.cpus))
    where = ", ".join([f"bundle {card.node.node_idx}.{cell.bundle_idx}", *(name + fact for name, fact in facts if fact)])
    shapes = [words(middle, y + 11, clip(device, card.cell - 2, 10), "small soft", anchor="middle")]
    left, width = x + 2, card.cell - 4
    for index, group in enumerate(card.groups or ("",)):
        top = y + CELL_HEAD + index * (WORKER_HEIGHT + WORKER_GAP)
        workers = [worker for worker in cell.workers if worker.group == group]
        if not workers:
            shapes.append(
                rectangle(left, top, width, WORKER_HEIGHT, "free", radius=3, tip=where + (": no worker" if picture.groups else ""))
            )
            continue
        ranks = ",".join(f"{worker.rank}{worker.mark}" for worker in workers)
        kind = "bad" if "!" in ranks else "skip" if "~" in ranks else ""
        status = ", ".join(dict.fromkeys(worker.status for worker in workers if worker.status))
        tip = f"{group} rank {','.join(str(worker.rank) for worker in workers)}: {where}" + (f", binding {status}" if status else "")
        shapes.append(rectangle(left, top, width, WORKER_HEIGHT, kind, radius=3, fill=colors[group], tip=tip))
        ink = "on-light" if is_light(colors[group]) else "on-dark"
        shapes.append(words(middle, top + 14.5, clip(ranks, width, 12), f"rank {ink}", anchor="middle"))
    return shapes


def _legend(picture: Picture, colors: dict[str, str], y: float, inner: float) -> tuple[list[str], float]:
    shapes: list[str] = []
    x = float(PAGE)
    for group in picture.groups:
        text = f"{group.name} ({count_of(group.size, 'worker')}, by rank)"
        if x > PAGE and x + 20 + text_width(text, 12) > PAGE + inner:
            x, y = float(PAGE), y + LEGEND_LINE
        shapes.append(rectangle(x, y, 14, 14, "", radius=3, fill=colors[group.name]))
        shapes.append(words(x + 20, y + 12, clip(text, inner - 20, 12), "text"))
        x += 20 + text_width(text, 12) + 2 * GAP
    y += LEGEND_LINE if picture.groups else 0
    for mark, kind, text in (("!", "bad", "!: not wholly bound to its CPUs"), ("~", "skip", "~: binding skipped")):
        if mark in picture.marks:
            shapes.append(rectangle(PAGE + 1, y + 1, 12, 12, f"{kind} hollow", radius=3))
            shapes.append(words(PAGE + 20, y + 12, text, "text"))
            y += LEGEND_LINE
    for note in picture.sentences:
        for line in textwrap.wrap(note, max(20, int(inner / (12 * CHARACTER)))):
            shapes.append(words(PAGE, y + 12, line, "text soft"))
            y += LEGEND_LINE
    return shapes, y
