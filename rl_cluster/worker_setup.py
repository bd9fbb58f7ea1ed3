"""What the processes of a worker group are given: environment variables by the moment they must be there, and an interpreter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from rl_cluster.schema import EnvSpec, PythonSpec
from rl_cluster.session import started_here
from rl_cluster.worker_env import forwarded_env, omp_threads, split_early


@frozen
class WorkerEnvironment:
    """Environment variables of a worker group."""

    early: Mapping[str, str]  # before the process starts: readable by any user of the machine, so never a secret
    late: Mapping[str, str]  # before the user's module is imported


def choose_environment(spec: EnvSpec, *, cpus: float) -> WorkerEnvironment:
    """What of this process's environment the workers see.

    Args:
        spec: What is forwarded and set beyond the allow-list.
        cpus: CPUs of one worker; OMP_NUM_THREADS follows it unless the user has set one.
    """
    values = dict(forwarded_env(os.environ, spec).values)
    values["OMP_NUM_THREADS"] = omp_threads(values, cpus)
    early, late = split_early(values)
    if started_here():  # its processes inherit our environment, so what is the same there need not be said again
        early = {name: value for name, value in early.items() if os.environ.get(name) != value}
    return WorkerEnvironment(early=early, late=late)


def set_up_python(spec: PythonSpec, node_ids: Sequence[str]) -> dict[str, str | None]:
    """The interpreter on each node; None means: the one that runs here, and no runtime_env for it.

    Raises:
        PythonEnvError: An environment can't be made, or the interpreter is missing on a node (which is named).
    """
    from rl_cluster.python_env import build_on_nodes, resolve_python

    nodes = sorted(set(node_ids))
    plan = resolve_python(spec)
    if plan.is_driver:
        return dict.fromkeys(nodes)
    return {node: str(path) for node, path in build_on_nodes(plan, nodes).items()}


def runtime_env(python: str | None, environment: WorkerEnvironment) -> dict[str, Any]:
    """Ray's runtime_env of a worker: empty where this interpreter and its environment will do."""
    early = dict(environment.early)
    return {**({"py_executable": python} if python else {}), **({"env_vars": early} if early else {})}
