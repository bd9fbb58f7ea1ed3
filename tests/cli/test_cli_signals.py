"""Ctrl-C and SIGTERM at every step: the shell's exit code, no traceback, nothing left (run_py itself looks for what stays)."""

from __future__ import annotations

import pytest
from run_py import Done, RunPy

from rl_cluster.views.report import validate_report

pytestmark = pytest.mark.ray

SLEEPERS = """
import pathlib, sys, time

class Sleeper:
    def __init__(self, mark: str) -> None:
        pathlib.Path(mark).touch()
        time.sleep(600)
"""


def ended_by(done: Done, signal_name: str, code: int) -> None:
    """What a run says that a signal ended before its checks."""
    assert done.code == code, done.err
    assert done.last_line == f"FAILED: interrupted by {signal_name}; everything was given back{' (simulated)' * done.report['simulated']}"
    assert "Traceback" not in done.err + done.out
    assert validate_report(done.report) == []
    assert done.report["ok"] is False


@pytest.mark.slow
def test_hold_until_ctrl_c(run_py: RunPy) -> None:
    """hold=true keeps the workers until Ctrl-C, which is its right end: exit 0; a second Ctrl-C does no harm to the giving back."""
    run = run_py.start("hold=true", "ray.num_cpus=1")
    run.until_it_says("holding the layout; Ctrl-C ends it")
    assert any("Sleeper" in line or "CheckWorker" in line for line in run_py.what_stays())
    run.ctrl_c()
    run.until_it_says("Ctrl-C: giving the layout back ...")
    run.ctrl_c()
    run.terminate()
    done = run.done()
    assert (done.code, done.last_line) == (0, "OK: 1 worker on 1 machine, 9 of 9 checks held")
    assert "Traceback" not in done.err
    assert done.report["ok"] is True


@pytest.mark.slow
def test_sigterm_ends_hold(run_py: RunPy) -> None:
    """SIGTERM is not the end that hold waits for: exit 143; Ctrl-C in the midst of giving back changes nothing."""
    run = run_py.start("hold=true", "ray.num_cpus=1")
    run.until_it_says("holding the layout; Ctrl-C ends it")
    run.terminate()
    run.until_it_says("SIGTERM: giving the layout back ...")
    run.ctrl_c()
    ended_by(run.done(), "SIGTERM", 143)


@pytest.mark.slow
def test_ctrl_c_while_ray_starts(run_py: RunPy) -> None:
    """Ctrl-C while a simulated cluster comes up: exit 130, its nodes are gone."""
    run = run_py.start("cluster=4x8_strict_spread", "ray=simulated")
    run.until(lambda: sum("raylet" in line for line in run_py.what_stays()) >= 1)
    run.ctrl_c()
    ended_by(run.done(), "Ctrl-C", 130)


@pytest.mark.slow
def test_sigterm_while_ray_starts(run_py: RunPy) -> None:
    """SIGTERM while a local Ray comes up, before it has a node: exit 143."""
    run = run_py.start("ray.num_cpus=1")
    run.until(lambda: any("gcs_server" in line for line in run_py.what_stays()))
    run.terminate()
    ended_by(run.done(), "SIGTERM", 143)


def test_ctrl_c_while_workers_come_up(run_py: RunPy) -> None:
    """Ctrl-C while a worker's __init__ runs: exit 130, its process is gone."""
    (run_py.folder / "sleepers.py").write_text(SLEEPERS, encoding="utf-8")
    mark = run_py.folder / "mark"
    run = run_py.start("worker.target=sleepers.Sleeper", f"worker.kwargs={{mark: '{mark}'}}", "ray.num_cpus=1")
    run.until(mark.exists)
    run.ctrl_c()
    ended_by(run.done(), "Ctrl-C", 130)


@pytest.mark.slow
def test_ctrl_c_ends_a_sweep(run_py: RunPy) -> None:
    """Ctrl-C ends the whole sweep, not only the job that runs."""
    run = run_py.start("-m", "ray.num_cpus=1", "hold=true", "worker.name=a,b")
    run.until_it_says("connecting to Ray ...")
    run.ctrl_c()
    done = run.done()
    assert done.code == 130, done.err
    assert len(done.folders) == 1
    assert done.report["error"]["message"] == "interrupted by Ctrl-C; everything was given back"
    assert done.last_line == "FAILED: 0 of 2 jobs ok, 1 interrupted, 1 not run"
