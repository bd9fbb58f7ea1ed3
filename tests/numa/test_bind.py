"""What is bound, and what the record says of it."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import MadeUpKernel, make_machine, write

from rl_cluster.errors import BindingError
from rl_cluster.numa.bind import bind_process, raise_if_not_bound, unbind, verify
from rl_cluster.numa.kernel import LinuxKernel
from rl_cluster.numa.report import REASONS, BindingReport
from rl_cluster.schema import NumaSpec

GPU = "0000:06:00.0"


def bind(
    root: Path, kernel: LinuxKernel, *, gpu_ids: tuple[object, ...] = (0,), environ: Mapping[str, str] | None = None, **keys: Any
) -> BindingReport:
    index = keys.pop("index", None)
    spec = NumaSpec(**{"affinity_file": str(root / "map"), **keys})
    return bind_process(spec, gpu_ids=gpu_ids, root=root, kernel=kernel, environ=environ or {}, cpu_worker_index=index)  # type: ignore[arg-type]


def one_gpu(root: Path, nodes: Mapping[int, str], node: int = 0, **keys: Any) -> Path:
    return make_machine(root, nodes, gpus={GPU: node}, **keys)


# --- which CPUs ---
@pytest.mark.parametrize(
    ("node", "allowed", "status", "held"),
    [
        pytest.param("0-31", "0-7", "bound", "0-7", id="part of the node is allowed"),
        pytest.param("0-31", "0-63", "bound", "0-31", id="more than the node is allowed"),
        pytest.param("0-31", "16-47", "bound", "16-31", id="they overlap"),
        pytest.param("0-31", "40-47", "skipped: no-allowed-local-cpu", "40-47", id="nothing of the node is allowed"),
    ],
)
def test_cpus_are_the_nodes_that_are_allowed(tmp_path: Path, node: str, allowed: str, status: str, held: str) -> None:
    """Exactly the intersection; empty is a named skip, never EINVAL, and leaves the mask alone."""
    one_gpu(tmp_path, {0: node, 1: "32-63"})
    report = bind(tmp_path, MadeUpKernel(allowed))
    assert (report.cpu_status, report.cpus_held) == (status, held)


def test_no_allowed_local_cpu_warns_and_leaves_memory_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Memory of a node whose CPUs the process may not use would be far from every access."""
    one_gpu(tmp_path, {0: "0-31", 1: "32-63"})
    kernel = MadeUpKernel("40-47")
    with caplog.at_level(logging.WARNING):
        report = bind(tmp_path, kernel)
    assert report.mem_status == "skipped: cpus-not-bound"
    assert kernel.policy == (0, frozenset())
    assert "local CPUs 0-31, allowed CPUs 40-47" in caplog.text


@pytest.mark.parametrize(
    ("nodes", "node", "held"),
    [
        pytest.param({0: "0-3", 8: "4-7", 252: "", 253: "", 254: "", 255: ""}, 8, "4-7", id="POWER9: nodes 0, 8, 252-255"),
        pytest.param({0: "0-71", 1: "72-143", **dict.fromkeys(range(2, 34), "")}, 1, "72-143", id="GB200: 34 nodes, 2 with CPUs"),
        pytest.param({n: f"{32 * n}-{32 * n + 31}" for n in range(8)}, 7, "224-255", id="8 nodes"),
        pytest.param({0: "0-255", 1: "256-511"}, 1, "256-511", id="CPUs above 255"),
    ],
)
def test_real_trees_are_read(tmp_path: Path, nodes: Mapping[int, str], node: int, held: str) -> None:
    """Sparse node ids, nodes without CPUs, many nodes, many CPUs."""
    one_gpu(tmp_path, nodes, node)
    report = bind(tmp_path, MadeUpKernel("0-511"))
    assert (report.cpu_status, report.cpus_held, report.numa_nodes, report.mem_nodes) == ("bound", held, (node,), (node,))


