"""What a person reads when a spec does not fit."""

from __future__ import annotations

import json
import pickle

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_cluster.errors import ResourceInsufficientError
from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.plan import render_shortfall
from rl_cluster.planning.naming import amount_writer, node_names
from tests.strategies import AMOUNTS, held, made_up_inventory, made_up_node, shortfall

DOMAIN = {"ray.io/gpu-domain": "a"}


BUSY = Inventory((made_up_node(6, AMOUNTS), held(made_up_node(8, AMOUNTS), 4)))


def test_the_whole_text_of_a_diagnosis() -> None:
    """Headline, a line per node and resource with its holders, then what would fit."""
    assert render_shortfall(shortfall(BUSY, num_nodes=2, strategy="STRICT_SPREAD")) == (
        "2 logical nodes of 8 GPUs on distinct machines: only node 10.0.0.7 has 8 GPUs free; "
        "10.0.0.9 has 4 free, 4 held by placement group 'other-job-node0' of job 02000000\n"
        "  node      resource  needed  free  total     held by\n"
        "  10.0.0.7  CPU            8    64     64\n"
        "            GPU            8     8      8\n"
        "  10.0.0.9  CPU            8    60     64     4 by placement group 'other-job-node0' of job 02000000\n"
        "            GPU            8     4      8  !  4 by placement group 'other-job-node0' of job 02000000\n"
        "It would fit if nothing were held.\n"
        "Fix: wait: it fits when placement group 'other-job-node0' of job 02000000 ends\n"
        "Fix: cluster.num_nodes=1 fits now\n"
        "Fix: cluster.gpus_per_node=4 fits now"
    )


def with_memory(*amounts: tuple[float, float]) -> Inventory:
    """Nodes with so many bytes in all, and free."""
    nodes = [({**AMOUNTS, "memory": total}, {**AMOUNTS, "memory": free}) for total, free in amounts]
    return Inventory(tuple(made_up_node(index, *node) for index, node in enumerate(nodes)))


def test_memory_is_told_in_units_of_people() -> None:
    """Bytes in all only where they are pasted."""
    keys = {"num_nodes": 2, "strategy": "STRICT_PACK", "resources": {"memory": 70e9}}
    answer = shortfall(with_memory((800e9, 500e9), (600e9, 1e9)), **keys)
    assert render_shortfall(answer) == (
        "2 logical nodes of 8 bundles of {CPU 1, GPU 1, memory 65.2 GiB} each on one machine: no node has that free: "
        "522 GiB memory needed on one; 10.0.0.1 has 466 GiB free, 279 GiB held; 10.0.0.2 has 954 MiB free, 558 GiB held\n"
        "  node      resource   needed     free    total     held by\n"
        "  10.0.0.1  CPU             8       64       64\n"
        "            GPU             8        8        8\n"
        "            memory    522 GiB  466 GiB  745 GiB  !\n"
        "  10.0.0.2  CPU             8       64       64\n"
        "            GPU             8        8        8\n"
        "            memory    522 GiB  954 MiB  559 GiB  !\n"
        "It would fit if nothing were held.\n"
        "Fix: wait: it fits when enough of what is held is given back\n"
        "Fix: cluster.gpus_per_node=3 fits now"
    )
    assert answer.nodes[0].reason == "memory: 522 GiB needed, 466 GiB free, 279 GiB held"


def test_a_byte_that_lacks_can_be_seen() -> None:
    """In the headline and in the table, what is needed and what is there look different."""
    answer = shortfall(with_memory((800e9 - 1, 800e9 - 1)), num_nodes=1, strategy="STRICT_PACK", resources={"memory": 100e9})
    assert answer.headline.endswith("745.058059692 GiB memory needed on one; 10.0.0.1 has 745.058059691 GiB in all")
    assert "memory    745.058059692 GiB  745.058059691 GiB  745.058059691 GiB  !" in render_shortfall(answer)


