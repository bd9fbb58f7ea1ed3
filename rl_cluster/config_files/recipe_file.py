"""Recipe files for hosts without Hydra: the part of Hydra's defaults lists that recipes use, resolved without its global state.

What is resolved: ``_self_``; options of our groups or of the recipe's own folder, with or without a package
(``/cluster@policy.cluster: 2x8_spread``, ``model: llama``); other files of that folder by name (``base``). What is refused, with a
line that says so: ``@package`` headers, interpolation in the list, lists of options, ``override`` of anything but Hydra's own groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, define, frozen

from rl_cluster import config
from rl_cluster.config_files import options
from rl_cluster.config_files.recipe_spec import RAY_KEY, RecipeSpec, recipe_from_config, roles_of
from rl_cluster.config_files.text_file import UnreadableError, check_levels, read_text, why_unread
from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

__all__ = ["DefaultsEntry", "load_recipe", "parse_entry", "recipe_tree"]

PACKAGE_HEADER = re.compile(r"^\s*#\s*@package\b", re.MULTILINE)
_HYDRAS_OWN = re.compile(r"^(override\s+)?/?hydra(/|$)")
MAX_BYTES = 2**20  # of one file; recipes are written by hand
_DEPTH = 16  # files that name each other


@frozen
class DefaultsEntry:
    """One entry of a defaults list."""

    group: str  # "" for a file by name
    option: str | None  # None: nothing is chosen
    package: str  # where its keys go, "" for the top; relative to where the list's own file goes
    optional: bool = False
    absolute: bool = False  # written with a leading slash

    @property
    def key(self) -> str:
        """What a command line calls it: ``cluster@policy.cluster``."""
        return self.group if self.package == self.group.replace("/", ".") else f"{self.group}@{self.package}"


def load_recipe(path: str | PathLike[str], *, overrides: Sequence[str] = ()) -> RecipeSpec:
    """The spec of a recipe file, without Hydra's global state: for hosts that use no Hydra, and inside a ``@hydra.main`` task.

    Args:
        path: A YAML file with roles, e.g. with ``- /cluster@policy.cluster: 2x8_spread`` in its defaults list.
        overrides: Hydra's words: ``policy.cluster.num_nodes=4``, ``cluster@policy.cluster=2x8_pack``.

    Raises:
        ConfigError: The file can't be read; an unknown option, key or value; a defaults list that only Hydra can resolve.
    """
    tree, problems = recipe_tree(path, overrides=overrides)
    if problems and not tree:  # it could not be read: that it has no role says nothing
        raise ConfigError(problems=problems)
    try:
        recipe = recipe_from_config(tree)
    except ConfigError as error:
        problems += [problem for problem in error.problems if problem not in problems]
        raise ConfigError(problems=problems) from None
    if problems:
        raise ConfigError(problems=problems)
    return recipe


def recipe_tree(path: str | PathLike[str], *, overrides: Sequence[str] = (), lenient: bool = False) -> tuple[DictConfig, list[str]]:
    """The keys of a recipe after its defaults list and the words, and the problems of both. See :func:`load_recipe`.

    Args:
        path: The file.
        overrides: The words.
        lenient: Groups of the host that are not found here are no problem: they may lie elsewhere on its search path.
    """
    file = Path(path)
    problems: list[str] = []
    choices: dict[str, str | None] = {}
    values: list[tuple[str, Override]] = []
    added: list[DefaultsEntry] = []
    for word, override in options.parse_words(overrides, problems):
        key = str(override.key_or_group)
        if override.is_hydra_override():
            continue
        chosen = override.value() if not override.is_delete() else None
        if override.package is None and "/" not in key and not (key in config.GROUPS and isinstance(chosen, str)):
            values.append((word, override))
            continue
        package = key.replace("/", ".") if override.package is None else str(override.package)
        entry = DefaultsEntry(key, None if chosen is None else str(chosen), package)
        if override.is_add():
            added.append(entry)
        else:
            choices[entry.key] = entry.option
    composer = _Composer(file.parent, choices, problems, lenient)
    tree = composer.compose(file, str(file), "", 0)
    for entry in added:
        composer.add(tree, entry, "", f"override +{entry.key}", 0)
    for key in sorted(set(choices) - composer.used):
        near = rules.near_word(key, composer.keys)
        fix = f"write {near}={choices[key]}" if near else f"write +{key}={choices[key]} to add it"
        problems.append(RuleBroken("must be in the recipe's defaults list", choices[key], fix=fix).line(key))
    for word, override in values:
        key = str(override.key_or_group)
        if override.is_add() or override.is_force_add() or override.is_delete() or _top(key) in {*map(str, tree), RAY_KEY}:
            options.apply_word(tree, key, override, word, problems)
        else:
            problems.append(_no_key(key, word, tree))
    return tree, problems


def _top(key: str) -> str:
    return key.partition(".")[0].partition("[")[0]


def _no_key(key: str, word: str, tree: DictConfig) -> str:
    top = _top(key)
    owners = [str(name) for name, node in tree.items() if isinstance(node, Mapping) and top in roles_of(node)]
    near = rules.near_word(top, map(str, tree))
    if owners:
        fix = f"write {rules.either([f'{owner}.{word}' for owner in owners[:3]])}"
    else:
        fix = f"write {near}{word.removeprefix(top)}" if near else f"write +{word} to add it"
    return RuleBroken("must begin with a key of the recipe", word, fix=fix).line(key)


def compose_option(file: Path, folder: Path, group: str, problems: list[str]) -> DictConfig:
    """The keys of one option file after its own defaults list.

    Args:
        file: The file.
        folder: The folder of its config, which holds the groups.
        group: The file's group.
        problems: Gets what is wrong with the file.
    """
    return _Composer(folder, {}, problems, lenient=True).compose(file, str(file), group, 0)


def parse_entry(entry: object) -> DefaultsEntry | str:
    """One entry of a defaults list, or a clause that says why it can't be read. ``_self_`` has neither group nor package."""
    if isinstance(entry, str):
        if "${" in entry:
            return "must be a name without interpolation"
        name, _, package = entry.partition("@")
        group, _, option = name.strip("/").removesuffix(".yaml").rpartition("/")
        return DefaultsEntry(group, option, _package(package, group), absolute=name.startswith("/"))
    if not isinstance(entry, Mapping) or len(entry) != 1:
        return "must be a name or group: option"
    key, value = next(iter(entry.items()))
    words = str(key).split()
    name = words[-1]
    if "override" in words[:-1] or len(words) > 2 or (len(words) == 2 and words[0] != "optional"):
        return "must be group: option (load_recipe knows 'optional' and no other word)"
    if isinstance(value, bool) or (value is not None and not isinstance(value, (str, int))):
        return f"must choose one option by its name ({value!r} is none)"
    if "${" in f"{key} {value}":
        return "must name its option without interpolation"
    group, _, package = name.partition("@")
    absolute = group.startswith("/")
    group = group.strip("/")
    chosen = None if value is None else str(value)
    return DefaultsEntry(group, chosen, _package(package, group), "optional" in words[:-1], absolute)


