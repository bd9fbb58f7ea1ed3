"""The specs check themselves wherever they are made."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import attrs
import pytest

from rl_cluster.errors import ConfigError
from rl_cluster.ground.process_rules import RANK_VARIABLES
from rl_cluster.ground.rules import AtLeast, OneOf, RuleBroken
from rl_cluster.schema import (
    ClusterSpec,
    EnvSpec,
    NumaSpec,
    PythonSpec,
    RaySpec,
    RunSpec,
    WorkerSpec,
    resolve_local,
)

LABEL_RULE = "must be a Ray label selector: v, '!v', 'in(a, b)' or '!in(a, b)'"
LABEL_FIX = "Fix: write one value, or in(...) with letters, digits, '-', '_' and '.' in each value"
LEAVE_NODES = "Fix: leave num_nodes out (null): the list says it"
LEAVE_BUNDLES = "Fix: leave bundles_per_node out (null): the list says it"
NO_RANKS = "Fix: write none of these: the layout sets the rank variables in every worker"
RANK_LIST = "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT"


def problems_of(kind: type, /, **values: object) -> list[str]:
    """The problems of a spec that can't be made."""
    with pytest.raises(ConfigError) as caught:
        kind(**values)
    return list(caught.value.problems)


CLUSTER_PROBLEMS = {
    "num_nodes": (dict(num_nodes=-4), "num_nodes: must be at least 1, got -4"),
    "num_nodes_zero": (dict(num_nodes=0), "num_nodes: must be at least 1, got 0"),
    "gpus": (dict(gpus_per_node=-1), "gpus_per_node: must be at least 0, got -1"),
    "gpus_none": (dict(gpus_per_node=None), "gpus_per_node: must be a whole number, got None"),
    "gpus_bool": (dict(gpus_per_node=True), "gpus_per_node: must be a whole number, got True"),
    "gpus_float": (dict(gpus_per_node=8.5), "gpus_per_node: must be a whole number, got 8.5"),
    "bundles": (dict(bundles_per_node=0), "bundles_per_node: must be at least 1, got 0"),
    "strategy": (
        dict(strategy="SPRED"),
        "strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
    ),
    "strategy_case": (
        dict(strategy="strict_pack"),
        "strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'strict_pack'. Fix: write STRICT_PACK",
    ),
    "strategy_far": (dict(strategy="zzz"), "strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'zzz'"),
    "use_gpus": (dict(use_gpus="maybe"), "use_gpus: must be true or false, got 'maybe'"),
    "name": (dict(name=None), "name: must be a text, got None"),
    "colocated": (dict(max_colocated_worker_groups=0), "max_colocated_worker_groups: must be at least 1, got 0"),
    "cpus_negative": (dict(cpus_per_bundle=-0.5), "cpus_per_bundle: must be at least 0, got -0.5"),
    "cpus_infinite": (dict(cpus_per_bundle="inf"), "cpus_per_bundle: must be finite, got inf"),
    "accelerator": (dict(accelerator="CPU"), "accelerator: must not be CPU, which is no accelerator, got 'CPU'. Fix: write GPU"),
    "use_head": (dict(use_head="nevr"), "use_head: must be auto, always or never, got 'nevr'. Fix: write never"),
    "exclude_text": (dict(exclude_nodes="10.0.0.1"), "exclude_nodes: must be a list, got '10.0.0.1'. Fix: write [10.0.0.1]"),
    "exclude_empty": (dict(exclude_nodes=["a", " "]), "exclude_nodes[1]: must be a text that is not empty, got ' '"),
    "segment": (dict(segment_size=0), "segment_size: must be at least 1, got 0"),
    "timeout": (dict(timeout_s=0), "timeout_s: must be more than 0, got 0.0"),
    "timeout_nan": (dict(timeout_s=float("nan")), "timeout_s: must be more than 0, got nan"),
    "port_low": (dict(master_port_range_low=0), "master_port_range_low: must be from 1 to 65535, got 0"),
    "port_high": (dict(master_port_range_high=70000), "master_port_range_high: must be from 1 to 65535, got 70000"),
    "port_order": (
        dict(master_port_range_low=2000, master_port_range_high=1400),
        "master_port_range_high: must be more than master_port_range_low, got 1400 with master_port_range_low 2000. "
        "Fix: swap the two, or leave both out",
    ),
    "port_empty": (
        dict(master_port_range_low=2000),
        "master_port_range_high: must be more than master_port_range_low, got 2000 with master_port_range_low 2000. "
        "Fix: swap the two, or leave both out",
    ),
    "resource_gpu": (
        dict(resources={"GPU": 1}),
        "resources.GPU: must not be GPU, which has a key of its own, got 'GPU'. Fix: use cpus_per_bundle and use_gpus",
    ),
    "resource_zero": (dict(resources={"nic": 0}), "resources.nic: must be more than 0, got 0.0"),
    "resource_word": (dict(resources={"nic": "many"}), "resources.nic: must be a number, got 'many'"),
    "resource_accelerator": (
        dict(accelerator="NPU", resources={"NPU": 1}),
        "resources: must not name the accelerator, got {'NPU': 1.0}. Fix: leave it out: each bundle gets one",
    ),
    "label_key": (
        dict(label_selector={"-zone": "a"}),
        "label_selector.-zone: must be a Ray label key such as ray.io/accelerator-type, got '-zone'",
    ),
    "label_empty_in": (dict(label_selector={"zone": "in()"}), f"label_selector.zone: {LABEL_RULE}, got 'in()'. {LABEL_FIX}"),
    "label_equals": (dict(label_selector={"zone": "=a"}), f"label_selector.zone: {LABEL_RULE}, got '=a'. {LABEL_FIX}"),
    "label_open": (dict(label_selector={"zone": "in(a, b"}), f"label_selector.zone: {LABEL_RULE}, got 'in(a, b'. {LABEL_FIX}"),
    "label_none": (dict(label_selector={"zone": None}), "label_selector.zone: must be a text, got None"),
    "list_empty": (
        dict(bundle_ct_per_node_list=[]),
        "bundle_ct_per_node_list: must have a bundle at least, got []. Fix: write one entry per node, e.g. [8, 4]",
    ),
    "list_zeros": (
        dict(bundle_ct_per_node_list=[0, 0]),
        "bundle_ct_per_node_list: must have a bundle at least, got [0, 0]. Fix: write one entry per node, e.g. [8, 4]",
    ),
    "num_nodes_huge": (dict(num_nodes=100_001), "num_nodes: must be at most 100000, got 100001"),
    "gpus_huge": (dict(gpus_per_node=10**6), "gpus_per_node: must be at most 100000, got 1000000"),
    "bundles_huge": (dict(bundles_per_node=10**6), "bundles_per_node: must be at most 100000, got 1000000"),
    "colocated_huge": (dict(max_colocated_worker_groups=10**6), "max_colocated_worker_groups: must be at most 100000, got 1000000"),
    "segment_huge": (dict(segment_size=10**6), "segment_size: must be at most 100000, got 1000000"),
    "world_size": (dict(num_nodes=100_000, gpus_per_node=11), "num_nodes: must make at most 1000000 bundles in all, got 1100000"),
    "world_size_of_a_list": (
        dict(bundle_ct_per_node_list=[100_000] * 11),
        "bundle_ct_per_node_list: must make at most 1000000 bundles in all, got 1100000",
    ),
    "list_long": (
        dict(bundle_ct_per_node_list=[1] * 100_001),
        "bundle_ct_per_node_list: must have at most 100000 entries, got 100001 entries",
    ),
    "list_huge": (dict(bundle_ct_per_node_list=[8, 10**6]), "bundle_ct_per_node_list[1]: must be at most 100000, got 1000000"),
    "timeout_infinite": (dict(timeout_s="inf"), "timeout_s: must be at most 10000000, got inf"),
    "timeout_digits": (dict(timeout_s=10**400), f"timeout_s: must be a number of at most 308 digits, got {10**400}"),
    "cpus_huge": (dict(cpus_per_bundle=1e13), "cpus_per_bundle: must be at most 1000000000000, got 10000000000000.0"),
    "resource_huge": (dict(resources={"nic": 1e13}), "resources.nic: must be at most 1000000000000, got 10000000000000.0"),
    "digits": (dict(num_nodes=10**400), f"num_nodes: must be at most 100000, got {10**400}"),
    "more_digits": (dict(num_nodes=1 << 20_000), "num_nodes: must be at most 100000, got a number of 20001 bits"),
    "nul": (dict(name="a\0b"), "name: must hold no NUL character, got one. Fix: remove it"),
    "nul_in_a_list": (dict(exclude_nodes=["a", "b\0"]), "exclude_nodes[1]: must hold no NUL character, got one. Fix: remove it"),
    "list_negative": (dict(bundle_ct_per_node_list=[4, -1]), "bundle_ct_per_node_list[1]: must be at least 0, got -1"),
    "list_number": (dict(bundle_ct_per_node_list=8), "bundle_ct_per_node_list: must be a list, got 8. Fix: write [8]"),
    "list_and_num_nodes": (
        dict(bundle_ct_per_node_list=[8, 4], num_nodes=3),
        f"bundle_ct_per_node_list: must have one entry per logical node, got [8, 4] (2 entries) with num_nodes 3. {LEAVE_NODES}",
    ),
    "list_and_one_node": (
        dict(bundle_ct_per_node_list=[8, 4], num_nodes=1),
        f"bundle_ct_per_node_list: must have one entry per logical node, got [8, 4] (2 entries) with num_nodes 1. {LEAVE_NODES}",
    ),
    "list_and_bundles": (
        dict(bundle_ct_per_node_list=[8, 4], bundles_per_node=8),
        f"bundle_ct_per_node_list: must agree with bundles_per_node, got [8, 4] with bundles_per_node 8. {LEAVE_BUNDLES}",
    ),
    "more_bundles_than_gpus": (
        dict(gpus_per_node=4, bundles_per_node=8),
        "bundles_per_node: must be at most gpus_per_node when bundles use GPUs, got 8 with gpus_per_node 4. "
        "Fix: set gpus_per_node to 8, or use_gpus to false",
    ),
    "no_bundles_on_two_cpu_nodes": (
        dict(num_nodes=2, gpus_per_node=0),
        "bundles_per_node: must be given for a CPU-only cluster (gpus_per_node 0), got None. "
        "Fix: set bundles_per_node to the bundles of one node",
    ),
    "empty_bundle": (
        dict(gpus_per_node=0, bundles_per_node=2, cpus_per_bundle=0),
        "cpus_per_bundle: must be more than 0 for bundles without a GPU, got 0.0. Fix: leave it out",
    ),
}


