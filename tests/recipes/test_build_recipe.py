"""Recipes on a real Ray: built together, all or nothing, and given back on every way out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.errors import ConfigError, PythonEnvError, ResourceInsufficientError, WorkerStartError

pytestmark = pytest.mark.ray

RECIPE: dict[str, Any] = {
    "actor": {
        "cluster": {"num_nodes": 2, "gpus_per_node": 2, "max_colocated_worker_groups": 2, "timeout_s": 2},
        "worker": {"target": "host_workers.Told", "kwargs": {"word": "actor"}},
    },
    "critic": {"cluster": {"gpus_per_node": 2, "strategy": "STRICT_PACK", "timeout_s": 2}, "numa": {}},
    "roles": {
        "reward": {
            "on": {"cluster": "actor", "nodes": [1], "gpus": [1]},
            "worker": {"target": "host_workers.Told", "kwargs": {"word": "reward"}},
        },
        "reference": {"on": {"cluster": "actor", "gpus": [0]}},
    },
}


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        pytest.param({"python": {"executable": "/bin/false"}}, r"python\.executable", id="python"),
        pytest.param({"worker": {"target": "host_workers.Told", "nsight": {"no-such-option": 1}}}, r"worker\.nsight", id="nsight"),
    ],
)
def test_what_a_node_can_not_do_is_told_with_the_key_of_its_role(connected: None, reward: dict[str, Any], said: str) -> None:
    """And not with that of ``run.py``."""
    from rl_cluster import build_recipe

    roles = {**RECIPE["roles"], "reward": {**RECIPE["roles"]["reward"], **reward}}
    with pytest.raises(PythonEnvError, match=rf"^roles\.reward\.{said} on node "), build_recipe({**RECIPE, "roles": roles}):
        pytest.fail("it came up")


def test_clusters_and_groups_come_by_the_names_of_their_roles(connected: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Guests have their owner's cluster; groups those roles that name a worker; guests sit where they were told to."""
    from rl_cluster import build_recipe

    told: list[str] = []
    with build_recipe(RECIPE, on_progress=told.append) as recipe:
        assert list(recipe.clusters) == ["actor", "critic", "reward", "reference"]
        assert recipe.clusters["reward"] is recipe.clusters["actor"]
        assert list(recipe.groups) == ["actor", "reward"]
        actor, reward = recipe.groups["actor"], recipe.groups["reward"]
        assert actor.run_all("say") == [f"actor {rank} of 4" for rank in range(4)]
        assert reward.run_all("say") == ["reward 0 of 1"]
        assert reward.run_all("where")[0] == actor.run_all("where")[3]
        assert recipe.bundle_indices_list("reference") == [(0, [0]), (1, [0])]
        critic_machines = {record.address for record in recipe.plan.roles["critic"].records}
        assert not critic_machines & {record.address for record in actor.records}
        recipe.print_all_worker_groups()
    drawn = capsys.readouterr().out
    labels = [line.split("│")[0].split()[-1] for line in drawn.splitlines() if "│" in line]
    assert labels == [
        *("GPU", "actor", "reference"),
        *("GPU", "actor", "reward", "reference"),
        *("bundle", "critic"),
    ]
    assert told == ["actor: 4 of 4 workers up", "reward: 1 of 1 workers up"]


@pytest.mark.slow
def test_nothing_is_placed_where_not_everything_fits(connected: None) -> None:
    """The error names the role's cluster, and what the other one takes."""
    from rl_cluster import build_recipe

    config = {
        **RECIPE,
        "critic": {"cluster": {"num_nodes": 2, "gpus_per_node": 2, "strategy": "STRICT_SPREAD", "timeout_s": 0.5}, "numa": {}},
    }
    with pytest.raises(ResourceInsufficientError, match=r"^critic: .*held by cluster 'actor' of this plan") as caught, build_recipe(config):
        raise AssertionError("must not be reached")
    assert "\nFix: critic.cluster.num_nodes=1 fits now\n" in str(caught.value)


def test_several_clusters_are_named_by_their_keys_when_they_do_not_fit(connected: None) -> None:
    """Which one has no room, who takes it, and what to change, in the words of the mapping."""
    from rl_cluster.builders import build_clusters

    mapping = {name: {"gpus_per_node": 2, "strategy": "STRICT_PACK", "timeout_s": 0.5} for name in "abcd"}
    with pytest.raises(ResourceInsufficientError) as caught, build_clusters(mapping):
        raise AssertionError("must not be reached")
    headline, *_, never, waited = str(caught.value).splitlines()
    assert headline.startswith("d: 1 logical node of 2 GPUs on one machine: no node has that free: 2 GPUs needed on one; ")
    assert all(f"2 held by cluster '{name}' of this plan" in headline for name in "abc")
    assert never == "No waiting helps with the nodes there are."
    assert waited.startswith("(waited until cluster.timeout_s=0.5")


def test_a_worker_that_does_not_start_takes_everything_down(connected: None) -> None:
    """The first group was up already."""
    from rl_cluster import build_recipe

    config = {**RECIPE, "roles": {"reward": {"on": {"cluster": "actor", "gpus": [0]}, "worker": {"target": "host_workers.Broken"}}}}
    with pytest.raises(WorkerStartError, match="no weights"), build_recipe(config):
        raise AssertionError("must not be reached")


