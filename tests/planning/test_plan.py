"""Where the bundles lie: strategies, resources, nodes that may be used, several clusters."""

from __future__ import annotations

import pytest
from attrs import evolve

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import Inventory
from rl_cluster.plan import Layout, Shortfall, plan_layout, plan_layouts, render_shortfall
from rl_cluster.planning.selectors import matches_selector, parse_selector
from rl_cluster.schema import ClusterSpec
from tests.strategies import made_up_inventory, made_up_node

H100 = {"ray.io/accelerator-type": "H100"}
A100 = {"ray.io/accelerator-type": "A100"}


def lie(answer: Layout | Shortfall) -> list[str]:
    """Per logical node the last byte of the addresses of its bundles: ``8x1`` is eight on 10.0.0.1, ``2x1+1x3`` is split."""
    assert isinstance(answer, Layout), answer
    addresses = {node.node_id: node.address.rpartition(".")[2] for node in answer.nodes}
    drawn = []
    for node_idx in range(len(answer.spec.bundle_counts)):
        nodes = [addresses[bundle.node_id] for bundle in answer.bundles if bundle.node_idx == node_idx]
        drawn.append("+".join(f"{nodes.count(node)}x{node}" for node in dict.fromkeys(nodes)))
    return drawn


def plan(inventory: Inventory, **keys: object) -> list[str]:
    return lie(plan_layout(ClusterSpec(**keys), inventory))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "counts", "gpus", "expected"),
    [
        pytest.param("STRICT_PACK", [4, 4], [8, 8], ["4x1", "4x1"], id="strict-pack-shares-one-machine"),
        pytest.param("STRICT_PACK", [8, 8], [8, 16, 8], ["8x2", "8x2"], id="strict-pack-takes-as-few-machines-as-possible"),
        pytest.param("STRICT_PACK", [2, 8], [8, 2], ["2x2", "8x1"], id="strict-pack-leaves-the-large-machine-to-the-large-node"),
        pytest.param("PACK", [4, 4], [8, 8], ["4x1", "4x1"], id="pack-shares-one-machine"),
        pytest.param("PACK", [3, 3], [4, 2], ["3x1", "1x1+2x2"], id="pack-splits-only-what-does-not-fit"),
        pytest.param("PACK", [8], [4, 2, 4], ["4x1+4x3"], id="pack-splits-in-as-few-pieces-as-possible"),
        pytest.param("PACK", [8, 4], [4, 4, 4], ["4x1+4x2", "4x3"], id="pack-keeps-whole-what-fits"),
        pytest.param("SPREAD", [8, 8], [8, 8], ["8x1", "8x2"], id="two-by-eight"),
        pytest.param("SPREAD", [4, 4], [16, 8], ["4x1", "4x2"], id="spread-on-distinct-machines-where-one-would-do"),
        pytest.param("SPREAD", [8, 8], [8, 8, 8, 8], ["8x1", "8x2"], id="spread-never-scatters-a-logical-node"),
        pytest.param("SPREAD", [4, 4, 4], [8, 8], ["4x1", "4x1", "4x2"], id="spread-shares-when-there-are-too-few"),
        pytest.param("SPREAD", [2, 2, 2, 2], [8, 4], ["2x1", "2x1", "2x2", "2x2"], id="spread-shares-evenly"),
        pytest.param("SPREAD", [8], [4, 4], ["4x1+4x2"], id="spread-splits-what-fits-nowhere"),
        pytest.param("SPREAD", [8, 8], [16, 4, 4], ["8x1", "8x1"], id="spread-shares-rather-than-splits"),
        pytest.param("STRICT_SPREAD", [4, 4], [16, 8], ["4x1", "4x2"], id="strict-spread"),
        pytest.param("STRICT_SPREAD", [2, 8], [8, 4], ["2x2", "8x1"], id="strict-spread-gives-the-large-machine-to-the-large-node"),
        pytest.param("STRICT_SPREAD", [2, 2, 6], [8, 6, 2], ["2x1", "2x3", "6x2"], id="strict-spread-takes-the-earliest-that-works"),
        pytest.param("STRICT_SPREAD", [4, 2], [4, 2], ["4x1", "2x2"], id="four-and-two"),
        pytest.param("STRICT_SPREAD", [4, 0, 4], [4, 4], ["4x1", "", "4x2"], id="a-node-without-bundles-takes-nothing"),
    ],
)
def test_strategies_mean_logical_nodes(strategy: str, counts: list[int], gpus: list[int], expected: list[str]) -> None:
    """Each strategy places logical nodes as the table of strategies says, on the earliest nodes where it leaves a choice."""
    assert plan(made_up_inventory(*gpus), bundle_ct_per_node_list=counts, strategy=strategy) == expected