@pytest.mark.parametrize(("values", "problem"), CLUSTER_PROBLEMS.values(), ids=CLUSTER_PROBLEMS.keys())
def test_a_bad_cluster_value_is_named_with_its_rule_and_value(values: dict[str, object], problem: str) -> None:
    """One line: field, rule, value, and what to write where that is known."""
    assert problems_of(ClusterSpec, **values) == [problem]


OTHER_PROBLEMS = {
    "cpu_bind": (NumaSpec, dict(cpu_bind="nod"), "cpu_bind: must be node, exclusive, socket or none, got 'nod'. Fix: write node"),
    "mempolicy": (
        NumaSpec,
        dict(mempolicy="prefered"),
        "mempolicy: must be bind, preferred or interleave, got 'prefered'. Fix: write preferred",
    ),
    "source": (
        NumaSpec,
        dict(source="nvidia-smi"),
        "source: must be auto, affinity_file, sysfs, nvml or nvidia_smi, got 'nvidia-smi'. Fix: write nvidia_smi",
    ),
    "membind": (NumaSpec, dict(membind=2), "membind: must be true or false, got 2"),
    "affinity_file": (NumaSpec, dict(affinity_file=""), "affinity_file: must be a text that is not empty, got ''"),
    "cpu_workers": (NumaSpec, dict(cpu_workers="spred"), "cpu_workers: must be none or spread, got 'spred'. Fix: write spread"),
    "executable": (
        PythonSpec,
        dict(executable="VLM"),
        "executable: must be SYSTEM, BASE, VLLM or a command line, got 'VLM'. Fix: write VLLM",
    ),
    "executable_case": (
        PythonSpec,
        dict(executable="base"),
        "executable: must be SYSTEM, BASE, VLLM or a command line, got 'base'. Fix: write BASE",
    ),
    "kind": (RaySpec, dict(kind="simulate"), "kind: must be auto, local or simulated, got 'simulate'. Fix: write simulated"),
    "address": (
        RaySpec,
        dict(kind="simulated", address="10.0.0.1:6379"),
        "address: must be left out with kind simulated, which starts a Ray of its own, got '10.0.0.1:6379'. "
        "Fix: leave address out, or write kind auto (ray=auto) to use that cluster",
    ),
    "num_cpus": (RaySpec, dict(num_cpus=0), "num_cpus: must be at least 1, got 0"),
    "simulated_nodes": (RaySpec, dict(simulated_nodes=0), "simulated_nodes: must be at least 1, got 0"),
    "target": (
        WorkerSpec,
        dict(target="MyClass"),
        "target: must be an import path of a class, got 'MyClass'. Fix: write package.module.Class",
    ),
    "target_file": (
        WorkerSpec,
        dict(target="pkg/mod.py"),
        "target: must be an import path of a class, got 'pkg/mod.py'. Fix: write package.module.Class",
    ),
    "method": (WorkerSpec, dict(method="run()"), "method: must be the name of a method, got 'run()'"),
    "method_init": (
        WorkerSpec,
        dict(method="__init__"),
        "method: must not be __init__, which is called at its own time, got '__init__'. Fix: write the name of a method of your own",
    ),
    "method_of_the_library": (
        WorkerSpec,
        dict(method="_rl_cluster_start"),
        "method: must not be _rl_cluster_start, which is called at its own time, got '_rl_cluster_start'. "
        "Fix: write the name of a method of your own",
    ),
    "kwargs_self": (
        WorkerSpec,
        dict(kwargs={"self": 1}),
        "kwargs.self: must not be self, which Python itself passes, got 'self'. Fix: leave it out",
    ),
    "kwargs": (WorkerSpec, dict(kwargs=[1]), "kwargs: must be a mapping, got [1]"),
    "start_timeout": (WorkerSpec, dict(start_timeout_s=-1), "start_timeout_s: must be more than 0, got -1.0"),
    "start_timeout_infinite": (WorkerSpec, dict(start_timeout_s="inf"), "start_timeout_s: must be at most 10000000, got inf"),
    "build_timeout_infinite": (PythonSpec, dict(build_timeout_s="inf"), "build_timeout_s: must be at most 10000000, got inf"),
    "simulated_nodes_huge": (RaySpec, dict(simulated_nodes=10**6), "simulated_nodes: must be at most 100000, got 1000000"),
    "simulated_gpus_huge": (RaySpec, dict(simulated_gpus_per_node=10**6), "simulated_gpus_per_node: must be at most 100000, got 1000000"),
    "set_nul": (EnvSpec, dict(set={"HF_TOKEN": "hf_1\0"}), "set.HF_TOKEN: must hold no NUL character, got one. Fix: remove it"),
    "forward_pattern": (
        EnvSpec,
        dict(forward=["NCCL_*", "MASTER_*"]),
        f"forward[1]: must not match a rank variable ({RANK_LIST}), got 'MASTER_*'. {NO_RANKS}",
    ),
    "forward_text": (EnvSpec, dict(forward=["A B"]), "forward[0]: must be a variable's name or a pattern NAME_*, got 'A B'"),
    "set_name": (EnvSpec, dict(set={"A-B": "1"}), "set.A-B: must be a variable's name, got 'A-B'"),
    "mode": (RunSpec, dict(mode="pln"), "mode: must be up, plan or prefetch, got 'pln'. Fix: write plan"),
    "inventory": (
        RunSpec,
        dict(inventory="tomorrow.yaml"),
        "inventory: must be left out with mode up, got 'tomorrow.yaml'. Fix: write mode=plan, or ray=simulated",
    ),
    "cluster": (RunSpec, dict(cluster="2x8_spread"), "cluster: must be a ClusterSpec, got '2x8_spread'"),
}


