"""Checks of a user's own option files and recipes, each finding with its file and line."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from rl_cluster import config
from rl_cluster.config_files.recipe_file import PACKAGE_HEADER, DefaultsEntry, parse_entry, recipe_tree
from rl_cluster.config_files.recipe_spec import ROLE_PARTS, ROLES_KEY, recipe_from_config, roles_of
from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.programs.conf_lines import Source, Word, misread, read_source
from rl_cluster.recipes.recipe_plan import check_seats

__all__ = ["Finding", "check_conf", "find_files", "kind_of_file"]

_INTERPOLATION = re.compile(r"\$\{\s*([^}]*)")
_AT = re.compile(r"^(?P<file>.*?): defaults\[(?P<entry>\d+)\]: (?P<rest>.*)$", re.DOTALL)


@frozen
class Finding:
    """One problem."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


def find_files(path: Path) -> list[Path]:
    """A file itself, or the YAML files below a folder, sorted."""
    if path.is_dir():
        return sorted(file for pattern in ("*.yaml", "*.yml") for file in path.rglob(pattern) if file.is_file())
    return [path]


def kind_of_file(source: Source) -> str:
    """``option:<group>``, ``recipe``, or "" for a file that has nothing of ours."""
    body = _body(source)
    entries = _entries(body)
    for entry in entries:
        if isinstance(entry, DefaultsEntry) and entry.group == config.SCHEMA_GROUP and entry.option in config.GROUPS and not entry.package:
            return f"option:{entry.option}"
    group = source.file.parent.name
    keys = {str(key) for key in body} - {"defaults"}
    if group in config.GROUPS and keys & set(rules.field_types(config.GROUPS[group])):
        return f"option:{group}"
    ours = any(isinstance(entry, DefaultsEntry) and entry.group in config.GROUPS for entry in entries)
    placed = any(isinstance(node, Mapping) and roles_of(node) & {"cluster", "on"} for node in body.values())
    return "recipe" if ours or placed or ROLES_KEY in body else ""


def check_conf(file: Path) -> list[Finding]:
    """All problems of an option file or a recipe, by line; none for a file that has nothing of ours.

    Raises:
        ConfigError: The file can't be read, or is no YAML that omegaconf takes.
    """
    source = read_source(file)
    if source.twice:  # nothing else can be said: omegaconf refuses the file
        return [Finding(file, line, f"{_dotted(path)}: must stand once in its group, got it again") for path, line in source.twice]
    kind = kind_of_file(source)
    if not kind:
        return []
    found = list(_defaults(source))
    if kind == "recipe":
        found += _recipe(source)
    else:
        found += _option(source, kind.partition(":")[2])
    return sorted(dict.fromkeys(found), key=lambda finding: (finding.line, finding.text))


def _body(source: Source) -> dict[Any, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        loaded = OmegaConf.to_container(OmegaConf.create(source.text), resolve=False) if source.text.strip() else {}
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source.file}:1: must be a config that omegaconf reads ({' '.join(str(error).split())})") from None
    return loaded if isinstance(loaded, dict) else {}


def _entries(body: Mapping[Any, Any]) -> list[DefaultsEntry | str]:
    listed = body.get("defaults")
    return [parse_entry(entry) for entry in listed] if isinstance(listed, list) else []


# --- the defaults list of either kind ---


def _defaults(source: Source) -> Iterator[Finding]:
    """Options whose names YAML reads as something else, and a ``_self_`` before the schema that it extends."""
    for word in source.words:
        if word.path[:1] == ("defaults",) and len(word.path) == 3 and not word.is_key and word.kind != "null" and word.read_as:
            fix = f"write '{word.text}' in quotes, or better: rename the option"
            rule = f"must name an option that YAML leaves alone (it reads {word.text} as {word.read_as})"
            yield Finding(source.file, word.line, RuleBroken(rule, word.text, fix=fix).line(f"defaults[{word.path[1]}]"))
    entries = _body(source).get("defaults")
    names = [str(entry) for entry in entries] if isinstance(entries, list) else []
    schemas = [index for index, name in enumerate(names) if name.strip("/").startswith(f"{config.SCHEMA_GROUP}/")]
    if "_self_" in names and schemas and names.index("_self_") < max(schemas):
        line = source.lines.get(("defaults", str(names.index("_self_"))), 1)
        text = "_self_ must come after the schema, whose defaults would win over this file's keys. Fix: move _self_ to the end"
        yield Finding(source.file, line, f"defaults: {text}")


