"""Where every role comes to lie, what overlaps, what does not fit, and how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from strategies import made_up_inventory

from rl_cluster.config_files.recipe_spec import recipe_from_config
from rl_cluster.errors import ConfigError
from rl_cluster.grid import render_grid
from rl_cluster.inventory import Inventory
from rl_cluster.planning.layout import Shortfall
from rl_cluster.recipes.recipe_plan import (
    RecipePlan,
    build_recipe_picture,
    check_seats,
    plan_recipe,
    shortfall_error,
)
from rl_cluster.recipes.recipe_preview import nodes_to_simulate, planned_line
from rl_cluster.views.svg import render_svg

GOLDEN = Path(__file__).parent / "golden"

FOUR_ROLES: dict[str, Any] = {
    "actor": {"cluster": {"num_nodes": 2, "gpus_per_node": 4, "max_colocated_worker_groups": 2}, "numa": {}},
    "critic": {"cluster": {"gpus_per_node": 4, "strategy": "STRICT_PACK", "max_colocated_worker_groups": 2}, "numa": {}},
    "roles": {
        "reference": {"on": "actor"},
        "reward": {"on": {"cluster": "critic", "gpus": [2, 3]}},
    },
}


def planned(config: dict[str, Any], inventory: Inventory) -> RecipePlan:
    """A plan that must be there."""
    plan = plan_recipe(recipe_from_config(config), inventory)
    assert isinstance(plan, RecipePlan), plan
    return plan


def places(plan: RecipePlan, role: str) -> list[tuple[int, str, int, int]]:
    """(rank, address, logical node, bundle) of a role's workers."""
    return [(record.rank, record.address, record.node_idx, record.bundle_idx) for record in plan.roles[role].records]


def test_all_roles_are_planned_together() -> None:
    """Clusters on machines of their own where there are enough; guests on the bundles of their owner."""
    plan = planned(FOUR_ROLES, made_up_inventory(4, 4, 4))
    assert {name: sorted({bundle.node_id for bundle in layout.bundles}) for name, layout in plan.layouts.items()} == {
        "actor": [f"{9998:056x}", f"{9999:056x}"],
        "critic": [f"{9997:056x}"],
    }
    assert places(plan, "reference") == places(plan, "actor")
    assert places(plan, "reward") == [(0, "10.0.0.3", 0, 2), (1, "10.0.0.3", 0, 3)]
    assert planned_line(plan) == "PLANNED: 4 roles on 12 bundles of 3 machines, nothing was created"


def test_every_role_is_drawn_on_every_gpu() -> None:
    """Colocated ones one above the other."""
    drawn = render_grid(build_recipe_picture(planned(FOUR_ROLES, made_up_inventory(4, 4, 4))), width=100)
    assert drawn + "\n" == (GOLDEN / "four_roles.txt").read_text(encoding="utf-8")


def test_the_svg_names_every_role() -> None:
    """A legend entry each, and one line per worker."""
    drawn = render_svg(build_recipe_picture(planned(FOUR_ROLES, made_up_inventory(4, 4, 4))))
    for text in ("actor", "critic", "reference", "reward", "10.0.0.3"):
        assert f">{text}" in drawn


def test_ranks_of_a_part_start_at_zero() -> None:
    """A role on the second node has ranks 0 and up, local ranks and node ranks of its own."""
    config = {**FOUR_ROLES, "roles": {"reward": {"on": {"cluster": "actor", "nodes": [1], "gpus": [1, 3]}}}}
    records = planned(config, made_up_inventory(4, 4, 4)).roles["reward"].records
    assert [(r.rank, r.local_rank, r.local_world_size, r.node_rank, r.node_idx, r.bundle_idx) for r in records] == [
        (0, 0, 2, 0, 1, 1),
        (1, 1, 2, 0, 1, 3),
    ]


@pytest.mark.parametrize(
    ("cluster", "on", "expected"),
    [
        pytest.param({"num_nodes": 2, "gpus_per_node": 2}, {}, [(0, [0]), (0, [1]), (1, [0]), (1, [1])], id="a group per node"),
        pytest.param({"num_nodes": 2, "gpus_per_node": 2, "unified": True}, {"nodes": [1]}, [(0, [2]), (0, [3])], id="one group"),
        pytest.param({"bundle_ct_per_node_list": [2, 0, 1]}, {"nodes": [1, 2]}, [(1, [0])], id="empty nodes have no group"),
        pytest.param({"bundle_ct_per_node_list": [4, 2]}, {"gpus": [1, 3]}, [(0, [1]), (0, [3]), (1, [1])], id="uneven"),
    ],
)
def test_bundles_are_named_as_worker_groups_take_them(cluster: dict[str, Any], on: dict[str, Any], expected: list[Any]) -> None:
    """(index of the placement group, [bundle])."""
    config = {"a": {"cluster": cluster}, "b": {"on": {"cluster": "a", **on}}}
    assert planned(config, made_up_inventory(4, 4, 4)).roles["b"].bundle_indices_list == expected