def test_an_exception_in_the_block_gives_everything_back(connected: None) -> None:
    """The fixture looks at what is left."""
    from rl_cluster import build_recipe

    def host() -> None:
        with build_recipe({"critic": RECIPE["critic"]}) as recipe:
            assert recipe.groups == {}
            assert recipe.clusters["critic"].world_size() == 2
            raise KeyError("of the host")

    with pytest.raises(KeyError):
        host()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"target": "host_workers.Tld"}, r"roles\.x\.worker\.target: module 'host_workers' has no 'Tld'", id="class"),
        pytest.param({"target": "host_workers.Told", "method": "whre"}, r"roles\.x\.worker\.method: .*Fix: write where", id="method"),
        pytest.param({"target": "host_workers.Told", "kwargs": {"wrd": 1}}, r"roles\.x\.worker\.kwargs: must fit Told", id="arguments"),
    ],
)
def test_a_worker_class_is_looked_at_before_anything_is_placed(change: dict[str, Any], message: str) -> None:
    """No Ray is asked: this process is connected to none."""
    from rl_cluster import build_recipe

    with pytest.raises(ConfigError, match=message), build_recipe({"roles": {"x": {"cluster": {"gpus_per_node": 1}, "worker": change}}}):
        raise AssertionError("must not be reached")


RUN_PY = Path(__file__).parents[2] / "run.py"
TO_RUN = """
actor:
  cluster: {num_nodes: 2, gpus_per_node: 2, max_colocated_worker_groups: 2, strategy: STRICT_SPREAD}
  worker: {}
roles:
  reward:
    'on': {cluster: actor, nodes: [1]}
    worker: {target: host_workers.Told, method: say, kwargs: {word: hi}}
"""


def test_run_py_brings_a_recipe_up_and_checks_every_role(cluster_address: str, tmp_path: Path) -> None:
    """recipe=FILE with mode=up: checks and results by role, a verdict over all of them, every role in the picture, exit 0."""
    (tmp_path / "recipe.yaml").write_text(TO_RUN, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HYDRA_")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(RUN_PY), "recipe=recipe.yaml", f"ray.address={cluster_address}", "hydra.run.dir=out"],
        cwd=tmp_path,
        env={**env, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "OK: 6 workers on 2 machines, 18 of 18 checks held (simulated)"
    report = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert [(worker["group"], worker["rank"]) for worker in report["workers"]] == [
        *[("actor", rank) for rank in range(4)],
        *[("reward", rank) for rank in range(2)],
    ]
    assert [worker["result"] for worker in report["workers"]][4:] == ["hi 0 of 2", "hi 1 of 2"]
    assert {check["name"].partition(": ")[0] for check in report["checks"]} == {"actor", "reward"}
    assert ">reward" in (tmp_path / "out/layout.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_run_py_rehearses_a_recipe_on_the_machines_of_a_file(tmp_path: Path) -> None:
    """Plan and rehearsal read the file alike: the machine that is left out by its name is left out in both."""
    (tmp_path / "recipe.yaml").write_text(TO_RUN.replace("cluster: {", "cluster: {exclude_nodes: [tired], ", 1), encoding="utf-8")
    nodes = [f"  - {{hostname: {name}, resources: {{GPU: 4, CPU: 16}}, free: {{CPU: 15}}}}\n" for name in ("tired", "fresh", "new")]
    (tmp_path / "machines.yaml").write_text("nodes:\n" + "".join(nodes), encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HYDRA_")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [env.get("PYTHONPATH")])])
    used = {}
    for mode in ("plan", "up"):
        words = ["recipe=recipe.yaml", "inventory=machines.yaml", "ray=simulated", f"mode={mode}", f"hydra.run.dir={mode}"]
        command = [sys.executable, str(RUN_PY), *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((tmp_path / mode / "report.json").read_text(encoding="utf-8"))
        assert any("held in file" in warning for warning in report["warnings"]) == (mode == "up")
        layout = report["layouts"]["actor"]
        hosts = {node["node_id"]: node["hostname"] for node in layout["nodes"]}
        used[mode] = [hosts[bundle["node_id"]] for bundle in layout["bundles"]]
    assert used["plan"] == used["up"]
    assert set(used["plan"]) <= {"fresh", "new"}


def test_ctrl_c_gives_a_recipe_back(cluster_address: str, tmp_path: Path) -> None:
    """While the training function runs: exit 130, one line, and the cluster is free again."""
    (tmp_path / "program.py").write_text(
        "import sys, time\nfrom rl_cluster import run_recipe\n"
        "def train(recipe):\n    print('training', flush=True)\n    time.sleep(600)\n"
        f"cfg = {{'a': {{'cluster': {{'gpus_per_node': 2}}, 'worker': {{}}}}, 'ray': {{'address': '{cluster_address}'}}}}\n"
        "sys.exit(run_recipe(cfg, train))\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(RUN_PY.parent), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted by Ctrl-C; everything was given back"
    assert "Traceback" not in err


def test_the_cluster_is_free_after_that(connected: None) -> None:
    """The fixture looks."""
    from rl_cluster.connection.session import look_around

    assert len([node for node in look_around().nodes if node.state == "alive"]) == 3
