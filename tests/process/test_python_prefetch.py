"""Environments built ahead of time: on which nodes, once, and nothing else; with a real uv on two nodes of a real Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from made_up import make_node
from two_nodes import offline, two_nodes
from uv_project import builds_of, find_uv, make_project

from rl_cluster.config import from_config
from rl_cluster.errors import ConfigError, PythonEnvError, ResourceInsufficientError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.process.python_prefetch import Prefetched, plans_to_prefetch, requests_on
from rl_cluster.schema import ClusterSpec, PythonSpec, RunSpec
from rl_cluster.views.table import render_prefetched, render_prefetched_verdict

BASE = PythonSpec(executable="BASE", project_dir="/p")
EIGHT = ClusterSpec(num_nodes=1, gpus_per_node=8)


def requested(wanted: list[tuple[ClusterSpec, PythonSpec]], *nodes: PhysicalNode) -> list[tuple[str, list[str]]]:
    """Each environment with the addresses of its nodes."""
    named = [("python", cluster, python) for cluster, python in wanted]
    return [(plan.requested, [node.address for node in on]) for plan, on in requests_on(named, Inventory(nodes)).items()]


def test_every_node_that_could_hold_a_bundle_gets_it() -> None:
    """Also one that is full now, or has fewer GPUs than a logical node; not one without a GPU, dead, or left out by the spec."""
    full = attrs.evolve(make_node(1), free={"CPU": 0.0, "GPU": 0.0})
    dead = attrs.evolve(make_node(4), state="dead")
    nodes = (make_node(0), full, make_node(2, gpus=1), make_node(3, gpus=0), dead, make_node(5))
    cluster = attrs.evolve(EIGHT, exclude_nodes=["10.0.0.6"])
    assert requested([(cluster, BASE)], *nodes) == [("BASE", ["10.0.0.1", "10.0.0.2", "10.0.0.3"])]


def test_each_distinct_environment_counts_once_per_node() -> None:
    """Roles that ask for the same share it, however they write it; each is built where one of its roles could be."""
    command = attrs.evolve(BASE, executable="uv run --locked")
    vllm = attrs.evolve(BASE, executable="VLLM")
    cpus = ClusterSpec(gpus_per_node=0, bundles_per_node=1)
    wanted = [(EIGHT, BASE), (EIGHT, vllm), (cpus, command), (EIGHT, PythonSpec())]
    both = ["10.0.0.1", "10.0.0.2"]
    assert requested(wanted, make_node(0), make_node(1, gpus=0)) == [("BASE", both), ("VLLM", both[:1])]


def test_a_cluster_that_no_node_could_hold_is_the_planners_error() -> None:
    """With its diagnosis."""
    with pytest.raises(ResourceInsufficientError, match="8 GPUs"):
        requested([(EIGHT, BASE)], make_node(0, gpus=0))


@pytest.mark.parametrize("executable", ["SYSTEM", "/opt/python -X dev"])
def test_nothing_to_build_is_told(executable: str) -> None:
    """With what to write."""
    with pytest.raises(ConfigError) as caught:
        plans_to_prefetch([("policy.python", PythonSpec(executable=executable))])
    assert str(caught.value) == (
        f"policy.python.executable: must be an environment that is built, to prefetch it, got {executable!r}. "
        "Fix: write python=base, python=vllm or a uv run command, or leave prefetch out: there is nothing to build"
    )


def test_the_key_of_the_python_group_says_the_mode() -> None:
    """``python.prefetch=true`` is mode prefetch; with plan it is refused, and so is holding what was not placed."""
    assert from_config({"python": {"executable": "BASE", "prefetch": True}}, kind=RunSpec).mode == "prefetch"
    with pytest.raises(
        ConfigError, match=r"^python\.prefetch: must be left out with mode plan, which builds nothing, got True\. Fix: write mode="
    ):
        from_config({"mode": "plan", "python": {"prefetch": True}}, kind=RunSpec)
    with pytest.raises(ConfigError, match=r"^hold: must be left out with mode prefetch"):
        from_config({"mode": "prefetch", "hold": True}, kind=RunSpec)


def test_workers_are_not_started_where_only_building_was_asked_for() -> None:
    """A key that would silently do nothing is an error, before a node is asked."""
    from rl_cluster.workers.worker_setup import WorkerEnvironment, set_up_python

    with pytest.raises(ConfigError, match=r"^python\.prefetch: must be left out where workers are to run, got True\. Fix: .*mode=prefetch"):
        set_up_python(attrs.evolve(BASE, prefetch=True), ["a-node"], WorkerEnvironment(early={}, late={}))


def test_the_table_and_the_last_line() -> None:
    """One row per node and environment, with the cause of a failure."""
    rows = [
        Prefetched("1", "10.0.0.1", "a", "BASE", "built", 12.34, "/envs/demo-1"),
        Prefetched("2", "10.0.0.2", "b", "BASE", "ready", 0.01, "/envs/demo-1"),
    ]
    failed = Prefetched(
        "2", "10.0.0.2", "b", "VLLM", "failed", 3.0, error="python.venv_dir on node 2 (b, ::1): must, got x: y (command: z). Fix: a\nmore"
    )
    assert render_prefetched([*rows, failed]).splitlines() == [
        "state   seconds  address   python  folder        error",
        "built      12.3  10.0.0.1  BASE    /envs/demo-1  -",
        "ready       0.0  10.0.0.2  BASE    /envs/demo-1  -",
        "failed      3.0  10.0.0.2  VLLM    -             python.venv_dir: must, got x: y",
    ]
    assert render_prefetched(rows).splitlines()[0] == "state  seconds  address   python  folder"
    assert render_prefetched_verdict(rows, simulated=False) == "PREFETCHED: 1 environment on 2 machines, 1 built, 1 ready already"
    assert render_prefetched_verdict([*rows, failed], simulated=True) == (
        "FAILED: 2 environments on 2 machines, 1 built, 1 ready already, 1 failed (simulated)"
    )


# --- with a Ray ---


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project."""
    folder = tmp_path_factory.mktemp("ground")
    make_project(folder)
    return folder


