"""What is said of a call on a group that can't be made, and of a group that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray_users import Given, Group, Streams

from rl_cluster.builders import build_cluster, build_clusters, build_worker_group
from rl_cluster.errors import ConfigError, RlClusterError
from rl_cluster.virtual_cluster import RayVirtualCluster
from rl_cluster.worker_group import RayWorkerGroup

pytestmark = pytest.mark.usefixtures("simulated")

ONE = {"bundle_ct_per_node_list": [1], "label_selector": {"pool": "pair"}}
CALLS: dict[str, tuple[Callable[[RayWorkerGroup], Any], str]] = {
    "rank_text": (lambda group: group.run_rank("x", "echo"), "rank: must be a whole number, got 'x'"),  # type: ignore[arg-type]
    "rank_outside": (lambda group: group.run_rank(1, "echo"), "rank: must be between 0 and 0, got 1. Fix: name a rank of this group"),
    "method": (lambda group: group.run_all(None), "method: must be a text, got None"),  # type: ignore[arg-type]
    "timeout": (lambda group: group.run_all("echo", timeout_s=float("nan")), "timeout_s: must be more than 0, got nan"),
    "per_worker": (
        lambda group: group.run_all("echo", per_worker=3),  # type: ignore[arg-type]
        "per_worker: must be a list with one mapping per worker, or a callable, got 3",
    ),
    "per_worker_item": (
        lambda group: group.run_all("echo", per_worker=[4]),  # type: ignore[list-item]
        "per_worker[0]: must be a mapping from name to value, got 4",
    ),
    "per_worker_length": (
        lambda group: group.run_all("echo", per_worker=[]),
        "per_worker: must have 1 entries, one per worker, got 0. Fix: add or remove",
    ),
    "per_worker_callable": (
        lambda group: group.run_all("echo", per_worker=lambda record: None),  # type: ignore[arg-type,return-value]
        "per_worker(record of rank 0): must be a mapping from name to value, got None",
    ),
}


def test_calls_that_can_not_be_made() -> None:
    """One line with the argument's name; the group goes on, and says of itself when it has ended."""
    with build_cluster(ONE) as cluster:
        with build_worker_group(cluster, Group, name="policy") as group:
            for call, problem in CALLS.values():
                with pytest.raises(ConfigError) as caught:
                    call(group)
                assert str(caught.value) == problem
            assert group.run_all("echo", 1) == [1]
        for use in (lambda: group.run_all("echo"), lambda: group.run_rank(0, "echo"), group.verify_bindings):
            with pytest.raises(RlClusterError) as ended:
                use()
            assert str(ended.value) == "policy: the worker group must be up, but has been shut down. Fix: build it again"


def test_a_generator_has_no_result() -> None:
    """Its values are a stream of one handle."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Streams) as group, pytest.raises(ConfigError) as caught:
        group.run_all("count", 3)
    assert str(caught.value) == (
        "worker.count: must return its result, not yield it. Fix: return a list, or read the stream of one handle of group.workers"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (dict(per_worker_kwargs=3), "per_worker_kwargs: must be a list with one mapping per worker, or a callable, got 3"),
        (dict(workers_per_node="1"), "workers_per_node: must be a list of whole numbers, got '1'"),
        (dict(workers_per_node=1.0), "workers_per_node: must be a whole number, got 1.0"),
        (dict(bundle_indices_list=3), "bundle_indices_list: must be a list, got 3"),
        (dict(bundle_indices_list=[0]), "bundle_indices_list[0]: must be (placement group, [bundles]), got 0. Fix: write e.g. (0, [0, 1])"),
        (dict(bundle_indices_list=[(0, "0")]), "bundle_indices_list[0][1]: must be a list of whole numbers, got '0'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_that_depend_on_the_cluster(arguments: dict[str, Any], problem: str) -> None:
    """Refused before a worker starts; nothing of the cluster stays claimed."""
    with build_cluster(ONE) as cluster:
        with pytest.raises(ConfigError) as caught:
            build_worker_group(cluster, Given, kwargs={"first": 1}, **arguments)
        assert str(caught.value) == problem
        with build_worker_group(cluster, Group) as group:
            assert group.world_size == 1


OF_A_CLUSTER: dict[str, tuple[Callable[[RayVirtualCluster], Any], str]] = {
    "slices_fraction": (lambda cluster: cluster.engine_slices(2.0), "k: must be a whole number, got 2.0"),  # type: ignore[arg-type]
    "slices_flag": (lambda cluster: cluster.engine_slices(True), "k: must be a whole number, got True"),
    "pairs_text": (
        lambda cluster: cluster.get_available_addresses_and_ports_batch("00"),  # type: ignore[arg-type]
        "pg_bundle_pairs: must be a list, got '00'",
    ),
    "pair_short": (
        lambda cluster: cluster.get_available_addresses_and_ports_batch([(0,)]),  # type: ignore[list-item]
        "pg_bundle_pairs[0]: must be (placement group, bundle), got (0,). Fix: write e.g. (0, 0)",
    ),
    "group_outside": (
        lambda cluster: cluster.get_available_addresses_and_ports_batch([(0, 0), (2, 0)]),
        "pg_bundle_pairs[1]: must name a placement group (0 to 1), got 2. Fix: name one of them",
    ),
    "bundle_outside": (
        lambda cluster: cluster.get_available_address_and_port(1, -1),
        "pg_bundle_pairs[0]: must name a bundle of its group (0 to 0), got -1. Fix: name one of them",
    ),
}


def test_calls_of_a_cluster_that_can_not_be_made() -> None:
    """One line with the argument's name."""
    with build_cluster({**ONE, "bundle_ct_per_node_list": [1, 1]}) as cluster:
        for call, problem in OF_A_CLUSTER.values():
            with pytest.raises(ConfigError) as caught:
                call(cluster)
            assert str(caught.value) == problem
    with pytest.raises(ConfigError, match=r"^clusters: must be a mapping from name to value, got \["), build_clusters([ONE]):  # type: ignore[arg-type]
        pass
