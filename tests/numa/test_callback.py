"""The callable for actors that others make, in a real Ray."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.numa.callback import Binding
from rl_cluster.schema import NumaSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray of our own with two made-up GPUs; every worker sees a CUDA_VISIBLE_DEVICES that says nothing."""
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs")
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    import ray

    environ = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1,0"}
    here = Path(__file__).resolve()
    environ["PYTHONPATH"] = os.pathsep.join([str(here.parents[2]), str(here.parent)])  # this module and the package, installed or not
    ray.init(address="local", num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environ})
    yield ray
    ray.shutdown()


@pytest.fixture
def binding(tmp_path: Path) -> Binding:
    (tmp_path / "map").write_text(f"0:{CPUS[0]}\n1:{CPUS[1]}\n")
    return Binding(NumaSpec(affinity_file=str(tmp_path / "map")))


def masks() -> list[str]:
    """Masks of all threads of this process, from /proc."""
    found = set()
    for tid in os.listdir("/proc/self/task"):
        try:
            lines = Path(f"/proc/self/task/{tid}/status").read_text().splitlines()
        except OSError:
            continue
        found |= {line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")}
    return sorted(found)


class Bound:
    """An actor that binds itself first."""

    def __init__(self, binding: Binding) -> None:
        self.report = binding()
        self.in_main_thread = threading.get_native_id() == os.getpid()

    def result(self) -> Any:
        import ray

        return self.report, masks(), [str(gpu) for gpu in ray.get_gpu_ids()], self.in_main_thread


class BoundAsync(Bound):
    """An async actor, whose __init__ is not on the main thread."""

    async def result(self) -> Any:  # type: ignore[override]
        return Bound.result(self)


@pytest.mark.parametrize("kind", [Bound, BoundAsync])
def test_each_actor_is_bound_to_the_gpu_that_ray_gave_it(ray: Any, binding: Binding, kind: type) -> None:
    """Two actors of one GPU each: the CPUs of their own GPU on every thread, whatever CUDA_VISIBLE_DEVICES says."""
    actors = [ray.remote(kind).options(num_cpus=0, num_gpus=1).remote(binding) for _ in range(2)]
    try:
        results = ray.get([actor.result.remote() for actor in actors], timeout=120)
    finally:
        for actor in actors:
            ray.kill(actor)
    assert sorted(gpus for _, _, gpus, _ in results) == [["0"], ["1"]]
    for report, held, (gpu,), in_main_thread in results:
        assert (report.cpu_status, report.source, report.gpu.index) == ("bound", "affinity_file", int(gpu))
        assert held == [report.cpus_held] == [str(CPUS[int(gpu)])]
        assert report.threads_before > 5
        assert in_main_thread == (kind is Bound)


def test_a_task_is_not_bound(ray: Any, binding: Binding) -> None:
    """Its process runs the next task too: a named skip, and the mask stays."""

    def work(binding: Binding) -> Any:
        before = os.sched_getaffinity(0)
        return binding().cpu_status, os.sched_getaffinity(0) == before

    assert ray.get(ray.remote(work).options(num_gpus=1).remote(binding), timeout=120) == ("skipped: ray-task", True)


def test_strict_raises_in_the_actor(ray: Any) -> None:
    """An actor without a GPU: its creation fails with the reason."""
    actor = ray.remote(Bound).options(num_cpus=0).remote(Binding(NumaSpec(strict=True)))
    with pytest.raises(ray.exceptions.RayActorError, match=r"numa\.strict needs a verified binding, got cpu skipped: no-gpu"):
        ray.get(actor.result.remote(), timeout=120)


def test_driver_is_bound_only_to_gpus_it_names(ray: Any, binding: Binding) -> None:
    """It has none of its own."""
    assert binding().cpu_status == "skipped: no-gpu"


def test_binding_is_small_and_survives_pickling(binding: Binding) -> None:
    """It is sent to every actor."""
    assert pickle.loads(pickle.dumps(binding)) == binding
    assert len(pickle.dumps(binding)) < 1000
