"""The table, the last line and the picture of a sweep."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from rl_cluster.views.svg_shapes import PALETTE
from rl_cluster.views.sweep_summary import JobRow, Machine
from rl_cluster.views.sweep_svg import render_sweep_svg
from rl_cluster.views.sweep_table import render_sweep_table, render_sweep_verdict, split_overrides

SVG = "{http://www.w3.org/2000/svg}"
BOTH = ("cluster.gpus_per_node=2", "ray=simulated")
WELL = JobRow(
    job=0,
    overrides=("cluster.strategy=PACK", *BOTH),
    status="ok",
    exit_code=0,
    mode="up",
    simulated=True,
    physical_nodes=1,
    workers=4,
    ray_s=10.0,
    placed_s=10.5,
    workers_s=12.0,
    total_s=14.0,
    cpu_bindings={"bound": 3, "skipped: no-gpu": 1},
    machines=(Machine("10.0.0.1", 4, ("0", "0", "1", "1")), Machine("10.0.0.2", 4)),
)
ERROR = "2 logical nodes of 2 GPUs on distinct machines: only <1> node has room for that"
FAILED = JobRow(1, ("cluster.strategy=STRICT_SPREAD", *BOTH), "failed", exit_code=3, mode="up", simulated=True, ray_s=0.1, error=ERROR)
NOT_RUN = JobRow(2, ("cluster.strategy=SPREAD", *BOTH), "not run")
ROWS = (WELL, FAILED, NOT_RUN)

TABLE = """\
all with: cluster.gpus_per_node=2 ray=simulated
job  overrides                       status      machines  placed  ready  total  CPU binding                 error
  0  cluster.strategy=PACK           ok                 1   0.5 s  2.0 s  4.0 s  3 bound; 1 skipped: no-gpu
  1  cluster.strategy=STRICT_SPREAD  failed (3)                                                              2 logical nodes of 2 GPUs on \
distinct machines: only <1> node has room for that
  2  cluster.strategy=SPREAD         not run"""


def test_table() -> None:
    """What all jobs share stands above; seconds count from the connection to Ray, so that a job that started it can be compared."""
    assert render_sweep_table(ROWS) == TABLE


def test_table_on_a_narrow_page() -> None:
    """Errors are shortened to fit, and say so."""
    lines = render_sweep_table(ROWS, width=140).splitlines()
    assert max(map(len, lines)) <= 140
    assert lines[3].endswith(" 2 logical nodes of 2 GPUs on...")


def test_table_leaves_out_columns_of_which_nothing_is_known() -> None:
    """Planned layouts have no seconds and no bindings; a letter that would break the line is none of the table's."""
    rows = [JobRow(number, (f"a={number}", "b=x\ny"), "planned", exit_code=0, physical_nodes=1) for number in range(2)]
    assert render_sweep_table(rows).splitlines() == [
        "all with: 'b=x y'",
        "job  overrides  status   machines",
        "  0  a=0        planned         1",
        "  1  a=1        planned         1",
    ]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["ok", "ok"], "OK: 2 of 2 jobs ok"),
        (["planned", "planned"], "OK: 2 of 2 jobs planned"),
        (["planned", "ok"], "OK: 2 of 2 jobs ok"),
        (["ok", "failed", "interrupted", "not run", "not run"], "FAILED: 1 of 5 jobs ok, 1 failed, 1 interrupted, 2 not run"),
        (["failed"], "FAILED: 0 of 1 job ok, 1 failed"),
    ],
    ids=["ok", "planned", "mixed", "bad", "one"],
)
def test_verdict(statuses: list[str], expected: str) -> None:
    """The last line counts the jobs by status, and is OK only if all went well."""
    assert render_sweep_verdict([JobRow(number, (), status) for number, status in enumerate(statuses)]) == expected


def test_verdict_says_that_it_was_simulated() -> None:
    """One simulated job is enough."""
    assert render_sweep_verdict(ROWS).endswith(" (simulated)")


def test_a_single_job_keeps_its_words() -> None:
    """With one job nothing is common: its words are what it is."""
    assert split_overrides([WELL]) == ((), [WELL.overrides])


def shapes(rows: tuple[JobRow, ...]) -> tuple[list[str], list[ElementTree.Element]]:
    """The texts and the rectangles of the picture."""
    root = ElementTree.fromstring(render_sweep_svg(rows))
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")], list(root.iter(f"{SVG}rect"))


def test_picture_shows_every_job() -> None:
    """A card for each job with what makes it differ, its status, its layout by logical node, free places, seconds, and the error."""
    texts, rectangles = shapes(ROWS)
    for text in ("#0", "strategy=PACK", "ok", "#1", "strategy=STRICT_SPREAD", "failed", "#2", "strategy=SPREAD", "not run", "ready 2.0 s"):
        assert text in texts
    assert "SIMULATED: made-up nodes and accelerators" in texts
    assert "1 of 2 machines · CPUs 3 bound; 1 skipped: …" in texts
    assert " ".join(texts).count("distinct machines:") == 1
    cells = [each.get("fill") for each in rectangles if "logical node" in "".join(each.itertext())]
    assert cells == [PALETTE[0], PALETTE[0], PALETTE[1], PALETTE[1]]
    assert sum("free" in (each.get("class") or "") for each in rectangles) == 4 + 1  # the second machine's, and the legend's


def test_bars_share_one_scale() -> None:
    """Twice the seconds are twice the length, from the connection to Ray on."""
    slow = JobRow(1, ("cluster.strategy=SPREAD", *BOTH), "ok", 0, "up", True, 1, 4, ray_s=1.0, placed_s=2.0, workers_s=5.0, total_s=9.0)
    _, rectangles = shapes((WELL, slow))
    bars = [(tip, float(each.get("width") or 0)) for each in rectangles if (tip := "".join(each.itertext())).endswith(" s")]
    assert [tip for tip, _ in bars] == [
        *("placing: 0.50 s", "bringing workers up: 1.50 s", "checking and giving back: 2.00 s"),
        *("placing: 1.00 s", "bringing workers up: 3.00 s", "checking and giving back: 4.00 s"),
    ]
    lengths = [round(length, 1) for _, length in bars]
    assert [round(2 * length, 1) for length in lengths[:3]] == pytest.approx(lengths[3:], abs=0.2)


def test_picture_of_roles_names_them() -> None:
    """In a recipe logical nodes are named by role, in the legend and in tooltips."""
    row = JobRow(0, ("recipe=r.yaml",), "planned", 0, "plan", machines=(Machine("10.0.0.1", 4, ("policy 0", "policy 0", "reward 0")),))
    texts, rectangles = shapes((row,))
    assert {"policy 0", "reward 0", "recipe=r.yaml", "free"} <= set(texts)
    assert any("logical node reward 0 on 10.0.0.1" in "".join(each.itertext()) for each in rectangles)


def test_many_machines_are_counted_not_drawn() -> None:
    """A card draws 48 machines and says how many more there are."""
    row = JobRow(0, ("a=1",), "planned", 0, "plan", machines=tuple(Machine(f"10.0.0.{n}", 8, (str(n),) * 8) for n in range(128)))
    texts, rectangles = shapes((row,))
    assert "and 80 more machines" in texts
    assert sum(bool(re.match(r"10\.0\.0\.\d+: ", "".join(each.itertext()))) for each in rectangles) == 48
    assert "and 120 more, colours over again" in texts


def test_picture_without_jobs() -> None:
    """Nothing is still a picture."""
    texts, _ = shapes(())
    assert texts[0] == "Sweep of 0 jobs"