@settings(deadline=None)
@given(st.integers(1, 10**14), st.integers(0, 2**31), st.sampled_from([1, 2**10, 2**20, 2**30]))
def test_two_amounts_of_memory_never_look_the_same(needed: int, more: int, unit: int) -> None:
    """However little they differ, and just below a whole unit, too."""
    for amount in (needed, -(-needed // unit) * unit - 1):
        there = amount + (more % unit or 1)
        write = amount_writer("memory", amount, [there])
        values = []
        for text in (write(amount), write(there)):
            number, _, name = text.partition(" ")
            values.append(float(number) * {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1, "byte": 1, "": 1}[name])
        assert values[0] < values[1]
        assert values == pytest.approx([amount, there], rel=0.005)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "1 byte"), (1536, "1.5 KiB"), (2**20 - 1, "1 MiB"), (2**30 * 1.5, "1.5 GiB"), (1023 * 2**20, "1023 MiB")],
)
def test_amounts_in_bytes(amount: float, text: str) -> None:
    """Three digits, in the largest unit of which there is one; of other resources the number."""
    assert amount_writer("object_store_memory", amount)(amount) == text
    assert amount_writer("GPU", 0.5)(0.5) == "0.5"


@pytest.mark.parametrize(
    ("inventory", "keys", "never", "kind", "headline"),
    [
        pytest.param(
            made_up_inventory(8, cpus=16),
            {"num_nodes": 1, "strategy": "STRICT_PACK", "cpus_per_bundle": 3},
            True,
            "cpu",
            "1 logical node of 8 bundles of {CPU 3, GPU 1} on one machine: no machine is that large: 24 CPUs needed on one; "
            "10.0.0.1 has 16 in all",
            id="cpu-not-gpu",
        ),
        pytest.param(
            made_up_inventory(4, 2),
            {"bundle_ct_per_node_list": [3, 3], "strategy": "STRICT_SPREAD"},
            True,
            "accelerator",
            "2 logical nodes of 3 GPUs on distinct machines: only node 10.0.0.1 has 3 GPUs; 10.0.0.2 has 2 in all",
            id="a-machine-that-is-too-small-is-named",
        ),
        pytest.param(
            Inventory((held(made_up_node(0, AMOUNTS), 4), held(made_up_node(1, AMOUNTS), 4, name="b", kind="actor"))),
            {"num_nodes": 1, "strategy": "STRICT_PACK"},
            False,
            "accelerator",
            "1 logical node of 8 GPUs on one machine: no node has that free: 8 GPUs needed on one; "
            "10.0.0.1 has 4 free, 4 held by placement group 'other-job-node0' of job 02000000; "
            "10.0.0.2 has 4 free, 4 held by actor 'b' of job 02000000",
            id="totals-fit-but-no-machine",
        ),
        pytest.param(
            made_up_inventory(8),
            {"num_nodes": 1, "resources": {"nic": 1.0}},
            True,
            "custom",
            "1 logical node of 8 bundles of {CPU 1, GPU 1, nic 1}: with nothing held there is room for 0 of 8 bundles, nic is short; "
            "10.0.0.1 has 0 in all",
            id="custom-resource",
        ),
        pytest.param(
            made_up_inventory(8, 8),
            {"num_nodes": 1, "label_selector": {"zone": "a"}},
            True,
            "label",
            "1 logical node of 8 GPUs: no node may be used: 2 without the labels of cluster.label_selector",
            id="label",
        ),
        pytest.param(
            made_up_inventory(8, 8),
            {"num_nodes": 2, "exclude_nodes": ["10.0.0.2"], "strategy": "STRICT_SPREAD"},
            True,
            "excluded",
            "2 logical nodes of 8 GPUs on distinct machines: only 1 node has room for that; not used: 1 left out by cluster.exclude_nodes",
            id="excluded",
        ),
        pytest.param(
            Inventory((made_up_node(0, AMOUNTS, is_head=True), made_up_node(1, AMOUNTS))),
            {"num_nodes": 2, "use_head": "never", "strategy": "STRICT_SPREAD"},
            True,
            "head",
            "2 logical nodes of 8 GPUs on distinct machines: only 1 node has room for that; "
            "not used: the head node, left out by cluster.use_head=never",
            id="head",
        ),
        pytest.param(
            Inventory((made_up_node(0, {"CPU": 16}, is_head=True),)),
            {"num_nodes": 2},
            True,
            "accelerator",
            "2 logical nodes of 8 GPUs: no GPU anywhere: the only node is the head node 10.0.0.1, which has none",
            id="only-a-head-without-gpus",
        ),
        pytest.param(
            Inventory((made_up_node(0, {"CPU": 16}, is_head=True), made_up_node(1, AMOUNTS))),
            {"num_nodes": 2, "strategy": "STRICT_SPREAD"},
            True,
            "nodes",
            "2 logical nodes of 8 GPUs on distinct machines: only 1 node has room for that; not used: the head node, which has no GPU",
            id="a-head-without-gpus",
        ),
        pytest.param(
            Inventory((made_up_node(0, AMOUNTS, labels=DOMAIN), made_up_node(1, AMOUNTS))),
            {"num_nodes": 2, "segment_size": 2, "strategy": "STRICT_SPREAD"},
            True,
            "domain",
            "2 logical nodes of 8 GPUs on distinct machines, in segments of 2 in one NVLink domain: only 1 node has room for that; "
            "not used: 1 in no NVLink domain",
            id="domain",
        ),
        pytest.param(
            Inventory((made_up_node(0, AMOUNTS), made_up_node(1, AMOUNTS, state="draining"))),
            {"num_nodes": 2},
            True,
            "draining",
            "2 logical nodes of 8 GPUs: with nothing held there is room for 8 of 16 bundles; not used: 1 draining",
            id="draining",
        ),
        pytest.param(
            made_up_inventory(*[8] * 30),
            {"num_nodes": 40, "strategy": "STRICT_SPREAD"},
            True,
            "nodes",
            "40 logical nodes of 8 GPUs on distinct machines: only 30 nodes have room for that",
            id="too-few-machines",
        ),
        pytest.param(
            Inventory((held(made_up_node(0, AMOUNTS), 4), made_up_node(1, AMOUNTS))),
            {"num_nodes": 1, "gpus_per_node": 32, "strategy": "STRICT_PACK"},
            True,
            "accelerator",
            "1 logical node of 32 GPUs on one machine: no machine is that large: 32 GPUs needed on one; "
            "10.0.0.1 has 8 in all; 10.0.0.2 has 8 in all",
            id="a-machine-is-as-large-as-it-is-whoever-holds-it",
        ),
        pytest.param(
            made_up_inventory(0),
            {"num_nodes": 1, "gpus_per_node": 1},
            True,
            "accelerator",
            "1 logical node of 1 GPU: with nothing held there is room for 0 of 1 bundle, GPU is short; 10.0.0.1 has 0 in all",
            id="one-is-singular",
        ),
        pytest.param(
            made_up_inventory(0, cpus=0),
            {"num_nodes": 1, "gpus_per_node": 0, "bundles_per_node": 1},
            True,
            "cpu",
            "1 logical node of 1 bundle of {CPU 1}: with nothing held there is room for 0 of 1 bundle, CPU is short; 10.0.0.1 has 0 in all",
            id="one-bundle-is-singular",
        ),
        pytest.param(
            Inventory(()), {"num_nodes": 2}, True, "nodes", "2 logical nodes of 8 GPUs: no node may be used: there are none", id="no-nodes"
        ),
    ],
)
def test_the_headline_says_what_is_short(inventory: Inventory, keys: dict[str, object], never: bool, kind: str, headline: str) -> None:
    """GPU, CPU, custom resource and label are told apart, and never from not now."""
    answer = shortfall(inventory, **keys)
    assert (answer.headline, answer.never, answer.facts["kind"]) == (headline, never, kind)


