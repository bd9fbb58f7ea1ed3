"""``rl-cluster-envs list|prune``: look at the Python environments that were built on this machine, and remove old ones."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import asdict, evolve, frozen

from rl_cluster.process.uv_store import (
    MARKER,
    default_venv_dir,
    is_whole,
    lock_key,
    read_marker,
    remove_trash,
    take_away,
    trash_in,
    unheld,
)
from rl_cluster.views.screen import command, say

__all__ = ["EnvironmentRecord", "list_environments", "main", "prune_environments"]

DAY_S = 86400.0
STARTING_S = 600.0
"""How long a run may need from asking for an environment to workers that hold it: none is pruned earlier after its last use."""

_KEY = re.compile(r".+-[0-9a-f]{16}")  # see uv_key.environment_key
Skipped = Callable[[Path, OSError], object]


@frozen
class EnvironmentRecord:
    """One environment on this machine.

    Attributes:
        name: Its folder's name.
        path: Its folder.
        state: ``ready``, ``damaged`` (files are missing), ``unfinished`` (its builder was ended), ``building``, or ``removed`` (taken
            away, but its remover was ended or a process still ran it).
        size_bytes: Of its files on disk; what it shares with uv's cache by hard links is counted.
        unused_s: Seconds since a worker group last asked for it.
        users: Process ids on this machine that run its Python, or hold it as workers and builders do.
        command: The uv run that gives the same packages.
    """

    name: str
    path: str
    state: str
    size_bytes: int
    unused_s: float
    users: tuple[int, ...]
    command: str


def list_environments(venv_dir: Path, *, now: float | None = None, skipped: Skipped | None = None) -> list[EnvironmentRecord]:
    """All environments of a folder, the longest unused one first.

    Args:
        venv_dir: Folder of environments; one that isn't there has none.
        now: Seconds since the epoch; default: the clock's.
        skipped: Gets each entry that can't be looked at, with the reason; default: such an error is raised.

    Raises:
        OSError: It is no folder, or can't be read.
    """
    found = []
    for folder in (*_environments_in(venv_dir), *trash_in(venv_dir)):
        with _skipping(folder, skipped), suppress(FileNotFoundError):  # it may be removed or replaced while we look
            record = _look_at(folder, time.time() if now is None else now)
            found.append(evolve(record, size_bytes=_size(folder)))
    return sorted(found, key=lambda record: (-record.unused_s, record.name))


def prune_environments(
    venv_dir: Path, *, unused_s: float, dry_run: bool = False, now: float | None = None, skipped: Skipped | None = None
) -> list[EnvironmentRecord]:
    """Remove the environments that nobody asked for during ``unused_s`` seconds, and what ended builders and removers left.

    Kept are those that are being built and those that a process holds (workers and builders do), on whatever machine that shares the
    folder and its locks; those that a process of this machine runs without; and those that were asked for in the last
    ``STARTING_S`` seconds, because workers may be starting in them. All is looked at again at the moment of removal.

    Args:
        venv_dir: Folder of environments.
        unused_s: Seconds; 0 takes all that nobody uses now.
        dry_run: Only say what would go.
        now: Seconds since the epoch; default: the clock's.
        skipped: As in :func:`list_environments`.

    Returns:
        Those that this call removed (or would remove).

    Raises:
        OSError: It is no folder, or can't be read.
    """
    gone = []
    for record in list_environments(venv_dir, now=now, skipped=skipped):
        folder = Path(record.path)
        with _skipping(folder, skipped), suppress(FileNotFoundError):
            if record.state == "removed":
                if not record.users and (dry_run or remove_trash(folder)):
                    gone.append(record)
            elif _may_go(record, unused_s) and _remove(folder, unused_s, dry_run=dry_run, now=now):
                gone.append(record)
    if not dry_run:
        for lock in venv_dir.glob("*.lock"):  # of builds that failed, and of environments that went by another way
            with _skipping(lock, skipped), suppress(FileNotFoundError):
                _remove_log(lock.with_name(lock.name.removesuffix(".lock")), unused_s, time.time() if now is None else now)
    return gone


def _may_go(record: EnvironmentRecord, unused_s: float) -> bool:
    return not record.users and record.state != "building" and (record.state != "ready" or record.unused_s >= max(unused_s, STARTING_S))


def _remove(folder: Path, unused_s: float, *, dry_run: bool, now: float | None) -> bool:
    """Remove an environment, if what is true now still allows it."""
    with lock_key(folder) as ours, unheld(folder) as free:
        if not ours:
            return False
        if not os.path.lexists(folder):  # another prune was quicker, and has removed the lock, which we have made anew
            folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
            return False
        if not free or not _may_go(_look_at(folder, time.time() if now is None else now, locked=True), unused_s):
            return False
        if dry_run:
            return True
        trash = take_away(folder)
        for kind in ("log", "lock"):  # who waits for the lock notices
            folder.with_name(f"{folder.name}.{kind}").unlink(missing_ok=True)
    if trash:
        remove_trash(trash)
    return trash is not None


def _remove_log(folder: Path, unused_s: float, now: float) -> None:
    """Remove log and lock of an environment that isn't there."""
    log, lock = (folder.with_name(f"{folder.name}.{kind}") for kind in ("log", "lock"))
    if os.path.lexists(folder) or not _KEY.fullmatch(folder.name) or not lock.is_file():
        return
    if now - (log if log.exists() else lock).stat().st_mtime < unused_s:
        return
    with lock_key(folder) as ours:
        if ours and not os.path.lexists(folder):
            log.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


