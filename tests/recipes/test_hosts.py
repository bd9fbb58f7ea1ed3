"""The snippets of docs/recipes.md for other frameworks, run against small classes with those frameworks' signatures.

The classes do with what they are given what the frameworks do: ask for groups, make actors on their bundles. Signatures were read in
NeMo-RL's worker_groups.py, verl's single_controller/ray/base.py and OpenRLHF's trainer/ray (launcher.py, vllm_engine.py) of 2025-2026.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.ray

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- snippet (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))

RECIPE: dict[str, Any] = {
    "policy": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "max_colocated_worker_groups": 2, "strategy": "STRICT_SPREAD"}, "numa": {}},
    "generation": {"on": "policy", "numa": {"enabled": False}},
}


def run_snippet(name: str, modules: dict[str, dict[str, Any]], inside: str, **given: Any) -> dict[str, Any]:
    """Run a snippet of the page with made-up modules, and ``inside`` at the end of its with block. Returns its variables."""
    before = dict(sys.modules)
    try:
        for path, names in modules.items():
            parts = path.split(".")
            for end in range(1, len(parts) + 1):
                sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
            vars(sys.modules[path]).update(names)
        scope: dict[str, Any] = {"cfg": RECIPE, **given}
        exec(compile(SNIPPETS[name].rstrip("\n") + f"\n    {inside}\n", f"snippet {name}", "exec"), scope)
        return scope
    finally:
        for path in set(sys.modules) - set(before):
            if path.split(".")[0] in {module.split(".")[0] for module in modules}:
                del sys.modules[path]


def make(target: type, group: Any, index: int, share: float, *args: Any, **kwargs: Any) -> Any:
    """An actor on one bundle, with a share of its GPU and CPUs."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    place = PlacementGroupSchedulingStrategy(group, index, placement_group_capture_child_tasks=True)
    return ray.remote(target).options(num_cpus=0.5, num_gpus=share, scheduling_strategy=place).remote(*args, **kwargs)


# --- NeMo-RL ---


class NemoWorkerBuilder:
    """``RayWorkerBuilder(fqn, *args, **kwargs)``."""

    def __init__(self, ray_actor_class_fqn: str, *args: Any, **kwargs: Any) -> None:
        self.fqn, self.args, self.kwargs = ray_actor_class_fqn, args, kwargs


class NemoWorkerGroup:
    """``RayWorkerGroup(cluster, remote_worker_builder, workers_per_node, name_prefix, bundle_indices_list, ...)``."""

    def __init__(
        self,
        cluster: Any,
        remote_worker_builder: NemoWorkerBuilder,
        workers_per_node: int | list[int] | None = None,
        name_prefix: str = "",
        bundle_indices_list: list[tuple[int, list[int]]] | None = None,
        sharding_annotations: Any = None,
        env_vars: dict[str, str] | None = None,
        dp_leader_worker_indices: list[int] | None = None,
    ) -> None:
        from host_workers import Told

        groups = cluster.get_placement_groups()
        if bundle_indices_list is None:
            bundle_indices_list = [(index, [bundle]) for index, group in enumerate(groups) for bundle in range(group.bundle_count)]
        self.master = cluster.get_master_address_and_port()
        pairs = [(group, bundle) for group, bundles in bundle_indices_list for bundle in bundles]
        self.addresses = cluster.get_available_addresses_and_ports_batch(pairs)
        share = 1 / cluster.max_colocated_worker_groups if cluster.use_gpus else 0
        self.tied = bundle_indices_list
        self.name_prefix, self.cluster = name_prefix, cluster
        self.workers = [
            make(Told, groups[group if len(groups) > 1 else 0], bundle, share, **remote_worker_builder.kwargs) for group, bundle in pairs
        ]


