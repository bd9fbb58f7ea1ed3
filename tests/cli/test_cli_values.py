"""Values that break a rule: one line each on standard error, exit 1, before anything starts."""

from __future__ import annotations

import pytest
from run_py import RunPy

CLUSTER_KEYS = (
    "name, num_nodes, gpus_per_node, bundles_per_node, bundle_ct_per_node_list, use_gpus, accelerator, max_colocated_worker_groups, "
    "strategy, unified, cpus_per_bundle, label_selector, resources, exclude_nodes, use_head, segment_size, master_port_range_low, "
    "master_port_range_high, timeout_s"
)
CLUSTER_OPTIONS = "1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, local or uneven_8_4"


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        pytest.param(
            ["cluster.num_nodes=-4", "cluster.gpus_per_node=-1", "cluster.strategy=SPRED", "numa.cpu_bind=sockt", "numa.membind=maybe"],
            [
                "cluster.num_nodes: must be at least 1, got -4",
                "cluster.gpus_per_node: must be at least 0, got -1",
                "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
                "numa.membind: must be true or false, got 'maybe'",
                "numa.cpu_bind: must be node, exclusive, socket or none, got 'sockt'. Fix: write socket",
            ],
            id="several at once, all of them told",
        ),
        pytest.param(
            ["cluster.num_nods=2"],
            ["cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes"],
            id="misspelt key",
        ),
        pytest.param(
            ["+cluster.extra=1"],
            [f"cluster.extra: must be a key of ClusterSpec, got 1. Fix: leave it out; the keys here are {CLUSTER_KEYS}"],
            id="added key",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["cluster.bundle_ct_per_node_list=[]"],
            ["cluster.bundle_ct_per_node_list: must have a bundle at least, got []. Fix: write one entry per node, e.g. [8, 4]"],
            id="empty list of bundles",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["cluster.bundle_ct_per_node_list=[0,0]"],
            ["cluster.bundle_ct_per_node_list: must have a bundle at least, got [0, 0]. Fix: write one entry per node, e.g. [8, 4]"],
            id="no bundle in the list",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["cluster.bundle_ct_per_node_list=[4,-1]"],
            ["cluster.bundle_ct_per_node_list[1]: must be at least 0, got -1"],
            id="negative bundles",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["cluster.bundle_ct_per_node_list=[4,2]", "cluster.num_nodes=3"],
            [
                "cluster.bundle_ct_per_node_list: must have one entry per logical node, got [4, 2] (2 entries) with num_nodes 3. "
                "Fix: leave num_nodes out (null): the list says it"
            ],
            id="list against num_nodes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["cluster=2x8"],
            [f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8'. Fix: write cluster=1x8"],
            id="misspelt option",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["inventory=cluster.yaml"],
            ["inventory: must be left out with mode up, got 'cluster.yaml'. Fix: write mode=plan, or ray=simulated"],
            id="inventory without mode=plan",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [f"cluster.num_nodes={'9' * 5000}", f"worker.kwargs={{n: {'9' * 5000}}}"],
            [
                f"cluster.num_nodes: must be a value that can be read (a number of more than 4300 digits), got '{'9' * 999}... "
                "(5002 characters)",
                "worker.kwargs: must be a value that can be read (a number of more than 4300 digits), got '{n: "
                f"{'9' * 995}... (5007 characters)",
            ],
            id="numbers that Python does not read",
            marks=pytest.mark.slow,
        ),
        pytest.param(["foo"], ["override: must be key=value (missing EQUAL at '<EOF>'), got 'foo'"], id="no override"),
    ],
)
def test_one_line_for_each_bad_value(run_py: RunPy, words: list[str], problems: list[str]) -> None:
    """Exit 1; standard error holds exactly one line per problem, standard output nothing; no Ray was looked for."""
    done = run_py(*words, env={"RAY_ADDRESS": "203.0.113.1:6379"})
    assert sorted(done.err.splitlines()) == sorted(problems)
    assert (done.code, done.out) == (1, "")


def test_words_for_false(run_py: RunPy) -> None:
    """Each of YAML's words for false, and 0, turns a boolean off."""
    done = run_py("mode=plan", "ray=simulated", "numa.membind=off", "numa.enabled=no", "numa.respect_inherited=0", "cluster.use_gpus=false")
    assert done.code == 0, done.err
    spec = done.report["spec"]
    values = [spec["numa"]["membind"], spec["numa"]["enabled"], spec["numa"]["respect_inherited"], spec["cluster"]["use_gpus"]]
    assert [value is False for value in values] == [True] * 4


def test_full_error_shows_the_traceback(run_py: RunPy) -> None:
    """HYDRA_FULL_ERROR=1 gives the traceback of a refused value, with the same exit code."""
    done = run_py("cluster.num_nodes=-4", env={"HYDRA_FULL_ERROR": "1"})
    assert done.code == 1
    assert "Traceback (most recent call last):" in done.err.splitlines()
    assert done.err.splitlines()[-1] == "rl_cluster.errors.ConfigError: cluster.num_nodes: must be at least 1, got -4"


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("env.forward=[RAY_*]", "env.forward: must not hold all variables of a launcher or of Ray, got RAY_*. Fix: name the ones you need"),
        (
            "+env.set.CUDA_VISIBLE_DEVICES=1",
            "env.set: must not hold a device list, Ray gives each worker its own, got CUDA_VISIBLE_DEVICES.",
        ),
        ("worker.nsight_workers=[worker-0-0]", "worker.nsight_workers: must be left out without worker.nsight, got ['worker-0-0']."),
    ],
)
@pytest.mark.parametrize("mode", ["plan", pytest.param("up", marks=pytest.mark.slow)])
def test_what_workers_can_not_be_given_is_told_before_anything_is_started(run_py: RunPy, mode: str, word: str, problem: str) -> None:
    """Also by a plan."""
    done = run_py(f"mode={mode}", "ray=simulated", "cluster=1x8", word)
    assert done.code == 1
    assert done.err.startswith(problem), done.err
    assert len(done.err.splitlines()) == 1


def test_secrets_of_the_command_line_are_not_written_down(run_py: RunPy) -> None:
    """Neither in what Hydra keeps of a run, nor in the command that a message suggests."""
    done = run_py("mode=plan", "ray=local", "cluster=1x8", "+env.set.WANDB_API_KEY=planted-value", "+env.set.NCCL_DEBUG=INFO")
    assert done.code == 3
    assert "+env.set.WANDB_API_KEY=***" in done.err
    kept = {path.name: path.read_text() for path in done.folder.rglob("*") if path.is_file()}
    assert "NCCL_DEBUG=INFO" in kept["overrides.yaml"]
    assert "planted-value" not in done.out + done.err + "".join(kept.values())
