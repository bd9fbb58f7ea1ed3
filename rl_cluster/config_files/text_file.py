"""The text of a file that a user names: read to its end if it has one, and not if it is no file."""

from __future__ import annotations

import difflib
import errno
import os
import select
import stat
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from attrs import define

__all__ = ["UnreadableError", "check_brackets", "check_levels", "read_text", "why_unread"]

SILENCE_S = 10.0  # after which a pipe in which nothing comes is left
MAX_LEVELS = 50  # of groups and lists in each other; at some more, YAML, omegaconf and Hydra's grammar end with a RecursionError
MAX_ENTRIES = 10_000_000
_CHUNK = 65536  # bytes
_KINDS = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class UnreadableError(ValueError):
    """A file can't be read; its text is a clause: ``must be a readable file, got Permission denied``."""


def read_text(path: str | os.PathLike[str], *, max_bytes: int, pipes: bool = True) -> str:
    """The text of a regular file, or of a pipe (``<(command)``), that ends within ``max_bytes``. Devices have no end, and are not read.

    Args:
        path: The file.
        max_bytes: What a file of this kind can have.
        pipes: Whether a pipe will do; it can be read once only.

    Raises:
        UnreadableError: It is missing, a folder, a device, too large, or no UTF-8; a pipe is empty, or nothing comes in it for 10 s.
    """
    path = Path(path)
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # else opening a pipe waits for its writer
        try:
            content = b"".join(_chunks(number, max_bytes, pipes=pipes))
        finally:
            os.close(number)
        return content.decode("utf-8")
    except UnicodeDecodeError:  # a ValueError, too
        raise UnreadableError("must be a text file in UTF-8, got other bytes") from None
    except (OSError, ValueError) as error:  # the second: a path with a NUL
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError(f"must be a readable file, got {getattr(error, 'strerror', None) or error}{_fix(path, error)}") from None


def _fix(path: Path, error: Exception) -> str:
    if isinstance(error, IsADirectoryError):
        return ". Fix: name a file in that folder"
    if isinstance(error, PermissionError):
        return f". Fix: as its owner, chmod +r {path}"
    if not isinstance(error, FileNotFoundError):
        return ""
    names = os.listdir(path.parent) if path.parent.is_dir() and os.access(path.parent, os.R_OK) else []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f". Fix: write {path.with_name(near[0])}" if near else ". Fix: correct its path"


def _chunks(number: int, max_bytes: int, *, pipes: bool) -> Iterator[bytes]:
    found = os.fstat(number)
    is_pipe = stat.S_ISFIFO(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode) and not (is_pipe and pipes):
        raise UnreadableError(f"must be a regular file, got {_KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}")
    limit = f"must have at most {max_bytes / 2**20:g} MiB"
    if found.st_size > max_bytes:
        raise UnreadableError(f"{limit}, got {found.st_size / 2**20:.1f} MiB")
    size = 0
    while True:
        if is_pipe and not select.select([number], [], [], SILENCE_S)[0]:
            raise UnreadableError(f"must be a readable file, got a pipe in which nothing came for {SILENCE_S:g} s")
        chunk = os.read(number, _CHUNK)
        if not chunk:
            break
        size += len(chunk)
        if size > max_bytes:
            raise UnreadableError(f"{limit}, got more")
        yield chunk
    if is_pipe and not size:
        raise UnreadableError("must be a readable file, got an empty pipe (one can be read once only)")


def check_levels(text: str) -> None:
    """Whether a YAML text has no more levels, and with its aliases no more entries, than can be read; it may have other mistakes.

    Raises:
        UnreadableError: It has more than `MAX_LEVELS` or `MAX_ENTRIES`, or a group that holds itself.
        YAMLError: It is no YAML.
    """
    import yaml  # type: ignore[import-untyped]

    open_groups = [_Group(None)]  # the outermost is the text itself
    named: dict[str, _Group] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_groups.append(_Group(event.anchor))
            _check_depth(len(open_groups) - 1)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            ended = open_groups.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(group.anchor == event.anchor for group in open_groups):
                raise UnreadableError(f"must have no group that holds itself, got *{event.anchor}")
            ended = named.get(event.anchor, _Group(None))
        elif isinstance(event, yaml.ScalarEvent):
            ended = _Group(event.anchor)
        else:
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            ended.levels += 1
        if ended.anchor is not None:
            named[ended.anchor] = ended
        around = open_groups[-1]
        around.levels, around.entries = max(around.levels, ended.levels), around.entries + ended.entries
        _check_depth(len(open_groups) - 1 + ended.levels)
        if around.entries > MAX_ENTRIES:
            raise UnreadableError(f"must have at most {MAX_ENTRIES} entries with its aliases, got more")


@define
class _Group:
    anchor: str | None
    levels: int = 0
    entries: int = 1


def check_brackets(word: str) -> None:
    """Whether a word of the command line has no more brackets in each other than `MAX_LEVELS`.

    Raises:
        UnreadableError: It has more.
    """
    _check_depth(max(accumulate((letter in "([{") - (letter in ")]}") for letter in word), default=0))


def _check_depth(levels: int) -> None:
    if levels > MAX_LEVELS:
        raise UnreadableError(f"must have at most {MAX_LEVELS} levels in each other, got more")


def why_unread(error: Exception) -> str:
    """What YAML or omegaconf says of a text that it refuses, in one line."""
    if isinstance(error, ValueError) and "integer string conversion" in str(error):
        return "a number of more than 4300 digits"  # Python reads no such number
    if isinstance(error, RecursionError):
        return "more levels in each other than can be read"
    return " ".join(str(getattr(error, "problem", None) or error).split())
