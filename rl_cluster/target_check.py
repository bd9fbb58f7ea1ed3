"""Whether a class can be what a run's workers are asked to be: imported, made with these arguments, and called by this method."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from rl_cluster.actors import import_target
from rl_cluster.errors import ConfigError
from rl_cluster.rules import RuleBroken, near_word
from rl_cluster.schema import WorkerSpec


def check_target(spec: WorkerSpec) -> None:
    """Look at the user's class in this process, before anything is started for it.

    Args:
        spec: With a ``target`` that this interpreter is to import.

    Raises:
        ConfigError: The class can't be imported, has no such method, or its ``__init__`` takes other arguments than ``kwargs``.
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
    reason = _why_not_made(user_class, spec.kwargs)
    if reason is not None:
        # Only the names: a value may be a secret.
        found.append(("kwargs", RuleBroken(f"must fit {user_class.__name__}.__init__ ({reason})", sorted(spec.kwargs))))
    return found


def _why_not_made(user_class: type, kwargs: Mapping[str, Any]) -> str | None:
    try:
        signature = inspect.signature(user_class)
    except (TypeError, ValueError):  # a class written in C need not tell
        return None
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        return f"{error}; it takes {signature}"
    return None