@pytest.mark.parametrize(("kind", "values", "problem"), OTHER_PROBLEMS.values(), ids=OTHER_PROBLEMS.keys())
def test_a_bad_value_of_the_other_groups_is_named(kind: type, values: dict[str, object], problem: str) -> None:
    """The same pattern holds in every group."""
    assert problems_of(kind, **values) == [problem]


@pytest.mark.parametrize("name", RANK_VARIABLES)
def test_a_rank_variable_can_be_neither_set_nor_forwarded(name: str) -> None:
    """The layout alone gives ranks."""
    assert problems_of(EnvSpec, set={name: "0"}) == [
        f"set.{name}: must not be {name}, which the layout itself sets, got '{name}'. {NO_RANKS}"
    ]
    assert problems_of(EnvSpec, forward=[name]) == [f"forward[0]: must not match a rank variable ({RANK_LIST}), got '{name}'. {NO_RANKS}"]


def test_all_bad_values_of_one_spec_are_listed() -> None:
    """Nobody mends a config line by line."""
    assert problems_of(ClusterSpec, num_nodes=-4, gpus_per_node=-1, strategy="SPRED") == [
        "num_nodes: must be at least 1, got -4",
        "gpus_per_node: must be at least 0, got -1",
        "strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
    ]


@pytest.mark.parametrize(
    ("values", "counts", "num_nodes", "node_count", "world_size"),
    [
        pytest.param({}, [8], 1, 1, 8, id="default"),
        pytest.param(dict(num_nodes=2), [8, 8], 2, 2, 16, id="2x8"),
        pytest.param(dict(num_nodes=2, bundles_per_node=3), [3, 3], 2, 2, 6, id="fewer_bundles"),
        pytest.param(dict(bundle_ct_per_node_list=[8, 4]), [8, 4], 2, 2, 12, id="uneven"),
        pytest.param(dict(bundle_ct_per_node_list=[4, 0, 2]), [4, 0, 2], 3, 2, 6, id="node_without_bundles"),
        pytest.param(dict(bundle_ct_per_node_list=[8, 4], num_nodes=2), [8, 4], 2, 2, 12, id="list_agrees_with_num_nodes"),
        pytest.param(dict(bundle_ct_per_node_list=[4, 4], bundles_per_node=4), [4, 4], 2, 2, 8, id="list_agrees_with_bundles"),
        pytest.param(dict(num_nodes=2, gpus_per_node=0, bundles_per_node=2), [2, 2], 2, 2, 4, id="cpu_only"),
        pytest.param(dict(gpus_per_node=4, use_gpus=False, bundles_per_node=16), [16], 1, 1, 16, id="more_bundles_than_gpus_unused"),
    ],
)
def test_counts_follow_from_the_keys(
    values: dict[str, object], counts: list[int], num_nodes: int, node_count: int, world_size: int
) -> None:
    """num_nodes counts logical nodes, node_count those with bundles."""
    spec = ClusterSpec(**values)  # type: ignore[arg-type]
    assert (spec.bundle_counts, spec.num_nodes, spec.node_count, spec.world_size) == (counts, num_nodes, node_count, world_size)