@pytest.mark.slow
def test_nemo_rl_takes_the_cluster_and_tied_bundles(connected: None) -> None:
    """Its group makes its actors on our bundles; two tied workers of an engine lie on one machine; each actor binds itself."""
    import ray

    modules = {"nemo_rl.distributed.worker_groups": {"RayWorkerBuilder": NemoWorkerBuilder, "RayWorkerGroup": NemoWorkerGroup}}
    seen: dict[str, Any] = {}

    def look(policy: NemoWorkerGroup, generation: NemoWorkerGroup) -> None:
        seen["policy"] = ray.get([worker.where.remote() for worker in policy.workers])
        seen["generation"] = ray.get([worker.where.remote() for worker in generation.workers])
        seen["status"] = ray.get([worker.status.remote() for group in (policy, generation) for worker in group.workers])
        seen["tied"], seen["addresses"], seen["master"] = generation.tied, policy.addresses, policy.master

    run_snippet("nemo_rl", modules, "look(policy, generation)", look=look)
    nodes = [node for node, _, _ in seen["policy"]]
    assert nodes == [nodes[0], nodes[0], nodes[2], nodes[2]]
    assert nodes[0] != nodes[2]
    assert [gpus for _, gpus, _ in seen["policy"]] == [["0"], ["1"], ["0"], ["1"]]
    assert seen["generation"] == seen["policy"]
    assert seen["tied"] == [(0, [0, 1]), (1, [0, 1])]
    assert all(status.startswith(("bound", "skipped", "partial")) for status in seen["status"][:4])
    assert seen["status"][4:] == [""] * 4  # numa.enabled is false for generation: there is nothing to call
    assert seen["addresses"][0][0] == seen["master"][0]
    assert all(1400 <= port < 2000 for _, port in seen["addresses"])


# --- verl ---


