"""A Ray cluster that runs before run.py is called: a process of its own, which answers what is on it.

Run as a program it starts two simulated nodes of 2 GPUs and 8 CPUs, prints its address, and then answers a line of JSON to each
line of its standard input: ``state``, ``take`` (all GPUs, as another job would), ``free``. It ends at the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

NODES, GPUS = 2, 2


class RunningCluster:
    """The cluster, as the tests see it."""

    def __init__(self) -> None:
        # Ray's sockets lie below it, and a socket's path has at most 107 bytes, so pytest's own folder is too deep
        self._temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
        env = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES")}
        env |= {"TMPDIR": str(self._temporary), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen([sys.executable, __file__], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lost_head = False
        self.address: str = self._answer()

    def __enter__(self) -> RunningCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, word: str) -> Any:
        """Send a word, get its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer()

    def settles(self, wanted: Callable[[Any], bool]) -> Any:
        """The state, when it is as wanted, else the last one seen: Ray's figures follow a moment behind."""
        deadline = time.monotonic() + 30
        while True:
            state = self.ask("state")
            if wanted(state) or time.monotonic() > deadline:
                return state
            time.sleep(0.1)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the running cluster has ended"
        return json.loads(line)

    def lose_head(self) -> None:
        """Kill its control service, as the loss of the head node does."""
        self._lost_head = True
        self._head().kill()

    @contextlib.contextmanager
    def head_paused(self) -> Iterator[None]:
        """Stop its control service for the block."""
        self._head().suspend()
        try:
            yield
        finally:
            self._head().resume()

    def _head(self) -> psutil.Process:
        (head,) = (child for child in psutil.Process(self._process.pid).children(recursive=True) if child.name() == "gcs_server")
        return head

    def end(self) -> None:
        """Stop it, and wait until all of it is gone."""
        if self._lost_head:
            self._process.kill()  # it would wait for its head for a minute
        self._process.communicate(timeout=60)
        deadline = time.monotonic() + 30
        while any(self._temporary.glob("rl[cs]-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = list(self._temporary.glob("rl[cs]-*"))
        shutil.rmtree(self._temporary, ignore_errors=True)
        assert not left, left


def _state() -> dict[str, Any]:
    import ray

    from rl_cluster.connection.snapshot import snapshot_inventory

    nodes = snapshot_inventory(holders=True).nodes
    return {
        "nodes": [node.node_id for node in nodes],
        "taken": {node.address: node.total["GPU"] - node.free.get("GPU", 0.0) for node in nodes},
        "cpus taken": sum(node.total["CPU"] - node.free.get("CPU", 0.0) for node in nodes),
        "groups": sorted(group["state"] for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"),
        "holders": sorted({holder.name for node in nodes for holder in node.holders}),
    }


def main() -> None:
    """Be the cluster."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    from rl_cluster.inventory import Inventory, PhysicalNode
    from rl_cluster.simulate import simulated_cluster

    amounts = {"CPU": 8.0, "GPU": float(GPUS)}
    nodes = tuple(PhysicalNode(f"node-{number}", "", amounts, amounts) for number in range(NODES))
    taken = None
    with simulated_cluster(Inventory(nodes, simulated=True)) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        try:
            print(json.dumps(cluster.address), flush=True)
            for line in sys.stdin:
                answer: Any = "done"
                if line.strip() == "state":
                    answer = _state()
                elif line.strip() == "take":
                    taken = placement_group([{"GPU": float(GPUS)}] * NODES, name="another job")
                    assert taken.wait(30)
                elif taken is not None:
                    remove_placement_group(taken)
                print(json.dumps(answer), flush=True)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
