"""One binding of a process against ``numactl --cpunodebind --membind true``, which binds a process that it starts.

Both are timed by turns in one run, over the same machine; the process that is bound has as many threads as a Ray worker.
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
    """Time both by turns.

    Args:
        pairs: How many of each.
        threads: Idle threads of the process that is bound.
    """
    node = min(snapshot_system().cpu_nodes())
    numactl = [shutil.which("numactl") or "numactl", f"--cpunodebind={node}", f"--membind={node}", "true"]
    stop = threading.Event()
    for _ in range(threads):
        threading.Thread(target=stop.wait, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "map"))
        write_affinity_file(path, {0: snapshot_system().cpus_of([node]) & os.sched_getaffinity(0)})
        spec = NumaSpec(affinity_file=path)
        ours, theirs = [], []
        for _ in range(pairs):
            start = time.perf_counter()
            report = bind_process(spec, gpu_ids=[0])
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            subprocess.run(numactl, check=True)
            theirs.append(time.perf_counter() - start)
        unbind()
        fresh = [subprocess.run([sys.executable, "-c", FIRST, path], capture_output=True, text=True, check=True) for _ in range(5)]
    stop.set()
    imports, firsts = zip(*(map(float, each.stdout.split()) for each in fresh), strict=True)
    return {
        "bind_ms": milliseconds(ours),
        "numactl_ms": milliseconds(theirs),
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 3),
        "first_bind_ms": milliseconds(list(firsts)),
        "import_ms": milliseconds(list(imports)),
        "pairs": pairs,
        "threads": report.threads_bound,
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
    statuses = f"CPUs {figures['cpu_status']}, memory {figures['mem_status']}"
    print(f"one binding of a process of {figures['threads']} threads: {figures['bind_ms']} ms ({statuses})")
    print(f"numactl --cpunodebind --membind true: {figures['numactl_ms']} ms")
    print(f"ratio {figures['ratio']} (medians of {figures['pairs']} pairs, by turns; at most 0.25)")
    print(f"in a fresh process: {figures['import_ms']} ms to import it, {figures['first_bind_ms']} ms for the first binding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
