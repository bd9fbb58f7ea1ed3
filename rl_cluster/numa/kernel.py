"""The kernel's calls for affinity masks and memory policies, raw, so that a refusal is seen.

libnuma is not used: ``numa_set_membind`` returns void and hides an EPERM. The numbers are those of the kernel's syscall tables
(arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h, arch/powerpc/.../syscall.tbl, arch/s390/.../syscall.tbl).
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define

from rl_cluster.numa.cpulist import format_cpulist, parse_cpulist
from rl_cluster.numa.system import read_text

MODES = ("default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted-interleave")
"""Names of the kernel's MPOL_* modes, by number (include/uapi/linux/mempolicy.h)."""

_WORD = 64
_MODE_FLAGS = 1 << 15 | 1 << 14 | 1 << 13  # MPOL_F_STATIC_NODES, _RELATIVE_NODES, _NUMA_BALANCING
_READ_WORDS = 16  # get_mempolicy answers EINVAL to a mask shorter than the kernel's; none has more than 1024 nodes (NODES_SHIFT 10)
_GENERIC = {"get_mempolicy": 236, "set_mempolicy": 237, "migrate_pages": 238}
_SYSCALLS = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "migrate_pages": 256},
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "loongarch64": _GENERIC,
    "ppc64le": {"migrate_pages": 258, "get_mempolicy": 260, "set_mempolicy": 261},
    "s390x": {"get_mempolicy": 269, "set_mempolicy": 270, "migrate_pages": 287},
}