def _package(written: str, group: str) -> str:
    if written == "_here_":
        return ""
    return written.removeprefix("_global_").strip(".") if written else group.replace("/", ".")


@define
class _Composer:
    """Merges files as their defaults lists say."""

    folder: Path  # of the recipe: its own groups and files
    choices: Mapping[str, str | None]  # options chosen by words, by the entry's key
    problems: list[str]
    lenient: bool = False
    used: set[str] = Factory(set)
    keys: list[str] = Factory(list)

    def compose(self, file: Path, where: str, group: str, depth: int) -> DictConfig:
        """The keys of a file and of what its defaults list names."""
        from omegaconf import OmegaConf

        tree = OmegaConf.create({})
        body = _read(file, where, self.problems)
        if body is None:
            return tree
        if depth > _DEPTH:
            self.problems.append(RuleBroken("must not name each other in a circle", str(file)).line(where))
            return tree
        entries = body.pop("defaults", [])
        own = OmegaConf.create(body)
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            self.problems.append(RuleBroken("must be a list", entries).line(f"{where}: defaults"))
            entries = []
        merged = False
        for number, entry in enumerate(entries):
            at = f"{where}: defaults[{number}]"
            if entry == "_self_":
                tree, merged = _merge(tree, own, at, self.problems), True
            elif not _is_hydras_own(entry):
                self._entry(tree, entry, group, at, depth)
        return tree if merged else _merge(tree, own, where, self.problems)

    def _entry(self, tree: DictConfig, entry: object, group: str, at: str, depth: int) -> None:
        parsed = parse_entry(entry)
        if isinstance(parsed, str):
            self.problems.append(RuleBroken(parsed, entry, fix="write it out, or compose this recipe by Hydra").line(at))
            return
        if parsed.group.startswith(f"{config.SCHEMA_GROUP.split('/')[0]}/"):
            return  # a schema: the door knows it
        if parsed.group == "" and group and not parsed.absolute:
            parsed = DefaultsEntry(group, parsed.option, "")  # another option of the same group
        elif parsed.group:
            self.keys.append(parsed.key)
            if parsed.key in self.choices:
                self.used.add(parsed.key)
                parsed = DefaultsEntry(parsed.group, self.choices[parsed.key], parsed.package, parsed.optional)
        self.add(tree, parsed, group, at, depth)

    def add(self, tree: DictConfig, entry: DefaultsEntry, group: str, at: str, depth: int) -> None:
        """Merge one option into the tree, at its package."""
        from omegaconf import OmegaConf

        if entry.option is None:
            return
        file = self._file(entry)
        if file is None:
            if not entry.optional and not (self.lenient and self._is_foreign(entry)):
                self.problems.append(self._unknown(entry, at))
            return
        part = self.compose(file, str(file) if entry.group not in config.GROUPS else at, entry.group, depth + 1)
        if entry.package:
            nested: dict[str, Any] = {}
            inner = nested
            *above, last = entry.package.split(".")
            for name in above:
                inner = inner.setdefault(name, {})
            inner[last] = part
            part = OmegaConf.create(nested)
        tree.merge_with(part)

    def _file(self, entry: DefaultsEntry) -> Path | None:
        """The recipe's own file, else ours: as on Hydra's search path, to which ours is appended."""
        folders = [self.folder, config.conf_dir()] if entry.group else [self.folder]
        found = (folder / entry.group / f"{entry.option}.yaml" for folder in folders)
        return next((file for file in found if file.is_file()), None)

    def _is_foreign(self, entry: DefaultsEntry) -> bool:
        return entry.group not in config.GROUPS and not (entry.absolute and rules.near_word(entry.group, config.GROUPS))

    def _unknown(self, entry: DefaultsEntry, at: str) -> str:
        if not entry.group:
            return RuleBroken(f"must be a file of {self.folder}", entry.option).line(at)
        names = {file.stem for file in (self.folder / entry.group).glob("*.yaml")}
        names |= set(config.option_names(entry.group)) if entry.group in config.GROUPS else set()
        if not names:
            near = rules.near_word(entry.group, config.GROUPS)
            fix = f"write /{near}@{entry.package}: {entry.option}" if near else f"the groups here are {', '.join(config.GROUPS)}"
            return RuleBroken("must be a group of options", entry.group, fix=fix).line(at)
        near = rules.near_word(entry.option, names)
        rule = f"must be an option of {entry.group} ({rules.either(sorted(names))})"
        return RuleBroken(rule, entry.option, fix=f"write {near}" if near else "").line(at)


