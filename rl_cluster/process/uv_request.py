"""A ``uv run`` command line, taken apart: what an environment is made of, and what is run in it. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from attrs import frozen

from rl_cluster.errors import ConfigError

__all__ = ["UvRequest", "is_uv_run", "parse_uv_run"]

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Options of `uv run` (uv 0.4 to 0.13) by what becomes of them. Those for `uv sync` have the same meaning there.
_SYNC_FLAGS = _names(
    """
    --locked --frozen --all-extras --all-groups --no-default-groups --no-dev --dev --only-dev --no-editable --all-packages
    --no-index --no-sources --upgrade --reinstall --compile-bytecode --no-build --no-binary --no-build-isolation --no-cache
    --refresh --managed-python --no-managed-python --no-python-downloads --offline --no-config --native-tls --system-certs
    """
)
_SYNC_VALUES = _names(
    """
    --extra --no-extra --group --no-group --only-group --package --index --default-index --index-url --extra-index-url --find-links
    --index-strategy --keyring-provider --upgrade-package --resolution --prerelease --fork-strategy --exclude-newer
    --reinstall-package --link-mode --config-setting --no-build-isolation-package --no-build-package --no-binary-package
    --cache-dir --refresh-package --python-preference --allow-insecure-host --config-file --no-editable-package
    --no-sources-package
    """
)
_WITH_VALUES = {"--with": "package", "--with-editable": "editable", "--with-requirements": "requirements"}
_WITHOUT_EFFECT = _names("--isolated --exact --quiet --verbose --no-progress")  # an environment of ours is isolated and exact
_SHORT = {
    "-p": "--python", "-w": "--with", "-i": "--index-url", "-f": "--find-links", "-C": "--config-setting", "-P": "--upgrade-package",
    "-U": "--upgrade", "-n": "--no-cache", "-q": "--quiet", "-v": "--verbose", "-m": "--module", "-s": "--script",
}  # fmt: skip
_REFUSED = {
    "--no-project": "workers need the project's environment",
    "--active": "the active environment isn't keyed to the lock; give its bin/python as python.executable",
    "--no-sync": "environments are always built from the lock",
    "--module": "Ray chooses what the interpreter runs",
    "--script": "Ray chooses what the interpreter runs",
    "--gui-script": "Ray chooses what the interpreter runs",
    "--env-file": "use env.set",
    "--no-env-file": "use env.set",
}
_GLOBAL = _names(
    """
    --no-cache --cache-dir --offline --native-tls --system-certs --config-file --no-config --allow-insecure-host --keyring-provider
    --index --default-index --index-url --extra-index-url --find-links --index-strategy --no-index --link-mode --prerelease
    --exclude-newer
    """
)


@frozen
class UvRequest:
    """What an environment is made of.

    Attributes:
        uv: The program, as the command line names it: ``uv``, or a path.
        sync_args: Arguments for ``uv sync`` (lock, extras, groups, indexes), in the order of the command line.
        with_args: ``(kind, value)`` of each ``--with``: kind is package, editable or requirements.
        python: The ``--python`` that was asked for; None means the cluster's own.
        directory: The ``--directory`` or ``--project``; None means the caller's.
        interpreter_args: Arguments of the interpreter, after ``python``.
    """

    uv: str
    sync_args: tuple[str, ...] = ()
    with_args: tuple[tuple[str, str], ...] = ()
    python: str | None = None
    directory: str | None = None
    interpreter_args: tuple[str, ...] = ()

    @property
    def uv_run_args(self) -> tuple[str, ...]:
        """The ``uv run`` command line that gives the same packages, without its directory and without what is run."""
        flags = {kind: flag for flag, kind in _WITH_VALUES.items()}
        added = [word for kind, value in self.with_args for word in (flags[kind], value)]
        return (self.uv, "run", *self.sync_args, *added, *(("--python", self.python) if self.python else ()))

    @property
    def install_args(self) -> tuple[str, ...]:
        """Those of ``sync_args`` that ``uv pip install`` takes too (indexes, caches, network)."""
        found: list[str] = []
        for name, value in _options(self.sync_args):
            if name in _GLOBAL:
                found += [name] if value is None else [name, value]
        return tuple(found)


def is_uv_run(words: Sequence[str]) -> bool:
    """Whether a command line is ``uv [options] run ...`` or ``/some/path/uv run ...``."""
    if not words or os.path.basename(words[0]) != "uv":
        return False
    return _split(words[1:])[1][:1] == ["run"]


def parse_uv_run(words: Sequence[str], *, where: str = "python.executable") -> UvRequest:
    """Take a ``uv run`` command line apart.

    Raises:
        ConfigError: An option is unknown, lacks its value, or makes no sense for workers; or something other than a Python is run.
    """
    sync: list[str] = []
    extra: list[tuple[str, str]] = []
    python = directory = None
    problems: list[str] = []
    before, rest = _split(words[1:])
    after, command = _split(rest[1:])  # without the word "run"
    options = [*before, *after]
    for name, value in _options(options):
        if name in _SYNC_FLAGS:
            sync.append(name)
        elif name in _WITHOUT_EFFECT:
            continue
        elif name in _REFUSED:
            problems.append(f"{where}: must not hold {name} ({_REFUSED[name]}), got it. Fix: remove it")
        elif _takes_value(name) and value is None:
            problems.append(f"{where}: {name} must have a value, got none. Fix: write {name} VALUE")
        elif value is None or not _takes_value(name):
            problems.append(f"{where}: must hold options of uv run, got {name}. Fix: see uv run --help")
        elif name in _SYNC_VALUES:
            sync += [name, value]
        elif name in _WITH_VALUES:
            extra.append((_WITH_VALUES[name], value))
        elif name == "--python":
            python = value
        elif name in ("--directory", "--project"):
            directory = value
    if command and not _PYTHON.fullmatch(command[0]):
        problems.append(f"{where}: must run python, got {command[0]!r} after uv run. Fix: leave it out, Ray adds what the interpreter runs")
    if problems:
        raise ConfigError(problems=problems)
    return UvRequest(
        uv=words[0],
        sync_args=tuple(sync),
        with_args=tuple(extra),
        python=python,
        directory=directory,
        interpreter_args=tuple(command[1:]),
    )


def _takes_value(name: str) -> bool:
    return (
        name in _SYNC_VALUES
        or name in _WITH_VALUES
        or name in ("--python", "--directory", "--project", "--color", "--module", "--env-file")
    )


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options, and the command that follows them."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return list(words[:index]), list(words[index + 1 :])
        if not word.startswith("-"):
            return list(words[:index]), list(words[index:])
        index += 2 if "=" not in word and _takes_value(_SHORT.get(word, word)) else 1
    return list(words), []


def _options(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """``(long name, value)`` of each option; value None for a flag, or where it is missing."""
    index = 0
    while index < len(words):
        name, equals, value = words[index].partition("=")
        name = _SHORT.get(name, name)
        index += 1
        if equals:
            yield name, value
        elif _takes_value(name) and index < len(words):
            yield name, words[index]
            index += 1
        else:
            yield name, None