def _finding(source: Source, word: Word, rule: str, fix: str) -> Finding:
    return Finding(source.file, word.line, RuleBroken(rule, word.text, fix=fix).line(_dotted(word.path)))


def _dotted(path: Sequence[str]) -> str:
    return ".".join(path)


# --- option files ---


def _option(source: Source, group: str) -> Iterator[Finding]:
    header = PACKAGE_HEADER.search(source.text)
    if header:
        line = source.text.count("\n", 0, header.end()) + 1
        text = f"must have no @package header, which a recipe could not move. Fix: delete it; a recipe writes /{group}@policy.{group}: NAME"
        yield Finding(source.file, line, text)
    stem = source.file.stem
    if misread(stem) or stem.lower() in ("true", "false", "null") or _is_number(stem):
        as_ = misread(stem) or "something else than a text"
        yield Finding(source.file, 1, f"must have a name that YAML leaves alone, got {stem!r} (read as {as_}). Fix: rename the file")
    yield from _targets(source, ())
    for word in source.words:
        if not word.is_key:
            yield from _interpolations(source, word)
    yield from _words(source, (), config.GROUPS[group])
    body = {key: value for key, value in _body(source).items() if key != "defaults" and not _goes_out(value)}
    problems: list[str] = []
    from omegaconf import OmegaConf

    config.build_spec(OmegaConf.create(body), config.GROUPS[group], group, problems)
    for problem in problems:
        if not _is_open(problem) and not problem.startswith(f"{group}._target_:"):
            own = problem.removeprefix(f"{group}.")
            yield Finding(source.file, source.line_of(_head(own)) or 1, problem)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _targets(source: Source, below: tuple[str, ...]) -> Iterator[Finding]:
    for path, line in source.lines.items():
        if path[-1] == "_target_" and path[: len(below)] == below:
            text = f"{_dotted(path)}: must be left out: nothing here is instantiated by Hydra. Fix: worker.target names a class"
            yield Finding(source.file, line, text)


def _interpolations(source: Source, word: Word) -> Iterator[Finding]:
    for match in _INTERPOLATION.finditer(word.text):
        inner = match[1].strip()
        if not inner.startswith((".", "oc.")):
            where = _dotted(word.path)
            resolver = ":" in inner
            rule = "must use no resolver of its own" if resolver else "must be relative in an option file, which goes anywhere in a recipe"
            fix = "write the value" if resolver else f"write ${{.{inner.rpartition('.')[2]}}} for a key beside it"
            yield Finding(source.file, word.line, RuleBroken(rule, word.text, fix=fix).line(where))


def _goes_out(value: object) -> bool:
    """Interpolations that leave the file or depend on the environment have no value here."""
    if isinstance(value, str):
        return any(not match[1].strip().startswith(".") or match[1].strip().startswith("..") for match in _INTERPOLATION.finditer(value))
    if isinstance(value, Mapping):
        return any(_goes_out(item) for item in value.values())
    return isinstance(value, list) and any(_goes_out(item) for item in value)


# --- recipes ---


def _recipe(source: Source) -> Iterator[Finding]:
    tree, problems = recipe_tree(source.file, lenient=True)
    for problem in problems:
        at = _AT.match(problem)
        if at and "must choose one option by its name" in problem:
            continue  # said already, by the word
        if at:
            line = source.lines.get(("defaults", at["entry"]), 1)
            yield Finding(source.file, line, f"defaults[{at['entry']}]: {at['rest']}")
        else:
            yield Finding(source.file, 1, problem.removeprefix(f"{source.file}: "))
    for problem in _spec_problems(source, tree):
        if not _is_open(problem):
            yield Finding(source.file, source.line_of(_head(problem)) or _line_of_default(source, _head(problem)), problem)
    for path in _role_paths(_body(source)):
        for part, kind in ROLE_PARTS.items():
            yield from _targets(source, (*path, part))
            yield from _words(source, (*path, part), kind)
        for word in source.words:
            if word.is_key and word.path[:-1] == path and word.read_as and word.text.lower() != "on":
                yield _finding(
                    source, word, f"must be a key that YAML leaves alone (it reads it as {word.read_as})", f"write '{word.text}'"
                )
    for word in source.words:
        if word.is_key and word.read_as and word.path in (("roles", word.text), (word.text,)):
            yield _finding(source, word, f"must be a name that YAML leaves alone (it reads it as {word.read_as})", "rename the role")


