"""Inventory files: what they say and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.plan import Layout, plan_layout
from rl_cluster.planning.inventory_file import NODE_KEYS, load_inventory, parse_inventory
from rl_cluster.schema import ClusterSpec

EXAMPLES = Path(__file__).parents[2] / "examples" / "inventories"


def test_a_file_says_nodes(tmp_path: Path) -> None:
    """Addresses rise with ``count``; ``free`` is as much as ``resources`` where nothing else is said."""
    path = tmp_path / "two.yaml"
    path.write_text(
        """
        nodes:
          - address: 10.0.0.255
            count: 2
            resources: {GPU: 8, CPU: 16}
            free: {GPU: 4}
            labels: {zone: a, rl_cluster/x: 1}
          - {resources: {CPU: 2.5}, head: true, hostname: front, state: draining}
        """
    )
    amounts, free, labels = {"GPU": 8.0, "CPU": 16.0}, {"GPU": 4.0, "CPU": 16.0}, {"zone": "a", "rl_cluster/x": "1"}
    assert load_inventory(path) == Inventory(
        (
            PhysicalNode("node-10.0.0.255", "10.0.0.255", amounts, free, labels=labels),
            PhysicalNode("node-10.0.1.0", "10.0.1.0", amounts, free, labels=labels),
            PhysicalNode("node-10.0.0.3", "10.0.0.3", {"CPU": 2.5}, {"CPU": 2.5}, hostname="front", is_head=True, state="draining"),
        ),
        source=f"file {path}",
    )


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        pytest.param(None, ["nodes: must be a list with at least one node, got None"], id="empty"),
        pytest.param({"nodes": []}, ["nodes: must be a list with at least one node, got []"], id="no-nodes"),
        pytest.param({"nodes": {"a": 1}}, ["nodes: must be a list with at least one node, got {'a': 1}"], id="a-group-of-nodes"),
        pytest.param({"node": []}, ["nodes: must be a list with at least one node, got ['node']"], id="another-key"),
        pytest.param([1], ["nodes: must be a list with at least one node, got [1]"], id="a-list"),
        pytest.param({"nodes": [7]}, ["nodes[0]: must be a mapping with resources, got 7"], id="a-number-for-a-node"),
        pytest.param({"nodes": [{"address": "10.0.0.1"}]}, ["nodes[0].resources: must be there, got None"], id="no-resources"),
        pytest.param(
            {"nodes": [{"resources": {"GPU": "eight", "CPU": -1, "nic": True}, "count": 0}]},
            [
                "nodes[0].count: must be a whole number from 1 to 100000, got 0",
                "nodes[0].resources.GPU: must be a number, at least 0, got 'eight'",
                "nodes[0].resources.CPU: must be a number, at least 0, got -1",
                "nodes[0].resources.nic: must be a number, at least 0, got True",
            ],
            id="amounts",
        ),
        pytest.param(
            {"nodes": [{"resources": {"GPU": 1, "CPU": 1}, "free": {"GPU": 9, "TPU": 1}}]},
            [
                "nodes[0].free.GPU: must be at most what resources says (1), got 9.0",
                "nodes[0].free.TPU: must be one of resources, got 'TPU'. Fix: say it in resources as well",
            ],
            id="more-free-than-there-is",
        ),
        pytest.param(
            {"nodes": [{"resources": {"GPU": 1, "CPU": 1}, "free": {"gpu": 0, "GPUs": 1, "nic": 0}}]},
            [
                "nodes[0].free.gpu: must be one of resources, got 'gpu'. Fix: write GPU",
                "nodes[0].free.GPUs: must be one of resources, got 'GPUs'. Fix: write GPU",
                "nodes[0].free.nic: must be one of resources, got 'nic'. Fix: say it in resources as well",
            ],
            id="free-of-what-is-not-there",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": "1e9", "GPU": "8", "nic": "0x10", "memory": 10**14 + 1, "disk": "1.5e300", "ssd": "inf"}}]},
            [
                "nodes[0].resources.CPU: must be a number, at least 0, got '1e9' (a text in YAML: write 1000000000)",
                "nodes[0].resources.GPU: must be a number, at least 0, got '8' (a text in YAML: write 8)",
                "nodes[0].resources.nic: must be a number, at least 0, got '0x10'",
                "nodes[0].resources.memory: must be at most 100000000000000, got 100000000000001",
                "nodes[0].resources.disk: must be a number, at least 0, got '1.5e300' (a text in YAML: write 1.5e+300)",
                "nodes[0].resources.ssd: must be a number, at least 0, got 'inf'",
            ],
            id="numbers-that-yaml-takes-for-texts",
        ),
        pytest.param(
            {
                "nodes": [
                    {"resources": {"CPU": 1}, "labels": {"rl_cluster/topo-rank": rank}} for rank in ("nan", "-inf", "1e999", "first", "2")
                ]
            },
            [
                "nodes[0].labels.rl_cluster/topo-rank: must be a number, got 'nan'",
                "nodes[1].labels.rl_cluster/topo-rank: must be a number, got '-inf'",
                "nodes[2].labels.rl_cluster/topo-rank: must be a number, got '1e999'",
                "nodes[3].labels.rl_cluster/topo-rank: must be a number, got 'first'",
            ],
            id="topology-ranks",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "head": True}, {"resources": {"CPU": 1}}, {"resources": {"CPU": 1}, "head": True}]},
            ["nodes[2].head: must be true for one node at most, and is for nodes[0], got True"],
            id="two-heads",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "head": True, "count": 2}]},
            ["nodes[0].head: must be true for one node at most, and is for nodes[0], got True"],
            id="a-head-that-is-counted",
        ),
        pytest.param(
            {
                "nodes": [
                    {"resources": {"GPU": 8, "CPU": 8}, "holders": [{"kind": "actor", "resources": {"GPU": 2}}] * 2, "free": {"GPU": 5}},
                    {"resources": {"GPU": 8, "CPU": 8}, "holders": [{"kind": "actor", "resources": {"GPU": 9, "nic": 1}}]},
                    {"resources": {"GPU": 8, "CPU": 8}, "holders": [{"kind": "actor", "resources": {"GPU": 2}}], "free": {"GPU": 5}},
                ]
            },
            [
                "nodes[0].holders: must hold at most what is not free of GPU (5 of 8 free), got 4.0",
                "nodes[1].holders: must hold at most what is not free of GPU (8 of 8 free), got 9.0",
                "nodes[1].holders: must hold at most what is not free of nic (0 of 0 free), got 1.0",
            ],
            id="holders-of-what-is-free",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "holders": [{"kind": "actor", "name": None}]}]},
            ["nodes[0].holders[0].name: must be a text (YAML reads some words as other types: quote it), got None"],
            id="a-holder-without-a-name",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "hostname": name} for name in (None, 7, " ", "a b", "a\n", "node1²")]},
            [
                f"nodes[{index}].hostname: must be a host name, a text without a blank, got {shown}"
                for index, shown in enumerate(["None", "7", "' '", "'a b'", "'a\\n'"])
            ],
            id="host-names",
        ),
        pytest.param(
            {
                "nodes": [
                    {"resources": {"CPU": 1}, "address": address}
                    for address in (10, True, ["a"], None, "", " ", "10.0.0.1\n", "10.0.0.1:6379", "host:80", "[::1]", "::1", "node1²")
                ]
            },
            [
                f"nodes[{index}].address: must be an IP address or a host name, without a port or a blank{text}"
                for index, text in enumerate(
                    (
                        *(", a text, got 10", ", a text, got True", ", a text, got ['a']", ", a text, got None", ", got ''", ", got ' '"),
                        *(", got '10.0.0.1\\n'", ", got '10.0.0.1:6379'", ", got 'host:80'", ", got '[::1]'"),
                    )
                )
            ],
            id="addresses",
        ),
        pytest.param(
            {
                "nodes": [
                    {"resources": {"CPU": 1}, "address": "255.255.255.255", "count": 2},
                    {"resources": {"CPU": 1}, "address": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "count": 3},
                    {"resources": {"CPU": 1}, "address": "255.255.255.254", "count": 2},
                ]
            },
            [
                "nodes[0].address: must leave room for 2 addresses that rise by one, got '255.255.255.255'",
                "nodes[1].address: must leave room for 3 addresses that rise by one, got 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe'",
            ],
            id="the-end-of-all-addresses",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "address": "10.0.0.2"}, {"resources": {"CPU": 1}}, {"resources": {"CPU": 1}}]},
            ["nodes[1].address: must differ from that of nodes[0], got '10.0.0.2' by default. Fix: write the address of each node"],
            id="a-default-that-is-taken",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}}, {"resources": {"CPU": 1}, "address": "10.0.0.1"}]},
            [
                "nodes[1].address: must differ from that of nodes[0], which is a default, got '10.0.0.1'. "
                "Fix: write the address of each node"
            ],
            id="an-address-that-is-a-default",
        ),
        pytest.param(
            {
                "nodes": [
                    {"resources": {"CPU": 1}, "address": "10.0.0.1", "node_id": node_id, "count": count}
                    for node_id, count in (("a", 1), ("b", 1), ("a", 1), ("c", 2), (7, 1))
                ]
            },
            [
                "nodes[3].node_id: must be a printable text that is not empty, of one node (count: 1), got 'c'",
                "nodes[4].node_id: must be a printable text that is not empty, of one node (count: 1), got 7",
                "nodes[2].node_id: must differ from that of nodes[0], got 'a'",
            ],
            id="node-ids",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "count": 100_000}] * 11},
            ["nodes[10]: must be at most 1000000 nodes in all, got 1000001"],
            id="too-many-nodes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "lables": {}, "state": "gone", "head": "no", "labels": {"a": True}}], "node": []},
            [
                "node: must be one of nodes, source, got 'node'",
                "nodes[0].lables: must be one of address, count, node_id, resources, free, labels, hostname, head, state, holders, "
                "got 'lables'",
                "nodes[0].labels.a: must be a text (YAML reads some words as other types: quote it), got True",
                "nodes[0].state: must be one of alive, draining, dead, got 'gone'",
                "nodes[0].head: must be true or false, got 'no'",
            ],
            id="keys-and-words",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "address": "gpu-a", "count": 2}]},
            ["nodes[0].address: must be an IP address where count is more than 1, got 'gpu-a'"],
            id="a-name-can-not-be-counted",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "address": "10.0.0.2", "count": 2}, {"resources": {"CPU": 1}, "address": "10.0.0.3"}]},
            ["nodes[1].address: must differ from that of nodes[0], got '10.0.0.3'"],
            id="an-address-twice",
        ),
        pytest.param(
            {"nodes": [{"resources": {"CPU": 1}, "holders": [{"kind": "task"}]}]},
            [
                "nodes[0].holders[0]: must have the keys kind, name, id, job_id, resources and a kind of placement_group, actor, unknown, "
                "got {'kind': 'task'}"
            ],
            id="a-holder",
        ),
        pytest.param(
            {"nodes": [{"resources": {"GPUs": 8, "cpu": 16}}, {"resources": {"CPU": 1, "Memory": 4, "cpus": 1}}]},
            [
                "nodes[0].resources.GPUs: must be a resource by Ray's name, got 'GPUs'. Fix: write GPU",
                "nodes[0].resources.cpu: must be a resource by Ray's name, got 'cpu'. Fix: write CPU",
                "nodes[1].resources.Memory: must be a resource by Ray's name, got 'Memory'. Fix: write memory",
            ],
            id="nearly-a-resource-of-rays",
        ),
        pytest.param(
            {
                "nodes": [
                    {"adress": "10.0.0.1", "resources": {"CPU": 1}, "head": True},
                    {"address": 7, "resources": {"CPU": 1}, "head": True, "state": "aliv"},
                    {"address": "10.0.0.3", "resources": {"CPU": 1}},
                    {"address": "10.0.0.3", "resources": {"GPU": 8}, "holders": [{"kind": "actor", "nam": "x"}]},
                ]
            },
            [
                "nodes[0].adress: must be one of address, count, node_id, resources, free, labels, hostname, head, state, holders, "
                "got 'adress'. Fix: write address",
                "nodes[1].state: must be one of alive, draining, dead, got 'aliv'. Fix: write alive",
                "nodes[1].address: must be an IP address or a host name, without a port or a blank, a text, got 7",
                "nodes[3].resources: must say CPU, got ['GPU']. Fix: add CPU: <cores>, or CPU: 0 for a node that gives none",
                "nodes[3].holders[0].nam: must be one of kind, name, id, job_id, resources, got 'nam'. Fix: write name",
                "nodes[3].address: must differ from that of nodes[2], got '10.0.0.3'",
                "nodes[1].head: must be true for one node at most, and is for nodes[0], got True",
            ],
            id="all-at-once",
        ),
        pytest.param(
            {
                "nodes": [
                    {
                        "resources": {"CPU": 1, True: 3, "": 1, "a\nb": 1, 7: 1},
                        "free": {" x": 1},
                        "labels": {True: "x", "a\nb": "x", "zone": "a\nb", 7: "x"},
                        "address": "\ud800",
                        "hostname": "a\u200bb",
                        "node_id": "a\nb",
                    },
                ]
            },
            [
                "nodes[0].resources: must name a resource by a printable text, got True. "
                "Fix: write it in quotes: YAML reads some words as other types",
                "nodes[0].resources: must name a resource by a printable text, got ''",
                "nodes[0].resources: must name a resource by a printable text, got 'a\\nb'",
                "nodes[0].resources: must name a resource by a printable text, got 7. "
                "Fix: write it in quotes: YAML reads some words as other types",
                "nodes[0].free: must name a resource by a printable text, got ' x'",
                "nodes[0].labels: must name a label by a printable text, got True. "
                "Fix: write it in quotes: YAML reads some words as other types",
                "nodes[0].labels: must name a label by a printable text, got 'a\\nb'",
                "nodes[0].labels.zone: must be a printable text, got 'a\\nb'",
                "nodes[0].hostname: must be a host name, a text without a blank, got 'a\\u200bb'",
                "nodes[0].node_id: must be a printable text that is not empty, of one node (count: 1), got 'a\\nb'",
                "nodes[0].address: must be an IP address or a host name, without a port or a blank, got '\\ud800'",
            ],
            id="names-that-break-a-line",
        ),
        pytest.param(
            {"nodes": [{"resources": {"GPU": 8}}, {"resources": {"GPU": 8, "CPU": 0}}, {"resources": {"GPU": 8}, "state": "dead"}]},
            ["nodes[0].resources: must say CPU, got ['GPU']. Fix: add CPU: <cores>, or CPU: 0 for a node that gives none"],
            id="no-word-of-cpus",
        ),
    ],
)
def test_every_broken_rule_is_listed_with_its_place(content: object, problems: list[str]) -> None:
    """One line for each broken rule: place, rule, value."""
    with pytest.raises(ConfigError) as caught:
        parse_inventory(content, source="file x.yaml")
    assert list(caught.value.problems) == [f"inventory file x.yaml: {problem}" for problem in problems]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "must be a readable file, got No such file or directory. Fix: correct its path", id="missing"),
        pytest.param(b"nodes: [", "must be YAML, got while parsing", id="not-yaml"),
        pytest.param(b"nodes: " + b"9" * 5000, "must be YAML, got a number of more than 4300 digits", id="digits"),
        pytest.param(b"nodes: " + b"[" * 3000, "must be YAML, got more levels in each other than can be read", id="levels"),
        pytest.param(b"\xff\xfe", "must be a text file in UTF-8, got other bytes", id="not-text"),
    ],
)
def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    """The error has the path and what is wrong with it."""
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert str(caught.value).startswith(f"inventory {path}: {message}")


def test_a_key_that_stands_twice_is_named_with_its_line(tmp_path: Path) -> None:
    """YAML would keep the last one without a word. What a merge (``<<``) brings may be said anew."""
    path = tmp_path / "x.yaml"
    path.write_text("nodes:\n- &a {resources: {CPU: 1}, state: dead}\n- {<<: *a, state: alive}\n", encoding="utf-8")
    assert [node.state for node in load_inventory(path).nodes] == ["dead", "alive"]
    path.write_text("nodes:\n- {resources: {GPU: 8, CPU: 1,\n  GPU: 4}}\nnodes: []\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert list(caught.value.problems) == [
        f"inventory {path}: line 3: GPU: must stand once in its group, got it again",
        f"inventory {path}: line 4: nodes: must stand once in its group, got it again",
        f"inventory file {path}: nodes: must be a list with at least one node, got []",
    ]


@pytest.mark.parametrize(
    ("text", "line", "word", "read"),
    [
        pytest.param("CPU: 1:30", 2, "1:30", "90", id="base-60"),
        pytest.param("CPU: 1:30.5", 2, "1:30.5", "90.5", id="base-60-with-a-fraction"),
        pytest.param("CPU: 010", 2, "010", "8", id="base-8"),
        pytest.param("CPU: 0x10", 2, "0x10", "16", id="base-16"),
        pytest.param("CPU: 1}\n  labels: {rack: 1:30", 3, "1:30", "90", id="a-label"),
        pytest.param("CPU: 1}\n  labels: {1:30: a", 3, "1:30", "90", id="a-name-of-a-label"),
    ],
)
def test_a_number_that_yaml_reads_as_another_is_refused(tmp_path: Path, text: str, line: int, word: str, read: str) -> None:
    """YAML 1.1 counts 1:30 in sixties and 010 in eights, without a word."""
    path = tmp_path / "x.yaml"
    path.write_text(f"nodes:\n- resources: {{{text}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert list(caught.value.problems) == [
        f"inventory {path}: line {line}: must be a number that YAML leaves alone (it reads {word} as {read}), got '{word}'. "
        f"Fix: write {read} if that is meant, or '{word}' in quotes for a text"
    ]
    path.write_text("nodes: [{resources: {CPU: 16, memory: 2_000.5, GPU: 0, nic: 0.5}, labels: {a: '010', b: 10}}]", encoding="utf-8")
    assert load_inventory(path).nodes[0].labels == {"a": "010", "b": "10"}


def test_a_head_that_died_may_have_a_successor() -> None:
    """Only one living node is the head."""
    nodes = [{"resources": {"CPU": 1}, "head": True}, {"resources": {"CPU": 1}, "head": True, "state": "dead"}]
    assert [node.is_head for node in parse_inventory({"nodes": nodes}).nodes] == [True, True]


@pytest.mark.parametrize(
    ("name", "nodes", "spec", "expected"),
    [
        ("2x8", 2, ClusterSpec(num_nodes=2), ["10.0.0.1", "10.0.0.2"]),
        ("32x8_nvlink4", 33, ClusterSpec(num_nodes=2, segment_size=2), ["10.0.1.1", "10.0.1.2"]),
        ("mixed_a100_h100", 8, ClusterSpec(num_nodes=1, label_selector={"ray.io/accelerator-type": "A100"}), ["10.0.0.11"]),
        ("4_and_2", 2, ClusterSpec(bundle_ct_per_node_list=[4, 2]), ["10.0.0.1", "10.0.0.2"]),
    ],
    ids=["2x8", "32x8_nvlink4", "mixed_a100_h100", "4_and_2"],
)
def test_the_examples_can_be_planned_on(name: str, nodes: int, spec: ClusterSpec, expected: list[str]) -> None:
    """Each example file is read and holds what its name says."""
    inventory = load_inventory(EXAMPLES / f"{name}.yaml")
    answer = plan_layout(spec, inventory)
    assert isinstance(answer, Layout)
    addresses = {node.node_id: node.address for node in inventory.nodes}
    assert len(inventory.nodes) == nodes
    assert list(dict.fromkeys(addresses[bundle.node_id] for bundle in answer.bundles)) == expected


def test_the_example_of_the_page_is_a_file() -> None:
    """docs/inventory.md shows every key."""
    page = (EXAMPLES.parents[1] / "docs/inventory.md").read_text(encoding="utf-8")
    content = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    assert len(parse_inventory(content).nodes) == 9
    assert {key for entry in content["nodes"] for key in entry} == set(NODE_KEYS)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """It is refused by its size; this one takes no room."""
    path = tmp_path / "large.yaml"
    with open(path, "wb") as file:
        file.truncate(2**30)
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert str(caught.value) == f"inventory {path}: must have at most 64 MiB, got 1024.0 MiB"


@pytest.mark.parametrize(
    ("amount", "problem"),
    [
        pytest.param("1.e15", "nodes[0].resources.GPU: must be at most 100000000000000, got 1000000000000000.0", id="huge"),
        pytest.param("9" * 400, f"nodes[0].resources.GPU: must be at most 100000000000000, got {'9' * 400}", id="digits"),
        pytest.param(".inf", "nodes[0].resources.GPU: must be a number, at least 0, got inf", id="infinite"),
    ],
)
def test_an_amount_that_ray_can_not_count_is_refused(tmp_path: Path, amount: str, problem: str) -> None:
    """Whatever its size, it is a line and no OverflowError."""
    path = tmp_path / "machines.yaml"
    path.write_text(f"nodes: [{{resources: {{CPU: 1, GPU: {amount.replace('1.e15', '1.0e+15')}}}}}]", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    assert caught.value.problems == (f"inventory file {path}: {problem}",)
