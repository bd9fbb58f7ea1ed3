"""From a host's config to roles: what is one, what is refused, and what is left alone."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.errors import ConfigError
from rl_cluster.schema import ClusterSpec

SMALL: dict[str, Any] = {"gpus_per_node": 2}


def problems_of(config: object, **more: Any) -> list[str]:
    """What the door says of a config."""
    with pytest.raises(ConfigError) as caught:
        recipe_from_config(config, **more)
    return list(caught.value.problems)


def test_roles_are_found_at_the_top_and_under_roles() -> None:
    """Every node with cluster or on, and every key under roles; other keys are the host's."""
    recipe = recipe_from_config(
        {
            "lr": 0.1,
            "trainer": {"cluster_name": "x", "steps": 3},
            "policy": {"cluster": SMALL, "lr": 3, "worker": {}, "model": {"name": "llama"}},
            "roles": {"reward": {"on": {"cluster": "policy", "gpus": [1]}}},
        }
    )
    assert {name: (role.path, role.owner) for name, role in recipe.roles.items()} == {
        "policy": ("policy", "policy"),
        "reward": ("roles.reward", "policy"),
    }
    assert recipe.roles["policy"].worker is not None
    assert recipe.roles["reward"].worker is None
    assert recipe.ray is None


def test_a_cluster_is_named_after_its_role_unless_it_has_a_name() -> None:
    """The name is the prefix of its placement groups."""
    recipe = recipe_from_config({"policy": {"cluster": SMALL}, "critic": {"cluster": {**SMALL, "name": "mine"}}})
    assert [cluster.name for cluster in recipe.clusters.values()] == ["policy", "mine"]


def test_on_a_name_is_short_for_all_of_its_cluster() -> None:
    """on: policy."""
    recipe = recipe_from_config({"policy": {"cluster": SMALL}, "generation": {"on": "policy"}})
    on = recipe.roles["generation"].on
    assert on is not None
    assert (on.cluster, on.nodes, on.gpus) == ("policy", None, None)


def test_an_unquoted_on_works_though_yaml_reads_it_as_true() -> None:
    """YAML 1.1 has on, off, yes and no as booleans."""
    from omegaconf import OmegaConf

    text = "policy: {cluster: {gpus_per_node: 2}}\nroles:\n  reward:\n    on: {cluster: policy}\n  critic:\n    'on': policy\n"
    cfg = OmegaConf.create(text)
    assert True in cfg.roles.reward
    recipe = recipe_from_config(cfg)
    assert [role.owner for role in recipe.roles.values()] == ["policy", "policy", "policy"]


def test_the_key_ray_says_which_ray() -> None:
    """It is the one key of the host's top that is ours without being a role."""
    recipe = recipe_from_config({"policy": {"cluster": SMALL}, "ray": {"kind": "simulated"}})
    assert recipe.ray is not None
    assert recipe.ray.kind == "simulated"
    assert problems_of({"policy": {"cluster": SMALL}, "ray": {"knd": "x"}}) == [
        "ray.knd: must be a key of RaySpec, got 'x'. Fix: write ray.kind"
    ]


@pytest.mark.parametrize(
    ("owner", "pools"),
    [
        pytest.param({"cluster": SMALL}, {"owner"}, id="a bare cluster is a pool"),
        pytest.param({"cluster": SMALL, "model": "x"}, {"owner"}, id="keys of the host do not count"),
        pytest.param({"cluster": SMALL, "numa": {}}, set(), id="a role with a binding has workers"),
        pytest.param({"cluster": SMALL, "worker": {}}, set(), id="a role with a worker has workers"),
    ],
)
def test_a_pool_is_a_bare_cluster_that_others_sit_on(owner: dict[str, Any], pools: set[str]) -> None:
    """It counts as no worker group."""
    recipe = recipe_from_config({"owner": owner, "guest": {"on": "owner"}})
    assert recipe.pools == pools
    assert [role.name for role in recipe.members("owner")] == ([] if pools else ["owner"]) + ["guest"]
    assert recipe_from_config({"owner": owner}).pools == frozenset()