def nodemask(nodes: Iterable[int]) -> list[int]:
    """The words of the kernel's node mask, 64 nodes each, as short as possible: node 72 needs two."""
    nodes = set(nodes)
    words = [0] * (max(nodes, default=0) // _WORD + 1)
    for node in nodes:
        words[node // _WORD] |= 1 << node % _WORD
    return words


def nodes_of_mask(words: Sequence[int]) -> frozenset[int]:
    """The nodes of a mask; the inverse of `nodemask`."""
    return frozenset(i * _WORD + bit for i, word in enumerate(words) if word for bit in range(_WORD) if word >> bit & 1)


def format_policy(mode: int, nodes: Iterable[int]) -> str:
    """A policy for a person: ``default``, ``bind:0``, ``interleave:0-1``."""
    name = MODES[mode] if mode < len(MODES) else f"mode{mode}"
    listed = format_cpulist(nodes)
    return f"{name}:{listed}" if listed else name


def errno_name(error: OSError) -> str:
    """The kernel's name of an error, such as ``EPERM``."""
    return errno.errorcode.get(error.errno or 0, "EUNKNOWN")


@define
class SavedState:
    """What the process had before the first binding: where later bindings start from, and what is restored."""

    masks: dict[int, frozenset[int]]  # by thread id
    main: frozenset[int]  # of the process's first thread
    policy: tuple[int, frozenset[int]] | None = None  # of the thread that was bound
    policy_tid: int | None = None


class LinuxKernel:
    """The running kernel, for the calling process. A made-up one with the same methods stands in for it in tests."""

    def __init__(self) -> None:
        self.saved: SavedState | None = None
        self._libc: Any = None
        self._numbers: dict[str, int] = {}

    # --- threads and masks ---
    def main_thread(self) -> int:
        """Thread id of the process's first thread, which is its pid."""
        return os.getpid()

    def this_thread(self) -> int:
        """Thread id of the caller."""
        import threading

        return threading.get_native_id()

    def threads(self) -> frozenset[int]:
        """Thread ids of this process, now."""
        try:
            return frozenset(map(int, os.listdir("/proc/self/task")))
        except OSError:  # /proc is not mounted: the caller is the one thread that is known
            return frozenset({0})

    def supports_affinity(self) -> bool:
        """Has this system affinity masks? (macOS has none.)"""
        return hasattr(os, "sched_setaffinity")

    def get_affinity(self, tid: int) -> frozenset[int]:
        """CPUs that a thread may run on. Raises OSError (ESRCH: it has ended)."""
        return frozenset(os.sched_getaffinity(tid))

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        """Ask for the CPUs of a thread. Raises OSError (EINVAL: none of them may be used, EPERM, ESRCH)."""
        os.sched_setaffinity(tid, cpus)

    # --- memory ---
    def mems_allowed(self) -> frozenset[int] | None:
        """NUMA nodes that the calling thread may take memory from (its cpuset), or None where /proc does not say."""
        _, found, rest = (read_text("/proc/thread-self/status") or "").partition("Mems_allowed_list:")
        return parse_cpulist(rest.partition("\n")[0]) if found else None

    def supports_policy(self) -> bool:
        """Are the syscall numbers of this machine known?"""
        return bool(self._syscalls())

    def set_mempolicy(self, mode: int, nodes: Iterable[int]) -> None:
        """Set the memory policy of the calling thread. Raises OSError (EPERM: seccomp; EINVAL: a node without memory)."""
        import ctypes

        nodes = set(nodes)
        if not nodes:
            self._call("set_mempolicy", ctypes.c_int(mode), None, ctypes.c_ulong(0))
            return
        words = nodemask(nodes)
        mask = (ctypes.c_ulong * len(words))(*words)
        # the kernel takes one bit less than maxnode says (get_nodes() in mm/mempolicy.c)
        self._call("set_mempolicy", ctypes.c_int(mode), mask, ctypes.c_ulong(len(words) * _WORD + 1))

    def get_mempolicy(self) -> tuple[int, frozenset[int]]:
        """Mode (an index of `MODES`) and nodes of the calling thread's memory policy. Raises OSError."""
        import ctypes

        mode = ctypes.c_int(-1)
        mask = (ctypes.c_ulong * _READ_WORDS)()
        self._call("get_mempolicy", ctypes.byref(mode), mask, ctypes.c_ulong(_READ_WORDS * _WORD + 1), None, ctypes.c_ulong(0))
        return mode.value & ~_MODE_FLAGS, nodes_of_mask(list(mask))

    def thread_policy(self, tid: int) -> str | None:
        """Policy of any thread, as text (``bind:0``), or None where /proc does not tell.

        The first line of ``/proc/self/task/<tid>/numa_maps`` shows the thread's policy for a mapping without one of its own.
        """
        try:
            with open(f"/proc/self/task/{tid}/numa_maps") as file:
                line = file.readline()
        except OSError:
            return None
        words = line.replace("prefer (many)", "preferred-many").split()
        if len(words) < 2:
            return None
        mode, _, nodes = words[1].partition(":")
        mode = mode.partition("=")[0]  # flags: bind=static:0
        return f"{'preferred' if mode == 'prefer' else mode}{':' + nodes if nodes else ''}"

    def migrate_pages(self, from_nodes: Iterable[int], to_nodes: Iterable[int]) -> int:
        """Move this process's pages between nodes. Returns the number of pages that could not be moved. Raises OSError."""
        import ctypes

        old, new = nodemask(from_nodes), nodemask(to_nodes)
        size = max(len(old), len(new))
        array = ctypes.c_ulong * size
        maxnode = ctypes.c_ulong(size * _WORD + 1)
        return self._call("migrate_pages", ctypes.c_int(0), maxnode, array(*old), array(*new))

    def pages_by_node(self) -> dict[int, int]:
        """Pages of this process on each node, a huge page counted once, from /proc/self/numa_maps; empty where that is missing."""
        counts: dict[int, int] = {}
        try:
            with open("/proc/self/numa_maps") as file:
                for line in file:
                    for word in line.split():
                        name, _, value = word.partition("=")
                        if name[:1] == "N" and name[1:].isdigit() and value.isdigit():
                            counts[int(name[1:])] = counts.get(int(name[1:]), 0) + int(value)
        except OSError:
            return {}
        return counts

    # --- the call ---
    def _syscalls(self) -> dict[str, int]:
        if not self._numbers and sys.platform == "linux" and sys.maxsize > 2**32:  # a 32-bit process has other numbers
            self._numbers = _SYSCALLS.get(os.uname().machine, {})
        return self._numbers

    def _call(self, name: str, *arguments: Any) -> int:
        import ctypes

        if name not in self._syscalls():
            raise OSError(errno.ENOSYS, f"no syscall number of {name} for this machine")
        if self._libc is None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._libc.syscall.restype = ctypes.c_long
        result = int(self._libc.syscall(ctypes.c_long(self._syscalls()[name]), *arguments))
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result
