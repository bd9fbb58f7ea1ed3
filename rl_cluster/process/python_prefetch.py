"""Build the workers' Python environments on every node that could ever need them, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing

import attrs
from attrs import frozen

from rl_cluster.errors import ConfigError, PythonEnvError
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.plan import close_spec, plan_layout
from rl_cluster.planning.layout import Shortfall
from rl_cluster.planning.problem import state_problem
from rl_cluster.process.python_build import build_each
from rl_cluster.process.uv_build import Environment, prepare_environment
from rl_cluster.python_env import PythonPlan, resolve_python
from rl_cluster.schema import ClusterSpec, PythonSpec

__all__ = ["Prefetched", "plans_to_prefetch", "prefetch", "requests_on", "unfinished"]


@frozen
class Prefetched:
    """What became of one environment on one node."""

    node_id: str
    address: str
    hostname: str
    python: str  # as it was asked for
    state: str  # built, ready (it was there already), failed, unfinished
    seconds: float
    folder: str | None = None
    error: str | None = None


Requests = Mapping[PythonPlan, Sequence[PhysicalNode]]


def plans_to_prefetch(pythons: Iterable[tuple[str, PythonSpec]]) -> list[PythonPlan]:
    """The plan of each Python that has an environment to build.

    Args:
        pythons: Each with the path of its key in the config.

    Raises:
        ConfigError: There is none.
    """
    given = list(pythons)
    plans = [plan for where, spec in given if (plan := resolve_python(spec, where=where)).needs_build]
    if not plans:
        where, spec = given[0] if given else ("python", PythonSpec())
        fix = "write python=base, python=vllm or a uv run command, or leave prefetch out: there is nothing to build"
        raise ConfigError(
            RuleBroken("must be an environment that is built, to prefetch it", spec.executable, fix=fix).line(f"{where}.executable")
        )
    return plans


def requests_on(wanted: Iterable[tuple[str, ClusterSpec, PythonSpec]], inventory: Inventory) -> dict[PythonPlan, list[PhysicalNode]]:
    """Each distinct environment with the nodes that could hold a bundle of its cluster, whether they are free now or not.

    Args:
        wanted: Of each group of workers the path of its Python's keys, the cluster and the Python; one that is not built is passed over.
        inventory: What is there.

    Returns:
        Nodes in topology order, each once.

    Raises:
        ConfigError: A cluster's spec can't be read against these nodes.
        ResourceInsufficientError: No node could hold a bundle of a cluster.
    """
    found: dict[PythonPlan, dict[str, PhysicalNode]] = {}
    for where, cluster, python in wanted:
        plan = resolve_python(python, where=where)
        if not plan.needs_build:
            continue
        spec = close_spec(cluster, inventory)
        problem = state_problem(spec, inventory)
        nodes = {node.node_id: node for node, most in zip(problem.nodes, problem.total, strict=True) if most}
        if not nodes:
            answer = plan_layout(spec, inventory)
            assert isinstance(answer, Shortfall), "no node holds a bundle"
            raise answer.to_error()
        # BASE and the command that it stands for are the same environment
        known = next((other for other in found if attrs.evolve(other, requested=plan.requested) == plan), plan)
        found.setdefault(known, {}).update(nodes)
    return {plan: list(nodes.values()) for plan, nodes in found.items()}


def prefetch(requests: Requests, *, tell: Callable[[str], None], on_row: Callable[[Prefetched], None]) -> list[Prefetched]:
    """Build each environment once on each of its nodes; places nothing and makes no worker.

    Args:
        requests: From :func:`requests_on`; one environment after the other, each on all of its nodes at once.
        tell: Gets a line of text every few seconds.
        on_row: Gets each environment and node when it is done.

    Returns:
        The rows, in the order of the requests.

    Raises:
        PythonEnvError: The first failure, after all others are done: their rows have been given to ``on_row``.
    """
    rows: dict[tuple[PythonPlan, str], Prefetched] = {}
    failures = []
    for plan, nodes in requests.items():
        by_id = {node.node_id: node for node in nodes}
        began = time.monotonic()
        with closing(build_each(plan, list(by_id), progress=tell, build=prepare_here)) as outcomes:
            for node_id, outcome in outcomes:
                row = _row(plan, by_id[node_id], outcome, time.monotonic() - began)
                rows[plan, node_id] = row
                on_row(row)
                if isinstance(outcome, PythonEnvError):
                    failures.append(outcome)
    if failures:
        raise failures[0]
    return [rows[plan, node.node_id] for plan, nodes in requests.items() for node in nodes]


def prepare_here(plan: PythonPlan, *, node: str, tell: Callable[[str], None]) -> Environment:
    """The work of one node."""
    return prepare_environment(plan, node=node, progress=tell)


def unfinished(requests: Requests, done: Sequence[Prefetched]) -> list[Prefetched]:
    """All rows in the order of the requests: those that are done, and a row for each of the others."""
    left = list(done)
    rows = []
    for plan, nodes in requests.items():  # one is done after the other, so of rows that look alike the first is the first one's
        for node in nodes:
            none = Prefetched(node.node_id, node.address, node.hostname, plan.requested, "unfinished", 0.0)
            row = next((row for row in left if (row.python, row.node_id) == (plan.requested, node.node_id)), none)
            rows.append(row)
            if row is not none:
                left.remove(row)
    return rows


def _row(plan: PythonPlan, node: PhysicalNode, outcome: Environment | PythonEnvError, seconds: float) -> Prefetched:
    of = {"node_id": node.node_id, "address": node.address, "hostname": node.hostname, "python": plan.requested}
    if isinstance(outcome, PythonEnvError):
        return Prefetched(**of, state="failed", seconds=round(seconds, 3), error=str(outcome))
    state = "built" if outcome.built else "ready"
    return Prefetched(**of, state=state, seconds=round(outcome.seconds, 3), folder=str(outcome.folder))
