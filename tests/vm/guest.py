"""Runs inside the guest: binds real processes on real NUMA nodes and prints what the kernel then shows, one JSON line a check.

Called as ``guest.py SCENARIO PATH...``; the paths go to the front of sys.path. Every check runs in a child of its own.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = sys.argv[2:]

from rl_cluster.numa.bind import bind_process, unbind, verify  # noqa: E402
from rl_cluster.numa.cpulist import format_cpulist  # noqa: E402
from rl_cluster.numa.kernel import LinuxKernel  # noqa: E402
from rl_cluster.numa.system import snapshot_system  # noqa: E402
from rl_cluster.schema import NumaSpec  # noqa: E402

ROOT = Path("/run/root")
CHECKS: dict[str, list[Callable[[], Any]]] = {"two": [], "four": [], "odd": []}


def check(*scenarios: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        for scenario in scenarios:
            CHECKS[scenario].append(function)
        return function

    return add


def display_devices() -> list[str]:
    """PCI addresses of the emulated displays, which stand for GPUs."""
    base = Path("/sys/bus/pci/devices")
    return sorted(path.name for path in base.iterdir() if (path / "class").read_text().startswith("0x03"))


def make_root() -> None:
    """The guest's own sysfs, beside a list of GPUs as the NVIDIA driver would show it in /proc."""
    for index, bus_id in enumerate(display_devices()):
        folder = ROOT / "proc/driver/nvidia/gpus" / bus_id
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t Made-up\nGPU UUID: \t GPU-{index:08d}\nBus Location: \t {bus_id}\n")
    (ROOT / "sys").symlink_to("/sys")


def bind(gpu: int | None, **keys: Any) -> Any:
    spec = NumaSpec(**{"affinity_file": "/run/no-such-file", **keys})
    return bind_process(spec, gpu_ids=() if gpu is None else (str(gpu),), root=ROOT, environ={}, cpu_worker_index=keys.get("index"))


def node_of(gpu: int) -> int:
    return int(Path("/sys/bus/pci/devices", display_devices()[gpu], "numa_node").read_text())


def gpu_on(node: int) -> int:
    return next(gpu for gpu in range(len(display_devices())) if node_of(gpu) == node)


def start_threads(count: int) -> tuple[list[int], threading.Event]:
    stop, ready, tids = threading.Event(), threading.Barrier(count + 1), []

    def wait() -> None:
        tids.append(threading.get_native_id())
        ready.wait()
        stop.wait()

    for _ in range(count):
        threading.Thread(target=wait, daemon=True).start()
    ready.wait()
    return tids, stop


def masks_of_all_threads() -> list[str]:
    """Every thread's mask as /proc shows it, not as the library says."""
    masks = []
    for tid in os.listdir("/proc/self/task"):
        try:
            lines = Path(f"/proc/self/task/{tid}/status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        masks.append(next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")))
    return sorted(set(masks))


def pages_of_new_mapping(megabytes: int = 50) -> dict[str, int]:
    """Touches new memory and counts its pages by node in /proc/self/numa_maps."""
    size = megabytes << 20
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size, 4096):
        area[offset] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    pages: dict[str, int] = {}
    starts = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            low, high = (int(word, 16) for word in line.split()[0].split("-"))
            if low < address + size and high > address:
                starts.append(f"{low:x}")
    with open("/proc/self/numa_maps") as lines:
        for line in lines:
            words = line.split()
            if words[0] in starts:
                for word in words[1:]:
                    if word[0] == "N" and word[1].isdigit():
                        pages[word[1:].split("=")[0]] = pages.get(word[1:].split("=")[0], 0) + int(word.split("=")[1])
    return pages


def summary(report: Any) -> dict[str, Any]:
    keys = ("cpu_status", "mem_status", "source", "numa_nodes", "cpus_wanted", "cpus_held", "policy_wanted", "policy_held", "notes")
    keys += ("threads_bound", "threads_before", "cpu_bind", "mem_nodes", "pages_moved", "pages_elsewhere")
    return {key: getattr(report, key) for key in keys}


