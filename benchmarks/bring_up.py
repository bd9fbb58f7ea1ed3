"""Bring-up of worker groups against bare Ray actors, side by side in one run, on simulated nodes.

From nothing placed to the first call answered on all workers, for three ways in turn:

* ``ours``: the cluster planned, placed and pinned, the two-phase bring-up with binding, ranks and a leased master port.
* ``bare``: one placement group of the same bundles, bare actors, one call each. No rank, no binding, no check.
* ``bare_env``: the same, and each actor gets its RANK by a runtime_env of its own, as other frameworks do.

Prints medians, the ratios pair by pair, and how many worker processes each way started.

    python benchmarks/bring_up.py [--nodes 2 4] [--pairs 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_cluster import simulate
from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.connection.session import open_ray
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.schema import ClusterSpec, NumaSpec, PythonSpec, RaySpec

GPUS = 8
SETTLE_S = 30.0


class Worker:
    """The smallest worker."""

    def pid(self) -> int:
        return os.getpid()


def ours(
    nodes: int, affinity_file: str | None, worker: type = Worker, python: PythonSpec | None = None
) -> Callable[[], tuple[float, set[int]]]:
    """A worker group of ours."""
    spec = ClusterSpec(num_nodes=nodes, gpus_per_node=GPUS, strategy="SPREAD")
    numa = NumaSpec(affinity_file=affinity_file)

    def once() -> tuple[float, set[int]]:
        began = time.perf_counter()
        with build_cluster(spec) as cluster, build_worker_group(cluster, worker, numa=numa, python=python) as group:
            pids = set(group.run_all("pid"))
            return time.perf_counter() - began, pids

    return once


def bare(
    nodes: int, worker: type = Worker, runtime_env: Callable[[int], dict[str, object]] | None = None
) -> Callable[[], tuple[float, set[int]]]:
    """Actors of Ray on one placement group of Ray; each may have a runtime_env of its own."""

    def once() -> tuple[float, set[int]]:
        began = time.perf_counter()
        group = placement_group([{"CPU": 1, "GPU": 1}] * (nodes * GPUS), strategy="PACK")
        ray.get(group.ready())
        actor = ray.remote(worker)
        workers = []
        for rank in range(nodes * GPUS):
            options: dict[str, object] = {
                "num_cpus": 1,
                "num_gpus": 1,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, rank),
            }
            if runtime_env is not None:
                options["runtime_env"] = runtime_env(rank)
            workers.append(actor.options(**options).remote())
        pids = set(ray.get([handle.pid.remote() for handle in workers]))
        took = time.perf_counter() - began
        for handle in workers:
            ray.kill(handle)
        remove_placement_group(group)
        return took, pids

    return once


def worker_processes() -> set[int]:
    """Pids of this cluster's worker processes, those that serve and those that wait to: the children of its raylets."""
    sockets = {os.fsencode(node["RayletSocketName"]) for node in ray.nodes()}
    commands: dict[int, bytes] = {}
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as handle:
                    commands[int(entry)] = handle.read()
                with open(f"/proc/{entry}/stat", "rb") as handle:
                    parents[int(entry)] = int(handle.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # it ended meanwhile
    raylets = {pid for pid, command in commands.items() if b"/raylet\0" in command and any(name in command for name in sockets)}
    return {
        pid
        for pid, parent in parents.items()
        if parent in raylets and (commands[pid].startswith(b"ray::") or b"default_worker.py" in commands[pid])
    }


def settle(cpus: float) -> None:
    """Wait until what the last way used is free again, and no worker process has come or gone for a second."""
    deadline = time.monotonic() + SETTLE_S
    last, since = worker_processes(), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = worker_processes()
        if now != last or ray.available_resources().get("CPU") != cpus:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 1.0:
            return
    print(f"  not settled after {SETTLE_S:g} s: {len(last)} worker processes", file=sys.stderr)


def in_turn(
    ways: Mapping[str, Callable[[], tuple[float, set[int]]]], pairs: int, cpus: float, ratios: Sequence[tuple[str, str]]
) -> dict[str, object]:
    """Each way once a round, every other round backwards: the medians, the ratios round by round, and the processes that were started.

    Args:
        ways: Each gives the seconds that it took, and the pids of its workers.
        pairs: Rounds.
        cpus: CPUs of the whole cluster, to see when the last way has given all back.
        ratios: Which way over which.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processes: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(pairs):
        for name in (list(ways), list(ways)[::-1])[number % 2]:
            before = worker_processes()
            took, pids = ways[name]()
            started = (worker_processes() | pids) - before
            seconds[name].append(took)
            processes[name].append(len(started))
            settle(cpus)
    by_round = {f"{over}/{base}": [a / b for a, b in zip(seconds[over], seconds[base], strict=True)] for over, base in ratios}
    return {
        "pairs": pairs,
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "median_seconds": {name: round(statistics.median(values), 3) for name, values in seconds.items()},
        "median_ratio": {name: round(statistics.median(values), 3) for name, values in by_round.items()},
        "worker_processes": {name: max(values) for name, values in processes.items()},
    }


def measure(nodes: int, pairs: int) -> dict[str, object]:
    total = {"CPU": 2.0 * GPUS, "GPU": float(GPUS)}
    inventory = Inventory(nodes=tuple(PhysicalNode(str(i), "", total, total) for i in range(nodes)), simulated=True)
    simulate.quick_worker_starts = contextlib.nullcontext  # bare_env is to start as it does on Ray's own clusters; ours has no runtime_env
    with open_ray(RaySpec(kind="simulated"), simulated=inventory) as session:
        ways = {
            "ours": ours(nodes, session.affinity_file),
            "bare": bare(nodes),
            "bare_env": bare(nodes, runtime_env=lambda rank: {"env_vars": {"RANK": str(rank)}}),
        }
        cpus = ray.cluster_resources()["CPU"]
        ways["bare"]()  # the first use of a fresh Ray is slower for whoever comes first
        settle(cpus)
        figures = in_turn(ways, pairs, cpus, (("ours", "bare"), ("ours", "bare_env")))
    return {"nodes": nodes, "workers": nodes * GPUS, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = []
    for nodes in arguments.nodes:
        result = measure(nodes, arguments.pairs)
        results.append(result)
        print(f"{result['workers']} workers on {nodes} simulated nodes, {arguments.pairs} rounds")
        for name, value in result["median_seconds"].items():  # type: ignore[attr-defined]
            print(f"  {name:<9} median {value:6.2f} s   worker processes {result['worker_processes'][name]}")  # type: ignore[index]
        for name, value in result["median_ratio"].items():  # type: ignore[attr-defined]
            print(f"  {name:<14} {value:.2f}")
    text = json.dumps({"benchmark": "bring_up", "simulated": True, "results": results}, indent=2)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as handle:
            handle.write(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
