"""run.py with workers under a profiler, which is a stand-in for nsys: no real one is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from run_py import RunPy
from standin_nsys import write_nsys

pytestmark = pytest.mark.ray

TWO = ("cluster.bundles_per_node=2", "ray=local", "ray.num_cpus=2")
WAITS = "import time\n\nclass Waits:\n    def run(self):\n        time.sleep(600)\n"


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """The environment of a run that finds the program."""
    return {"PATH": f"{write_nsys(tmp_path / 'bin')}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_profile_lies_in_the_folder_of_the_run_and_survives_its_ray(run_py: RunPy, path: dict[str, str]) -> None:
    """The Ray that was started for the run is gone; what nsys wrote is there, and the report and a check name it."""
    done = run_py(*TWO, "worker.nsight=default", "worker.nsight_workers=[worker-0-1]", env=path)
    written = f"{done.folder}/nsight/worker-0-1.nsys-rep"
    assert (done.code, done.last_line) == (0, "OK: 2 workers on 1 machine, 10 of 10 checks held")
    assert Path(written).is_file()
    (profile,) = done.report["profiles"]
    rank = next(worker["rank"] for worker in done.report["workers"] if worker["name"] == "worker-0-1")
    assert (profile["group"], profile["rank"], profile["files"], profile["problem"]) == ("worker", rank, [written], None)
    assert f"nsight: profiles worker, rank {rank}, into {done.folder}/nsight" in done.err
    assert f"ok      profiles        1 written, {written}\n" in done.out


@pytest.mark.slow
def test_an_interrupted_run_says_what_became_of_the_profile(run_py: RunPy, path: dict[str, str]) -> None:
    """A busy worker can't be ended in order; its profile is kept, with a warning, and nothing stays."""
    (run_py.folder / "waits.py").write_text(WAITS)
    running = run_py.start(
        *TWO, "worker.nsight=default", "worker.nsight_workers=[worker-0-0]", "worker.target=waits.Waits", "worker.method=run", env=path
    )
    running.until_it_says("nsight: profiles worker")
    running.ctrl_c()
    done = running.done()
    assert done.code == 130
    (profile,) = done.report["profiles"]
    assert [Path(file).name for file in profile["files"]] == ["worker-0-0.nsys-rep"]
    assert profile["problem"] == "the worker was still busy and was ended hard: the end of its profile may be missing"
    assert f"(worker-0-0) on {profile['address']}: {profile['problem']}" in done.err


def test_a_pattern_that_matches_no_worker_is_told_before_anything_is_started(run_py: RunPy) -> None:
    """Also by a plan."""
    done = run_py("mode=plan", "ray=simulated", "cluster=1x8", "worker.nsight=default", "worker.nsight_workers=[worker-0-8]")
    assert done.code == 1
    assert done.err == (
        "worker.nsight_workers[0]: must match a worker, got 'worker-0-8'. Fix: the workers are "
        f"{', '.join(f'worker-0-{number}' for number in range(8))}\n"
    )


@pytest.mark.slow
def test_a_machine_without_nsys_is_told_and_everything_is_given_back(run_py: RunPy) -> None:
    """One error, in the report too, and no worker."""
    done = run_py(*TWO, "worker.nsight={t: nvtx}", env={"PATH": "/usr/bin:/bin"})
    assert done.code == 4
    assert done.last_line.startswith("FAILED: worker.nsight on node ")
    assert ": nsys must be on PATH, got no program 'nsys' that can be run" in done.last_line
    assert (done.report["workers"], done.report["profiles"]) == ([], [])


@pytest.mark.slow
def test_a_role_of_a_recipe_is_profiled(run_py: RunPy, path: dict[str, str]) -> None:
    """Each role says it for itself."""
    role = "cluster: {gpus_per_node: 0, bundles_per_node: 1}"
    (run_py.folder / "r.yaml").write_text(
        f"policy:\n  {role}\n  worker: {{nsight: {{t: nvtx}}}}\nreward:\n  {role}\n  worker: {{}}\n", encoding="utf-8"
    )
    done = run_py("recipe=r.yaml", "ray=local", "ray.num_cpus=2", env=path)
    assert done.code == 0
    assert [(profile["group"], profile["files"]) for profile in done.report["profiles"]] == [
        ("policy", [f"{done.folder}/nsight/policy-0-0.nsys-rep"])
    ]
    assert "ok      policy: profiles " in done.out


@pytest.mark.slow
def test_the_profile_of_a_held_layout_is_whole(run_py: RunPy, path: dict[str, str]) -> None:
    """Ctrl-C is the ordinary end of a held layout: the workers end in order, and are waited for."""
    running = run_py.start(*TWO, "worker.nsight=default", "hold=true", env=path)
    running.until_it_says("holding the layout")
    running.ctrl_c()
    done = running.done()
    assert (done.code, done.last_line) == (0, "OK: 2 workers on 1 machine, 10 of 10 checks held")
    assert [(len(profile["files"]), profile["problem"]) for profile in done.report["profiles"]] == [(1, None)] * 2


@pytest.mark.slow
def test_no_profiler_outlives_a_killed_run(run_py: RunPy, path: dict[str, str]) -> None:
    """SIGKILL: nobody can end anything in order, and nothing stays (the fixture looks)."""
    running = run_py.start(*TWO, "worker.nsight=default", "hold=true", env=path)
    running.until_it_says("holding the layout")
    running.kill()
    assert running.done().code == -9