def _spec_problems(source: Source, tree: Any) -> list[str]:
    """What the door says of the roles, and of options of ours that stand elsewhere (``- cluster: local`` at the top)."""
    from omegaconf import OmegaConf

    problems: list[str] = []
    body = OmegaConf.to_container(tree, resolve=False)
    roles = list(_role_paths(body)) if isinstance(body, dict) else []
    if roles or (isinstance(body, dict) and ROLES_KEY in body):
        try:
            check_seats(recipe_from_config(tree))
        except ConfigError as error:
            problems += error.problems
    in_roles = {(*path, part) for path in roles for part in ROLE_PARTS}
    for entry in _entries(_body(source)):
        if isinstance(entry, DefaultsEntry) and entry.group in config.GROUPS and entry.option is not None:
            node = OmegaConf.select(tree, entry.package, throw_on_resolution_failure=False)
            if tuple(entry.package.split(".")) not in in_roles and node is not None:
                config.build_spec(node, config.GROUPS[entry.group], entry.package, problems)
    return list(dict.fromkeys(problems))


def _role_paths(body: Mapping[Any, Any]) -> Iterator[tuple[str, ...]]:
    for key, node in body.items():
        if key == ROLES_KEY and isinstance(node, Mapping):
            yield from ((ROLES_KEY, str(name)) for name, role in node.items() if isinstance(role, Mapping))
        elif isinstance(node, Mapping) and roles_of(node):
            yield (str(key),)


def _line_of_default(source: Source, dotted: str) -> int:
    """The entry of the defaults list that brought a key: the deepest whose package holds it."""
    best, line = -1, 1
    for index, entry in enumerate(_entries(_body(source))):
        if isinstance(entry, DefaultsEntry) and (dotted + ".").startswith(entry.package + ".") and len(entry.package) > best:
            best, line = len(entry.package), source.lines.get(("defaults", str(index)), 1)
    return line


def _head(problem: str) -> str:
    return problem.partition(": ")[0]


def _is_open(problem: str) -> bool:
    """A value that the command line must give is no mistake of the file."""
    return ": must be given, got '???'" in problem


# --- words that YAML reads as another type than is meant ---


def _words(source: Source, below: tuple[str, ...], kind: type) -> Iterator[Finding]:
    depth = len(below)
    for word in source.words:
        if word.path[:depth] != below or len(word.path) <= depth or word.path[0] == "defaults" or not word.read_as:
            continue
        hint = _hint(kind, word.path[depth:], is_key=word.is_key)
        if hint is None or hint is bool or (hint is float and not word.text.startswith("0")):
            continue
        meant = "text" if hint in (str, Any) else "number"
        fix = (
            f"write '{word.text}' in quotes"
            if meant == "text"
            else f"write {word.text.lstrip('0') or '0'}, or {word.read_as} if that is meant"
        )
        yield _finding(source, word, f"must be a {meant} that YAML leaves alone (it reads {word.text} as {word.read_as})", fix)


def _hint(kind: type, path: Sequence[str], *, is_key: bool) -> Any:
    """The type that a spec wants at a path: str, int, float, bool, Any; None where it says nothing."""
    types_of = rules.field_types(kind)
    if path[0] not in types_of:
        return None
    hint = types_of[path[0]]
    for _ in path[1:]:
        hint = _inside(hint)
    if is_key:
        return str if len(path) > 1 else None
    hint = _without_none(hint)
    return hint if hint in (str, int, float, bool, Any) else None


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(argument for argument in typing.get_args(hint) if argument is not types.NoneType)
    return hint


def _inside(hint: Any) -> Any:
    hint = _without_none(hint)
    if hint is Any:
        return Any
    arguments = typing.get_args(hint)
    return arguments[-1] if arguments else None
