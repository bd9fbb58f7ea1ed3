"""Why Hydra refused to compose run.py's config, in our words: the same words and files are read again, all of them.

Hydra stops at its first problem, knows neither rules nor near words, and does not say in which option file a key stands.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from rl_cluster.config import GROUPS, build_spec
from rl_cluster.config_files import options
from rl_cluster.config_files.command_line import CommandLine, read_command_line
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.schema import RunSpec

__all__ = ["explain_compose_error"]

_NEEDS_MULTIRUN = ("Ambiguous value for argument", "requires --multirun")  # how Hydra 1.3 refuses a sweep in a single run


def explain_compose_error(error: BaseException, argv: Sequence[str]) -> list[str]:
    """See :func:`rl_cluster.config.describe_compose_error`."""
    try:
        line = read_command_line(argv)
    except ValueError as refusal:
        return [f"command line: must be flags and overrides ({refusal}), got {shlex.join(argv)!r}"]
    problems = [
        RuleBroken("must be a folder that is there", folder.written, fix="correct its name, or leave it out").line(folder.where)
        for folder in line.folders
        if folder.path is not None and not folder.path.is_dir()
    ]
    words = list(line.overrides)
    if any(text in str(error) for text in _NEEDS_MULTIRUN):
        problems += _sweeps(words)
    words, of_recipe = _without_the_recipes(words)
    problems += of_recipe
    for single in options.without_sweeps(words):
        problems += [problem for problem in _problems(single, line) if problem not in problems]
    return problems or ["config: " + " ".join(str(error).split())]


def _problems(words: Sequence[str], line: CommandLine) -> list[str]:
    own = options.OwnOptions(line.readable_folders, is_all=line.sees_all)
    tree, found = options.run_tree(words, own=own)
    build_spec(tree, RunSpec, "", found)
    for group, (file, part) in own.parts.items():
        in_file: list[str] = []
        build_spec(part, GROUPS[group], group, in_file)
        found = [f"{file}: {problem}" if problem in in_file else problem for problem in found]
    return found


def _sweeps(words: Sequence[str]) -> Iterator[str]:
    """The words with several values, in a run that is to have one."""
    for word, override in options.parse_words(words, []):
        if override.is_sweep_override():
            key, _, value = word.partition("=")
            quoted = shlex.quote(f'{key}="{value}"')
            commas = f"; or quote a value that has commas: {quoted}" if override.is_choice_sweep() and "(" not in value else ""
            fix = f"add -m, which runs one job for each{commas}"
            yield RuleBroken("must be one value in a run without -m", value, fix=fix).line(key)


def _without_the_recipes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """With ``recipe=FILE``: the words for run.py itself, and a problem for each one that means a key of the recipe."""
    parsed = {word: override for word, override in options.parse_words(words, []) if not override.is_hydra_override()}
    if not any(override.key_or_group == "recipe" for override in parsed.values()):
        return list(words), []
    ours = {*rules.field_types(RunSpec), *GROUPS}
    of_recipe = [
        word
        for word, override in parsed.items()
        if override.package is not None
        or (("." in str(override.key_or_group) or "/" in str(override.key_or_group)) and _top(override.key_or_group) not in ours)
    ]
    quoted = ",".join(map(json.dumps, of_recipe))
    fix = f"give it to the recipe: {shlex.quote(f'recipe_overrides=[{quoted}]')}"
    lines = [
        RuleBroken("must be a key of run.py itself; a key of the recipe goes into recipe_overrides", word, fix=fix).line(
            word.lstrip("+~").partition("=")[0]
        )
        for word in of_recipe
    ]
    return [word for word in words if word not in of_recipe], lines


def _top(key: object) -> str:
    return str(key).split(".")[0].split("/")[0]