@pytest.mark.parametrize("node", [1, 2])
def test_node_without_cpus_is_never_a_target(tmp_path: Path, node: int) -> None:
    """A device on a node of GPU or CXL memory: named skip for CPUs and memory."""
    one_gpu(tmp_path, {0: "0-3", 1: "", 2: "", 3: "4-7"}, node)
    report = bind(tmp_path, MadeUpKernel("0-7"))
    assert (report.cpu_status, report.mem_status, report.cpus_held) == ("skipped: node-without-cpus", "skipped: node-without-cpus", "0-7")


def test_missing_files_are_no_reason_to_fail(tmp_path: Path) -> None:
    """No list of online nodes, CPUs, or nodes with memory: what is there decides."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    for name in ("node/online", "node/has_memory", "cpu/online", "cpu/possible"):
        (tmp_path / "sys/devices/system" / name).unlink()
    write(tmp_path / "sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       0 kB")
    report = bind(tmp_path, MadeUpKernel("0-7"))
    assert (report.cpu_status, report.mem_status, report.mem_nodes) == ("bound", "skipped: single-node", ())
    write(tmp_path / "sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       7 kB")
    assert bind(tmp_path, MadeUpKernel("0-7")).mem_status == "bound"


def test_offline_cpus_of_the_list_are_left_out_and_named(tmp_path: Path) -> None:
    """The rest is bound, and what the kernel holds is what was asked of it."""
    make_machine(tmp_path, {0: "0-3", 1: "4-7"}, online="0-2,4-7")
    write(tmp_path / "map", "0:0-3,9")
    report = bind(tmp_path, MadeUpKernel("0-2,4-7"))
    assert (report.cpu_status, report.cpus_wanted, report.cpus_held) == ("bound", "0-2", "0-2")
    assert report.notes == ("CPUs 3,9 are named by affinity_file and offline",)


def test_kernel_that_holds_less_makes_it_partial(tmp_path: Path) -> None:
    """The cpuset shrank between asking and binding: the read-back decides."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    kernel = MadeUpKernel("0-7", cpuset="0-1,4-7")
    report = bind(tmp_path, kernel)
    assert (report.cpu_status, report.cpus_wanted, report.cpus_held, report.threads_bound) == ("partial", "0-3", "0-1", 0)


