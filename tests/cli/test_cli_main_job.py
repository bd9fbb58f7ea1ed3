"""The main job: a config becomes placed, bound, ranked and verified workers of a real Ray, and everything is given back."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_py import Done, RunPy

from rl_cluster.views.report import validate_report

pytestmark = pytest.mark.ray

CHECKS = ["ranks", "rank variables", "rendezvous", "placement", "strategy", "devices", "processes", "bindings", "python"]


def all_held(done: Done, workers: int, machines: int = 1, *, simulated: bool) -> None:
    """Exit 0, the verdict as the last line, and the three files."""
    assert done.code == 0, done.err
    counted = f"{workers} worker{'s' * (workers != 1)} on {machines} machine{'s' * (machines != 1)}"
    assert done.last_line == f"OK: {counted}, 9 of 9 checks held{' (simulated)' * simulated}"
    report = done.report
    assert validate_report(report) == []
    assert (report["ok"], report["simulated"], report["mode"]) == (True, simulated, "up")
    assert [(check["name"], check["ok"]) for check in report["checks"]] == [(name, True) for name in CHECKS]
    assert [worker["rank"] for worker in report["workers"]] == list(range(workers))
    assert len({worker["pid"] for worker in report["workers"]}) == workers
    assert {worker["python"] for worker in report["workers"]} == {sys.executable}
    assert ElementTree.parse(done.folder / "layout.svg").getroot().tag.endswith("svg")
    assert sorted(path.name for path in done.folder.iterdir()) == [".hydra", "layout.svg", "report.json", "rl_cluster.log"]


def parts(done: Done) -> dict[str, list[str]]:
    """Standard output cut at its headings: the grid first, then the workers' table and the checks."""
    grid, workers, checks = re.split(r"^(?:workers|checks)(?: \(simulated\))?:\n", done.out, flags=re.MULTILINE)
    return {"grid": grid.splitlines(), "workers": workers.strip().splitlines(), "checks": checks.splitlines()}


def test_plain_run_on_this_machine(run_py: RunPy) -> None:
    """`python run.py`: as many workers as the local Ray has CPUs, each in a bundle of its own; nothing to bind to without a GPU."""
    done = run_py("ray.num_gpus=0")
    report = done.report
    count = int(report["layout"]["nodes"][0]["total"]["CPU"])
    all_held(done, count, simulated=False)
    assert report["ray"]["kind"] == "local"
    assert {worker["binding"]["cpu_status"] for worker in report["workers"]} == {"skipped: no-gpu"}
    shown = parts(done)
    assert f"1 logical node, {count} CPU bundle{'s' * (count != 1)} on 1 machine, SPREAD" in shown["grid"]
    assert shown["workers"][0].split() == ["rank", "node", "address", "GPUs", "CPUs", "memory", "Python", "pid"]
    assert [int(line.split()[0]) for line in shown["workers"][1:]] == list(range(count))
    assert [line.split()[0] for line in shown["checks"][:9]] == ["ok"] * 9
    assert [line.partition(":")[0] for line in done.err.splitlines()] == [
        "connecting to Ray ...",
        f"placing on ray at {report['ray']['address'].partition(':')[0]}",
        f"{count} of {count} workers up",
    ]
    assert "\x1b" not in done.out + done.err
    assert "simulated" not in (done.out + done.err).lower()
    assert f"{count} of {count} workers up" in done.log