@contextmanager
def _skipping(path: Path, skipped: Skipped | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if skipped is None or isinstance(error, FileNotFoundError):
            raise
        skipped(path, error)


def _environments_in(venv_dir: Path) -> list[Path]:
    if not os.path.lexists(venv_dir):
        return []
    found = [Path(entry.path) for entry in os.scandir(venv_dir) if entry.is_dir() and os.path.lexists(f"{entry.path}.lock")]
    return [folder for folder in found if _KEY.fullmatch(folder.name) or read_marker(folder)]


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
        "--unused-days",
        type=_days,
        default=30.0,
        help="how long unused (default: %(default)g; 0: all that no process runs, and that no run asked for in the last "
        f"{STARTING_S / 60:g} minutes)",
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    args = parser.parse_args(argv)
    venv_dir: Path = getattr(args, "venv_dir", default_venv_dir()).expanduser()
    try:
        if args.command == "list":
            records = list_environments(venv_dir, skipped=_say_skipped)
            print(json.dumps([asdict(record) for record in records], indent=1) if args.json else _table(records, venv_dir))
        else:
            gone = prune_environments(venv_dir, unused_s=args.unused_days * DAY_S, dry_run=args.dry_run, skipped=_say_skipped)
            freed = _human(sum(record.size_bytes for record in gone))
            print("\n".join([*(record.name for record in gone), f"{'would remove' if args.dry_run else 'removed'} {len(gone)} ({freed})"]))
    except OSError as error:
        say(f"rl-cluster-envs: {venv_dir} must be usable, got {error}. Fix: give --venv-dir a folder of yours")
        return 1
    return 0


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not math.isfinite(days) or days < 0:
        raise argparse.ArgumentTypeError(f"must be a number of days, 0 or more, got {text}. Fix: e.g. --unused-days 30")
    return days


def _say_skipped(path: Path, error: OSError) -> None:
    say(f"rl-cluster-envs: {path} is passed over, got {error}. Fix: remove it by hand if it is not wanted")


def _look_at(folder: Path, now: float, *, locked: bool = False) -> EnvironmentRecord:
    """An environment as it is now, all but its size; ``locked``: by this process."""
    marker = read_marker(folder)
    if folder.name.startswith(".trash-"):
        state = "removed"
    elif marker is not None:
        state = "ready" if is_whole(folder) else "damaged"
    elif locked:
        state = "unfinished"
    else:
        with lock_key(folder) as free:
            state = "unfinished" if free else "building"
    return EnvironmentRecord(
        name=folder.name,
        path=str(folder),
        state=state,
        size_bytes=0,
        unused_s=max(0.0, now - (folder / MARKER if marker else folder).lstat().st_mtime),
        users=_users(folder),
        command=str((marker or {}).get("command", "")),
    )


def _users(folder: Path) -> tuple[int, ...]:
    """Processes of this machine that use the environment: by the program that they were started by, by the environment that was activated
    then, by the libraries that they have mapped, or by its marker, which workers hold open.

    Not by the program alone, because a Ray worker overwrites its command line with a title of its own. Not by libraries alone: an
    environment whose packages are links has none below its folder. /proc/PID/exe tells nothing: it is the base interpreter.
    """
    found = []
    environment = folder.resolve()
    marker, inside = os.fsencode(environment / MARKER), os.fsencode(environment) + b"/"  # the kernel's name of it
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if (
                _started_in(entry, environment)
                or b" " + inside in (entry / "maps").read_bytes()
                or (int(entry.name) != os.getpid() and marker in _open_files(entry))  # who prunes opens it to lock it
            ):
                found.append(int(entry.name))
    return tuple(sorted(found))


def _started_in(entry: Path, environment: Path) -> bool:
    """Whether a process was started by a program of the environment, by whatever name, or while the environment was activated."""

    def is_inside(program: str) -> bool:  # the program itself may be a link to the base interpreter, so only its folder's are followed
        return Path(os.path.realpath(os.path.dirname(program))).is_relative_to(environment)

    program = os.fsdecode((entry / "cmdline").read_bytes().partition(b"\0")[0])
    if os.path.isabs(program) and is_inside(program):  # all that can be read of another user's process
        return True
    pairs = (os.fsdecode(pair).partition("=") for pair in (entry / "environ").read_bytes().split(b"\0"))
    given = {name: value for name, _, value in pairs}
    activated = given.get("VIRTUAL_ENV", "")
    if os.path.isabs(activated) and Path(os.path.realpath(activated)) == environment:
        return True
    here = [os.readlink(entry / "cwd"), *filter(None, [given.get("PWD")])]  # as it is now, and as it was
    if "/" in program:
        return any(is_inside(os.path.join(folder, program)) for folder in here)
    if not program or not (environment / "bin" / program).exists():
        return False
    on_path = (os.path.join(folder, part, program) for part in given.get("PATH", "").split(os.pathsep) for folder in here)
    found = next(filter(os.path.exists, on_path), None)
    return found is not None and is_inside(found)


def _open_files(entry: Path) -> Iterator[bytes]:
    for file in os.listdir(entry / "fd"):
        with suppress(OSError):  # closed meanwhile
            yield os.fsencode(os.readlink(entry / "fd" / file))


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
        users = f"{len(record.users)} process{'es' * (len(record.users) > 1)}" if record.users else "-"
        rows.append(
            (record.name, record.state, _human(record.size_bytes), f"{record.unused_s / DAY_S:.1f} days", users, record.command or "-")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows)
    return f"{table}\nin {venv_dir}"


if __name__ == "__main__":
    sys.exit(main())