@check("two", "four", "odd")
def machine() -> Any:
    system = snapshot_system(distances=True)
    nodes = {node.id: [format_cpulist(node.cpus), node.has_memory] for node in system.nodes}
    return {"nodes": nodes, "gpus": [node_of(gpu) for gpu in range(len(display_devices()))]}


# --- two nodes ---
@check("two")
def bound_with_twenty_threads() -> Any:
    tids, _ = start_threads(20)
    report = bind(gpu_on(1))
    again = bind(gpu_on(1))
    late: list[str] = []
    thread = threading.Thread(target=lambda: late.append(LinuxKernel().thread_policy(threading.get_native_id()) or "?"))
    thread.start()
    thread.join()
    return {
        **summary(report),
        "masks": masks_of_all_threads(),
        "pages": pages_of_new_mapping(),
        "verify": verify(report).cpu_status + "/" + verify(report).mem_status,
        "again": again == report,
        "policy_of_a_thread_before": LinuxKernel().thread_policy(tids[0]),
        "policy_of_a_thread_after": late[0],
        "policy_of_main_by_proc": LinuxKernel().thread_policy(os.getpid()),
    }


@check("two")
def unbind_restores() -> Any:
    os.sched_setaffinity(0, {0, 1, 2})
    tids, _ = start_threads(3)
    os.sched_setaffinity(tids[0], {0})
    before = [format_cpulist(os.sched_getaffinity(tid)) for tid in (0, *tids)]
    bind(gpu_on(1))
    bind(gpu_on(1), cpu_bind="exclusive")
    first, second = unbind(), unbind()
    after = [format_cpulist(os.sched_getaffinity(tid)) for tid in (0, *tids)]
    policy = LinuxKernel().get_mempolicy()
    return {"before": before, "after": after, "policy": [policy[0], sorted(policy[1])], "twice": first == second, **summary(second)}


@check("two")
def drift_is_seen() -> Any:
    report = bind(gpu_on(1))
    os.sched_setaffinity(0, {0})
    LinuxKernel().set_mempolicy(0, ())
    return summary(verify(report))


@check("two")
def seen_from_another_thread() -> Any:
    report = bind(gpu_on(1))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(verify(report)))
    thread.start()
    thread.join()
    return summary(found[0])


@check("two")
def preferred() -> Any:
    return {**summary(bind(gpu_on(1), mempolicy="preferred")), "pages": pages_of_new_mapping(20)}


@check("two")
def memory_off() -> Any:
    return summary(bind(gpu_on(1), membind=False))


@check("two")
def memory_only() -> Any:
    return {**summary(bind(gpu_on(1), cpu_bind="none")), "pages": pages_of_new_mapping(20)}


@check("two")
def pages_move() -> Any:
    kernel = LinuxKernel()
    kernel.set_mempolicy(2, {0})
    area = bytearray(20 << 20)
    area[::4096] = b"x" * len(area[::4096])
    kernel.set_mempolicy(0, ())
    return {**summary(bind(gpu_on(1), migrate=True)), "after": kernel.pages_by_node()}


@check("two")
def refused_by_seccomp() -> Any:
    """A filter as a container's: set_mempolicy, get_mempolicy, mbind, migrate_pages answer EPERM."""
    blocked = (237, 238, 239, 256)
    program = [(0x20, 0, 0, 0)]  # load the syscall's number
    program += [(0x15, len(blocked) - index, 0, number) for index, number in enumerate(blocked)]
    program += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header):
        raise OSError(ctypes.get_errno(), "prctl")
    return {**summary(bind(gpu_on(1), migrate=True)), "masks": masks_of_all_threads()}


