"""BASE and VLLM of a project that has this package as a dependency, with a driver that has it from the wheel: no checkout anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from installing import build_wheel, clean_env, install
from uv_project import find_uv, lock, write_package

pytestmark = [
    pytest.mark.ray,
    pytest.mark.wheel,
    pytest.mark.slow,
    pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)"),
]

# What the package needs comes from the running environment (``ground``), so that no index is asked.
PROJECT = """
[project]
name = "train"
version = "0"
requires-python = ">=3.10"
dependencies = ["rl-cluster", "ground"]
[project.optional-dependencies]
vllm = ["standin"]
[tool.uv]
environments = ["sys_platform == 'linux'"]
override-dependencies = [{others}]
[tool.uv.sources]
rl-cluster = {{ path = "../{wheel}" }}
ground = {{ path = "../ground" }}
standin = {{ path = "../standin" }}
"""
OTHERS = ("ray", "hydra-core", "omegaconf", "attrs", "filelock", "rich")

WORKER = """
import sys
import rl_cluster

class Told:
    def where(self):
        try:
            import standin
            found = standin.NAME
        except ImportError as error:
            found = str(error)
        return [sys.executable, rl_cluster.__file__, found]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    wheel = build_wheel(folder)
    site = "\n".join(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))
    write_package(folder, "ground", {"ground.pth": site, "ground_module.py": WORKER})
    write_package(folder, "standin", {"standin.py": "NAME = 'standin'\n"})
    made = folder / "train"
    made.mkdir()
    others = ", ".join(f"\"{name}; sys_platform == 'never'\"" for name in OTHERS)
    (made / "pyproject.toml").write_text(PROJECT.format(wheel=wheel.name, others=others))
    lock(made)
    return made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of the user who types the command."""
    return install("wheel", tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize(("python", "standin"), [("base", "No module named 'standin'"), ("vllm", "standin")])
def test_workers_of_a_project_that_depends_on_the_wheel(driver: Path, project: Path, tmp_path: Path, python: str, standin: str) -> None:
    envs = project.parent / "envs"
    words = [
        *(f"python={python}", f"python.project_dir={project}", f"python.venv_dir={envs}", "cluster=local", "ray=local"),
        *("worker.target=ground_module.Told", "worker.method=where", "hydra.run.dir=run"),
    ]
    here = tmp_path / "elsewhere"
    here.mkdir()
    path = os.pathsep.join([str(Path(find_uv() or "uv").parent), os.environ["PATH"]])
    uv = {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(project.parent / "uv-cache")}
    environ = clean_env(PATH=path, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", **uv)
    command = [str(driver), "-m", "rl_cluster.app", *words]
    done = subprocess.run(command, cwd=here, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((here / "run" / "report.json").read_text())
    results = [worker["result"] for worker in report["workers"]]
    assert len(results) == len(report["layout"]["bundles"])
    for executable, package, found in results:
        assert Path(executable).parents[2] == envs
        assert Path(package).is_relative_to(Path(executable).parents[1])
        assert found == standin
