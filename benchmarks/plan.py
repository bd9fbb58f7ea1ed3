"""What planning costs: 100, 1,000 and 10,000 nodes of 8 GPUs, logical nodes of 8 on half of them, every strategy.

Each size is compared with the one ten times smaller in the same run: the growth is the ratio of their times by the ratio of their
sizes, so 1.0 is linear. Planning is one thread that waits for nothing, so its CPU time is its time on a quiet machine. Two minutes in all.
``python benchmarks/plan.py [--rounds N] [--json]``
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable

from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.plan import Layout, plan_layout
from rl_cluster.schema import STRATEGIES, ClusterSpec

SIZES = (100, 1_000, 10_000)
NODES_PER_DOMAIN = 18  # as in an NVL72 rack of 4-GPU trays
SECONDS_LIMIT = 1.0
MIB_LIMIT = 300.0
SECONDS_LIMIT_1000 = 0.3
GROWTH_LIMIT = 1.5  # for ten times the nodes, above linear


def uniform(nodes: int) -> Inventory:
    """Nodes of 8 GPUs in domains of 18, every fourth one of another accelerator type, nothing held."""
    amounts = {"GPU": 8.0, "CPU": 128.0}
    return Inventory(
        tuple(
            PhysicalNode(
                f"{index:056x}",
                f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}",
                amounts,
                amounts,
                labels={"ray.io/gpu-domain": f"rack-{index // NODES_PER_DOMAIN}", "type": "A100" if index % 4 == 3 else "H100"},
            )
            for index in range(nodes)
        )
    )


def uneven(nodes: int) -> Inventory:
    """The same with 8, 8, 4, 6 and 0 GPUs free by turns."""
    plain = uniform(nodes).nodes
    free = [{"GPU": count, "CPU": 128.0} for count in (8.0, 8.0, 4.0, 6.0, 0.0)]
    return Inventory(tuple(PhysicalNode(n.node_id, n.address, n.total, free[i % 5], labels=n.labels) for i, n in enumerate(plain)))


CASES: dict[str, tuple[Callable[[int], Inventory], dict[str, object]]] = {
    "plain": (uniform, {}),
    "segments of 4": (uniform, {"segment_size": 4}),
    "label selector": (uniform, {"label_selector": {"type": "in(H100, B200)"}}),
    "both": (uniform, {"segment_size": 4, "label_selector": {"type": "!A100"}}),
    "uneven": (uneven, {"uneven": True}),
    "uneven, segments of 4": (uneven, {"uneven": True, "segment_size": 4}),
}


def make_spec(nodes: int, strategy: str, keys: dict[str, object]) -> ClusterSpec:
    """Logical nodes of 8 on half of the nodes; or 8 and 4 by turns, as many as go."""
    rest = {key: value for key, value in keys.items() if key != "uneven"}
    if "uneven" in keys:
        return ClusterSpec(bundle_ct_per_node_list=[8, 4] * (nodes // 8), strategy=strategy, **rest)  # type: ignore[arg-type]
    return ClusterSpec(num_nodes=nodes // 2, strategy=strategy, **rest)  # type: ignore[arg-type]


def measure(rounds: int) -> list[dict[str, object]]:
    """Times (least of some rounds) and peak memory of each case, with the growth from the size before."""
    rows: list[dict[str, object]] = []
    for case, (build, keys) in CASES.items():
        for strategy in STRATEGIES:
            before: float | None = None
            for nodes in SIZES:
                inventory, spec = build(nodes), make_spec(nodes, strategy, keys)
                times = []
                for _ in range(rounds * (10 if nodes == SIZES[0] else 1)):
                    gc.collect()
                    start = time.process_time()
                    answer = plan_layout(spec, inventory)
                    times.append(time.process_time() - start)
                    if not isinstance(answer, Layout):
                        raise SystemExit(f"{case}, {strategy}, {nodes} nodes: {answer.headline}")
                tracemalloc.start()
                plan_layout(spec, inventory)
                peak = tracemalloc.get_traced_memory()[1] / 2**20
                tracemalloc.stop()
                seconds = min(times)
                growth = None if before is None else seconds / before / 10
                rows.append(
                    {
                        "case": case,
                        "strategy": strategy,
                        "nodes": nodes,
                        "logical_nodes": len(spec.bundle_counts),
                        "seconds": round(seconds, 4),
                        "peak_mib": round(peak, 1),
                        "growth": None if growth is None else round(growth, 2),
                    }
                )
                before = seconds
    return rows


def main() -> int:
    """Print the table (or JSON) and whether the limits hold; 0 when they do, else 4."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.rounds)
    named = next(row for row in rows if (row["case"], row["strategy"], row["nodes"]) == ("plain", "SPREAD", 1_000))
    slowest = max(float(str(row["seconds"])) for row in rows)
    largest = max(float(str(row["peak_mib"])) for row in rows)
    growth = max(float(str(row["growth"])) for row in rows if row["growth"] is not None)
    limits = {
        f"slowest {slowest:.3f} s, limit {SECONDS_LIMIT} s": slowest <= SECONDS_LIMIT,
        f"largest peak {largest:.0f} MiB, limit {MIB_LIMIT:.0f} MiB": largest <= MIB_LIMIT,
        f"500x8 SPREAD on 1,000 nodes {named['seconds']} s, limit {SECONDS_LIMIT_1000} s": float(str(named["seconds"]))
        <= SECONDS_LIMIT_1000,
        f"largest growth {growth:.2f} times linear per tenfold, limit {GROWTH_LIMIT}": growth <= GROWTH_LIMIT,
    }
    if options.json:
        print(json.dumps({"rows": rows, "limits": limits}, indent=2))
    else:
        print(f"{'case':22} {'strategy':14} {'nodes':>6} {'logical':>7} {'seconds':>8} {'MiB':>6} {'growth':>6}")
        for row in rows:
            growth_text = "" if row["growth"] is None else f"{row['growth']:.2f}"
            print(
                f"{row['case']:22} {row['strategy']:14} {row['nodes']:6} {row['logical_nodes']:7} "
                f"{row['seconds']:8.4f} {row['peak_mib']:6.1f} {growth_text:>6}"
            )
        for text, held in limits.items():
            print(f"{'ok' if held else 'NOT KEPT'}: {text}")
    return 0 if all(limits.values()) else 4


if __name__ == "__main__":
    sys.exit(main())
