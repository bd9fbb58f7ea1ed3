"""What to do about a spec that does not fit: beside the planner's own suggestions, a command that rehearses it on this machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from rl_cluster.errors import ResourceInsufficientError
from rl_cluster.ground.secrets import mask_word
from rl_cluster.planning.layout import Shortfall, reworded
from rl_cluster.schema import RaySpec

__all__ = ["machines_of", "planned_on", "through_recipe", "with_kind", "with_rehearsal"]

NONE_RUNNING = (
    "No running Ray cluster was found (looked at ray.address, $RAY_ADDRESS and this machine), and a local one here would be too small. "
    "Fix: ray.address=HOST:PORT for a cluster that holds it"
)


ONLY_LOCAL = "A local Ray on this machine is too small. Fix: ray=auto ray.address=HOST:PORT for a cluster that holds it"


def with_rehearsal(error: ResourceInsufficientError, overrides: Sequence[str], *, kind: str) -> ResourceInsufficientError:
    """The error with what else can be done.

    Args:
        error: The planner's; its field ``shortfall`` may be None.
        overrides: The words of the command line.
        kind: What it was planned on: ``running`` (a Ray cluster), ``none`` (this machine, for no cluster was found), ``local`` (this
            machine, as was asked), ``file``, ``simulated``. The last two are made up already: a simulation would rehearse nothing.
    """
    lines = [error.message]
    shortfall = error.facts.get("shortfall")
    if kind == "simulated":
        sizes = [word for word in overrides if _key(word).startswith("ray.simulated_")]
        if sizes:
            lines.append(f"Fix: leave {' '.join(sizes)} out: a simulated cluster is as large as needed by itself")
    elif kind == "file":
        if isinstance(shortfall, Shortfall) and not shortfall.suggestions:
            lines.append("Fix: give the nodes of the file what is short, or ask for less")
    else:
        rehearse = f"To rehearse it on this machine:\n  {shlex.join([*_program(), *map(mask_word, _kept(overrides)), 'ray=simulated'])}"
        if kind in ("none", "local"):
            rehearse = f"{NONE_RUNNING if kind == 'none' else ONLY_LOCAL}. {rehearse}"
        elif isinstance(shortfall, Shortfall) and not shortfall.suggestions:
            rehearse = f"Fix: add nodes that hold it, or ask for less. {rehearse}"
        lines.append(rehearse)
    return type(error)("\n".join(lines), **error.facts)


def through_recipe(error: ResourceInsufficientError, given: Sequence[str]) -> ResourceInsufficientError:
    """The error for run.py with ``recipe=FILE``: keys of the recipe are pasted as one word of run.py, beside those ``given`` already."""
    shortfall = error.facts.get("shortfall")
    if not isinstance(shortfall, Shortfall):
        return error
    told = []
    for text in shortfall.suggestions:
        words, fits_now, rest = text.partition(" fits now")
        quoted = ",".join(json.dumps(word, ensure_ascii=False) for word in (*map(mask_word, given), *words.split(" ")))
        told.append(f"{shlex.quote(f'recipe_overrides=[{quoted}]')}{fits_now}{rest}" if fits_now else text)
    return reworded(error, shortfall, evolve(shortfall, suggestions=tuple(told)))


def planned_on(session_kind: str, *, asked: str) -> str:
    """The ``kind`` of :func:`with_rehearsal`.

    Args:
        session_kind: What a run's report calls its Ray: ``attached``, ``local``, ``simulated`` or ``file``.
        asked: The key ``ray.kind``.
    """
    if session_kind == "local":
        return "local" if asked == "local" else "none"
    return {"attached": "running"}.get(session_kind, session_kind)


def machines_of(ray: RaySpec, inventory: str | None) -> str:
    """The ``kind`` of :func:`with_rehearsal` for machines that were only planned on."""
    if inventory is not None:
        return "file"
    if ray.kind == "simulated":
        return "simulated"
    from rl_cluster.connection import reach

    return planned_on("local" if reach.resolve(ray).address is None else "attached", asked=ray.kind)


def with_kind(error: ResourceInsufficientError, *, kind: str) -> ResourceInsufficientError:
    """The error with what can be done in a program that is not run.py; ``kind`` as in :func:`with_rehearsal`."""
    if kind not in ("none", "local"):
        return error
    rehearse = "To rehearse it on this machine: the option simulated of the group ray, or a node ray: {kind: simulated}"
    return type(error)(f"{error.message}\n{NONE_RUNNING if kind == 'none' else ONLY_LOCAL}. {rehearse}", **error.facts)


def _kept(overrides: Sequence[str]) -> list[str]:
    return [word for word in overrides if _key(word) != "ray" and not _key(word).startswith("ray.") and _key(word) != "inventory"]


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _program() -> list[str]:
    """How this program was called, for commands that work when they are pasted."""
    called = sys.argv[0]
    return ["python", called] if called.endswith(".py") else [Path(called).name]
