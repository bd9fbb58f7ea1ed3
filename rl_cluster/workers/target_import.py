"""The class that an import path means, and whether a worker can be made of it. Needs no running Ray."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ray.actor import ActorClass

from rl_cluster.errors import ConfigError
from rl_cluster.workers.worker_boot import worker_class


def import_target(target: str | type) -> tuple[type, dict[str, Any]]:
    """The class that an import path means, and the options its ``@ray.remote(...)`` decorator carried.

    Args:
        target: ``pkg.module.Class`` (also ``pkg.module.Outer.Inner``), a class, or a class that ``ray.remote`` has decorated.

    Raises:
        ConfigError: There is no such module or class, it is not a class, or no worker can be made of it.
    """
    found: Any = _find(target) if isinstance(target, str) else target
    options: dict[str, Any] = {}
    if isinstance(found, ActorClass):
        options = dict(found._default_options)
        found = found.__ray_metadata__.modified_class.__ray_actor_class__
    if not isinstance(found, type):
        raise ConfigError(f"worker.target: must be a class, got {found!r}. Fix: name a class")
    for rule, fix in _unfit(found):
        raise ConfigError(f"worker.target: {rule}, got {found.__module__}.{found.__qualname__}. Fix: {fix}")
    return found, options


def _find(target: str) -> object:
    """The longest part of the path that is a module is imported; what follows are attributes, one within the other."""
    parts = target.split(".")
    if len(parts) == 1:
        raise ConfigError(f"worker.target: must be an import path like pkg.module.Class, got {target!r}. Fix: name the module too")
    missing = None
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = _guarded(importlib.import_module, name, doing=f"importing {name!r}")
        except ModuleNotFoundError as error:
            if length == 1 or error.name != name:
                raise _no_module(error, target) from None
            missing = missing or error  # this part may name a class
            continue
        for done, attribute in enumerate(parts[length:], length):
            try:
                found = _guarded(getattr, found, attribute, doing=f"looking for {target!r}")
            except AttributeError:
                within = ".".join(parts[:done])
                if missing is not None and isinstance(found, ModuleType) and hasattr(found, "__path__"):
                    raise _no_module(missing, target) from None  # a package: what is missing was to be a module of it
                kind = "module" if isinstance(found, ModuleType) else "class" if isinstance(found, type) else "object"
                raise ConfigError(f"worker.target: {kind} {within!r} has no {attribute!r}, got {target!r}. Fix: correct the name") from None
        return found
    raise AssertionError("a path has a first part")


def _guarded(call: Callable[..., Any], *args: Any, doing: str) -> Any:
    """Run the user's code: whatever it raises, an end of the process included, is his config's problem."""
    passed_on = ModuleNotFoundError if call is importlib.import_module else AttributeError
    try:
        return call(*args)
    except (passed_on, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigError(
            f"worker.target: {doing} failed with {type(error).__name__}: {error}. Fix: see the log for its traceback"
        ) from error


def _no_module(error: ModuleNotFoundError, target: str) -> ConfigError:
    return ConfigError(f"worker.target: no module named {error.name!r}, got {target!r}. Fix: install it, or add its folder to PYTHONPATH")


def _unfit(kind: type) -> Iterator[tuple[str, str]]:
    """Why no worker can be made of a class: (rule, fix)."""
    if issubclass(kind, type):
        yield "must be a class whose instances are objects, not a metaclass", "name a class"
        return
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(vars(kind)["__abstractmethods__"]))
        yield f"must be a class without abstract methods ({missing})", "name a subclass that has them"
        return
    init = inspect.unwrap(inspect.getattr_static(kind, "__init__"))
    if inspect.iscoroutinefunction(init) or inspect.isgeneratorfunction(init) or inspect.isasyncgenfunction(init):
        yield "must have a plain __init__ (async def and yield do nothing there)", "do it in a method, which worker.method may name"
    try:
        made = worker_class(kind, env={}, binder=None)
    except Exception as error:
        yield f"must be a class that can be derived from ({type(error).__name__}: {error})", "name a class that wraps it"
        return
    new = inspect.unwrap(kind.__new__)
    if inspect.isfunction(new):
        try:
            inspect.signature(new).bind(kind)
        except TypeError as error:  # Ray makes the object first, and hands the arguments to __init__ later
            yield f"must have no __new__ that takes arguments ({error})", "take them in __init__"
    if inspect.getattr_static(made, "__setattr__") is not vars(object)["__setattr__"]:
        try:
            setattr(object.__new__(made), "__ray_metadata__", None)  # noqa: B010 - as Ray does with a class that it derives from this one
        except Exception as error:
            rule = f"must be a class whose attributes can be set ({type(error).__name__}: {error})"
            yield rule, "name a class that is not frozen, which may hold a frozen one"
