"""Sweeps as a user calls them: one after the other on one simulated cluster, with a summary that tells the truth about each job."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from run_py import RunPy

WORKERS = """
import os, pathlib, signal, time

class Worker:
    def __init__(self, job: int, fail: bool = False, wait: str = "", lose_node: bool = False) -> None:
        if fail:
            raise ValueError("this job fails")
        if wait:
            pathlib.Path(wait).touch()
            time.sleep(600)
        if lose_node:
            os.kill(os.getppid(), signal.SIGKILL)  # the raylet
            time.sleep(600)
"""
SIMULATED = ("cluster.gpus_per_node=1", "ray=simulated", "hydra.sweep.dir=sweep")


def read(folder: Path) -> list[dict[str, Any]]:
    """The jobs of summary.json; summary.csv must have the same ones."""
    jobs: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["jobs"]
    with open(folder / "summary.csv", encoding="utf-8", newline="") as file:
        assert [(row["job"], row["status"]) for row in csv.DictReader(file)] == [(str(job["job"]), job["status"]) for job in jobs]
    return jobs


def summary(run_py: RunPy) -> list[tuple[int, str, int | None]]:
    """Number, status and exit code of each job."""
    return [(job["job"], job["status"], job["exit_code"]) for job in read(run_py.folder / "sweep")]


def where_joblibs_launcher_is() -> dict[str, str]:
    """The variable by which run.py finds it where this process does; skips where it is not installed."""
    launcher = pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="needs hydra-joblib-launcher")
    return {"PYTHONPATH": str(Path(launcher.__file__).parents[2])}


def test_a_job_whose_config_is_refused_does_not_stop_the_rest(run_py: RunPy) -> None:
    """Three jobs, the second with a bad value: three rows with their status and error, exit 1."""
    done = run_py("-m", "mode=plan", "cluster.num_nodes=1,-4,2", *SIMULATED)
    assert done.code == 1
    assert summary(run_py) == [(0, "planned", 0), (1, "failed", 1), (2, "planned", 0)]
    jobs = read(run_py.folder / "sweep")
    assert jobs[1]["error"].startswith("cluster.num_nodes: must be at least 1, got -4")
    assert [job["physical_nodes"] for job in jobs] == [1, None, 2]
    assert done.last_line == "FAILED: 2 of 3 jobs planned, 1 failed (simulated)"
    assert "all with: mode=plan cluster.gpus_per_node=1 ray=simulated" in done.out
    assert (run_py.folder / "sweep" / "summary.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.slow
def test_a_sweep_forgets_the_one_before_in_its_folder(run_py: RunPy) -> None:
    """In a folder that was used before, neither old rows nor old reports are taken for new ones."""
    assert run_py("-m", "mode=plan", "cluster.num_nodes=1,2,3", *SIMULATED).code == 0
    assert run_py("-m", "mode=plan", "cluster.num_nodes=1,-4", *SIMULATED).code == 1
    jobs = read(run_py.folder / "sweep")
    assert [(job["status"], job["physical_nodes"]) for job in jobs] == [("planned", 1), ("failed", None)]
    assert not (run_py.folder / "sweep" / "1" / "report.json").exists()


def test_the_folder_is_where_hydra_says_with_chdir_too(run_py: RunPy) -> None:
    """With hydra.job.chdir=true the summary and the jobs' files lie where they lie without it."""
    assert run_py("-m", "hydra.job.chdir=true", "mode=plan", "cluster.num_nodes=1,2", *SIMULATED).code == 0
    assert summary(run_py) == [(0, "planned", 0), (1, "planned", 0)]
    assert sorted(path.name for path in (run_py.folder / "sweep").iterdir()) == [
        *(".summary.lock", "0", "1", "multirun.yaml", "summary.csv", "summary.json", "summary.svg"),
    ]