CASES: dict[str, tuple[Any, list[str]]] = {
    "no role": (
        {"a": 1},
        [
            "recipe: must have a role: a node with cluster or on, got ['a']. "
            "Fix: write policy: {cluster: {...}}, or the group's option by its defaults list: - /cluster@policy.cluster: 2x8_spread"
        ],
    ),
    "no mapping": ([1], ["recipe: must be the config of a recipe, got [1]"]),
    "a string where the cluster was": (
        {"policy": {"cluster": "2x8_sprea"}},
        [
            "policy.cluster: must be a group of keys (ClusterSpec), got '2x8_sprea'. Fix: to choose an option write "
            "cluster@policy.cluster=2x8_spread; the options are 1x8, 1x8_colocated, 2x8_pack, 2x8_spread, "
            "4x8_strict_spread, local, uneven_8_4"
        ],
    ),
    "a misspelt cluster": (
        {"policy": {"clustr": {"num_nodes": 2}}},
        [
            "policy.clustr: must not resemble a part of a role, got 'clustr'. "
            "Fix: write policy.cluster, or rename the key if it is not meant for rl_cluster"
        ],
    ),
    "a misspelt part beside the right one": (
        {"policy": {"cluster": SMALL, "clusters": {"num_nodes": 2}}},
        [
            "policy.clusters: must not resemble a part of a role, got 'clusters'. "
            "Fix: write policy.cluster, or rename the key if it is not meant for rl_cluster"
        ],
    ),
    "a role without a place": (
        {"policy": {"numa": {"membind": False}}},
        ["policy: must have cluster or on to be a role, got ['numa']. Fix: add policy.cluster, or policy.on: {cluster: ROLE}"],
    ),
    "two places": (
        {"a": {"cluster": SMALL}, "b": {"cluster": SMALL, "on": "a"}},
        [
            "b: must have either cluster or on, got 'both'. "
            "Fix: leave one of the two out (null): b.cluster is a cluster of its own, b.on means another role's"
        ],
    ),
    "under roles: no role": (
        {"a": {"cluster": SMALL}, "roles": {"b": 5, "c": {"wrker": {}, "on": "a"}, "d": {"x": 1, "on": "a"}}},
        [
            "roles.b: must be a role: a group of keys, got 5. Fix: write roles.b: {cluster: ...} or roles.b: {on: {cluster: ROLE}}",
            "roles.c.wrker: must be a part of a role, got {}. Fix: write roles.c.worker",
            "roles.d.x: must be a part of a role, got 1. Fix: leave it out; the keys here are cluster, on, numa, python, env, worker",
        ],
    ),
    "roles is a list": ({"roles": [1]}, ["roles: must be a group of roles, got [1]"]),
    "the same name twice": (
        {"a": {"cluster": SMALL}, "roles": {"a": {"cluster": SMALL}}},
        ["roles.a: must be named once, got 'a'. Fix: rename one of the two roles"],
    ),
    "on nobody": (
        {"policy": {"cluster": SMALL}, "r": {"on": {"cluster": "plicy"}}, "s": {"on": "r"}, "t": {"on": {"nodes": [0]}}},
        ["t.on.cluster: must be the name of a role that has a cluster, got ''"],
    ),
    "on a role without a cluster": (
        {"policy": {"cluster": SMALL}, "r": {"on": "plicy"}, "s": {"on": "r"}},
        [
            "r.on.cluster: must name a role that has a cluster of its own (policy), got 'plicy'. Fix: write policy",
            "s.on.cluster: must name a role that has a cluster of its own (policy), got 'r'",
        ],
    ),
    "bundles that are not there": (
        {
            "policy": {"cluster": SMALL},
            "r": {"on": {"cluster": "policy", "nodes": [1]}},
            "s": {"on": {"cluster": "policy", "gpus": [1, 2]}},
        },
        [
            "r.on.nodes[0]: must be a logical node of policy (only 0), got 1",
            "s.on.gpus[1]: must be a bundle of the chosen logical nodes of policy (0 to 1), got 2",
        ],
    ),
    "an empty node": (
        {"policy": {"cluster": {"bundle_ct_per_node_list": [2, 0]}}, "r": {"on": {"cluster": "policy", "nodes": [1]}}},
        ["r.on.nodes: must leave a bundle, got [1]. Fix: choose a logical node that has bundles"],
    ),
    "indices twice, or none": (
        {"policy": {"cluster": SMALL}, "r": {"on": {"cluster": "policy", "nodes": [0, 0], "gpus": []}}},
        [
            "r.on.nodes: must name each one once, got [0, 0]",
            "r.on.gpus: must name one at least, got []. Fix: leave gpus out: all are meant",
        ],
    ),
    "all at once": (
        {"policy": {"cluster": {"num_nods": 2, "strategy": "SPRED"}, "numa": {"membind": "maybe"}, "worker": {"target": "x"}}},
        [
            "policy.cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write policy.cluster.num_nodes",
            "policy.cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
            "policy.numa.membind: must be true or false, got 'maybe'",
            "policy.worker.target: must be an import path of a class, got 'x'. Fix: write package.module.Class",
        ],
    ),
}


