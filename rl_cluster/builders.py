"""From a resolved config to running parts. Each builder takes a DictConfig node, a plain dict, or a spec.

What holds something (clusters, worker groups, a Ray that was started) is a context manager and gives it back on every way out.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from ray.util.placement_group import PlacementGroup

from rl_cluster.config import from_config, full_key
from rl_cluster.connection import session
from rl_cluster.connection.session import RaySession
from rl_cluster.errors import ConfigError, ResourceInsufficientError
from rl_cluster.ground.arguments import check_names
from rl_cluster.ground.secrets import mask_text
from rl_cluster.numa.callback import Binding
from rl_cluster.placing.placement import Progress, place_all
from rl_cluster.planning.layout import Shortfall, error_at
from rl_cluster.planning.simulated_inventory import simulated_inventory_for_all
from rl_cluster.process.python_prefetch import Prefetched, plans_to_prefetch, prefetch, requests_on
from rl_cluster.python_env import resolve_python
from rl_cluster.schema import ClusterSpec, EnvSpec, NumaSpec, PythonSpec, RaySpec
from rl_cluster.virtual_cluster import RayVirtualCluster
from rl_cluster.worker_group import PerWorker, RayWorkerGroup
from rl_cluster.workers import worker_setup
from rl_cluster.workers.actors import RayWorkerBuilder
from rl_cluster.workers.bring_up import Progress as WorkerProgress

__all__ = [
    "build_binding",
    "build_bindings",
    "build_cluster",
    "build_clusters",
    "build_placement_groups",
    "build_runtime_env",
    "build_worker_group",
    "numa_on",
    "open_ray",
    "prefetch_python",
]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def open_ray(config: object = None, *, clusters: Sequence[object] = ()) -> Iterator[RaySession]:
    """Connect to the Ray that a config means, or start one, and give back whatever was started.

    Args:
        config: A ``ray`` node of a config, or a :class:`RaySpec`; None is ``ray=auto``.
        clusters: ``cluster`` nodes or specs that are to run on it at the same time: a simulated Ray is sized by them.

    Yields:
        The session: ``address``, ``kind``, ``simulated``, and of a simulated Ray the ``affinity_file`` with the made-up GPU->CPU map.

    Raises:
        ConfigError: The config breaks rules, or a simulated Ray has no ``clusters`` to be sized by.
        ClusterUnreachableError: The named cluster does not answer.
    """
    spec = RaySpec() if config is None else from_config(config, kind=RaySpec)
    inventory = None
    if spec.kind == "simulated" and clusters:
        cpus = len(os.sched_getaffinity(0))
        specs = [from_config(cluster, kind=ClusterSpec) for cluster in clusters]
        inventory = simulated_inventory_for_all(specs, spec, cpus=cpus)
    with session.open_ray(spec, simulated=inventory) as opened:
        yield opened


def build_cluster(config: object, *, on_progress: Progress | None = None) -> RayVirtualCluster:
    """Plan and place a cluster on the connected Ray. Use it in a ``with`` statement, or call ``shutdown()``.

    Args:
        config: A ``cluster`` node of a config, or a :class:`ClusterSpec`.
        on_progress: Gets a line of text while resources are waited for.

    Raises:
        ConfigError: The config breaks rules (all of them are listed).
        ResourceInsufficientError: It does not fit; nothing stays behind.
    """
    try:
        return RayVirtualCluster.placed(_spec_of(config, ClusterSpec, "cluster"), on_progress=on_progress)
    except ResourceInsufficientError as error:
        raise error_at(error, "", full_key(config) or "cluster") from None


def _spec_of(config: object, kind: type[Any], argument: str) -> Any:
    """A node of a config names itself in messages; anything else is named by the argument."""
    return from_config(config, kind=kind, path=full_key(config) or argument)


@contextlib.contextmanager
def build_clusters(configs: Mapping[str, object], *, on_progress: Progress | None = None) -> Iterator[dict[str, RayVirtualCluster]]:
    """Several clusters, planned together and placed all or nothing; all are given back at the end of the ``with`` block.

    Args:
        configs: ``cluster`` nodes or specs by name, in the order in which they are planned: each on what the former ones leave.
        on_progress: Gets a line of text while resources are waited for.

    Yields:
        The clusters by the same names.

    Raises:
        ConfigError, ResourceInsufficientError: As :func:`build_cluster`; nothing stays behind.
    """
    check_names("clusters", configs)
    specs = [from_config(config, kind=ClusterSpec, path=name) for name, config in configs.items()]
    specs = [attrs.evolve(spec, name=spec.name or name) for name, spec in zip(configs, specs, strict=True)]
    with contextlib.ExitStack() as held:
        try:
            placements = place_all(specs, on_progress=on_progress) if specs else []
        except ResourceInsufficientError as error:
            short = error.facts.get("shortfall")
            name = list(configs)[short.index] if isinstance(short, Shortfall) else ""
            raise error_at(error, name, name) from None
        clusters = [held.enter_context(RayVirtualCluster.of_placement(placement)) for placement in placements]
        yield dict(zip(configs, clusters, strict=True))


@contextlib.contextmanager
def build_placement_groups(config: object, *, on_progress: Progress | None = None) -> Iterator[list[PlacementGroup]]:
    """Ready placement groups, one for each logical node with bundles (or one unified), for frameworks that make their own actors.

    Arguments and errors are those of :func:`build_cluster`; the groups are removed at the end of the ``with`` block.
    """
    with build_cluster(config, on_progress=on_progress) as cluster:
        yield cluster.get_placement_groups()


def build_binding(config: object) -> Binding | None:
    """A small picklable callable for one actor: called inside the actor it finds its own GPU, binds, and returns the report.

    Args:
        config: A ``numa`` node of a config, or a :class:`NumaSpec`.

    Returns:
        None where binding is not enabled.
    """
    spec = from_config(config, kind=NumaSpec)
    return Binding(spec) if spec.enabled else None


def numa_on(spec: NumaSpec, ray_session: RaySession) -> NumaSpec:
    """The spec for a Ray: a simulated one brings a GPU->CPU map of its own, unless the config names another source."""
    made_up = ray_session.affinity_file
    if made_up is None or spec.affinity_file is not None or spec.source not in ("auto", "affinity_file"):
        return spec
    return attrs.evolve(spec, affinity_file=made_up)


def build_bindings(config: object, world_size: int) -> list[Binding | None]:
    """One :func:`build_binding` for each worker of a group of ``world_size``."""
    return [build_binding(config) for _ in range(world_size)]


def build_runtime_env(
    python: object = None, env: object = None, *, node_ids: Sequence[str] = (), on_progress: Progress | None = None
) -> dict[str, Any]:
    """The runtime_env for actors that another framework makes: the interpreter, and the variables that must exist before a process starts.

    It is empty where this interpreter and its environment will do: any runtime_env starts one more process per worker. What is in it
    can be read on the command line of the starting process, so it never holds a secret (that is an error).

    Args:
        python: A ``python`` node of a config, or a :class:`PythonSpec`; None is this interpreter.
        env: An ``env`` node of a config, or an :class:`EnvSpec`.
        node_ids: Ray's ids of the nodes where the actors run (``cluster.bundle_nodes()``); needed where ``python`` is another one,
            which is built, or looked at, on each.
        on_progress: Gets a line of text every 5 seconds meanwhile; default: the log.

    Raises:
        ConfigError: A value breaks a rule, or the environment lies at different paths on the nodes.
        PythonEnvError: An environment can't be made on a node.
    """
    environment = worker_setup.choose_environment(EnvSpec() if env is None else from_config(env, kind=EnvSpec), cpus=1.0)
    spec = PythonSpec() if python is None else from_config(python, kind=PythonSpec)
    if not node_ids and resolve_python(spec).kind != "system":
        raise ConfigError(
            f"node_ids: must name the nodes where {mask_text(spec.executable)} is to run, got none. Fix: node_ids=cluster.bundle_nodes()"
        )
    found = list(worker_setup.set_up_python(spec, node_ids, environment, on_progress).values()) or [worker_setup.NodePython()]
    paths = sorted({str(here.python) for here in found})
    if len(paths) > 1:
        raise ConfigError(
            f"python: the environment must lie at the same path on every node, got {', '.join(paths)}. "
            "Fix: set python.venv_dir to a folder that every node has"
        )
    return found[0].runtime_env(environment)


def prefetch_python(python: object, cluster: object, *, on_progress: Progress | None = None) -> list[Prefetched]:
    """Build the environment of a Python on every node of the connected Ray that could ever hold a bundle of a cluster; place nothing.

    Args:
        python: A ``python`` node of a config, or a :class:`PythonSpec`, that is a uv environment.
        cluster: A ``cluster`` node of a config, or a :class:`ClusterSpec`.
        on_progress: Gets a line of text for each node, and every few seconds in between.

    Returns:
        One record per node: ``state`` is ``built``, or ``ready`` where it was there already; ``seconds``, ``folder``.

    Raises:
        ConfigError: A value breaks a rule, or there is nothing to build.
        ResourceInsufficientError: No node could hold a bundle.
        PythonEnvError: It can't be made on a node; all others are done by then.
    """
    spec = _spec_of(python, PythonSpec, "python")
    plans_to_prefetch([("python", spec)])
    requests = requests_on([("python", _spec_of(cluster, ClusterSpec, "cluster"), spec)], session.look_around())
    tell: Progress = on_progress or logger.info

    def told(row: Prefetched) -> None:
        tell(f"{row.address}: {row.python} {row.state} after {row.seconds:.1f} s, {row.folder or row.error}")

    return prefetch(requests, tell=tell, on_row=told)


def build_worker_group(
    cluster: RayVirtualCluster,
    worker: str | type | RayWorkerBuilder,
    *,
    name: str = "worker",
    kwargs: Mapping[str, Any] | None = None,
    per_worker_kwargs: PerWorker | None = None,
    workers_per_node: int | Sequence[int] | None = None,
    bundle_indices_list: Sequence[tuple[int, Sequence[int]]] | None = None,
    numa: object = None,
    python: object = None,
    env: object = None,
    options: Mapping[str, Any] | None = None,
    nsight: Any = None,
    nsight_workers: Sequence[str] = ("*",),
    nsight_dir: str | os.PathLike[str] | None = None,
    start_timeout_s: float = 300.0,
    on_progress: WorkerProgress | None = None,
    tell: Progress | None = None,
) -> RayWorkerGroup:
    """Bring up one worker per bundle. Use it in a ``with`` statement, or call ``shutdown()``.

    Args:
        cluster: Where the workers sit.
        worker: The class, its import path, or a class decorated by ``ray.remote``.
        name: Of the group.
        kwargs: Of the class's ``__init__``, the same for all.
        per_worker_kwargs: More of them for each: a list by rank, or a callable that gets the worker's record.
        workers_per_node: Fewer workers than bundles, per logical node.
        bundle_indices_list: Explicit bundles; ranks follow this list.
        numa: A ``numa`` node of a config, or a :class:`NumaSpec`; None leaves the workers unbound.
        python: A ``python`` node, or a :class:`PythonSpec`; None is this interpreter.
        env: An ``env`` node, or an :class:`EnvSpec`.
        options: More options of the Ray actors.
        nsight: ``"default"`` or options of ``nsys profile``, which the workers then run under.
        nsight_workers: Patterns of the names of those that do: ``<name>-<logical node>-<bundle>``.
        nsight_dir: Folder of the profiles on the workers' nodes; default: a new one below ``nsight`` in the current folder.
        start_timeout_s: For the whole start, seconds.
        on_progress: Gets (workers up, workers in all).
        tell: Gets a line of text every 5 seconds while the Python of the workers is made ready; default: the log.

    Raises:
        ConfigError, WorkerStartError, BindingError, PythonEnvError: As :class:`RayWorkerGroup` says; nothing stays behind.
    """
    return RayWorkerGroup(
        cluster,
        worker,
        workers_per_node,
        name,
        bundle_indices_list,
        kwargs=kwargs,
        per_worker_kwargs=per_worker_kwargs,
        numa=None if numa is None else _spec_of(numa, NumaSpec, "numa"),
        python=None if python is None else _spec_of(python, PythonSpec, "python"),
        env=None if env is None else _spec_of(env, EnvSpec, "env"),
        options=options,
        nsight=nsight,
        nsight_workers=nsight_workers,
        nsight_dir=nsight_dir,
        start_timeout_s=start_timeout_s,
        on_progress=on_progress,
        tell=tell,
    )