@pytest.mark.parametrize(
    ("values", "resources"),
    [
        pytest.param({}, {"CPU": 1.0, "GPU": 1.0}, id="default"),
        pytest.param(dict(max_colocated_worker_groups=2), {"CPU": 2.0, "GPU": 1.0}, id="a_cpu_per_colocated_group"),
        pytest.param(dict(cpus_per_bundle=0), {"GPU": 1.0}, id="no_cpu"),
        pytest.param(dict(use_gpus=False), {"CPU": 1.0}, id="use_gpus_off"),
        pytest.param(dict(gpus_per_node=0, bundles_per_node=1), {"CPU": 1.0}, id="gpus_per_node_0_means_cpu_only"),
        pytest.param(dict(gpus_per_node=0, bundle_ct_per_node_list=[2]), {"CPU": 1.0}, id="gpus_per_node_0_with_a_list"),
        pytest.param(dict(accelerator="NPU", resources={"nic": 0.5}), {"CPU": 1.0, "NPU": 1.0, "nic": 0.5}, id="npu_and_nic"),
    ],
)
def test_a_bundle_takes_what_the_keys_say(values: dict[str, object], resources: dict[str, float]) -> None:
    """In Ray's names, without zeros."""
    assert ClusterSpec(**values).bundle_resources == resources  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", ["a", "!a", "in(a, b)", "in(a,b)", "!in(a, b)", "H100-80GB_x.y", ""])
