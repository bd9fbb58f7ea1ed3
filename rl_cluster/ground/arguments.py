"""What callers hand over in Python: each argument that can't be what it is to be is named, with a rule. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from rl_cluster.errors import ConfigError
from rl_cluster.ground.rules import AtMost, MoreThan, RuleBroken
from rl_cluster.schema import MAX_SECONDS

_TEXTS = (str, bytes, bytearray)


def check_text(name: str, value: object) -> None:
    """A text."""
    if not isinstance(value, str):
        raise _refusal(name, "must be a text", value)


def check_flag(name: str, value: object) -> None:
    """True or False; a word such as "no" would count as true."""
    if not isinstance(value, bool):
        raise _refusal(name, "must be True or False", value)


def check_whole(name: str, value: object) -> int:
    """A whole number (numpy's as well), which a bool is not. Returned as Python's."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _refusal(name, "must be a whole number", value)
    return operator.index(value)


def check_wholes(name: str, value: object) -> list[int]:
    """Several whole numbers; a text or a mapping is none, though Python would iterate it. Returned as a list of Python's."""
    if isinstance(value, (*_TEXTS, Mapping)) or not isinstance(value, Iterable):
        raise _refusal(name, "must be a list of whole numbers", value)
    return [check_whole(f"{name}[{number}]", item) for number, item in enumerate(value)]


def check_sequence(name: str, value: object) -> None:
    """A list or tuple."""
    if isinstance(value, _TEXTS) or not isinstance(value, Sequence):
        raise _refusal(name, "must be a list", value)


def check_names(name: str, value: object) -> None:
    """A mapping whose keys are texts."""
    if not isinstance(value, Mapping):
        raise _refusal(name, "must be a mapping from name to value", value)
    for key in value:
        if not isinstance(key, str):
            raise _refusal(name, "must be a mapping whose keys are names", key)


def check_per_worker(name: str, value: object, workers: int) -> None:
    """A list with a mapping for each worker, a callable, or None."""
    if value is None or callable(value):
        return
    if isinstance(value, _TEXTS) or not isinstance(value, Sequence):
        raise _refusal(name, "must be a list with one mapping per worker, or a callable", value)
    if len(value) != workers:
        raise ConfigError(f"{name}: must have {workers} entries, one per worker, got {len(value)}. Fix: add or remove")
    for number, item in enumerate(value):
        check_names(f"{name}[{number}]", item)


def own_arguments(name: str, per_worker: Any, record: Any) -> Mapping[str, Any]:
    """The keyword arguments of one worker, of what :func:`check_per_worker` has let pass."""
    if not callable(per_worker):
        return per_worker[record.rank] if per_worker else {}
    own: Mapping[str, Any] = per_worker(record)
    check_names(f"{name}(record of rank {record.rank})", own)
    return own


def check_seconds(name: str, value: object) -> None:
    """A number of seconds more than 0; not infinite, and not more than a wait can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refusal(name, "must be a number of seconds", value)
    try:
        MoreThan(0)(value)
        AtMost(MAX_SECONDS)(value)
    except RuleBroken as broken:
        raise ConfigError(broken.line(name)) from None


def _refusal(name: str, rule: str, value: object) -> ConfigError:
    return ConfigError(RuleBroken(rule, value).line(name))