@pytest.mark.parametrize("unified", [False, True], ids=["one-group-each", "unified"])
def test_one_group_or_many_lie_alike(unified: bool) -> None:
    """``unified`` says how many placement groups there are, not where the bundles lie."""
    assert plan(made_up_inventory(8, 8, 8, 8), num_nodes=2, unified=unified) == ["8x1", "8x2"]


def test_other_resources_count_per_node() -> None:
    """Two logical nodes of 2 GPUs and 32 CPUs each go to two nodes, because one of 8 GPUs has CPUs for one only."""
    nodes = (made_up_node(0, {"GPU": 8.0, "CPU": 16.0}), made_up_node(1, {"GPU": 8.0, "CPU": 128.0}))
    keys = {"num_nodes": 2, "bundles_per_node": 2}
    assert plan(Inventory(nodes), **keys, strategy="SPREAD") == ["2x1", "2x2"]
    assert plan(Inventory(nodes), **keys, strategy="STRICT_PACK", cpus_per_bundle=16) == ["2x2", "2x2"]


def test_custom_resources_count_per_node() -> None:
    """A bundle that needs a resource goes where it is free."""
    nodes = (made_up_node(0, {"GPU": 8.0, "CPU": 8.0}), made_up_node(1, {"GPU": 8.0, "CPU": 8.0, "nic": 1.0}))
    assert plan(Inventory(nodes), num_nodes=1, bundles_per_node=4, resources={"nic": 0.25}) == ["4x2"]
    assert plan(Inventory(nodes), num_nodes=1, bundles_per_node=5, resources={"nic": 0.2}) == ["5x2"]


def test_amounts_are_counted_in_rays_unit() -> None:
    """0.1 + 0.2 CPUs are free for three bundles of 0.1, as in Ray, which counts in ten-thousandths."""
    node = made_up_node(0, {"GPU": 8.0, "CPU": 8.0}, {"GPU": 8.0, "CPU": 0.1 + 0.2})
    assert plan(Inventory((node,)), num_nodes=1, bundles_per_node=3, cpus_per_bundle=0.1) == ["3x1"]
    node = evolve(node, free={"GPU": 8.0, "CPU": 0.3 - 1e-9})
    assert plan(Inventory((node,)), num_nodes=1, bundles_per_node=3, cpus_per_bundle=0.1) == ["3x1"]


def test_other_accelerators_are_resources_of_their_name() -> None:
    """``accelerator=NPU`` takes NPUs, not GPUs."""
    nodes = (made_up_node(0, {"GPU": 8.0, "CPU": 8.0}), made_up_node(1, {"NPU": 8.0, "CPU": 8.0}))
    assert plan(Inventory(nodes), num_nodes=1, accelerator="NPU") == ["8x2"]


def test_only_what_is_free_is_taken() -> None:
    """A node whose GPUs are partly held takes fewer bundles."""
    nodes = (made_up_node(0, {"GPU": 8.0, "CPU": 8.0}, {"GPU": 4.0, "CPU": 8.0}), made_up_node(1, {"GPU": 8.0, "CPU": 8.0}))
    assert plan(Inventory(nodes), num_nodes=1) == ["8x2"]


