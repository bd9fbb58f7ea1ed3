"""Reads ``nvidia-smi topo -m``: the NUMA node of each GPU, whatever the driver's age made of the table."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from rl_cluster.numa.cpulist import parse_cpulist

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ROW = re.compile(r"\s*GPU(\d+)\b")
_COLUMN = "NUMA Affinity"


def parse_topo(text: str, *, cpu_nodes: Collection[int] | None = None) -> Mapping[int, int | None]:
    """The NUMA node of each GPU row.

    Only the column ``NUMA Affinity`` is read. ``CPU Affinity`` is cut after a few CPUs by old drivers, and ``GPU NUMA ID`` is
    the GPU's own memory (GH200, GB200), where no host memory belongs.

    Args:
        text: The command's output; tabs or blanks, with or without escape sequences.
        cpu_nodes: The machine's nodes with CPUs, which tell the host's node among several (``0,2-17``).

    Returns:
        GPU index -> node, or None where the table does not say or says several.
    """
    lines = _ESCAPES.sub("", text).splitlines()
    header = next((line for line in lines if "CPU Affinity" in line and _ROW.match(line)), None)
    nodes: dict[int, int | None] = {}
    for line in lines:
        match = _ROW.match(line)
        if match is None or line is header:
            continue
        cell = None if header is None or _COLUMN not in header else _cell(header, line)
        nodes[int(match[1])] = None if cell is None else _host_node(cell, cpu_nodes)
    return nodes


def _cell(header: str, line: str) -> str | None:
    if "\t" in line and "\t" in header:
        names = [name.strip() for name in header.split("\t")]
        if names[0]:  # the first column, of the row names, has no tab before "GPU0" in some pastes
            names.insert(0, "")
        cells = line.split("\t")
        column = names.index(_COLUMN)
        return cells[column].strip() if column < len(cells) else None
    # Expanded tabs: the columns of the rows lie elsewhere than the header's, so words are counted. A blank cell: no telling which.
    words = line.split()
    devices = 1 + len(header[: header.index("CPU Affinity")].split())
    columns = 3 if "GPU NUMA ID" in header else 2
    return words[devices + 1] if len(words) == devices + columns else None


def _host_node(cell: str, cpu_nodes: Collection[int] | None) -> int | None:
    try:
        listed = parse_cpulist(cell)
    except ValueError:  # "N/A"
        return None
    if len(listed) == 1:
        return min(listed)
    if cpu_nodes is not None:
        hosts = listed & frozenset(cpu_nodes)
        return min(hosts) if len(hosts) == 1 else None
    # GB200: the local CPU node comes first, on its own, then the GPUs' memory nodes. "0-1" alone names two hosts' nodes.
    first = cell.split(",")[0].strip()
    return int(first) if first.isdigit() else None
