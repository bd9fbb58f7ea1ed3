"""What holds for any recipe: seats are bundles of the owner, ranks are dense, nothing overlaps beyond what was declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import made_up_inventory

from rl_cluster.config_files.recipe_spec import recipe_from_config
from rl_cluster.errors import ConfigError
from rl_cluster.recipes.recipe_plan import RecipePlan, check_seats, plan_recipe
from rl_cluster.recipes.recipe_preview import nodes_to_simulate
from rl_cluster.schema import STRATEGIES

MACHINES = made_up_inventory(*[8] * 6)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """One to three owners and up to four guests on parts of their clusters."""
    owners = draw(st.integers(1, 3))
    config: dict[str, Any] = {}
    for index in range(owners):
        counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any))
        cluster = {
            "bundle_ct_per_node_list": counts,
            "strategy": draw(st.sampled_from(STRATEGIES)),
            "unified": draw(st.booleans()),
            "max_colocated_worker_groups": draw(st.integers(1, 3)),
        }
        config[f"owner{index}"] = {"cluster": cluster, **({"numa": {}} if draw(st.booleans()) else {})}
    for index in range(draw(st.integers(0, 4))):
        on: dict[str, Any] = {"cluster": f"owner{draw(st.integers(0, owners - 1))}"}
        for key in ("nodes", "gpus"):
            if draw(st.booleans()):
                on[key] = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        config[f"guest{index}"] = {"on": on}
    return config


def problems_of(call: Callable[[], object]) -> list[str]:
    """What a call refuses; none where it doesn't."""
    try:
        call()
    except ConfigError as error:
        return list(error.problems)
    return []


@settings(max_examples=120, deadline=None)
@given(recipes())
def test_seats_are_dense_and_within_what_was_declared(config: dict[str, Any]) -> None:
    """A recipe is refused at the door, or planned so that every rule holds; what is refused for its overlaps is refused before planning."""
    refused = problems_of(lambda: recipe_from_config(config))
    assert all(".on." in problem for problem in refused)
    if refused:
        return
    recipe = recipe_from_config(config)
    overlaps = problems_of(lambda: check_seats(recipe))
    assert all("max_colocated_worker_groups" in problem for problem in overlaps)
    if overlaps:
        assert max(Counter(role.owner for role in recipe.roles.values()).values()) > 1
        return
    plan = plan_recipe(recipe, MACHINES)
    assert isinstance(plan, RecipePlan)
    groups: Counter[tuple[str, int, int]] = Counter()
    for role in plan.roles.values():
        layout = plan.layouts[role.role.owner]
        assert set(role.bundles) <= set(layout.bundles)
        assert role.bundles
        assert [record.rank for record in role.records] == list(range(len(role.bundles)))
        assert {record.node_rank for record in role.records} == set(range(len({(r.node_idx, r.node_id) for r in role.records})))
        addresses = [(group, index) for group, (index,) in role.bundle_indices_list]
        assert len(set(addresses)) == len(addresses)
        sizes = [layout.spec.world_size] if layout.spec.unified else [count for count in layout.spec.bundle_counts if count]
        assert all(index < sizes[group] for group, index in addresses)
        groups.update((role.role.owner, bundle.node_idx, bundle.bundle_idx) for bundle in role.bundles)
    for (owner, _, _), count in groups.items():
        assert count <= recipe.clusters[owner].max_colocated_worker_groups


@settings(max_examples=60, deadline=None)
@given(recipes())
def test_the_simulation_made_for_a_recipe_holds_it(config: dict[str, Any]) -> None:
    """Whatever it asks for."""
    try:
        recipe = recipe_from_config(config)
        check_seats(recipe)
    except ConfigError:
        return
    assert isinstance(plan_recipe(recipe, nodes_to_simulate(recipe)), RecipePlan)