def test_totals_that_fit_are_not_enough() -> None:
    """4 + 4 free GPUs are no place for 8 on one machine, though the totals fit."""
    half = {"GPU": 4.0, "CPU": 8.0}
    nodes = tuple(made_up_node(index, {"GPU": 8.0, "CPU": 8.0}, half) for index in range(2))
    answer = plan_layout(ClusterSpec(num_nodes=1, strategy="STRICT_PACK"), Inventory(nodes))
    assert isinstance(answer, Shortfall)
    assert [(entry.free["GPU"], entry.needed["GPU"], entry.lacking) for entry in answer.nodes] == [(4.0, 8.0, ("GPU",))] * 2
    assert not answer.never


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param({"label_selector": {"ray.io/accelerator-type": "A100"}}, ["8x3"], id="equals"),
        pytest.param({"label_selector": {"ray.io/accelerator-type": "!H100"}}, ["8x1"], id="not-takes-nodes-without-the-label"),
        pytest.param({"label_selector": {"ray.io/accelerator-type": "in(A100,B200)"}}, ["8x3"], id="in"),
        pytest.param({"label_selector": {"ray.io/accelerator-type": "!in(H100, B200)"}}, ["8x1"], id="not-in"),
        pytest.param({"exclude_nodes": ["10.0.0.1"]}, ["8x2"], id="without-an-address"),
        pytest.param({"exclude_nodes": ["10.0.0.1", f"{9998:056x}"]}, ["8x3"], id="without-a-node-id"),
        pytest.param({"exclude_nodes": ["ray.io/accelerator-type=H100", "10.0.0.1"]}, ["8x3"], id="without-a-label"),
    ],
)
def test_nodes_are_chosen_by_label_and_name(keys: dict[str, object], expected: list[str]) -> None:
    """``label_selector`` and ``exclude_nodes`` say which nodes may be used."""
    amounts = {"GPU": 8.0, "CPU": 64.0}
    nodes = (made_up_node(0, amounts), made_up_node(1, amounts, labels=H100), made_up_node(2, amounts, labels=A100))
    assert plan(Inventory(nodes), num_nodes=1, **keys) == expected


def test_a_name_that_excludes_nothing_is_said() -> None:
    """A slip of the pen in ``exclude_nodes`` is a warning."""
    answer = plan_layout(ClusterSpec(num_nodes=1, exclude_nodes=["10.0.0.99"]), made_up_inventory(8))
    assert isinstance(answer, Layout)
    assert answer.warnings == ("cluster.exclude_nodes: '10.0.0.99' names no node of this cluster",)


@pytest.mark.parametrize(
    ("head_gpus", "keys", "expected"),
    [
        pytest.param(0.0, {"gpus_per_node": 0, "bundles_per_node": 4}, ["4x1", "4x2"], id="auto-cpu-cluster-uses-it"),
        pytest.param(8.0, {"gpus_per_node": 8}, ["8x1", "8x2"], id="auto-with-gpus-uses-it"),
        pytest.param(8.0, {"gpus_per_node": 8, "use_head": "never"}, ["8x2", "8x3"], id="never"),
        pytest.param(0.0, {"gpus_per_node": 0, "bundles_per_node": 4, "use_head": "never"}, ["4x2", "4x3"], id="never-cpu-cluster"),
        pytest.param(0.0, {"gpus_per_node": 8}, ["8x2", "8x3"], id="auto-without-gpus-leaves-it-out"),
    ],
)
def test_the_head_node(head_gpus: float, keys: dict[str, object], expected: list[str]) -> None:
    """``use_head=auto`` leaves the head out of a GPU cluster when it has no GPU."""
    amounts = {"GPU": 8.0, "CPU": 64.0}
    nodes = (made_up_node(0, {"GPU": head_gpus, "CPU": 64.0}, is_head=True), made_up_node(1, amounts), made_up_node(2, amounts))
    assert plan(Inventory(nodes), num_nodes=2, **keys) == expected


def test_a_head_without_cpus_gets_no_bundle() -> None:
    """A head with 0 CPUs and 0 GPUs beside two workers: per-node work runs on the two workers."""
    amounts = {"CPU": 8.0}
    nodes = (made_up_node(0, {}, is_head=True), made_up_node(1, amounts), made_up_node(2, amounts))
    assert plan(Inventory(nodes), num_nodes=2, gpus_per_node=0, bundles_per_node=1) == ["1x2", "1x3"]


