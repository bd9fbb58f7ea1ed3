"""The drawing of a cluster as one self-contained SVG: no script, no outside font, readable on light and dark pages."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from attrs import frozen

from rl_cluster.picture import GridCell, GridNode, Picture, count_of

# Okabe and Ito's palette: told apart with every common colour blindness. Further groups start over, so their names stand in the tooltips.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c")
CHARACTER = 0.6  # width of an average character, in font sizes; fonts differ, so texts get some room
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
ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML 1.0 can't hold

STYLE = """
text{font-family:system-ui,'Segoe UI',Roboto,'DejaVu Sans',Arial,sans-serif;fill:#1b1f24}
.page{fill:#ffffff}.node{fill:#f6f8fa;stroke:#8c959f}.numa{fill:#ffffff;stroke:#c3cad1}.free{fill:none;stroke:#8c959f;stroke-dasharray:3 3}
.title{font-size:17px;font-weight:700}.name{font-size:13px;font-weight:700}.where{font-size:12px}.small{font-size:10px}.text{font-size:12px}
.soft{fill:#57606a}.rank{font-size:12px;font-weight:600}
.bad{stroke:#c4001d;stroke-width:2.5}.skip{stroke:#57606a;stroke-width:1.5;stroke-dasharray:3 2}
.hollow{fill:none}.banner{fill:#ffd33d}.alarm{font-size:13px;font-weight:700;fill:#1b1f24}.on-dark{fill:#ffffff}.on-light{fill:#000000}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.node{fill:#161b22;stroke:#6e7681}.numa{fill:#0d1117;stroke:#3d444d}
.free{stroke:#6e7681}.soft{fill:#9da7b3}.bad{stroke:#ff7b72}.skip{stroke:#e6edf3}.alarm{fill:#1b1f24}.on-dark{fill:#ffffff}.on-light{fill:#000000}}
""".replace("\n", "")


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
    inner = max(columns * (width + GAP) - GAP, _text_width(picture.title, TITLE_SIZE), 330 if picture.simulated else 0)
    width = (inner + GAP) / columns - GAP
    shapes: list[str] = []
    y = float(PAGE)
    if picture.simulated:
        shapes.append(_rect(PAGE, y, inner, 24, "banner", radius=4))
        shapes.append(_text(PAGE + 8, y + 17, "SIMULATED: made-up nodes and accelerators", "alarm"))
        y += 24 + GAP
    shapes.append(_text(PAGE, y + TITLE_SIZE, picture.title, "title"))
    y += TITLE_SIZE + 2 * GAP
    for start in range(0, len(cards), columns):
        line = cards[start : start + columns]
        for index, card in enumerate(line):
            shapes += _draw_card(card, PAGE + index * (width + GAP), y, width, picture, colors)
        y += max(card.height for card in line) + GAP
    if not cards:
        shapes.append(_text(PAGE, y + 12, "no nodes", "text soft"))
        y += LEGEND_LINE
    legend, y = _legend(picture, colors, y + PAD, inner)
    page_width, page_height = math.ceil(inner + 2 * PAGE), math.ceil(y + PAGE - GAP)
    label = f"{picture.title}{' (simulated)' if picture.simulated else ''}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{page_width}" height="{page_height}" viewBox="0 0 {page_width} {page_height}"'
        f' role="img" aria-label={quoteattr(_legal(label))}>\n<style>{STYLE}</style>\n'
        + "\n".join([_rect(0, 0, page_width, page_height, "page", radius=8), *shapes, *legend])
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
    head = min(_text_width(node.heading, 13) + 16 + _text_width(node.place, 12), MOST_NODE_HEAD)
    return _Card(node, tuple(numas), groups, cell, side_by_side, max(across, head, LEAST_NODE) + 2 * PAD, NODE_HEAD + down + PAD)


def _numa_width(numa: _Numa, cell: float) -> float:
    return max(numa.columns * cell + PAD, min(_text_width(numa.label, 10) + 2 * PAD, 4 * cell))


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
    title = _clip(node.heading, room, 13)
    machine = _clip(node.place, room - _text_width(title, 13) - 8, 12)
    shapes = [
        _rect(x, y, width, card.height, "node", radius=6),
        _text(x + PAD + 2, y + 18, title, "name"),
        _text(x + width - PAD - 2, y + 18, machine, "where soft", anchor="end"),
    ]
    if not node.cells:
        return [*shapes, _text(x + PAD + 2, y + NODE_HEAD + 12, "no bundles", "text soft")]
    left, top = x + PAD, y + NODE_HEAD
    for numa in card.numas:
        numa_width, numa_height = _numa_width(numa, card.cell), _numa_height(numa, len(card.groups))
        shapes.append(_rect(left, top, numa_width, numa_height, "numa", radius=4))
        if numa.label:
            shapes.append(_text(left + PAD, top + 12, _clip(numa.label, numa_width - 2 * PAD, 10), "small soft"))
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
    shapes = [_text(middle, y + 11, _clip(device, card.cell - 2, 10), "small soft", anchor="middle")]
    left, width = x + 2, card.cell - 4
    for index, group in enumerate(card.groups or ("",)):
        top = y + CELL_HEAD + index * (WORKER_HEIGHT + WORKER_GAP)
        workers = [worker for worker in cell.workers if worker.group == group]
        if not workers:
            shapes.append(_rect(left, top, width, WORKER_HEIGHT, "free", radius=3, tip=where + (": no worker" if picture.groups else "")))
            continue
        ranks = ",".join(f"{worker.rank}{worker.mark}" for worker in workers)
        kind = "bad" if "!" in ranks else "skip" if "~" in ranks else ""
        status = ", ".join(dict.fromkeys(worker.status for worker in workers if worker.status))
        tip = f"{group} rank {','.join(str(worker.rank) for worker in workers)}: {where}" + (f", binding {status}" if status else "")
        shapes.append(_rect(left, top, width, WORKER_HEIGHT, kind, radius=3, fill=colors[group], tip=tip))
        ink = "on-light" if _is_light(colors[group]) else "on-dark"
        shapes.append(_text(middle, top + 14.5, _clip(ranks, width, 12), f"rank {ink}", anchor="middle"))
    return shapes


def _legend(picture: Picture, colors: dict[str, str], y: float, inner: float) -> tuple[list[str], float]:
    shapes: list[str] = []
    x = float(PAGE)
    for group in picture.groups:
        text = f"{group.name} ({count_of(group.size, 'worker')}, by rank)"
        if x > PAGE and x + 20 + _text_width(text, 12) > PAGE + inner:
            x, y = float(PAGE), y + LEGEND_LINE
        shapes.append(_rect(x, y, 14, 14, "", radius=3, fill=colors[group.name]))
        shapes.append(_text(x + 20, y + 12, _clip(text, inner - 20, 12), "text"))
        x += 20 + _text_width(text, 12) + 2 * GAP
    y += LEGEND_LINE if picture.groups else 0
    for mark, kind, text in (("!", "bad", "!: not wholly bound to its CPUs"), ("~", "skip", "~: binding skipped")):
        if mark in picture.marks:
            shapes.append(_rect(PAGE + 1, y + 1, 12, 12, f"{kind} hollow", radius=3))
            shapes.append(_text(PAGE + 20, y + 12, text, "text"))
            y += LEGEND_LINE
    for note in picture.sentences:
        for line in textwrap.wrap(note, max(20, int(inner / (12 * CHARACTER)))):
            shapes.append(_text(PAGE, y + 12, line, "text soft"))
            y += LEGEND_LINE
    return shapes, y


def _rect(x: float, y: float, width: float, height: float, kind: str, *, radius: float, fill: str = "", tip: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' fill="{fill}"' if fill else "")
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"{attributes}'
    return f"{shape}><title>{_escape(tip)}</title></rect>" if tip else f"{shape}/>"


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{f" text-anchor={quoteattr(anchor)}" if anchor else ""}>{_escape(text)}</text>'


def _legal(text: str) -> str:
    return ILLEGAL.sub("\ufffd", text)


def _escape(text: str) -> str:
    return escape(_legal(text))


def _text_width(text: str, size: float) -> float:
    return len(text) * size * CHARACTER


def _clip(text: str, room: float, size: float) -> str:
    most = max(1, int(room / (size * CHARACTER)))
    return text if len(text) <= most else text[: most - 1] + "…"


def _is_light(color: str) -> bool:
    """Whether black reads better on the colour than white does (WCAG's contrast of relative luminances)."""
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    channels = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in (red, green, blue)]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05)
