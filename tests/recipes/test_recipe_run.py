"""Recipes as programs: plans, refusals, exit codes; no Ray is started here."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RECIPE = """
policy:
  cluster: {num_nodes: 2, gpus_per_node: 2, max_colocated_worker_groups: 2}
  numa: {}
  worker: {}
roles:
  reward:
    'on': {cluster: policy, nodes: [1]}
"""
MACHINES = "nodes:\n  - count: 2\n    resources: {GPU: 2, CPU: 8}\n"
DRAWN = """policy, reward: 4 GPUs on 2 machines

                 ┌───┬───┐
node 0    bundle │ 0 │ 1 │
10.0.0.1  policy │ 0 │ 1 │
                 ├───┼───┤
node 1    bundle │ 0 │ 1 │
10.0.0.2  policy │ 2 │ 3 │
          reward │ 0 │ 1 │
                 └───┴───┘

policy: 4 workers, by rank
reward: 2 workers, by rank
"""
PLANNED = "PLANNED: 2 roles on 4 bundles of 2 machines, nothing was created"
# A host's program: the same without and with Hydra's own objects is tested by the examples.
PROGRAM = """
import sys
import yaml
from rl_cluster import run_recipe

def train(recipe):
    raise SystemExit("must not be called")

with open("recipe.yaml") as file:
    cfg = yaml.safe_load(file)
