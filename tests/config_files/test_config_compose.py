"""Hydra itself over the option files: what it composes is what the loader without Hydra says, and its refusals are told in our words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from rl_cluster.config import GROUPS, conf_dir, describe_compose_error, from_config, load_run, option_names
from rl_cluster.errors import ConfigError

APP = """
import os, sys
import hydra
from rl_cluster.config import conf_dir, describe_compose_error, from_config
from rl_cluster.errors import ConfigError

@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="rl_cluster")
def main(cfg):
    try:  # in the task: Hydra announces what a task raises
        spec = from_config(cfg)
    except ConfigError as error:
        sys.exit("\\n".join(error.problems))
    print("spec", spec.cluster.bundle_counts, spec.numa.membind, os.getcwd())

os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what it would print
try:
    main()
except Exception as error:
    sys.exit("\\n".join(describe_compose_error(error, sys.argv[1:])))
"""


@pytest.fixture
def run_config() -> Iterator[Callable[[list[str]], DictConfig]]:
    """Compose run.py's config as Hydra does."""
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        yield lambda words: compose("rl_cluster", overrides=words)


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A Hydra app of the user's side of the door, as a process of its own."""
    script = tmp_path / "app.py"
    script.write_text(APP, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    return run


SAME = [
    [],
    ["cluster=2x8_spread", "numa.membind=off"],
    ["cluster=uneven_8_4", "cluster.cpus_per_bundle=0.5", "cluster.label_selector={zone: a}"],
    ["cluster=2x8_spread", "cluster.num_nodes=null", "cluster.bundle_ct_per_node_list=[8,4,4]"],
    ["worker.kwargs.lr=0.1", "cluster.resources.nic=1", "cluster.label_selector.zone='in(a, b)'", "env.set={A: b}"],
    ["cluster.gpus_per_node=2", "worker.kwargs={lr: 0.1, tags: [a, b]}", "worker.target=a.b.C", "+env.set.NCCL_DEBUG=INFO"],
    ["~cluster.strategy", "env.forward=[NCCL_*]", "cluster.timeout_s=5", "cluster.name=7", "mode=plan", "inventory=tomorrow.yaml"],
    *[[f"{group}={name}"] for group in GROUPS for name in option_names(group)],
]


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_hydra_and_the_loader_without_it_read_the_same_spec(run_config: Callable[[list[str]], DictConfig], words: list[str]) -> None:
    """One meaning, two ways to it."""
    if "~cluster.strategy" in words:  # a typed node has every key, so Hydra refuses to delete one
        words = words[1:]
    assert from_config(run_config(words)) == load_run(words)


def test_a_composed_config_is_typed_by_the_schemas(run_config: Callable[[list[str]], DictConfig]) -> None:
    """Every key is there with its default, num_nodes open until a spec is made."""
    cfg = run_config(["cluster=uneven_8_4"])
    assert OmegaConf.to_container(cfg.cluster) == {
        "name": "",
        "num_nodes": None,
        "gpus_per_node": 8,
        "bundles_per_node": None,
        "bundle_ct_per_node_list": [8, 4],
        "use_gpus": True,
        "accelerator": "GPU",
        "max_colocated_worker_groups": 1,
        "strategy": "SPREAD",
        "unified": False,
        "cpus_per_bundle": None,
        "label_selector": {},
        "resources": {},
        "exclude_nodes": [],
        "use_head": "auto",
        "segment_size": None,
        "master_port_range_low": 1400,
        "master_port_range_high": 2000,
        "timeout_s": 180.0,
    }
    assert sorted(cfg) == ["cluster", "env", "hold", "inventory", "mode", "numa", "python", "ray", "recipe", "recipe_overrides", "worker"]


CLUSTER_OPTIONS = "1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, local or uneven_8_4"
REFUSED = {
    "values": (
        ["cluster=2x8_spread", "cluster.num_nodes=-4", "cluster.gpus_per_node=-1", "cluster.strategy=SPRED"],
        [
            "cluster.num_nodes: must be at least 1, got -4",
            "cluster.gpus_per_node: must be at least 0, got -1",
            "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
        ],
    ),
    "unknown_key": (["cluster.num_nods=2"], ["cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes"]),
    "added_key": (["+env.sett=1"], ["env.sett: must be a key of EnvSpec, got 1. Fix: write env.set"]),
    "added_key_of_the_root": (["+extra=1"], ["extra: must be a key of RunSpec, got 1. Fix: "]),
    "switch": (["numa.membind=maybe"], ["numa.membind: must be true or false, got 'maybe'"]),
    "option": (["cluster=2x8_spred"], [f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8_spred'. Fix: write cluster=2x8_spread"]),
    "group": (["clustr=local"], ["clustr: must be a key of RunSpec, got 'local'. Fix: write cluster"]),
    "all_kinds_at_once": (
        ["ray=simulate", "numa.membind=maybe", "cluster.num_nods=2", "cluster.num_nodes=two"],
        [
            "ray: must be an option (auto, local or simulated), got 'simulate'. Fix: write ray=simulated",
            "cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes",
            "cluster.num_nodes: must be a whole number, got 'two'",
            "numa.membind: must be true or false, got 'maybe'",
        ],
    ),
    "value_for_a_group": (["numa=[1]"], ["numa: must be a group of keys (NumaSpec), got [1]"]),
    "sweep_without_multirun": (
        ["cluster=1x8", "cluster.num_nodes=1,2", "cluster.strategy=PACK,SPRED"],
        [
            "cluster.num_nodes: must be one value in a run without -m, got '1,2'. Fix: add -m, which runs one job for each; "
            "or quote a value that has commas: 'cluster.num_nodes=\"1,2\"'",
            "cluster.strategy: must be one value in a run without -m, got 'PACK,SPRED'. Fix: add -m, which runs one job for each; or quote",
            "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
        ],
    ),
    "range_without_multirun": (
        ["cluster=1x8", "cluster.num_nodes=range(1,3)"],
        ["cluster.num_nodes: must be one value in a run without -m, got 'range(1,3)'. Fix: add -m, which runs one job for each"],
    ),
    "item_there_already": (
        ["cluster=1x8", "+cluster.num_nodes=2"],
        ["config: Could not append to config. An item is already at 'cluster.num_nodes'."],
    ),
}


@pytest.mark.parametrize(("words", "starts"), REFUSED.values(), ids=REFUSED.keys())
def test_what_hydra_refuses_is_told_in_our_words(
    run_config: Callable[[list[str]], DictConfig], words: list[str], starts: list[str]
) -> None:
    """Hydra stops at its first problem; all are listed."""

    def lines() -> list[str]:
        try:
            from_config(run_config(words))
        except ConfigError as error:
            return list(error.problems)
        except Exception as error:
            return describe_compose_error(error, words)
        return []

    found = lines()
    assert len(found) == len(starts)
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts
    assert all("\n" not in line for line in found)


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        pytest.param(
            ["cluster.num_nods=2", "numa.membind=maybe"],
            "cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes\n"
            "numa.membind: must be true or false, got 'maybe'\n",
            id="refused_by_hydra",
        ),
        pytest.param(
            ["cluster=2x8_spread", "cluster.num_nodes=-4"], "cluster.num_nodes: must be at least 1, got -4\n", id="refused_by_the_door"
        ),
        pytest.param(
            ["-m", "cluster=2x8_pack,2x8_spred"],
            f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8_spred'. Fix: write cluster=2x8_spread\n",
            id="refused_in_a_sweep",
        ),
    ],
)
def test_a_users_slip_gives_our_lines_and_exit_1(
    app: Callable[..., subprocess.CompletedProcess[str]], words: list[str], stderr: str
) -> None:
    """No traceback, nothing else on stderr."""
    done = app(*words)
    assert (done.returncode, done.stderr) == (1, stderr)
    assert "spec" not in done.stdout.replace("2x8_sp", "").split("\n")[-2:]


TYPED = "defaults:\n  - /rl_cluster/schema/cluster@_here_\n  - _self_\n"
OWN_OPTIONS = {
    "typo.yaml": "num_nodes: 2\ngpu_per_node: 3\n",
    "typed.yaml": f"{TYPED}num_nodes: 2\ngpu_per_node: 3\n",
    "based.yaml": "defaults:\n  - 2x8_spread\n  - _self_\ngpus_per_node: eight\n",
    "broken.yaml": "num_nodes: 2\n  gpus: : 3\n",
    "whole.yaml": "num_nodes: 2\ngpus_per_node: 4\n",
}


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(["--config-dir", "mine"], id="flag"),
        pytest.param(["-cd=mine"], id="short", marks=pytest.mark.slow),
        pytest.param(["hydra.searchpath=[file://mine]"], id="search_path", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        pytest.param(
            ["cluster=typo"],
            "mine/cluster/typo.yaml: cluster.gpu_per_node: must be a key of ClusterSpec, got 3. Fix: write cluster.gpus_per_node\n",
            id="misspelt_key",
        ),
        pytest.param(
            ["cluster=typed", "cluster.num_nodes=-1"],
            "cluster.num_nodes: must be at least 1, got -1\n"
            "mine/cluster/typed.yaml: cluster.gpu_per_node: must be a key of ClusterSpec, got 3. Fix: write cluster.gpus_per_node\n",
            id="misspelt_key_below_the_schema_and_a_bad_word",
        ),
        pytest.param(
            ["cluster=based"], "mine/cluster/based.yaml: cluster.gpus_per_node: must be a whole number, got 'eight'\n", id="bad_value"
        ),
        pytest.param(
            ["cluster=broken"], "mine/cluster/broken.yaml, line 2: must be YAML, got mapping values are not allowed here\n", id="no_yaml"
        ),
        pytest.param(
            ["cluster=whol"],
            "cluster: must be an option (1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, based, broken, local, typed, typo, "
            "uneven_8_4 or whole), got 'whol'. Fix: write cluster=whole\n",
            id="unknown_option",
        ),
    ],
)
def test_a_slip_in_a_users_own_option_file_is_told_with_its_file(
    app: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, folder: list[str], words: list[str], stderr: str
) -> None:
    """Flags and their values are no overrides; own options are listed beside ours."""
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    for name, text in OWN_OPTIONS.items():
        (tmp_path / "mine" / "cluster" / name).write_text(text, encoding="utf-8")
    done = app(*folder, *words)
    assert (done.stderr, done.returncode) == (stderr, 1)


