"""Run by test_many_nodes.py in a process of its own: a simulated cluster of 16 uneven nodes, random specs, and drivers that race."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter

import ray
from ray_states import placement_groups

from rl_cluster.builders import build_cluster
from rl_cluster.connection.session import connected_address, open_ray
from rl_cluster.errors import ResourceInsufficientError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.schema import RaySpec

SPECS = 50
RACER = """
import sys
from rl_cluster.builders import build_cluster
from rl_cluster.errors import PlacementTimeoutError
from rl_cluster.schema import RaySpec
from rl_cluster.connection.session import open_ray
spec = {"bundle_ct_per_node_list": [4, 4], "strategy": "STRICT_SPREAD", "label_selector": {"four": "yes"}, "timeout_s": 60}
with open_ray(RaySpec(address=sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.readline()
    with build_cluster(spec):
        print("placed", flush=True)
        sys.stdin.readline()
print("ended", flush=True)
"""


def inventory() -> Inventory:
    nodes = []
    for number in range(16):
        gpus = (4, 4, 4, 4, 8, 8, 2, 1, 8, 4, 2, 8, 1, 4, 8, 2)[number]
        amounts = {"CPU": float((16, 12, 8, 16)[number % 4]), "GPU": float(gpus)}
        pools = {f"pool{size}": "yes" for size in (2, 4, 8, 16) if number < size}
        four = {"four": "yes"} if number < 4 else {}
        nodes.append(PhysicalNode(str(number), "", amounts, amounts, labels={**pools, **four}))
    return Inventory(tuple(nodes), simulated=True)


def plan_is_what_ray_does(dice: random.Random) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(SPECS):
        pool = (2, 4, 8, 16)[number % 4]
        busy = {
            "bundle_ct_per_node_list": [dice.randint(1, 3) for _ in range(dice.randint(1, 3))],
            "strategy": "SPREAD",
            "label_selector": {f"pool{pool}": "yes"},
        }
        spec = {
            "bundle_ct_per_node_list": [dice.randint(0, 5) for _ in range(dice.randint(1, pool))] + [1],
            "strategy": dice.choice(["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"]),
            "unified": dice.random() < 0.5,
            "cpus_per_bundle": dice.choice([0, 1, 2, 2.5]),
            "label_selector": {f"pool{pool}": "yes"},
        }
        with build_cluster(busy):
            try:
                with build_cluster(spec) as cluster:
                    assert cluster.bundle_nodes() == [bundle.node_id for bundle in cluster.layout.bundles], spec
                    outcomes["placed"] += 1
            except ResourceInsufficientError:
                outcomes["refused"] += 1
    print(f"specs: {outcomes['placed']} placed as planned, {outcomes['refused']} refused", flush=True)
    assert outcomes["placed"] >= SPECS // 3


def four_drivers_race() -> None:
    """Each of four wants half of the four 4-GPU nodes: two get theirs at once, the others when those end; nobody holds a half."""
    drivers = [
        subprocess.Popen([sys.executable, "-c", RACER, connected_address()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        lines = [driver.stdout for driver in drivers if driver.stdout is not None]
        assert [line.readline() for line in lines] == ["ready\n"] * 4
        for driver in drivers:
            tell(driver)
        deadline = time.monotonic() + 40
        while len(placement_groups("CREATED")) < 4 or placement_groups("PENDING"):
            assert time.monotonic() < deadline, placement_groups("CREATED")
            time.sleep(0.2)
        first = {group["placement_group_id"] for group in placement_groups("CREATED")}
        by_job = Counter(group["name"].rpartition("-node")[0] for group in placement_groups("CREATED"))
        assert sorted(by_job.values()) == [2, 2], by_job
        for driver in drivers:
            tell(driver)  # the end of those that have a place; the others read it when they have got theirs
        for driver in drivers:
            out, _ = driver.communicate(timeout=90)
            assert out.split() == ["placed", "ended"], out
        assert not {group["placement_group_id"] for group in placement_groups("CREATED")} & first
        assert placement_groups("CREATED") == placement_groups("PENDING") == []
        print("drivers: all four got their place, none held a half", flush=True)
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()


def tell(driver: subprocess.Popen[str]) -> None:
    assert driver.stdin is not None
    driver.stdin.write("go\n")
    driver.stdin.flush()


def main() -> None:
    with open_ray(RaySpec(kind="simulated"), simulated=inventory()):
        total = ray.cluster_resources()["GPU"]
        plan_is_what_ray_does(random.Random(20261130))
        four_drivers_race()
        deadline = time.monotonic() + 20
        while ray.available_resources().get("GPU") != total:
            assert time.monotonic() < deadline, "not all GPUs are free at the end"
            time.sleep(0.2)


if __name__ == "__main__":
    main()
