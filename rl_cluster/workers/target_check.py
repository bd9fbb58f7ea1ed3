"""Whether a class can be what a run's workers are asked to be: imported, made with these arguments, and called by this method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.errors import ConfigError
from rl_cluster.ground.rules import RuleBroken, near_word
from rl_cluster.schema import WorkerSpec
from rl_cluster.workers.target_import import import_target


def check_target(spec: WorkerSpec) -> None:
    """Look at the user's class in this process, before anything is started for it.

    Args:
        spec: With a ``target`` that this interpreter is to import.

    Raises:
        ConfigError: The class can't be imported, has no such method or one that needs arguments, or its ``__init__`` takes
            other arguments than ``kwargs``.
    """
    if spec.target is None:
        return
    user_class, _ = import_target(spec.target)
    problems = [broken.line(f"worker.{name}") for name, broken in _broken(user_class, spec)]
    if problems:
        raise ConfigError(problems=problems)


def _broken(user_class: type, spec: WorkerSpec) -> list[tuple[str, RuleBroken]]:
    found = []
    if spec.method is not None and not callable(getattr(user_class, spec.method, None)):
        methods = [name for name in dir(user_class) if not name.startswith("_") and callable(getattr(user_class, name))]
        near = near_word(spec.method, methods)
        fix = f"write {near}" if near else f"its public methods are {', '.join(methods)}" if methods else "add it to the class"
        found.append(("method", RuleBroken(f"must be a method of {user_class.__name__}", spec.method, fix=fix)))
    elif spec.method is not None:
        refusal = _why_not_called(user_class, spec.method)
        if _yields(user_class, spec.method):
            found.append(("method", RuleBroken("must return its result, not yield it", spec.method, fix="return a list")))
        elif refusal is not None:
            fix = "give its arguments default values, or take them by worker.kwargs in __init__"
            found.append(("method", RuleBroken(f"must be callable without arguments ({refusal})", spec.method, fix=fix)))
    reason = _why_not_made(user_class, spec.kwargs)
    if reason is not None:
        # Only the names: a value may be a secret.
        found.append(("kwargs", RuleBroken(f"must fit {user_class.__name__}.__init__ ({reason})", sorted(spec.kwargs))))
    return found


def _why_not_made(user_class: type, kwargs: Mapping[str, Any]) -> str | None:
    return _why_not_bound(user_class, (), kwargs)


def _why_not_called(user_class: type, method: str) -> str | None:
    found = inspect.getattr_static(user_class, method)
    without_self = isinstance(found, (staticmethod, classmethod))
    return _why_not_bound(getattr(user_class, method), () if without_self else (None,), {})


def _yields(user_class: type, method: str) -> bool:
    """A stream of values is no result that a report can hold."""
    function = inspect.unwrap(getattr(user_class, method))
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _why_not_bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # what is written in C need not tell
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return f"{error}; it takes {signature}"
    return None