def test_what_is_held_by_nobody_known_is_said_so() -> None:
    """Without holders the amount is named; a holder that Ray does not name is called that."""
    node = made_up_node(0, AMOUNTS, {"GPU": 2.0, "CPU": 64.0})
    answer = shortfall(Inventory((node,)), num_nodes=1)
    assert answer.nodes[0].reason == "GPU: 8 needed, 2 free, 6 held"
    node = evolve(node, holders=(Holder("unknown", "", "", "", {"GPU": 6.0}),))
    answer = shortfall(Inventory((node,)), num_nodes=1)
    assert (
        answer.nodes[0].reason == "GPU: 8 needed, 2 free, 6 held by something that Ray does not name (a task, or what ended a moment ago)"
    )


def test_nodes_of_one_address_are_told_apart_by_their_ids() -> None:
    """Headline and table call a machine as the drawing does."""
    amounts = {"GPU": 4.0, "CPU": 8.0}
    small = [PhysicalNode(f"{number}{'0' * 55}", "192.0.2.2", amounts, amounts) for number in (1, 2)]
    large = PhysicalNode(f"3{'0' * 55}", "192.0.2.2", {"GPU": 8.0, "CPU": 8.0}, {"GPU": 8.0, "CPU": 8.0})
    text = render_shortfall(shortfall(Inventory((*small, large)), num_nodes=2, strategy="STRICT_SPREAD"))
    assert text.splitlines()[0] == (
        "2 logical nodes of 8 GPUs on distinct machines: only node 192.0.2.2 (300000) has 8 GPUs; "
        "192.0.2.2 (100000) has 4 in all; 192.0.2.2 (200000) has 4 in all"
    )
    assert [line.partition("  CPU")[0].strip() for line in text.splitlines() if line.startswith("  192")] == [
        "192.0.2.2 (100000) to 192.0.2.2 (200000) (2 nodes)",
        "192.0.2.2 (300000)",
    ]


