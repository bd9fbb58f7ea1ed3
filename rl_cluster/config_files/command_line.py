"""The words of a command line as Hydra reads them: its flags with their values, the overrides, the folders that options come from."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from attrs import frozen

from rl_cluster.ground.rules import RuleBroken, near_word
from rl_cluster.ground.secrets import mask_word

__all__ = ["CommandLine", "OptionFolder", "folder_words", "read_command_line", "why_refused"]

SEARCH_PATH = "hydra.searchpath"


@frozen
class OptionFolder:
    """A further place of option files, after ours."""

    where: str  # the flag or key that names it
    written: str
    path: Path | None  # None: no folder that can be read here


@frozen
class CommandLine:
    """What the words of a command line mean."""

    overrides: tuple[str, ...]
    folders: tuple[OptionFolder, ...] = ()  # in the order in which Hydra looks
    own_primary: bool = False  # another primary config than ours was named

    @property
    def readable_folders(self) -> list[Path]:
        """Those that are there."""
        return [folder.path for folder in self.folders if folder.path is not None and folder.path.is_dir()]

    @property
    def sees_all(self) -> bool:
        """Whether every option that Hydra could find is in our folder or in ``readable_folders``."""
        return not self.own_primary and len(self.readable_folders) == len(self.folders)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    """The flags of Hydra 1.3, so that the same words are values of flags, abbreviations included."""
    parser = _Parser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    switches = ("--help -h", "--hydra-help", "--version", "--resolve", "--run -r", "--multirun -m", "--shell-completion -sc")
    for names in switches:
        parser.add_argument(*names.split(), action="store_true")
    with_value = ("--cfg -c", "--package -p", "--config-path -cp", "--config-name -cn", "--config-dir -cd", "--experimental-rerun")
    for names in with_value:
        parser.add_argument(*names.split())
    parser.add_argument("--info", "-i", nargs="?")
    return parser


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Reads the words behind the program's name.

    Args:
        argv: ``sys.argv[1:]``.

    Raises:
        ValueError: A flag lacks its value, or is abbreviated to what several flags begin with.
    """
    found, rest = _parser().parse_known_args(list(argv))
    overrides = (*found.overrides, *(word for word in rest if not word.startswith("-")))
    folders = []
    if found.config_dir is not None:
        folders.append(OptionFolder("--config-dir", found.config_dir, Path(found.config_dir)))
    folders += [OptionFolder(SEARCH_PATH, text, _folder_of(text)) for text in _search_path(overrides)]
    return CommandLine(overrides, tuple(folders), own_primary=found.config_path is not None or found.config_name is not None)


def why_refused(argv: Sequence[str]) -> str | None:
    """What Hydra's parser of the command line would refuse with a page of usage, as one line; None where it takes the words.

    Args:
        argv: ``sys.argv[1:]``.
    """
    parser = _parser()
    try:
        found, rest = parser.parse_known_args(list(argv))
    except ValueError as error:
        return RuleBroken(f"must be flags and overrides ({error})", " ".join(map(mask_word, argv))).line("command line")
    flags = [word for word in rest if word.startswith("-")]
    if flags:
        known = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
        near = near_word(flags[0].partition("=")[0], [name for name in known if name[:3] == flags[0][:3]])
        fix = f"write {near}" if near else "see --help"
        return RuleBroken("must have flags of Hydra's", mask_word(flags[0]), fix=fix).line("command line")
    if rest:
        where = [word for word in argv if word not in (*found.overrides, *rest)]
        fix = f"write the flags first: {shlex.join(map(mask_word, [*where, *found.overrides, *rest]))}"
        return RuleBroken("must have its overrides side by side", mask_word(rest[0]), fix=fix).line("command line")
    return None


def folder_words(argv: Sequence[str]) -> list[str]:
    """The words that say where configs come from, each in one piece, to be repeated in another command.

    Args:
        argv: ``sys.argv[1:]``, of a command that Hydra has accepted.
    """
    found, rest = _parser().parse_known_args(list(argv))
    flags = {"--config-path": found.config_path, "--config-name": found.config_name, "--config-dir": found.config_dir}
    words = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    return words + [word for word in [*found.overrides, *rest] if word.lstrip("+").startswith(f"{SEARCH_PATH}=")]


def _search_path(overrides: Sequence[str]) -> Iterator[str]:
    from rl_cluster.config_files.options import parse_words

    words = [word for word in overrides if word.lstrip("+").startswith(f"{SEARCH_PATH}=")]
    for _, override in parse_words(words, [])[:1]:  # Hydra takes the first
        value = override.value()
        yield from (str(entry) for entry in value) if isinstance(value, list) else ()


def _folder_of(entry: str) -> Path | None:
    scheme, colon, rest = entry.partition("://")
    if not colon:
        return Path(entry)
    if scheme == "file":
        return Path(rest)
    if scheme == "pkg":
        package, _, below = rest.replace(".", "/").partition("/")
        spec = importlib.util.find_spec(package)
        places = list(spec.submodule_search_locations or ()) if spec else []
        return Path(places[0], below) if places else None
    return None