def test_a_config_dir_that_is_not_there_is_said(app: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """And nothing of the options that it might have held."""
    done = app("--config-dir", "mine", "cluster=own")
    assert done.stderr == "--config-dir: must be a folder that is there, got 'mine'. Fix: correct its name, or leave it out\n"


RECIPE_WORDS = 'Fix: give it to the recipe: \'recipe_overrides=["policy.cluster.num_nodes=1","cluster@policy.cluster=1x8"]\''


def test_a_key_of_the_recipe_is_sent_to_recipe_overrides(app: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """With the whole word to write; run.py's own keys are looked at as ever."""
    done = app("recipe=R.yaml", "policy.cluster.num_nodes=1", "cluster@policy.cluster=1x8", "ray.num_cpus=no")
    rule = "must be a key of run.py itself; a key of the recipe goes into recipe_overrides"
    assert done.stderr.splitlines() == [
        f"policy.cluster.num_nodes: {rule}, got 'policy.cluster.num_nodes=1'. {RECIPE_WORDS}",
        f"cluster@policy.cluster: {rule}, got 'cluster@policy.cluster=1x8'. {RECIPE_WORDS}",
        "ray.num_cpus: must be a whole number, got 'no'",
    ]


def test_the_job_stays_in_the_users_folder_unless_asked(app: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Relative paths of a config mean what they meant in the shell; the run's folder is below outputs/."""
    done = app("cluster=2x8_spread", "numa.membind=no")
    assert (done.stdout, done.stderr, done.returncode) == (f"spec [8, 8] False {tmp_path}\n", "", 0)
    assert len(list((tmp_path / "outputs").glob("*/*/.hydra"))) == 1
    moved = app("cluster=uneven_8_4", "hydra.job.chdir=true", "hydra.run.dir=elsewhere")
    assert moved.stdout == f"spec [8, 4] True {tmp_path / 'elsewhere'}\n"


def test_help_shows_every_option_and_the_three_uses(app: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """The list in the help text is written by hand: this keeps it true."""
    done = app("--help")
    assert done.returncode == 0
    groups = done.stdout.partition("== Groups (group=option) ==")[2].partition("== Config (key=value) ==")[0]
    shown: dict[str, list[str]] = {}
    for line in groups.strip().splitlines():
        words: list[Any] = line.split()
        if not line.startswith(" "):
            shown[words[0]] = []
            words = words[1:]
        shown[list(shown)[-1]].append(words[0])
    assert {group: sorted(names) for group, names in shown.items()} == {group: option_names(group) for group in GROUPS}
    for use in ("python run.py cluster=2x8_spread numa.membind=false", "python run.py -m ", "- /cluster@policy.cluster: 2x8_spread"):
        assert use in done.stdout
    assert "max_colocated_worker_groups: 1" in done.stdout