def test_words_that_no_job_can_be_composed_of_make_no_summary(run_py: RunPy) -> None:
    """Hydra composes all jobs before the first: a word that it refuses is said as for a single run, and no job is claimed."""
    done = run_py("-m", "mode=plan", "cluster=1x8,no_such", *SIMULATED)
    assert (done.code, done.out) == (1, "")
    assert not (run_py.folder / "sweep" / "summary.json").exists()


def test_a_summary_that_cannot_be_written(run_py: RunPy) -> None:
    """It does not stop the jobs, and fails the sweep in one line."""
    (run_py.folder / "sweep" / "summary.svg" / "in the way").mkdir(parents=True)
    done = run_py("-m", "mode=plan", "cluster.num_nodes=1,2", *SIMULATED)
    assert (done.code, len(done.folders)) == (4, 2)
    assert "summary.svg can't be written" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.ray
def test_jobs_share_one_simulated_cluster(run_py: RunPy) -> None:
    """It is started once, large enough for the last and largest job, and each job finds it free."""
    done = run_py("-m", "cluster.strategy=PACK,STRICT_SPREAD", "cluster.num_nodes=1,2", *SIMULATED)
    assert done.code == 0, done.err
    assert done.err.count("starting a simulated Ray cluster ...") == 1
    assert done.err.count(": 2 machines") == 4
    jobs = read(run_py.folder / "sweep")
    assert [(job["status"], job["simulated"], job["physical_nodes"], job["workers"]) for job in jobs] == [
        *(("ok", True, 1, 1), ("ok", True, 2, 2), ("ok", True, 1, 1), ("ok", True, 2, 2)),
    ]
    assert [job["cpu_bindings"] for job in jobs] == [{"bound": 1}, {"bound": 2}, {"bound": 1}, {"bound": 2}]
    assert all(0 <= job["ray_s"] <= job["placed_s"] <= job["workers_s"] <= job["total_s"] for job in jobs)
    assert done.last_line == "OK: 4 of 4 jobs ok (simulated)"


@pytest.mark.slow
@pytest.mark.ray
def test_a_failing_and_an_interrupted_job_among_eight(run_py: RunPy) -> None:
    """The failing one does not stop the rest, Ctrl-C does: its job's row says so, and those after it are listed as not run."""
    (run_py.folder / "workers.py").write_text(WORKERS, encoding="utf-8")
    mark = run_py.folder / "mark"
    jobs = ["{job: 0}", "{job: 1, fail: true}", "{job: 2}", "{job: 3}", f"{{job: 4, wait: '{mark}'}}", "{job: 5}", "{job: 6}", "{job: 7}"]
    run = run_py.start("-m", "worker.target=workers.Worker", f"worker.kwargs={','.join(jobs)}", *SIMULATED)
    run.until(mark.exists)
    assert summary(run_py)[-1] == (4, "running", None)
    run.ctrl_c()
    done = run.done()
    assert done.code == 130
    assert summary(run_py) == [
        *((0, "ok", 0), (1, "failed", 4), (2, "ok", 0), (3, "ok", 0)),
        *((4, "interrupted", 130), (5, "not run", None), (6, "not run", None), (7, "not run", None)),
    ]
    rows = read(run_py.folder / "sweep")
    assert rows[1]["error"].endswith("failed in __init__: ValueError: this job fails")
    assert rows[4]["error"] == "interrupted by Ctrl-C; everything was given back"
    assert rows[6]["overrides"][:2] == ["worker.target=workers.Worker", "worker.kwargs={job:6}"]
    assert done.last_line == "FAILED: 3 of 8 jobs ok, 1 failed, 1 interrupted, 3 not run (simulated)"
    assert "Traceback" not in done.out + done.err