def test_engine_slices_lie_on_one_machine() -> None:
    """Two bundles each, in rank order; what can't be cut is said."""
    plan = planned({"a": {"cluster": {"num_nodes": 2, "gpus_per_node": 4}}}, made_up_inventory(4, 4))
    assert plan.roles["a"].engine_slices(2) == [(0, [0, 1]), (0, [2, 3]), (1, [0, 1]), (1, [2, 3])]
    with pytest.raises(ConfigError, match=r"must be a multiple of 3, got 4 on node 10\.0\.0\.1"):
        plan.roles["a"].engine_slices(3)
    shared = {"a": {"cluster": {"num_nodes": 2, "gpus_per_node": 3, "strategy": "PACK"}}}
    with pytest.raises(ConfigError, match=r"engine_slices: 2 bundles must lie in one logical node, got bundles of 2\. Fix: a\.cluster"):
        planned(shared, made_up_inventory(6)).roles["a"].engine_slices(2)


def test_an_overlap_that_was_not_declared_is_drawn() -> None:
    """Both roles on the node where they meet, before any machine is known."""
    config = {
        "actor": {"cluster": {"num_nodes": 2, "gpus_per_node": 4}, "numa": {}},
        "reward": {"on": {"cluster": "actor", "nodes": [1], "gpus": [2, 3]}},
    }
    with pytest.raises(ConfigError) as caught:
        check_seats(recipe_from_config(config))
    assert str(caught.value) + "\n" == (GOLDEN / "overlap.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("most", "nodes", "problem"),
    [
        pytest.param(3, {"reward": [0], "extra": [0]}, None, id="three declared"),
        pytest.param(2, {"reward": [0], "extra": [1]}, None, id="two on different nodes"),
        pytest.param(
            2, {"reward": [1], "extra": [1]}, "must be at least 3 for the roles that share bundle 0 of logical node 1", id="three"
        ),
    ],
)
def test_overlaps_are_counted_per_bundle(most: int, nodes: dict[str, list[int]], problem: str | None) -> None:
    """Worker groups on one bundle, not roles on one cluster."""
    config: dict[str, Any] = {"actor": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "max_colocated_worker_groups": most}, "numa": {}}}
    config |= {name: {"on": {"cluster": "actor", "nodes": where}} for name, where in nodes.items()}
    if problem is None:
        check_seats(recipe_from_config(config))
    else:
        with pytest.raises(ConfigError, match=problem):
            check_seats(recipe_from_config(config))


def test_a_pool_counts_as_no_group() -> None:
    """Two roles on a bare cluster are two, and it is not drawn."""
    config = {"pool": {"cluster": {"gpus_per_node": 2, "max_colocated_worker_groups": 2}}, "a": {"on": "pool"}, "b": {"on": "pool"}}
    plan = planned(config, made_up_inventory(2))
    assert list(plan.roles) == ["a", "b"]
    assert list(plan.layouts) == ["pool"]


def test_a_worker_to_profile_that_no_role_has_is_told_before_any_machine_is_known() -> None:
    """With the names of the role's own workers, those of its bundles only."""
    config = {
        "actor": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "max_colocated_worker_groups": 2}, "worker": {}},
        "reward": {"on": {"cluster": "actor", "nodes": [1]}, "worker": {"nsight": "default", "nsight_workers": ["reward-0-*"]}},
    }
    line = r"reward\.worker\.nsight_workers\[0\]: must match a worker, got 'reward-0-\*'\. Fix: the workers are reward-1-0, reward-1-1"
    with pytest.raises(ConfigError, match=line):
        check_seats(recipe_from_config(config))


def test_an_open_cluster_is_checked_when_the_machine_is_known() -> None:
    """As many CPU bundles as the machine has CPUs; indices beyond them are refused then."""
    config = {"a": {"cluster": {"gpus_per_node": 0}, "numa": {}}, "b": {"on": {"cluster": "a", "gpus": [9]}}}
    check_seats(recipe_from_config(config))
    with pytest.raises(ConfigError, match=r"b\.on\.gpus\[0\]: must be a bundle of the chosen logical nodes of a \(0 to 3\), got 9"):
        plan_recipe(recipe_from_config(config), made_up_inventory(0, cpus=4))


