"""One binding of a process against ``numactl --cpunodebind --membind true``, which binds a process that it starts.

Both are timed by turns in one run: with one thread, as numactl has it, and with as many as a Ray worker.
``python benchmarks/bind.py [--pairs N] [--threads N] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rl_cluster.numa.affinity_file import write_affinity_file
from rl_cluster.numa.bind import bind_process, unbind
from rl_cluster.numa.system import snapshot_system
from rl_cluster.schema import NumaSpec

FIRST = """
import sys, time
start = time.perf_counter()
from rl_cluster.numa.bind import bind_process
from rl_cluster.schema import NumaSpec
imported = time.perf_counter()
bind_process(NumaSpec(affinity_file=sys.argv[1]), gpu_ids=[0])
print(imported - start, time.perf_counter() - imported)
"""


def milliseconds(seconds: list[float]) -> float:
    """Median."""
    return round(1000 * statistics.median(seconds), 3)


def measure(pairs: int, threads: int) -> dict[str, float | int | str]:
    """Time a binding of this process with one thread, numactl, and a binding with more threads, by turns.

    Args:
        pairs: How many of each.
        threads: Idle threads of the process in the second kind of binding.
    """
    node = min(snapshot_system().cpu_nodes())
    numactl = [shutil.which("numactl") or "numactl", f"--cpunodebind={node}", f"--membind={node}", "true"]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "map"))
        write_affinity_file(path, {0: snapshot_system().cpus_of([node]) & os.sched_getaffinity(0)})
        spec = NumaSpec(affinity_file=path)
        ours: dict[int, list[float]] = {1: [], threads + 1: []}
        theirs: dict[int, list[float]] = {1: [], threads + 1: []}
        stop = threading.Event()
        for kind in ours:
            while threading.active_count() < kind:
                threading.Thread(target=stop.wait, daemon=True).start()
            for _ in range(pairs):
                start = time.perf_counter()
                report = bind_process(spec, gpu_ids=[0])
                ours[kind].append(time.perf_counter() - start)
                start = time.perf_counter()
                subprocess.run(numactl, check=True)
                theirs[kind].append(time.perf_counter() - start)
        unbind()
        fresh = [subprocess.run([sys.executable, "-c", FIRST, path], capture_output=True, text=True, check=True) for _ in range(5)]
        stop.set()
    imports, firsts = zip(*(map(float, each.stdout.split()) for each in fresh), strict=True)
    return {
        "bind_ms": milliseconds(ours[1]),
        "numactl_ms": milliseconds(theirs[1]),
        "ratio": round(statistics.median(ours[1]) / statistics.median(theirs[1]), 3),
        "threads": report.threads_bound,
        "bind_threads_ms": milliseconds(ours[threads + 1]),
        "ratio_threads": round(statistics.median(ours[threads + 1]) / statistics.median(theirs[threads + 1]), 3),
        "first_bind_ms": milliseconds(list(firsts)),
        "import_ms": milliseconds(list(imports)),
        "pairs": pairs,
        "cpu_status": report.cpu_status,
        "mem_status": report.mem_status,
    }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--threads", type=int, default=20, help="idle threads of the process (a Ray worker has about 20)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("numactl") is None:
        print("numactl is missing, there is nothing to compare with. Fix: apt-get install numactl", file=sys.stderr)
        return 1
    figures = measure(options.pairs, options.threads)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"one binding: {figures['bind_ms']} ms (CPUs {figures['cpu_status']}, memory {figures['mem_status']})")
    print(f"numactl --cpunodebind --membind true: {figures['numactl_ms']} ms")
    print(f"ratio {figures['ratio']} (medians of {figures['pairs']} pairs, by turns; at most 0.25)")
    print(f"with {figures['threads']} threads, as in a Ray worker: {figures['bind_threads_ms']} ms, ratio {figures['ratio_threads']}")
    print(f"in a fresh process: {figures['import_ms']} ms to import it, {figures['first_bind_ms']} ms for the first binding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
