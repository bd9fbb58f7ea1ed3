"""The one door from config to specs."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from rl_cluster.config import conf_dir, from_config
from rl_cluster.errors import ConfigError
from rl_cluster.schema import ClusterSpec, EnvSpec, NumaSpec, RunSpec, WorkerSpec

CLUSTER_OPTIONS = "1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, local, uneven_8_4"


def problems_of(cfg: object, /, **named: object) -> list[str]:
    """The problems that the door finds."""
    with pytest.raises(ConfigError) as caught:
        from_config(cfg, **named)  # type: ignore[call-overload]
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


@pytest.mark.parametrize("wrap", [dict, OmegaConf.create], ids=["dict", "DictConfig"])
def test_every_kind_of_config_gives_the_same_spec(wrap: type) -> None:
    """A plain dict and a DictConfig mean the same."""
    cfg = wrap({"cluster": {"num_nodes": "2", "timeout_s": 5, "label_selector": {"zone": "a"}}, "numa": {"membind": "off"}})
    assert from_config(cfg) == RunSpec(
        cluster=ClusterSpec(num_nodes=2, timeout_s=5.0, label_selector={"zone": "a"}), numa=NumaSpec(membind=False)
    )


def test_a_typed_config_gives_the_same_spec() -> None:
    """A structured config, as Hydra makes it of the schemas."""
    spec = RunSpec(cluster=ClusterSpec(num_nodes=2), env=EnvSpec(forward=["NCCL_*"]))
    assert from_config(OmegaConf.structured(spec)) == spec


def test_a_spec_comes_back_as_it_is() -> None:
    """Whoever has a spec may call the door again."""
    spec = ClusterSpec(num_nodes=2)
    assert from_config(spec, kind=ClusterSpec) is spec
    assert from_config({"cluster": spec}).cluster is spec


@pytest.mark.parametrize(
    ("word", "value"),
    [(word, False) for word in ("off", "no", "false", "0", 0, False, "N")] + [(word, True) for word in ("on", "yes", "True", "1", 1, True)],
)
def test_a_switch_takes_every_usual_word(word: object, value: bool) -> None:
    """YAML 1.1's words and numbers, as text or not."""
    assert from_config({"membind": word}, kind=NumaSpec).membind is value


PROBLEMS = {
    "unknown_key": ({"cluster": {"num_nods": 2}}, ["cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes"]),
    "unknown_key_far": (
        {"env": {"zzz": 2}},
        ["env.zzz: must be a key of EnvSpec, got 2. Fix: leave it out; the keys here are forward, set"],
    ),
    "unknown_group": ({"clustr": {}}, ["clustr: must be a key of RunSpec, got {}. Fix: write cluster"]),
    "wrong_type": ({"cluster": {"num_nodes": "two"}}, ["cluster.num_nodes: must be a whole number, got 'two'"]),
    "switch": ({"numa": {"membind": "maybe"}}, ["numa.membind: must be true or false, got 'maybe'"]),
    "missing": ({"cluster": {"num_nodes": "???"}}, ["cluster.num_nodes: must be given, got '???'. Fix: set cluster.num_nodes"]),
    "item": ({"env": {"forward": ["A", "RANK "]}}, ["env.forward[1]: must be a variable's name or a pattern NAME_*, got 'RANK '"]),
    "list_for_a_node": ({"numa": [1]}, ["numa: must be a group of keys (NumaSpec), got [1]"]),
    "string_for_a_node": (
        {"cluster": "2x8_spread"},
        ["cluster: must be a group of keys (ClusterSpec), got '2x8_spread'. Fix: to choose an option write cluster=2x8_spread"],
    ),
    "nothing_for_a_node": (
        {"cluster": None},
        [
            "cluster: must be a group of keys (ClusterSpec), got None. "
            f"Fix: to choose an option write cluster=<option>; the options are {CLUSTER_OPTIONS}"
        ],
    ),
    "all_at_once": (
        {
            "mode": "pln",
            "cluster": {"num_nodes": -4, "gpus_per_node": -1, "strategy": "SPRED", "num_nods": 2},
            "numa": {"membind": "maybe"},
            "worker": {"kwargs": 3},
        },
        [
            "mode: must be up, plan or prefetch, got 'pln'. Fix: write plan",
            "cluster.num_nodes: must be at least 1, got -4",
            "cluster.gpus_per_node: must be at least 0, got -1",
            "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
            "cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes",
            "numa.membind: must be true or false, got 'maybe'",
            "worker.kwargs: must be a mapping, got 3",
        ],
    ),
    "over_several_keys": (
        {"cluster": {"bundle_ct_per_node_list": [8, 4], "num_nodes": 3}, "numa": {"cpu_bind": "x"}},
        [
            "cluster.bundle_ct_per_node_list: must have one entry per logical node, got [8, 4] (2 entries) with num_nodes 3. "
            "Fix: leave num_nodes out (null): the list says it",
            "numa.cpu_bind: must be node, exclusive, socket or none, got 'x'",
        ],
    ),
}


