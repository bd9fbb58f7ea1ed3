"""The nodes that a simulation makes up for a spec, or starts for the machines of a file."""

from __future__ import annotations

import pytest

from rl_cluster.errors import ConfigError
from rl_cluster.plan import Layout, Shortfall, plan_layout
from rl_cluster.planning.inventory_file import parse_inventory
from rl_cluster.planning.simulated_inventory import inventory_of_file, simulated_inventory
from rl_cluster.schema import ClusterSpec, RaySpec
from rl_cluster.simulate import simulated_cluster


@pytest.mark.parametrize(
    ("cluster", "ray", "expected"),
    [
        pytest.param({"num_nodes": 2}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="2x8"),
        pytest.param({"num_nodes": 2, "strategy": "PACK"}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="2x8-pack"),
        pytest.param({"bundle_ct_per_node_list": [8, 4]}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="uneven"),
        pytest.param({"num_nodes": 1, "max_colocated_worker_groups": 2}, {}, [{"GPU": 8, "CPU": 16}], id="colocated"),
        pytest.param({"num_nodes": 1, "gpus_per_node": 0, "bundles_per_node": 4}, {}, [{"CPU": 4}], id="cpu-only"),
        pytest.param({"num_nodes": 1, "resources": {"nic": 0.5}}, {}, [{"GPU": 8, "CPU": 8, "nic": 4}], id="custom-resource"),
        pytest.param(
            {"num_nodes": 1, "gpus_per_node": 3, "resources": {"nic": 0.5}}, {}, [{"GPU": 3, "CPU": 3, "nic": 2}], id="ray-starts-no-half"
        ),
        pytest.param({"num_nodes": 1, "accelerator": "NPU"}, {}, [{"NPU": 8, "CPU": 8}], id="other-accelerator"),
        pytest.param({"num_nodes": 2}, {"simulated_gpus_per_node": 4}, [{"GPU": 4, "CPU": 4}] * 4, id="small-nodes"),
        pytest.param(
            {"num_nodes": 2, "strategy": "PACK"}, {"simulated_gpus_per_node": 16}, [{"GPU": 16, "CPU": 16}], id="large-nodes-packed"
        ),
        pytest.param(
            {"num_nodes": 2, "strategy": "SPREAD"}, {"simulated_gpus_per_node": 16}, [{"GPU": 16, "CPU": 16}] * 2, id="large-nodes-spread"
        ),
        pytest.param({"num_nodes": 2}, {"simulated_nodes": 3}, [{"GPU": 8, "CPU": 8}] * 3, id="number-given"),
        pytest.param({"num_nodes": 1}, {"simulated_cpus_per_node": 64}, [{"GPU": 8, "CPU": 64}], id="cpus-given"),
        pytest.param({"num_nodes": 2, "use_head": "never"}, {}, [{"CPU": 0}] + [{"GPU": 8, "CPU": 8}] * 2, id="a-head-beside-them"),
    ],
)
def test_as_many_nodes_as_the_spec_needs(cluster: dict[str, object], ray: dict[str, int], expected: list[dict[str, float]]) -> None:
    """Nodes as large as the largest logical node, or as ``ray.simulated_*`` says; the spec fits on them."""
    spec = ClusterSpec(**cluster)  # type: ignore[arg-type]
    inventory = simulated_inventory(spec, RaySpec(kind="simulated", **ray))  # type: ignore[arg-type]
    assert [dict(node.total) for node in inventory.nodes] == expected
    assert [node.is_head for node in inventory.nodes] == [True] + [False] * (len(expected) - 1)
    assert inventory.simulated
    assert isinstance(plan_layout(spec, inventory), Layout)


def test_labels_and_domains_that_the_spec_asks_for() -> None:
    """The made-up nodes carry what the selector wants, and one NVLink domain per segment."""
    spec = ClusterSpec(num_nodes=4, segment_size=2, label_selector={"zone": "in(b,a)", "old": "!yes"})
    inventory = simulated_inventory(spec, RaySpec(kind="simulated"))
    assert [dict(node.labels) for node in inventory.nodes] == [
        {"zone": "a", "rl_cluster/topo-rank": str(index), "ray.io/gpu-domain": f"simulated-{index // 2}"} for index in range(4)
    ]
    assert isinstance(plan_layout(spec, inventory), Layout)


