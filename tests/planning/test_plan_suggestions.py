"""The nearest things that fit, and whose end would be enough."""

from __future__ import annotations

import pytest
from attrs import evolve

from rl_cluster.inventory import Holder, Inventory
from tests.strategies import AMOUNTS, held, made_up_inventory, made_up_node, shortfall

TWO_NAMELESS = (Holder("actor", "a", "", "", {"GPU": 4.0}), Holder("actor", "", "", "", {"GPU": 4.0}))


@pytest.mark.parametrize(
    ("inventory", "keys", "expected"),
    [
        pytest.param(
            made_up_inventory(8, cpus=16),
            {"num_nodes": 1, "strategy": "STRICT_PACK", "cpus_per_bundle": 3},
            ("cluster.gpus_per_node=5 fits now", "cluster.cpus_per_bundle=2 fits now"),
            id="fewer-cpus",
        ),
        pytest.param(
            made_up_inventory(4, 2),
            {"bundle_ct_per_node_list": [3, 3], "strategy": "STRICT_PACK"},
            (
                "cluster.strategy=PACK fits now",
                "cluster.strategy=SPREAD fits now",
                "cluster.num_nodes=1 cluster.bundle_ct_per_node_list=[3] fits now",
                "cluster.bundle_ct_per_node_list=[2,2] fits now",
            ),
            id="other-strategy",
        ),
        pytest.param(
            Inventory((held(held(made_up_node(0, AMOUNTS), 4, name="a"), 4, name="b"),)),
            {"num_nodes": 1, "gpus_per_node": 8},
            ("wait: it fits when job 02000000 ends (placement groups 'a', 'b')",),
            id="all-of-one-job",
        ),
        pytest.param(
            Inventory((held(held(made_up_node(0, AMOUNTS), 4, name="a"), 4, name="b", job="03000000"),)),
            {"num_nodes": 1, "gpus_per_node": 8},
            ("wait: it fits when enough of what is held is given back",),
            id="no-one-job-alone",
        ),
        pytest.param(
            Inventory(
                tuple(
                    held(held(made_up_node(index, AMOUNTS), 4, name=f"run-node{index}"), 1, name=f"a{index}", kind="actor")
                    for index in range(4)
                )
            ),
            {"num_nodes": 4},
            (
                "wait: it fits when job 02000000 ends "
                "(placement groups 'run-node0', 'run-node1', 'run-node2' and 1 more, actors 'a0', 'a1', 'a2' and 1 more)",
                "cluster.num_nodes=1 fits now",
                "cluster.gpus_per_node=3 fits now",
            ),
            id="a-run-of-many-groups",
        ),
        pytest.param(
            Inventory((evolve(made_up_node(0, AMOUNTS, {"GPU": 0.0, "CPU": 64.0}), holders=TWO_NAMELESS),)),
            {"num_nodes": 1, "gpus_per_node": 8},
            ("wait: it fits when enough of what is held is given back",),
            id="holders-of-a-file-without-ids-are-not-one",
        ),
        pytest.param(
            Inventory((evolve(made_up_node(0, AMOUNTS, {"GPU": 0.0, "CPU": 64.0}), holders=TWO_NAMELESS),)),
            {"num_nodes": 1, "gpus_per_node": 4},
            ("wait: it fits when a nameless actor on 10.0.0.1 ends", "wait: it fits when actor 'a' on 10.0.0.1 ends"),
            id="a-holder-without-job-and-id",
        ),
        pytest.param(
            Inventory(
                tuple(
                    evolve(
                        made_up_node(index, AMOUNTS, {"GPU": 0.0, "CPU": 64.0}), holders=(Holder("placement_group", "x", "", "", AMOUNTS),)
                    )
                    for index in range(2)
                )
            ),
            {"num_nodes": 2},
            ("wait: it fits when placement group 'x' ends",),
            id="a-group-of-one-name-is-one",
        ),
        pytest.param(
            made_up_inventory(8),
            {"bundle_ct_per_node_list": [16], "gpus_per_node": 16, "strategy": "STRICT_PACK"},
            ("cluster.bundle_ct_per_node_list=[8] fits now",),
            id="a-list-is-answered-by-a-list",
        ),
        pytest.param(
            made_up_inventory(8),
            {"bundle_ct_per_node_list": [16], "bundles_per_node": 16, "gpus_per_node": 16, "strategy": "STRICT_PACK"},
            ("cluster.bundles_per_node=8 cluster.bundle_ct_per_node_list=[8] fits now",),
            id="and-what-must-agree-with-it",
        ),
        pytest.param(
            Inventory((held(made_up_node(0, AMOUNTS, is_head=True), 8), made_up_node(1, AMOUNTS))),
            {"num_nodes": 2, "use_head": "never", "strategy": "STRICT_SPREAD"},
            ("cluster.num_nodes=1 fits now", "the head node would have room if nothing were held: cluster.use_head=always"),
            id="a-head-node-that-is-held",
        ),
        pytest.param(
            Inventory((made_up_node(0, AMOUNTS, is_head=True), made_up_node(1, AMOUNTS, labels={"zone": "a"}))),
            {"num_nodes": 2, "use_head": "never", "strategy": "STRICT_SPREAD", "label_selector": {"zone": "a"}},
            ("cluster.num_nodes=1 fits now",),
            id="a-head-node-that-has-not-the-labels-either",
        ),
        pytest.param(
            Inventory((made_up_node(0, AMOUNTS), made_up_node(1, AMOUNTS, labels={"zone": "a"}))),
            {"num_nodes": 2, "strategy": "STRICT_SPREAD", "label_selector": {"zone": "a"}, "exclude_nodes": ["10.0.0.1"]},
            ("cluster.num_nodes=1 fits now",),
            id="an-excluded-node-that-has-not-the-labels-either",
        ),
        pytest.param(made_up_inventory(8), {"num_nodes": 1, "accelerator": "gpu"}, ("cluster.accelerator=GPU fits now",), id="gpu-for-GPU"),
        pytest.param(
            made_up_inventory(4, 4),
            {"num_nodes": 1, "accelerator": "gpu", "strategy": "STRICT_PACK"},
            ("no node has a resource gpu: write GPU in cluster.accelerator",),
            id="gpu-for-GPU-and-too-many",
        ),
        pytest.param(
            Inventory((made_up_node(0, {**AMOUNTS, "nic": 8.0}),)),
            {"num_nodes": 1, "resources": {"NIC": 1}},
            ("no node has a resource NIC: write nic in cluster.resources",),
            id="NIC-for-nic",
        ),
        pytest.param(
            made_up_inventory(8, 8),
            {"num_nodes": 1, "label_selector": {"zone": "a"}},
            ("other nodes have room: relax cluster.label_selector",),
            id="label",
        ),
        pytest.param(
            made_up_inventory(8, 8),
            {"num_nodes": 2, "exclude_nodes": ["10.0.0.2"]},
            (
                "cluster.num_nodes=1 fits now",
                "cluster.gpus_per_node=4 fits now",
                "the nodes left out have room: shorten cluster.exclude_nodes",
            ),
            id="excluded",
        ),
        pytest.param(made_up_inventory(0), {"num_nodes": 1}, (), id="nothing-fits"),
    ],
)
def test_what_would_fit_is_suggested(inventory: Inventory, keys: dict[str, object], expected: tuple[str, ...]) -> None:
    """The nearest things that fit, each checked by planning it."""
    assert shortfall(inventory, **keys).suggestions == expected
