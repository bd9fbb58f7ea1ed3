"""What a Python of workers lacks on this machine is said before a Ray is started for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.errors import PythonEnvError
from rl_cluster.process.python_build import look_ahead
from rl_cluster.recipes.recipe import build_recipe
from rl_cluster.recipes.recipe_preview import check_this_machine, plan_on
from rl_cluster.schema import PythonSpec

HERE = socket.gethostname()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is locked, as far as can be seen, and a program named uv."""
    (tmp_path / "demo").mkdir()
    for name in ("demo/pyproject.toml", "demo/uv.lock", "uv"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "demo"


@pytest.mark.parametrize(
    ("spec", "lost", "problem"),
    [
        pytest.param(
            {"executable": "BASE"}, "uv.lock", "python.executable on node {here}: the project must be locked, got no uv.lock in", id="lock"
        ),
        pytest.param(
            {"executable": "VLLM"}, "pyproject.toml", "python.project_dir on node {here}: must be a uv project on every node", id="project"
        ),
        pytest.param(
            {"executable": "no-uv/uv run"}, "", "python.executable on node {here}: uv must be installed, got no program '/", id="uv"
        ),
        pytest.param(
            {"executable": "pyhton3 -X dev"},
            "",
            "python.executable on node {here}: it must be there on every node, got no program 'pyhton3'",
            id="program",
        ),
    ],
)
def test_what_is_not_there_is_told_with_its_key(project: Path, spec: dict[str, str], lost: str, problem: str) -> None:
    """In the words that a node has for it; of a recipe's role with the role's key."""
    if lost:
        (project / lost).unlink()
    for above in ("", "roles.policy."):
        with pytest.raises(PythonEnvError) as caught:
            look_ahead([("fine.python", PythonSpec()), (f"{above}python", PythonSpec(**spec, project_dir=str(project)))])
        assert str(caught.value).startswith(above + problem.format(here=HERE))
        assert " Fix: " in str(caught.value)


def test_what_is_there_is_passed(project: Path) -> None:
    """Nothing is started: the uv here is an empty file."""
    words = ["BASE", "VLLM", "uv run --with x", "SYSTEM", "sh -c"]
    look_ahead([("python", PythonSpec(executable=word, project_dir=str(project))) for word in words])


def enter(recipe: RecipeSpec) -> None:
    """Build it, where that fails."""
    with build_recipe(recipe):
        pytest.fail("it was built")


@pytest.mark.parametrize("kind", ["simulated", "local"])
def test_a_recipe_is_told_the_key_of_the_role(tmp_path: Path, kind: str) -> None:
    """Where a Ray would be started for it, and where it is only planned; a role without workers runs nothing."""
    cluster = {"gpus_per_node": 0, "bundles_per_node": 1}
    python = {"executable": "BASE", "project_dir": str(tmp_path)}
    role = {"cluster": cluster, "python": python}
    recipe = recipe_from_config({"ray": {"kind": kind}, "policy": {**role, "worker": {}}})
    for look in (check_this_machine, plan_on, enter):
        with pytest.raises(PythonEnvError, match=rf"^policy\.python\.project_dir on node {HERE}: must be a uv project"):
            look(recipe)
    without = recipe_from_config({"ray": {"kind": kind}, "policy": role})
    check_this_machine(without)
    plan_on(without)
