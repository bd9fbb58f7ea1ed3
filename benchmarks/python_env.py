"""Bring-up in a ready environment of a uv project against SYSTEM's, side by side in one run, on simulated nodes.

From nothing placed to the first call answered on all workers, binding and ranks included, for three ways in turn:

* ``system``: the interpreter that Ray's own workers have.
* ``ready``: BASE of a small uv project whose environment has been built before: one look per node, then workers in its ``bin/python``.
* ``bare``: bare actors of Ray whose runtime_env names the same ``bin/python``. No look, no rank, no binding, no check.

Twice: on a Ray that we start, where workers with a runtime_env start by ``rl_cluster/ground/_setup_worker.py``, and on one that starts them
as Ray does by itself, as a cluster of others does (``--starts``).

    python benchmarks/python_env.py [--nodes 2] [--pairs 5] [--starts ours rays] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import ray
from bring_up import GPUS, bare, in_turn, ours, settle

from rl_cluster import simulate
from rl_cluster.connection.session import open_ray
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.process.uv_store import MARKER
from rl_cluster.schema import PythonSpec, RaySpec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from uv_project import builds_of, make_project

RATIOS = (("ready", "system"), ("ready", "bare"), ("bare", "system"))


class Worker:
    """The smallest worker; of this file's own, because the environment does not know the other benchmark."""

    def pid(self) -> int:
        return os.getpid()


def measure(nodes: int, pairs: int, python: PythonSpec, starts: str) -> dict[str, object]:
    total = {"CPU": 2.0 * GPUS, "GPU": float(GPUS)}
    inventory = Inventory(nodes=tuple(PhysicalNode(str(i), "", total, total) for i in range(nodes)), simulated=True)
    with contextlib.ExitStack() as held:
        if starts == "rays":
            start, simulate.quick_worker_starts = simulate.quick_worker_starts, contextlib.nullcontext
            held.callback(setattr, simulate, "quick_worker_starts", start)
        session = held.enter_context(open_ray(RaySpec(kind="simulated"), simulated=inventory))
        ways = {"system": ours(nodes, session.affinity_file, Worker), "ready": ours(nodes, session.affinity_file, Worker, python)}
        cpus = ray.cluster_resources()["CPU"]
        for way in list(ways.values()):  # the first use of a fresh Ray is slower for whoever comes first, and builds the environment
            way()
            settle(cpus)
        (marker,) = Path(str(python.venv_dir)).glob(f"*/{MARKER}")
        interpreter = {"py_executable": str(marker.parent / "bin" / "python"), "env_vars": {"PYTHONPATH": ""}}
        ways["bare"] = bare(nodes, Worker, lambda _: dict(interpreter))
        figures = in_turn(ways, pairs, cpus, RATIOS)
    return {"worker_starts": starts, "nodes": nodes, "workers": nodes * GPUS, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--starts", nargs="+", choices=("ours", "rays"), default=["ours", "rays"])
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        project = make_project(Path(folder))
        python = PythonSpec(executable="BASE", project_dir=str(project), venv_dir=os.path.join(folder, "envs"))
        for starts in arguments.starts:
            result = measure(arguments.nodes, arguments.pairs, python, starts)
            results.append(result)
            print(f"{result['workers']} workers on {arguments.nodes} simulated nodes, worker starts: {starts}, {arguments.pairs} rounds")
            for name, value in result["median_seconds"].items():  # type: ignore[attr-defined]
                print(f"  {name:<7} median {value:6.2f} s   worker processes {result['worker_processes'][name]}")  # type: ignore[index]
            for name, value in result["median_ratio"].items():  # type: ignore[attr-defined]
                print(f"  {name:<13} {value:.2f}")
        print(f"environments built: {builds_of(Path(folder), 'ground')}")
    if arguments.json:
        text = json.dumps({"benchmark": "python_env", "simulated": True, "results": results}, indent=2)
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
