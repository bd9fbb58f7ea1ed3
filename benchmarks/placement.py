"""Planned and pinned placement against bare placement groups of as many bundles, side by side in one run, on simulated nodes.

From the call to all groups ready, for four ways in turn: ``unified`` (one group, planned and pinned) beside ``bare`` (one placement group
of Ray, which places it as it likes), and ``planned`` (one group per logical node, SPREAD) beside ``bare_groups`` (as many groups of Ray,
STRICT_PACK, not pinned). Ray's control service reserves groups one after the other, so many groups take it longer than one.

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
from rl_cluster.connection.session import open_ray
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.placing.placement import remove
from rl_cluster.schema import ClusterSpec, RaySpec

GPUS = 8
SETTLE_S = 30.0
RATIOS = (("unified", "bare"), ("planned", "bare_groups"), ("planned", "bare"), ("bare_groups", "bare"))


def planned(nodes: int, *, unified: bool) -> Callable[[], float]:
    spec = ClusterSpec(num_nodes=nodes, gpus_per_node=GPUS, strategy="SPREAD", unified=unified)

    def once() -> float:
        began = time.perf_counter()
        with build_cluster(spec):
            return time.perf_counter() - began

    return once


def bare(groups: int, bundles: int, strategy: str) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        made = [placement_group([{"CPU": 1, "GPU": 1}] * bundles, strategy=strategy) for _ in range(groups)]
        if not all(group.wait(SETTLE_S) for group in made[::-1]):  # the last one first: the others are there by then
            raise TimeoutError(f"bare placement groups were not ready after {SETTLE_S:g} s")
        took = time.perf_counter() - began
        remove(made)
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
    with open_ray(RaySpec(kind="simulated"), simulated=inventory):
        ways = {
            "planned": planned(nodes, unified=False),
            "bare_groups": bare(nodes, GPUS, "STRICT_PACK"),
            "unified": planned(nodes, unified=True),
            "bare": bare(1, nodes * GPUS, "PACK"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
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
        "ratio": {f"{ours}/{base}": round(medians[ours] / medians[base], 3) for ours, base in RATIOS},
        "seconds": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
    }
    print(f"{nodes * GPUS} bundles on {nodes} simulated nodes, {arguments.rounds} rounds")
    for name, value in medians.items():
        print(f"  {name:<11} median {value:.3f} s")
    for ours, base in RATIOS:
        print(f"  {ours}/{base} {medians[ours] / medians[base]:.2f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as handle:
            json.dump(result, handle, indent=2)


if __name__ == "__main__":
    main()
