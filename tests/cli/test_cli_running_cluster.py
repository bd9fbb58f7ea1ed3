"""A cluster that runs already is used, and left as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_py import RunPy, read_report
from running_cluster import RunningCluster

from rl_cluster.views.report import validate_report

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TWO_OF_TWO = ("cluster=2x8_spread", "cluster.gpus_per_node=2", "numa.membind=false")
WORKERS = """
import os

class Adder:
    def __init__(self, base, *, more=()):
        self.sum = base + sum(more)

    def total(self):
        return {"rank": int(os.environ["RANK"]), "total": self.sum, "set": {1}, "odd": object}

    def fail(self):
        if os.environ["RANK"] == "1":
            raise ValueError("no total\\nof this")

    def die(self):
        os._exit(3)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Two nodes of 2 GPUs and 8 CPUs each."""
    with RunningCluster() as running:
        yield running


@pytest.fixture
def untouched(cluster: RunningCluster) -> Iterator[RunningCluster]:
    """The cluster, which must be after the test as it was before."""
    before = cluster.ask("state")
    yield cluster
    assert cluster.settles(lambda state: bool(state == before)) == before


def nothing_taken(state: Any) -> bool:
    return bool(not state["groups"] and not any(state["taken"].values()) and not state["cpus taken"])


def test_plan_creates_nothing_and_up_builds_the_same(run_py: RunPy, untouched: RunningCluster) -> None:
    """A plan on the cluster that RAY_ADDRESS names is the layout that a run on ray.address then builds and verifies."""
    planned = run_py(*TWO_OF_TWO, "mode=plan", env={"RAY_ADDRESS": untouched.address})
    assert planned.code == 0, planned.err
    assert planned.last_line == "PLANNED: 4 bundles on 2 machines, nothing was created (simulated)"
    assert nothing_taken(untouched.ask("state"))
    built = run_py(*TWO_OF_TWO, f"ray.address={untouched.address}")
    assert built.code == 0, built.err
    assert built.last_line == "OK: 4 workers on 2 machines, 9 of 9 checks held (simulated)"
    assert built.report["layout"] == planned.report["layout"]
    assert built.report["ray"]["kind"] == planned.report["ray"]["kind"] == "attached"
    assert built.report["ray"]["address"] == untouched.address
    assert [worker["binding"]["cpu_status"] for worker in built.report["workers"]] == ["bound"] * 4  # by the simulation's map
    nodes = untouched.ask("state")["nodes"]
    assert [worker["node_id"] for worker in built.report["workers"]] == [nodes[0]] * 2 + [nodes[1]] * 2


def test_sweep_gives_back_between_jobs(run_py: RunPy, untouched: RunningCluster) -> None:
    """Each job of a sweep finds all resources free again, also after one that failed; the worst exit code is the sweep's."""
    words = ("cluster.num_nodes=3", "cluster.gpus_per_node=1", "cluster.timeout_s=1", "cluster=2x8_spread")
    done = run_py("-m", "cluster.strategy=SPREAD,STRICT_SPREAD,PACK", *words, env={"RAY_ADDRESS": untouched.address})
    assert done.code == 3
    reports = [read_report(folder) for folder in done.folders]
    assert [report["spec"]["cluster"]["strategy"] for report in reports] == ["SPREAD", "STRICT_SPREAD", "PACK"]
    assert [report["ok"] for report in reports] == [True, False, True]
    assert [len(report["workers"]) for report in reports] == [3, 0, 3]
    assert [validate_report(report) for report in reports] == [[], [], []]
    assert [line.partition(":")[0] for line in done.out.splitlines() if line.startswith(("OK", "FAILED: "))] == [
        "OK",
        "FAILED",
        "OK",
        "FAILED",
    ]
    assert len({Path(folder).parent for folder in done.folders}) == 1


def test_users_class_in_every_worker(run_py: RunPy, untouched: RunningCluster) -> None:
    """A class beside the folder of the command gets its arguments, and what its method returns stands in the report, by rank."""
    (run_py.folder / "adders.py").write_text(WORKERS, encoding="utf-8")
    words = ("worker.target=adders.Adder", "worker.method=total", "worker.kwargs={base: 3, more: [1, 2]}", "worker.name=adder")
    done = run_py(*TWO_OF_TWO, *words, f"ray.address={untouched.address}", "hydra.job.chdir=true")
    assert done.code == 0, done.err
    assert validate_report(done.report) == []
    for rank, worker in enumerate(done.report["workers"]):
        odd = worker["result"].pop("odd")
        assert worker["result"] == {"rank": rank, "total": 6, "set": [1]}
        assert odd == {"_repr": "<class 'object'>", "_type": "builtins.type"}  # what JSON has no form for
        assert (worker["group"], worker["name"]) == ("adder", f"adder-{worker['node_idx']}-{worker['bundle_idx']}")