def test_ids_that_begin_alike_are_written_as_far_as_they_differ() -> None:
    """Those of a file may be host-10 and host-11; machines with an address of their own need none."""
    addresses = {"host-1": "10.0.0.1", "host-10": "10.0.0.1", "host-11": "10.0.0.1", "host-12": "10.0.0.2"}
    assert list(node_names(addresses).values()) == ["10.0.0.1 (host-1)", "10.0.0.1 (host-10)", "10.0.0.1 (host-11)", "10.0.0.2"]


HARD_TO_PACK = [7] * 8 + [5] * 11 + [4] * 7 + [3] * 13  # into nine machines of 20: 176 of 180, and more than a search gets through


def test_what_was_not_searched_whole_is_not_promised() -> None:
    """Neither "never" nor "it would fit" where a search was cut short."""
    answer = shortfall(made_up_inventory(*[20] * 9), bundle_ct_per_node_list=HARD_TO_PACK, strategy="STRICT_PACK")
    assert (answer.never, answer.facts["proven"]) == (False, False)
    assert not any(text.startswith("wait") for text in answer.suggestions)
    assert "No layout was found with nothing held either; it is too large to try all, so there may be one." in render_shortfall(answer)


def test_the_keys_are_those_of_the_config() -> None:
    """Where the cluster is a part of something its suggestions name its own keys, and the text its name."""
    moved = shortfall(BUSY, num_nodes=2, strategy="STRICT_SPREAD").at("policy", "policy.cluster")
    assert moved.suggestions == (
        "wait: it fits when placement group 'other-job-node0' of job 02000000 ends",
        "policy.cluster.num_nodes=1 fits now",
        "policy.cluster.gpus_per_node=4 fits now",
    )
    assert render_shortfall(moved).startswith("policy: 2 logical nodes of 8 GPUs on distinct machines: ")


def test_alike_neighbours_share_their_lines() -> None:
    """A thousand equal nodes are two lines."""
    text = render_shortfall(shortfall(made_up_inventory(*[4] * 200), num_nodes=1, strategy="STRICT_PACK"))
    assert [line for line in text.splitlines() if "10.0.0" in line][1:] == [
        "  10.0.0.1 to 10.0.0.200 (200 nodes)  CPU            8   128    128"
    ]


def test_a_shortfall_is_plain_data_and_an_error() -> None:
    """``to_dict`` is JSON; ``to_error`` carries the text and the record through pickling."""
    answer = shortfall(BUSY, num_nodes=2, strategy="STRICT_SPREAD")
    data = json.loads(json.dumps(answer.to_dict()))
    assert data["nodes"][1]["holders"] == [
        {
            "kind": "placement_group",
            "name": "other-job-node0",
            "id": "id-other-job-node0",
            "job_id": "02000000",
            "resources": {"GPU": 4.0, "CPU": 4.0},
        }
    ]
    assert (data["never"], data["facts"]["lacking"], data["nodes"][1]["lacking"]) == (False, ["GPU"], ["GPU"])
    error = pickle.loads(pickle.dumps(answer.to_error()))
    assert isinstance(error, ResourceInsufficientError)
    assert (str(error), error.shortfall) == (render_shortfall(answer), answer)
