"""The exception family. Every error carries its facts as fields, survives pickling, and reads ``where: rule, got value. Fix: ...``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXIT_OK = 0
EXIT_CONFIG = 1
EXIT_RESOURCES = 3
EXIT_CHECK_FAILED = 4
EXIT_INTERRUPTED = 130


class RlClusterError(Exception):
    """Base of all errors of this package.

    Keyword arguments become fields of the instance, and are kept by pickling (Ray sends errors between processes).
    """

    exit_code = EXIT_CHECK_FAILED

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[RlClusterError], message: str, facts: Mapping[str, Any]) -> RlClusterError:
    return kind(message, **facts)


class ConfigError(RlClusterError, ValueError):
    """A config value breaks a rule. ``problems`` lists every one found, one line each: ``path: rule, got value. Fix: ...``."""

    exit_code = EXIT_CONFIG
    problems: Sequence[str]

    def __init__(self, message: str = "", /, *, problems: Sequence[str] = (), **facts: Any) -> None:
        problems = tuple(problems) or (message,)
        super().__init__(message or "\n".join(problems), problems=problems, **facts)


class ResourceInsufficientError(RlClusterError):
    """The cluster has not got what the spec needs. ``shortfall`` is the planner's answer (or None)."""

    exit_code = EXIT_RESOURCES


class PlacementTimeoutError(ResourceInsufficientError, TimeoutError):
    """What is needed did not become free within ``timeout_s`` seconds; everything that was asked for is withdrawn."""


class ClusterUnreachableError(RlClusterError, ConnectionError):
    """No Ray cluster answers at ``address``."""

    exit_code = EXIT_RESOURCES


class WorkerStartError(RlClusterError, RuntimeError):
    """A worker failed while it came up. Fields: ``rank`` (the planned one at first), ``bundle``, ``node``, ``cause_text``."""


class WorkerError(RlClusterError, RuntimeError):
    """A method of a worker raised. Fields: ``rank``, ``node``, ``cause_text``; the worker's exception is ``__cause__``."""


class WorkerLostError(RlClusterError, RuntimeError):
    """A running worker, or its node, is gone."""

    ranks: Sequence[int]
    node_idx: Sequence[int]  # logical nodes
    node: Sequence[str]  # addresses


class BindingError(RlClusterError, RuntimeError):
    """``numa.strict`` is set and a worker is not wholly bound. Fields: ``rank``, ``node``, ``reason``."""


class PortError(RlClusterError, OSError):
    """No port of the range is free. Fields: ``low``, ``high``."""


class PythonEnvError(RlClusterError, RuntimeError):
    """A Python environment can't be made or used. Fields: ``node``, ``command``, ``output`` (its last lines)."""