def test_method_that_raises(run_py: RunPy, untouched: RunningCluster) -> None:
    """One line with rank, machine and error, exit 4; the traceback of the worker is in the log, not on the screen."""
    (run_py.folder / "adders.py").write_text(WORKERS, encoding="utf-8")
    words = ("worker.target=adders.Adder", "worker.method=fail", "worker.kwargs={base: 3}")
    done = run_py(*TWO_OF_TWO, *words, f"ray.address={untouched.address}")
    assert done.code == 4
    assert re.fullmatch(r"worker\.fail: rank 1 on \S+ raised ValueError: no total", done.err.splitlines()[-1])
    assert done.last_line == f"FAILED: {done.err.splitlines()[-1]} (simulated)"
    assert "Traceback" not in done.err + done.out
    assert 'raise ValueError("no total' in done.log
    assert done.report["error"]["type"] == "WorkerError"


def test_worker_that_dies(run_py: RunPy, untouched: RunningCluster) -> None:
    """A worker's process that is gone is named with its rank, exit 4; what Ray itself says of it has no colours in a pipe."""
    (run_py.folder / "adders.py").write_text(WORKERS, encoding="utf-8")
    words = ("cluster=1x8", "cluster.gpus_per_node=1", "worker.target=adders.Adder", "worker.method=die", "worker.kwargs={base: 3}")
    done = run_py(*words, f"ray.address={untouched.address}")
    assert done.code == 4
    assert re.search(r"^worker: the worker of rank 0 on \S+ \(logical node 0, pid \d+\) is gone: ", done.err, re.MULTILINE)
    assert done.last_line.startswith("FAILED: worker: the worker of rank 0 on ")
    assert "\x1b" not in done.out + done.err
    assert validate_report(done.report) == []


def test_sigterm_while_it_waits_for_resources(run_py: RunPy, cluster: RunningCluster) -> None:
    """SIGTERM while another job holds the GPUs: exit 143, and nothing of ours is placed when they become free."""
    cluster.ask("take")
    try:
        run = run_py.start(*TWO_OF_TWO, "cluster.timeout_s=120", env={"RAY_ADDRESS": cluster.address})
        run.until_it_says("waiting for resources")
        run.terminate()
        done = run.done()
    finally:
        cluster.ask("free")
    assert done.code == 143
    assert done.last_line == "FAILED: interrupted by SIGTERM; everything was given back (simulated)"
    assert "Traceback" not in done.err
    state = cluster.settles(nothing_taken)
    assert nothing_taken(state), state


LOOKS = """
import sys, time
from rl_cluster.connection import session
found = session.snapshot_inventory
def slowly(**keys):
    print("now", file=sys.stderr, flush=True)
    time.sleep(60)
session.snapshot_inventory = slowly
"""
RECIPE = "policy: {cluster: {num_nodes: 1, gpus_per_node: 1}, worker: {}}\n"


@pytest.mark.parametrize("recipe", [False, True], ids=["cluster", "recipe"])
def test_sigterm_while_a_plan_looks(run_py: RunPy, untouched: RunningCluster, recipe: bool) -> None:
    """One line and exit 143; Ray's own handler, which prints a stack and aborts, does not come in between."""
    (run_py.folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    words = ("recipe=recipe.yaml",) if recipe else TWO_OF_TWO
    run = run_py.start(*words, "mode=plan", f"ray.address={untouched.address}", before=LOOKS)
    run.until_it_says("now")
    run.terminate()
    done = run.done()
    assert (done.code, done.err) == (143, "now\ninterrupted by SIGTERM; everything was given back\n")


def test_a_sweep_uses_it_as_it_is(run_py: RunPy, untouched: RunningCluster) -> None:
    """A sweep starts nothing: its jobs run one after the other on the running cluster, each finds all of it free and leaves it so."""
    words = ("cluster.gpus_per_node=2", "cluster.strategy=SPREAD,STRICT_SPREAD,PACK", f"ray.address={untouched.address}")
    done = run_py("-m", "cluster.num_nodes=2", *words)
    assert done.code == 0, done.err
    assert done.last_line == "OK: 3 of 3 jobs ok (simulated)"
    assert "starting" not in done.err
    assert nothing_taken(untouched.settles(nothing_taken))
