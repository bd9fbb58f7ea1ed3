"""Installing the package as users do, in fresh environments that know nothing of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def clean_env(**more: str) -> dict[str, str]:
    """The environment of a user who never saw this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HYDRA_FULL_ERROR", "VIRTUAL_ENV")}
    return {**kept, **more}


def checked(*command: str | Path, cwd: Path) -> None:
    """Run a command of the set-up; its output is the message when it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean_env(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    checked(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(kind: str, folder: Path) -> Path:
    """Install the package in one of the usual ways into a fresh environment, and return its interpreter.

    The wheel comes by pip, the sdist by uv, the checkout by uv --editable. Dependencies come from the running environment by a .pth
    file, which is quick and adds nothing of ours: .pth files found there (an editable install of this checkout, say) are not read.
    """
    venv = folder / "an environment é"  # a user's path may hold a space
    checked(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    python = venv / "bin" / "python"
    site = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--python", python]
    if kind == "wheel":
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        checked(*pip, build_wheel(folder), cwd=folder)
    elif kind == "sdist":
        checked(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
        checked(*uv, *folder.glob("*.tar.gz"), cwd=folder)
    else:
        checked(*uv, "--editable", ROOT, cwd=folder)
    return python