def test_what_no_number_of_nodes_would_hold_is_left_to_the_plan() -> None:
    """A strict logical node of 8 on nodes of 4 can't be simulated; the plan says why."""
    spec = ClusterSpec(num_nodes=1, strategy="STRICT_PACK")
    inventory = simulated_inventory(spec, RaySpec(kind="simulated", simulated_gpus_per_node=4))
    assert isinstance(plan_layout(spec, inventory), Shortfall)


def test_of_a_file_what_is_free_on_living_machines_is_started() -> None:
    """Whatever is held, draining or dead stays out, and is told; part of a GPU can't be started."""
    found = parse_inventory(
        {
            "nodes": [
                {"address": "10.0.0.9", "resources": {"GPU": 8, "CPU": 16}, "free": {"GPU": 2.5}, "head": True, "hostname": "front"},
                {"address": "10.0.0.2", "count": 2, "resources": {"GPU": 8, "CPU": 16, "memory": 1000}, "labels": {"zone": "a"}},
                {"address": "10.0.0.4", "resources": {"CPU": 1}, "state": "draining"},
                {"address": "10.0.0.5", "resources": {"CPU": 1}, "state": "dead"},
            ]
        }
    )
    inventory = inventory_of_file(found)
    whole, rest = {"GPU": 8.0, "CPU": 16.0, "memory": 1000.0}, {"GPU": 2.0, "CPU": 16.0}
    assert [(node.address, dict(node.total), dict(node.free)) for node in inventory.nodes] == [
        ("10.0.0.2", whole, whole),
        ("10.0.0.3", whole, whole),
        ("10.0.0.9", rest, rest),
    ]
    assert [dict(node.labels) for node in inventory.nodes[1:]] == [
        {"zone": "a", "rl_cluster/file-node-id": "node-10.0.0.3", "rl_cluster/file-address": "10.0.0.3"},
        {
            "rl_cluster/file-node-id": "node-10.0.0.9",
            "rl_cluster/file-address": "10.0.0.9",
            "rl_cluster/file-hostname": "front",
            "rl_cluster/file-head": "true",
        },
    ]
    assert inventory.notes == (
        "held in file and so not started: 6 of 8 GPU on 10.0.0.9",
        "not alive in file and so not started: 10.0.0.4 (draining); 10.0.0.5 (dead)",
    )


@pytest.mark.parametrize(
    ("nodes", "problems"),
    [
        pytest.param(
            [{"resources": {"CPU": 0.5, "GPU": 2}}, {"resources": {"CPU": 1, "GPU": 1.5}}],
            [
                "inventory file: 10.0.0.1: CPU must be a whole number to be simulated (Ray starts no other), got 0.5",
                "inventory file: 10.0.0.2: GPU must be a whole number to be simulated (Ray starts no other), got 1.5",
            ],
            id="parts",
        ),
        pytest.param(
            [{"resources": {"CPU": 1}, "state": "dead"}, {"resources": {"CPU": 1}, "state": "draining"}],
            ["inventory file: must have a living machine to be simulated, got 2 that are not"],
            id="nothing-lives",
        ),
    ],
)
def test_a_file_that_ray_can_not_start_is_refused(nodes: list[dict[str, object]], problems: list[str]) -> None:
    """One line for each amount, before anything is started."""
    with pytest.raises(ConfigError) as caught:
        inventory_of_file(parse_inventory({"nodes": nodes}))
    assert list(caught.value.problems) == problems


def test_a_resource_whose_name_ray_would_take_apart_is_refused_before_anything_starts() -> None:
    """Ray's nodes get their resources in one text with commas, and such a node never comes up."""
    found = inventory_of_file(parse_inventory({"nodes": [{"resources": {"CPU": 1, "a,b": 1}}]}))
    with pytest.raises(ConfigError) as caught, simulated_cluster(found):
        pass
    assert str(caught.value) == "ray.kind: a simulated Ray must have resources without a comma in their names, got 'a,b'"
