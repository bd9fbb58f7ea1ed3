"""The example recipes, end to end: as a user runs them, from a folder elsewhere, with only the installed wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from installing import clean_env, install

EXAMPLES = Path(__file__).parents[2] / "examples"
LAST_LINES = {
    "grpo_colocated": (
        r"OK: 3 steps, 4 policy and 4 generation workers on 4 GPUs, gradients by (sockets|gloo); reward -16\.\d\d to -15\.\d\d, "
        r"weights within 1e-12 of one process: True"
    ),
    "grpo_disaggregated": (
        r"OK: 3 steps, 2 policy and 2 generation workers on 4 GPUs, gradients by (sockets|gloo); reward -16\.\d\d to -15\.\d\d, "
        r"weights within 1e-12 of one process: True"
    ),
    "ppo_four_roles": (
        r"OK: 3 steps, workers: 4 actor, 2 critic, 2 reference, 1 reward; gradients by (sockets|gloo); "
        r"distance from the reference 0\.\d+, weights within 1e-12 of one process: True"
    ),
}

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it."""
    return install("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy of the examples outside of the checkout."""
    return Path(shutil.copytree(EXAMPLES, tmp_path / "my examples", ignore=shutil.ignore_patterns("outputs", "__pycache__")))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short path (Ray's sockets lie below it), which must be empty of Rays in the end."""
    folder = Path(tempfile.mkdtemp(prefix="x-", dir="/tmp"))
    try:
        yield folder
        assert list(folder.glob("rlc-*")) == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(python: Path, script: Path, here: Path, temporary: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder that has nothing to do with it; the imports are the wheel's."""
    here.mkdir()
    dropped = ("RAY_", "NRL_", "CUDA_")
    env = {name: value for name, value in clean_env().items() if not name.startswith(dropped)}
    env |= {"RAY_ADDRESS": "local", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(temporary)}
    return subprocess.run(
        [str(python), str(script), *words],
        cwd=here,
        env={**env, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", LAST_LINES)
def test_an_example_runs_and_checks_itself(name: str, python: Path, examples: Path, temporary: Path, tmp_path: Path) -> None:
    """On ray=simulated, with the sizes of its config: it draws every role, and its last line says that its own check held."""
    done = run(python, examples / name / "run.py", tmp_path / "here", temporary, "ray=simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(LAST_LINES[name], done.stdout.rstrip("\n").splitlines()[-1]), done.stdout
    assert "SIMULATED" in done.stdout
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path / "here")) == ["outputs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST_LINES)
def test_an_example_plans_on_any_machines(name: str, python: Path, examples: Path, temporary: Path, tmp_path: Path) -> None:
    """mode=plan with an inventory file, at the size of a real run; what does not fit ends with 3 and no traceback."""
    machines = examples / "inventories" / "2x8.yaml"
    words = ["mode=plan", f"inventory='{machines}'"]
    done = run(python, examples / name / "run.py", tmp_path / "here", temporary, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("PLANNED: ")
    owner = "actor" if name == "ppo_four_roles" else "policy"
    too_many = [*words, f"{owner}.cluster.num_nodes=9", f"{owner}.cluster.gpus_per_node=8"]
    done = run(python, examples / name / "run.py", tmp_path / "there", temporary, *too_many)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"{owner}: 9 logical nodes of 8 GPUs")
    assert "Traceback" not in done.stderr
