"""The workers' Python on the nodes of a real Ray: two simulated nodes, each with its own PATH and cache folder, and a real uv."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from two_nodes import REPOSITORY, offline, two_nodes
from uv_project import find_uv, make_project

from rl_cluster.errors import PythonEnvError
from rl_cluster.process.python_build import build_each, build_on_nodes
from rl_cluster.python_env import PythonPlan, resolve_python
from rl_cluster.schema import PythonSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project, a uv that counts its calls, and a Python wrapper that only the first node has."""
    folder = tmp_path_factory.mktemp("ground")
    make_project(folder)
    for name, text in {
        "counting/uv": f'#!/bin/sh\necho "$1" >> {folder}/calls\nexec {find_uv()} "$@"\n',
        "first-only/wrapped-python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def nodes(ground: Path) -> Iterator[list[str]]:
    """Ids of two nodes that share this machine but neither PATH nor cache folder."""
    import ray

    path = os.environ["PATH"]
    first = {"PATH": f"{ground}/first-only:{path}", "XDG_CACHE_HOME": str(ground / "cache-1")}
    second = {"PATH": path, "XDG_CACHE_HOME": str(ground / "cache-2")}
    with two_nodes(offline(ground), head={"num_cpus": 2, "env_vars": first}, second={"num_cpus": 2, "env_vars": second}):
        head = ray.get_runtime_context().get_node_id()
        yield [head, *(entry["NodeID"] for entry in ray.nodes() if entry["NodeID"] != head)]


def plan_of(ground: Path, executable: str = "BASE", **spec: Any) -> PythonPlan:
    return resolve_python(PythonSpec(executable=executable, project_dir=str(ground / "demo"), **spec))


def syncs(ground: Path) -> int:
    calls = ground / "calls"
    return calls.read_text().split().count("sync") if calls.exists() else 0


def test_each_node_builds_its_own_environment_once(ground: Path, nodes: list[str]) -> None:
    """Node-local folders: one build per node, however often the node is named; ready ones are found again."""
    plan = plan_of(ground, f"{ground}/counting/uv run --locked")
    before = syncs(ground)
    pythons = build_on_nodes(plan, [*nodes, nodes[0]])
    assert list(pythons) == nodes
    assert [str(Path(python).relative_to(ground)).split("/")[0] for python in pythons.values()] == ["cache-1", "cache-2"]
    assert all(os.access(python, os.X_OK) for python in pythons.values())
    assert build_on_nodes(plan, nodes) == pythons
    assert syncs(ground) - before == 2


@pytest.mark.slow
def test_nodes_that_share_a_folder_build_once(ground: Path, nodes: list[str]) -> None:
    """A shared folder: one node builds, the other waits and reuses."""
    before = syncs(ground)
    pythons = build_on_nodes(plan_of(ground, f"{ground}/counting/uv run --locked", venv_dir=str(ground / "shared")), nodes)
    assert len(set(pythons.values())) == 1
    assert syncs(ground) - before == 1


class Asks:
    """An actor that says where it runs."""

    def who(self) -> tuple[str, str, str]:
        try:
            import standin  # type: ignore[import-not-found]

            found = standin.NAME
        except ImportError as error:
            found = str(error)
        return sys.executable, found, os.environ.get("PYTHONPATH", "unset")

    def ask(self, other: Any) -> str:
        import ray

        executable, _, _ = ray.get(other.who.remote())
        return str(executable)


def test_base_and_vllm_run_side_by_side_and_talk_to_each_other(ground: Path, nodes: list[str]) -> None:
    """Each actor sees its own environment's packages and interpreter, no raylet's PYTHONPATH, and can call the other."""
    import ray

    shared = str(ground / "shared")
    base, vllm = plan_of(ground, venv_dir=shared), plan_of(ground, "VLLM", venv_dir=shared)
    base_python, vllm_python = (build_on_nodes(plan, nodes)[nodes[1]] for plan in (base, vllm))
    assert base_python != vllm_python
    # By value, because the workers can't import this test module.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    actor = ray.remote(num_cpus=0)(Asks)
    a = actor.options(runtime_env=base.runtime_env(base_python)).remote()
    b = actor.options(runtime_env=vllm.runtime_env(vllm_python)).remote()
    try:
        assert ray.get(a.who.remote(), timeout=60) == (base_python, "No module named 'standin'", "")
        assert ray.get(b.who.remote(), timeout=60) == (vllm_python, "standin", "")
        assert ray.get(a.ask.remote(b), timeout=60) == vllm_python
        assert ray.get(b.ask.remote(a), timeout=60) == base_python
    finally:
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.kill(a)
        ray.kill(b)


def test_an_interpreter_that_one_node_lacks_is_an_error_that_names_the_node(ground: Path, nodes: list[str]) -> None:
    """A wrapper that only the first node has: fine there, and the error of both names the second."""
    plan = plan_of(ground, "wrapped-python -X faulthandler")
    assert build_on_nodes(plan, nodes[:1]) == {nodes[0]: f"{ground}/first-only/wrapped-python"}
    with pytest.raises(PythonEnvError) as caught:
        build_on_nodes(plan, nodes)
    assert type(caught.value) is PythonEnvError
    assert str(caught.value).startswith(f"python.executable on node {nodes[1][:12]} (")
    assert "it must be there on every node, got no program 'wrapped-python' that can be run" in str(caught.value)
    assert "(command: wrapped-python -X faulthandler)" in str(caught.value)


@pytest.mark.parametrize(
    ("executable", "rule"),
    [
        pytest.param("uv run --locked --extra wurst", "the project must define the extra wurst", id="build-fails"),
        pytest.param("/bin/cat", "it must import ray and rl_cluster", id="no-python-at-all"),
    ],
)
def test_an_error_on_a_node_arrives_as_itself(ground: Path, nodes: list[str], executable: str, rule: str) -> None:
    """The driver gets the node's own error, with its fields, and no Ray traceback around it."""
    with pytest.raises(PythonEnvError) as caught:
        build_on_nodes(plan_of(ground, executable), nodes[1:])
    assert type(caught.value) is PythonEnvError
    assert str(caught.value).startswith(f"python.executable on node {nodes[1][:12]} (")
    assert rule in str(caught.value)
    assert caught.value.facts["output"]


@pytest.fixture
def by_value() -> Iterator[None]:
    """Nodes can't import this module."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.usefixtures("by_value")
def test_where_all_nodes_fail_one_is_told_and_ray_says_nothing(
    ground: Path, nodes: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No traceback of Ray's for the others' failures, which nobody waits for."""

    def fail_here(plan: PythonPlan, *, node: str, tell: object) -> None:
        (tmp_path / node[:12]).touch()
        raise PythonEnvError("no")

    with closing(build_each(plan_of(ground), nodes, build=fail_here)) as outcomes:
        assert str(next(outcomes)[1]) == "no"
        wait_for(lambda: len(list(tmp_path.iterdir())) == len(nodes))
    gc.collect()
    said = caplog.text + "".join(capfd.readouterr())
    assert "Traceback" not in said
    assert "Unhandled" not in said


@pytest.mark.usefixtures("by_value")
def test_a_builder_that_is_killed_does_not_pass_for_a_dead_node(ground: Path, nodes: list[str]) -> None:
    """The node lives, and only its process is gone."""
    plan = plan_of(ground)
    with pytest.raises(PythonEnvError) as caught, closing(build_each(plan, nodes[1:], build=die_here)) as outcomes:
        raise next(outcomes)[1]
    assert str(caught.value).startswith(f"python.executable on node {nodes[1][:12]} (")
    assert "the process that works there must live, got Worker unexpectedly exits" in str(caught.value)
    assert "Fix: look whether it ran out of memory (dmesg on that node), and try again" in str(caught.value)


def die_here(plan: PythonPlan, *, node: str, tell: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_error_of_a_node_names_the_key_of_the_role(ground: Path, nodes: list[str]) -> None:
    """Wherever the node says python.something of its own."""
    spec = PythonSpec(executable="BASE", project_dir=str(ground / "nowhere"))
    with pytest.raises(PythonEnvError) as caught:
        build_on_nodes(resolve_python(spec, where="generation.python"), nodes[:1])
    assert str(caught.value).startswith(f"generation.python.project_dir on node {nodes[0][:12]} (")
    assert "Fix: give generation.python.project_dir a folder" in str(caught.value)
    assert not re.search(r"(?<!generation\.)python\.(executable|project_dir)", str(caught.value))


def test_a_node_that_is_not_there_is_named(ground: Path, nodes: list[str]) -> None:
    """A node that left before its build is an error that names it, not a hang."""
    gone = "ab" * (len(nodes[0]) // 2)
    with pytest.raises(PythonEnvError, match=rf"^python\.executable on node {gone[:12]}: the node must live"):
        build_on_nodes(plan_of(ground), [gone])


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
def test_when_one_node_fails_the_builds_of_the_others_are_ended(ground: Path, nodes: list[str]) -> None:
    """The first error is the answer at once; a build that still runs elsewhere is killed with its uv."""
    (ground / "hanging").mkdir()
    (ground / "hanging" / "uv").write_text(
        f'#!/bin/sh\ncase "$UV_PROJECT_ENVIRONMENT" in *cache-1*) echo $$ > {ground}/pid; exec sleep 600;; esac\n'
        f"while ! [ -s {ground}/pid ]; do sleep 0.05; done\necho 'No space left on device'; exit 2\n"
    )
    (ground / "hanging" / "uv").chmod(0o755)
    with pytest.raises(PythonEnvError, match=rf"on node {nodes[1][:12]} .* the disk must have room"):
        build_on_nodes(plan_of(ground, f"{ground}/hanging/uv run --locked --extra vllm"), nodes)
    pid = int((ground / "pid").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


DRIVER = """
import os, sys
import ray
from rl_cluster.python_env import disable_rays_uv_hook
print("started by uv run:", disable_rays_uv_hook())
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
@ray.remote
def where():
    import psutil, sys
    return sys.executable, ["uv"] == [p.name() for p in psutil.Process().parents()][:1]
print("py_executable:", ray.get_runtime_context().runtime_env.get("py_executable"))
print("same interpreter:", ray.get(where.remote()) == (sys.executable, False))
ray.shutdown()
"""


@pytest.mark.slow
def test_a_driver_started_by_uv_run_starts_no_uv_run_in_its_workers(ground: Path) -> None:
    """With Ray's uv hook off, SYSTEM is the driver's interpreter, started directly, though the driver runs below uv run."""
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "UV_OFFLINE": "1"}
    environ |= {"UV_PROJECT_ENVIRONMENT": str(ground / "driver-env"), "UV_CACHE_DIR": str(ground / "uv-cache"), "PYTHONPATH": REPOSITORY}
    environ.pop("RAY_ENABLE_UV_RUN_RUNTIME_ENV", None)
    environ.pop("RAY_ADDRESS", None)
    command = [find_uv() or "", "run", "--locked", "--python", getattr(sys, "_base_executable", sys.executable), "python", "-c", DRIVER]
    answer = subprocess.run(command, cwd=ground / "demo", env=environ, capture_output=True, text=True, timeout=120)
    assert answer.stdout.splitlines() == ["started by uv run: True", "py_executable: None", "same interpreter: True"], answer.stderr
