"""The head node of a running cluster dies: Ray's calls hang then, and Ray would end the process after a minute, without a word of ours."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from run_py import RunPy
from running_cluster import RunningCluster

from rl_cluster.views.report import validate_report

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TWO_OF_TWO = ("cluster=2x8_spread", "cluster.gpus_per_node=2", "numa.membind=false")
SOON = {"RAY_gcs_rpc_server_reconnect_timeout_s": "16"}  # and so after 12 s here


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    """Two nodes of 2 GPUs and 8 CPUs each."""
    with RunningCluster() as running:
        yield running


@pytest.mark.parametrize("when", ["waits", "holds"])
def test_the_run_ends_by_itself_with_its_last_line(run_py: RunPy, cluster: RunningCluster, when: str) -> None:
    """Before Ray's own limit, with exit 4, the report and one line that says what is lost."""
    if when == "waits":
        cluster.ask("take")
    run = run_py.start(*TWO_OF_TWO, "hold=true", f"ray.address={cluster.address}", env=SOON)
    run.until_it_says("waiting for resources" if when == "waits" else "holding the layout")
    cluster.lose_head()
    run.until_it_says(f"ray: the control service at {cluster.address} does not answer; waits 12 s for it ...")
    done = run.done()
    told = rf"ray: the control service at {cluster.address} has not answered for 1\d s, and with it the whole cluster is lost\. Fix: .*"
    assert re.fullmatch(rf"FAILED: {told} \(simulated\)", done.last_line), done.last_line
    assert re.fullmatch(told, done.err.splitlines()[-1])
    assert (done.code, done.report["error"]["type"]) == (4, "WorkerLostError")
    assert validate_report(done.report) == []


def test_sigterm_is_heard(run_py: RunPy, cluster: RunningCluster) -> None:
    """A batch system's SIGTERM ends it with the signal's exit code, long before Ray's own limit, which here is the usual one."""
    cluster.ask("take")
    run = run_py.start(*TWO_OF_TWO, f"ray.address={cluster.address}")
    run.until_it_says("waiting for resources")
    cluster.lose_head()
    run.until_it_says("does not answer; waits 45 s for it ...")
    run.terminate()
    began = time.monotonic()
    done = run.done()
    assert time.monotonic() - began < 20
    assert done.code == 143
    assert done.last_line.startswith(f"FAILED: interrupted by SIGTERM; ray: the control service at {cluster.address} has not answered for ")
    assert validate_report(done.report) == []


SLOWLY = """
import sys, time
from rl_cluster.connection import session
found = session.{function}
def slowly(*args, **keys):
    print("now", file=sys.stderr, flush=True)
    time.sleep(3)
    return found(*args, **keys)
session.{function} = slowly
"""


@pytest.mark.parametrize(
    ("mode", "function"), [("plan", "snapshot_inventory"), ("up", "_connect")], ids=["while it looks", "while it joins"]
)
def test_it_is_watched_from_before_it_is_joined(run_py: RunPy, cluster: RunningCluster, mode: str, function: str) -> None:
    """Also a plan ends with its last line, and a run whose Ray dies while it is being joined."""
    run = run_py.start(*TWO_OF_TWO, f"mode={mode}", f"ray.address={cluster.address}", env=SOON, before=SLOWLY.format(function=function))
    run.until_it_says("now")
    cluster.lose_head()
    done = run.done()
    assert done.code == 4, done.err
    assert done.last_line.startswith(f"FAILED: ray: the control service at {cluster.address} has not answered for 1")
    assert validate_report(done.report) == []


def test_a_sweep_comes_to_its_end(run_py: RunPy, cluster: RunningCluster) -> None:
    """The job that lost its Ray has its row, the others are not run, and the last line is the sweep's."""
    words = ("hold=true", f"ray.address={cluster.address}", "hydra.sweep.dir=sweep")
    run = run_py.start("-m", "worker.name=a,b", *TWO_OF_TWO, *words, env=SOON)
    run.until_it_says("holding the layout")
    cluster.lose_head()
    done = run.done()
    assert (done.code, done.last_line) == (4, "FAILED: 0 of 2 jobs ok, 1 failed, 1 not run (simulated)")
    rows = json.loads((run_py.folder / "sweep/summary.json").read_text(encoding="utf-8"))["jobs"]
    assert [(row["status"], row["exit_code"]) for row in rows] == [("failed", 4), ("not run", None)]


def test_a_control_service_that_only_pauses_is_waited_for(run_py: RunPy, cluster: RunningCluster) -> None:
    """It is said, and the run goes on."""
    run = run_py.start(*TWO_OF_TWO, "hold=true", f"ray.address={cluster.address}")
    run.until_it_says("holding the layout")
    with cluster.head_paused():
        run.until_it_says("does not answer; waits 45 s for it ...")
    run.until_it_says(f"ray: the control service at {cluster.address} answers again")
    run.ctrl_c()
    done = run.done()
    assert (done.code, done.last_line) == (0, "OK: 4 workers on 2 machines, 9 of 9 checks held (simulated)")
