"""One picture of a sweep: a card for each job with its layout and its seconds, all on the same scales, so that they can be compared."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

from attrs import frozen

from rl_cluster.planning.naming import count_of
from rl_cluster.views.svg_shapes import CHARACTER, PALETTE, STYLE, clip, is_light, legal, rectangle, text_width, words
from rl_cluster.views.sweep_summary import JobRow, Machine, render_counts
from rl_cluster.views.sweep_table import render_sweep_verdict, seconds_after_ray, split_overrides

PAGE = 20  # margins and lengths are in pixels
GAP = 12
PAD = 10
CARD_WIDTH = 330
MOST_COLUMNS = 4
CELL = 16
CELLS_PER_LINE = 8
MOST_MACHINES = 48  # of one card that are drawn
LINE = 17
BAR = 14
BAR_LABEL = 92
STEPS_HEIGHT = BAR + LINE + 6
ERROR_LINES = 5
COLORS = {"ok": "#1a7f37", "planned": "#1a7f37", "failed": "#c4001d", "interrupted": "#9a6700", "not run": "#6e7781", "running": "#0969da"}
STEPS = (("placing", "#8250df"), ("bringing workers up", "#54aeff"), ("checking and giving back", "#afb8c1"))
OWN_STYLE = (
    ".card{fill:#ffffff;stroke:#d0d7de}.status{font-size:11px;font-weight:700;fill:#ffffff}.alert{fill:#c4001d}.idle{opacity:.55}"
    ".cell{font-size:10px;font-weight:600}.track{fill:#eaeef2}"
    "@media (prefers-color-scheme:dark){.card{fill:#0d1117;stroke:#3d444d}.status{fill:#ffffff}.alert{fill:#ff7b72}.track{fill:#21262d}}"
)


@frozen
class _Scales:
    """What all cards have in common."""

    columns: int  # of machines in a card
    names: tuple[str, ...]  # of logical nodes, in the order of their colours
    longest_s: float
    shares_names: bool  # logical nodes are "0", "1", ...: written into the cells

    def color(self, name: str) -> str:
        return PALETTE[self.names.index(name) % len(PALETTE)]


def render_sweep_svg(rows: Sequence[JobRow]) -> str:
    """Draws a sweep as SVG.

    Args:
        rows: Its jobs, in the order of the cards.

    Returns:
        An XML document that needs nothing else. Each card says what makes the job differ, how it ended, where its logical nodes lie
        (a box for each machine, a cell for each accelerator or CPU bundle, coloured by logical node), and the seconds of its steps.
    """
    common, own = split_overrides(rows) if rows else ((), [])
    short = _short_words({word for words_of in own for word in words_of})
    scales = _scales(rows)
    columns = _card_columns(len(rows))
    inner = columns * (CARD_WIDTH + GAP) - GAP
    shapes: list[str] = []
    y = float(PAGE)
    if any(row.simulated for row in rows):
        shapes.append(rectangle(PAGE, y, inner, 24, "banner", radius=4))
        shapes.append(words(PAGE + 8, y + 17, "SIMULATED: made-up nodes and accelerators", "alarm"))
        y += 24 + GAP
    title = f"Sweep of {count_of(len(rows), 'job')}"
    shapes.append(words(PAGE, y + 17, title, "title"))
    shapes.append(words(PAGE + text_width(title, 17) + GAP, y + 17, render_sweep_verdict(rows), "text soft"))
    y += 17 + GAP
    for line in _wrapped(f"all with {' '.join(common)}", inner) if common else []:
        shapes.append(words(PAGE, y + 10, line, "text soft"))
        y += LINE
    for start in range(0, len(rows), columns):
        beside = rows[start : start + columns]
        cards = [_card(row, [short.get(word, word) for word in its], scales) for row, its in zip(beside, own[start:], strict=False)]
        height = max(_height(card) for card in cards)
        for index, (card, row) in enumerate(zip(cards, beside, strict=True)):
            shapes += _draw_card(card, row, PAGE + index * (CARD_WIDTH + GAP), y, height, scales)
        y += height + GAP
    legend, y = _legend(rows, scales, y + 4, inner)
    width, height = math.ceil(inner + 2 * PAGE), math.ceil(y + PAGE - GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f" aria-label={quoteattr(legal(f'{title}. {render_sweep_verdict(rows)}'))}>\n<style>{STYLE}{OWN_STYLE}</style>\n"
        + "\n".join([rectangle(0, 0, width, height, "page", radius=8), *shapes, *legend])
        + "\n</svg>\n"
    )


def _short_words(long: set[str]) -> dict[str, str]:
    """``strategy=PACK`` for ``cluster.strategy=PACK``, where no other key of the sweep ends in the same word."""
    keys = {word: word.partition("=")[0] for word in long}
    last = {key: key.rpartition(".")[2] for key in keys.values()}
    times = Counter(last.values())
    return {word: last[key] + word[len(key) :] for word, key in keys.items() if times[last[key]] == 1}


def _card_columns(jobs: int) -> int:
    """Few cards stand in one line; more in the fewest lines of equal length."""
    if jobs <= MOST_COLUMNS:
        return max(jobs, 1)
    return math.ceil(jobs / math.ceil(jobs / MOST_COLUMNS))


def _scales(rows: Sequence[JobRow]) -> _Scales:
    names = tuple(dict.fromkeys(name for row in rows for machine in row.machines for name in sorted(machine.bundles, key=_by_number)))
    names = tuple(sorted(names, key=_by_number))
    widest = max((_machine_width(machine) for row in rows for machine in row.machines), default=CELL)
    columns = max(1, int((CARD_WIDTH - 2 * PAD + 6) // (widest + 6)))
    longest = max((seconds for row in rows for seconds in _steps(row)[-1:]), default=0.0)
    return _Scales(columns, names, longest, all(name.isdigit() for name in names))


def _by_number(name: str) -> tuple[str, int]:
    role, _, number = name.rpartition(" ")
    return role, int(number)


def _steps(row: JobRow) -> list[float]:
    """Seconds after Ray was connected at which the steps ended; empty if the job never came that far."""
    ends = [seconds_after_ray(row, moment) for moment in (row.placed_s, row.workers_s, row.total_s)]
    if ends[2] is None or ends[1] is None:
        return []
    return [ends[0] or 0.0, ends[1], ends[2]]


def _slots(machine: Machine) -> int:
    return max(machine.accelerators, len(machine.bundles), 1)


def _machine_width(machine: Machine) -> float:
    return min(_slots(machine), CELLS_PER_LINE) * CELL + 6


def _machine_height(machine: Machine) -> float:
    return math.ceil(_slots(machine) / CELLS_PER_LINE) * CELL + 6


@frozen
class _Card:
    """One job, laid out."""

    heads: tuple[str, ...]
    lines: tuple[tuple[Machine, ...], ...]  # machines, line by line
    more: int  # machines that are not drawn
    errors: tuple[str, ...]
    steps: tuple[float, ...]


def _card(row: JobRow, own: Sequence[str], scales: _Scales) -> _Card:
    room = CARD_WIDTH - 2 * PAD
    badge = text_width(row.status, 11) + 30
    heads = [clip(word, room - (badge + 28 if index == 0 else 0), 13) for index, word in enumerate(own or ("(as it is)",))]
    drawn = row.machines[:MOST_MACHINES]
    lines = tuple(tuple(drawn[start : start + scales.columns]) for start in range(0, len(drawn), scales.columns))
    errors = _wrapped(row.error, room) if row.error else []
    if len(errors) > ERROR_LINES:
        errors = [*errors[: ERROR_LINES - 1], clip(errors[ERROR_LINES - 1] + " …………", room, 12)]
    return _Card(tuple(heads), lines, len(row.machines) - len(drawn), tuple(errors), tuple(_steps(row)))


def _height(card: _Card) -> float:
    machines = sum(max(_machine_height(machine) for machine in line) + 6 for line in card.lines)
    steps = STEPS_HEIGHT if card.steps else 0
    return PAD + LINE * (len(card.heads) + bool(card.more) + len(card.errors)) + 8 + machines + steps + PAD


def _draw_card(card: _Card, row: JobRow, x: float, y: float, height: float, scales: _Scales) -> list[str]:
    badge = text_width(row.status, 11) + 14
    right = x + CARD_WIDTH - PAD
    shapes = [
        rectangle(x, y, CARD_WIDTH, height, "card", radius=8),
        words(x + PAD, y + PAD + 12, f"#{row.job}", "where soft"),
        rectangle(right - badge, y + PAD, badge, 17, "", radius=8, fill=COLORS[row.status]),
        words(right - badge / 2, y + PAD + 12.5, row.status, "status", anchor="middle"),
    ]
    top = y + PAD
    for head in card.heads:
        shapes.append(words(x + PAD + 28, top + 12, head, "name"))
        top += LINE
    top += 8
    for line in card.lines:
        left = x + PAD
        for machine in line:
            shapes += _draw_machine(machine, left, top, scales)
            left += _machine_width(machine) + 6
        top += max(_machine_height(machine) for machine in line) + 6
    if card.more:
        shapes.append(words(x + PAD, top + 12, f"and {count_of(card.more, 'more machine')}", "text soft"))
        top += LINE
    for error in card.errors:
        shapes.append(words(x + PAD, top + 12, error, "text alert"))
        top += LINE
    if card.steps:
        # on the floor of the card, so that the bars of a line of cards stand side by side
        shapes += _draw_steps(card.steps, row, x + PAD, y + height - PAD - STEPS_HEIGHT + 2, scales)
    return shapes


def _draw_machine(machine: Machine, x: float, y: float, scales: _Scales) -> list[str]:
    idle = "" if machine.bundles else " idle"
    slots = _slots(machine)
    used = f"{count_of(len(machine.bundles), 'bundle')} on {count_of(slots, 'place')}"
    shapes = [rectangle(x, y, _machine_width(machine), _machine_height(machine), f"node{idle}", radius=4, tip=f"{machine.address}: {used}")]
    for slot in range(slots):
        line, column = divmod(slot, CELLS_PER_LINE)
        left, top, size = x + 4 + column * CELL, y + 4 + line * CELL, CELL - 2
        if slot >= len(machine.bundles):
            shapes.append(rectangle(left, top, size, size, f"free{idle}", radius=2))
            continue
        name = machine.bundles[slot]
        color = scales.color(name)
        shapes.append(rectangle(left, top, size, size, "", radius=2, fill=color, tip=f"logical node {name} on {machine.address}"))
        if scales.shares_names and len(name) < 3:
            ink = "on-light" if is_light(color) else "on-dark"
            shapes.append(words(left + size / 2, top + 10.5, name, f"cell {ink}", anchor="middle"))
    return shapes


def _draw_steps(steps: Sequence[float], row: JobRow, x: float, y: float, scales: _Scales) -> list[str]:
    room = CARD_WIDTH - 2 * PAD - BAR_LABEL
    shapes = [rectangle(x, y, room, BAR, "track", radius=3)]
    before = 0.0
    for (what, color), end in zip(STEPS, steps, strict=True):
        left, right = (room * at / (scales.longest_s or 1.0) for at in (before, end))
        if right > left:
            shapes.append(rectangle(x + left, y, right - left, BAR, "", radius=1, fill=color, tip=f"{what}: {end - before:.2f} s"))
        before = end
    shapes.append(words(x + room + 8, y + 11.5, f"ready {steps[1]:.1f} s", "where"))
    used = f"{row.physical_nodes} of {count_of(len(row.machines), 'machine')}" if row.physical_nodes else ""
    bound = render_counts(row.cpu_bindings)
    facts = " · ".join(text for text in (used, f"CPUs {bound}" if bound else "") if text)
    shapes.append(words(x, y + BAR + LINE, clip(facts, CARD_WIDTH - PAD, 12), "text soft"))
    return shapes


def _legend(rows: Sequence[JobRow], scales: _Scales, y: float, inner: float) -> tuple[list[str], float]:
    entries = [(f"logical node {name}" if scales.shares_names else name, "", scales.color(name)) for name in scales.names[: len(PALETTE)]]
    if len(scales.names) > len(PALETTE):
        entries.append((f"and {len(scales.names) - len(PALETTE)} more, colours over again", "hollow", ""))
    if any(_slots(machine) > len(machine.bundles) for row in rows for machine in row.machines):
        entries.append(("free", "free", ""))
    shapes, y = _legend_line(entries, y, inner)
    if any(_steps(row) for row in rows):
        after, y = _legend_line([(f"seconds {what}", "", color) for what, color in STEPS], y, inner)
        shapes += after
        note = f"Bars begin when Ray was connected and share one scale: {scales.longest_s:.1f} s. A box is a machine."
        shapes.append(words(PAGE, y + 12, note, "text soft"))
        y += LINE + 4
    return shapes, y


def _legend_line(entries: Sequence[tuple[str, str, str]], y: float, inner: float) -> tuple[list[str], float]:
    shapes: list[str] = []
    x = float(PAGE)
    for label, kind, color in entries:
        width = 20 + text_width(label, 12) + GAP
        if x > PAGE and x + width > PAGE + inner:
            x, y = float(PAGE), y + LINE + 3
        shapes.append(rectangle(x, y + 1, 13, 13, kind, radius=3, fill=color))
        shapes.append(words(x + 19, y + 12, label, "text"))
        x += width
    return shapes, y + LINE + 3 if entries else y


def _wrapped(text: str, room: float) -> list[str]:
    return textwrap.wrap(text, max(20, int(room / (12 * CHARACTER))))
