"""Worker groups in environments that were built for them: two nodes of a real Ray, a real uv, real processes."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_nodes import offline, two_nodes
from uv_project import builds_of, find_uv, make_project

from rl_cluster.builders import build_cluster, build_runtime_env, build_worker_group
from rl_cluster.errors import ConfigError, PythonEnvError, WorkerStartError
from rl_cluster.process.uv_store import MARKER
from rl_cluster.programs.python_env_cli import DAY_S, list_environments, prune_environments
from rl_cluster.virtual_cluster import RayVirtualCluster

pytestmark = [pytest.mark.ray, pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")]

PEER = """
import os, shutil, sys
import ray

PYTHON_AT_IMPORT = shutil.which("python")
SEEN_AT_IMPORT = os.environ.get("HF_TOKEN")

class Peer:
    def who(self):
        try:
            import standin
            found = standin.NAME
        except ImportError as error:
            found = str(error)
        names = "RANK WORLD_SIZE VIRTUAL_ENV UV_PROJECT_ENVIRONMENT PYTHONPATH OMP_NUM_THREADS".split()
        return sys.executable, found, {name: os.environ.get(name) for name in names} | {"python": PYTHON_AT_IMPORT}

    def ask(self, other):
        return ray.get(other.who.remote())[0]

    def secret(self):
        return SEEN_AT_IMPORT, os.environ.get("MALLOC_PLANTED")
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ground")
    make_project(folder, module=PEER)
    return folder


@pytest.fixture(scope="module")
def session(ground: Path) -> Iterator[Path]:
    """A Ray of two nodes with two made-up GPUs each; its session folder."""
    amounts = {"num_cpus": 8, "num_gpus": 2}
    with two_nodes(offline(ground), head=amounts, second=amounts) as cluster:
        yield Path(cluster.head_node.get_session_dir_path())


@pytest.fixture(scope="module")
def placed(session: Path) -> Iterator[RayVirtualCluster]:
    """Two logical nodes of two GPUs, each GPU shared by two worker groups."""
    config = {"num_nodes": 2, "gpus_per_node": 2, "strategy": "STRICT_SPREAD", "max_colocated_worker_groups": 2, "timeout_s": 30}
    with build_cluster(config) as cluster:
        yield cluster


def python_of(ground: Path, executable: str) -> dict[str, str]:
    return {"executable": executable, "project_dir": str(ground / "demo"), "venv_dir": str(ground / "envs")}


@pytest.mark.slow
def test_base_and_vllm_groups_share_bundles_and_talk_to_each_other(ground: Path, placed: RayVirtualCluster) -> None:
    """Each of two groups on the same bundles sees its own packages, interpreter and variables, and calls the other's workers."""
    with (
        build_worker_group(placed, "ground_module.Peer", name="policy", python=python_of(ground, "BASE")) as base,
        build_worker_group(placed, "ground_module.Peer", name="rollout", python=python_of(ground, "VLLM")) as vllm,
    ):
        environments = sorted(path.parent for path in (ground / "envs").glob(f"*/{MARKER}"))
        assert [path.name.rpartition("-")[0] for path in environments] == ["demo", "demo-vllm"]
        for group, root, found in ((base, environments[0], "No module named 'standin'"), (vllm, environments[1], "standin")):
            expected = {
                "WORLD_SIZE": "4",
                "VIRTUAL_ENV": str(root),
                "UV_PROJECT_ENVIRONMENT": str(root),
                "PYTHONPATH": "",
                "OMP_NUM_THREADS": "1",
                "python": f"{root}/bin/python",
            }
            assert group.run_all("who", timeout_s=60) == [
                (f"{root}/bin/python", found, {"RANK": str(rank), **expected}) for rank in range(group.world_size)
            ]
        assert base.run_rank(0, "ask", other=vllm.workers[3], timeout_s=60) == f"{environments[1]}/bin/python"
        assert vllm.run_rank(3, "ask", other=base.workers[0], timeout_s=60) == f"{environments[0]}/bin/python"
        assert len({record.pid for group in (base, vllm) for record in group.records}) == 8
        seen = {record.path: set(record.users) for record in list_environments(ground / "envs")}
        for group, root in ((base, environments[0]), (vllm, environments[1])):
            assert {record.pid for record in group.records} <= seen[str(root)]
        assert prune_environments(ground / "envs", unused_s=0, now=time.time() + DAY_S) == []
        assert [(a.node_id, a.gpu_ids) for a in base.records] == [(b.node_id, b.gpu_ids) for b in vllm.records]
    assert builds_of(ground, "ground") == 2  # once for each environment, not for each worker or node


