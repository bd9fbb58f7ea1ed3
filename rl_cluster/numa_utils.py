"""NeMo-RL's ``nemo_rl.distributed.numa_utils``, name by name, over `rl_cluster.numa`.

Two differences, both on purpose: True means that the kernel holds the binding, and the other sources are asked where the
affinity file does not know the GPU.
"""

from __future__ import annotations

import ctypes
import logging
import os

from rl_cluster.numa import bind
from rl_cluster.numa.affinity_file import DEFAULT_PATH, ENV_NAME
from rl_cluster.numa.choose import CpuChoice, choose_memory
from rl_cluster.numa.cpulist import parse_cpulist
from rl_cluster.numa.gpus import Unidentified
from rl_cluster.numa.kernel import LinuxKernel
from rl_cluster.numa.machine import Machine
from rl_cluster.numa.memory import bind_memory
from rl_cluster.numa.report import BindingReport
from rl_cluster.schema import NumaSpec

logger = logging.getLogger(__name__)

GPU_CPU_AFFINITY_PATH = os.environ.get(ENV_NAME, DEFAULT_PATH)
"""The affinity file; read at each call, so a test may replace it."""


def bind_to_gpu_numa(gpu_id: int) -> bool:
    """Bind this process to the CPUs and memory near a GPU.

    ``NRL_DISABLE_NUMA_BINDING=1`` turns it off, ``NRL_DISABLE_NUMA_MEMBIND=1`` the memory alone.

    Args:
        gpu_id: Physical index, as ``nvidia-smi`` numbers them; in a Ray actor ``int(ray.get_gpu_ids()[0])``.

    Returns:
        True where the kernel holds the CPUs for every thread; memory is tried beside it and logged.
    """
    report = bind.bind_process(NumaSpec(affinity_file=GPU_CPU_AFFINITY_PATH), gpu_ids=(gpu_id,))
    logger.info(
        "GPU %s: CPUs %s %s (%s), memory %s %s",
        gpu_id,
        report.cpu_status,
        report.cpus_held,
        report.source,
        report.mem_status,
        report.policy_held,
    )
    return report.cpu_status == "bound"


def resolve_visible_gpu_id(local_index: int) -> int | None:
    """The physical index of the GPU that CUDA calls ``local_index`` in this process, by ``CUDA_VISIBLE_DEVICES``.

    Args:
        local_index: Such as ``torch.cuda.current_device()``.

    Returns:
        The index; a GPU or MIG UUID is looked up on the machine. None where the variable is unset, too short, or names no GPU.
    """
    entries = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if not 0 <= local_index < len(entries) or "-1" in entries[: local_index + 1]:  # CUDA stops at the first invalid entry
        return None
    entry = entries[local_index]
    if entry.isdecimal():
        return int(entry)
    machine = Machine()
    try:
        gpu = machine.identify(entry) if entry else None
    finally:
        machine.close()
    return None if gpu is None or isinstance(gpu, Unidentified) else gpu.index


def _load_libnuma() -> ctypes.CDLL | None:
    """libnuma, or None where it is not installed. Nothing here needs it: the policy is set by the syscall."""
    try:
        return ctypes.CDLL("libnuma.so.1")
    except OSError:
        return None


def _get_numa_node(libnuma: ctypes.CDLL | None, cpus: set[int]) -> int:
    """The NUMA node of the lowest of the CPUs: libnuma's answer, or sysfs' without it; -1 where there is none."""
    if not cpus:
        return -1
    if libnuma is None:
        return min(Machine().system.nodes_of({min(cpus)}), default=-1)
    libnuma.numa_node_of_cpu.restype = ctypes.c_int
    return int(libnuma.numa_node_of_cpu(min(cpus)))


def _set_numa_membind(cpus: set[int]) -> bool:
    """Bind the calling thread's memory to the nodes of the CPUs. True where the kernel holds that policy."""
    if os.environ.get(bind.DISABLE_MEMBIND) == "1":
        return False
    machine, kernel = Machine(), LinuxKernel()
    choice = choose_memory(CpuChoice(nodes=machine.system.nodes_of(cpus)), machine, kernel)
    report = BindingReport(cpu_status="", mem_status="")
    report = bind_memory(report, choice, NumaSpec().mempolicy, kernel=kernel)
    logger.info("memory %s %s", report.mem_status, report.policy_held)
    return report.mem_status == "bound"


def _parse_cpulist(text: str) -> set[int]:
    """The CPUs of a kernel cpulist. Raises ValueError where it is none."""
    return set(parse_cpulist(text))