code = run_recipe(cfg, train, **dict(word.split("=") for word in sys.argv[1:]))
print("ray" in sys.modules)
sys.exit(code)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe, machines, and a program."""
    for name, text in {"recipe.yaml": RECIPE, "machines.yaml": MACHINES, "program.py": PROGRAM}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(folder: Path, script: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    dropped = ("RAY_", "HYDRA_", "NRL_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    env |= {"RAY_ADDRESS": "local", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT) if (ROOT / "rl_cluster").is_dir() else ""}
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_plans_without_ray(folder: Path) -> None:
    """mode=plan on a file draws, says one line, calls nothing, and imports no Ray."""
    assert run(folder, folder / "program.py", "mode=plan", "inventory=machines.yaml") == (0, f"{DRAWN}{PLANNED}\nFalse\n", "")


def test_mode_and_inventory_can_stand_in_the_config(folder: Path) -> None:
    """As the examples have it."""
    (folder / "recipe.yaml").write_text(f"mode: plan\ninventory: machines.yaml\n{RECIPE}", encoding="utf-8")
    assert run(folder, folder / "program.py")[1] == f"{DRAWN}{PLANNED}\nFalse\n"


@pytest.mark.parametrize(
    ("change", "words", "code", "message"),
    [
        pytest.param(
            ("num_nodes: 2", "num_nodes: 3"),
            ["mode=plan", "inventory=machines.yaml"],
            3,
            "policy: 3 logical nodes of 2 GPUs",
            id="does not fit",
        ),
        pytest.param(
            ("groups: 2", "groups: 1"),
            [],
            1,
            "policy.cluster.max_colocated_worker_groups: must be at least 2 for the roles that share bundle 0 of logical node 1 "
            "(policy, reward), got 1.",
            id="overlap",
        ),
        pytest.param(("", ""), ["mode=pln"], 1, "mode: must be up, plan or prefetch, got 'pln'. Fix: write plan\n", id="mode"),
        pytest.param(
            ("", ""),
            ["inventory=machines.yaml"],
            1,
            "inventory: must be left out with mode up, got 'machines.yaml'. Fix: write mode=plan, or ray=simulated\n",
            id="inventory",
        ),
        pytest.param(
            ("worker: {}", "worker: {target: no.where.C}"),
            [],
            1,
            "policy.worker.target: no module named 'no'",
            id="no class",
            marks=pytest.mark.skipif(find_spec("ray.actor") is None, reason="Ray is not installed, so no worker class is looked at"),
        ),
        pytest.param(
            ("numa: {}", "numa: {membind: maybe}"), [], 1, "policy.numa.membind: must be true or false, got 'maybe'\n", id="value"
        ),
    ],
)
def test_a_program_tells_problems_in_their_own_lines(
    folder: Path, change: tuple[str, str], words: list[str], code: int, message: str
) -> None:
    """Before any Ray is started; no traceback."""
    (folder / "recipe.yaml").write_text(RECIPE.replace(*change) if change[0] else RECIPE, encoding="utf-8")
    found, _, err = run(folder, folder / "program.py", *words)
    assert (found, err[: len(message)]) == (code, message)
    assert "Traceback" not in err


@pytest.mark.parametrize("mode", ["plan", "up"])
def test_a_machine_that_is_too_small_is_told_before_a_ray_is_started_there(folder: Path, mode: str) -> None:
    """With no cluster in reach: what was looked at, and how to rehearse it."""
    (folder / "recipe.yaml").write_text(RECIPE.replace("gpus_per_node: 2", "gpus_per_node: 1000"), encoding="utf-8")
    code, out, err = run(folder, folder / "program.py", f"mode={mode}")
    assert (code, "Traceback" in err) == (3, False)
    assert out == "True\n"  # Ray's own reading of this machine
    assert err.splitlines()[-1] == (
        "No running Ray cluster was found (looked at ray.address, $RAY_ADDRESS and this machine), and a local one here would be too small. "
        "Fix: ray.address=HOST:PORT for a cluster that holds it. To rehearse it on this machine: the option simulated of the group ray, "
        "or a node ray: {kind: simulated}"
    )


def test_run_py_plans_a_recipe(folder: Path) -> None:
    """recipe=FILE with mode=plan: the same drawing; report.json has both layouts and the recipe, layout.svg every role."""
    code, out, err = run(folder, ROOT / "run.py", "recipe=recipe.yaml", "mode=plan", "inventory=machines.yaml", "hydra.run.dir=out")
    assert (code, err) == (0, "planning on file machines.yaml: 2 machines\n")
    assert out == f"{DRAWN}files: {folder / 'out'}\n{PLANNED}\n"
    report = json.loads((folder / "out/report.json").read_text(encoding="utf-8"))
    assert not {"cluster", "numa", "python", "worker", "env"} & set(report["spec"])  # each role has its own
    assert report["layout"] is None
    assert {name: layout["bundle_counts"] for name, layout in report["layouts"].items()} == {"policy": [2, 2]}
    assert report["recipe"]["roles"]["reward"]["on"] == {"cluster": "policy", "nodes": [1], "gpus": None}
    assert report["ok"]
    assert report["started"] < report["finished"]
    assert ">reward" in (folder / "out/layout.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(
            ["cluster=2x8_spread"],
            1,
            "cluster: must be left out with a recipe, whose roles say it, got 'cluster=2x8_spread'. "
            "Fix: change the recipe's own key: 'recipe_overrides=[\"ROLE.cluster...\"]'\n",
            id="a key of one cluster",
        ),
        pytest.param(
            ['recipe_overrides=["policy.cluster.num_nods=3"]'],
            1,
            "policy.cluster.num_nods: must be a key of ClusterSpec, got 3. Fix: write policy.cluster.num_nodes\n",
            id="a key of the recipe",
        ),
        pytest.param(
            ['recipe_overrides=["policy.cluster.num_nodes=3"]'],
            3,
            "planning on file machines.yaml: 2 machines\npolicy: 3 logical nodes of 2 GPUs",
            id="does not fit",
        ),
        pytest.param(
            ["recipe=nowhere.yaml"],
            1,
            "nowhere.yaml: must be a readable file, got No such file or directory. Fix: correct its path\n",
            id="no such file",
        ),
    ],
)
def test_run_py_refuses_a_recipe(folder: Path, words: list[str], code: int, message: str) -> None:
    """The exit codes of run.py, and its last line."""
    base = [] if words[0].startswith("recipe=") else ["recipe=recipe.yaml"]
    found, out, err = run(folder, ROOT / "run.py", *base, "mode=plan", "inventory=machines.yaml", *words)
    assert (found, err[: len(message)]) == (code, message)
    assert out.splitlines()[-1].startswith("FAILED: ")


def test_run_py_needs_a_worker_in_mode_up(folder: Path) -> None:
    """Nothing would run, and nothing would be checked."""
    (folder / "recipe.yaml").write_text(RECIPE.replace("  worker: {}\n", ""), encoding="utf-8")
    code, _, err = run(folder, ROOT / "run.py", "recipe=recipe.yaml", "ray=simulated")
    assert code == 1
    assert err.startswith("recipe: must have a role with a worker for mode up, got ['policy', 'reward']. Fix: add worker: {} to a role")


def test_overrides_need_a_recipe(folder: Path) -> None:
    """They would change nothing."""
    code, _, err = run(folder, ROOT / "run.py", 'recipe_overrides=["a=1"]', "mode=plan")
    assert (code, err) == (1, "recipe_overrides: must be left out without a recipe, got ['a=1']. Fix: write recipe=FILE\n")


def test_what_is_told_comes_once(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """In a program of somebody else's, whose logging may show it as well, on standard error; in run.py also in the log."""
    from rl_cluster.views.screen import Screen

    with caplog.at_level(logging.INFO):
        Screen(logs=False).tell("builds")
        assert (capsys.readouterr().err, caplog.messages) == ("builds\n", [])
        Screen().tell("places")
        assert (capsys.readouterr().err, caplog.messages) == ("places\n", ["places"])
