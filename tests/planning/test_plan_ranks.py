"""Rank order and the rank variables, from where workers lie."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.errors import ConfigError, WorkerStartError
from rl_cluster.plan import (
    Layout,
    WorkerPosition,
    WorkerRank,
    engine_slices,
    order_workers,
    plan_layout,
    rank_workers,
    sorted_bundle_indices,
)
from rl_cluster.schema import ClusterSpec
from tests.strategies import made_up_inventory

ADDRESSES = {"a": "10.0.0.9", "b": "10.0.0.10"}


def positions(nodes: str, *, node_idx: Sequence[int] | None = None) -> list[WorkerPosition]:
    """One worker per letter, bundle after bundle, on machine a or b."""
    return [
        WorkerPosition(node_idx[index] if node_idx else 0, index, letter, address=ADDRESSES[letter]) for index, letter in enumerate(nodes)
    ]


def test_ranks_of_a_machine_are_contiguous() -> None:
    """Bundles that alternate between machines get their ranks machine by machine, 10.0.0.9 before 10.0.0.10."""
    assert order_workers(positions("abbbaaba")) == [0, 4, 5, 7, 1, 2, 3, 6]


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_order_of_the_input_gives_the_same_ranks(chance: random.Random) -> None:
    """The ranks depend on where workers lie, not on the order in which they report."""
    items = positions("abbbaaba")
    shuffled = chance.sample(items, len(items))
    assert [shuffled[index] for index in order_workers(shuffled)] == [items[index] for index in order_workers(items)]


def test_a_logical_node_comes_before_the_next_whatever_the_machines() -> None:
    """Logical node 0 has the first ranks even where its machine comes later."""
    assert order_workers(positions("baba", node_idx=[0, 1, 0, 1])) == [0, 2, 1, 3]


def test_topology_comes_before_the_address() -> None:
    """Within a logical node the position in the topology decides, where it is known."""
    items = [WorkerPosition(0, 0, "a", address="10.0.0.1", topology=1), WorkerPosition(0, 1, "b", address="10.0.0.2", topology=0)]
    assert order_workers(items) == [1, 0]


@pytest.mark.parametrize(
    ("gpu_ids", "expected"),
    [
        pytest.param([["10"], ["9"], ["0"], ["1"]], [2, 3, 1, 0], id="strings-as-numbers"),
        pytest.param([[10], [9], [0], [1]], [2, 3, 1, 0], id="numbers"),
        pytest.param([[4, 5], [6, 7], [2, 3], [0, 1]], [3, 2, 0, 1], id="the-first-of-several"),
        pytest.param([["5", "4"], ["6"], ["3"], ["1"]], [3, 2, 0, 1], id="in-any-order"),
        pytest.param([["GPU-b"], ["GPU-a"], ["1"], ["0"]], [3, 2, 1, 0], id="uuids-after-numbers"),
        pytest.param([[], [], [], []], [0, 1, 2, 3], id="without-gpus-by-bundle"),
    ],
)
def test_within_a_machine_the_gpu_decides(gpu_ids: list[list[str | int]], expected: list[int]) -> None:
    """GPU "10" comes after "9"; without GPUs the bundle index decides."""
    items = [WorkerPosition(0, index, "a", gpu_ids=ids) for index, ids in enumerate(gpu_ids)]
    assert order_workers(items) == expected


def test_rank_variables_of_a_split_logical_node() -> None:
    """A "node" of the rank variables is the part of one logical node on one machine, counted densely."""
    ranks = rank_workers(positions("abbab", node_idx=[0, 0, 0, 1, 2]))
    assert ranks == [
        WorkerRank(rank=0, local_rank=0, local_world_size=1, node_rank=0),
        WorkerRank(rank=1, local_rank=0, local_world_size=2, node_rank=1),
        WorkerRank(rank=2, local_rank=1, local_world_size=2, node_rank=1),
        WorkerRank(rank=3, local_rank=0, local_world_size=1, node_rank=2),
        WorkerRank(rank=4, local_rank=0, local_world_size=1, node_rank=3),
    ]


def test_uneven_logical_nodes() -> None:
    """[4, 2] on machines of 4 and 2 GPUs: 6 ranks, local world sizes 4 and 2."""
    ranks = rank_workers(positions("aaaabb", node_idx=[0, 0, 0, 0, 1, 1]))
    assert [(rank.rank, rank.local_rank, rank.local_world_size, rank.node_rank) for rank in ranks] == [
        (0, 0, 4, 0),
        (1, 1, 4, 0),
        (2, 2, 4, 0),
        (3, 3, 4, 0),
        (4, 0, 2, 1),
        (5, 1, 2, 1),
    ]


def test_two_workers_on_one_gpu_are_an_error_that_names_both() -> None:
    """A GPU of a machine has one worker of a group, unless colocation says so."""
    items = [WorkerPosition(0, 0, "a", address="10.0.0.9", gpu_ids=["3"]), WorkerPosition(1, 4, "a", address="10.0.0.9", gpu_ids=[3])]
    with pytest.raises(WorkerStartError) as caught:
        order_workers(items)
    assert str(caught.value) == (
        "GPU 3 of node 10.0.0.9: at most 1 worker(s) of a group may hold one GPU, got 2: bundle 0 of logical node 0 and "
        "bundle 4 of logical node 1. Fix: raise cluster.max_colocated_worker_groups, or give each worker a whole GPU"
    )
    assert order_workers(items, max_colocated=2) == [0, 1]


def test_the_same_gpu_id_on_two_machines_is_no_duplicate() -> None:
    """GPU 0 of a and GPU 0 of b are two GPUs."""
    assert order_workers([WorkerPosition(0, 0, "a", gpu_ids=[0]), WorkerPosition(0, 1, "b", gpu_ids=[0])]) == [0, 1]


def layout(*gpus: int, counts: list[int], strategy: str = "SPREAD") -> Layout:
    answer = plan_layout(ClusterSpec(bundle_ct_per_node_list=counts, strategy=strategy), made_up_inventory(*gpus))
    assert isinstance(answer, Layout)
    return answer


def test_the_bundles_of_a_layout_are_planned_in_rank_order() -> None:
    """Two by eight: ranks 0-7 on the first machine, 8-15 on the second."""
    planned = layout(8, 8, counts=[8, 8])
    assert sorted_bundle_indices(planned) == list(range(16))
    assert [bundle.node_id for bundle in planned.bundles] == [planned.nodes[0].node_id] * 8 + [planned.nodes[1].node_id] * 8


def test_engines_lie_on_one_machine_each() -> None:
    """Engines of 4 bundles in 12 bundles over two machines: one on the first, two on the second."""
    planned = layout(4, 8, counts=[4, 8])
    slices = engine_slices(planned, 4)
    assert slices == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    hosts = [{planned.bundles[index].node_id for index in one} for one in slices]
    first, second = planned.nodes[0].node_id, planned.nodes[1].node_id
    assert hosts == [{first}, {second}, {second}]


def test_engines_of_measured_positions_follow_the_machines() -> None:
    """Slices are made of where workers were measured, not of rank // gpus_per_node."""
    assert engine_slices(positions("abbbaaba"), 2) == [[0, 4], [5, 7], [1, 2], [3, 6]]


def test_engines_that_do_not_come_out_even_are_an_error() -> None:
    """A machine with a remainder is named."""
    with pytest.raises(ConfigError) as caught:
        engine_slices(layout(4, 6, counts=[4, 6]), 4)
    assert str(caught.value) == (
        "engine_slices: the bundles on one physical node must be a multiple of 4, got 6 on node 10.0.0.2. Fix: choose a k that divides them"
    )
    with pytest.raises(
        ConfigError, match=r"got 3 on node 10\.0\.0\.1\. Fix: choose a k that divides them, or a.cluster.strategy=STRICT_PACK$"
    ):
        engine_slices(layout(3, 5, counts=[4, 4]), 4, key="a.cluster")
    with pytest.raises(ConfigError, match="k must be at least 1, got 0"):
        engine_slices(layout(4, counts=[4]), 0)