def test_a_shortfall_says_whose_cluster_and_what_the_others_take() -> None:
    """All or nothing: the first cluster that does not fit is the answer."""
    answer = plan_recipe(recipe_from_config(FOUR_ROLES), made_up_inventory(4, 4))
    assert isinstance(answer, Shortfall)
    error = shortfall_error(answer)
    assert error.exit_code == 3
    assert str(error).startswith("critic: 1 logical node of 4 GPUs on one machine")
    assert "0 free, 4 held by cluster 'actor' of this plan" in str(error)


def test_the_fixes_of_a_shortfall_are_keys_of_the_recipe() -> None:
    """They can be pasted; "never" is said where the roles do not fit together."""
    config = {
        "roles": {
            name: {"cluster": {"gpus_per_node": count, "strategy": "STRICT_PACK"}} for name, count in {"a": 5, "b": 5, "c": 4}.items()
        }
    }
    answer = plan_recipe(recipe_from_config(config), made_up_inventory(8, 8))
    assert isinstance(answer, Shortfall)
    assert str(shortfall_error(answer)).splitlines()[-4:] == [
        "No waiting helps with the nodes there are.",
        "Fix: roles.c.cluster.strategy=PACK fits now",
        "Fix: roles.c.cluster.strategy=SPREAD fits now",
        "Fix: roles.c.cluster.gpus_per_node=3 fits now",
    ]


def test_a_small_cluster_does_not_take_the_machine_of_a_large_one() -> None:
    """The order in the config does not decide whether it fits."""
    config = {
        "small": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "strategy": "SPREAD"}},
        "large": {"cluster": {"gpus_per_node": 8, "strategy": "STRICT_PACK"}},
    }
    plan = planned(config, made_up_inventory(8, 4))
    assert {record.address for record in plan.roles["large"].records} == {"10.0.0.1"}
    assert {record.address for record in plan.roles["small"].records} == {"10.0.0.2"}


def nodes_of(inventory: Inventory) -> Sequence[tuple[str, float, float, bool]]:
    """(address, GPUs, CPUs, head) of simulated nodes."""
    return [(node.address, node.total.get("GPU", 0.0), node.total["CPU"], node.is_head) for node in inventory.nodes]


@pytest.mark.parametrize(
    ("ray", "expected"),
    [
        pytest.param(
            {},
            [("127.0.0.1", 4.0, 8.0, True), ("127.0.0.2", 4.0, 8.0, False), ("127.0.0.3", 4.0, 8.0, False)],
            id="what each cluster needs",
        ),
        pytest.param({"simulated_nodes": 1}, [("127.0.0.1", 4.0, 8.0, True)], id="so many in all"),
        pytest.param(
            {"simulated_nodes": 2, "simulated_gpus_per_node": 8, "simulated_cpus_per_node": 32},
            [("127.0.0.1", 8.0, 32.0, True), ("127.0.0.2", 8.0, 32.0, False)],
            id="all sizes",
        ),
    ],
)
def test_a_simulation_is_sized_for_all_roles(ray: dict[str, int], expected: list[Any]) -> None:
    """One head, addresses in a row."""
    inventory = nodes_to_simulate(recipe_from_config({**FOUR_ROLES, "ray": {"kind": "simulated", **ray}}))
    assert nodes_of(inventory) == expected
    assert inventory.simulated


def test_the_simulation_made_for_a_recipe_holds_it() -> None:
    """Whatever the strategies, labels and heads."""
    config = {
        "a": {"cluster": {"num_nodes": 3, "gpus_per_node": 2, "strategy": "STRICT_SPREAD", "label_selector": {"pool": "x"}}},
        "b": {"cluster": {"gpus_per_node": 0, "bundles_per_node": 3, "use_head": "never"}},
        "c": {"cluster": {"bundle_ct_per_node_list": [4, 1], "strategy": "PACK", "resources": {"disk": 2}}},
    }
    recipe = recipe_from_config(config)
    assert isinstance(plan_recipe(recipe, nodes_to_simulate(recipe)), RecipePlan)


def test_four_roles_over_128_machines() -> None:
    """1024 GPUs: every bundle is used once, every role is whole. (benchmarks/recipe.py says how long it takes.)"""
    config = {
        "actor": {"cluster": {"num_nodes": 64, "max_colocated_worker_groups": 2}, "numa": {}},
        "reference": {"on": "actor"},
        "critic": {"cluster": {"num_nodes": 64, "max_colocated_worker_groups": 2}, "numa": {}},
        "reward": {"on": "critic"},
    }
    plan = planned(config, made_up_inventory(*[8] * 128))
    assert {name: len(role.bundles) for name, role in plan.roles.items()} == {"actor": 512, "reference": 512, "critic": 512, "reward": 512}
    assert len({bundle.node_id for layout in plan.layouts.values() for bundle in layout.bundles}) == 128
    assert [record.rank for record in plan.roles["reward"].records] == list(range(512))
