"""Where bundles and workers come to lie on a real Ray."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from typing import Any

import pytest
import ray
from ray_states import placement_groups, what_stays
from ray_users import Seen

from rl_cluster.builders import build_cluster, build_placement_groups, build_worker_group
from rl_cluster.errors import ConfigError, PlacementTimeoutError, ResourceInsufficientError
from rl_cluster.placing.placement import RETRIES_VARIABLE
from rl_cluster.plan import WorkerPosition, engine_slices
from rl_cluster.virtual_cluster import RayVirtualCluster

pytestmark = pytest.mark.usefixtures("simulated")


def addresses() -> dict[str, str]:
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}


def placed_by_ray(cluster: RayVirtualCluster) -> list[str]:
    """The address of every bundle in planned order, as Ray's own table says."""
    names = addresses()
    found = []
    for group in cluster.get_placement_groups():
        table = ray.util.placement_group_table(group)
        assert table["state"] == "CREATED"
        found += [names[table["bundles_to_node_id"][index]] for index in range(group.bundle_count)]
    return found


def per_node(cluster: RayVirtualCluster) -> list[dict[str, int]]:
    """For each logical node: bundles by the address that Ray put them on."""
    where = iter(placed_by_ray(cluster))
    return [dict(Counter(next(where) for _ in range(count))) for count in cluster.spec.bundle_counts if count]


PAIR = {"pool": "pair"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(
            {"bundle_ct_per_node_list": [4, 4], "strategy": "SPREAD", "label_selector": {"pool": "wide"}},
            [{"127.0.0.4": 4}, {"127.0.0.5": 4}],
            id="SPREAD of 4+4 on 16 and 8 GPUs takes both",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [4, 4], "strategy": "STRICT_SPREAD", "label_selector": {"pool": "wide"}},
            [{"127.0.0.4": 4}, {"127.0.0.5": 4}],
            id="STRICT_SPREAD of 4+4 on 16 and 8 GPUs takes both",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [2, 2], "strategy": "STRICT_SPREAD", "label_selector": {"size": "8", "pool": "in(wide, fourth)"}},
            [{"127.0.0.5": 2}, {"127.0.0.8": 2}],
            id="STRICT_SPREAD of 2+2 on 8 GPUs with 8 and 32 CPUs takes both",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [8, 8], "unified": True, "strategy": "SPREAD", "label_selector": {"size": "8"}},
            [{"127.0.0.2": 8}, {"127.0.0.3": 8}],
            id="unified SPREAD of 8+8 on four nodes of 8 keeps logical nodes whole",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [4, 4], "strategy": "PACK", "label_selector": PAIR},
            [{"127.0.0.2": 4}, {"127.0.0.2": 4}],
            id="PACK of 4+4 takes one node of 8",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [12], "strategy": "PACK", "label_selector": PAIR},
            [{"127.0.0.2": 8, "127.0.0.3": 4}],
            id="PACK of 12 on nodes of 8 is split",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [4, 2], "strategy": "STRICT_SPREAD", "label_selector": {"pool": "uneven"}},
            [{"127.0.0.6": 4}, {"127.0.0.7": 2}],
            id="4+2 fits nodes of 4 and 2",
        ),
        pytest.param(
            {"bundle_ct_per_node_list": [1, 0, 1], "strategy": "STRICT_PACK", "label_selector": PAIR},
            [{"127.0.0.2": 1}, {"127.0.0.2": 1}],
            id="a logical node without bundles",
        ),
    ],
)
def test_ray_places_what_the_strategy_means(spec: dict[str, Any], expected: list[dict[str, int]]) -> None:
    """Ray's own table shows each logical node where the strategy says, not where Ray's strategy of that name would."""
    with build_cluster(spec) as cluster:
        assert per_node(cluster) == expected


