"""The folder of built environments: which are whole, when they were used, and how one is taken away.

``<venv_dir>/<key>/`` is an environment, ``<key>/rl-cluster-ready.json`` its marker, ``<key>.lock`` keeps builders apart and stays,
``<key>.log`` holds the output of the last build.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["MARKER", "default_venv_dir", "is_whole", "read_marker", "remove_environment", "write_marker"]

MARKER = "rl-cluster-ready.json"


def default_venv_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of all environments where ``python.venv_dir`` is not given: $NEMO_RL_VENV_DIR, else a cache folder of the user."""
    if environ.get("NEMO_RL_VENV_DIR"):
        return Path(environ["NEMO_RL_VENV_DIR"]).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(cache, "rl_cluster", "envs")


def is_whole(folder: Path) -> bool:
    """Whether an environment may be used: its marker is valid, its interpreter is there, and no file is missing or cut short."""
    marker = read_marker(folder)
    if marker is None or marker["key"] != folder.name or not os.access(folder / "bin" / "python", os.X_OK):
        return False
    return all(_size(folder / name) == size for name, size in marker["files"].items())


def write_marker(folder: Path, **facts: Any) -> None:
    """Say that an environment is ready: the last step of a build. The marker is there whole or not at all."""
    new = folder / f"{MARKER}.new"
    with new.open("w") as file:
        json.dump({"key": folder.name, **facts, "files": dict(_files(folder))}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / MARKER)


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a ready environment; None where there is none that is whole."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        return marker if isinstance(marker["key"], str) and isinstance(marker["files"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_environment(folder: Path) -> None:
    """Take an environment away at once (by a rename, so that nobody finds half of it), then delete it."""
    trash = folder.with_name(f".trash-{folder.name}-{uuid.uuid4().hex[:8]}")
    with suppress(FileNotFoundError):
        folder.rename(trash)
    for left in folder.parent.glob(f".trash-{folder.name}-*"):  # also what a killed remover left
        shutil.rmtree(left, ignore_errors=True)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Files of an environment with their sizes, down to the modules of each package: enough to notice losses, quick on a shared disk."""
    for site in (*folder.glob("lib/python*/site-packages"), folder / "bin"):
        for path in (*site.glob("*"), *site.glob("*/*")):
            if path.is_file() and not path.name.endswith(".pyc"):
                yield str(path.relative_to(folder)), path.stat().st_size
    yield "pyvenv.cfg", (folder / "pyvenv.cfg").stat().st_size


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
