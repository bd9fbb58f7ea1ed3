"""What a single value may be: conversion to its type, and validators as tiny callables. Every refusal reads ``must be ..., got <repr>``."""

from __future__ import annotations

import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

METADATA_KEY = "rl_cluster.ground.rules"
SHOWN_LIMIT = 1000  # characters of a value in a message


class RuleBroken(ValueError):
    """A value breaks a rule; says nothing of where the value stood, ``line`` adds that.

    Args:
        rule: a clause that starts with "must".
        value: what was given.
        fix: what to write instead, or "".
        at: where within the field, e.g. "[1]" or ".RANK".
        note: a clause after the value, e.g. "with num_nodes 3".
    """

    def __init__(self, rule: str, value: object, *, fix: str = "", at: str = "", note: str = "") -> None:
        super().__init__(rule)
        self.rule, self.value, self.fix, self.at, self.note = rule, value, fix, at, note

    def line(self, where: str) -> str:
        """One line for a person: ``where: rule, got value. Fix: ...``."""
        got = f"{where}{self.at}: {self.rule}, got {shown(self.value)}" + (f" {self.note}" if self.note else "")
        return f"{got}. Fix: {self.fix}" if self.fix else got


class _Words(str):
    """What a message shows instead of a value."""

    def __repr__(self) -> str:
        return str(self)


def shown(value: object) -> str:
    """A value as a message shows it: its repr, cut where nobody would read on."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write an int of more than 4300 digits, alone or within a list
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else "a number of more than 4300 digits"
    return shortened(text)


def shortened(text: str) -> str:
    """A text, cut where nobody would read on."""
    return text if len(text) <= SHOWN_LIMIT else f"{text[:SHOWN_LIMIT]}... ({len(text)} characters)"


def near_word(word: object, words: Iterable[str]) -> str | None:
    """The one of ``words`` that was probably meant, or None. Case does not count."""
    by_lower = {w.lower(): w for w in words}
    close = difflib.get_close_matches(str(word).lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def either(words: Sequence[str]) -> str:
    """``a, b or c``."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


# --- validators: called with a value of the right type ---


@attrs.frozen
class AtLeast:
    """``value >= low``."""

    low: float

    def __call__(self, value: float) -> None:
        if not value >= self.low:
            raise RuleBroken(f"must be at least {self.low:g}", value)


@attrs.frozen
class AtMost:
    """``value <= high``; infinity and not-a-number are refused as well."""

    high: int

    def __call__(self, value: float) -> None:
        if not value <= self.high:
            raise RuleBroken(f"must be at most {self.high}", value)


@attrs.frozen
class AtMostItems:
    """No more items than ``high``."""

    high: int

    def __call__(self, value: Sequence[Any]) -> None:
        if len(value) > self.high:
            raise RuleBroken(f"must have at most {self.high} entries", len(value), note="entries")


@attrs.frozen
class MoreThan:
    """``value > low``."""

    low: float

    def __call__(self, value: float) -> None:
        if not value > self.low:
            raise RuleBroken(f"must be more than {self.low:g}", value)


def is_finite(value: float) -> None:
    """Neither infinite nor not-a-number."""
    if not math.isfinite(value):
        raise RuleBroken("must be finite", value)


@attrs.frozen
class Between:
    """``low <= value <= high``."""

    low: int
    high: int

    def __call__(self, value: int) -> None:
        if not self.low <= value <= self.high:
            raise RuleBroken(f"must be from {self.low} to {self.high}", value)


@attrs.frozen
class OneOf:
    """One of a few words; a refusal suggests the near one."""

    words: tuple[str, ...]

    def __call__(self, value: str) -> None:
        if value not in self.words:
            near = near_word(value, self.words)
            raise RuleBroken(f"must be {either(self.words)}", value, fix=f"write {near}" if near else "")


@attrs.frozen
class Matches:
    """A text that wholly matches a pattern; ``what`` says in words what is wanted."""

    pattern: str
    what: str
    fix: str = ""

    def __call__(self, value: str) -> None:
        if not re.fullmatch(self.pattern, value):
            raise RuleBroken(f"must be {self.what}", value, fix=self.fix)


@attrs.frozen
class MatchesNot:
    """A text that does not match a pattern; ``why`` ends the sentence."""

    pattern: str
    why: str
    fix: str

    def __call__(self, value: str) -> None:
        if re.fullmatch(self.pattern, value):
            raise RuleBroken(f"must not be {value}, {self.why}", value, fix=self.fix)


