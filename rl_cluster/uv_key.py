"""The key of an environment: a digest of everything that decides what is in it. Another request, lock or Python is another key.

What is installed from a local folder by copy counts by its content; what is installed editable is read where it lies and counts by its
path. Packages of an index count by the lock, or, with ``--with``, by what was asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_cluster.uv_request import UvRequest

__all__ = ["environment_key", "find_lock", "split_with"]

_FORMAT = 1  # raise it when environments of an older kind must not be used any more
_PROJECT_FILES = ("pyproject.toml", "uv.toml", ".python-version")
_LOCAL_SOURCE = re.compile(r'^source = \{ (directory|path|editable) = "([^"]+)"', re.MULTILINE)
_SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
_BETWEEN_PACKAGES = re.compile(r",(?=\s*[A-Za-z./])(?![^\[]*\])")  # not the commas of "a>1,<2" and "a[x,y]"


def environment_key(request: UvRequest, *, project_dir: Path, base_python: str) -> str:
    """A short text for a folder's name: equal exactly where the environments would be.

    Args:
        request: What the environment is made of.
        project_dir: The uv project, on this machine.
        base_python: Interpreter that the environment is made with, a path or a version.

    Raises:
        OSError: A file of the project can't be read.
    """
    lock = find_lock(project_dir)
    root = lock.parent if lock else project_dir
    facts = {
        "format": _FORMAT,
        "sync": request.sync_args,
        "with": [[kind, value, _digest_of_local(project_dir, kind, value)] for kind, value in request.with_args],
        "project": str(project_dir),
        "files": {str(folder / name): _digest(folder / name) for folder in {project_dir, root} for name in _PROJECT_FILES},
        "lock": _digest(lock) if lock else "",
        "sources": _local_sources(lock, copied_editables="--no-editable" in request.sync_args) if lock else {},
        "python": [base_python, platform.python_version(), platform.python_implementation()],
        "machine": [sys.platform, platform.machine(), *platform.libc_ver()],
    }
    text = json.dumps(facts, sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(_words_of_name(request, project_dir)))[:48].strip("-")
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def find_lock(project_dir: Path) -> Path | None:
    """The ``uv.lock`` of a project: its own, or that of the workspace above it."""
    return next((folder / "uv.lock" for folder in (project_dir, *project_dir.parents) if (folder / "uv.lock").is_file()), None)


def split_with(value: str) -> list[str]:
    """The packages of one ``--with``, which uv lets commas part: ``"a,b>1,<2"`` is a and ``b>1,<2``."""
    return [part.strip() for part in _BETWEEN_PACKAGES.split(value) if part.strip()]


def _words_of_name(request: UvRequest, project_dir: Path) -> Iterator[str]:
    # For a person who looks into the folder; the digest decides.
    yield project_dir.name or "project"
    yield from (value for name, value in zip(request.sync_args, request.sync_args[1:], strict=False) if name in ("--extra", "--group"))
    yield from (os.path.basename(value) for _, value in request.with_args)


def _local_sources(lock: Path, *, copied_editables: bool) -> dict[str, str]:
    wanted = {"directory", "path"} | ({"editable"} if copied_editables else set())
    found = _LOCAL_SOURCE.findall(lock.read_text())
    return {where: _digest(lock.parent / where) for kind, where in found if kind in wanted}


def _digest_of_local(project_dir: Path, kind: str, value: str) -> list[str]:
    """Digests of what a ``--with`` takes from this machine's disk; an editable one is read in place, only its metadata counts."""
    if kind == "editable":
        return [_digest(project_dir / value / "pyproject.toml")]
    return [_digest(project_dir / os.path.expanduser(part)) for part in split_with(value)]


def _digest(path: Path) -> str:
    """Of a file's content, or of all files below a folder; empty where there is nothing."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if not path.is_dir():
        return ""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS and not f.endswith(".egg-info"))
        for name in sorted(files):
            file = Path(folder, name)
            if file.is_file():
                digest.update(f"{file.relative_to(path)}\0{_digest(file)}\0".encode())
    return digest.hexdigest()
