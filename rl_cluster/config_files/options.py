"""Option files and command-line words, read without Hydra's global state.

Hydra's ``compose`` needs GlobalHydra, and a second Hydra inside a ``@hydra.main`` task would replace the host's. What our option
files need of it is little: the defaults list of the primary config and the override grammar. The grammar is Hydra's own parser,
which is pure; the rest is omegaconf over the YAML. Trees are untyped here: the door checks them and finds every problem, where a
typed tree would stop at the first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, define

from rl_cluster.config import GROUPS, PRIMARY_CONFIG, conf_dir, option_names
from rl_cluster.config_files.text_file import UnreadableError, check_brackets, why_unread
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken, shortened
from rl_cluster.ground.secrets import mask_word

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_SWEPT_LIMIT = 64  # alternatives of a sweep that are looked at for a message
# A text in quotes; or an entry of a list or a group, with a key before it or not.
_UNQUOTED = r"""("[^"]*"|'[^']*')|(?<=[\[{{,])(\s*(?:{before})?)([^\s\[\]{{}},"'][^\[\]{{}},"']*)"""


def group_tree(group: str, name: str, overrides: Sequence[str]) -> tuple[DictConfig | None, list[str]]:
    """The keys of one option after the overrides, and the problems of the words themselves.

    Args:
        group: one of ``GROUPS``.
        name: an option.
        overrides: words with keys of the group, with or without the group's name in front.
    """
    from omegaconf import OmegaConf

    problems: list[str] = []
    option = _read_option(group, name, problems)
    if option is None:
        return None, problems
    tree = OmegaConf.create({group: option})
    keys = {*rules.field_types(GROUPS[group])}
    for word, override in parse_words(overrides, problems):
        key = str(override.key_or_group)
        first = key.split(".")[0]
        apply_word(tree, key if first == group and first not in keys else f"{group}.{key}", override, word, problems)
    return cast("DictConfig", tree.get(group)), problems


@define
class OwnOptions:
    """A user's own option files, looked for after ours, as on Hydra's search path."""

    folders: Sequence[Path] = ()
    is_all: bool = True  # False: there are more of them elsewhere, so that an unknown option is no problem
    parts: dict[str, tuple[Path, DictConfig]] = Factory(dict)  # the chosen ones that were read, by group

    def names(self, group: str) -> list[str]:
        """The options of a group (of any name) in these folders, sorted."""
        return sorted({file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")})

    def read(self, group: str, name: str, problems: list[str]) -> DictConfig | None:
        """The keys of an option, or None where there is no such file."""
        from omegaconf import OmegaConf

        from rl_cluster.config_files.recipe_file import PACKAGE_HEADER, compose_option

        for folder in self.folders:
            file = folder / group / f"{name}.yaml"
            if file.is_file():
                if PACKAGE_HEADER.search(file.read_text(encoding="utf-8", errors="replace")):
                    return OmegaConf.create({})  # its keys go where only Hydra puts them
                before = len(problems)
                part = compose_option(file, folder, group, problems)
                if len(problems) == before and group in GROUPS:
                    self.parts[group] = file, part
                return part
        return None


def run_tree(overrides: Sequence[str], *, own: OwnOptions | None = None) -> tuple[DictConfig, list[str]]:
    """The keys of ``run.py``'s config after the command-line words, and the problems of the words themselves.

    Args:
        overrides: the words.
        own: the user's own option files.
    """
    from omegaconf import OmegaConf

    problems: list[str] = []
    own = own or OwnOptions()
    choices, body = _primary()
    values: list[tuple[str, Override]] = []
    for word, override in parse_words(overrides, problems):
        key = str(override.key_or_group)
        if override.is_hydra_override():
            continue
        if key in choices and override.package is None and not override.is_delete() and isinstance(override.value(), (str, int)):
            choices[key] = str(override.value())
        elif key not in GROUPS and override.package is None and own.names(key):
            # a group of the user's own; what its options hold is between Hydra and them
            if str(override.value()) not in own.names(key):
                problems.append(_unknown_option(key, str(override.value()), own.names(key)))
        else:
            values.append((word, override))
    parts: dict[str, Any] = {group: _read_option(group, name, problems, own) or {} for group, name in choices.items()}
    tree = cast("DictConfig", OmegaConf.merge(OmegaConf.create(parts), body))
    for word, override in values:
        apply_word(tree, str(override.key_or_group), override, word, problems)
    return tree, problems


def without_sweeps(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The words with each sweep (``a=1,2``) replaced by one of its values: all first values, then each other value in its turn.

    A sweep whose values are not written out (``glob(*)``) is left out.
    """
    parsed = dict(parse_words(overrides, []))
    alternatives = [_alternatives(word, parsed.get(word)) for word in overrides]
    first = [words[:1] for words in alternatives]
    yield list(chain.from_iterable(first))
    others = [(index, word) for index, words in enumerate(alternatives) for word in words[1:]]
    for index, word in others[:_SWEPT_LIMIT]:
        yield list(chain.from_iterable([*first[:index], [word], *first[index + 1 :]]))


def _alternatives(word: str, override: Override | None) -> list[str]:
    from hydra.core.override_parser.types import ValueType

    if override is None or not override.is_sweep_override():
        return [word]
    if not override.is_discrete_sweep() or override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        return []
    prefix = word.partition("=")[0]
    return [f"{prefix}={item}" for item in islice(override.sweep_string_iterator(), _SWEPT_LIMIT)]