@pytest.mark.parametrize("state", ["draining", "dead"])
def test_a_node_that_goes_is_not_planned_on(state: str) -> None:
    """Draining and dead nodes are never used, whatever is free on them."""
    amounts = {"GPU": 8.0, "CPU": 64.0}
    nodes = (made_up_node(0, amounts, state=state), made_up_node(1, amounts))
    assert plan(Inventory(nodes), num_nodes=1) == ["8x2"]


@pytest.mark.parametrize(
    ("strategy", "counts", "gpus", "expected"),
    [
        pytest.param("SPREAD", [8, 8], [8, 8], [], id="none"),
        pytest.param(
            "SPREAD",
            [4, 4, 4],
            [8, 8],
            ["SPREAD: too few physical nodes with room for 3 logical nodes each on its own; shared: 10.0.0.1 (2)"],
            id="shared",
        ),
        pytest.param(
            "PACK",
            [8],
            [4, 4],
            ["PACK: logical node 0 is split over several physical nodes, because no one node has room for it"],
            id="split",
        ),
        pytest.param(
            "PACK",
            [8, 8],
            [4, 4, 4, 4],
            ["PACK: 2 logical nodes are split over several physical nodes, because no one node has room for it"],
            id="several-split",
        ),
    ],
)
def test_a_preference_that_could_not_be_kept_is_said(strategy: str, counts: list[int], gpus: list[int], expected: list[str]) -> None:
    """Sharing under SPREAD and splitting are warnings of the layout."""
    answer = plan_layout(ClusterSpec(bundle_ct_per_node_list=counts, strategy=strategy), made_up_inventory(*gpus))
    assert isinstance(answer, Layout)
    assert list(answer.warnings) == expected


def test_the_layout_carries_what_it_was_planned_on() -> None:
    """A layout knows its spec, the nodes in topology order, and whether they are made up."""
    spec = ClusterSpec(num_nodes=1, gpus_per_node=2)
    inventory = evolve(made_up_inventory(2, 2), simulated=True)
    answer = plan_layout(spec, evolve(inventory, nodes=inventory.nodes[::-1]))
    assert isinstance(answer, Layout)
    assert (answer.spec, answer.nodes, answer.simulated, answer.least_cost) == (spec, inventory.nodes, True, True)


def test_the_second_cluster_gets_what_the_first_left() -> None:
    """Several clusters are planned one after the other."""
    specs = [ClusterSpec(num_nodes=1, gpus_per_node=4), ClusterSpec(bundle_ct_per_node_list=[4, 8], strategy="PACK")]
    answer = plan_layouts(specs, made_up_inventory(8, 8))
    assert not isinstance(answer, Shortfall)
    assert [lie(layout) for layout in answer] == [["4x1"], ["4x1", "8x2"]]


def test_a_small_cluster_does_not_take_the_node_that_a_large_one_needs() -> None:
    """Where the given order does not work another one does; the layouts come in the given order."""
    specs = [ClusterSpec(num_nodes=1, gpus_per_node=2), ClusterSpec(num_nodes=1, gpus_per_node=8, strategy="STRICT_PACK")]
    answer = plan_layouts(specs, made_up_inventory(8, 4))
    assert not isinstance(answer, Shortfall)
    assert [lie(layout) for layout in answer] == [["2x2"], ["8x1"]]


@pytest.mark.parametrize(
    ("gpus", "never", "wait"),
    [
        pytest.param(8.0, True, (), id="more-than-there-is-in-all"),
        pytest.param(12.0, False, ("wait: it fits when enough of what is held is given back",), id="held"),
    ],
)
def test_several_clusters_are_all_or_nothing(gpus: float, never: bool, wait: tuple[str, ...]) -> None:
    """When the second does not fit, the answer is its shortfall, which names the first one's share."""
    specs = [ClusterSpec(name="policy", num_nodes=1, gpus_per_node=6), ClusterSpec(num_nodes=1, gpus_per_node=4, strategy="STRICT_PACK")]
    node = made_up_node(0, {"GPU": gpus, "CPU": 64.0}, {"GPU": 8.0, "CPU": 64.0})
    answer = plan_layouts(specs, Inventory((node,)))
    assert isinstance(answer, Shortfall)
    assert (answer.spec, answer.never, answer.nodes[0].free["GPU"]) == (specs[1], never, 2.0)
    assert answer.headline.endswith("2 free, 6 held by cluster 'policy' of this plan")
    assert tuple(text for text in answer.suggestions if text.startswith("wait")) == wait


