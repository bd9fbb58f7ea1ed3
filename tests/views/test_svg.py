"""The SVG drawings: valid, self-contained, complete, and within their page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import attrs
import pytest
from made_up import make_binding, make_layout, make_workers

from rl_cluster.grid import Picture, build_group_picture, build_picture
from rl_cluster.views.svg import render_svg
from rl_cluster.views.svg_shapes import PALETTE

SVG = "{http://www.w3.org/2000/svg}"
ONE = make_layout([1])
TWO = make_layout([8, 8], simulated=True)
LARGE = make_layout([8] * 32)
SPLIT = make_layout([4, 0, 2], on=[[0, 0, 1, 1], [], [1, 1]])
WIDE = make_layout([16])

PICTURES = {
    "1x1": build_picture(ONE, {"worker": make_workers(ONE)}),
    "2x8": build_picture(TWO, {"worker": make_workers(TWO)}),
    "2x8_plan": build_picture(TWO),
    "32x8": build_picture(LARGE, {"worker": make_workers(LARGE)}),
    "colocated_32x8": build_picture(LARGE, {"policy": make_workers(LARGE), "reward": make_workers(LARGE)}),
    "split_shared_empty": build_picture(SPLIT, {"worker": make_workers(SPLIT)}),
    "1x16": build_picture(WIDE, {"worker": make_workers(WIDE)}),
    "no_nodes": build_group_picture([]),
    "empty_nodes": build_group_picture([0, 0]),
}


def texts(picture: Picture) -> list[str]:
    """All texts that are drawn (tooltips are none of them)."""
    return [element.text or "" for element in ET.fromstring(render_svg(picture)).iter(f"{SVG}text")]


def tips(picture: Picture) -> list[str]:
    """All tooltips."""
    return [element.text or "" for element in ET.fromstring(render_svg(picture)).iter(f"{SVG}title")]


@pytest.mark.parametrize("name", PICTURES)
def test_every_box_lies_on_the_page(name: str) -> None:
    """No box is cut off by the edge of the page."""
    root = ET.fromstring(render_svg(PICTURES[name]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"
    for box in root.iter(f"{SVG}rect"):
        assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert 0 <= float(box.attrib["y"]) <= float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height


@pytest.mark.parametrize("name", PICTURES)
def test_nodes_do_not_overlap(name: str) -> None:
    """Two nodes never cover each other."""
    root = ET.fromstring(render_svg(PICTURES[name]))
    boxes = [
        tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        for box in root.iter(f"{SVG}rect")
        if box.get("class") == "node"
    ]
    assert len(boxes) == len(PICTURES[name].nodes)
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[index + 1 :]:
            assert x + width <= other_x or other_x + other_width <= x or y + height <= other_y or other_y + other_height <= y


@pytest.mark.parametrize("name", ["32x8", "colocated_32x8"])
def test_a_large_cluster_has_the_shape_of_a_screen(name: str) -> None:
    """32 nodes stand in a grid, not in one long column, and on a page that a screen shows at a readable size."""
    root = ET.fromstring(render_svg(PICTURES[name]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert 1.2 < width / height < 2.2
    assert width < 1920


@pytest.mark.parametrize("name", PICTURES)
def test_it_needs_nothing_else(name: str) -> None:
    """No script, no event, no link, no outside font or style."""
    root = ET.fromstring(render_svg(PICTURES[name]))
    assert {element.tag for element in root.iter()} <= {f"{SVG}{tag}" for tag in ("svg", "style", "rect", "text", "title")}
    assert not [key for element in root.iter() for key in element.attrib if key.startswith("on") or "href" in key]
    style = root.find(f"{SVG}style")
    assert style is not None
    assert style.text
    assert "url(" not in style.text
    assert "@import" not in style.text


def test_every_rank_is_drawn_once() -> None:
    """Each worker has a cell with its rank."""
    drawn = [
        element.text
        for element in ET.fromstring(render_svg(PICTURES["32x8"])).iter(f"{SVG}text")
        if element.attrib["class"].startswith("rank")
    ]
    assert sorted(int(text or "") for text in drawn) == list(range(256))


def test_cells_are_grouped_by_numa_node() -> None:
    """Each NUMA node has a box that names it and its CPUs."""
    assert [text for text in texts(PICTURES["2x8"]) if text.startswith("NUMA")] == ["NUMA 0 · CPUs 0-15", "NUMA 1 · CPUs 16-31"] * 2


def test_a_tooltip_tells_all_about_a_worker() -> None:
    """What has no room in a cell stands in its tooltip."""
    assert tips(PICTURES["1x1"]) == ["worker rank 0: bundle 0.0, GPU 0, NUMA 0, CPUs 0-15, binding bound"]


def test_simulated_is_said_only_where_it_is() -> None:
    """A made-up cluster carries a banner and says so to a screen reader."""
    assert "SIMULATED: made-up nodes and accelerators" in texts(PICTURES["2x8"])
    assert not [text for text in texts(PICTURES["32x8"]) if "SIMULATED" in text]
    assert ET.fromstring(render_svg(PICTURES["2x8"])).attrib["aria-label"].endswith("(simulated)")


def test_groups_have_colours_of_their_own() -> None:
    """Colocated groups are stacked, each in its colour, which the legend names."""
    layout = make_layout([2], max_colocated_worker_groups=2)
    picture = build_picture(layout, {"policy": make_workers(layout), "reward": make_workers(layout)[:1]})
    fills = [element.attrib["fill"] for element in ET.fromstring(render_svg(picture)).iter(f"{SVG}rect") if "fill" in element.attrib]
    assert fills == [PALETTE[0], PALETTE[1], PALETTE[0], PALETTE[0], PALETTE[1]]  # cell 0, cell 1, legend
    assert [text for text in texts(picture) if "by rank" in text] == ["policy (2 workers, by rank)", "reward (1 worker, by rank)"]


@pytest.mark.parametrize("color", PALETTE)
def test_ranks_are_readable_on_their_colour(color: str) -> None:
    """Black or white stands on a colour with a contrast of at least 4.5 to 1, WCAG's bound for text."""
    from rl_cluster.views.svg_shapes import is_light

    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    assert ((luminance + 0.05) / 0.05 if is_light(color) else 1.05 / (luminance + 0.05)) >= 4.5


def test_what_is_not_bound_stands_out() -> None:
    """A failed binding has an edge and a mark of its own, and the legend says what they mean."""
    layout = make_layout([2])
    workers = make_workers(layout)
    workers[1] = attrs.evolve(workers[1], binding=make_binding(1, cpu_status="failed: EPERM"))
    picture = build_picture(layout, {"worker": workers})
    assert "1!" in texts(picture)
    assert "!: not wholly bound to its CPUs" in texts(picture)
    assert "worker rank 1: bundle 0.1, GPU 1, NUMA 0, CPUs 0-31, binding failed: EPERM" in tips(picture)


@pytest.mark.parametrize(
    "name", ["<policy> & 'reward' \"x\"", "]]>", "tab\tand\nline", "control\x00\x1b[31m", "\ud800", "模型", "x" * 500], ids=ascii
)
def test_any_name_gives_valid_xml(name: str) -> None:
    """Names are escaped; what XML can't hold is replaced."""
    picture = build_picture(ONE, {name: make_workers(ONE)}, title=name)
    root = ET.fromstring(render_svg(picture).encode())
    assert root.attrib["aria-label"]