@attrs.frozen
class NotIn:
    """A word that is none of a few that are taken; ``why`` ends the sentence."""

    words: tuple[str, ...]
    why: str
    fix: str

    def __call__(self, value: str) -> None:
        if value in self.words:
            raise RuleBroken(f"must not be {value}, {self.why}", value, fix=self.fix)


@attrs.frozen
class EachItem:
    """Every item of a list keeps the rule."""

    rule: Callable[[Any], None]

    def __call__(self, value: Sequence[Any]) -> None:
        for index, item in enumerate(value):
            _within(f"[{index}]", self.rule, item)


@attrs.frozen
class EachKey:
    """Every key of a mapping keeps the rule."""

    rule: Callable[[Any], None]

    def __call__(self, value: Mapping[str, Any]) -> None:
        for key in value:
            _within(f".{key}", self.rule, key)


@attrs.frozen
class EachValue:
    """Every value of a mapping keeps the rule."""

    rule: Callable[[Any], None]

    def __call__(self, value: Mapping[str, Any]) -> None:
        for key, item in value.items():
            _within(f".{key}", self.rule, item)


def _within(at: str, rule: Callable[[Any], Any], value: Any) -> Any:
    try:
        return rule(value)
    except RuleBroken as broken:
        raise RuleBroken(broken.rule, broken.value, fix=broken.fix, at=at + broken.at, note=broken.note) from None


def keeps(*checks: Callable[[Any], None]) -> dict[str, object]:
    """The metadata of a field that keeps these rules. They do not see None."""
    return {METADATA_KEY: checks}


# --- conversion: the same words as omegaconf takes, so that a plain dict and a Hydra config mean the same ---

_TRUE, _FALSE = frozenset({"true", "yes", "y", "on", "1"}), frozenset({"false", "no", "n", "off", "0"})


def _to_bool(value: Any) -> bool:
    word = str(value).lower()
    if isinstance(value, (bool, int, str)) and word in _TRUE | _FALSE:
        return word in _TRUE
    raise RuleBroken("must be true or false", value)


def _to_int(value: Any) -> int:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise RuleBroken("must be a whole number", value)


def _to_float(value: Any) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:  # an int of more than 308 digits
            raise RuleBroken("must be a number of at most 308 digits", value) from None
        except ValueError:
            pass
    raise RuleBroken("must be a number", value)


def _to_str(value: Any) -> str:
    if isinstance(value, (str, int, float)) or (hasattr(value, "__fspath__") and isinstance(value.__fspath__(), str)):
        try:
            text = str(value)
        except ValueError:
            raise RuleBroken("must be a text", value) from None
        if "\0" in text:  # no name, path, variable or address can have one: the kernel's texts end there
            raise RuleBroken("must hold no NUL character", _Words("one"), fix="remove it")  # not the text: it may be a secret
        return text
    raise RuleBroken("must be a text", value)


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}


def to_plain(value: Any) -> Any:
    """A copy without foreign containers (DictConfig, ListConfig): only dict and list, so that nothing lazy travels to an actor."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [to_plain(item) for item in value]
    return value


def convert(value: Any, hint: Any) -> Any:
    """``value`` as the type of a field; containers are copied, so that no two specs share one.

    Args:
        value: anything.
        hint: bool, int, float, str, Any, ``X | None``, ``list[X]``, ``dict[str, X]`` or an attrs class.

    Raises:
        RuleBroken: it is not of that type and is no text for it.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return to_plain(value)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else convert(value, next(arg for arg in args if arg is not types.NoneType))
    if origin is list:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise RuleBroken("must be a list", value, fix=f"write [{value}]" if isinstance(value, (str, int)) else "")
        return [_within(f"[{i}]", functools.partial(convert, hint=args[0]), item) for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise RuleBroken("must be a mapping", value)
        return {_to_str(key): _within(f".{key}", functools.partial(convert, hint=args[1]), item) for key, item in value.items()}
    if hint in _SCALARS:
        return _SCALARS[hint](value)
    if not isinstance(value, hint):
        raise RuleBroken(f"must be a {hint.__name__}", value)
    return value


@functools.cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Resolved annotation of each field of an attrs class."""
    hints = typing.get_type_hints(kind)
    return {attribute.name: hints[attribute.name] for attribute in attrs.fields(kind)}


def check_field(kind: type, name: str, value: Any) -> Any:
    """The value as the field's type, after all of the field's rules.

    Raises:
        RuleBroken: the first rule that it breaks.
    """
    converted = convert(value, field_types(kind)[name])
    if converted is not None:
        for rule in attrs.fields_dict(kind)[name].metadata.get(METADATA_KEY, ()):
            rule(converted)
    return converted