@pytest.mark.slow
def test_a_python_that_can_not_be_made_creates_no_worker_and_leaves_no_build(ground: Path, placed: RayVirtualCluster) -> None:
    """The error comes before any worker is created, and the bundles are free for the next group."""
    from ray._private.state import actors  # the public ray.util.state needs the dashboard

    def workers() -> int:
        return sum(actor["ActorClassName"] not in ("_NodeHand", "ActorMaker") for actor in actors().values())

    before = workers()
    with pytest.raises(PythonEnvError, match="the project must define the extra wurst"):
        build_worker_group(placed, "ground_module.Peer", python=python_of(ground, "uv run --locked --extra wurst"))
    assert workers() == before
    with build_worker_group(placed, "ground_module.Peer", python=python_of(ground, "BASE")) as group:
        assert group.world_size == 4
        assert workers() == before + 4


@pytest.mark.slow
def test_a_path_of_the_users_stays_as_it_is(ground: Path, placed: RayVirtualCluster) -> None:
    """The environment's programs come first only where ``env.set`` says no PATH."""
    env = {"set": {"PATH": "/usr/bin:/bin"}}
    with build_worker_group(placed, "ground_module.Peer", python=python_of(ground, "BASE"), env=env) as group:
        assert {found[2]["python"] for found in group.run_all("who", timeout_s=60)} <= {None, "/usr/bin/python", "/bin/python"}


@pytest.mark.slow
def test_a_module_that_only_the_drivers_path_has(
    ground: Path, placed: RayVirtualCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's PYTHONPATH is not the environment's: the error says so, and what to write works."""
    (tmp_path / "look.py").write_text("class Looks:\n    def see(self):\n        return __file__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerStartError) as caught:
        build_worker_group(placed, "look.Looks", python=python_of(ground, "BASE"))
    assert "ModuleNotFoundError: No module named 'look'" in caught.value.cause_text
    assert "in a built environment PYTHONPATH is empty: add the module to the project, or write env.set.PYTHONPATH=FOLDER" in str(
        caught.value
    )
    env = {"set": {"PYTHONPATH": str(tmp_path)}}
    with build_worker_group(placed, "look.Looks", python=python_of(ground, "BASE"), env=env) as group:
        assert group.run_all("see", timeout_s=60) == [str(tmp_path / "look.py")] * 4


class CommandLines:
    """Which of some texts stand on any command line of this machine while a block runs."""

    def __init__(self, *texts: str) -> None:
        self.texts = [text.encode() for text in texts]
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.is_set():
            for entry in os.listdir("/proc"):
                if entry.isdigit():
                    with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                        line = file.read()
                        self.seen |= {text.decode() for text in self.texts if text in line}
            time.sleep(0.002)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def files_with(text: str, folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path.name)
    return found


@pytest.mark.slow
def test_a_secret_stands_on_no_command_line_in_no_log_of_rays_and_in_no_output(
    ground: Path,
    session: Path,
    placed: RayVirtualCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A forwarded token reaches the workers before their module is imported, and can be read nowhere else by others.

    The control is a variable that must exist before the process starts: the same search finds that one.
    """
    secret, early = "planted-7f3a9c51", "early-2b8d4e60"
    monkeypatch.setenv("HF_TOKEN", secret)
    env = {"forward": ["HF_TOKEN"], "set": {"MALLOC_PLANTED": early}}
    with (
        caplog.at_level(logging.DEBUG),
        CommandLines(secret, early) as lines,
        build_worker_group(placed, "ground_module.Peer", python=python_of(ground, "BASE"), env=env) as group,
    ):
        assert group.run_all("secret", timeout_s=60) == [(secret, early)] * 4
    assert lines.seen == {early}
    assert files_with(early, session)
    assert files_with(secret, session) == []
    assert secret not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.slow
def test_actors_of_another_framework_run_in_a_built_environment(ground: Path, placed: RayVirtualCluster) -> None:
    """By the runtime_env that build_runtime_env makes; without the nodes it is refused, for it would be this interpreter's."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Place

    class Foreign:
        def where(self) -> tuple[str, str | None]:
            return sys.executable, os.environ.get("LC_PLANTED")

    python, env = python_of(ground, "BASE"), {"set": {"LC_PLANTED": "early"}}
    with pytest.raises(ConfigError, match=r"^node_ids: must name the nodes where BASE is to run, got none\. Fix: node_ids=cluster"):
        build_runtime_env(python, env)
    runtime_env = build_runtime_env(python, env, node_ids=placed.bundle_nodes())
    seats = [Place(group, index) for group in placed.get_placement_groups() for index in range(group.bundle_count)]
    actor = ray.remote(num_cpus=0, runtime_env=runtime_env)(Foreign)
    actors = [actor.options(scheduling_strategy=seat).remote() for seat in seats]
    try:
        for executable, value in ray.get([each.where.remote() for each in actors], timeout=60):
            assert Path(executable).parents[1].name.startswith("demo-")
            assert value == "early"
    finally:
        for each in actors:
            ray.kill(each)
    assert build_runtime_env() == {}
