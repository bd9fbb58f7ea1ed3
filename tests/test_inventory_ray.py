"""A snapshot of a running Ray: a head without resources and two nodes with made-up GPUs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml

from rl_cluster.connection.snapshot import snapshot_inventory
from rl_cluster.errors import ClusterUnreachableError
from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.plan import Layout, plan_layout
from rl_cluster.planning.inventory_dump import dump_inventory
from rl_cluster.planning.inventory_file import load_inventory, parse_inventory
from rl_cluster.schema import ClusterSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow]

pytest.importorskip("ray.cluster_utils")  # not "ray": a folder of that name would do for it

import ray  # noqa: E402


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes of 4 GPUs beside an empty head; this process is connected."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "disabled")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.delenv("RAY_ADDRESS", raising=False)
        memory = 80_000_000
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "object_store_memory": memory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=8, num_gpus=4, labels={"zone": "a"}, object_store_memory=memory, node_ip_address="127.0.0.10")
            cluster.add_node(num_cpus=8, num_gpus=4, resources={"nic": 2}, object_store_memory=memory, node_ip_address="127.0.0.9")
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster.address
        finally:
            ray.shutdown()
            cluster.shutdown()


def wait_for(look: Callable[[], Inventory], holds: Callable[[Inventory], bool]) -> Inventory:
    """The first snapshot for which something holds; what is free lags behind, so one look is not enough."""
    deadline = time.monotonic() + 60
    while True:
        inventory = look()
        if holds(inventory) or time.monotonic() > deadline:
            return inventory
        time.sleep(0.05)


def amounts(node: PhysicalNode) -> dict[str, tuple[float, float]]:
    """(free, total) of what the nodes were started with."""
    return {name: (node.free.get(name, 0.0), total) for name, total in node.total.items() if name in ("CPU", "GPU", "nic")}


def test_nodes_come_in_topology_order_with_what_is_there_and_free(address: str) -> None:
    """127.0.0.9 before 127.0.0.10; labels, head and hostname are Ray's."""
    inventory = wait_for(snapshot_inventory, lambda found: all(node.free for node in found.nodes))
    first, second, head = inventory.nodes
    assert [node.address for node in (first, second)] == ["127.0.0.9", "127.0.0.10"]
    assert [node.is_head for node in inventory.nodes] == [False, False, True]
    assert amounts(first) == {"CPU": (8.0, 8.0), "GPU": (4.0, 4.0), "nic": (2.0, 2.0)}
    assert amounts(second) == {"CPU": (8.0, 8.0), "GPU": (4.0, 4.0)}
    assert amounts(head) == {}
    assert (second.labels["zone"], first.labels["ray.io/node-id"], first.state) == ("a", first.node_id, "alive")
    assert (inventory.source, inventory.simulated, inventory.can_grow) == (f"ray at {address}", False, False)
    assert first.holders == ()


def test_who_holds_what_is_named(address: str) -> None:
    """A placement group, an actor outside of it, and a task each hold something; an actor inside the group holds nothing more."""
    from ray.util.placement_group import placement_group, remove_placement_group

    nodes = {node.address: node.node_id for node in snapshot_inventory().nodes}
    where = [{"ray.io/node-id": nodes["127.0.0.10"]}] * 2
    group = placement_group([{"CPU": 1, "GPU": 1}] * 2, name="other-job-node0", bundle_label_selector=where)
    assert group.wait(30)

    @ray.remote(num_cpus=1, num_gpus=0)
    class Engine:
        def ready(self) -> str:
            return str(ray.get_runtime_context().get_job_id())

    pinned = {"ray.io/node-id": nodes["127.0.0.9"]}
    outside = Engine.options(name="engine", num_gpus=2, label_selector=pinned).remote()
    inside = Engine.options(placement_group=group, num_cpus=1).remote()

    @ray.remote(num_cpus=2)
    def sleep_until_cancelled() -> None:
        while True:
            time.sleep(0.1)

    task = sleep_until_cancelled.options(label_selector=pinned).remote()
    job = ray.get([outside.ready.remote(), inside.ready.remote()])[0]

    def settled(found: Inventory) -> bool:
        free = {node.address: (node.free.get("CPU"), node.free.get("GPU")) for node in found.nodes}
        return free["127.0.0.9"] == (5.0, 2.0) and free["127.0.0.10"] == (6.0, 2.0)

    try:
        inventory = wait_for(lambda: snapshot_inventory(holders=True), settled)
        assert settled(inventory)
        first, second, _ = inventory.nodes
        assert second.holders == (Holder("placement_group", "other-job-node0", group.id.hex(), job, {"CPU": 2.0, "GPU": 2.0}),)
        assert first.holders == (
            Holder("actor", "engine", outside._actor_id.hex(), job, {"CPU": 1.0, "GPU": 2.0}),
            Holder("unknown", "", "", "", {"CPU": 2.0}),
        )
    finally:
        ray.cancel(task, force=True)
        ray.kill(outside)
        ray.kill(inside)
        remove_placement_group(group)
    everything_back = wait_for(
        snapshot_inventory, lambda found: all(node.free.get("GPU", 0) == node.total.get("GPU", 0) for node in found.nodes)
    )
    assert [node.free.get("GPU", 0.0) for node in everything_back.nodes] == [4.0, 4.0, 0.0]


