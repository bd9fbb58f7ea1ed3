"""run.py mode=prefetch: warms a cluster for later runs; with a real uv and a Ray that is started for it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from run_py import RunPy
from uv_project import find_uv, make_project

pytestmark = [pytest.mark.ray, pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")]


@pytest.fixture
def ground(run_py: RunPy, tmp_path: Path) -> Path:
    """A locked project, in a folder where the run finds uv's cache, too."""
    run_py.env |= {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    make_project(tmp_path)
    return tmp_path


def python_of(ground: Path) -> tuple[str, ...]:
    return (f"python.project_dir={ground}/demo", f"python.venv_dir={ground}/envs", "ray=local", "ray.num_cpus=1")


@pytest.mark.slow
def test_it_builds_and_a_second_call_finds_it_ready(run_py: RunPy, ground: Path) -> None:
    """Nothing is placed and no worker made; the report has a row for each node, and the run that follows uses what is there."""
    first = run_py("mode=prefetch", "python=base", *python_of(ground))
    (row,) = first.report["prefetched"]
    assert (first.code, first.last_line) == (0, "PREFETCHED: 1 environment on 1 machine, 1 built, 0 ready already")
    assert (first.report["mode"], first.report["ok"], first.report["workers"], first.report["layout"]) == ("prefetch", True, [], None)
    assert (row["state"], row["python"], row["error"]) == ("built", "BASE", None)
    assert Path(row["folder"]).parent == ground / "envs"
    assert f"BASE    {row['folder']}\n" in first.out
    second = run_py("python.prefetch=true", "python=base", *python_of(ground))
    assert (second.code, second.last_line) == (0, "PREFETCHED: 1 environment on 1 machine, 0 built, 1 ready already")
    assert [found["folder"] for found in second.report["prefetched"]] == [row["folder"]]


@pytest.mark.slow
def test_a_login_of_the_command_line_stands_nowhere(run_py: RunPy, ground: Path) -> None:
    """Neither on the screen nor in a file of the run or beside the environment, where it works and where it fails."""
    python = ("python.executable='uv run --locked --index https://me:planted-login@index.invalid/simple'", *python_of(ground))
    done = run_py("mode=prefetch", *python)
    assert (done.code, done.report["prefetched"][0]["python"]) == (0, "uv run --locked --index https://***@index.invalid/simple")
    (ground / "ground.broken").touch()
    shutil.rmtree(ground / "envs")
    shutil.rmtree(ground / "uv-cache")
    failed = [run_py(mode, *python) for mode in ("mode=prefetch", "mode=up")]
    assert [(run.code, run.err.count("its packages must build")) for run in failed] == [(4, 1), (4, 1)]
    assert failed[0].out.count("its packages must build") == 1  # in the table
    assert failed[0].last_line == "FAILED: 1 environment on 1 machine, 0 built, 0 ready already, 1 failed"
    assert "its packages must build" in failed[0].report["error"]["message"]
    for text in (text for run in (done, *failed) for text in (run.out, run.err)):
        assert "planted-login" not in text
    written = [path for folder in (run_py.folder, ground / "envs") for path in folder.rglob("*") if path.is_file()]
    assert {"report.json", "rl_cluster.log"} <= {path.name for path in written}
    assert [path for path in written if b"planted-login" in path.read_bytes()] == []


@pytest.mark.slow
def test_an_interrupted_build_says_what_is_unfinished(run_py: RunPy, ground: Path) -> None:
    """Ctrl-C ends uv, too; the report is written, and nothing stays."""
    (ground / "ground.gate").touch()
    running = run_py.start("mode=prefetch", "python=base", *python_of(ground))
    running.until(lambda: (ground / "ground.builds").exists())
    running.ctrl_c()
    done = running.done()
    assert (done.code, done.last_line) == (130, "FAILED: interrupted by Ctrl-C; everything was given back")
    assert [row["state"] for row in done.report["prefetched"]] == ["unfinished"]
    assert not done.report["ok"]


@pytest.mark.slow
def test_a_recipe_builds_the_environments_of_all_its_roles(run_py: RunPy, ground: Path) -> None:
    """Each once, also where two roles ask for it; a role that runs this interpreter is passed over."""
    cluster = "{gpus_per_node: 0, bundles_per_node: 1}"
    python = f"project_dir: {ground}/demo, venv_dir: {ground}/envs"
    (run_py.folder / "r.yaml").write_text(
        "\n".join(
            [
                f"policy: {{cluster: {cluster}, python: {{executable: BASE, {python}}}}}",
                f"rollout: {{cluster: {cluster}, python: {{executable: VLLM, {python}}}, worker: {{}}}}",
                f"reward: {{cluster: {cluster}, python: {{executable: BASE, {python}}}}}",
                f"other: {{cluster: {cluster}}}",
            ]
        ),
        encoding="utf-8",
    )
    done = run_py("mode=prefetch", "recipe=r.yaml", "ray=local", "ray.num_cpus=1")
    assert (done.code, done.last_line) == (0, "PREFETCHED: 2 environments on 1 machine, 2 built, 0 ready already")
    assert [(row["python"], row["state"]) for row in done.report["prefetched"]] == [("BASE", "built"), ("VLLM", "built")]


def test_nothing_to_build_is_an_error_before_ray_is_started(run_py: RunPy) -> None:
    """In one line, with what to write."""
    done = run_py("mode=prefetch")
    assert done.code == 1
    assert done.err.startswith(
        "python.executable: must be an environment that is built, to prefetch it, got 'SYSTEM'. Fix: write python=base"
    )
    assert "connecting" not in done.err
    assert done.report["prefetched"] == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["ray=simulated"], id="up"),
        pytest.param(["mode=plan", "ray=local"], id="plan", marks=pytest.mark.slow),
        pytest.param(["mode=prefetch", "ray=simulated"], id="prefetch", marks=pytest.mark.slow),
    ],
)
def test_a_project_that_is_not_there_is_an_error_before_ray_is_started(run_py: RunPy, words: list[str]) -> None:
    """Where the nodes are this machine; a plan for it says the same, and no layout is called planned."""
    done = run_py(*words, "python=base", "python.project_dir=/nope")
    assert (done.code, done.report["error"]["type"]) == (4, "PythonEnvError")
    assert (
        f"python.project_dir on node {socket.gethostname()}: must be a uv project on every node, got no pyproject.toml in /nope" in done.err
    )
    assert "starting" not in done.err
    assert "PLANNED" not in done.out


@pytest.mark.slow
def test_a_run_says_what_is_built_and_for_whom_it_waits(run_py: RunPy, ground: Path) -> None:
    """Every few seconds, while another run builds the same; of a recipe with the name of the role."""
    (ground / "ground.gate").touch()
    builder = run_py.start("ray=simulated", "cluster=1x8", "cluster.gpus_per_node=1", "python=base", *python_of(ground)[:2])
    builder.until(
        lambda: "Python BASE: ready on 0 of 1 node after " in builder.err and " builds the Python environment demo-" in builder.err
    )
    (run_py.folder / "r.yaml").write_text(
        f"policy: {{cluster: {{gpus_per_node: 1}}, worker: {{}}, python: "
        f"{{executable: BASE, project_dir: {ground}/demo, venv_dir: {ground}/envs}}}}",
        encoding="utf-8",
    )
    waiter = run_py.start("recipe=r.yaml", "ray=simulated")
    waiter.until(lambda: "policy: Python BASE: ready on 0 of 1 node after " in waiter.err and "(built by process " in waiter.err)
    assert ": waits for the Python environment demo-" in waiter.err
    (ground / "ground.gate").unlink()
    assert [running.done().code for running in (builder, waiter)] == [0, 0]
