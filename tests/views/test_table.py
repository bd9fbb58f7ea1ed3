"""The table of workers and the last line."""

from __future__ import annotations

import re

import attrs
import pytest
from made_up import make_binding, make_layout, make_workers

from rl_cluster.views.checks import Check
from rl_cluster.views.report import build_report
from rl_cluster.views.table import render_checks, render_table, render_verdict

LAYOUT = make_layout([2, 1])
WORKERS = make_workers(LAYOUT)
HELD, BROKEN = Check("ranks", True, "0 to 2, each once"), Check("devices", False, "GPU 0 of 10.0.0.1 is given to a, b")

TABLE = """\
rank  node  address   GPUs  CPUs  memory  Python            pid
   0     0  10.0.0.1  0     0-15  bind:0  /env/bin/python  1000
   1     0  10.0.0.1  1     0-15  bind:0  /env/bin/python  1001
   2     1  10.0.0.2  0     0-15  bind:0  /env/bin/python  1002"""


def test_the_table_shows_each_worker_by_rank() -> None:
    """A line per worker, by rank, whatever the order they come in."""
    assert render_table(WORKERS) == TABLE
    assert render_table(WORKERS[::-1]) == TABLE


def test_ranks_are_ordered_as_numbers() -> None:
    """Rank 9 comes before rank 10."""
    lines = render_table(make_workers(make_layout([12]))).splitlines()[1:]
    assert [int(line.split()[0]) for line in lines] == list(range(12))


def test_a_report_gives_the_same_table() -> None:
    """What was written can be shown again."""
    assert render_table(build_report(mode="up", layout=LAYOUT, groups={"worker": WORKERS})) == TABLE


def test_several_groups_are_named() -> None:
    """With several groups a column tells them apart."""
    report = build_report(mode="up", layout=LAYOUT, groups={"policy": WORKERS[:1], "reward": WORKERS[:1]})
    assert [line.split()[0] for line in render_table(report).splitlines()] == ["group", "policy", "reward"]


def test_what_was_not_bound_says_why() -> None:
    """A status other than bound stands beside what the kernel holds."""
    worker = attrs.evolve(WORKERS[0], binding=make_binding(0, cpu_status="skipped: no-gpu", mem_status="failed: EPERM"), gpu_ids=())
    line = "   0     0  10.0.0.1  -     0-31 (skipped: no-gpu)  default (failed: EPERM)  /env/bin/python  1000"
    assert render_table([worker]).splitlines()[1] == line


def test_without_a_binding_the_cells_stay_empty() -> None:
    """No report, nothing claimed."""
    assert render_table([attrs.evolve(WORKERS[0], binding=None)]).splitlines()[1].split()[4:6] == ["-", "-"]


def test_a_narrow_page_shortens_the_interpreter() -> None:
    """Only the path gives way, from its left; its end tells environments apart."""
    worker = attrs.evolve(WORKERS[0], python="/a/long/way/to/the/environment/bin/python")
    text = render_table([worker], width=70)
    assert max(map(len, text.splitlines())) == 70
    assert "...ironment/bin/python" in text


def test_the_coloured_table_has_the_same_text() -> None:
    """A terminal sees the plain table in colours."""
    colored = render_table(WORKERS, color=True)
    assert "\x1b[" in colored
    assert re.sub(r" +(?=\n|$)", "", re.sub(r"\x1b\[[0-9;]*m", "", colored)) == TABLE


def test_markup_in_a_path_is_not_read() -> None:
    """Brackets in a path are text, not rich's markup."""
    worker = attrs.evolve(WORKERS[0], python="/env[bold]/python")
    assert "/env[bold]/python" in re.sub(r"\x1b\[[0-9;]*m", "", render_table([worker], color=True))


def test_no_workers() -> None:
    """An empty table says so."""
    assert render_table([]) == "no workers"


VERDICTS = {
    "held": ([HELD, HELD], False, None, "OK: 3 workers on 2 machines, 2 of 2 checks held"),
    "simulated": ([HELD], True, None, "OK: 3 workers on 2 machines, 1 of 1 check held (simulated)"),
    "broken": (
        [HELD, BROKEN],
        False,
        None,
        "FAILED: 3 workers on 2 machines, 1 of 2 checks held; devices: GPU 0 of 10.0.0.1 is given to a, b",
    ),
    "two_broken": (
        [BROKEN, attrs.evolve(BROKEN, name="python", detail="x")],
        True,
        None,
        "FAILED: 3 workers on 2 machines, 0 of 2 checks held (simulated); devices: GPU 0 of 10.0.0.1 is given to a, b; also broken: python",
    ),
    "error": ([HELD], True, "no GPU\nis free", "FAILED: no GPU is free (simulated)"),
    "nothing_checked": ([], False, None, "FAILED: 3 workers on 2 machines, nothing was checked"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_last_line(name: str) -> None:
    """One line: OK only where something was checked and all of it held."""
    checks, simulated, error, line = VERDICTS[name]
    assert render_verdict(checks, workers=WORKERS, simulated=simulated, error=error) == line


def test_the_checks_are_listed() -> None:
    """A line per check, aligned."""
    assert render_checks([HELD, BROKEN]).splitlines() == [
        "ok      ranks    0 to 2, each once",
        "FAILED  devices  GPU 0 of 10.0.0.1 is given to a, b",
    ]