def test_every_form_of_rays_label_selector_is_taken(selector: str) -> None:
    """Equals, not, in, not in, as Ray writes them."""
    assert ClusterSpec(label_selector={"ray.io/accelerator-type": selector}).label_selector == {"ray.io/accelerator-type": selector}


@pytest.mark.parametrize(
    "executable", ["SYSTEM", "BASE", "VLLM", "/opt/py/bin/python", "uv run --with vllm", "python3.12", "python", "conda"]
)
def test_an_executable_is_one_of_three_words_or_any_command_line(executable: str) -> None:
    """A command line is never taken for a slip."""
    assert PythonSpec(executable=executable).executable == executable


@pytest.mark.parametrize(
    ("cpus", "cpus_per_bundle", "bundles"),
    [(8, None, 8), (8, 3, 2), (0.5, None, 1), (2.9, 1, 2), (1, 4, 1)],
)
def test_an_open_spec_gets_as_many_bundles_as_the_cpus_allow(cpus: float, cpus_per_bundle: float | None, bundles: int) -> None:
    """At least one, so that the planner can say what is missing."""
    spec = ClusterSpec(gpus_per_node=0, cpus_per_bundle=cpus_per_bundle)
    assert spec.bundles_open
    closed = resolve_local(spec, cpus)
    assert (closed.bundle_counts, closed.bundles_open, closed.use_gpus) == ([bundles], False, False)


