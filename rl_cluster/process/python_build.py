"""Make the workers' Python ready on every node in use, before any worker is created: one builder per node, and one clear error."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from rl_cluster.errors import PythonEnvError
from rl_cluster.process.node_work import NodeWork, on_nodes
from rl_cluster.process.python_check import check_python, env_error
from rl_cluster.python_env import SYSTEM, PythonPlan, resolve_python
from rl_cluster.schema import PythonSpec

__all__ = ["build_each", "build_here", "build_on_nodes", "look_ahead", "named"]

logger = logging.getLogger(__name__)

COMMAND_CHECK_S = 120.0
_GRACE_S = 30.0  # beyond build_timeout_s, for the answer of a node whose own deadline has passed
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_KEYS = re.compile(r"(?<![\w./-])(?=python\.(executable|project_dir|venv_dir|build_timeout_s)\b|worker\.nsight)")


def build_on_nodes(
    plan: PythonPlan,
    node_ids: Sequence[str],
    *,
    early: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, str]:
    """Build (or find) the environment of ``plan`` on each node; a Python that is only a command line is looked up and asked there.

    Each node does it in one actor of its own, which takes no CPU and is gone afterwards. On a folder that several nodes share, one
    builds and the others wait.

    Args:
        plan: From :func:`rl_cluster.python_env.resolve_python`.
        node_ids: Ray's ids of the nodes in use; each once or more often.
        early: Variables that the workers get before their process starts; with any, each node tries its Python with them.
        progress: Gets a line of text every 5 seconds; default: the log.

    Returns:
        Node id to the path of the program that starts there: the environment's ``bin/python``, or the command's first word, looked up.
        For SYSTEM without such variables no node is asked.

    Raises:
        PythonEnvError: The first failure; it names its node. The other nodes' builds are ended.
    """
    nodes = list(dict.fromkeys(node_ids))
    if plan.kind == "system" and not early:
        return dict.fromkeys(nodes, SYSTEM)
    done: dict[str, str] = {}
    with closing(build_each(plan, nodes, progress=progress, build=partial(build_here, early=dict(early or {})))) as outcomes:
        for node, outcome in outcomes:
            if isinstance(outcome, PythonEnvError):
                raise outcome
            done[node] = outcome
    return {node: done[node] for node in nodes}


def build_each(
    plan: PythonPlan,
    node_ids: Sequence[str],
    *,
    progress: Callable[[str], None] | None = None,
    build: Callable[..., Any],
) -> Generator[tuple[str, Any], None, None]:
    """As :func:`build_on_nodes`, node by node as they get ready: a node that fails is told by its error, and the others go on.

    Args:
        plan: From :func:`rl_cluster.python_env.resolve_python`.
        node_ids: Ray's ids of the nodes.
        progress: Gets a line of text every 5 seconds; default: the log.
        build: What each node does; gets the plan, ``node``, the name of its machine for messages, and ``tell``, for what it is at.

    Yields:
        Ray's id of a node, with what ``build`` returned there or with the :class:`PythonEnvError`.
    """
    work = NodeWork(
        where=f"{plan.where}.executable",
        what=f"Python {plan.requested}",
        command=plan.command,
        timeout_s=plan.build_timeout_s + _GRACE_S,
        rule=f"it must be ready within {plan.build_timeout_s:.0f} s",
        late_fix=f"look whether the node is alive (ray status), or raise {plan.where}.build_timeout_s",
    )
    for node, outcome in on_nodes(work, build, dict.fromkeys(node_ids, (plan,)), progress or logger.info):
        yield node, named(outcome, plan.where.removesuffix("python")) if isinstance(outcome, PythonEnvError) else outcome


def look_ahead(pythons: Iterable[tuple[str, PythonSpec]]) -> None:
    """What can be said of Pythons before a Ray is started, where all its nodes are this machine: uv, the project and its lock are there, or
    the program of a command line. Starts nothing.

    Args:
        pythons: Each with the path of its keys in the config.

    Raises:
        PythonEnvError: One is not, in the words of the node.
        ConfigError: A command line can't be read.
    """
    for where, spec in pythons:
        plan, node = resolve_python(spec, where=where), socket.gethostname()
        try:
            if plan.uv is not None:
                from rl_cluster.process.uv_build import look_at_project

                look_at_project(plan, node=node)
            elif plan.kind == "command":
                _find_program(plan, node)
        except PythonEnvError as error:
            raise named(error, where.removesuffix("python")) from None


def named(error: PythonEnvError, above: str) -> PythonEnvError:
    """The error with the keys as the config has them: nodes say ``python.executable``, a recipe has it above as ``policy.``"""
    head, separator, output = error.message.partition("\nLast lines of its output:\n")
    head = _KEYS.sub(above, head)
    return PythonEnvError(head + separator + output, **error.facts)


def build_here(plan: PythonPlan, *, node: str, early: Mapping[str, str], tell: Callable[[str], None]) -> str:
    """The work of one node: what runs there.

    Returns:
        The path of the program that starts here.
    """
    deadline_s = min(COMMAND_CHECK_S, plan.build_timeout_s)
    asks = f"asks whether it can run the workers, {deadline_s:.0f} s at most"
    if plan.kind == "system":
        tell(asks)
        check_python([sys.executable], node=node, deadline_s=deadline_s, environ=os.environ, early=early)
        return SYSTEM
    if plan.uv is not None:
        from rl_cluster.process.uv_build import ensure_environment

        built = str(ensure_environment(plan, node=node, progress=tell))
        if early or plan.uv.interpreter_args:  # the builder has asked it without them
            tell(asks)
            asked = [built, *plan.uv.interpreter_args]
            check_python(asked, node=node, deadline_s=deadline_s, environ=os.environ, early={"PYTHONPATH": "", **early})
        return built
    program = _find_program(plan, node)
    tell(asks)
    # Of a profiler's command line only the interpreter is asked; a wrapper of one's own is asked as a whole.
    python = next((index for index, word in enumerate(plan.command) if _PYTHON.fullmatch(os.path.basename(word))), 0)
    check_python(plan.command[python:], node=node, deadline_s=deadline_s, environ=os.environ, early=early)
    return program


def _find_program(plan: PythonPlan, node: str) -> str:
    """Of a command line."""
    program = shutil.which(plan.command[0])
    if program is None:
        raise env_error(
            node,
            plan.command,
            rule="it must be there on every node",
            got=f"no program {plan.command[0]!r} that can be run",
            fix="install it on that node, or leave the node out with cluster.exclude_nodes",
        )
    return program
