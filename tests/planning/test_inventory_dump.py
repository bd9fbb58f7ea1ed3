"""The inventory file of what was seen: whatever it was, it can be read again."""

from __future__ import annotations

from pathlib import Path

import yaml
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.planning.inventory_dump import dump_inventory
from rl_cluster.planning.inventory_file import load_inventory, parse_inventory


def read_again(tmp_path: Path, *nodes: PhysicalNode) -> tuple[str, list[PhysicalNode]]:
    """The text that is written for nodes, and what is read from it."""
    path = tmp_path / "saved.yaml"
    path.write_text(dump_inventory(Inventory(nodes)))
    return path.read_text(), list(load_inventory(path).nodes)


def test_what_is_written_reads_as_the_same_nodes(tmp_path: Path) -> None:
    """A saved inventory has all that planning needs, and nothing that Ray makes up."""
    holder = Holder("actor", "engine", "5f", "02000000", {"GPU": 3.5})
    node = PhysicalNode(
        "node-10.0.0.1",
        "10.0.0.1",
        {"GPU": 8.0, "CPU": 16.0, "memory": 1e9},
        {"GPU": 4.5, "CPU": 16.0, "memory": 1e9},
        hostname="gpu-1",
        labels={"zone": "a", "number": "1", "word": "on"},
        is_head=True,
        holders=(holder,),
    )
    dead = PhysicalNode("node-10.0.0.2", "10.0.0.2", {"GPU": 8.0}, {}, state="dead")
    inventory = Inventory((node, dead), source="ray at 10.0.0.1:6379")
    made_by_ray = {"node:10.0.0.1": 1.0, "node:__internal_head__": 1.0, "object_store_memory": 5.0}
    as_ray_has_it = evolve(node, total={**node.total, **made_by_ray}, labels={**node.labels, "ray.io/node-id": "ab12"})
    path = tmp_path / "saved.yaml"
    path.write_text(dump_inventory(evolve(inventory, nodes=(as_ray_has_it, dead))))
    assert load_inventory(path).nodes == inventory.nodes


def test_a_node_of_rays_without_cpus_is_written_with_none() -> None:
    """Ray leaves a resource out that a node has none of; the file says it, so that it can be read again."""
    node = PhysicalNode("node-10.0.0.1", "10.0.0.1", {"GPU": 8.0}, {"GPU": 2.0})
    text = dump_inventory(Inventory((node,)))
    assert yaml.safe_load(text)["nodes"] == [{"address": "10.0.0.1", "resources": {"CPU": 0, "GPU": 8}, "free": {"GPU": 2}}]


def test_a_node_that_came_back_is_written_once(tmp_path: Path) -> None:
    """Its dead entries are left out, and the file says so; of a node that stays dead there is one."""
    alive = PhysicalNode("c", "10.0.0.1", {"CPU": 8.0}, {"CPU": 8.0}, is_head=True)
    before = PhysicalNode("a", "10.0.0.1", {}, {}, is_head=True, state="dead")
    gone = [PhysicalNode(name, "10.0.0.2", {}, {}, state="dead") for name in ("b", "d")]
    text, nodes = read_again(tmp_path, before, alive, *gone)
    assert text.splitlines()[0] == "# left out: 2 dead nodes whose address has come back"
    assert [(node.address, node.state) for node in nodes] == [("10.0.0.1", "alive"), ("10.0.0.2", "dead")]


def test_nodes_at_one_address_keep_their_ids(tmp_path: Path) -> None:
    """Several raylets on one machine."""
    given = [PhysicalNode(name, "10.0.0.1", {"CPU": 8.0}, {"CPU": 8.0}) for name in ("a", "b")]
    _, nodes = read_again(tmp_path, *given)
    assert nodes == given


