"""The order of physical nodes, and segments of NVLink domains."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.plan import Layout, Shortfall, plan_layout
from rl_cluster.planning.shortfall_text import render_shortfall
from rl_cluster.planning.topology import address_key, gpu_domain, natural_key, node_key, sort_nodes, topo_rank
from rl_cluster.schema import ClusterSpec
from tests.strategies import made_up_node

AMOUNTS = {"GPU": 8.0, "CPU": 64.0}


def machine(address: str, *, hostname: str = "", labels: dict[str, str] | None = None, **resources: float) -> PhysicalNode:
    total = {**AMOUNTS, **resources}
    return PhysicalNode(f"id-{address}-{hostname}", address, total, total, hostname=hostname, labels=labels or {})


def domains(*names: str | None) -> Inventory:
    """Nodes 10.0.0.1, ... of 8 GPUs in these domains; None is a node that says nothing of one."""
    nodes = [made_up_node(index, AMOUNTS, labels={"ray.io/gpu-domain": name} if name else {}) for index, name in enumerate(names)]
    return Inventory(tuple(nodes))


def lie(answer: Layout | Shortfall) -> list[int]:
    """The number of the node (1 is the first one given) of each logical node."""
    assert isinstance(answer, Layout), answer
    numbers = {node.node_id: int(node.address.rpartition(".")[2]) for node in answer.nodes}
    return [numbers[bundle.node_id] for bundle in answer.bundles if bundle.bundle_idx == 0]


@pytest.mark.parametrize(
    "ordered",
    [
        pytest.param(["10.0.0.9", "10.0.0.10", "10.0.1.2", "192.0.2.1"], id="ipv4-as-numbers"),
        pytest.param(["10.0.0.1", "2001:db8::9", "2001:db8::10", "2001:db8:0:1::1"], id="ipv6-as-numbers-after-ipv4"),
        pytest.param(["10.0.0.1", "::1", "gpu9", "gpu10", "node-2a", "node-10a"], id="host-names-after-addresses"),
    ],
)
def test_addresses_are_ordered_as_numbers(ordered: list[str]) -> None:
    """10.0.0.9 comes before 10.0.0.10."""
    backwards = ordered[::-1]
    assert sorted(backwards, key=address_key) == ordered


def test_digits_are_read_as_numbers() -> None:
    """GPU "9" comes before "10", whether they are numbers or strings; of any length, and only our digits are digits."""
    assert sorted(["10", 9, "2", "GPU-b", "GPU-a"], key=natural_key) == ["2", 9, "10", "GPU-a", "GPU-b"]
    names = ["node1", "node1²", "node٣", "node" + "9" * 5000, "node1" + "0" * 5000]
    assert sorted(names, key=natural_key) == ["node1", "node1²", "node" + "9" * 5000, "node1" + "0" * 5000, "node٣"]
    assert natural_key("node007") == natural_key("node7")
    assert sorted(["10.0.0." + "9" * 5000, "10.0.0.1"], key=address_key) == ["10.0.0.1", "10.0.0." + "9" * 5000]


def test_domain_then_rank_then_address_then_name() -> None:
    """Nodes are ordered by NVLink domain, topology rank, address, host name; those without one come last."""
    ordered = [
        machine("10.0.0.9", labels={"ray.io/gpu-domain": "rack2", "rl_cluster/topo-rank": "3"}),
        machine("10.0.0.1", labels={"ray.io/gpu-domain": "rack2", "rl_cluster/topo-rank": "12"}),
        machine("10.0.0.5", labels={"ray.io/gpu-domain": "rack2"}),
        machine("10.0.0.2", labels={"ray.io/gpu-domain": "rack10"}),
        machine("10.0.0.4", topo_rank=1.0),
        machine("10.0.0.3"),
        machine("10.0.0.3", hostname="a"),
        machine("10.0.0.10"),
    ]
    assert sort_nodes(ordered[::-1]) == ordered


def test_rays_random_id_orders_only_what_is_alike() -> None:
    """The node id is the last part of the key."""
    assert node_key(machine("10.0.0.1"))[-1] == "id-10.0.0.1-"


@pytest.mark.parametrize(
    ("node", "domain", "rank"),
    [
        pytest.param(machine("a", labels={"ray.io/gpu-domain": "d", "rl_cluster/topo-rank": "7"}), "d", 7.0, id="labels"),
        pytest.param(machine("a", nvlink_domain_abc=1.0, topo_rank=5.0), "abc", 5.0, id="resources"),
        pytest.param(machine("a", labels={"ray.io/gpu-domain": "d"}, nvlink_domain_abc=1.0), "d", None, id="label-before-resource"),
        pytest.param(machine("a", labels={"ray.io/gpu-domain": ""}), None, None, id="an-empty-label-says-nothing"),
    ],
)
def test_where_domain_and_rank_come_from(node: PhysicalNode, domain: str | None, rank: float | None) -> None:
    """A label first, then the resource that a probe registers."""
    assert (gpu_domain(node), topo_rank(node)) == (domain, rank)


def test_two_nodes_of_one_topology_rank_are_an_error_that_names_both() -> None:
    """Topology ranks must be unique."""
    nodes = [machine(f"10.0.0.{index}", labels={"rl_cluster/topo-rank": rank}) for index, rank in ((1, "1"), (2, "2"), (3, "1"))]
    with pytest.raises(ConfigError) as caught:
        plan_layout(ClusterSpec(num_nodes=1), Inventory(tuple(nodes)))
    assert str(caught.value) == (
        "nodes 10.0.0.1 and 10.0.0.3: topology ranks must be unique, got 1 twice. "
        "Fix: give each node its own rl_cluster/topo-rank label (topo_rank resource)"
    )


def test_a_dead_node_may_have_had_the_same_topology_rank() -> None:
    """A machine that came back carries the rank of the node that died."""
    nodes = [machine("10.0.0.1", topo_rank=1.0), made_up_node(1, {**AMOUNTS, "topo_rank": 1.0}, state="dead")]
    assert len(sort_nodes(nodes)) == 2


@pytest.mark.parametrize("label", ["first", "nan", "inf", "-1e999"])
def test_a_topology_rank_that_is_no_number_is_an_error(label: str) -> None:
    """The label must be a number, and a finite one."""
    with pytest.raises(ConfigError, match=rf"node 10\.0\.0\.1: the label rl_cluster/topo-rank must be a number, got '{label}'"):
        sort_nodes([machine("10.0.0.1", labels={"rl_cluster/topo-rank": label})])


@pytest.mark.parametrize(
    ("names", "num_nodes", "segment_size", "expected"),
    [
        pytest.param("aabb", 4, 2, [1, 2, 3, 4], id="whole-domains"),
        pytest.param("aaabb", 2, 2, [4, 5], id="the-domain-that-is-left-with-nothing-first"),
        pytest.param("aaabb", 4, 2, [1, 2, 4, 5], id="then-the-others-and-ranks-in-topology-order"),
        pytest.param("aaaaabbb", 4, 2, [1, 2, 3, 4], id="of-equally-fragmented-ones-the-earlier"),
        pytest.param("abab", 4, 2, [1, 3, 2, 4], id="a-segment-never-spans-two-domains"),
        pytest.param("aabb", 3, 2, [1, 2, 3], id="a-last-segment-may-be-short"),
        pytest.param("abc", 3, 1, [1, 2, 3], id="segments-of-one"),
    ],
)
def test_segments_take_whole_runs_of_one_domain(names: str, num_nodes: int, segment_size: int, expected: list[int]) -> None:
    """Logical nodes come in runs of k in one NVLink domain, from the least fragmenting domains first."""
    for strategy in ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"):
        spec = ClusterSpec(num_nodes=num_nodes, segment_size=segment_size, strategy=strategy)
        assert lie(plan_layout(spec, domains(*names))) == expected, strategy


def test_a_node_without_a_domain_is_never_in_a_segment() -> None:
    """Nodes that say nothing of NVLink are passed over, even when they come first and are free."""
    spec = ClusterSpec(num_nodes=2, segment_size=2)
    assert lie(plan_layout(spec, domains(None, "a", None, "a"))) == [2, 4]
    answer = plan_layout(spec, domains(None, "a", None))
    assert isinstance(answer, Shortfall)
    assert [(entry.node.address, entry.kind) for entry in answer.nodes] == [
        ("10.0.0.2", "fits"),
        ("10.0.0.1", "domain"),
        ("10.0.0.3", "domain"),
    ]


def test_no_domain_at_all_is_an_error_before_anything_is_placed() -> None:
    """``segment_size`` on a cluster without NVLink information can't be meant."""
    with pytest.raises(ConfigError) as caught:
        plan_layout(ClusterSpec(num_nodes=2, segment_size=2), domains(None, None))
    assert str(caught.value) == (
        "cluster.segment_size: needs nodes in an NVLink domain, got 2 with 2 living nodes, none of them in a domain. "
        "Fix: start each node's Ray with a label ray.io/gpu-domain=<domain>, or unset cluster.segment_size"
    )


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        pytest.param("a" * 32, {"num_nodes": 40, "segment_size": 7}, id="too-few-machines"),
        pytest.param("a" * 16 + "b" * 16, {"num_nodes": 29, "segment_size": 10}, id="no-domain-for-the-short-last-segment"),
        pytest.param("a" * 40, {"num_nodes": 40, "segment_size": 7, "gpus_per_node": 9}, id="too-few-gpus"),
        pytest.param("ab" * 20, {"bundle_ct_per_node_list": [8] * 33 + [4, 8] * 8, "segment_size": 7}, id="of-two-sizes"),
    ],
)
@pytest.mark.parametrize("strategy", ["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"])
def test_what_no_waiting_helps_is_never_also_where_it_is_too_large_to_try_all(names: str, keys: dict[str, Any], strategy: str) -> None:
    """Too few machines, too little room, too few whole segments: counting is proof enough, whatever is held."""
    answer = plan_layout(ClusterSpec(**keys, strategy=strategy), domains(*names))
    assert isinstance(answer, Shortfall)
    assert (answer.never, answer.facts["proven"]) == (True, True)
    assert " now" not in answer.headline
    assert "No waiting helps with the nodes there are." in render_shortfall(answer)


