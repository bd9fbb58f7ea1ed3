"""One simulated cluster for several jobs: which nodes it has, and when it will do."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cluster.inventory import Inventory
from rl_cluster.planning.inventory_file import parse_inventory
from rl_cluster.planning.simulated_inventory import inventory_of_file, simulated_inventory
from rl_cluster.planning.simulated_union import covers, union_inventory
from rl_cluster.schema import ClusterSpec, RaySpec


def alone(**spec: Any) -> Inventory:
    """What a job would simulate for itself."""
    return simulated_inventory(ClusterSpec(**spec), RaySpec(kind="simulated"))


def sizes(inventory: Inventory) -> list[tuple[float, float]]:
    """CPUs and GPUs of each node."""
    return [(node.total["CPU"], node.total.get("GPU", 0.0)) for node in inventory.nodes]


FOUR_SMALL = {"num_nodes": 4, "gpus_per_node": 2, "strategy": "STRICT_SPREAD"}
TWO_LARGE = {"num_nodes": 2, "gpus_per_node": 8, "strategy": "SPREAD"}
ON_SPOT = {"num_nodes": 1, "gpus_per_node": 2, "label_selector": {"market": "spot"}}
NOT_ON_SPOT = {"num_nodes": 1, "gpus_per_node": 2, "label_selector": {"market": "!spot"}}
OFF_THE_HEAD = {"num_nodes": 1, "gpus_per_node": 2, "use_head": "never"}


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        pytest.param([FOUR_SMALL], [(2, 2)] * 4, id="one job: its own"),
        pytest.param([FOUR_SMALL, TWO_LARGE], [(8, 8), (8, 8), (2, 2), (2, 2)], id="as many as the one, as large as the other"),
        pytest.param([TWO_LARGE, FOUR_SMALL], [(8, 8), (8, 8), (2, 2), (2, 2)], id="in any order"),
        pytest.param([ON_SPOT, NOT_ON_SPOT], [(2, 2), (2, 2)], id="a label that the other must not have: a node each"),
        pytest.param([TWO_LARGE, OFF_THE_HEAD], [(0, 0), (8, 8), (8, 8)], id="a head that offers nothing comes first"),
        pytest.param([{"gpus_per_node": 0, "bundles_per_node": 16}, TWO_LARGE], [(16, 8), (8, 8)], id="CPU bundles beside GPUs"),
    ],
)
def test_union_is_large_enough_for_each(jobs: list[dict[str, Any]], expected: list[tuple[float, float]]) -> None:
    """Every job finds its nodes again; there is one head, and the order of the nodes is numbered anew."""
    union = union_inventory([alone(**job) for job in jobs])
    assert sizes(union) == expected
    assert [node.is_head for node in union.nodes] == [True] + [False] * (len(expected) - 1)
    numbered = [node.labels["rl_cluster/topo-rank"] for node in union.nodes if any(node.total.values())]
    assert numbered == [str(index) for index in range(len(numbered))]
    assert all(covers(union, alone(**job)) for job in jobs)


@pytest.mark.parametrize(
    ("running", "wanted"),
    [
        pytest.param(TWO_LARGE, FOUR_SMALL, id="too few nodes"),
        pytest.param(FOUR_SMALL, TWO_LARGE, id="too small"),
        pytest.param(FOUR_SMALL, ON_SPOT, id="no such label"),
        pytest.param(FOUR_SMALL, {**FOUR_SMALL, "resources": {"disk": 1.0}}, id="no such resource"),
    ],
)
def test_what_is_too_small_does_not_cover(running: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A cluster that lacks nodes, amounts or labels of a job is not taken for it."""
    assert not covers(alone(**running), alone(**wanted))


def test_machines_of_a_file_stay_as_they_are() -> None:
    """Jobs on one file share its nodes: the head stays the file's head, and machines without anything free stay there."""
    nodes = [{"resources": {"CPU": 0}}, {"resources": {"CPU": 0}}, {"resources": {"CPU": 8, "GPU": 8}, "head": True}]
    inventory = inventory_of_file(parse_inventory({"nodes": nodes}))
    assert union_inventory([inventory, inventory]) == inventory
    assert covers(inventory, inventory)
