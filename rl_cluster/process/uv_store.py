"""The folder of built environments: which are whole, who holds them, when they were used, and how one is taken away.

``<venv_dir>/<key>/`` is an environment, ``<key>/rl-cluster-ready.json`` its marker, ``<key>.log`` the output of its last build. Who builds
or removes it locks ``<key>.lock``; who runs it holds a shared lock on the marker until it ends. These are ``flock`` locks, which the kernel
gives back when a process dies, and which on a shared filesystem hold between its hosts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = [
    "MARKER",
    "NoLocksError",
    "default_venv_dir",
    "hold_environment",
    "is_whole",
    "lock_key",
    "read_marker",
    "remove_environment",
    "remove_trash",
    "take_away",
    "trash_in",
    "unheld",
    "write_marker",
]

MARKER = "rl-cluster-ready.json"
_TRASH = ".trash-"
_held: dict[tuple[int, int], int] = {}  # device and inode of a marker to the open file that holds it, for the life of this process


class NoLocksError(OSError):
    """The filesystem has no file locks."""


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


def hold_environment(folder: Path) -> bool:
    """Keep an environment from being pruned as long as this process lives, and what it forks.

    Returns:
        Whether it is there. Where the filesystem has no locks it is there and not held.
    """
    try:
        file = os.open(folder / MARKER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    there = True
    if _identity(file) not in _held:
        with suppress(NoLocksError):
            there = _try_lock(file, fcntl.LOCK_SH) and _is_at(file, folder / MARKER)  # else it is being taken away, or has been
        if there:
            _held[_identity(file)] = file
            return True
    os.close(file)
    return there


@contextmanager
def unheld(folder: Path) -> Iterator[bool]:
    """Whether no process holds an environment, on whatever machine; while the block runs, none can begin to."""
    try:
        file = os.open(folder / MARKER, os.O_RDWR | os.O_CLOEXEC)  # for writing: NFS asks that of who locks exclusively
    except (FileNotFoundError, NotADirectoryError):
        yield True
        return
    try:
        try:
            free = _try_lock(file, fcntl.LOCK_EX)
        except NoLocksError:
            free = True
        yield free
    finally:
        os.close(file)


@contextmanager
def lock_key(folder: Path) -> Iterator[bool]:
    """Be the only one that builds or removes an environment. Does not wait: gives False where another one is at it.

    Raises:
        NoLocksError: The filesystem has no locks.
        OSError: The lock's file can't be made.
    """
    path = folder.with_name(f"{folder.name}.lock")
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            got = _try_lock(file, fcntl.LOCK_EX)
            if got and not _is_at(file, path):
                continue  # pruned between the two lines
            yield got
            return
        finally:
            os.close(file)


def remove_environment(folder: Path) -> None:
    """Take an environment away at once and delete it."""
    if trash := take_away(folder):
        remove_trash(trash)


def take_away(folder: Path) -> Path | None:
    """Rename an environment, so that nobody finds half of it while it is deleted.

    Returns:
        What is to be given to :func:`remove_trash`; None where another one was quicker.
    """
    trash = folder.with_name(f"{_TRASH}{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        return folder.rename(trash)
    except FileNotFoundError:
        return None


def trash_in(venv_dir: Path) -> list[Path]:
    """What was taken away and not deleted: the remover was ended, or a process still runs it."""
    return sorted(venv_dir.glob(f"{_TRASH}*"))


def remove_trash(trash: Path) -> bool:
    """Delete what was taken away, unless a process still holds it.

    Returns:
        Whether it is gone.
    """
    _let_go(trash)
    with unheld(trash) as free:
        pass  # nobody begins to hold it: its old name leads elsewhere. An open file would keep a folder on NFS from going
    if free and trash.is_dir() and not trash.is_symlink():
        shutil.rmtree(trash, ignore_errors=True)
    elif free:
        trash.unlink(missing_ok=True)
    return not os.path.lexists(trash)


def _let_go(folder: Path) -> None:
    with suppress(OSError):
        found = (folder / MARKER).stat()
        os.close(_held.pop((found.st_dev, found.st_ino), -1))


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
            raise NoLocksError(error.errno, error.strerror) from error
        raise


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _is_at(file: int, path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == _identity(file)


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
