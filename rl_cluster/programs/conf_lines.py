"""A YAML file with the line of every key and value, and what YAML makes of words that a person takes for text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from rl_cluster.config_files.recipe_file import MAX_BYTES
from rl_cluster.config_files.text_file import UnreadableError, check_levels, read_text, why_unread
from rl_cluster.errors import ConfigError

Path_ = tuple[str, ...]  # keys as they are written, list items by their index

_BOOL, _NULL, _TEXT = "bool", "null", "str"
_DOUBTFUL_BOOLS = frozenset({"yes", "no", "on", "off", "y", "n"})  # true and false are plain enough


@frozen
class Word:
    """An unquoted key or value."""

    path: Path_
    text: str  # as it is written
    kind: str  # what YAML makes of it: str, int, float, bool, null, ...
    line: int
    is_key: bool = False

    @property
    def read_as(self) -> str:
        """What YAML makes of it, in words, where that is not the text itself; else ""."""
        return misread(self.text)


@frozen
class Source:
    """A file as it is written."""

    file: Path
    text: str
    lines: Mapping[Path_, int]  # of each key or item, 1-based
    words: tuple[Word, ...]
    twice: tuple[tuple[Path_, int], ...]  # keys that a group has more than once, of which YAML keeps the last

    def line_of(self, dotted: str) -> int | None:
        """The line of a path like ``policy.cluster.num_nodes`` or ``env.forward[1]``, or of the nearest key above it that is there."""
        here: Path_ = ()
        rest, line = dotted, None
        while rest:
            key = next((path[-1] for path in sorted(self._below(here), key=lambda path: -len(path[-1])) if _starts(rest, path[-1])), None)
            if key is None:
                break
            here, line = (*here, key), self.lines[(*here, key)]
            rest = rest[len(key) :].lstrip(".[]")
        return line

    def _below(self, path: Path_) -> list[Path_]:
        return [other for other in self.lines if len(other) == len(path) + 1 and other[: len(path)] == path]


def _starts(rest: str, key: str) -> bool:
    return rest.startswith(key) and (len(rest) == len(key) or rest[len(key)] in ".[]")


def read_source(file: Path) -> Source:
    """Read a file.

    Raises:
        ConfigError: It can't be read or is no YAML; the message has the line.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        text = read_text(file, max_bytes=MAX_BYTES, pipes=False)  # it is read several times
        check_levels(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnreadableError as error:
        raise ConfigError(f"{file}:1: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        raise ConfigError(f"{file}:{mark.line + 1 if mark else 1}: must be YAML ({why_unread(error)})") from None
    lines: dict[Path_, int] = {}
    words: list[Word] = []
    twice: list[tuple[Path_, int]] = []
    if root is not None:
        for kind, path, line, word in _walk(root, ()):
            if kind == "word" and word is not None:
                _check_number(file, word)
                words.append(word)
            elif path in lines:
                twice.append((path, line))
            else:
                lines[path] = line
    return Source(file, text, lines, tuple(words), tuple(twice))


def _check_number(file: Path, word: Word) -> None:
    import yaml

    try:
        if word.kind == "int":
            yaml.safe_load(word.text)
    except ValueError as error:
        raise ConfigError(f"{file}:{word.line}: {'.'.join(word.path)}: must be YAML, got {why_unread(error)}") from None


def _walk(node: Any, path: Path_) -> Iterator[tuple[str, Path_, int, Word | None]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            below = (*path, name)
            yield "place", below, key.start_mark.line + 1, None
            yield from _words(key, below, is_key=True)
            yield from _walk(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            below = (*path, str(index))
            yield "place", below, item.start_mark.line + 1, None
            yield from _walk(item, below)
    else:
        yield from _words(node, path, is_key=False)


def _words(node: Any, path: Path_, *, is_key: bool) -> Iterator[tuple[str, Path_, int, Word | None]]:
    import yaml

    if isinstance(node, yaml.ScalarNode) and node.style is None:
        line = node.start_mark.line + 1
        yield "word", path, line, Word(path, str(node.value), str(node.tag).rpartition(":")[2], line, is_key)


def misread(text: str) -> str:
    """What YAML and omegaconf make of an unquoted word where a person would not see it: ``true`` for ``on``, ``8`` for ``010``; else "".

    Words that mean a type to everybody (true, 12, 0.5, null) are not misread.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # the second: a text like 2024-13-45, which is no date
        return ""
    if isinstance(value, bool):
        return str(value).lower() if text.lower() in _DOUBTFUL_BOOLS else ""
    if isinstance(value, int):
        return str(value) if str(value) != text.lstrip("+") else ""
    if value is None:
        return "null" if text not in ("null", "") else ""
    if isinstance(value, str) and _is_omegaconfs_float(text):
        return str(float(text))
    if not isinstance(value, (str, float, list, dict)):
        return f"a {type(value).__name__}"
    return ""


def _is_omegaconfs_float(text: str) -> bool:
    """omegaconf reads 1e3 as a number, which YAML 1.1 takes for a text."""
    if not any(character.isdigit() for character in text):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
