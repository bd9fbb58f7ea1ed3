"""A foreign Hydra recipe, with nothing of ours but the installed package."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from installing import clean_env, install

Run = Callable[..., "subprocess.CompletedProcess[str]"]

RECIPE = """
defaults:
  - /cluster@policy.cluster: 2x8_spread
  - /cluster@rollout.cluster: 1x8
  - /numa@policy.numa: gpu_local
  - _self_

lr: 0.1
rollout:
  cluster:
    label_selector:
      pool: spot
"""

TRAIN = """
import sys
import hydra
from rl_cluster.config import from_config
from rl_cluster.errors import ConfigError
from rl_cluster.schema import ClusterSpec, NumaSpec

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    try:
        policy = from_config(cfg.policy.cluster, kind=ClusterSpec, path="policy.cluster")
        rollout = from_config(cfg.rollout.cluster, kind=ClusterSpec, path="rollout.cluster")
        numa = from_config(cfg.policy.numa, kind=NumaSpec, path="policy.numa")
    except ConfigError as error:
        sys.exit("\\n".join(error.problems))
    print(policy.bundle_counts, policy.strategy, policy.label_selector, "|", end=" ")
    print(rollout.bundle_counts, rollout.label_selector, "|", numa.membind)

main()
"""

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The interpreter of a fresh environment, made once for each way of installing."""
    return functools.cache(lambda kind: install(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture
def run(request: pytest.FixtureRequest, pythons: Callable[[str], Path], tmp_path: Path) -> Run:
    """Run a script in a folder that has nothing to do with it, with the wheel unless the test names other ways of installing."""
    python = pythons(getattr(request, "param", "wheel"))
    here = tmp_path / "somewhere"
    here.mkdir()

    def run_script(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), str(script), *words], cwd=here, env=clean_env(), capture_output=True, text=True, timeout=120, check=False
        )

    return run_script


