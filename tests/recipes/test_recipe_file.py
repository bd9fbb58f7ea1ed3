"""Recipe files without Hydra: the same specs as Hydra gives, and clear refusals of what only Hydra can do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.config_files.recipe_file import load_recipe
from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.errors import ConfigError

RECIPE = """
defaults:
  - /cluster@policy.cluster: 2x8_spread
  - /numa@policy.numa: gpu_local
  - /python@policy.python: base
  - /cluster@generation.cluster: 1x8
  - /python@generation.python: vllm
  - /ray: simulated
  - model: small
  - base
  - optional model@other: nowhere
  - override hydra/job_logging: disabled
  - _self_

lr: 0.1
policy:
  cluster:
    gpus_per_node: ${gpus}
    max_colocated_worker_groups: 2
  worker:
    target: my.pkg.Policy
    kwargs: {lr: '${lr}'}
gpus: 4
roles:
  reward:
    'on': {cluster: policy, nodes: [1], gpus: [2, 3]}
hydra:
  job: {chdir: true}
"""
FILES = {
    "recipe.yaml": RECIPE,
    "base.yaml": "lr: 0.5\nsteps: 3\n",
    "model/small.yaml": "defaults: [common, _self_]\nsize: 1\n",
    "model/common.yaml": "size: 0\nvocab: 7\n",
    "cluster/mine.yaml": (
        "# Three of two.\ndefaults:\n  - /rl_cluster/schema/cluster@_here_\n  - _self_\nnum_nodes: 3\ngpus_per_node: 2\n"
        "bundles_per_node: ${.gpus_per_node}\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recipe, with a group and an option of its own."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def by_hydra(folder: Path, words: Sequence[str]) -> RecipeSpec:
    """What Hydra composes of the same file."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(folder), version_base="1.3"):
        return recipe_from_config(compose("recipe", overrides=list(words)))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param([], id="as it is"),
        pytest.param(["policy.cluster.num_nodes=3", "gpus=6"], id="values"),
        pytest.param(["cluster@generation.cluster=2x8_pack"], id="another option"),
        pytest.param(["cluster@generation.cluster=mine"], id="an option of the recipe's own folder"),
        pytest.param(["+cluster@critic.cluster=1x8", "+roles.ref.on=policy"], id="added"),
        pytest.param(["ray=local", "numa@policy.numa=unbound"], id="groups at the top and below"),
        pytest.param(["~roles.reward"], id="deleted"),
        pytest.param(["roles.reward.on.nodes=[0]"], id="a quoted on"),
    ],
)
def test_it_reads_what_hydra_composes(folder: Path, words: list[str]) -> None:
    """The same roles, specs and Ray."""
    assert load_recipe(folder / "recipe.yaml", overrides=words) == by_hydra(folder, words)


def test_the_recipe_says_what_it_says(folder: Path) -> None:
    """Values of the file win over those of the options, interpolations reach the whole recipe."""
    recipe = load_recipe(folder / "recipe.yaml")
    assert {name: (cluster.bundle_counts, cluster.strategy) for name, cluster in recipe.clusters.items()} == {
        "policy": ([4, 4], "SPREAD"),
        "generation": ([8], "STRICT_PACK"),
    }
    policy = recipe.roles["policy"]
    assert policy.numa is not None
    assert policy.python is not None
    assert policy.worker is not None
    assert (policy.numa.membind, policy.python.executable, policy.worker.kwargs) == (True, "BASE", {"lr": 0.1})
    assert recipe.ray is not None
    assert recipe.ray.kind == "simulated"


