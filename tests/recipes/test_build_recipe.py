"""Recipes on a real Ray: built together, all or nothing, and given back on every way out."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cluster.errors import ConfigError, ResourceInsufficientError, WorkerStartError

pytestmark = pytest.mark.ray

RECIPE: dict[str, Any] = {
    "actor": {
        "cluster": {"num_nodes": 2, "gpus_per_node": 2, "max_colocated_worker_groups": 2, "timeout_s": 2},
        "worker": {"target": "host_workers.Told", "kwargs": {"word": "actor"}},
    },
    "critic": {"cluster": {"gpus_per_node": 2, "strategy": "STRICT_PACK", "timeout_s": 2}, "numa": {}},
    "roles": {
        "reward": {
            "on": {"cluster": "actor", "nodes": [1], "gpus": [1]},
            "worker": {"target": "host_workers.Told", "kwargs": {"word": "reward"}},
        },
        "reference": {"on": {"cluster": "actor", "gpus": [0]}},
    },
}


def test_clusters_and_groups_come_by_the_names_of_their_roles(connected: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Guests have their owner's cluster; groups those roles that name a worker; guests sit where they were told to."""
    from rl_cluster import build_recipe

    told: list[str] = []
    with build_recipe(RECIPE, on_progress=told.append) as recipe:
        assert list(recipe.clusters) == ["actor", "critic", "reward", "reference"]
        assert recipe.clusters["reward"] is recipe.clusters["actor"]
        assert list(recipe.groups) == ["actor", "reward"]
        actor, reward = recipe.groups["actor"], recipe.groups["reward"]
        assert actor.run_all("say") == [f"actor {rank} of 4" for rank in range(4)]
        assert reward.run_all("say") == ["reward 0 of 1"]
        assert reward.run_all("where")[0] == actor.run_all("where")[3]
        assert recipe.bundle_indices_list("reference") == [(0, [0]), (1, [0])]
        critic_machines = {record.address for record in recipe.plan.roles["critic"].records}
        assert not critic_machines & {record.address for record in actor.records}
        recipe.print_all_worker_groups()
    drawn = capsys.readouterr().out
    labels = [line.split("│")[0].split()[-1] for line in drawn.splitlines() if "│" in line]
    assert labels == [
        *("GPU", "actor", "reference"),
        *("GPU", "actor", "reward", "reference"),
        *("bundle", "critic"),
    ]
    assert told == ["actor: 4 of 4 workers up", "reward: 1 of 1 workers up"]


def test_nothing_is_placed_where_not_everything_fits(connected: None) -> None:
    """The error names the role's cluster, and what the other one takes."""
    from rl_cluster import build_recipe

    config = {**RECIPE, "critic": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "strategy": "STRICT_SPREAD", "timeout_s": 0.5}, "numa": {}}}
    with pytest.raises(ResourceInsufficientError, match=r"^critic: .*held by cluster 'actor' of this plan"), build_recipe(config):
        raise AssertionError("must not be reached")


def test_a_worker_that_does_not_start_takes_everything_down(connected: None) -> None:
    """The first group was up already."""
    from rl_cluster import build_recipe

    config = {**RECIPE, "roles": {"reward": {"on": {"cluster": "actor", "gpus": [0]}, "worker": {"target": "host_workers.Broken"}}}}
    with pytest.raises(WorkerStartError, match="no weights"), build_recipe(config):
        raise AssertionError("must not be reached")


def test_an_exception_in_the_block_gives_everything_back(connected: None) -> None:
    """The fixture looks at what is left."""
    from rl_cluster import build_recipe

    with pytest.raises(KeyError), build_recipe({"critic": RECIPE["critic"]}) as recipe:
        assert recipe.groups == {}
        assert recipe.clusters["critic"].world_size() == 2
        raise KeyError("of the host")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"target": "host_workers.Tld"}, r"roles\.x\.worker\.target: module 'host_workers' has no 'Tld'", id="class"),
        pytest.param({"target": "host_workers.Told", "method": "whre"}, r"roles\.x\.worker\.method: .*Fix: write where", id="method"),
        pytest.param({"target": "host_workers.Told", "kwargs": {"wrd": 1}}, r"roles\.x\.worker\.kwargs: must fit Told", id="arguments"),
    ],
)
def test_a_worker_class_is_looked_at_before_anything_is_placed(change: dict[str, Any], message: str) -> None:
    """No Ray is asked: this process is connected to none."""
    from rl_cluster import build_recipe

    with pytest.raises(ConfigError, match=message), build_recipe({"roles": {"x": {"cluster": {"gpus_per_node": 1}, "worker": change}}}):
        raise AssertionError("must not be reached")