def _is_hydras_own(entry: object) -> bool:
    """Launchers, logging and the like, which mean nothing without Hydra."""
    name = next(iter(entry), "") if isinstance(entry, Mapping) else entry
    return bool(_HYDRAS_OWN.match(str(name)))


def _merge(tree: DictConfig, own: Any, where: str, problems: list[str]) -> DictConfig:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return cast("DictConfig", OmegaConf.merge(tree, own))
    except OmegaConfBaseException as error:
        problems.append(f"{where}: must fit what the defaults list brings ({' '.join(str(error).split())})")
        return tree


def _read(file: Path, where: str, problems: list[str]) -> dict[Any, Any] | None:
    """The keys of a YAML file without Hydra's own; None after a problem was noted."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        text = read_text(file, max_bytes=MAX_BYTES)
        check_levels(text)
        loaded = OmegaConf.create(text) if text.strip() else OmegaConf.create({})
    except UnreadableError as error:
        problems.append(f"{where}: {error}")
        return None
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = "" if mark is None else f", line {mark.line + 1}"
        problems.append(f"{where}{at}: must be YAML, got {why_unread(error)}")
        return None
    if PACKAGE_HEADER.search(text):
        problems.append(f"{where}: must have no @package header. Fix: write group@package: option in the defaults list")
    body = OmegaConf.to_container(loaded, resolve=False)
    if not isinstance(body, dict):
        problems.append(RuleBroken("must be a group of keys", body).line(where))
        return None
    body.pop("hydra", None)
    return body