@pytest.mark.parametrize("seed", range(6))
def test_ray_does_what_the_plan_says(seed: int) -> None:
    """On a partly busy cluster every bundle of a random spec lies, by Ray's table, on the node of the layout."""
    dice = random.Random(seed)
    busy = {"bundle_ct_per_node_list": [dice.randint(1, 5) for _ in range(dice.randint(1, 4))], "label_selector": {"size": "8"}}
    spec = {
        "bundle_ct_per_node_list": [dice.randint(0, 3) for _ in range(dice.randint(1, 4))] + [1],
        "strategy": dice.choice(["STRICT_PACK", "PACK", "SPREAD"]),
        "unified": dice.random() < 0.5,
        "cpus_per_bundle": dice.choice([None, 0, 1]),
        "label_selector": {"size": "8"},
    }
    with build_cluster({**busy, "strategy": "PACK"}), build_cluster(spec) as cluster:
        names = addresses()
        assert placed_by_ray(cluster) == [names[bundle.node_id] for bundle in cluster.layout.bundles]
        assert len(cluster.layout.bundles) == sum(spec["bundle_ct_per_node_list"])  # type: ignore[arg-type]


def test_ranks_are_contiguous_per_node() -> None:
    """Unified SPREAD of two logical nodes: the first half of the ranks on one node, local ranks from 0 on both."""
    spec = {"bundle_ct_per_node_list": [3, 3], "unified": True, "strategy": "SPREAD", "label_selector": PAIR}
    with build_cluster(spec) as cluster, build_worker_group(cluster, Seen) as group:
        assert [record.address for record in group.records] == ["127.0.0.2"] * 3 + ["127.0.0.3"] * 3
        assert group.run_all("ranks") == [
            ("0", "0", "3", "0", "6"),
            ("1", "1", "3", "0", "6"),
            ("2", "2", "3", "0", "6"),
            ("3", "0", "3", "1", "6"),
            ("4", "1", "3", "1", "6"),
            ("5", "2", "3", "1", "6"),
        ]
        positions = [WorkerPosition(r.node_idx, r.bundle_idx, r.node_id, r.address, r.gpu_ids) for r in group.records]
        assert engine_slices(positions, 3) == engine_slices(cluster.layout, 3) == [[0, 1, 2], [3, 4, 5]]


def test_engine_hosts_are_measured() -> None:
    """Beside an actor group, engines lie where their bundles are, not at rank // GPUs per node; none straddles two nodes."""
    actor = {"bundle_ct_per_node_list": [4], "label_selector": PAIR, "strategy": "PACK"}
    with build_cluster(actor), build_cluster({**actor, "bundle_ct_per_node_list": [12]}) as rollout:
        names = addresses()
        hosts = [[names[rollout.layout.bundles[index].node_id] for index in engine] for engine in engine_slices(rollout.layout, 4)]
        assert sorted(hosts) == [["127.0.0.2"] * 4, ["127.0.0.3"] * 4, ["127.0.0.3"] * 4]
        assert [place for engine in hosts for place in engine] == placed_by_ray(rollout)


def test_uneven_nodes_have_their_own_local_world_size() -> None:
    """Layout [4, 2] gives LOCAL_WORLD_SIZE 4 and 2."""
    spec = {"bundle_ct_per_node_list": [4, 2], "strategy": "STRICT_SPREAD", "label_selector": {"pool": "uneven"}}
    with build_cluster(spec) as cluster, build_worker_group(cluster, Seen) as group:
        assert [seen[2] for seen in group.run_all("ranks")] == ["4", "4", "4", "4", "2", "2"]


def test_a_head_without_resources_is_not_a_node_for_work() -> None:
    """Per-node work for 'two nodes' runs on the two workers' nodes, not on the empty head."""
    spec = {"bundle_ct_per_node_list": [1, 1], "use_gpus": False, "gpus_per_node": 0, "strategy": "STRICT_SPREAD"}
    head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    with build_cluster(spec) as cluster:
        used = [bundle.node_id for bundle in cluster.layout.bundles]
        assert len(set(used)) == 2
        assert head not in used


# --- what does not fit ---