@check("two")
def inside_a_cpuset() -> Any:
    """A cgroup that allows node 0 only, as a container's."""
    group = Path("/run/cgroup")
    group.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", str(group).encode(), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    (group / "cgroup.subtree_control").write_text("+cpuset")
    (group / "box").mkdir()
    (group / "box/cpuset.cpus").write_text("0-1")
    (group / "box/cpuset.mems").write_text("0")
    (group / "box/cgroup.procs").write_text(str(os.getpid()))
    far = summary(bind(gpu_on(1)))
    memory_only = summary(bind(gpu_on(1), cpu_bind="none"))
    os.sched_setaffinity(0, {0})
    os.environ["OMP_PROC_BIND"] = "true"
    spec = NumaSpec(affinity_file="/run/no-such-file")
    pinned = summary(bind_process(spec, gpu_ids=(gpu_on(0),), root=ROOT))
    return {"far": far, "memory_only": memory_only, "pinned": pinned}


@check("two")
def inherited_by_children() -> Any:
    report = bind(gpu_on(1))

    def child() -> Any:
        seen = verify(report)
        found = {"masks": masks_of_all_threads(), "pages": pages_of_new_mapping(10), "verify": [seen.cpu_status, seen.mem_status]}
        return {**found, "unbound": [unbind().cpus_held, LinuxKernel().get_mempolicy()[0]]}

    return in_child(child)


@check("two")
def by_uuid_and_several() -> Any:
    spec = NumaSpec(affinity_file="/run/no-such-file")
    one = bind_process(spec, gpu_ids=[f"GPU-{gpu_on(1):08d}"], root=ROOT, environ={})
    both = bind_process(spec, gpu_ids=[gpu_on(0), gpu_on(1)], root=ROOT, environ={})
    return {"one": summary(one), "both": summary(both)}


@check("two")
def workers_without_gpu() -> Any:
    spec = NumaSpec(cpu_workers="spread")
    found = [in_child(lambda i=i: summary(bind_process(spec, root=ROOT, environ={}, cpu_worker_index=i))) for i in range(3)]
    return [[each["cpu_status"], each["cpus_held"], each["mem_status"], each["policy_held"]] for each in found]


@check("two")
def named_by_the_file() -> Any:
    Path("/run/map").write_text("0:0-1\n1:2,3,99\n")
    return {**summary(bind(1, affinity_file="/run/map")), "pages": pages_of_new_mapping(10)}


# --- four nodes with hyperthreads ---
@check("four")
def exclusive_shares() -> Any:
    reports = [in_child(lambda gpu=gpu: summary(bind(gpu, cpu_bind="exclusive"))) for gpu in range(len(display_devices()))]
    return [[each["cpu_status"], each["cpu_bind"], each["cpus_held"], each["numa_nodes"]] for each in reports]


@check("four")
def socket() -> Any:
    return {**summary(bind(gpu_on(3), cpu_bind="socket", mempolicy="interleave")), "pages": pages_of_new_mapping(20)}


@check("four")
def each_on_its_node() -> Any:
    found = [in_child(lambda gpu=gpu: {**summary(bind(gpu)), "pages": pages_of_new_mapping(10)}) for gpu in range(len(display_devices()))]
    return [[node_of(gpu), each["cpus_held"], each["pages"], each["mem_status"]] for gpu, each in enumerate(found)]


# --- a node without CPUs, a node without memory ---
@check("odd")
def on_every_kind_of_node() -> Any:
    return {str(gpu): {"node": node_of(gpu), **in_child(lambda gpu=gpu: summary(bind(gpu)))} for gpu in range(len(display_devices()))}


@check("odd")
def the_kernel_refuses_a_node_without_memory() -> Any:
    without = next(node.id for node in snapshot_system().nodes if not node.has_memory)
    try:
        LinuxKernel().set_mempolicy(2, {without})
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "accepted"


def in_child(function: Callable[[], Any]) -> Any:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            result = function()
        except BaseException:
            result = {"traceback": traceback.format_exc()}
        with os.fdopen(write, "w") as file:
            json.dump(result, file, default=str)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text)


if __name__ == "__main__":
    make_root()
    for each in CHECKS[sys.argv[1]]:
        print("CHECK " + json.dumps([each.__name__, in_child(each)]), flush=True)
