"""The key of an environment: a digest of everything that decides what is in it. Another request, lock or Python is another key.

What is installed from a local folder by copy (see :mod:`rl_cluster.process.uv_local`) counts by its content; what is installed editable
is read where it lies and counts by its path. Packages of an index count by the lock, or, with ``--with``, by what was asked for.
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

from rl_cluster.process.uv_local import digest, find_lock, local_packages
from rl_cluster.process.uv_request import UvRequest

__all__ = ["environment_key"]

_FORMAT = 2  # raise it when environments of an older kind must not be used any more
_PROJECT_FILES = ("pyproject.toml", "uv.toml", ".python-version")


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
        "with": [[kind, value, *_digests(project_dir, kind, value)] for kind, value in request.with_args],
        "project": str(project_dir),
        "files": {str(folder / name): digest(folder / name) for folder in {project_dir, root} for name in _PROJECT_FILES},
        "lock": digest(lock) if lock else "",
        "sources": sorted([str(local.path), digest(local.path)] for local in local_packages(request, project_dir=project_dir)),
        "python": [base_python, platform.python_version(), platform.python_implementation()],
        "machine": [sys.platform, platform.machine(), *platform.libc_ver()],
    }
    text = json.dumps(facts, sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(_words_of_name(request, project_dir)))[:48].strip("-")
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _words_of_name(request: UvRequest, project_dir: Path) -> Iterator[str]:
    # For a person who looks into the folder; the digest decides.
    yield project_dir.name or "project"
    yield from (value for name, value in zip(request.sync_args, request.sync_args[1:], strict=False) if name in ("--extra", "--group"))
    yield from (os.path.basename(value) for _, value in request.with_args)


def _digests(project_dir: Path, kind: str, value: str) -> list[str]:
    if kind == "editable":  # its code is read in place, its metadata is not
        folder = project_dir / os.path.expanduser(re.sub(r"\[[^]]*\]$", "", value))
        return [digest(folder / name) for name in ("pyproject.toml", "setup.cfg", "setup.py")]
    return [digest(project_dir / os.path.expanduser(value))] if kind == "requirements" else []
