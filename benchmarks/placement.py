"""Planned and pinned placement against one bare placement group of as many bundles, side by side in one run, on simulated nodes.

From the call to all groups ready, for three ways in turn: ``planned`` (one group per logical node, SPREAD), ``unified`` (one group, planned
and pinned as well) and ``bare`` (one placement group of Ray, which places it as it likes).

    python benchmarks/placement.py [--nodes 32] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.util.placement_group import placement_group

from rl_cluster.builders import build_cluster
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.placement import remove
from rl_cluster.schema import ClusterSpec, RaySpec
from rl_cluster.session import open_ray

GPUS = 8
SETTLE_S = 30.0


def planned(nodes: int, *, unified: bool) -> Callable[[], float]:
    spec = ClusterSpec(num_nodes=nodes, gpus_per_node=GPUS, strategy="SPREAD", unified=unified)

    def once() -> float:
        began = time.perf_counter()
        with build_cluster(spec):
            return time.perf_counter() - began

    return once


def bare(nodes: int) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        group = placement_group([{"CPU": 1, "GPU": 1}] * (nodes * GPUS), strategy="PACK")
        ray.get(group.ready())
        took = time.perf_counter() - began
        remove([group])
        return took

    return once


def settle(gpus: float) -> None:
    """Wait until all GPUs are free again in Ray's view."""
    deadline = time.monotonic() + SETTLE_S
    while ray.available_resources().get("GPU") != gpus:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the GPUs of the last round are not free after {SETTLE_S:g} s")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    nodes = arguments.nodes
    total = {"CPU": 2.0 * GPUS, "GPU": float(GPUS)}
    inventory = Inventory(nodes=tuple(PhysicalNode(str(i), "", total, total) for i in range(nodes)), simulated=True)
    seconds: dict[str, list[float]] = {"planned": [], "unified": [], "bare": []}
    with open_ray(RaySpec(kind="simulated"), simulated=inventory):
        ways = {"planned": planned(nodes, unified=False), "unified": planned(nodes, unified=True), "bare": bare(nodes)}
        for way in ways.values():  # the first use of a fresh Ray is slower for whoever comes first
            settle(nodes * GPUS)
            way()
        for number in range(arguments.rounds):
            for name in (list(ways), list(ways)[::-1])[number % 2]:
                settle(nodes * GPUS)
                seconds[name].append(ways[name]())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "benchmark": "placement",
        "simulated": True,
        "nodes": nodes,
        "bundles": nodes * GPUS,
        "rounds": arguments.rounds,
        "median_seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio": {name: round(medians[name] / medians["bare"], 3) for name in ("planned", "unified")},
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
    }
    print(f"{nodes * GPUS} bundles on {nodes} simulated nodes, {arguments.rounds} rounds")
    for name, value in medians.items():
        print(f"  {name:<8} median {value:.3f} s" + (f"   {value / medians['bare']:.2f} x bare" if name != "bare" else ""))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as handle:
            json.dump(result, handle, indent=2)


if __name__ == "__main__":
    main()