EXCLUSIVE = {f"0000:{bus:02x}:00.0": bus // 5 for bus in range(1, 9)}  # GPUs 1-4 on node 0, 5-8 on node 1
CORES = [f"{core},{core + 32}" for core in range(32)]


def test_exclusive_splits_a_nodes_cores_among_its_gpus(tmp_path: Path) -> None:
    """16 cores of 2 threads, 4 GPUs: 4 cores each with both threads, disjoint."""
    make_machine(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, cores=CORES, gpus=EXCLUSIVE)
    reports = [bind(tmp_path, MadeUpKernel("0-63"), gpu_ids=(gpu,), cpu_bind="exclusive") for gpu in range(8)]
    expected = ["0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47", "16-19,48-51", "20-23,52-55", "24-27,56-59", "28-31,60-63"]
    assert [report.cpus_held for report in reports] == expected
    assert {(report.cpu_status, report.cpu_bind) for report in reports} == {("bound", "exclusive")}


def test_gpus_that_are_not_visible_keep_their_share(tmp_path: Path) -> None:
    """A container sees one GPU, the PCI bus shows four on the node."""
    make_machine(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, cores=CORES, gpus=EXCLUSIVE, visible=["0000:03:00.0"])
    report = bind(tmp_path, MadeUpKernel("0-63"), cpu_bind="exclusive")
    assert (report.cpu_status, report.cpus_held) == ("bound", "8-11,40-43")


def test_exclusive_counts_only_allowed_cpus(tmp_path: Path) -> None:
    """4 allowed cores of node 0 for its 4 GPUs."""
    make_machine(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, cores=CORES, gpus=EXCLUSIVE)
    assert bind(tmp_path, MadeUpKernel("12-31"), gpu_ids=(1,), cpu_bind="exclusive").cpus_held == "13"


def test_fewer_cores_than_gpus_falls_back_to_the_node_and_says_so(tmp_path: Path) -> None:
    """Less than what was asked for is partial."""
    make_machine(tmp_path, {0: "0-15,32-47", 1: "16-31,48-63"}, cores=CORES, gpus=EXCLUSIVE)
    report = bind(tmp_path, MadeUpKernel("0-2,16-31"), cpu_bind="exclusive")
    assert (report.cpu_status, report.cpu_bind, report.cpus_held) == ("partial", "node", "0-2")
    assert report.notes == ("exclusive-fallback: 3 allowed cores for 4 GPUs, bound to the node",)


def test_exclusive_splits_by_the_affinity_file(tmp_path: Path) -> None:
    """All GPUs of the file that share the CPUs."""
    make_machine(tmp_path, {0: "0-7"})
    write(tmp_path / "map", "0:0-3\n1:0-3\n2:4-7\n3:4-7")
    reports = [bind(tmp_path, MadeUpKernel("0-7"), gpu_ids=(gpu,), cpu_bind="exclusive") for gpu in range(4)]
    assert [report.cpus_held for report in reports] == ["0-1", "2-3", "4-5", "6-7"]


def test_socket_is_wider_than_the_node(tmp_path: Path) -> None:
    """Two nodes in a socket: CPUs and memory of both."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}, 2, sockets={0: "0-7", 1: "8-15"})
    report = bind(tmp_path, MadeUpKernel("0-15"), cpu_bind="socket", mempolicy="interleave")
    assert (report.cpu_status, report.cpus_held, report.policy_held) == ("bound", "8-15", "interleave:2-3")


def test_unknown_socket_falls_back_to_the_node_and_says_so(tmp_path: Path) -> None:
    """No physical_package_id."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    report = bind(tmp_path, MadeUpKernel("0-7"), cpu_bind="socket")
    assert (report.cpu_status, report.cpu_bind, report.cpus_held) == ("partial", "node", "4-7")


# --- what is allowed ---
@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
def test_the_one_cpu_of_openmp_is_no_limit(tmp_path: Path, name: str) -> None:
    """Its runtime pinned the thread that loaded it: the cpuset counts, and the note names it."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    report = bind(tmp_path, MadeUpKernel("0", cpuset="0-7"), environ={name: "0"})
    assert (report.cpu_status, report.cpus_held) == ("bound", "0-3")
    assert report.notes == (f"the one-CPU mask 0 is {name}'s, the cpuset 0-7 counts",)


def test_a_deliberate_narrow_mask_is_respected(tmp_path: Path) -> None:
    """taskset, or Slurm's --cpu-bind; one CPU without OpenMP's variables is deliberate too."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    assert bind(tmp_path, MadeUpKernel("2-5", cpuset="0-7")).cpus_held == "2-3"
    assert bind(tmp_path, MadeUpKernel("0", cpuset="0-7"), environ={"OMP_PROC_BIND": "false"}).cpus_held == "0"


def test_a_narrow_mask_can_be_disregarded(tmp_path: Path) -> None:
    """respect_inherited=false goes back to the cpuset, not beyond."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    assert bind(tmp_path, MadeUpKernel("2-5", cpuset="1-7"), respect_inherited=False).cpus_held == "1-3"


# --- threads ---
def test_threads_that_start_meanwhile_are_bound_too(tmp_path: Path) -> None:
    """The look at the threads is repeated until no new one appears."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    kernel = MadeUpKernel("0-7", threads=20)
    kernel.late = [2000, 2001, 2002]
    report = bind(tmp_path, kernel)
    assert (report.cpu_status, report.threads_bound, report.threads_before) == ("bound", 23, 19)
    assert set(kernel.masks.values()) == {frozenset({0, 1, 2, 3})}


def test_twice_is_once_and_unbind_restores(tmp_path: Path) -> None:
    """The second binding starts from the first state too, also with another kind; unbind twice is once."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    kernel = MadeUpKernel("0-7", threads=3)
    kernel.masks[1002] = frozenset({5})
    first = bind(tmp_path, kernel)
    assert bind(tmp_path, kernel) == first
    bind(tmp_path, kernel, cpu_bind="exclusive")
    assert bind(tmp_path, kernel) == first
    kernel.masks[3000] = kernel.masks[1000]  # started since
    restored = unbind(kernel=kernel)
    everything = frozenset(range(8))
    assert kernel.masks == {1000: everything, 1001: everything, 1002: frozenset({5}), 3000: everything}
    assert kernel.policy == (0, frozenset())
    assert unbind(kernel=kernel) == restored


def test_drift_of_one_thread_and_of_all(tmp_path: Path) -> None:
    """A library narrows a mask later: verify says whose, and how many."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    kernel = MadeUpKernel("0-7", threads=2)
    report = bind(tmp_path, kernel)
    assert verify(report, kernel=kernel) == report
    kernel.masks[1001] = frozenset({0})
    kernel.policy = (0, frozenset())
    seen = verify(report, kernel=kernel)
    assert (seen.cpu_status, seen.mem_status, seen.threads_bound) == ("partial", "failed: drift", 1)
    assert seen.notes[0] == "drift: 1 of 2 threads hold CPUs 0 instead of 0-3"
    kernel.masks[1000] = frozenset({4})
    assert verify(report, kernel=kernel).cpu_status == "failed: drift"


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two CPUs")
def test_twenty_real_threads_have_the_mask(tmp_path: Path) -> None:
    """In a process of its own, called in a thread: the first thread is bound as well, and restored; read back from /proc."""
    cpus = sorted(os.sched_getaffinity(0))
    write(tmp_path / "map", f"5:{cpus[-1]}")
    code = f"""
import os, pathlib, threading
from rl_cluster.numa.bind import bind_process, unbind
from rl_cluster.schema import NumaSpec
stop = threading.Event()
for _ in range(20):
    threading.Thread(target=stop.wait, daemon=True).start()
def masks():
    tasks = pathlib.Path("/proc/self/task").iterdir()
    lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
    return sorted({{line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")}})
before = masks()
found = []
def work():
    report = bind_process(NumaSpec(affinity_file={str(tmp_path / "map")!r}), gpu_ids=["5"])
    found.extend([report, masks()])
    unbind()
    found.append(masks())
thread = threading.Thread(target=work)
thread.start(); thread.join()
report, during, after = found
print(report.cpu_status, report.threads_bound, report.threads_before, report.cpus_held, during == ["{cpus[-1]}"], after == before)
stop.set()
"""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NRL_", "OMP_", "GOMP_"))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert result.stdout.split() == ["bound", "22", "21", str(cpus[-1]), "True", "True"], result.stderr


# --- memory ---
def test_refused_policy_leaves_cpus_bound(tmp_path: Path) -> None:
    """EPERM of a container is reported as such, never as done."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    report = bind(tmp_path, MadeUpKernel("0-7", refuses="EPERM"))
    assert (report.cpu_status, report.mem_status, report.policy_wanted, report.policy_held) == (
        "bound",
        "failed: EPERM",
        "bind:1",
        "unknown",
    )


def test_policy_that_the_kernel_does_not_hold_is_not_done(tmp_path: Path) -> None:
    """The call succeeds, the read-back says default."""

    class Forgetful(MadeUpKernel):
        def set_mempolicy(self, mode: int, nodes: object) -> None:
            pass

    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    assert bind(tmp_path, Forgetful("0-7")).mem_status == "failed: not-held"


@pytest.mark.parametrize(
    ("nodes", "memory", "mems", "status"),
    [
        pytest.param({0: "0-3", 1: "4-7"}, "0-1", "0", "skipped: node-not-allowed", id="outside Mems_allowed"),
        pytest.param({0: "0-3", 1: "4-7"}, "0-1", "0-1", "bound", id="allowed"),
        pytest.param({0: "0-3", 1: "4-7", 2: ""}, "0,2", "0-2", "skipped: node-without-memory", id="no memory"),
        pytest.param({0: "0-3", 1: "4-7"}, "1", None, "skipped: single-node", id="one node with memory"),
    ],
)
def test_memory_node_must_be_allowed_and_have_memory(
    tmp_path: Path, nodes: Mapping[int, str], memory: str, mems: str | None, status: str
) -> None:
    """Else a named skip."""
    one_gpu(tmp_path, nodes, 1, memory=memory)
    report = bind(tmp_path, MadeUpKernel("0-7", mems=mems))
    assert (report.cpu_status, report.mem_status) == ("bound", status)


@pytest.mark.parametrize(
    ("mempolicy", "one", "two"),
    [("bind", "bind:1", "bind:0-1"), ("preferred", "preferred:1", "preferred-many:0-1"), ("interleave", "interleave:1", "interleave:0-1")],
)
def test_memory_follows_the_cpus_of_the_gpu(tmp_path: Path, mempolicy: str, one: str, two: str) -> None:
    """CPUs on nodes 0 and 1: memory of both, not of the first."""
    make_machine(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"})
    write(tmp_path / "map", "0:4-5\n1:2-5")
    report = bind(tmp_path, MadeUpKernel("0-11"), mempolicy=mempolicy)
    assert (report.policy_held, report.mem_status, report.numa_nodes) == (one, "bound", (1,))
    report = bind(tmp_path, MadeUpKernel("0-11"), gpu_ids=(1,), mempolicy=mempolicy)
    assert (report.policy_held, report.mem_status, report.mem_nodes) == (two, "bound", (0, 1))


def test_kernel_before_5_15_prefers_one_node(tmp_path: Path) -> None:
    """MPOL_PREFERRED_MANY is EINVAL there; the note says which node is left."""
    import errno

    class Old(MadeUpKernel):
        def set_mempolicy(self, mode: int, nodes: Any) -> None:
            if mode == 5:
                raise OSError(errno.EINVAL, "Invalid argument")
            super().set_mempolicy(mode, nodes)

    make_machine(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"})
    write(tmp_path / "map", "0:2-5")
    report = bind(tmp_path, Old("0-11"), mempolicy="preferred")
    assert (report.policy_held, report.mem_status) == ("preferred:0", "bound")
    assert report.notes == ("this kernel prefers one node only: node 0 of 0-1",)


def test_node_72_is_bound(tmp_path: Path) -> None:
    """Beyond one word of the mask."""
    one_gpu(tmp_path, {0: "0-3", 72: "4-7"}, 72)
    assert bind(tmp_path, MadeUpKernel("0-7")).policy_held == "bind:72"


@pytest.mark.parametrize("affinity", [None, "0:4-5"])
def test_kernel_without_numa_is_a_named_skip(tmp_path: Path, affinity: str | None) -> None:
    """No /sys/devices/system/node; an affinity file still binds the CPUs."""
    one_gpu(tmp_path, {})
    if affinity:
        write(tmp_path / "map", affinity)
    report = bind(tmp_path, MadeUpKernel("0-7"))
    assert (report.cpu_status, report.mem_status) == ("bound" if affinity else "skipped: no-numa", "skipped: no-numa")


def test_migrated_pages_are_counted(tmp_path: Path) -> None:
    """What lay elsewhere before and after."""

    class Pages(MadeUpKernel):
        def __init__(self, cpus: str) -> None:
            super().__init__(cpus)
            self.pages = {0: 700, 1: 100, 2: 5}

        def migrate_pages(self, from_nodes: Any, to_nodes: Any) -> int:
            assert (set(from_nodes), set(to_nodes)) == ({0, 2}, {1})
            self.pages = {0: 40, 1: 760, 2: 5}
            return 45

        def pages_by_node(self) -> dict[int, int]:
            return dict(self.pages)

    one_gpu(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"}, 1)
    report = bind(tmp_path, Pages("0-11"), migrate=True)
    assert (report.pages_moved, report.pages_elsewhere) == (660, 45)
    assert bind(tmp_path, Pages("0-11")).pages_moved is None


# --- what is turned off ---
@pytest.mark.parametrize(
    ("keys", "environ", "cpu", "memory"),
    [
        pytest.param({"enabled": False}, {}, "skipped: disabled", "skipped: disabled", id="numa.enabled=false"),
        pytest.param({"membind": False}, {}, "bound", "skipped: disabled", id="numa.membind=false"),
        pytest.param({"cpu_bind": "none"}, {}, "skipped: disabled", "bound", id="numa.cpu_bind=none"),
        pytest.param({}, {"NRL_DISABLE_NUMA_BINDING": "1"}, "skipped: disabled-by-env", "skipped: disabled-by-env", id="env: all"),
        pytest.param({}, {"NRL_DISABLE_NUMA_MEMBIND": "1"}, "bound", "skipped: disabled-by-env", id="env: memory"),
        pytest.param({}, {"NRL_DISABLE_NUMA_BINDING": "0"}, "bound", "bound", id="env: 0 is off"),
    ],
)
def test_each_switch_turns_off_its_part(tmp_path: Path, keys: dict[str, Any], environ: dict[str, str], cpu: str, memory: str) -> None:
    """Config and environment."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    kernel = MadeUpKernel("0-7")
    report = bind(tmp_path, kernel, environ=environ, **keys)
    assert (report.cpu_status, report.mem_status) == (cpu, memory)
    assert (kernel.masks[1000] == frozenset({4, 5, 6, 7})) == (cpu == "bound")
    assert (kernel.policy == (2, frozenset({1}))) == (memory == "bound")


def test_affinity_file_of_the_environment_is_the_default(tmp_path: Path) -> None:
    """NRL_GPU_CPU_AFFINITY_FILE, where the config names none."""
    make_machine(tmp_path, {0: "0-3", 1: "4-7"})
    write(tmp_path / "other", "0:6")
    spec = NumaSpec()
    report = bind_process(
        spec, gpu_ids=[0], root=tmp_path, kernel=MadeUpKernel("0-7"), environ={"NRL_GPU_CPU_AFFINITY_FILE": str(tmp_path / "other")}
    )
    assert (report.source, report.cpus_held) == ("affinity_file", "6")


def test_bad_line_and_untrusted_file_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line is named, the others count; a file that everybody can write is left for the next source."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    write(tmp_path / "map", "rubbish\n0:0-1")
    with caplog.at_level(logging.WARNING):
        assert bind(tmp_path, MadeUpKernel("0-7")).cpus_held == "0-1"
        assert "map line 1" in caplog.text
        (tmp_path / "map").chmod(0o666)
        report = bind(tmp_path, MadeUpKernel("0-7"))
    assert (report.source, report.cpus_held) == ("sysfs", "4-7")
    assert "writable by everybody, not trusted" in caplog.text


def test_system_without_affinity_masks_is_a_named_skip(tmp_path: Path) -> None:
    """macOS: nothing is bound, nothing is raised."""

    class Mac(MadeUpKernel):
        def supports_affinity(self) -> bool:
            return False

    one_gpu(tmp_path, {})
    report = bind(tmp_path, Mac("0-7"))
    assert (report.cpu_status, report.mem_status) == ("skipped: unsupported-machine", "skipped: unsupported-machine")


def test_processor_with_unknown_syscalls_still_gets_its_cpus(tmp_path: Path) -> None:
    """The mask needs no number."""

    class Rare(MadeUpKernel):
        def supports_policy(self) -> bool:
            return False

    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    report = bind(tmp_path, Rare("0-7"))
    assert (report.cpu_status, report.mem_status) == ("bound", "skipped: unsupported-machine")


# --- workers without a GPU ---
def test_worker_without_gpu_is_left_alone_by_default(tmp_path: Path) -> None:
    """skipped: no-gpu."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"})
    report = bind(tmp_path, MadeUpKernel("0-7"), gpu_ids=())
    assert (report.cpu_status, report.mem_status) == ("skipped: no-gpu", "skipped: no-gpu")


def test_spread_gives_worker_i_node_i_mod_n(tmp_path: Path) -> None:
    """Over the nodes with allowed CPUs, whatever their ids."""
    make_machine(tmp_path, {0: "0-3", 8: "4-7", 252: ""}, memory="0,8,252")
    reports = [bind(tmp_path, MadeUpKernel("0-7"), gpu_ids=(), cpu_workers="spread", index=i) for i in range(3)]
    assert [(report.cpu_status, report.cpus_held, report.policy_held) for report in reports] == [
        ("bound", "0-3", "bind:0"),
        ("bound", "4-7", "bind:8"),
        ("bound", "0-3", "bind:0"),
    ]


# --- the record ---
def test_strict_error_names_rank_node_and_reason(tmp_path: Path) -> None:
    """One line, with the cure; it survives pickling."""
    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    report = bind(tmp_path, MadeUpKernel("0-7", refuses="EPERM"))
    with pytest.raises(BindingError) as caught:
        raise_if_not_bound(report, rank=3, node="10.0.0.7")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error).startswith("rank 3 on 10.0.0.7: numa.strict needs a verified binding, got memory failed: EPERM")
    assert str(error).endswith("Fix: numa.membind=false or numa.strict=false")
    assert (error.rank, error.node, error.reason) == (3, "10.0.0.7", "memory failed: EPERM")


@pytest.mark.parametrize(
    ("cpu", "memory", "short"),
    [
        ("bound", "bound", None),
        ("bound", "skipped: disabled", None),
        ("skipped: disabled", "skipped: disabled", None),
        ("partial", "bound", "cpu partial"),
        ("bound", "skipped: single-node", "memory skipped: single-node"),
        ("skipped: disabled-by-env", "bound", "cpu skipped: disabled-by-env"),
        ("skipped: no-gpu", "skipped: no-gpu", "cpu skipped: no-gpu"),
    ],
)
def test_only_what_the_config_turned_off_is_not_short(cpu: str, memory: str, short: str | None) -> None:
    """The environment's switch and a machine with nothing to choose are short of a verified binding."""
    report = BindingReport(cpu_status=cpu, mem_status=memory)
    assert report.shortcoming == short
    assert report.bound == (short is None)


def test_every_reason_is_explained() -> None:
    """The list of reasons is fixed, and each has a sentence."""
    assert sorted(REASONS) == sorted(
        [
            "cpus-not-bound",
            "disabled",
            "disabled-by-env",
            "drift",
            "no-allowed-local-cpu",
            "no-gpu",
            "no-numa",
            "node-not-allowed",
            "node-without-cpus",
            "node-without-memory",
            "not-held",
            "other-thread",
            "ray-task",
            "single-node",
            "unbound",
            "unknown-gpu",
            "unknown-node",
            "unresolved-uuid",
            "unsupported-machine",
        ]
    )
    assert all(REASONS.values())


def test_the_page_on_numa_has_every_reason_with_its_cure() -> None:
    """A row of its table each."""
    page = (Path(__file__).resolve().parents[2] / "docs/numa.md").read_text()
    assert [reason for reason in REASONS if f"| `{reason}` |" not in page] == []


def test_record_is_plain_for_json(tmp_path: Path) -> None:
    """Every field survives json.dumps."""
    import json

    one_gpu(tmp_path, {0: "0-3", 1: "4-7"}, 1)
    report = bind(tmp_path, MadeUpKernel("0-7"))
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["gpu"] == {"index": 0, "bus_id": GPU, "uuid": f"GPU-{GPU}"}
    assert plain["cpus_held"] == "4-7"


def test_importing_the_binding_imports_nothing_heavy() -> None:
    """A worker binds in its first breath: no ray, NVML, subprocess, ctypes, logging, Hydra."""
    heavy = {"ray", "pynvml", "subprocess", "ctypes", "logging", "hydra", "omegaconf"}
    code = f"import sys, attrs; had = set(sys.modules); import rl_cluster.numa.bind; print(*sorted({heavy!r} & (set(sys.modules) - had)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.returncode) == ("", 0), result.stderr