@pytest.mark.parametrize(("config", "expected"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("lazy", [False, True], ids=["dict", "DictConfig"])
def test_problems_are_listed_with_their_paths(config: Any, expected: list[str], lazy: bool) -> None:
    """All of them, the same from a dict and from a DictConfig."""
    if lazy:
        from omegaconf import OmegaConf

        config = OmegaConf.create(config)
    assert problems_of(config) == expected


PLAIN = "must name a role by letters, digits, _ and -, with a letter or _ first, got"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("sp ace", "sp_ace"),
        ("a.b", "a_b"),
        ("g=1", "g_1"),
        ("ü[x]", "x"),
        ("a\nb", "a_b"),
        ("it's", "it_s"),
        ('say "x"', "say_x"),
        ("1", "role_1"),
        (1, "role_1"),
        (True, None),
        ("-a", "a"),
        ("", "role"),
        ("\ud800", "role"),
    ],
)
def test_a_role_has_a_name_that_can_stand_in_a_word(name: object, instead: str | None) -> None:
    """Else no suggestion about it could be pasted. It is told in one line, at the top and under roles, from either kind of config."""
    from omegaconf import OmegaConf

    fix = f"write {instead}" if instead else "rename the role: YAML reads yes, on, no and off as true or false"
    line = f"{PLAIN} {name!r}. Fix: {fix}"
    under = {"a": {"cluster": SMALL}, "roles": {name: {"on": "a"}}}
    assert problems_of(under) == problems_of(OmegaConf.create(under)) == [f"roles: {line}"]
    assert problems_of({name: {"cluster": SMALL}}) == [f"recipe: {line}"]


@pytest.mark.parametrize("name", ["gen-1", "gen_1", "_a", "A", "null", "a-"])
def test_names_of_roles_are_what_hydra_reads_within_a_key(name: str) -> None:
    """Each of these can be changed by a word."""
    from rl_cluster.config_files.options import parse_words

    problems: list[str] = []
    ((_, override),) = parse_words([f"roles.{name}.cluster.num_nodes=2"], problems)
    assert (override.key_or_group, problems) == (f"roles.{name}.cluster.num_nodes", [])
    assert list(recipe_from_config({"roles": {name: {"cluster": SMALL}}}).roles) == [name]


def test_a_path_to_a_role_has_plain_keys() -> None:
    """Also where roles are named instead of looked for."""
    assert problems_of({"my host": {"policy": {"cluster": SMALL}}}, roles=["my host.policy"]) == [
        f"recipe: {PLAIN} 'my host'. Fix: write my_host"
    ]


@pytest.mark.parametrize(
    "host",
    [
        pytest.param({"data": {"name": "x"}}, id="a short word that resembles nothing"),
        pytest.param({"policy2": {"workers": 8}}, id="a number whose name resembles a part"),
        pytest.param({"policy2": {"env": {"name": "cartpole"}}}, id="an env of the host"),
        pytest.param({"data": {"envs": {"name": "x"}, "workers": {"count": 3}}}, id="groups whose names resemble parts, with other keys"),
        pytest.param({"policy": {"cluster": SMALL, "envs": {"name": "x"}, "clusters": {}}}, id="the same within a role"),
        pytest.param({"x": None, "y": [1], "z": "cluster"}, id="no groups"),
        pytest.param({"policy2": {"python": {"version": "3.12"}}}, id="a python of the host"),
    ],
)
def test_keys_of_the_host_are_left_alone(host: dict[str, Any]) -> None:
    """They are neither roles nor problems."""
    assert list(recipe_from_config({"policy": {"cluster": SMALL}, **host}).roles) == ["policy"]


def test_what_the_host_leaves_open_is_its_own_business() -> None:
    """Missing values and interpolations outside of roles are not looked at; inside they are."""
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"a": "???", "b": "${nope}", "n": 3, "policy": {"cluster": {"num_nodes": "${n}", "gpus_per_node": 2}}})
    assert recipe_from_config(cfg).clusters["policy"].num_nodes == 3
    cfg.policy.cluster.num_nodes = "???"
    assert problems_of(cfg) == ["policy.cluster.num_nodes: must be given, got '???'. Fix: set policy.cluster.num_nodes"]
    cfg.policy.cluster.num_nodes = "${nope}"
    (problem,) = problems_of(cfg)
    assert problem.startswith("policy.cluster.num_nodes: must resolve (")


def test_roles_can_be_named_instead_of_looked_for() -> None:
    """Dotted paths lead to roles deep in a host's config, and nothing else is taken for one."""
    cfg = {"policy": {"cluster": SMALL, "generation": {"on": "policy"}}, "other": {"cluster": "slurm"}}
    recipe = recipe_from_config(cfg, roles=["policy", "policy.generation"])
    assert {name: role.owner for name, role in recipe.roles.items()} == {"policy": "policy", "policy.generation": "policy"}
    assert problems_of(cfg, roles=["polcy"]) == ["polcy: must be a role: a node with cluster or on, got None"]


def test_a_recipe_comes_back_as_it_is_and_pickles() -> None:
    """It holds no config object."""
    from omegaconf import OmegaConf

    recipe = recipe_from_config(OmegaConf.create({"policy": {"cluster": SMALL, "worker": {"kwargs": {"a": [1]}}}, "r": {"on": "policy"}}))
    assert recipe_from_config(recipe) is recipe
    again: RecipeSpec = pickle.loads(pickle.dumps(recipe))
    assert again == recipe
    worker = again.roles["policy"].worker
    assert worker is not None
    assert type(worker.kwargs["a"]) is list
    assert isinstance(again.clusters["policy"], ClusterSpec)
