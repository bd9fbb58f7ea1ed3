"""Make the workers' Python ready on every node in use, before any worker is created: one builder per node, and one clear error."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rl_cluster.errors import PythonEnvError
from rl_cluster.python_check import check_python, env_error
from rl_cluster.python_env import SYSTEM, PythonPlan

__all__ = ["build_on_nodes", "build_here"]

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 5.0
COMMAND_CHECK_S = 120.0
_GRACE_S = 30.0  # beyond build_timeout_s, for the answer of a node whose own deadline has passed
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def build_on_nodes(plan: PythonPlan, node_ids: Sequence[str], *, progress: Callable[[str], None] | None = None) -> dict[str, str]:
    """Build (or find) the environment of ``plan`` on each node; a Python that is only a command line is looked up and asked there.

    Each node does it in one actor of its own, which takes no CPU and is gone afterwards. On a folder that several nodes share, one
    builds and the others wait.

    Args:
        plan: From :func:`rl_cluster.python_env.resolve_python`.
        node_ids: Ray's ids of the nodes in use; each once or more often.
        progress: Gets a line of text every few seconds; default: the log.

    Returns:
        Node id to the path of the program that starts there: the environment's ``bin/python``, or the command's first word, looked up.
        For SYSTEM no node is asked.

    Raises:
        PythonEnvError: The first failure; it names its node. The other nodes' builds are ended.
    """
    nodes = list(dict.fromkeys(node_ids))
    if plan.kind == "system":
        return dict.fromkeys(nodes, SYSTEM)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    tell = progress or logger.info
    names = _node_names(ray)
    # Actors, not tasks: to end a build at once ray.kill is safe at any moment, while ray.cancel(force=True) of a task that ends just
    # then aborts the whole driver (Ray 2.60, "Tried to complete task that was not pending" in task_manager.cc).
    builder = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(_NodeBuilder)
    started = time.monotonic()
    builders: list[Any] = []
    node_of: dict[Any, str] = {}
    done: dict[str, str] = {}
    try:
        for node in nodes:
            builders.append(builder.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)).remote())
            node_of[builders[-1].build.remote(plan, names.get(node, node[:12]))] = node
        waiting = list(node_of)
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=PROGRESS_EVERY_S)
            for reference in ready:
                done[node_of[reference]] = _result(ray, reference, names.get(node_of[reference], node_of[reference][:12]), plan)
            elapsed = time.monotonic() - started
            if waiting and not ready:
                unready = ", ".join(names.get(node_of[reference], node_of[reference][:12]) for reference in waiting)
                tell(f"Python of the workers: ready on {len(done)} of {len(nodes)} nodes after {elapsed:.0f} s, waits for {unready}")
            if waiting and elapsed > plan.build_timeout_s + _GRACE_S:
                late = node_of[waiting[0]]
                raise env_error(
                    names.get(late, late[:12]),
                    plan.command,
                    rule=f"it must be ready within {plan.build_timeout_s:.0f} s",
                    got="no answer from the node",
                    fix="look whether the node is alive (ray status), or raise python.build_timeout_s",
                )
    finally:
        for actor in builders:
            with suppress(Exception):  # Ray itself may be gone
                ray.kill(actor)
    return {node: done[node] for node in nodes}


class _NodeBuilder:
    """The actor of one node."""

    def build(self, plan: PythonPlan, node: str) -> str:
        return build_here(plan, node=node)


def build_here(plan: PythonPlan, *, node: str) -> str:
    """The work of one node: what runs there.

    Returns:
        The path of the program that starts here.
    """
    if plan.needs_build:
        from rl_cluster.uv_build import ensure_environment

        return str(ensure_environment(plan, node=node, progress=logger.info))
    program = shutil.which(plan.command[0])
    if program is None:
        raise env_error(
            node,
            plan.command,
            rule="it must be there on every node",
            got=f"no program {plan.command[0]!r} that can be run",
            fix="install it on that node, or leave the node out with cluster.exclude_nodes",
        )
    # Of a profiler's command line only the interpreter is asked; a wrapper of one's own is asked as a whole.
    python = next((index for index, word in enumerate(plan.command) if _PYTHON.fullmatch(os.path.basename(word))), 0)
    check_python(plan.command[python:], node=node, deadline_s=min(COMMAND_CHECK_S, plan.build_timeout_s), environ=os.environ)
    return program


def _node_names(ray: Any) -> dict[str, str]:
    return {
        entry["NodeID"]: f"{entry['NodeID'][:12]} ({entry['NodeManagerHostname']}, {entry['NodeManagerAddress']})" for entry in ray.nodes()
    }


def _result(ray: Any, reference: Any, node: str, plan: PythonPlan) -> str:
    try:
        return str(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PythonEnvError):
            raise error.cause from None
        raise env_error(
            node, plan.command, rule="it must be set up", got=repr(error.cause), fix="read the traceback in Ray's log of that node"
        ) from error
    except ray.exceptions.RayError as error:
        got = str(error).partition("\n")[0]
        raise env_error(node, plan.command, rule="the node must live", got=got, fix="take a node that is alive (ray status)") from error
