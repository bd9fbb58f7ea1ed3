"""A small uv project of local packages, made in a temporary folder and locked there: no index is asked for anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import rl_cluster

# A build backend in the package itself, so that a build needs nothing from an index. It counts its runs, and waits while `gate` is there
# (no longer than uv lives, which is killed in some tests).
BACKEND = """
import os, time, zipfile
HERE = os.path.dirname(os.path.abspath(__file__))
NAME, FILES = {name!r}, {files!r}

def get_requires_for_build_wheel(config_settings=None):
    return []

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(os.path.join(HERE, "..", NAME + ".builds"), "a") as builds:
        builds.write("x")
    parent = os.getppid()
    while os.path.exists(os.path.join(HERE, "..", NAME + ".gate")) and os.getppid() == parent:
        time.sleep(0.02)
    if os.path.exists(os.path.join(HERE, "..", NAME + ".broken")):
        raise RuntimeError("this package does not build, asked at https://me:planted-secret@index.invalid/simple")
    wheel = NAME + "-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w") as archive:
        for path, text in FILES.items():
            archive.writestr(path, text)
        info = NAME + "-1.0.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: " + NAME + "\\nVersion: 1.0\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return wheel
"""

PROJECT = """
[project]
name = "demo"
version = "0"
requires-python = ">=3.10"
dependencies = ["ground"]
[project.optional-dependencies]
vllm = ["standin"]
[tool.uv.sources]
ground = { path = "../ground" }
standin = { path = "../standin" }
"""


def find_uv() -> str | None:
    """The uv program: on PATH, or beside the interpreter that runs the tests."""
    return shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))


def write_package(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A package of the given files that builds itself without an index."""
    package = folder / name
    package.mkdir()
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (package / "pyproject.toml").write_text(f'{build}[project]\nname = "{name}"\nversion = "1.0"\n')
    (package / "backend.py").write_text(BACKEND.format(name=name, files=files))
    return package


def lock(project: Path) -> None:
    """Lock a project, or lock it again."""
    command = [find_uv() or "uv", "lock", "--offline", "--python", getattr(sys, "_base_executable", sys.executable)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=60)


def make_project(folder: Path, *, ground: str | None = None, module: str = "") -> Path:
    """A locked project, ``folder``/demo: its dependency ``ground`` brings ray and rl_cluster, its extra ``vllm`` the module ``standin``.

    Args:
        folder: Gets the project and its packages.
        ground: Lines of the .pth file of ``ground``; default: where this interpreter has ray and rl_cluster.
        module: Text of the module ``ground_module``, which only the project's environments have.
    """
    if ground is None:
        paths = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(rl_cluster.__file__).parent.parent)])
        ground = "\n".join(paths)
    write_package(folder, "ground", {"ground.pth": ground, "ground_module.py": module})
    write_package(folder, "standin", {"standin.py": "NAME = 'standin'\n"})
    project = folder / "demo"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    lock(project)
    return project


def builds_of(folder: Path, name: str) -> int:
    """How often a package was built."""
    counter = folder / f"{name}.builds"
    return len(counter.read_text()) if counter.exists() else 0