def test_an_open_spec_says_so_when_its_bundles_are_asked_for() -> None:
    """No number is invented."""
    with pytest.raises(ConfigError, match=r"^bundles_per_node: must be given for a CPU-only cluster"):
        _ = ClusterSpec(gpus_per_node=0).bundle_counts


def test_a_spec_that_is_not_open_stays_as_it_is() -> None:
    """resolve_local closes, and changes nothing else."""
    spec = ClusterSpec(num_nodes=2)
    assert resolve_local(spec, 64) is spec


def test_a_spec_can_not_be_changed() -> None:
    """Specs travel between rooms; a new one is made by attrs.evolve, which checks it."""
    spec = ClusterSpec(num_nodes=2)
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        spec.num_nodes = 3
    assert attrs.evolve(spec, num_nodes=3).num_nodes == 3
    with pytest.raises(ConfigError, match="num_nodes: must be at least 1, got 0"):
        attrs.evolve(spec, num_nodes=0)


def test_a_spec_shares_no_container_with_its_maker_or_another_spec() -> None:
    """Two instances never see each other's values."""
    labels = {"zone": "a"}
    one, other = ClusterSpec(label_selector=labels), ClusterSpec(label_selector=labels)
    labels["zone"] = "b"
    one.label_selector["zone"] = "c"
    assert (one.label_selector, other.label_selector, ClusterSpec().label_selector) == ({"zone": "c"}, {"zone": "a"}, {})


def test_specs_are_equal_by_value() -> None:
    """Whatever way they were made."""
    assert RunSpec(cluster=ClusterSpec(num_nodes=2)) == RunSpec(cluster=ClusterSpec(num_nodes="2"))  # type: ignore[arg-type]
    assert RunSpec() != RunSpec(hold=True)


def test_a_spec_survives_pickling_and_copying() -> None:
    """Here, and in a process that has loaded nothing."""
    spec = RunSpec(cluster=ClusterSpec(bundle_ct_per_node_list=[4, 0, 2]), worker=WorkerSpec(kwargs={"lr": 0.1}))
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec
    code = (
        "import pickle, sys; s = pickle.load(sys.stdin.buffer); print(s.cluster.bundle_counts, s.worker.kwargs, 'omegaconf' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(spec), capture_output=True, check=True, timeout=60)
    assert out.stdout.decode().strip() == "[4, 0, 2] {'lr': 0.1} False"


def test_a_config_error_survives_pickling_with_its_problems() -> None:
    """Ray sends errors between processes."""
    with pytest.raises(ConfigError) as caught:
        ClusterSpec(num_nodes=0, timeout_s=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.problems, str(again)) == (ConfigError, caught.value.problems, str(caught.value))
    assert str(again) == "num_nodes: must be at least 1, got 0\ntimeout_s: must be more than 0, got 0.0"


def test_validators_have_a_readable_repr_and_refuse_with_rule_and_value() -> None:
    """They show in a field's metadata."""
    assert (repr(AtLeast(1)), repr(OneOf(("a", "b")))) == ("AtLeast(low=1)", "OneOf(words=('a', 'b'))")
    with pytest.raises(RuleBroken) as caught:
        OneOf(("a", "b"))("c")
    assert caught.value.line("key") == "key: must be a or b, got 'c'"