def test_what_ray_says_at_different_moments_is_written_without_contradiction(tmp_path: Path) -> None:
    """What is free lags behind what is held, and what has just ended may still be listed."""
    held = [Holder("actor", name, name, "", {"GPU": amount}) for name, amount in (("a", 4.0), ("b", 3.0), ("ended", 4.0))]
    node = PhysicalNode("node-10.0.0.1", "10.0.0.1", {"GPU": 8.0, "CPU": 8.0}, {"GPU": 8.0, "CPU": 8.0}, holders=tuple(held))
    _, nodes = read_again(tmp_path, node)
    assert nodes == [evolve(node, free={"GPU": 1.0, "CPU": 8.0}, holders=tuple(held[:2]))]


def test_amounts_and_names_that_only_a_real_cluster_has_are_read_again(tmp_path: Path) -> None:
    """More memory than 1e12 bytes; a custom resource that is nearly named as one of Ray's own; names of a machine of another file."""
    total = {"CPU": 8.0, "memory": 4e12, "gpus": 2.0}
    node = PhysicalNode("node-10.0.0.1", "10.0.0.1", total, total, labels={"zone": "a", "rl_cluster/file-address": "10.9.9.9"})
    _, nodes = read_again(tmp_path, node)
    with_none = {**total, "GPU": 0.0}
    assert nodes == [evolve(node, total=with_none, free=with_none, labels={"zone": "a"})]


def test_a_sliver_of_a_huge_amount_is_no_contradiction(tmp_path: Path) -> None:
    """A float of 5e12 does not tell 0.3333 exactly."""
    total = {"CPU": 1.0, "memory": 5e12}
    node = PhysicalNode("node-10.0.0.1", "10.0.0.1", total, total, holders=(Holder("actor", "a", "a", "", {"memory": 0.3333}),))
    _, (again,) = read_again(tmp_path, node)
    assert again.holders == node.holders


AMOUNTS = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "gpu", "GPUs", "memory", "object_store_memory", "node:10.0.0.1", "a b"]),
    st.one_of(st.integers(0, 9), st.sampled_from([0.5, 0.3333, 2.7, 5e12])).map(float),
)

HOLDERS = st.builds(Holder, st.just("actor"), st.sampled_from(["", "null", "07"]), st.just("5e3"), st.just(""), AMOUNTS)
LABELS = st.dictionaries(st.sampled_from(["zone", "yes", "rl_cluster/file-address"]), st.sampled_from(["", "no", "1e3"]))


@st.composite
def seen_nodes(draw: st.DrawFn) -> Inventory:
    """What Ray may say: of nodes at few addresses, some of them dead, with holders that fit or don't."""
    nodes = []
    for number in range(draw(st.integers(1, 5))):
        total = draw(AMOUNTS)
        state = draw(st.sampled_from(["alive", "draining", "dead"]))
        holders = draw(st.lists(HOLDERS, max_size=3))
        free = {name: draw(st.sampled_from([amount, amount / 2, 0.0])) for name, amount in total.items()}
        nodes.append(
            PhysicalNode(
                f"id{number}",
                draw(st.sampled_from(["10.0.0.1", "10.0.0.2", "::1", "gpu²"])),
                total,
                {} if state == "dead" else free,
                hostname=draw(st.sampled_from(["", "on", "7"])),
                labels=draw(LABELS),
                state=state,
                holders=() if state == "dead" else tuple(holders),
            )
        )
    return Inventory(tuple(nodes), source="ray at 10.0.0.1:6379")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine fails no test
@given(seen_nodes())
def test_whatever_was_seen_can_be_read_again(seen: Inventory) -> None:
    """Every living node is there, at its address, with its resources and no more free than it had."""
    read = parse_inventory(yaml.safe_load(dump_inventory(seen))).nodes
    for state in ("alive", "draining"):
        before, after = ([node for node in nodes if node.state == state] for nodes in (seen.nodes, read))
        assert [(node.address, node.hostname) for node in after] == [(node.address, node.hostname) for node in before]
        for old, new in zip(before, after, strict=True):
            kept = {name: amount for name, amount in old.total.items() if name not in ("node:10.0.0.1", "object_store_memory")}
            assert {name: new.total[name] for name in kept} == kept
            assert not any(amount for name, amount in new.total.items() if name not in kept)
            assert all(new.free[name] <= old.free[name] for name in kept)
    assert {node.address for node in read} == {node.address for node in seen.nodes}
