"""What callers hand over in Python is refused by the argument's name; no Ray runs."""

from __future__ import annotations

import types
from typing import Any

import pytest

from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.errors import ConfigError, RlClusterError
from rl_cluster.placing import placement
from rl_cluster.schema import ClusterSpec
from rl_cluster.virtual_cluster import RayVirtualCluster

CLUSTER = {
    "bundles_text": (dict(bundle_ct_per_node_list="12"), "bundle_ct_per_node_list: must be a list of whole numbers, got '12'"),
    "bundles_mapping": (dict(bundle_ct_per_node_list={1: 2}), "bundle_ct_per_node_list: must be a list of whole numbers, got {1: 2}"),
    "bundles_number": (dict(bundle_ct_per_node_list=8), "bundle_ct_per_node_list: must be a list of whole numbers, got 8"),
    "bundles_of_texts": (dict(bundle_ct_per_node_list=["8"]), "bundle_ct_per_node_list[0]: must be a whole number, got '8'"),
    "bundles_of_floats": (dict(bundle_ct_per_node_list=[8, 4.0]), "bundle_ct_per_node_list[1]: must be a whole number, got 4.0"),
    "use_gpus": (dict(use_gpus="no"), "use_gpus: must be True or False, got 'no'"),
    "gpus": (dict(num_gpus_per_node="8"), "num_gpus_per_node: must be a whole number, got '8'"),
    "gpus_negative": (dict(num_gpus_per_node=-1), "num_gpus_per_node: must be at least 0, got -1"),
    "groups": (dict(max_colocated_worker_groups=True), "max_colocated_worker_groups: must be a whole number, got True"),
    "name": (dict(name=[1]), "name: must be a text, got [1]"),
    "strategy": (
        dict(placement_group_strategy="PAC"),
        "placement_group_strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'PAC'. Fix: write PACK",
    ),
    "spec": (dict(bundle_ct_per_node_list=None, spec={"num_nodes": 1}), "spec: must be a ClusterSpec, got {'num_nodes': 1}. "),
}


@pytest.mark.parametrize(("arguments", "problem"), CLUSTER.values(), ids=CLUSTER.keys())
def test_a_clusters_argument_is_named(arguments: dict[str, Any], problem: str) -> None:
    """By the name that the caller wrote, and nothing is read out of a text or a mapping that is none of our words."""
    with pytest.raises(ConfigError) as caught:
        RayVirtualCluster(**{"bundle_ct_per_node_list": [8], **arguments})
    assert str(caught.value).startswith(problem)
    assert len(caught.value.problems) == 1


class Number:
    """A whole number of another library, as numpy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_numbers_of_other_libraries_are_numbers() -> None:
    """Counts that were computed, in anything that can be gone through."""
    cluster = RayVirtualCluster(map(Number, (2, 1)), num_gpus_per_node=Number(4))  # type: ignore[arg-type]
    assert (cluster.spec.bundle_counts, cluster.num_gpus_per_node) == ([2, 1], 4)


GROUP = {
    "cluster": (dict(cluster=3), "cluster: must be a RayVirtualCluster, got 3. Fix: build_cluster(...) makes one"),
    "name": (dict(name=5), "name: must be a text, got 5"),
    "kwargs": (dict(kwargs=[1]), "kwargs: must be a mapping from name to value, got [1]"),
    "kwargs_keys": (dict(kwargs={1: 2}), "kwargs: must be a mapping whose keys are names, got 1"),
    "options": (dict(options="num_cpus"), "options: must be a mapping from name to value, got 'num_cpus'"),
    "timeout_text": (dict(start_timeout_s="5"), "start_timeout_s: must be a number of seconds, got '5'"),
    "timeout_nan": (dict(start_timeout_s=float("nan")), "start_timeout_s: must be more than 0, got nan"),
    "timeout_infinite": (dict(start_timeout_s=float("inf")), "start_timeout_s: must be at most 10000000, got inf"),
    "timeout_digits": (dict(start_timeout_s=1 << 20_000), "start_timeout_s: must be at most 10000000, got a number of 20001 bits"),
    "numa": (dict(numa=3), "numa: must be a group of keys (NumaSpec), got 3"),
    "numa_list": (dict(numa=[]), "numa: must be a group of keys (NumaSpec), got []"),
    "env": (dict(env="A=1"), "env: must be a group of keys (EnvSpec), got 'A=1'"),
}


@pytest.mark.parametrize(("arguments", "problem"), GROUP.values(), ids=GROUP.keys())
def test_a_groups_argument_is_named(arguments: dict[str, Any], problem: str) -> None:
    """Before anything is placed or started."""
    with pytest.raises(ConfigError) as caught:
        build_worker_group(**{"cluster": RayVirtualCluster([1]), "worker": dict, **arguments})
    assert str(caught.value) == problem


class Groups:
    """Counts what is placed and removed, instead of a Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.placed = self.removed = 0
        monkeypatch.setattr(placement, "place", self.place)
        monkeypatch.setattr(placement, "remove", self.remove)

    def place(self, spec: ClusterSpec, *, on_progress: object = None) -> Any:
        self.placed += 1
        return types.SimpleNamespace(groups=[], layout=types.SimpleNamespace(spec=spec, warnings=()))

    def remove(self, groups: object) -> None:
        self.removed += 1


GIVEN_BACK = "cluster mine: it must be in use, but has been given back. Fix: build it again"


def test_a_cluster_after_its_with_block_is_not_placed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps it by mistake would hold machines that nobody gives back."""
    groups = Groups(monkeypatch)
    with build_cluster({"name": "mine", "num_nodes": 1}) as built:
        assert built.get_placement_groups() == []
    with RayVirtualCluster([1], name="mine") as entered:
        assert entered.get_placement_groups() == []
    for cluster in (built, entered):
        with pytest.raises(RlClusterError) as caught:
            cluster.get_placement_groups()
        assert str(caught.value) == GIVEN_BACK
        assert cluster.shutdown() is True
    assert (groups.placed, groups.removed) == (2, 2)


def test_a_built_cluster_is_not_placed_again_after_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """build_cluster places at once, so a cluster of it has one life."""
    groups = Groups(monkeypatch)
    cluster = build_cluster({"name": "mine"})
    cluster.shutdown()
    with pytest.raises(RlClusterError, match="has been given back"):
        cluster.get_placement_groups()
    assert (groups.placed, groups.removed) == (1, 1)


def test_a_cluster_of_the_class_alone_is_placed_again_after_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NeMo-RL's: its first use after shutdown() places anew."""
    groups = Groups(monkeypatch)
    cluster = RayVirtualCluster([1])
    for _ in range(2):
        cluster.get_placement_groups()
        cluster.shutdown()
    assert (groups.placed, groups.removed) == (2, 2)