every_way = pytest.mark.parametrize(
    "run", ["wheel", *(pytest.param(way, marks=pytest.mark.slow) for way in ("sdist", "editable"))], indirect=True
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe with its own primary config."""
    return write(tmp_path / "recipe", TRAIN, {"config.yaml": RECIPE})


def write(folder: Path, script: str, configs: dict[str, str]) -> Path:
    """A script and its config folder."""
    for name, text in configs.items():
        path = folder / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script, encoding="utf-8")
    return folder / "train.py"


@every_way
def test_a_recipe_composes_the_groups_twice_with_values_of_their_own(run: Run, recipe: Path) -> None:
    """Two clusters and a binding; neither sees the other's values, and the recipe's own key wins."""
    done = run(recipe, "policy.cluster.num_nodes=3", "policy.numa.membind=off")
    assert (done.stdout, done.stderr) == ("[8, 8, 8] SPREAD {} | [8] {'pool': 'spot'} | False\n", "")


def test_a_string_where_the_node_was_leads_to_the_option_syntax(run: Run, recipe: Path) -> None:
    """One line, exit 1; and the advice works."""
    done = run(recipe, "policy.cluster=2x8_pack")
    line = (
        "policy.cluster: must be a group of keys (ClusterSpec), got '2x8_pack'. "
        "Fix: to choose an option write cluster@policy.cluster=2x8_pack\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
    assert run(recipe, "cluster@policy.cluster=2x8_pack").stdout == "[8, 8] PACK {} | [8] {'pool': 'spot'} | True\n"


@pytest.mark.slow
def test_a_glob_sweep_runs_exactly_the_option_files(run: Run, recipe: Path) -> None:
    """No schema among them."""
    done = run(recipe, "-m", "cluster@policy.cluster=glob(*)", "policy.cluster.gpus_per_node=8", "hydra.sweep.dir=sweep")
    jobs = re.findall(r"#\d+ : (\S+)", done.stdout)
    names = ["1x8", "1x8_colocated", "2x8_pack", "2x8_spread", "4x8_strict_spread", "local", "uneven_8_4"]
    assert jobs == [f"cluster@policy.cluster={name}" for name in names], done.stderr
    assert done.returncode == 0


def test_files_of_the_recipe_win_over_ours(run: Run, tmp_path: Path) -> None:
    """Our folder is appended to the search path."""
    own = "defaults:\n  - /rl_cluster/schema/cluster@_here_\n  - _self_\nnum_nodes: 5\n"
    done = run(write(tmp_path / "recipe", TRAIN, {"config.yaml": RECIPE, "cluster/2x8_spread.yaml": own}))
    assert done.stdout == "[8, 8, 8, 8, 8] SPREAD {} | [8] {'pool': 'spot'} | True\n", done.stderr


def test_a_host_without_a_primary_config_never_runs_ours(run: Run, tmp_path: Path) -> None:
    """With none asked for it gets an empty config; with one asked for that is not there, an error."""
    head = "import hydra\n@hydra.main(version_base='1.3', config_path={path!r}, config_name={name!r})\n"
    script = head + "def main(cfg):\n    print(dict(cfg))\nmain()\n"
    done = run(write(tmp_path / "none", script.format(path=None, name=None), {}))
    assert (done.stdout, done.stderr) == ("{}\n", "")
    done = run(write(tmp_path / "missing", script.format(path="conf", name="config"), {"other.yaml": "a: 1\n"}))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot find primary config 'config'" in done.stderr


@every_way
def test_every_option_composes_and_builds_a_spec(run: Run, tmp_path: Path) -> None:
    """In any place of any config, and the same without Hydra."""
    script = """
import json
from hydra import compose, initialize
from rl_cluster import config
specs = {}
loaders = {"cluster": config.load_cluster, "numa": config.load_numa, "python": config.load_python, "ray": config.load_ray}
with initialize(version_base="1.3", config_path=None):
    for group, kind in config.GROUPS.items():
        for name in config.option_names(group):
            cfg = compose(overrides=[f"+{group}@deep.inside={name}"])
            spec = config.from_config(cfg.deep.inside, kind=kind)
            assert spec == loaders[group](name), name
            specs.setdefault(group, []).append(name)
print(json.dumps(specs))
"""
    done = run(write(tmp_path / "host", script, {}))
    assert done.returncode == 0, done.stderr
    assert {group: len(names) for group, names in json.loads(done.stdout).items()} == {"cluster": 7, "numa": 5, "python": 3, "ray": 3}


def test_the_loaders_leave_the_state_of_a_hydra_host_alone(run: Run, tmp_path: Path) -> None:
    """In a task of the host: its config, its runtime values, its store, its resolvers."""
    script = """
import copy
import hydra
from hydra import version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer

def state():
    singletons = sorted((kind.__name__, id(one)) for kind, one in Singleton._instances.items())
    stores = copy.deepcopy(HydraConfig.get()), copy.deepcopy(ConfigStore.instance().repo)
    return id(GlobalHydra.instance().hydra), id(HydraConfig.get()), stores, singletons, set(BaseContainer._resolvers), version.getbase()

@hydra.main(version_base="1.2", config_path="conf", config_name="config")
def main(cfg):
    before, text = state(), OmegaConf.to_yaml(cfg)
    from rl_cluster.config import load_cluster, load_run
    print(load_cluster("2x8_spread", overrides=["num_nodes=4"]).bundle_counts, load_run(["ray=simulated"]).ray.kind)
    print(state() == before, OmegaConf.to_yaml(cfg) == text, hydra.utils.get_original_cwd() != "")

main()
"""
    done = run(write(tmp_path / "host", script, {"config.yaml": "a: 1\n"}))
    assert (done.stdout, done.stderr) == ("[8, 8, 8, 8] simulated\nTrue True True\n", "")


def test_a_host_without_hydra_loads_a_spec_that_pickles_into_a_process_without_it(run: Run, tmp_path: Path) -> None:
    """What an actor gets needs neither Hydra nor omegaconf there."""
    script = """
import pickle, subprocess, sys
from rl_cluster.config import load_cluster
spec = load_cluster("uneven_8_4", overrides=["label_selector={pool: spot}"])
code = "import pickle, sys; s = pickle.load(sys.stdin.buffer); "
code += "print(s.bundle_counts, s.label_selector, {'hydra', 'omegaconf', 'ray'} & set(sys.modules))"
subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spec), check=True)
"""
    done = run(write(tmp_path / "host", script, {}))
    assert (done.stdout, done.stderr) == ("[8, 4] {'pool': 'spot'} set()\n", "")
