"""Specs from option files and command-line words, without Hydra's global state."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rl_cluster.config import (
    GROUPS,
    conf_dir,
    describe_compose_error,
    from_config,
    load_cluster,
    load_numa,
    load_python,
    load_ray,
    load_run,
    option_names,
)
from rl_cluster.config_files.command_line import why_refused
from rl_cluster.config_files.options import parse_words
from rl_cluster.errors import ConfigError
from rl_cluster.schema import ClusterSpec, EnvSpec, NumaSpec, PythonSpec, RaySpec, RunSpec, WorkerSpec

OPTIONS = {
    "cluster": ["1x8", "1x8_colocated", "2x8_pack", "2x8_spread", "4x8_strict_spread", "local", "uneven_8_4"],
    "numa": ["cpu_only", "exclusive", "gpu_local", "preferred", "unbound"],
    "python": ["base", "system", "vllm"],
    "ray": ["auto", "local", "simulated"],
}
EXPECTED = {
    "local": ClusterSpec(gpus_per_node=0),
    "1x8": ClusterSpec(strategy="STRICT_PACK"),
    "2x8_pack": ClusterSpec(num_nodes=2, strategy="PACK"),
    "2x8_spread": ClusterSpec(num_nodes=2, strategy="SPREAD"),
    "4x8_strict_spread": ClusterSpec(num_nodes=4, strategy="STRICT_SPREAD"),
    "1x8_colocated": ClusterSpec(max_colocated_worker_groups=2, strategy="STRICT_PACK"),
    "uneven_8_4": ClusterSpec(bundle_ct_per_node_list=[8, 4]),
    "gpu_local": NumaSpec(),
    "cpu_only": NumaSpec(membind=False),
    "preferred": NumaSpec(mempolicy="preferred"),
    "exclusive": NumaSpec(cpu_bind="exclusive"),
    "unbound": NumaSpec(enabled=False),
}


def test_the_groups_offer_exactly_these_options() -> None:
    """Sorted, without schemas."""
    assert {group: option_names(group) for group in GROUPS} == OPTIONS


@pytest.mark.parametrize("name", OPTIONS["cluster"])
def test_a_cluster_option_means_what_its_name_says(name: str) -> None:
    """The spec is written out here once more."""
    assert load_cluster(name) == EXPECTED[name]


@pytest.mark.parametrize("name", OPTIONS["numa"])
def test_a_numa_option_means_what_its_name_says(name: str) -> None:
    """The spec is written out here once more."""
    assert load_numa(name) == EXPECTED[name]


def test_python_and_ray_options_mean_what_their_names_say() -> None:
    """One key each."""
    assert [load_python(name) for name in OPTIONS["python"]] == [PythonSpec(executable=e) for e in ("BASE", "SYSTEM", "VLLM")]
    assert [load_ray(name) for name in OPTIONS["ray"]] == [RaySpec(kind=k) for k in ("auto", "local", "simulated")]


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in OPTIONS.items() for name in names])
def test_an_option_file_says_what_it_is_and_keeps_the_rules_of_embedding(group: str, name: str) -> None:
    """A comment first, schema before _self_, no @package, no resolver, no _target_, only relative interpolation."""
    text = (conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")
    assert re.match(r"# [A-Z].*\.\n", text) or re.match(r"# [A-Z].*\)\.\n", text)
    assert OmegaConf.create(text).defaults == [{f"/rl_cluster/schema/{group}@_here_": None}, "_self_"] or OmegaConf.create(
        text
    ).defaults == [
        f"/rl_cluster/schema/{group}@_here_",
        "_self_",
    ]
    assert "@package" not in text
    assert "_target_" not in text
    assert re.findall(r"\$\{(?!\.)", text) == []


@pytest.mark.parametrize("override", ["num_nodes=4", "cluster.num_nodes=4", "++num_nodes=4"])
def test_an_override_may_name_the_group_or_not(override: str) -> None:
    """What stood on the command line works here as it is."""
    assert load_cluster("2x8_spread", overrides=[override]) == ClusterSpec(num_nodes=4)


def test_overrides_take_hydras_grammar() -> None:
    """Lists, dicts, quotes, null and deletion."""
    spec = load_cluster(
        "2x8_spread",
        overrides=["bundle_ct_per_node_list=[8,4]", "label_selector={zone: 'in(a, b)'}", "+resources.nic=0.5", "~strategy", "name='a,b'"],
    )
    assert spec == ClusterSpec(bundle_ct_per_node_list=[8, 4], label_selector={"zone": "in(a, b)"}, resources={"nic": 0.5}, name="a,b")


def test_run_defaults_are_those_of_the_primary_config() -> None:
    """python run.py without a word."""
    assert load_run() == RunSpec(cluster=ClusterSpec(gpus_per_node=0))


def test_run_takes_the_command_line_as_it_is() -> None:
    """Groups, keys, and Hydra's own words, which say nothing of the spec."""
    words = ["cluster=2x8_spread", "numa.membind=false", "ray=simulated", "hydra.job.chdir=true", "hydra/job_logging=none"]
    words += ["worker.target=pkg.mod.Class", "worker.kwargs={lr: 0.1, tags: [a]}", "+env.set.NCCL_DEBUG=INFO", "python=vllm"]
    assert load_run(words) == RunSpec(
        cluster=ClusterSpec(num_nodes=2),
        numa=NumaSpec(membind=False),
        ray=RaySpec(kind="simulated"),
        python=PythonSpec(executable="VLLM"),
        worker=WorkerSpec(target="pkg.mod.Class", kwargs={"lr": 0.1, "tags": ["a"]}),
        env=EnvSpec(set={"NCCL_DEBUG": "INFO"}),
    )


