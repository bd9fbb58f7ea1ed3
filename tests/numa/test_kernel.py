"""Node masks and the real kernel of this machine."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from rl_cluster.numa.kernel import LinuxKernel, format_policy, nodemask, nodes_of_mask


@pytest.mark.parametrize(
    ("nodes", "words"),
    [({0}, [1]), ({0, 1}, [3]), ({63}, [1 << 63]), ({72}, [0, 1 << 8]), ({8, 252}, [1 << 8, 0, 0, 1 << 60]), (set(), [0])],
)
def test_node_mask_has_as_many_words_as_the_highest_node_needs(nodes: set[int], words: list[int]) -> None:
    """64 nodes a word; reading the mask gives the nodes back."""
    assert nodemask(nodes) == words
    assert nodes_of_mask(words) == nodes


@pytest.mark.parametrize(
    ("mode", "nodes", "text"),
    [(0, (), "default"), (2, (0,), "bind:0"), (3, (0, 1), "interleave:0-1"), (5, (0, 8), "preferred-many:0,8"), (99, (), "mode99")],
)
def test_policy_reads_like_numactl(mode: int, nodes: tuple[int, ...], text: str) -> None:
    """Mode, then the nodes."""
    assert format_policy(mode, nodes) == text


@pytest.mark.skipif(sys.platform != "linux", reason="asks the running Linux kernel")
def test_running_kernel_lists_every_thread() -> None:
    """A started thread is among them, and the caller's is the process's first."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        kernel = LinuxKernel()
        assert {os.getpid(), thread.native_id} <= kernel.threads()
        assert kernel.main_thread() == kernel.this_thread() == os.getpid()
    finally:
        stop.set()
        thread.join()
