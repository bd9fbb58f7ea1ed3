"""The rows of a sweep: what a report becomes, and that no row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up import make_binding, make_layout, make_workers

from rl_cluster.errors import ResourceInsufficientError
from rl_cluster.schema import ClusterSpec, RunSpec
from rl_cluster.views.checks import Check
from rl_cluster.views.report import build_report
from rl_cluster.views.sweep_summary import (
    COLUMNS,
    JobRow,
    Machine,
    SummaryFiles,
    finished_row,
    render_csv,
    unfinished_row,
)

BEGUN = JobRow(3, ("cluster=2x8_spread", "ray=simulated"), "running", folder="/sweep/3")


def report_of(**changes: Any) -> dict[str, Any]:
    """The report of two logical nodes of 2 GPUs, the second of three machines unused."""
    layout = make_layout([2, 2], on=[[0, 0], [2, 2]], strategy="SPREAD", simulated=True)
    workers = make_workers(layout)
    facts: dict[str, Any] = {
        "mode": "up",
        "spec": RunSpec(cluster=ClusterSpec(bundle_ct_per_node_list=[2, 2])),
        "layout": layout,
        "groups": {"worker": workers},
        "checks": [Check("ranks", True, "0..3")],
        "timings_s": {"ray": 1.0, "placed": 1.25, "workers": 4.5, "checked": 4.75, "total": 5.5},
    }
    return build_report(**{**facts, **changes})


def test_row_of_a_job_that_did_well() -> None:
    """Everything in a row comes from the report."""
    row = finished_row(BEGUN, exit_code=0, report=report_of())
    assert row == JobRow(
        job=3,
        overrides=("cluster=2x8_spread", "ray=simulated"),
        status="ok",
        exit_code=0,
        mode="up",
        simulated=True,
        physical_nodes=2,
        workers=4,
        ray_s=1.0,
        placed_s=1.25,
        workers_s=4.5,
        total_s=5.5,
        cpu_bindings={"bound": 4},
        memory_bindings={"bound": 4},
        error=None,
        folder="/sweep/3",
        machines=(Machine("10.0.0.1", 8, ("0", "0")), Machine("10.0.0.2", 8), Machine("10.0.0.3", 8, ("1", "1"))),
    )


@pytest.mark.parametrize(
    ("exit_code", "changes", "status", "error"),
    [
        pytest.param(0, {"mode": "plan"}, "planned", None, id="planned"),
        pytest.param(3, {"error": ResourceInsufficientError("too small\nFix: more")}, "failed", "too small", id="error: its first line"),
        pytest.param(4, {"checks": [Check("strategy", False, "split")]}, "failed", "strategy: split", id="a check that did not hold"),
        pytest.param(130, {"error": "interrupted by Ctrl-C"}, "interrupted", "interrupted by Ctrl-C", id="Ctrl-C"),
        pytest.param(143, {"error": "interrupted by SIGTERM"}, "interrupted", "interrupted by SIGTERM", id="SIGTERM"),
    ],
)
def test_status_and_error(exit_code: int, changes: dict[str, Any], status: str, error: str | None) -> None:
    """The status follows from the exit code; the error is what ended the job, else the first check that did not hold."""
    row = finished_row(BEGUN, exit_code=exit_code, report=report_of(**changes))
    assert (row.status, row.error) == (status, error)


def test_row_of_a_job_that_came_to_no_report() -> None:
    """A config that was refused has its problem as the error, and nothing else is claimed."""
    row = finished_row(BEGUN, exit_code=1, error="cluster.num_nodes: must be at least 1, got -4")
    assert (row.status, row.exit_code, row.error) == ("failed", 1, "cluster.num_nodes: must be at least 1, got -4")
    assert (row.physical_nodes, row.workers, row.total_s, row.machines) == (None, None, None, ())


def test_bindings_are_counted_by_status() -> None:
    """Each status with its number of workers, the most frequent first."""
    report = report_of()
    report["workers"][3]["binding"] = make_binding(3, cpu_status="skipped: no-gpu", mem_status="failed: EPERM").to_dict()
    row = finished_row(BEGUN, exit_code=0, report=report)
    assert row.cpu_bindings == {"bound": 3, "skipped: no-gpu": 1}
    assert row.memory_bindings == {"bound": 3, "failed: EPERM": 1}


def test_layouts_of_a_recipe_are_one_picture() -> None:
    """The bundles of all roles lie on the same machines, named by role and logical node."""
    policy, reward = make_layout([2], on=[[0, 0]], machines=2), make_layout([1], on=[[1]], machines=2)
    report = report_of(
        layout=None,
        groups={},
        layouts={"policy": policy, "reward": reward},
        recipe={"roles": {"policy": {"cluster": {"accelerator": "GPU"}}}},
    )
    row = finished_row(BEGUN, exit_code=0, report=report)
    assert row.machines == (Machine("10.0.0.1", 8, ("policy 0", "policy 0")), Machine("10.0.0.2", 8, ("reward 0",)))


@pytest.mark.parametrize(("interrupted", "expected"), [(True, ("interrupted", 130)), (False, ("failed", 4))], ids=["Ctrl-C", "killed"])
def test_a_job_that_never_ended(interrupted: bool, expected: tuple[str, int]) -> None:
    """A job that began and did not say how it ended is never left as running, and never as done."""
    row = unfinished_row(BEGUN, interrupted=interrupted)
    assert (row.status, row.exit_code) == expected
    assert row.error


def test_csv() -> None:
    """A header, a line for each job; unknown is empty, counts and words are text."""
    rows = (finished_row(BEGUN, exit_code=0, report=report_of()), JobRow(4, ("a=1",), "not run"))
    assert render_csv(rows).splitlines() == [
        ",".join(COLUMNS),
        "3,cluster=2x8_spread ray=simulated,ok,0,up,true,2,4,1.0,1.25,4.5,5.5,4 bound,4 bound,,/sweep/3",
        "4,a=1,not run,,,,,,,,,,,,,",
    ]


def test_rows_grow_and_are_replaced(tmp_path: Path) -> None:
    """A job's row takes the place of its earlier one; both files hold the same jobs, in order; a sweep before this one is forgotten."""
    files = SummaryFiles(tmp_path / "sweep")
    assert files.read() == ()
    files.put(JobRow(1, ("a=2",), "running"))
    done = finished_row(JobRow(0, ("a=1",), "running"), exit_code=0, report=report_of())
    assert files.put(done) == (done, JobRow(1, ("a=2",), "running"))
    assert files.put(JobRow(1, ("a=2",), "ok", exit_code=0)) == files.read() == (done, JobRow(1, ("a=2",), "ok", exit_code=0))
    assert [line.split(",")[:3] for line in files.table.read_text().splitlines()[1:]] == [["0", "a=1", "ok"], ["1", "a=2", "ok"]]
    assert json.loads(files.records.read_text())["schema_version"] == 1
    assert not list(files.folder.glob("*.tmp"))
    files.clear()
    assert files.read() == ()


def test_no_row_is_lost_between_processes(tmp_path: Path) -> None:
    """Jobs that end at the same moment in processes of their own all have their row."""
    program = """
import sys
from pathlib import Path
from rl_cluster.views.sweep_summary import JobRow, SummaryFiles
first = int(sys.argv[1])
sys.stdin.readline()
for job in range(first, first + 20):
    SummaryFiles(Path(sys.argv[2])).put(JobRow(job, (), "ok"))
"""
    command = [sys.executable, "-c", program]
    running = [subprocess.Popen([*command, str(first), str(tmp_path)], stdin=subprocess.PIPE) for first in (0, 20, 40)]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert [row.job for row in SummaryFiles(tmp_path).read()] == list(range(60))