def _primary() -> tuple[dict[str, str], DictConfig]:
    """Option of each group, and the other keys, as the primary config says."""
    from omegaconf import OmegaConf

    raw = cast("DictConfig", OmegaConf.load(conf_dir() / f"{PRIMARY_CONFIG}.yaml"))
    choices = {str(k): str(v) for entry in raw.defaults if isinstance(entry, Mapping) for k, v in entry.items() if k in GROUPS}
    return choices, OmegaConf.masked_copy(raw, [str(key) for key in raw if key not in ("defaults", "hydra")])


def _read_option(group: str, name: str, problems: list[str], own: OwnOptions | None = None) -> DictConfig | None:
    from omegaconf import OmegaConf

    own = own or OwnOptions()
    names = option_names(group)
    if name not in names:
        part = own.read(group, name, problems)
        if part is None and own.is_all:
            problems.append(_unknown_option(group, name, [*names, *own.names(group)]))
        return part
    option = cast("DictConfig", OmegaConf.load(conf_dir() / group / f"{name}.yaml"))
    return OmegaConf.masked_copy(option, [str(key) for key in option if key != "defaults"])


def _unknown_option(group: str, name: str, names: Sequence[str]) -> str:
    near = rules.near_word(name, names)
    fix = f"write {group}={near}" if near else ""
    return RuleBroken(f"must be an option ({rules.either(sorted(set(names)))})", name, fix=fix).line(group)


def parse_words(overrides: Sequence[str], problems: list[str]) -> list[tuple[str, Override]]:
    """The words with what Hydra's grammar reads in each; a word that it can't read becomes a problem."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from hydra.version import VersionBase

    # The parser asks for the version base, and Hydra sets an unset one to 1.1 when it is asked: put it back as it was.
    base = VersionBase.instance()
    found = base.version_base
    parser, parsed = OverridesParser.create(), []
    try:
        for word in overrides:
            try:
                check_brackets(word)
                parsed.append((word, parser.parse_override(word)))
            except UnreadableError as error:
                problems.append(f"{word.partition('=')[0].lstrip('+~')}: {error}")
            except ValueError as error:
                key, _, value = word.partition("=")
                problems.append(RuleBroken(f"must be a value that can be read ({why_unread(error)})", value).line(key.lstrip("+~")))
            except HydraException as error:
                reason = shortened((str(error).splitlines() or ["unreadable"])[0])
                fixed = next((fix for fix in _quoted(word) if _is_readable(parser, fix)), None)
                fix = f"write {shlex.quote(mask_word(fixed))}" if fixed else ""
                problems.append(RuleBroken(f"must be key=value ({mask_word(reason)})", mask_word(word), fix=fix).line("override"))
    finally:
        base.version_base = found
    return parsed


def _quoted(word: str) -> Iterator[str]:
    """What may be meant by a word whose value holds a second ``=``: the text around it in quotes, or ``:`` in a group."""
    key, _, value = word.partition("=")
    if "=" not in value or value.startswith(("'", '"')):
        return
    if not value.startswith(("[", "{")):
        yield f'{key}="{value}"'
        return
    for before in (r"[\w.$-]+\s*:\s*", ""):  # the key of an entry in a group stays as it is
        yield f"{key}={re.sub(_UNQUOTED.format(before=before), _in_quotes, value)}"
    if value.startswith("{"):
        yield f"{key}={re.sub(_UNQUOTED.format(before=''), lambda entry: entry[0].replace('=', ': ', 1), value)}"


def _in_quotes(entry: re.Match[str]) -> str:
    return entry[0] if entry[1] or "=" not in entry[3] else f'{entry[2]}"{entry[3].rstrip()}"'


def _is_readable(parser: OverridesParser, word: str) -> bool:
    from hydra.errors import HydraException

    try:
        check_brackets(word)
        parser.parse_override(word)
    except (HydraException, ValueError):
        return False
    return True


def apply_word(tree: DictConfig, key: str, override: Override, word: str, problems: list[str]) -> None:
    """Set, add or delete the key that a word names; what can't be done becomes a problem."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "/" in key or override.package is not None:
        near = rules.near_word(key, GROUPS)
        broken = RuleBroken(f"must name a group ({rules.either(list(GROUPS))})", mask_word(word), fix=f"write {near}=..." if near else "")
        problems.append(broken.line(key))
    elif override.is_sweep_override():
        fix = 'quote a value that has commas: key="a,b"'
        problems.append(RuleBroken("must be one value here (a sweep needs --multirun)", mask_word(word), fix=fix).line(key))
    elif override.is_delete():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(tree, parent) if parent else tree
        if isinstance(node, Mapping) and name in node:
            node.pop(name)  # type: ignore[attr-defined]
        else:
            problems.append(RuleBroken("must be there to be deleted", mask_word(word)).line(key))
    else:
        try:
            value = override.value()
            OmegaConf.update(tree, key, value, merge=isinstance(value, dict))
        except (OmegaConfBaseException, AttributeError, TypeError, ValueError) as error:
            problems.append(RuleBroken(f"must fit the keys above it ({' '.join(str(error).split())})", mask_word(word)).line(key))