def test_the_command_saves_the_cluster(address: str, tmp_path: Path) -> None:
    """``rl-cluster-inventory`` prints a file from which the same nodes are read."""
    from rl_cluster.programs.inventory_cli import main

    text, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(text), redirect_stderr(errors):
        assert main(["--address", address]) == 0
    path = tmp_path / "saved.yaml"
    path.write_text(text.getvalue())
    saved = load_inventory(path)
    assert [(node.address, node.is_head) for node in saved.nodes] == [(node.address, node.is_head) for node in snapshot_inventory().nodes]
    assert [node.total.get("GPU", 0.0) for node in saved.nodes] == [4.0, 4.0, 0.0]


def test_the_command_says_in_one_line_that_nothing_answers() -> None:
    """A wrong address is exit 3 and one line, without a traceback."""
    from rl_cluster.programs.inventory_cli import main

    text, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(text), redirect_stderr(errors):
        assert main(["--address", "127.0.0.1:9"]) == 3
    assert text.getvalue() == ""
    assert errors.getvalue().startswith("rl-cluster-inventory: ray.address: no Ray cluster answers at 127.0.0.1:9")
    assert errors.getvalue().count("\n") == 1


def test_a_node_that_goes_is_draining_and_then_dead(address: str) -> None:
    """A node that Ray drains (a preemption notice) keeps its actors and is no longer planned on; when they have ended it is dead."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    node_id = next(node.node_id for node in snapshot_inventory().nodes if node.address == "127.0.0.9")

    @ray.remote(num_cpus=1, num_gpus=1, label_selector={"ray.io/node-id": node_id})
    class Engine:
        def ready(self) -> bool:
            return True

    engine = Engine.remote()
    assert ray.get(engine.ready.remote())
    deadline_ms = int((time.time() + 120) * 1000)
    notice = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    accepted, why = GcsClient(address).drain_node(node_id, notice, "spot", deadline_ms)
    assert accepted, why

    def state(inventory: Inventory) -> str:
        return next(node.state for node in inventory.nodes if node.node_id == node_id)

    seen = wait_for(snapshot_inventory, lambda found: state(found) != "alive")
    assert state(seen) == "draining"
    answer = plan_layout(ClusterSpec(num_nodes=2, gpus_per_node=2), seen)
    assert isinstance(answer, Layout)
    assert node_id not in {bundle.node_id for bundle in answer.bundles}
    ray.kill(engine)
    gone = wait_for(snapshot_inventory, lambda found: state(found) == "dead")
    assert state(gone) == "dead"
    assert [dict(node.free) for node in gone.nodes if node.node_id == node_id] == [{}]
    saved = parse_inventory(yaml.safe_load(dump_inventory(gone)))
    assert {node.address: node.state for node in saved.nodes} == {node.address: node.state for node in gone.nodes}


def test_without_a_connection_there_is_no_snapshot(address: str) -> None:
    """A process that is not connected can't look, and is told how to connect."""
    ray.shutdown()
    with pytest.raises(ClusterUnreachableError) as caught:
        snapshot_inventory()
    assert str(caught.value) == "snapshot_inventory: must be connected to a Ray cluster. Fix: call ray.init(address=...) first"