def test_later_keys_win_over_the_option_wherever_they_stand() -> None:
    """As with Hydra, the option is read first."""
    assert load_run(["cluster.num_nodes=4", "cluster=2x8_pack"]).cluster == ClusterSpec(num_nodes=4, strategy="PACK")


@pytest.mark.parametrize("word", ["off", "no", "0", "false", "False", "OFF"])
def test_membind_is_switched_off_by_every_usual_word(word: str) -> None:
    """On the command line too."""
    assert load_run([f"numa.membind={word}"]).numa.membind is False


CLUSTER_OPTIONS = "1x8, 1x8_colocated, 2x8_pack, 2x8_spread, 4x8_strict_spread, local or uneven_8_4"
CLUSTER_KEYS = (
    "name, num_nodes, gpus_per_node, bundles_per_node, bundle_ct_per_node_list, use_gpus, accelerator, max_colocated_worker_groups, "
    "strategy, unified, cpus_per_bundle, label_selector, resources, exclude_nodes, use_head, segment_size, master_port_range_low, "
    "master_port_range_high, timeout_s"
)
WORDS = {
    "values": (
        ["cluster=2x8_spread", "cluster.num_nodes=-4", "cluster.gpus_per_node=-1", "cluster.strategy=SPRED"],
        [
            "cluster.num_nodes: must be at least 1, got -4",
            "cluster.gpus_per_node: must be at least 0, got -1",
            "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
        ],
    ),
    "unknown_key": (["cluster.num_nods=2"], ["cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes"]),
    "added_key": (
        ["+cluster.extra=1"],
        [f"cluster.extra: must be a key of ClusterSpec, got 1. Fix: leave it out; the keys here are {CLUSTER_KEYS}"],
    ),
    "key_below_a_value": (["cluster.num_nodes.x=1"], ["cluster.num_nodes: must be a whole number, got {'x': 1}"]),
    "unknown_group": (["clustr=local"], ["clustr: must be a key of RunSpec, got 'local'. Fix: write cluster"]),
    "unknown_option": (
        ["cluster=2x8_spred"],
        [f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8_spred'. Fix: write cluster=2x8_spread"],
    ),
    "unknown_option_and_value": (
        ["ray=simulate", "numa.membind=maybe"],
        [
            "ray: must be an option (auto, local or simulated), got 'simulate'. Fix: write ray=simulated",
            "numa.membind: must be true or false, got 'maybe'",
        ],
    ),
    "wrong_type": (["cluster.num_nodes=two"], ["cluster.num_nodes: must be a whole number, got 'two'"]),
    "list_for_a_group": (["numa=[1]"], ["numa: must be a group of keys (NumaSpec), got [1]"]),
    "cpu_nodes_without_bundles": (
        ["cluster.num_nodes=2"],
        [
            "cluster.bundles_per_node: must be given for a CPU-only cluster (gpus_per_node 0), got None. "
            "Fix: set bundles_per_node to the bundles of one node"
        ],
    ),
    "contradiction": (
        ["cluster=uneven_8_4", "cluster.num_nodes=3"],
        [
            "cluster.bundle_ct_per_node_list: must have one entry per logical node, got [8, 4] (2 entries) with num_nodes 3. "
            "Fix: leave num_nodes out (null): the list says it"
        ],
    ),
    "delete_nothing": (["~cluster.nothing"], ["cluster.nothing: must be there to be deleted, got '~cluster.nothing'"]),
    "group_elsewhere": (
        ["cluster@policy.cluster=1x8"],
        ["cluster: must name a group (cluster, numa, python or ray), got 'cluster@policy.cluster=1x8'. Fix: write cluster=..."],
    ),
}


@pytest.mark.parametrize(("words", "problems"), WORDS.values(), ids=WORDS.keys())
def test_every_slip_on_the_command_line_is_named(words: list[str], problems: list[str]) -> None:
    """And Hydra's refusal of the same words is told in the same lines."""
    with pytest.raises(ConfigError) as caught:
        load_run(words)
    assert list(caught.value.problems) == problems
    assert describe_compose_error(ValueError("anything"), words) == problems


def test_words_that_are_no_override_are_named() -> None:
    """With what the parser says."""
    with pytest.raises(ConfigError) as caught:
        load_run(["cluster.num_nodes", "numa.membind=maybe"])
    first, second = caught.value.problems
    assert first.startswith("override: must be key=value (")
    assert first.endswith("got 'cluster.num_nodes'")
    assert second == "numa.membind: must be true or false, got 'maybe'"


@pytest.mark.parametrize(
    ("word", "fixed"),
    [
        ("cluster.exclude_nodes=[pool=train]", """'cluster.exclude_nodes=["pool=train"]'"""),
        ("cluster.exclude_nodes=[a, pool=train ,b=c]", """'cluster.exclude_nodes=[a, "pool=train","b=c"]'"""),
        ('cluster.exclude_nodes=["a=b",c=d]', """'cluster.exclude_nodes=["a=b","c=d"]'"""),
        ("python.executable=uv run --extra=x", """'python.executable="uv run --extra=x"'"""),
        ("+env.set.A=x=y,z", """'+env.set.A="x=y,z"'"""),
        ("worker.kwargs={a: b=c, d: [e=f]}", """'worker.kwargs={a: "b=c", d: ["e=f"]}'"""),
        ("worker.kwargs={url: http://x?y=z}", """'worker.kwargs={url: "http://x?y=z"}'"""),
        ("env.forward=[http://x?y=z]", """'env.forward=["http://x?y=z"]'"""),
        ("worker.kwargs={greeting=hello}", "'worker.kwargs={greeting: hello}'"),
        ("worker.kwargs=[a=b", None),
        ("worker.kwargs='a=b", None),
    ],
)
def test_a_word_with_another_equals_sign_is_told_with_its_quotes(word: str, fixed: str | None) -> None:
    """Hydra's grammar has ``=`` in quotes only. What is told can be pasted; where no quotes would help, nothing is."""
    with pytest.raises(ConfigError) as caught:
        load_run([word])
    (problem,) = caught.value.problems
    assert problem.startswith("override: must be key=value (")
    assert problem.partition(". Fix: write ")[2] == (fixed or "")
    if fixed:
        (pasted,) = shlex.split(fixed)
        problems: list[str] = []
        assert [found for found, _ in parse_words([pasted], problems)] == [pasted]


def test_an_unknown_option_of_a_single_group_is_named() -> None:
    """load_cluster and run.py speak alike."""
    with pytest.raises(ConfigError) as caught:
        load_cluster("2x8_spred", overrides=["num_nods=2"])
    assert list(caught.value.problems) == [
        f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8_spred'. Fix: write cluster=2x8_spread"
    ]


def test_a_bad_override_of_a_single_group_is_named_with_the_groups_path() -> None:
    """All of them."""
    with pytest.raises(ConfigError) as caught:
        load_cluster("2x8_spread", overrides=["num_nods=2", "cluster.num_nodes=0", "strategy=PACK,SPREAD"])
    assert list(caught.value.problems) == [
        "cluster.strategy: must be one value here (a sweep needs --multirun), got 'strategy=PACK,SPREAD'. "
        'Fix: quote a value that has commas: key="a,b"',
        "cluster.num_nodes: must be at least 1, got 0",
        "cluster.num_nods: must be a key of ClusterSpec, got 2. Fix: write cluster.num_nodes",
    ]


def test_a_sweep_is_looked_at_value_by_value() -> None:
    """Each bad value once, the good ones not at all."""
    words = ["cluster=2x8_spread,2x8_spred", "cluster.strategy=PACK,SPRED,SPREAD", "cluster.num_nodes=1,0"]
    assert describe_compose_error(ValueError("x"), words) == [
        f"cluster: must be an option ({CLUSTER_OPTIONS}), got '2x8_spred'. Fix: write cluster=2x8_spread",
        "cluster.strategy: must be STRICT_PACK, PACK, SPREAD or STRICT_SPREAD, got 'SPRED'. Fix: write SPREAD",
        "cluster.num_nodes: must be at least 1, got 0",
    ]


def test_every_written_out_sweep_is_looked_at_and_no_other() -> None:
    """A range says its values, a glob over options only Hydra can say."""
    words = ["cluster=glob(2x8*)", "cluster.num_nodes=range(-1,2)", "ray=local"]
    assert describe_compose_error(ValueError("x"), words) == [
        "cluster.num_nodes: must be at least 1, got -1",
        "cluster.num_nodes: must be at least 1, got 0",
    ]


@pytest.mark.parametrize(
    "words", [["--config-path", "mine"], ["-cn=mine"], ["hydra.searchpath=[pkg://nowhere_at_all]"]], ids=lambda words: " ".join(words)
)
def test_an_option_of_another_folder_is_no_problem_but_a_bad_value_is(words: list[str]) -> None:
    """Where not every option that Hydra finds can be seen from here."""
    problems = describe_compose_error(ValueError("x"), ["cluster=mine", "numa.membind=maybe", *words])
    assert problems == ["numa.membind: must be true or false, got 'maybe'"]


def test_a_group_of_the_users_own_is_no_unknown_key(tmp_path: Path) -> None:
    """What its options hold is between Hydra and them; a misspelt one is named."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "big.yaml").write_text("# @package _global_\ncluster: {num_nodes: 2}\n", encoding="utf-8")
    line = ["--config-dir", str(tmp_path)]
    assert describe_compose_error(ValueError("x"), [*line, "+experiment=big"]) == ["config: x"]
    assert describe_compose_error(ValueError("x"), [*line, "+experiment=bigg"]) == [
        "experiment: must be an option (big), got 'bigg'. Fix: write experiment=big"
    ]


def test_an_own_option_with_a_package_header_is_left_to_hydra(tmp_path: Path) -> None:
    """Its keys go where only Hydra puts them."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("# @package policy.cluster\nnum_nods: 2\n", encoding="utf-8")
    assert describe_compose_error(ValueError("x"), ["-cd", str(tmp_path), "cluster=mine"]) == ["config: x"]


def test_hydras_flags_and_their_values_are_no_overrides() -> None:
    """The whole command line can be given."""
    words = ["-m", "--cfg", "job", "numa.membind=maybe", "-cn", "rl_cluster", "--resolve"]
    assert describe_compose_error(ValueError("x"), words) == ["numa.membind: must be true or false, got 'maybe'"]


def test_an_error_that_has_nothing_to_do_with_our_keys_is_told_in_one_line() -> None:
    """Hydra's own words, without its line breaks."""
    assert describe_compose_error(ValueError("Could not find\n  'hydra/launcher/x'\n"), ["hydra/launcher=x"]) == [
        "config: Could not find 'hydra/launcher/x'"
    ]


def test_nothing_returned_holds_a_lazy_container() -> None:
    """Lists and dicts from YAML and from overrides are plain ones."""
    spec = load_run(["cluster=uneven_8_4", "worker.kwargs={a: {b: [1]}}", "cluster.exclude_nodes=[x]"])
    assert [
        type(value)
        for value in (
            spec.cluster.bundle_ct_per_node_list,
            spec.cluster.exclude_nodes,
            spec.worker.kwargs["a"],
            spec.worker.kwargs["a"]["b"],
        )
    ] == [
        list,
        list,
        dict,
        list,
    ]
    assert from_config(spec) is spec


@pytest.mark.parametrize("overrides", [None, [1], 3, "num_nodes=4", {"num_nodes": 4}])
def test_overrides_are_a_list_of_words(overrides: object) -> None:
    """A text would be read letter by letter."""
    for load in (lambda: load_cluster(overrides=overrides), lambda: load_run(overrides)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            load()
        assert str(caught.value) == f'overrides: must be a list of words, got {overrides!r}. Fix: write e.g. ["num_nodes=4"]'


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        ({"num_nodes": 2}, "write cluster.num_nodes"),
        ({"strategy": "PACK"}, "write cluster.strategy"),
        ({"membind": False}, "write numa.membind"),
        ({"cluster": {"gpus": 4}}, "write cluster.gpus_per_node or cluster.use_gpus"),
        ({"mod": "plan"}, "write mode"),
    ],
)
def test_a_key_of_a_group_that_was_meant_is_named(config: dict[str, Any], fix: str) -> None:
    """Also where another key of the place looks more like it."""
    with pytest.raises(ConfigError) as caught:
        from_config(config, kind=RunSpec)
    assert str(caught.value).endswith(f"Fix: {fix}")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        pytest.param(["-m", "mode=plan", "cluster.num_nodes=1,2"], None, id="taken"),
        pytest.param(["mode=plan", "cluster=1x8", "--cfg", "job"], None, id="flags behind"),
        pytest.param(["-sc", "install=bash"], None, id="completion"),
        pytest.param(
            ["mode=plan", "-m", "cluster.num_nodes=1,2"],
            "command line: must have its overrides side by side, got 'cluster.num_nodes=1,2'. "
            "Fix: write the flags first: -m mode=plan cluster.num_nodes=1,2",
            id="a flag between overrides",
        ),
        pytest.param(
            ["--multirn", "cluster=1x8"], "command line: must have flags of Hydra's, got '--multirn'. Fix: write --multirun", id="misspelt"
        ),
        pytest.param(["--foo"], "command line: must have flags of Hydra's, got '--foo'. Fix: see --help", id="unknown"),
        pytest.param(
            ["cluster=1x8", "--cfg"],
            "command line: must be flags and overrides (argument --cfg/-c: expected one argument), got 'cluster=1x8 --cfg'",
            id="without its value",
        ),
    ],
)
def test_a_command_line_that_hydra_would_refuse_is_one_line(argv: list[str], line: str | None) -> None:
    """And not a page of usage, with an exit code of its own."""
    assert why_refused(argv) == line