@pytest.fixture(scope="module")
def warmed_nodes(ground: Path) -> Iterator[None]:
    """Each with a cache folder of its own; that of the second can't be made, for a file is in its place while ``blocked`` is there."""
    caches = [{"XDG_CACHE_HOME": str(ground / name)} for name in ("cache-1", "cache-2")]
    head, second = ({"num_cpus": 2, "env_vars": cache} for cache in caches)
    with two_nodes(offline(ground), head=head, second=second):
        yield


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")
def test_all_nodes_are_warmed_while_others_hold_them_and_a_failure_names_its_node(ground: Path, warmed_nodes: None) -> None:
    """A node that fails does not keep the others from it; the next call builds what is missing, the one after that nothing. No place is
    taken, and no worker is made."""
    from ray._private.state import actors

    from rl_cluster import build_cluster, prefetch_python

    spec = {"gpus_per_node": 0, "bundles_per_node": 2, "num_nodes": 2, "use_head": "always", "timeout_s": 30}
    base = {"executable": "BASE", "project_dir": str(ground / "demo")}
    blocked = ground / "cache-2"
    blocked.touch()
    lines: list[str] = []
    with build_cluster(spec):  # takes every CPU there is
        with pytest.raises(PythonEnvError, match=rf"{blocked}"):
            prefetch_python(base, spec, on_progress=lines.append)
        assert [line for line in lines if "BASE built after" in line and f"{ground}/cache-1/" in line]
        assert [line for line in lines if "BASE failed after" in line]
        blocked.unlink()
        rows = prefetch_python(base, spec)
        assert sorted(row.state for row in rows) == ["built", "ready"]
        assert [row.state for row in prefetch_python(base, spec)] == ["ready", "ready"]
    assert sorted(str(row.folder)[: len(str(blocked))] for row in rows) == [f"{ground}/cache-1", f"{ground}/cache-2"]
    assert {actor["ActorClassName"] for actor in actors().values()} == {"_NodeHand"}
    assert builds_of(ground, "ground") == 2  # once for each folder of environments
    assert os.path.exists(f"{rows[0].folder}/bin/python")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")
def test_a_recipe_that_is_a_program_can_be_prefetched(
    ground: Path, warmed_nodes: None, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """``mode=prefetch`` of its own config builds, and does not train; what it says does not come by the program's own logging, too."""
    from rl_cluster import run_recipe

    cluster = {"gpus_per_node": 0, "bundles_per_node": 1, "use_head": "always"}
    config = {"mode": "prefetch", "policy": {"cluster": cluster, "python": {"executable": "VLLM", "project_dir": str(ground / "demo")}}}
    with caplog.at_level(logging.INFO):
        assert run_recipe(config, lambda recipe: pytest.fail("it trains")) == 0
    shown = capfd.readouterr()
    assert shown.out.splitlines()[-1] == "PREFETCHED: 1 environment on 2 machines, 2 built, 0 ready already"
    assert "building Python environments on 2 of 2 machines" in shown.err
    assert [record for record in caplog.records if record.getMessage() in shown.err] == []


def test_a_role_that_is_only_to_be_built_has_no_workers() -> None:
    """Said with the path of its key, before Ray is there."""
    from rl_cluster.config_files.recipe_spec import recipe_from_config
    from rl_cluster.recipes.recipe import check_recipe

    role = {"cluster": {"gpus_per_node": 8}, "python": {"executable": "BASE", "prefetch": True}, "worker": {}}
    with pytest.raises(ConfigError, match=r"^policy\.python\.prefetch: must be left out where workers are to run, got True\."):
        check_recipe(recipe_from_config({"policy": role}))