class VerlResourcePool:
    """``RayResourcePool(process_on_nodes, use_gpu, name_prefix, max_colocate_count, detached, accelerator_type)``."""

    def __init__(
        self,
        process_on_nodes: list[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
    ) -> None:
        self.store, self.use_gpu, self.max_colocate_count, self.pgs = process_on_nodes, use_gpu, max_colocate_count, None

    def get_placement_groups(self, strategy: str = "STRICT_PACK", name: str | None = None, device_name: str = "cuda") -> Any:
        """verl's asks Ray only while ``pgs`` is None."""
        assert self.pgs is not None, "it would ask Ray for groups of its own"
        return self.pgs


class VerlClassWithInitArgs:
    """``RayClassWithInitArgs(cls, *args, **kwargs)``."""

    def __init__(self, cls: type, *args: Any, **kwargs: Any) -> None:
        self.cls, self.args, self.kwargs = cls, args, kwargs


class VerlWorkerGroup:
    """``RayWorkerGroup(resource_pool, ray_cls_with_init, ...)``: local world size and ranks follow the pool."""

    def __init__(self, resource_pool: VerlResourcePool, ray_cls_with_init: VerlClassWithInitArgs, bin_pack: bool = True) -> None:
        self.workers, self.ranks, rank = [], [], 0
        groups = resource_pool.get_placement_groups()
        assert resource_pool.store is not None
        for group, count in zip(groups, resource_pool.store, strict=True):
            assert count <= group.bundle_count
            for local_rank in range(count):
                worker = make(ray_cls_with_init.cls, group, local_rank, 1 / resource_pool.max_colocate_count, **ray_cls_with_init.kwargs)
                self.workers.append(worker)
                self.ranks.append((rank, local_rank))
                rank += 1


@pytest.mark.slow
def test_verl_takes_the_groups_as_a_resource_pool(connected: None) -> None:
    """It makes none of its own, and its ranks follow ours."""
    import ray
    from host_workers import Told

    modules = {
        "verl.single_controller.ray": {
            "RayClassWithInitArgs": VerlClassWithInitArgs,
            "RayResourcePool": VerlResourcePool,
            "RayWorkerGroup": VerlWorkerGroup,
        }
    }
    seen: dict[str, Any] = {}

    def look(recipe: Any, pool: VerlResourcePool, policy: VerlWorkerGroup) -> None:
        seen["store"], seen["colocate"] = pool.store, pool.max_colocate_count
        seen["where"] = ray.get([worker.where.remote() for worker in policy.workers])
        seen["planned"] = [record.node_id for record in recipe.plan.roles["policy"].records]
        seen["cpus"] = [bundle["CPU"] for group in pool.pgs for bundle in group.bundle_specs]
        seen["status"] = ray.get([worker.status.remote() for worker in policy.workers])

    run_snippet("verl", modules, "look(recipe, pool, policy)", look=look, PolicyWorker=Told)
    assert (seen["store"], seen["colocate"]) == ([2, 2], 2)
    assert [node for node, _, _ in seen["where"]] == seen["planned"]
    assert seen["cpus"] == [2.0] * 4  # verl gives each worker one of the bundle's max_colocate_count CPUs
    assert all(seen["status"])


# --- OpenRLHF ---


class OpenActorGroup:
    """``RayActorGroup(num_nodes, num_gpus_per_node, ray_actor_type, pg, num_gpus_per_actor, duplicate_actors, ...)``."""

    def __init__(
        self,
        num_nodes: int,
        num_gpus_per_node: int,
        ray_actor_type: type,
        pg: Any = None,
        num_gpus_per_actor: float = 1,
        duplicate_actors: int = 1,
        resources: dict[str, float] | None = None,
        num_resources_per_node: int | None = None,
    ) -> None:
        world_size = num_nodes * num_gpus_per_node
        assert pg is not None, "it would ask Ray for a group of its own"
        assert pg.bundle_count == world_size
        self._actor_handlers = [make(ray_actor_type, pg, rank, num_gpus_per_actor, word=str(rank)) for rank in range(world_size)]


class OpenEngine:
    """``LLMRayActor(*args, bundle_indices=None, **kwargs)``: tells vLLM by an environment variable."""

    def __init__(self, *args: Any, bundle_indices: Sequence[int] | None = None, **kwargs: Any) -> None:
        if bundle_indices is not None:
            os.environ["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, bundle_indices))
        self.size = kwargs["tensor_parallel_size"]

    def start_workers(self) -> list[str]:
        """As vLLM's Ray executor does: one worker on each of these bundles of the actor's own group. Returns their nodes."""
        import ray
        from host_workers import Told

        group = ray.util.get_current_placement_group()
        workers = [make(Told, group, int(index), 0.5) for index in os.environ["VLLM_RAY_BUNDLE_INDICES"].split(",")]
        assert len(workers) == self.size
        return [node for node, _, _ in ray.get([worker.where.remote() for worker in workers])]


@pytest.mark.slow
def test_openrlhf_takes_one_group_and_engines_their_slices(connected: None) -> None:
    """Rank is the bundle's index; VLLM_RAY_BUNDLE_INDICES names bundles of one machine."""
    import ray
    from host_workers import Told

    modules = {
        "openrlhf.trainer.ray.launcher": {"RayActorGroup": OpenActorGroup},
        "openrlhf.trainer.ray.vllm_engine": {"LLMRayActor": ray.remote(OpenEngine)},
    }
    seen: dict[str, Any] = {}

    def look(recipe: Any, policy: OpenActorGroup, engines: list[Any]) -> None:
        seen["policy"] = [node for node, _, _ in ray.get([actor.where.remote() for actor in policy._actor_handlers])]
        seen["planned"] = [record.node_id for record in recipe.plan.roles["policy"].records]
        seen["engines"] = ray.get([engine.start_workers.remote() for engine in engines])

    config = {**RECIPE, "policy": {**RECIPE["policy"], "cluster": {**RECIPE["policy"]["cluster"], "unified": True}}}
    run_snippet("openrlhf", modules, "look(recipe, policy, engines)", look=look, PolicyModelActor=Told, cfg=config)
    first, second = seen["planned"][0], seen["planned"][2]
    assert seen["policy"] == seen["planned"] == [first, first, second, second]
    assert seen["engines"] == [[first, first], [second, second]]


def test_every_snippet_of_the_page_is_run() -> None:
    """No framework's snippet goes untested."""
    assert sorted(SNIPPETS) == ["nemo_rl", "openrlhf", "verl"]
    assert PAGE.count("<!-- snippet ") == 3