def test_a_shortfall_names_each_nodes_free_and_holder() -> None:
    """8 free in all, but 4 + 4: STRICT_PACK of 8 is refused with each node's free GPUs and who holds the rest."""
    busy = {"name": "blocker", "bundle_ct_per_node_list": [4, 4], "strategy": "STRICT_SPREAD", "label_selector": PAIR}
    with build_cluster(busy), pytest.raises(ResourceInsufficientError) as caught:
        build_cluster({"bundle_ct_per_node_list": [8], "strategy": "STRICT_PACK", "label_selector": PAIR})
    of_pair = {entry.node.address: entry for entry in caught.value.shortfall.nodes if entry.kind == "resource"}
    assert {address: (entry.needed["GPU"], entry.free["GPU"]) for address, entry in of_pair.items()} == {
        "127.0.0.2": (8.0, 4.0),
        "127.0.0.3": (8.0, 4.0),
    }
    for line, number in (("127.0.0.2 has 4 free, 4 held by", 0), ("127.0.0.3 has 4 free, 4 held by", 1)):
        assert re.search(rf"{line} placement group 'blocker-[0-9a-f]+-node{number}'", str(caught.value))


def test_the_missing_resource_is_named() -> None:
    """8 bundles of 3 CPUs and a GPU, on a node of 8 GPUs and 8 CPUs: CPU is what is missing, not GPU."""
    with pytest.raises(ResourceInsufficientError) as caught:
        build_cluster(
            {
                "bundle_ct_per_node_list": [8],
                "cpus_per_bundle": 3,
                "strategy": "STRICT_PACK",
                "label_selector": {"size": "8", "pool": "wide"},
            }
        )
    entry = next(entry for entry in caught.value.shortfall.nodes if entry.node.address == "127.0.0.5")
    assert entry.lacking == ("CPU",)
    assert (entry.needed["CPU"], entry.free["CPU"]) == (24.0, 8.0)


def test_equal_parts_do_not_fit_unequal_nodes() -> None:
    """[3, 3] on nodes of 4 and 2 GPUs names the node of 2."""
    with pytest.raises(ResourceInsufficientError) as caught:
        build_cluster({"bundle_ct_per_node_list": [3, 3], "strategy": "STRICT_SPREAD", "label_selector": {"pool": "uneven"}})
    lacking = {entry.node.address: entry.free["GPU"] for entry in caught.value.shortfall.nodes if entry.lacking == ("GPU",)}
    assert lacking == {"127.0.0.7": 2.0}
    assert "127.0.0.7" in str(caught.value)


@pytest.mark.parametrize(
    "value", ["0", "-1", "three", "", "1.5", "²"], ids=["zero", "negative", "word", "empty", "fraction", "superscript"]
)
def test_bad_number_of_attempts_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """NRL_VIRTUAL_CLUSTER_MAX_RETRIES must be a positive integer; nothing is placed otherwise."""
    monkeypatch.setenv(RETRIES_VARIABLE, value)
    with pytest.raises(ConfigError) as caught:
        build_cluster({"bundle_ct_per_node_list": [1]})
    assert str(caught.value) == (
        f"NRL_VIRTUAL_CLUSTER_MAX_RETRIES: must be an integer greater than 0, got {value!r}. Fix: unset it, or give 1 or more"
    )
    assert what_stays() == {}


def test_one_attempt_is_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """NRL_VIRTUAL_CLUSTER_MAX_RETRIES=1: one look at what is held, then the error that says what bounded it."""
    pool = {"label_selector": {"pool": "fourth"}}
    with build_cluster({"bundle_ct_per_node_list": [8], **pool}):
        monkeypatch.setenv(RETRIES_VARIABLE, "1")
        with pytest.raises(ResourceInsufficientError, match="waited until NRL_VIRTUAL_CLUSTER_MAX_RETRIES=1") as caught:
            build_cluster({"bundle_ct_per_node_list": [1], **pool})
    assert not isinstance(caught.value, PlacementTimeoutError)