@pytest.mark.parametrize("strategy", ["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"])
def test_too_few_whole_segments_are_a_shortfall(strategy: str) -> None:
    """3 + 3 nodes hold two segments of 2, not three, though there are 6. What each domain holds is said, and which machine is in which."""
    answer = plan_layout(ClusterSpec(num_nodes=6, segment_size=2, strategy=strategy), domains(*"aaabbb"))
    assert isinstance(answer, Shortfall)
    assert answer.never
    assert answer.headline.endswith(
        "there is room for 48 bundles, 48 wanted, but not in whole segments: a has room for 3 logical nodes, b has room for 3 logical nodes"
    )
    assert {"cluster.num_nodes=4 fits now", "cluster.segment_size=1 fits now"} <= set(answer.suggestions)
    rows = render_shortfall(answer).splitlines()[2:6:2]
    assert [row.split("  ")[1] for row in rows] == ["10.0.0.1 to 10.0.0.3 (3 nodes) [a]", "10.0.0.4 to 10.0.0.6 (3 nodes) [b]"]


def test_what_remains_is_said() -> None:
    """A short last segment, and nodes of used domains that got nothing, are warnings."""
    answer = plan_layout(ClusterSpec(num_nodes=3, segment_size=2), domains(*"aaabb"))
    assert isinstance(answer, Layout)
    assert answer.warnings == (
        "cluster.segment_size=2: the last segment has only 1 of 2 logical nodes",
        "cluster.segment_size=2: nodes left over in the domains that are used: a (2)",
    )