@pytest.mark.slow
def test_2x8_spread_on_a_simulated_cluster(run_py: RunPy) -> None:
    """16 workers on two made-up machines: CPUs really bound by the made-up map, memory as the kernel has it, `simulated` in every part."""
    done = run_py("cluster=2x8_spread", "numa.membind=false", "ray=simulated")
    all_held(done, 16, machines=2, simulated=True)
    workers = done.report["workers"]
    mine = sorted(os.sched_getaffinity(0))
    halves = [mine[: max(1, len(mine) // 2)], mine[len(mine) // 2 :] or mine]
    nodes = [node["node_id"] for node in done.report["layout"]["nodes"]]
    for rank, worker in enumerate(workers):
        assert (worker["node_rank"], worker["local_rank"], worker["gpu_ids"]) == (rank // 8, rank % 8, [str(rank % 8)])
        assert worker["node_id"] == nodes[rank // 8]
        assert worker["address"]
        binding = worker["binding"]
        assert (binding["cpu_status"], binding["mem_status"], binding["source"]) == ("bound", "skipped: disabled", "affinity_file")
        assert cpu_set(binding["cpus_held"]) == set(halves[rank % 8 // 4])
        assert binding["policy_held"] == "default"
    shown = parts(done)
    assert "SIMULATED: nodes and accelerators are made up, on this machine" in shown["grid"]
    for heading in ("workers (simulated):", "checks (simulated):"):
        assert heading in done.out.splitlines()
    assert [line.split()[:2] for line in shown["workers"][1:]] == [[str(rank), str(rank // 8)] for rank in range(16)]
    assert "a simulated cluster" in done.err
    assert "SIMULATED" in (done.folder / "layout.svg").read_text(encoding="utf-8")


MACHINES = """
nodes:
- {address: 10.0.0.10, resources: {GPU: 2, CPU: 8, memory: 3.0e+12}, labels: {pool: a}}
- {address: 10.0.0.9, resources: {GPU: 2, CPU: 4}, head: true}
- {address: "2001:db8::1", resources: {GPU: 8, CPU: 16}, free: {GPU: 1}}
- {address: 10.0.0.8, resources: {GPU: 2, CPU: 4}, hostname: broken}
- {address: 10.0.0.7, resources: {GPU: 8, CPU: 8}, state: draining}
"""


@pytest.mark.slow
def test_an_inventory_file_is_rehearsed_as_it_is_planned_on(run_py: RunPy) -> None:
    """The same words choose the same machines: its head, its names, its order; what is held or not alive is not started, and told."""
    (run_py.folder / "machines.yaml").write_text(MACHINES, encoding="utf-8")
    words = [
        *("inventory=machines.yaml", "cluster=2x8_spread", "cluster.bundle_ct_per_node_list=[1,2]", "cluster.num_nodes=2"),
        *("cluster.use_head=never", "cluster.exclude_nodes=[broken]"),
    ]
    done, planned = run_py("ray=simulated", *words), run_py("mode=plan", *words)
    all_held(done, 3, machines=2, simulated=True)
    placed = [[bundle["address"] for bundle in run.report["layout"]["bundles"]] for run in (done, planned)]
    assert placed == [["2001:db8::1", "10.0.0.10", "10.0.0.10"]] * 2
    nodes = {node["address"]: node for node in done.report["layout"]["nodes"]}
    assert [worker["node_id"] for worker in done.report["workers"]] == [nodes[address]["node_id"] for address in placed[0]]
    assert list(nodes) == ["10.0.0.8", "10.0.0.9", "10.0.0.10", "2001:db8::1"]
    assert [node["address"] for node in nodes.values() if node["is_head"]] == ["10.0.0.9"]
    used = nodes["10.0.0.10"]
    assert [nodes["2001:db8::1"]["total"]["GPU"], used["total"]["memory"], used["labels"]["pool"]] == [1, 3e12, "a"]
    assert done.report["warnings"] == [
        "held in file machines.yaml and so not started: 7 of 8 GPU on 2001:db8::1",
        "not alive in file machines.yaml and so not started: 10.0.0.7 (draining)",
    ]
    assert [f"warning: {note}" in done.err for note in done.report["warnings"]] == [True, True]


@pytest.mark.slow
def test_what_is_held_in_a_file_is_held_in_its_rehearsal(run_py: RunPy) -> None:
    """What a plan refuses, its rehearsal refuses."""
    (run_py.folder / "machines.yaml").write_text("nodes: [{resources: {GPU: 8, CPU: 8}, free: {GPU: 3}}]", encoding="utf-8")
    words = ("inventory=machines.yaml", "cluster=1x8", "cluster.gpus_per_node=4")
    assert [run_py(word, *words).code for word in ("mode=plan", "ray=simulated")] == [3, 3]


def cpu_set(text: str) -> set[int]:
    """The CPUs of a list like 0-3,8."""
    ranges = [part.partition("-") for part in text.split(",")]
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}


@pytest.mark.slow
def test_rehearsal_command_works_when_pasted(run_py: RunPy) -> None:
    """The command that a shortfall suggests, pasted as it is, runs the same layout on a simulated cluster."""
    words = ("cluster=2x8_spread", "cluster.gpus_per_node=1", "numa.membind=false", "ray.num_gpus=0", "worker.kwargs={}")
    refused = run_py(*words)
    assert refused.code == 3
    program, script, *pasted = shlex.split(refused.err.splitlines()[-1])
    assert (program, Path(script).name, pasted[-1]) == ("python", "run.py", "ray=simulated")
    all_held(run_py(*pasted), 2, machines=2, simulated=True)


@pytest.mark.slow
def test_runs_at_once_do_not_meet(run_py: RunPy) -> None:
    """Two simulations and two plain runs on one machine at the same time: four clusters, none joins another's."""
    simulated = [run_py.start("ray=simulated", "cluster=1x8", "cluster.gpus_per_node=1") for _ in range(2)]
    plain = [run_py.start("ray.num_cpus=1", "ray.num_gpus=0", env={"RAY_ADDRESS": None}) for _ in range(2)]
    done = [run.done() for run in (*simulated, *plain)]
    assert [run.code for run in done] == [0, 0, 0, 0], [run.err for run in done]
    addresses = [run.report["ray"]["address"] for run in done]
    kinds = [run.report["ray"]["kind"] for run in done]
    if "attached" in kinds and not {addresses[kinds.index("attached")]} & {
        a for a, kind in zip(addresses, kinds, strict=True) if kind != "attached"
    }:
        pytest.skip(f"a Ray cluster that anybody may join runs on this machine, at {addresses[kinds.index('attached')]}")
    assert kinds == ["simulated", "simulated", "local", "local"]
    assert len(set(addresses)) == 4
