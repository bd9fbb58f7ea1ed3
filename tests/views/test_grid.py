"""The text drawings, against golden files. ``python tests/views/test_grid.py`` writes the files anew."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from made_up import make_binding, make_layout, make_workers

from rl_cluster.grid import (
    build_group_picture,
    build_picture,
    build_role_picture,
    create_visualization_grid,
    get_worker_cells,
    print_legend,
    print_visualization,
    render_grid,
)
from rl_cluster.planning.layout import Layout

GOLDEN = Path(__file__).parent / "golden"

TWO = make_layout([8, 8], simulated=True, machines=3)
SPLIT = make_layout([4, 0, 2], on=[[0, 0, 1, 1], [], [1, 1]])
COLOCATED = make_layout([8], max_colocated_worker_groups=2, strategy="STRICT_PACK")
UNEVEN = make_layout([8, 4, 8], name="train")
CPU_ONLY = make_layout([4], use_gpus=False)
LARGE = make_layout([8] * 32)
POLICY, GENERATION = make_layout([2, 2], name="policy"), make_layout([4], name="generation", on=[[2, 2, 2, 2]], strategy="STRICT_PACK")


def short_of_binding() -> list[Any]:
    """Workers of which rank 1 failed to bind and rank 2 had nothing to bind to."""
    workers = make_workers(make_layout([3]))
    workers[1] = attrs.evolve(workers[1], binding=make_binding(1, cpu_status="failed: EPERM"))
    workers[2] = attrs.evolve(workers[2], binding=make_binding(2, cpu_status="skipped: unknown-node"))
    return workers


def in_domains(layout: Layout, names: list[str]) -> Layout:
    """The layout on machines of these NVLink domains, "" for one of none."""
    labelled = (
        attrs.evolve(node, labels={"ray.io/gpu-domain": name} if name else {}) for node, name in zip(layout.nodes, names, strict=True)
    )
    return attrs.evolve(layout, nodes=tuple(labelled))


def foreign(name: str, places: list[tuple[int, int]]) -> Any:
    """A worker group as other frameworks have them: (logical node, local rank) of each worker."""
    return SimpleNamespace(
        name_prefix=name, world_size=len(places), worker_metadata=[{"node_idx": node, "local_rank": local} for node, local in places]
    )


DRAWINGS: dict[str, Callable[[], str]] = {
    "plan_2x8": lambda: render_grid(build_picture(TWO)),
    "workers_1x1": lambda: render_grid(build_picture(make_layout([1]), {"worker": make_workers(make_layout([1]))})),
    "workers_2x8": lambda: render_grid(build_picture(TWO, {"worker": make_workers(TWO)}), width=80),
    "workers_2x8_narrow": lambda: render_grid(build_picture(TWO, {"worker": make_workers(TWO)}), width=48),
    "colocated": lambda: render_grid(build_picture(COLOCATED, {"policy": make_workers(COLOCATED), "reward": make_workers(COLOCATED)[4:]})),
    "uneven_plan": lambda: render_grid(build_picture(UNEVEN)),
    "uneven_workers": lambda: render_grid(build_picture(UNEVEN, {"worker": make_workers(UNEVEN, binding=False)})),
    "split_shared_empty": lambda: render_grid(build_picture(SPLIT, {"worker": make_workers(SPLIT)})),
    "split_shared_empty_ascii": lambda: render_grid(build_picture(SPLIT, {"worker": make_workers(SPLIT)}), ascii_only=True),
    "domains": lambda: render_grid(build_picture(in_domains(UNEVEN, ["rack-1", "7a3f2b64-0c1d-4e5f-8a9b-112233445566", ""]))),
    "cpu_only": lambda: render_grid(build_picture(CPU_ONLY, {"worker": make_workers(CPU_ONLY, binding=False)})),
    "marks": lambda: render_grid(build_picture(make_layout([3]), {"worker": short_of_binding()})),
    "workers_32x8": lambda: render_grid(build_picture(LARGE, {"worker": make_workers(LARGE)}), width=80),
    "roles": lambda: render_grid(
        build_role_picture(
            {"policy": POLICY, "generation": GENERATION},
            {"policy": {"actor": make_workers(POLICY), "critic": make_workers(POLICY)}, "generation": {"vllm": make_workers(GENERATION)}},
        )
    ),
    "foreign_groups": lambda: render_grid(
        build_group_picture([2, 0, 2], [foreign("actor", [(0, 0), (0, 1), (2, 0)]), foreign("", [(2, 1)])])
    ),
    "no_nodes": lambda: render_grid(build_group_picture([])),
    "only_empty_nodes": lambda: render_grid(build_group_picture([0, 0])),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_equals_its_golden_file(name: str) -> None:
    """Every kind of cluster is drawn as its golden file shows."""
    assert DRAWINGS[name]() + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_each_golden_file_belongs_to_a_drawing() -> None:
    """No golden file is left over."""
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(DRAWINGS)


@pytest.mark.parametrize("width", [1, 30, 48, 80, 200])
def test_a_drawing_keeps_to_the_page(width: int) -> None:
    """Cells are never wider than the page, as long as one fits; no rank is lost by wrapping."""
    text = render_grid(build_picture(TWO, {"worker": make_workers(TWO)}), width=width)
    boxes = [line for line in text.splitlines() if re.search("[│┌├└]", line)]
    one_cell = len("10.0.0.1  worker │ 15 │ 16-31")
    assert max(len(line) for line in boxes) <= max(width, one_cell)
    ranks = [int(cell) for line in boxes if "worker" in line for cell in re.findall(r"\d+", line.partition("worker")[2])]
    assert ranks == list(range(16))


def test_every_line_of_a_box_has_the_same_corners() -> None:
    """A vertical line of a cell meets a corner above and below."""
    lines = render_grid(build_picture(UNEVEN)).splitlines()
    for above, below in itertools.pairwise(lines):
        for column, character in enumerate(below):
            if character == "│" and column < len(above):
                assert above[column] in "│┌┬┐├┼┤"


def test_ascii_has_no_other_characters() -> None:
    """For an output without box characters the whole drawing is ASCII."""
    assert render_grid(build_picture(SPLIT, {"политика": make_workers(SPLIT)}), ascii_only=True).isascii()


def test_color_only_adds_escapes() -> None:
    """Without its escapes a coloured drawing is the plain one."""
    picture = build_picture(TWO, {"worker": make_workers(TWO)})
    colored = render_grid(picture, color=True)
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == render_grid(picture).splitlines()


def test_a_plain_drawing_has_no_escapes() -> None:
    """What goes into a file or a pipe is plain text."""
    assert "\x1b" not in render_grid(build_picture(TWO, {"worker": make_workers(TWO)}))


def test_simulated_is_said_only_where_it_is() -> None:
    """Made-up nodes are never shown without saying so."""
    assert "SIMULATED" in render_grid(build_picture(TWO))
    assert "SIMULATED" not in render_grid(build_picture(UNEVEN))


def test_a_worker_is_drawn_where_it_runs() -> None:
    """A worker that came up on another machine than planned is drawn on that one."""
    layout = make_layout([2], machines=2)
    workers = make_workers(layout)
    workers[1] = attrs.evolve(workers[1], node_id=layout.nodes[1].node_id, address="10.0.0.2")
    nodes = build_picture(layout, {"worker": workers}).nodes
    assert [(node.heading, node.machine) for node in nodes] == [("node 0 (1/2)", "10.0.0.1"), ("node 0 (2/2)", "10.0.0.2")]


def test_machines_of_one_address_are_told_apart() -> None:
    """Nodes that share an address get a piece of their id."""
    layout = make_layout([1, 1])
    layout = attrs.evolve(layout, nodes=tuple(attrs.evolve(node, address="127.0.0.1") for node in layout.nodes))
    assert [node.machine for node in build_picture(layout).nodes] == ["127.0.0.1 (000000)", "127.0.0.1 (010101)"]


def test_groups_of_one_name_in_two_clusters_are_told_apart() -> None:
    """Each group has a row of its own, under the name of its cluster."""
    workers = {"policy": {"worker": make_workers(POLICY)}, "generation": {"worker": make_workers(GENERATION)}}
    picture = build_role_picture({"policy": POLICY, "generation": GENERATION}, workers)
    assert [group.name for group in picture.groups] == ["policy.worker", "generation.worker"]
    assert [cell.workers[0].group for node in picture.nodes for cell in node.cells] == ["policy.worker"] * 4 + ["generation.worker"] * 4


def test_detail_full_shows_numa_at_any_size() -> None:
    """The reader chooses: all facts of a large cluster, or only the ranks of a small one."""
    large = build_picture(LARGE, {"worker": make_workers(LARGE)})
    assert "NUMA" in render_grid(large, detail="full")
    small = render_grid(build_picture(UNEVEN, {"worker": make_workers(UNEVEN)}), detail="ranks")
    assert "CPUs │" not in small
    assert "left out" in small


def test_detail_names_what_it_takes() -> None:
    """A wrong detail is an error that names the right ones."""
    with pytest.raises(ValueError, match="must be auto, full or ranks, got 'ful'"):
        render_grid(build_picture(TWO), detail="ful")


# --- NeMo-RL's visualization methods ---


def test_the_grid_of_a_cluster_without_bundles_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """Without bundles there is only ``empty``, and it prints."""
    assert create_visualization_grid([0, 0]) == {"empty": True}
    print_visualization({"empty": True})
    assert capsys.readouterr().out == "\nRay cluster: no bundles\n"


def test_the_grid_has_the_keys_that_callers_read() -> None:
    """Nodes without bundles have no row; short rows are padded; counts are those of the cluster."""
    group = foreign("actor", [(0, 0), (0, 1), (2, 0)])
    grid = create_visualization_grid([2, 0, 1], group)
    assert grid == {
        "active_nodes": 2,
        "empty_nodes": [1],
        "total_gpus": 3,
        "worker_groups": [group],
        "max_gpus_per_node": 2,
        "cell_width": 7,
        "h_divider": "+-------+-------+",
        "is_global_view": False,
        "rows": [
            {"node_idx": 0, "bundle_count": 2, "gpu_cells": [" 0.0   ", " 0.1   "], "worker_cells": [[" W 0   ", " W 1   "]]},
            {"node_idx": 2, "bundle_count": 1, "gpu_cells": [" 2.0   ", "       "], "worker_cells": [[" W 2   ", "       "]]},
        ],
    }


def test_cells_grow_with_their_text() -> None:
    """A worker id of many digits never runs into the next cell."""
    group = foreign("actor", [(0, index) for index in range(12000)])
    grid = create_visualization_grid([12000], group)
    assert grid["cell_width"] == len(" 0.11999 ")
    assert {len(cell) for row in grid["rows"] for line in (row["gpu_cells"], *row["worker_cells"]) for cell in line} == {grid["cell_width"]}


def test_worker_cells_name_the_group_in_the_global_view() -> None:
    """One text per group, blank where it has nobody; all workers of a shared cell are named."""
    groups = [foreign("a", [(0, 0), (1, 0)]), foreign("b", [(0, 0), (0, 0)])]
    assert get_worker_cells(0, 0, groups, 7, False) == [" W 0   ", " W 0,1 "]
    assert get_worker_cells(1, 0, groups, 12, True) == [" G0:W1      ", "            "]


def test_the_bundle_index_places_a_worker_where_it_is_known() -> None:
    """In a logical node that is split over machines local ranks repeat; the bundle index does not."""
    split = SimpleNamespace(
        name_prefix="a",
        world_size=2,
        worker_metadata=[{"node_idx": 0, "local_rank": 0, "bundle_idx": 0}, {"node_idx": 0, "local_rank": 0, "bundle_idx": 1}],
    )
    assert create_visualization_grid([2], split)["rows"][0]["worker_cells"] == [[" W 0   ", " W 1   "]]


def test_one_group_prints_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The view of one group: heading, boxes, legend."""
    print_visualization(create_visualization_grid([2, 0, 1], foreign("actor", [(0, 0), (0, 1), (2, 0)])))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Ray cluster: 2 nodes, 3 bundles, worker group actor (3 workers)",
        "+-------+-------+",
        "| 0.0   | 0.1   |",
        "| W 0   | W 1   |",
        "+-------+-------+",
        "| 2.0   |       |",
        "| W 2   |       |",
        "+-------+-------+",
        "W #: worker of actor",
        "#.#: node.GPU",
        "without bundles: node 1",
    ]