def test_place_taken_in_between_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job takes the planned node after planning: the groups asked for are withdrawn, and the next plan avoids that node."""
    from rl_cluster.placing import placement

    real_create, rivals = placement._create, []

    def late(layout: Any) -> Any:
        if not rivals:  # the rival comes first, once
            node = layout.bundles[0].node_id
            rival = ray.util.placement_group([{"GPU": 8}], bundle_label_selector=[{"ray.io/node-id": node}])
            assert rival.wait(10)
            rivals.append((rival, addresses()[node]))
        return real_create(layout)

    monkeypatch.setattr(placement, "_create", late)
    lines: list[str] = []
    try:
        with build_cluster({"bundle_ct_per_node_list": [4], "label_selector": PAIR}, on_progress=lines.append) as cluster:
            assert rivals[0][1] == "127.0.0.2"
            assert per_node(cluster) == [{"127.0.0.3": 4}]
            assert lines[0] == "the planned place was taken by another job before it could be placed; planning again"
            assert placement_groups("PENDING") == []
    finally:
        for rival, _ in rivals:
            ray.util.remove_placement_group(rival)


def test_groups_withdrawn_while_ray_reserves_them_leave_nothing() -> None:
    """Removing groups at any moment of their creation gives every resource back (the fixture looks afterwards)."""
    from rl_cluster.placing.placement import remove

    node = next(node["NodeID"] for node in ray.nodes() if node["NodeManagerAddress"] == "127.0.0.3")
    selector = [{"ray.io/node-id": node}] * 4
    for number in range(100):
        groups = [ray.util.placement_group([{"CPU": 1, "GPU": 1}] * 4, bundle_label_selector=selector) for _ in range(2)]
        time.sleep(number % 5 * 0.002)  # another moment each time
        remove(groups)
    assert placement_groups("CREATED", "PENDING") == []


# --- NeMo-RL's interface ---


def test_positional_arguments_of_the_class() -> None:
    """The arguments keep their order and meaning: list, use_gpus, colocation, GPUs per node, name, strategy."""
    with RayVirtualCluster([1, 2], True, 2, 4, "mine", "PACK") as cluster:
        assert (cluster.world_size(), cluster.node_count()) == (3, 2)
        assert cluster.spec.bundle_resources == {"CPU": 2.0, "GPU": 1.0}
        assert (cluster.num_gpus_per_node, cluster.max_colocated_worker_groups, cluster.use_gpus) == (4, 2, True)
        cluster.get_placement_groups()
        names = sorted(group["name"] for group in placement_groups("CREATED"))
        assert [re.sub("-[0-9a-f]{6}-", "-*-", name) for name in names] == ["mine-*-node0", "mine-*-node1"]


def test_node_without_bundles_has_an_empty_group() -> None:
    """_init_placement_groups gives one group per logical node, get_placement_groups only those with bundles."""
    with RayVirtualCluster([1, 0, 1], use_gpus=False) as cluster:
        groups = cluster._init_placement_groups("PACK")
        assert [group.is_empty for group in groups] == [False, True, False]
        assert [group.bundle_count for group in groups] == [1, 0, 1]
        assert groups[1].bundle_specs == []
        assert cluster.get_placement_groups() == [groups[0], groups[2]]
        assert cluster.node_count() == 2
        assert cluster._init_placement_groups("PACK") == groups


def test_cpu_bundles_take_no_gpu() -> None:
    """use_gpus=False asks for CPUs only, as many as worker groups may share a bundle."""
    with RayVirtualCluster([2], False, 3) as cluster:
        assert cluster.get_placement_groups()[0].bundle_specs == [{"CPU": 3.0}, {"CPU": 3.0}]


def test_shutdown_twice() -> None:
    """shutdown() gives everything back, says so, and may be called again."""
    cluster = RayVirtualCluster([1])
    cluster.get_placement_groups()
    assert cluster.shutdown() is True
    assert placement_groups("CREATED", "PENDING") == []
    assert cluster.shutdown() is True


def test_garbage_collection_gives_back() -> None:
    """A cluster that nobody holds any more is removed."""
    cluster = RayVirtualCluster([1])
    cluster.get_placement_groups()
    assert len(placement_groups("CREATED")) == 1
    del cluster
    assert placement_groups("CREATED", "PENDING") == []


def test_exception_in_the_block_gives_back() -> None:
    """An exception inside the with block removes every placement group."""

    def fails() -> None:
        with build_placement_groups({"bundle_ct_per_node_list": [1, 1]}) as groups:
            assert len(groups) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert placement_groups("CREATED", "PENDING") == []
