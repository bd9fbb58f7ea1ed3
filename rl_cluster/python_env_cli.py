"""``rl-cluster-envs list|prune``: look at the Python environments that were built on this machine, and remove old ones."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attrs import asdict, frozen
from filelock import FileLock, Timeout

from rl_cluster.screen import command, say
from rl_cluster.uv_store import MARKER, default_venv_dir, is_whole, read_marker, remove_environment

__all__ = ["EnvironmentRecord", "list_environments", "main", "prune_environments"]

DAY_S = 86400.0


@frozen
class EnvironmentRecord:
    """One environment on this machine.

    Attributes:
        name: Its folder's name.
        path: Its folder.
        state: ``ready``, ``damaged`` (files are missing), ``unfinished`` (its builder was ended) or ``building``.
        size_bytes: Of its files on disk; what it shares with uv's cache by hard links is counted.
        unused_s: Seconds since a worker group last asked for it.
        users: Process ids on this machine that run its Python.
        command: The uv run that gives the same packages.
    """

    name: str
    path: str
    state: str
    size_bytes: int
    unused_s: float
    users: tuple[int, ...]
    command: str


def list_environments(venv_dir: Path, *, now: float | None = None) -> list[EnvironmentRecord]:
    """All environments of a folder, the longest unused one first.

    Args:
        venv_dir: Folder of environments; one that isn't there has none.
        now: Seconds since the epoch; default: the clock's.
    """
    now = time.time() if now is None else now
    found = [folder for folder in venv_dir.glob("*") if folder.is_dir() and (folder.with_name(folder.name + ".lock")).exists()]
    records = []
    for folder in found:
        marker = read_marker(folder)
        with suppress(FileNotFoundError):  # it may be removed or replaced while we look
            used = (folder / MARKER if marker else folder).stat().st_mtime
            records.append(
                EnvironmentRecord(
                    name=folder.name,
                    path=str(folder),
                    state=_state(folder, has_marker=marker is not None),
                    size_bytes=_size(folder),
                    unused_s=max(0.0, now - used),
                    users=_users(folder),
                    command=str((marker or {}).get("command", "")),
                )
            )
    return sorted(records, key=lambda record: (-record.unused_s, record.name))


def prune_environments(venv_dir: Path, *, unused_s: float, dry_run: bool = False, now: float | None = None) -> list[EnvironmentRecord]:
    """Remove the environments that nobody asked for during ``unused_s`` seconds, and what killed builders left.

    Kept are those that are being built, on whatever machine, and those that a process of this machine runs. A process of another machine
    that shares the folder can't be seen: choose ``unused_s`` longer than your jobs.

    Args:
        venv_dir: Folder of environments.
        unused_s: Seconds; 0 takes all that nobody uses now.
        dry_run: Only say what would go.
        now: Seconds since the epoch; default: the clock's.

    Returns:
        Those that were removed (or would be).
    """
    gone = []
    for record in list_environments(venv_dir, now=now):
        if record.users or record.state == "building" or (record.state == "ready" and record.unused_s < unused_s):
            continue
        lock = FileLock(f"{record.path}.lock")
        try:
            with lock.acquire(timeout=0):
                if not dry_run:
                    remove_environment(Path(record.path))
                    Path(f"{record.path}.log").unlink(missing_ok=True)
        except Timeout:
            continue  # a builder was quicker
        gone.append(record)
    return gone


@command
def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 0, or 1 where the folder can't be read or written."""
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--venv-dir",
        type=Path,
        default=argparse.SUPPRESS,  # before the command or behind it; the second must not overwrite the first
        help="folder of the environments (default: $NEMO_RL_VENV_DIR, then the user's cache folder; see python.venv_dir)",
    )
    parser = argparse.ArgumentParser(
        prog="rl-cluster-envs", description="Python environments of workers, built on this machine.", parents=[where]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="show all environments", parents=[where])
    listing.add_argument("--json", action="store_true", help="as JSON, one list of objects")
    unused = "remove environments that were not used for a while, and unfinished ones"
    prune = commands.add_parser("prune", help=unused, parents=[where])
    prune.add_argument(
        "--unused-days", type=float, default=30.0, help="how long unused (default: %(default)g; 0: all that no process runs)"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    args = parser.parse_args(argv)
    venv_dir: Path = getattr(args, "venv_dir", default_venv_dir()).expanduser()
    try:
        if args.command == "list":
            records = list_environments(venv_dir)
            print(json.dumps([asdict(record) for record in records], indent=1) if args.json else _table(records, venv_dir))
        else:
            gone = prune_environments(venv_dir, unused_s=args.unused_days * DAY_S, dry_run=args.dry_run)
            freed = _human(sum(record.size_bytes for record in gone))
            print("\n".join([*(record.name for record in gone), f"{'would remove' if args.dry_run else 'removed'} {len(gone)} ({freed})"]))
    except OSError as error:
        say(f"rl-cluster-envs: {venv_dir} must be usable, got {error}. Fix: give --venv-dir a folder of yours")
        return 1
    return 0


def _state(folder: Path, *, has_marker: bool) -> str:
    if has_marker:
        return "ready" if is_whole(folder) else "damaged"
    try:
        with FileLock(f"{folder}.lock").acquire(timeout=0):
            return "unfinished"
    except Timeout:
        return "building"


def _users(folder: Path) -> tuple[int, ...]:
    """Processes of this machine that run the environment: by the interpreter's path, or by the libraries that they have mapped.

    The second, because a Ray worker overwrites its command line with a title of its own.
    """
    found = []
    inside = os.fsencode(folder) + b"/"
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if (entry / "cmdline").read_bytes().startswith(inside) or b" " + inside in (entry / "maps").read_bytes():
                found.append(int(entry.name))
    return tuple(sorted(found))


def _size(folder: Path) -> int:
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def _human(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _table(records: Sequence[EnvironmentRecord], venv_dir: Path) -> str:
    if not records:
        return f"no environments in {venv_dir}"
    rows = [("environment", "state", "size", "unused", "used by", "made by")]
    for record in records:
        users = f"{len(record.users)} processes" if record.users else "-"
        rows.append(
            (record.name, record.state, _human(record.size_bytes), f"{record.unused_s / DAY_S:.1f} days", users, record.command or "-")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows)
    return f"{table}\nin {venv_dir}"


if __name__ == "__main__":
    sys.exit(main())