@pytest.mark.parametrize(
    ("sizes", "strategy", "gpus"),
    [
        pytest.param([[5], [5], [4]], "STRICT_PACK", [8, 8], id="no-machine-is-left"),
        pytest.param([[3], [3], [2]], "STRICT_PACK", [4, 4], id="the-totals-fit"),
        pytest.param([[4, 4], [4, 4]], "STRICT_SPREAD", [8, 4], id="too-few-machines"),
        pytest.param([[1]] * 9, "PACK", [4, 4], id="more-than-there-is"),
    ],
)
def test_what_never_fits_together_is_never(sizes: list[list[int]], strategy: str, gpus: list[int]) -> None:
    """Each would fit alone, all together do not, whoever holds what: no waiting is advised."""
    specs = [ClusterSpec(name=f"c{index}", bundle_ct_per_node_list=counts, strategy=strategy) for index, counts in enumerate(sizes)]
    inventory = made_up_inventory(*gpus)
    busy = evolve(inventory, nodes=tuple(evolve(node, free={**node.free, "GPU": 1.0}) for node in inventory.nodes))
    for there in (inventory, busy):
        answer = plan_layouts(specs, there)
        assert isinstance(answer, Shortfall)
        assert answer.never
        assert not any(text.startswith("wait") for text in answer.suggestions)
        assert ", 1 free" not in render_shortfall(answer)
        assert (answer.index, answer.spec.name) == (len(sizes) - 1, f"c{len(sizes) - 1}")


def test_clusters_that_fit_in_no_order_are_searched_together() -> None:
    """The first STRICT_SPREAD would take the two machines of 1 and leave one to the other, whichever comes first."""
    specs = [ClusterSpec(bundle_ct_per_node_list=[1, 1], strategy="STRICT_SPREAD") for _ in range(2)]
    answer = plan_layouts(specs, made_up_inventory(1, 1, 2))
    assert not isinstance(answer, Shortfall)
    assert [lie(layout) for layout in answer] == [["1x1", "1x3"], ["1x2", "1x3"]]
    assert [layout.least_cost for layout in answer] == [False, False]


def test_a_search_that_is_too_long_proves_nothing() -> None:
    """Then it is neither "never" nor "it would fit"."""
    specs = [ClusterSpec(name=name, bundle_ct_per_node_list=[7, 5, 4, 3] * 20, strategy="STRICT_PACK") for name in "ab"]
    answer = plan_layouts(specs, made_up_inventory(*[20, 19, 18, 17] * 10, 20, 20))
    assert isinstance(answer, Shortfall)
    assert (answer.never, answer.facts["proven"]) == (False, False)


def test_no_cluster_at_all_is_planned_at_once() -> None:
    """Nothing wanted is nothing placed."""
    assert plan_layouts([], made_up_inventory(8)) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", (True, {"a"})),
        ("!a", (False, {"a"})),
        ("in(a,b)", (True, {"a", "b"})),
        ("!in(a, b-1.c_2)", (False, {"a", "b-1.c_2"})),
        ("", (True, {""})),
    ],
)
def test_the_forms_of_a_selector(value: str, expected: tuple[bool, set[str]]) -> None:
    """The four forms of Ray's label selectors, and the empty value."""
    assert parse_selector(value) == expected


@pytest.mark.parametrize("value", ["in()", "-a", "!", "in(a,b", "a b", "in(a;b)", "!!a"])
def test_a_selector_that_ray_can_not_read_is_refused(value: str) -> None:
    """Anything else is an error that names the key."""
    with pytest.raises(ConfigError) as caught:
        matches_selector({}, {"zone": value})
    assert str(caught.value) == (
        f"cluster.label_selector.zone: must be v, !v, in(a,b) or !in(a,b), got {value!r}. Fix: write it in Ray's label selector syntax"
    )