PROBLEMS: dict[str, tuple[str, list[str], list[str]]] = {
    "unknown option": (
        "defaults: [/cluster@a.cluster: 2x8_sprea]\n",
        [],
        [
            "FILE: defaults[0]: must be an option of cluster (1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, local, mine or "
            "uneven_8_4), got '2x8_sprea'. Fix: write 2x8_spread",
        ],
    ),
    "unknown group": (
        "defaults: [/clustr@a.cluster: 1x8]\n",
        [],
        ["FILE: defaults[0]: must be a group of options, got 'clustr'. Fix: write /cluster@a.cluster: 1x8"],
    ),
    "unknown file": ("defaults: [nowhere]\n", [], ["FILE: defaults[0]: must be a file of FOLDER, got 'nowhere'"]),
    "an option that YAML reads as a boolean": (
        "defaults: [/numa@a.numa: off]\n",
        [],
        [
            "FILE: defaults[0]: must choose one option by its name (False is none), got {'/numa@a.numa': False}. "
            "Fix: write it out, or compose this recipe by Hydra"
        ],
    ),
    "interpolation in the list": (
        "defaults: [/cluster@a.cluster: '${x}']\n",
        [],
        [
            "FILE: defaults[0]: must name its option without interpolation, got {'/cluster@a.cluster': '${x}'}. "
            "Fix: write it out, or compose this recipe by Hydra"
        ],
    ),
    "several options": (
        "defaults: [/cluster@a.cluster: [1x8, local]]\n",
        [],
        [
            "FILE: defaults[0]: must choose one option by its name (['1x8', 'local'] is none), got "
            "{'/cluster@a.cluster': ['1x8', 'local']}. "
            "Fix: write it out, or compose this recipe by Hydra"
        ],
    ),
    "a word for no entry": (
        "defaults: [/cluster@a.cluster: 1x8]\n",
        ["cluster@b.cluster=1x8"],
        ["cluster@b.cluster: must be in the recipe's defaults list, got '1x8'. Fix: write cluster@a.cluster=1x8"],
    ),
    "a key of no role": (
        "a: {cluster: {gpus_per_node: 1}}\nb: {cluster: {gpus_per_node: 1}}\n",
        ["cluster.strategy=PACK", "bb.cluster.num_nodes=2", "policy.cluster.num_nodes=2"],
        [
            "cluster.strategy: must begin with a key of the recipe, got 'cluster.strategy=PACK'. "
            "Fix: write a.cluster.strategy=PACK or b.cluster.strategy=PACK",
            "bb.cluster.num_nodes: must begin with a key of the recipe, got 'bb.cluster.num_nodes=2'. Fix: write b.cluster.num_nodes=2",
            "policy.cluster.num_nodes: must begin with a key of the recipe, got 'policy.cluster.num_nodes=2'. "
            "Fix: write +policy.cluster.num_nodes=2 to add it",
        ],
    ),
    "a string where the node was": (
        "defaults: [/cluster@a.cluster: 1x8]\n",
        ["a.cluster=2x8_pack"],
        [
            "a.cluster: must be a group of keys (ClusterSpec), got '2x8_pack'. Fix: to choose an option write cluster@a.cluster=2x8_pack",
        ],
    ),
    "a header": (
        "# @package _global_\na: {cluster: {gpus_per_node: 1}}\n",
        [],
        ["FILE: must have no @package header. Fix: write group@package: option in the defaults list"],
    ),
    "a number that Python does not read": (
        f"a: {{cluster: {{gpus_per_node: {'9' * 5000}}}}}\n",
        [],
        ["FILE: must be YAML, got a number of more than 4300 digits"],
    ),
    "a word with a number that Python does not read": (
        "a: {cluster: {gpus_per_node: 1}}\n",
        [f"a.cluster.num_nodes={'9' * 5000}"],
        [
            f"a.cluster.num_nodes: must be a value that can be read (a number of more than 4300 digits), got '{'9' * 999}... "
            "(5002 characters)"
        ],
    ),
    "a circle": ("defaults: [recipe2]\n", [], ["must not name each other in a circle"]),
}


@pytest.mark.parametrize(("text", "words", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_can_not_be_read_is_said(folder: Path, text: str, words: list[str], expected: list[str]) -> None:
    """One line for each problem, with the entry."""
    file = folder / "recipe2.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(file, overrides=words)
    found = [problem.replace(str(file), "FILE").replace(str(folder), "FOLDER") for problem in caught.value.problems]
    found = [problem for problem in found if not problem.startswith("recipe: must have a role")]
    if expected == ["must not name each other in a circle"]:
        assert expected[0] in found[0]
    else:
        assert found == expected


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """No traceback of the system's."""
    with pytest.raises(ConfigError, match="must be a readable file, got No such file or directory"):
        load_recipe(tmp_path / "nowhere.yaml")


def test_hydras_state_is_left_alone(folder: Path) -> None:
    """Neither GlobalHydra nor its singletons change."""
    import copy

    from hydra import version
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    def state() -> tuple[Any, ...]:
        return GlobalHydra.instance().hydra, copy.deepcopy(ConfigStore.instance().repo), version.VersionBase.instance().version_base

    before = state()
    load_recipe(folder / "recipe.yaml", overrides=["gpus=6"])
    assert state() == before
