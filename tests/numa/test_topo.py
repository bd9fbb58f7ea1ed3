"""Reading ``nvidia-smi topo -m``."""

from __future__ import annotations

import pytest

from rl_cluster.numa.topo import parse_topo

TABS_WITH_EMPTY_CELL = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPXB\t0-63,128-191\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t64-127,192-255\t1\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)

NIC Legend:

  NIC0: mlx5_10
"""
BLANKS = """\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      SYS     SYS     8-15,24-31      1               N/A
GPU1    SYS      X      PHB     0-7,16-23       0               N/A
GPU2    SYS     PHB      X      0-7,16-23       0               N/A
"""
GPU_MEMORY_NODES = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    SYS     0-71    0,3-9,11-17             2
GPU1    NV18     X      SYS     72-143  1,19-25,27-33           18
NIC0    SYS     SYS      X
"""
NO_GPU_NUMA_ID = """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    0-71    0,2-17          N/A
GPU1    NV18     X      72-143  1,18-33         N/A
"""
OLD_DRIVER_TABS = """\
     GPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNODE\tSYS\tNODE\t0,2,4,6,8,10\t0
GPU1\tNODE\t X \tSYS\tNODE\t0,2,4,6,8,10\t0
GPU2\tSYS\tSYS\t X \tSYS\t1,3,5,7,9,11\t8
mlx5_0\tNODE\tNODE\tSYS\t X \t\t
"""
OLD_DRIVER_BLANKS = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV8     NODE    0-47,96-143     0
GPU1    NV8      X      SYS     48-95,144-191   1
"""
OLDEST = """\
        GPU0    GPU1    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     0-9,20-29
GPU1    PIX      X      PHB     10-19,30-39
"""
BLANK_CELLS = """\
        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X                                      N/A
"""
NOT_AVAILABLE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t\tN/A\t\tN/A\n"
ONE_IN_A_VM = """\
        GPU0    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     0-251   0               N/A
NIC0    PHB      X
"""
TWO_NODES_AT_ONCE = """\
        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      0-63            0-1             N/A
"""
LONG_CPU_LIST = """\
        GPU0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      0-3,8-11,16-19,24-27,32-35,40-43,48-51 1 N/A
"""


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        pytest.param(TABS_WITH_EMPTY_CELL, {0: 0, 1: 1}, id="tabs, escapes, an empty cell more in the rows"),
        pytest.param(BLANKS, {0: 1, 1: 0, 2: 0}, id="blanks, GPU 0 on node 1"),
        pytest.param(GPU_MEMORY_NODES, {0: 0, 1: 1}, id="GPU NUMA ID is the GPU's own memory"),
        pytest.param(NO_GPU_NUMA_ID, {0: 0, 1: 1}, id="a list: the CPU node, then the GPUs'"),
        pytest.param(OLD_DRIVER_TABS, {0: 0, 1: 0, 2: 8}, id="no GPU NUMA ID, cut CPU lists, node 8"),
        pytest.param(OLD_DRIVER_BLANKS, {0: 0, 1: 1}, id="no GPU NUMA ID, blanks"),
        pytest.param(OLDEST, {0: None, 1: None}, id="no NUMA column"),
        pytest.param(BLANK_CELLS, {0: None}, id="blank cells"),
        pytest.param(NOT_AVAILABLE, {0: None}, id="N/A"),
        pytest.param(ONE_IN_A_VM, {0: 0}, id="one GPU in a virtual machine"),
        pytest.param(TWO_NODES_AT_ONCE, {0: None}, id="0-1 is ambiguous"),
        pytest.param(LONG_CPU_LIST, {0: 1}, id="a long CPU list pushes the rest to the right"),
        pytest.param("", {}, id="nothing"),
        pytest.param("No devices were found\n", {}, id="no devices"),
    ],
)
def test_numa_node_is_read_from_its_own_column(text: str, nodes: dict[int, int | None]) -> None:
    """Whatever the driver's age made of the table: the node of each GPU, or None where it does not say."""
    assert parse_topo(text) == nodes


def test_nodes_with_cpus_decide_among_several() -> None:
    """Where the machine's nodes with CPUs are known, only they count; two of them are no answer."""
    text = BLANK_CELLS.replace(" X                                      N/A", " X      0-71            2-17,33         N/A")
    assert parse_topo(text, cpu_nodes={33, 34}) == {0: 33}
    assert parse_topo(text, cpu_nodes={2, 33}) == {0: None}
