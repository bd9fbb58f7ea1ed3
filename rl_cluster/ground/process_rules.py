"""What the keys about worker processes may hold: the interpreter, the profiler in front of it, and the variables."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from rl_cluster.ground.rules import RuleBroken, near_word

EXECUTABLES = ("SYSTEM", "BASE", "VLLM")
NSIGHT_DEFAULT = "default"
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
NO_RANKS = "write none of these: the layout sets the rank variables in every worker"

_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


def is_executable(value: str) -> None:
    """A lone word in capitals that resembles one of ours is a slip, not a command line."""
    near = near_word(value, EXECUTABLES)
    if value not in EXECUTABLES and near and value.isalpha() and (value.isupper() or value.lower() == near.lower()):
        raise RuleBroken(f"must be {', '.join(EXECUTABLES)} or a command line", value, fix=f"write {near}")


def is_nsight(value: Any) -> None:
    """``default``, or options of ``nsys profile`` as Ray's runtime_env takes them: names without dashes, and their values."""
    if not isinstance(value, dict):
        if value != NSIGHT_DEFAULT:
            fix = f"write {NSIGHT_DEFAULT}, or options such as {{t: 'cuda,nvtx'}}"
            raise RuleBroken(f"must be {NSIGHT_DEFAULT} or a mapping of nsys profile's options", value, fix=fix)
        return
    if not value:
        raise RuleBroken("must hold an option at least", value, fix=f"write {NSIGHT_DEFAULT}, or null to profile nothing")
    for option, given in value.items():
        if not isinstance(option, str) or not _OPTION.fullmatch(option):
            bare = str(option).lstrip("-").partition("=")[0]
            fix = f"write {bare}" if _OPTION.fullmatch(bare) else ""
            raise RuleBroken("must be the name of an option of nsys profile, without dashes", option, fix=fix)
        if not isinstance(given, (str, int, float)) or "\0" in str(given):
            raise RuleBroken("must be a text, a number, or true or false", given, at=f".{option}")
    if {"o", "output"} <= set(value):
        raise RuleBroken("must name its output once", value, fix="leave o or output out: they mean the same")


def names_one(patterns: list[str]) -> None:
    """A list that is not empty."""
    if not patterns:
        raise RuleBroken("must hold a pattern at least", patterns, fix="leave it out: all workers are meant")


def forwards_no_rank(pattern: str) -> None:
    """A name, or a pattern of names, that is none of the rank variables."""
    if any(fnmatch.fnmatchcase(name, pattern) for name in RANK_VARIABLES):
        raise RuleBroken(f"must not match a rank variable ({', '.join(RANK_VARIABLES)})", pattern, fix=NO_RANKS)
