"""What the processes of a worker group are given: environment variables by the moment they must be there, an interpreter, a binding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import Factory, frozen

from rl_cluster.connection.session import started_here
from rl_cluster.errors import ConfigError
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.numa.callback import Binding
from rl_cluster.planning.layout import PlacedBundle
from rl_cluster.process.worker_env import forwarded_env, omp_threads, split_early
from rl_cluster.schema import EnvSpec, NumaSpec, PythonSpec
from rl_cluster.virtual_cluster import RayVirtualCluster


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


@frozen
class NodePython:
    """The interpreter of a worker group on one node."""

    python: str | None = None  # its path, where an environment was built; None: what the command line means
    base: Mapping[str, Any] = Factory(dict)  # the start of a runtime_env; empty for the interpreter that runs here

    def runtime_env(self, environment: WorkerEnvironment) -> dict[str, Any]:
        """Ray's runtime_env of a worker. Empty where this interpreter and its environment will do: any other one costs a process."""
        variables = {**self.base.get("env_vars", {}), **environment.early}
        return {**self.base, **({"env_vars": variables} if variables else {})}


def set_up_python(
    spec: PythonSpec, node_ids: Sequence[str], environment: WorkerEnvironment, tell: Callable[[str], None] | None = None
) -> dict[str, NodePython]:
    """The interpreter on each node; a uv environment is built there first, once per node.

    Args:
        spec: Which one.
        node_ids: Ray's ids of the nodes, each once or more often.
        environment: Its early variables are tried with the interpreter, because a worker that dies of them is started again and again.
        tell: Gets a line of text every 5 seconds; default: the log.

    Raises:
        ConfigError: It is to be built and no more (``prefetch``).
        PythonEnvError: An environment can't be made, or the interpreter is missing on a node (which is named).
    """
    from rl_cluster.python_env import resolve_python

    if spec.prefetch:
        fix = "leave it out, or write mode=prefetch (in Python: prefetch_python)"
        raise ConfigError(RuleBroken("must be left out where workers are to run", True, fix=fix).line("python.prefetch"))
    nodes = sorted(set(node_ids))
    plan = resolve_python(spec)
    if plan.kind == "system" and not (environment.early and nodes):
        return {node: NodePython() for node in nodes}
    from rl_cluster.process.python_build import build_on_nodes

    pythons = build_on_nodes(plan, nodes, early=environment.early, progress=tell)
    if plan.kind == "system":
        return {node: NodePython() for node in nodes}
    return {node: NodePython(str(pythons[node]) if plan.needs_build else None, plan.runtime_env(str(pythons[node]))) for node in nodes}


def choose_binders(
    numa: NumaSpec | None, cluster: RayVirtualCluster, bundles: Sequence[PlacedBundle]
) -> tuple[Binding | None, list[Binding | None]]:
    """One binder for all, which acts before the user's module is imported; or one for each, where they must differ."""
    none: list[Binding | None] = [None] * len(bundles)
    if numa is None or not numa.enabled:
        return None, none
    lenient = attrs.evolve(numa, strict=False)  # a worker reports; whether that is an error is said by the driver, who knows ranks
    if cluster.use_gpus or numa.cpu_workers == "none":
        return Binding(lenient), none
    on_machine: dict[str, int] = {}
    own: list[Binding | None] = []
    for bundle in bundles:
        index = on_machine.get(bundle.node_id, 0)
        on_machine[bundle.node_id] = index + 1
        own.append(Binding(lenient, cpu_worker_index=index))
    return None, own
