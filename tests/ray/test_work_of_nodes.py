"""What is said while nodes work: by the nodes of a real Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_cluster.connection import session
from rl_cluster.process import node_work
from rl_cluster.process.node_work import NodeWork, on_nodes

WORK = NodeWork(where="python", what="Python BASE", command=["uv"], timeout_s=100, late_fix="look", rule="it must be ready")


def wait_here(gate: str, *, node: str, tell: Callable[[str], None]) -> str:
    """Work that goes on while there is a gate."""
    if gate:
        tell(f"node {node}: waits for a gate (closed by process 7)")
    while gate and Path(gate).exists():
        time.sleep(0.01)
    return "done"


def test_what_the_nodes_are_at_is_told_while_they_work(
    simulated: session.RaySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line now and then: how many are ready, after how long, and what the first others say, by their address."""
    import ray

    monkeypatch.setattr(node_work, "PROGRESS_EVERY_S", 0.2)
    gate = tmp_path / "gate"
    gate.touch()
    addresses = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in ray.nodes()}
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        if "ready on 1 of 5 nodes" in line and line.count("waits for a gate (closed by process 7)") == 3:
            gate.unlink(missing_ok=True)

    arguments = {node: ("" if index == 0 else str(gate),) for index, node in enumerate(list(addresses)[:5])}
    assert dict(on_nodes(WORK, wait_here, arguments, tell)) == dict.fromkeys(arguments, "done")
    first = [addresses[node] for node in list(arguments)[1:4]]
    told = next(line for line in lines if "ready on 1 of 5 nodes" in line and line.count("waits for a gate") == 3)
    assert told.startswith("Python BASE: ready on 1 of 5 nodes after ")
    assert told.partition("; ")[2] == "; ".join([*(f"{name}: waits for a gate (closed by process 7)" for name in first), "and 1 more"])
