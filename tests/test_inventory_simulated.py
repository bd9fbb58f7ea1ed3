"""The nodes that a simulation makes up for a spec."""

from __future__ import annotations

import pytest

from rl_cluster.plan import Layout, Shortfall, plan_layout
from rl_cluster.schema import ClusterSpec, RaySpec
from rl_cluster.simulated_inventory import simulated_inventory


@pytest.mark.parametrize(
    ("cluster", "ray", "expected"),
    [
        pytest.param({"num_nodes": 2}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="2x8"),
        pytest.param({"num_nodes": 2, "strategy": "PACK"}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="2x8-pack"),
        pytest.param({"bundle_ct_per_node_list": [8, 4]}, {}, [{"GPU": 8, "CPU": 8}] * 2, id="uneven"),
        pytest.param({"num_nodes": 1, "max_colocated_worker_groups": 2}, {}, [{"GPU": 8, "CPU": 16}], id="colocated"),
        pytest.param({"num_nodes": 1, "gpus_per_node": 0, "bundles_per_node": 4}, {}, [{"CPU": 4}], id="cpu-only"),
        pytest.param({"num_nodes": 1, "resources": {"nic": 0.5}}, {}, [{"GPU": 8, "CPU": 8, "nic": 4}], id="custom-resource"),
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
