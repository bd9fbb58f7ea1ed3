"""NeMo-RL's numa_utils interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_cluster import numa_utils

CPUS = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]


def call(expression: str, environ: dict[str, str]) -> str:
    """The value of an expression over numa_utils in a process of its own, and the mask of that process afterwards."""
    code = f"import os; from rl_cluster import numa_utils; print({expression}, sorted(os.sched_getaffinity(0)))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NRL_", "OMP_", "GOMP_", "CUDA_"))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean | environ)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def affinity(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "map").write_text(f"0:{CPUS[0]}\n3:{CPUS[-1]}\n")
    return {"NRL_GPU_CPU_AFFINITY_FILE": str(tmp_path / "map")}


@pytest.mark.skipif(sys.platform != "linux", reason="binds this process on Linux")
@pytest.mark.parametrize(
    ("gpu", "more", "result", "cpus"),
    [
        pytest.param(3, {}, True, CPUS[-1:], id="bound"),
        pytest.param(3, {"NRL_DISABLE_NUMA_MEMBIND": "1"}, True, CPUS[-1:], id="memory off"),
        pytest.param(3, {"NRL_DISABLE_NUMA_BINDING": "1"}, False, CPUS, id="all off"),
        pytest.param(7, {}, False, CPUS, id="a GPU that nobody knows"),
        pytest.param(3, {"NRL_GPU_CPU_AFFINITY_FILE": "/nonexistent"}, False, CPUS, id="no file"),
    ],
)
def test_true_means_that_the_kernel_holds_it(
    affinity: dict[str, str], gpu: int, more: dict[str, str], result: bool, cpus: list[int]
) -> None:
    """False where nothing was bound, and then the mask is as before."""
    assert call(f"numa_utils.bind_to_gpu_numa({gpu})", affinity | more) == f"{result} {cpus}"


@pytest.mark.parametrize(
    ("visible", "local", "physical"),
    [
        ("3,6,5,4,0,7,1,2", 0, 3),
        ("3,6,5,4,0,7,1,2", 7, 2),
        (" 4 , 5 ", 1, 5),
        ("4,5", 2, None),
        ("4,5", -1, None),
        ("", 0, None),
        (None, 0, None),
        ("4,-1,5", 0, 4),
        ("4,-1,5", 2, None),
        ("GPU-0b8c1d2e-no-such-gpu", 0, None),
        ("MIG-0b8c1d2e-no-such-gpu", 0, None),
    ],
)
def test_local_index_is_looked_up_in_what_is_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, local: int, physical: int | None
) -> None:
    """The entry at that place; None, never an exception, where it names no GPU of this machine."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "/nonexistent")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert numa_utils.resolve_visible_gpu_id(local) == physical


def test_binding_needs_no_libnuma(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without it: None, and the node of a CPU comes from sysfs."""

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(numa_utils.ctypes, "CDLL", missing)
    assert numa_utils._load_libnuma() is None
    assert numa_utils._get_numa_node(None, set()) == -1
    assert numa_utils._get_numa_node(None, {10**6}) == -1


def test_libnuma_is_asked_for_the_lowest_cpu() -> None:
    """As NeMo-RL does."""

    class Function:
        restype = None

        def __call__(self, cpu: int) -> int:
            return {4: 1}[cpu]

    class Libnuma:
        numa_node_of_cpu = Function()

    assert numa_utils._get_numa_node(Libnuma(), {9, 4}) == 1  # type: ignore[arg-type]


def test_memory_switch_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """NRL_DISABLE_NUMA_MEMBIND=1: nothing is set."""
    monkeypatch.setenv("NRL_DISABLE_NUMA_MEMBIND", "1")
    assert numa_utils._set_numa_membind({0}) is False


def test_memory_of_cpus_that_do_not_exist_is_not_set() -> None:
    """No node, no policy, no True."""
    assert numa_utils._set_numa_membind({10**6}) is False


def test_names_and_defaults_are_nemo_rls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default path, the cpulist's type and its error."""
    monkeypatch.delenv("NRL_GPU_CPU_AFFINITY_FILE", raising=False)
    assert call("numa_utils.GPU_CPU_AFFINITY_PATH, numa_utils.logger.name", {}).startswith(
        "/tmp/nrl_gpu_cpu_affinity rl_cluster.numa_utils ["
    )
    assert numa_utils._parse_cpulist("0-2,8") == {0, 1, 2, 8}
    with pytest.raises(ValueError, match="'x'"):
        numa_utils._parse_cpulist("x")