@pytest.mark.slow
@pytest.mark.ray
def test_a_job_that_breaks_the_cluster_harms_no_other(run_py: RunPy) -> None:
    """When a job has lost a node of the shared cluster, the next one says so and gets a fresh cluster."""
    (run_py.folder / "workers.py").write_text(WORKERS, encoding="utf-8")
    words = ("worker.target=workers.Worker", "worker.kwargs={job: 0, lose_node: true},{job: 1}", "cluster.num_nodes=2")
    done = run_py("-m", *words, "cluster.strategy=STRICT_SPREAD", *SIMULATED)
    assert (done.code, summary(run_py)) == (4, [(0, "failed", 4), (1, "ok", 0)])
    assert "The sweep's simulated cluster is not as it was before the job before" in done.err


@pytest.mark.slow
@pytest.mark.ray
def test_sizes_that_the_user_said_are_kept(run_py: RunPy) -> None:
    """A job that says the size of its simulation gets just that: the cluster of the job before is given back first."""
    done = run_py("-m", "cluster.num_nodes=2", "cluster.strategy=STRICT_SPREAD", "ray.simulated_nodes=2,1", *SIMULATED)
    assert (done.code, summary(run_py)) == (3, [(0, "ok", 0), (1, "failed", 3)])
    assert done.err.count("starting a simulated Ray cluster ...") == 2


@pytest.mark.slow
@pytest.mark.ray
def test_ctrl_c_with_jobs_in_processes_of_their_own(run_py: RunPy) -> None:
    """joblib kills its processes with all their children: their rows still say what became of them, and their clusters are gone."""
    plugins = where_joblibs_launcher_is()
    (run_py.folder / "workers.py").write_text(WORKERS, encoding="utf-8")
    marks = [run_py.folder / name for name in ("mark-0", "mark-1")]
    jobs = ",".join(f"{{job: {job}, wait: '{mark}'}}" for job, mark in enumerate(marks)) + ",{job: 2}"
    words = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "worker.target=workers.Worker", f"worker.kwargs={jobs}")
    run = run_py.start("-m", *words, *SIMULATED, env=plugins)
    run.until(lambda: all(mark.exists() for mark in marks))
    run.ctrl_c()
    done = run.done()
    assert (done.code, summary(run_py)) == (130, [(0, "interrupted", 130), (1, "interrupted", 130), (2, "not run", None)])
    assert list(run_py.temporary.glob("rl?-*")) == []


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_that_is_killed_leaves_nothing(run_py: RunPy) -> None:
    """Neither its folder nor the Ray in it (run_py itself looks for what stays)."""
    run = run_py.start("-m", "worker.name=a,b", "hold=true", "ray.num_cpus=1")
    run.until_it_says("holding the layout; Ctrl-C ends it")
    run.kill()
    assert run.done().code == -9


@pytest.mark.slow
@pytest.mark.ray
def test_a_killed_sweep_ends_the_processes_of_its_jobs(run_py: RunPy) -> None:
    """Also those that joblib's launcher has started, with the Rays that they hold."""
    plugins = where_joblibs_launcher_is()
    (run_py.folder / "workers.py").write_text(WORKERS, encoding="utf-8")
    marks = [run_py.folder / name for name in ("mark-0", "mark-1")]
    jobs = ",".join(f"{{job: {job}, wait: '{mark}'}}" for job, mark in enumerate(marks))
    words = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "worker.target=workers.Worker", f"worker.kwargs={jobs}")
    run = run_py.start("-m", *words, *SIMULATED, env=plugins)
    run.until(lambda: all(mark.exists() for mark in marks))
    run.kill()
    assert run.done().code == -9


@pytest.mark.slow
@pytest.mark.ray
def test_jobs_in_processes_of_their_own(run_py: RunPy) -> None:
    """With joblib's launcher jobs run side by side: each has a simulated cluster of its own, and each has its row."""
    plugins = where_joblibs_launcher_is()
    done = run_py("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "cluster.num_nodes=1,-4,2", *SIMULATED, env=plugins)
    assert (done.code, summary(run_py)) == (1, [(0, "ok", 0), (1, "failed", 1), (2, "ok", 0)])
    assert done.last_line == "FAILED: 2 of 3 jobs ok, 1 failed (simulated)"