def test_all_groups_print_with_a_legend(capsys: pytest.CaptureFixture[str]) -> None:
    """The view of all groups: colocated ones stand below each other."""
    grid = create_visualization_grid([2], [foreign("actor", [(0, 0), (0, 1)]), foreign("", [(0, 1)])], is_global_view=True)
    print_visualization(grid)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Ray cluster, all worker groups: 1 node, 2 bundles, 2 worker groups",
        "+------------+------------+",
        "| 0.0        | 0.1        |",
        "| G0:W0      | G0:W1      |",
        "|            | G1:W0      |",
        "+------------+------------+",
        "G0: actor (2 workers)",
        "G1: unnamed (1 worker)",
        "W#: worker within its group",
        "#.#: node.GPU",
    ]


def test_without_groups_only_nodes_print(capsys: pytest.CaptureFixture[str]) -> None:
    """No worker group is no error: the devices are drawn."""
    print_visualization(create_visualization_grid([1]))
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Ray cluster: 1 node, 1 bundle",
        "+-------+",
        "| 0.0   |",
        "+-------+",
        "#.#: node.GPU",
    ]


def test_the_legend_prints_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The legend is a method of its own."""
    print_legend(create_visualization_grid([1], [], is_global_view=True))
    assert capsys.readouterr().out == "#.#: node.GPU\n"


if __name__ == "__main__":
    for drawing, draw in DRAWINGS.items():
        (GOLDEN / f"{drawing}.txt").write_text(draw() + "\n", encoding="utf-8")