@pytest.mark.parametrize("wrap", [dict, OmegaConf.create], ids=["dict", "DictConfig"])
@pytest.mark.parametrize(("cfg", "problems"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_every_problem_is_named_with_path_rule_value_and_near_word(wrap: type, cfg: dict[str, object], problems: list[str]) -> None:
    """The whole list of messages is what a user relies on."""
    assert problems_of(wrap(cfg)) == problems


@pytest.mark.parametrize(
    ("cfg", "path", "problem"),
    [
        pytest.param(
            "2x8_spread",
            "policy.cluster",
            "policy.cluster: must be a group of keys (ClusterSpec), got '2x8_spread'. "
            "Fix: to choose an option write cluster@policy.cluster=2x8_spread",
            id="an_option",
        ),
        pytest.param(
            "2x8_spred",
            "policy.cluster",
            "policy.cluster: must be a group of keys (ClusterSpec), got '2x8_spred'. "
            f"Fix: to choose an option write cluster@policy.cluster=2x8_spread; the options are {CLUSTER_OPTIONS}",
            id="nearly_an_option",
        ),
        pytest.param(
            "2x8_spread",
            "",
            "config: must be a group of keys (ClusterSpec), got '2x8_spread'. "
            "Fix: to choose an option write cluster@<where the group stands>=2x8_spread",
            id="path_unknown",
        ),
        pytest.param(7, "a", "a: must be a group of keys (ClusterSpec), got 7", id="a_number"),
        pytest.param(ListConfig([1]), "a", "a: must be a group of keys (ClusterSpec), got [1]", id="ListConfig"),
    ],
)
def test_a_string_where_a_node_was_leads_to_the_option_syntax(cfg: object, path: str, problem: str) -> None:
    """``policy.cluster=2x8_spread`` puts a string there, in any recipe."""
    assert problems_of(cfg, kind=ClusterSpec, path=path) == [problem]


def test_a_spec_of_another_kind_is_refused() -> None:
    """Not taken for a mapping."""
    (problem,) = problems_of(NumaSpec(), kind=ClusterSpec, path="cluster")
    assert problem.startswith("cluster: must be a group of keys (ClusterSpec), got NumaSpec(")


def test_a_node_of_a_recipe_knows_its_own_path() -> None:
    """The message names the key as it stands in the whole recipe."""
    recipe = OmegaConf.create({"policy": {"cluster": {"num_nodes": -4}}})
    assert problems_of(recipe.policy.cluster, kind=ClusterSpec) == ["policy.cluster.num_nodes: must be at least 1, got -4"]


def test_interpolations_resolve_in_the_recipe_around_the_node() -> None:
    """A node is read where it stands, not cut out."""
    recipe = OmegaConf.create(
        {
            "nodes": 2,
            "zone": "a",
            "policy": {"cluster": {"num_nodes": "${nodes}", "segment_size": "${.num_nodes}", "label_selector": {"zone": "${zone}"}}},
        }
    )
    assert from_config(recipe.policy.cluster, kind=ClusterSpec) == ClusterSpec(num_nodes=2, segment_size=2, label_selector={"zone": "a"})


def test_values_that_can_not_be_resolved_are_named_as_they_were_written() -> None:
    """Each with its path; never omegaconf's own exception."""
    recipe = OmegaConf.create(
        {"cluster": {"num_nodes": "${nodes}", "resources": {"nic": "???"}, "label_selector": {"zone": "${zone}"}}, "numa": "${nothing}"}
    )
    assert problems_of(recipe) == [
        "cluster.num_nodes: must resolve (Interpolation key 'nodes' not found), got '${nodes}'",
        "cluster.resources: must resolve (Missing mandatory value: nic), got {'nic': '???'}",
        "cluster.label_selector: must resolve (Interpolation key 'zone' not found), got {'zone': '${zone}'}",
        "numa: must resolve (Interpolation key 'nothing' not found), got '${nothing}'",
    ]


def test_a_plain_dict_is_taken_literally() -> None:
    """Only a DictConfig has interpolations."""
    assert from_config({"kwargs": {"path": "${home}"}}, kind=WorkerSpec).kwargs == {"path": "${home}"}


@pytest.mark.parametrize("kwargs", [OmegaConf.create({"a": {"b": [1, {"c": 2}]}}), {"a": OmegaConf.create({"b": [1, {"c": 2}]})}])
def test_no_spec_holds_a_lazy_container(kwargs: object) -> None:
    """What goes to an actor must not need omegaconf there."""

    def containers(value: object) -> list[type]:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return [type(value), *(kind for item in items for kind in containers(item))]

    for spec in (from_config({"kwargs": kwargs}, kind=WorkerSpec), WorkerSpec(kwargs=kwargs)):  # type: ignore[arg-type]
        assert spec.kwargs == {"a": {"b": [1, {"c": 2}]}}
        assert containers(spec.kwargs) == [dict, dict, list, int, dict, int]
        assert b"omegaconf" not in pickle.dumps(spec)


def test_a_spec_shares_nothing_with_the_config_it_came_from() -> None:
    """A later change of the recipe does not reach it."""
    cfg = {"label_selector": {"zone": "a"}}
    one, other = from_config(cfg, kind=ClusterSpec), from_config(cfg, kind=ClusterSpec)
    cfg["label_selector"]["zone"] = "b"
    one.label_selector["zone"] = "c"
    assert (one.label_selector, other.label_selector) == ({"zone": "c"}, {"zone": "a"})


def test_two_nodes_of_one_recipe_never_see_each_others_values() -> None:
    """Policy and rollout are two clusters."""
    recipe = OmegaConf.create({name: {"cluster": OmegaConf.structured(ClusterSpec())} for name in ("policy", "rollout")})
    recipe.policy.cluster.num_nodes = 2
    recipe.policy.cluster.label_selector = {"zone": "a"}
    policy, rollout = (from_config(recipe[name].cluster, kind=ClusterSpec) for name in ("policy", "rollout"))
    assert (policy.num_nodes, policy.label_selector) == (2, {"zone": "a"})
    assert (rollout.num_nodes, rollout.label_selector) == (1, {})


def test_importing_the_package_and_its_config_changes_nothing() -> None:
    """No Ray, no Hydra, no resolver, no logging: asked in a process of its own."""
    code = """
import logging, sys
before = (logging.getLogger().level, list(logging.getLogger().handlers), logging.raiseExceptions)
import rl_cluster, rl_cluster.config, rl_cluster.schema, rl_cluster.plan
assert before == (logging.getLogger().level, list(logging.getLogger().handlers), logging.raiseExceptions)
print([name for name in ("ray", "hydra", "omegaconf", "rich", "yaml") if name in sys.modules])
import copy
import hydra
from hydra.core.singleton import Singleton
from hydra import version
from hydra.core.config_store import ConfigStore
from omegaconf.basecontainer import BaseContainer
def state():
    singletons = version.getbase(), sorted(kind.__name__ for kind in Singleton._instances)
    return singletons, copy.deepcopy(ConfigStore.instance().repo), set(BaseContainer._resolvers)
before = state()
import rl_cluster.config_files.options
rl_cluster.config.load_run(["cluster=2x8_spread"])
print(state() == before, "ray" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.splitlines() == ["[]", "True False"], out.stderr


def test_the_door_never_changes_the_config() -> None:
    """A read-only config with struct on is read like any other."""
    cfg = OmegaConf.create({"cluster": {"num_nodes": 2}})
    OmegaConf.set_struct(cfg, True)
    OmegaConf.set_readonly(cfg, True)
    text = OmegaConf.to_yaml(cfg)
    assert isinstance(cfg, DictConfig)
    assert from_config(cfg).cluster.num_nodes == 2
    assert OmegaConf.to_yaml(cfg) == text


def test_the_option_files_stand_beside_the_package_in_a_checkout() -> None:
    """conf_dir is where the groups are."""
    assert {"cluster", "numa", "python", "ray", "rl_cluster.yaml"} <= {entry.name for entry in conf_dir().iterdir()}
