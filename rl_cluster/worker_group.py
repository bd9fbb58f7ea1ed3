"""RayWorkerGroup: the workers that run one class, ranked, on the bundles of one cluster."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import ray
from ray._private import state as ray_state
from ray.actor import ActorHandle

from rl_cluster.errors import BindingError, ConfigError, RlClusterError, WorkerError, WorkerLostError
from rl_cluster.ground.arguments import check_names, check_per_worker, check_seconds, check_sequence, check_text, check_whole, own_arguments
from rl_cluster.plan import PlacedBundle
from rl_cluster.process.node_work import let_go
from rl_cluster.process.nsight import END_S, NodeNsys, ProfileRecord
from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import EnvSpec, NumaSpec, PythonSpec
from rl_cluster.virtual_cluster import RayVirtualCluster
from rl_cluster.workers import worker_setup
from rl_cluster.workers.actors import ActorRecipe, RayWorkerBuilder, Seat, made_by, merge_options, start_maker
from rl_cluster.workers.bring_up import Progress, bring_up, cause_text, end
from rl_cluster.workers.bundle_choice import bundle_share, choose_bundles
from rl_cluster.workers.profiles import END_AFTER_ERROR_S, Asked, Profiles, ask_for_profiles
from rl_cluster.workers.target_import import import_target
from rl_cluster.workers.worker_logs import last_words

PerWorker = Sequence[Mapping[str, Any]] | Callable[[WorkerRecord], Mapping[str, Any]]
__all__ = ["PerWorker", "RayWorkerBuilder", "RayWorkerGroup"]

CHECK_EVERY_S = 2.0


class RayWorkerGroup:
    """Workers of one class on the bundles of a cluster, one process each, with ranks 0..world_size-1.

    The handles in ``workers`` are real Ray actor handles of the user's class. Rank variables (RANK, LOCAL_RANK, WORLD_SIZE,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR, MASTER_PORT) are in the environment when ``__init__`` runs; the NUMA binding and all
    other variables are in force before the module of the class is imported.

    Args:
        cluster: Where the workers sit.
        remote_worker_builder: The class, its import path, a class decorated by ``ray.remote``, or a :class:`RayWorkerBuilder`.
        workers_per_node: Workers on each non-empty logical node (or a list of them); default: one per bundle.
        name_prefix: Of the workers' names, and the group's name in pictures.
        bundle_indices_list: Explicit ``(index of the placement group, [bundle indices])`` pairs; ranks then follow this list.
        args: Positional arguments of ``__init__``, the same for all.
        kwargs: Keyword arguments of ``__init__``, the same for all.
        per_worker_kwargs: More of them for each worker: a list by rank, or a callable that gets the worker's record.
        env: What of the driver's environment the workers see.
        numa: What each worker binds itself to; None leaves it alone.
        python: Which Python runs in the workers.
        options: More options of the Ray actors (``max_concurrency``, ``concurrency_groups``, ...).
        nsight: ``default`` or options of ``nsys profile``, which the workers then run under; Ray's own ``runtime_env={"nsight": ...}`` in
            ``options`` means the same.
        nsight_workers: Patterns of the names (``<name_prefix>-<logical node>-<bundle>``) of those that do.
        nsight_dir: Folder of the profiles on the workers' nodes; default: a new one below ``nsight`` in the current folder.
        start_timeout_s: For the whole start.
        on_progress: Gets (workers up, workers in all).
        tell: Gets a line of text every 5 seconds while the Python of the workers is made ready; default: the log.

    Raises:
        ConfigError: A value breaks a rule.
        WorkerStartError: A worker failed in its start; says which one, where and why. The others have been ended.
        BindingError: ``numa.strict`` is set and a worker is not wholly bound. All have been ended.
    """

    def __init__(
        self,
        cluster: RayVirtualCluster,
        remote_worker_builder: str | type | RayWorkerBuilder,
        workers_per_node: int | Sequence[int] | None = None,
        name_prefix: str = "worker",
        bundle_indices_list: Sequence[tuple[int, Sequence[int]]] | None = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        per_worker_kwargs: PerWorker | None = None,
        env: EnvSpec | None = None,
        numa: NumaSpec | None = None,
        python: PythonSpec | None = None,
        options: Mapping[str, Any] | None = None,
        nsight: Any = None,
        nsight_workers: Sequence[str] = ("*",),
        nsight_dir: str | os.PathLike[str] | None = None,
        start_timeout_s: float = 300.0,
        on_progress: Progress | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.cluster, self.name_prefix = cluster, name_prefix
        self._actors: tuple[ActorHandle, ...] = ()
        self._bundles: list[PlacedBundle] = []
        self._maker: ActorHandle | None = None
        self._profiles: Profiles | None = None
        self._ended = False
        _check_arguments(cluster, name_prefix, args, kwargs, options, start_timeout_s)
        if isinstance(remote_worker_builder, RayWorkerBuilder):
            args, kwargs = (*remote_worker_builder.args, *args), {**remote_worker_builder.kwargs, **(kwargs or {})}
            remote_worker_builder = remote_worker_builder.ray_actor_class_fqn
        bundles = choose_bundles(cluster, workers_per_node, bundle_indices_list)
        check_per_worker("per_worker_kwargs", per_worker_kwargs, len(bundles))
        names = [f"{name_prefix}-{bundle.node_idx}-{bundle.bundle_idx}" for bundle in bundles]
        options, asked, nsight_seen = ask_for_profiles(remote_worker_builder, options or {}, nsight, nsight_workers, nsight_dir, names)

        def init_arguments(record: WorkerRecord) -> tuple[Sequence[Any], Mapping[str, Any]]:
            return args, {**(kwargs or {}), **own_arguments("per_worker_kwargs", per_worker_kwargs, record)}

        cluster.claim(bundles)
        self._bundles = bundles
        try:
            share = bundle_share(cluster)
            environment = worker_setup.choose_environment(env or EnvSpec(), cpus=share["num_cpus"])
            nodes = [bundle.node_id for bundle in bundles]
            self.pythons = pythons = worker_setup.set_up_python(python or PythonSpec(), nodes, environment, tell)
            ready = asked.profilers(dict(zip(names, nodes, strict=True)), tell) if asked else {}
            common, own_binders = worker_setup.choose_binders(numa, cluster, bundles)
            recipe = ActorRecipe(remote_worker_builder, environment.late, common, nsight_seen)
            seats = []
            for name, bundle, binder in zip(names, bundles, own_binders, strict=True):
                group, index = cluster.bundle_address(bundle)
                runtime_env = pythons[bundle.node_id].runtime_env(environment)
                mine = merge_options(share, options, {"runtime_env": runtime_env} if runtime_env else {})
                profiler = asked.profiler(name, ready.get(bundle.node_id)) if asked else None
                seats.append(Seat(bundle, group, index, name, mine, binder, profiler=profiler))
            up = bring_up(
                self._creator(recipe, seats),
                seats,
                cluster.layout,
                init_arguments=init_arguments,
                port_range=(cluster.spec.master_port_range_low, cluster.spec.master_port_range_high),
                keep_order=bundle_indices_list is not None,
                timeout_s=start_timeout_s,
                on_progress=on_progress,
            )
            self._actors, self.records = up.actors, up.records
            self.master_address, self.master_port = up.master_address, up.master_port
            self._profiles = self._profiled(asked, ready) if asked else None
            if numa is not None and numa.strict:
                self._check_bound()
        except BaseException:
            self.shutdown(profile_timeout_s=END_AFTER_ERROR_S)
            raise

    def _creator(self, recipe: ActorRecipe, seats: Sequence[Seat]) -> Callable[[], list[ActorHandle]]:
        """How the actors are created: by the driver; by a maker in their own Python where only that one can import the class."""
        try:
            import_target(recipe.target)
        except ConfigError:
            if not isinstance(recipe.target, str) or not seats or not seats[0].options.get("runtime_env", {}).get("py_executable"):
                raise
            self._maker = maker = start_maker(recipe, seats[0])
            return lambda: made_by(maker, recipe, seats)
        return lambda: recipe.create(seats)

    def _profiled(self, asked: Asked, ready: Mapping[str, NodeNsys]) -> Profiles:
        ranks = [record.rank for record in self.records if record.name in asked.outputs]
        found = self._wait({self._call(rank, "_rl_cluster_processes", (), {}): rank for rank in ranks}, "_rl_cluster_processes", None)
        return Profiles(asked, ready, [(self.records[rank], self._actors[rank], answer) for rank, answer in zip(ranks, found, strict=True)])

    # --- what it is ---

    @property
    def workers(self) -> list[ActorHandle]:
        """Actor handles by rank."""
        return list(self._actors)

    @property
    def world_size(self) -> int:
        """Workers in all."""
        return len(self._actors)

    @property
    def worker_metadata(self) -> list[dict[str, Any]]:
        """One dict per rank: node_idx, local_rank, global_rank, bundle_idx, node_id, address, gpu_ids, pid, name."""
        names = ("node_idx", "local_rank", "bundle_idx", "node_rank", "node_id", "address", "gpu_ids", "pid", "name")
        return [{"global_rank": record.rank, **{name: getattr(record, name) for name in names}} for record in self.records]

    @property
    def profiles(self) -> tuple[ProfileRecord, ...]:
        """The profiled workers; what nsys wrote of each is known when it has ended."""
        return self._profiles.records if self._profiles else ()

    # --- calls ---

    def run_all(
        self, method: str, /, *args: Any, per_worker: PerWorker | None = None, timeout_s: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method on every worker and wait for all results.

        Args:
            method: Name of a method of the user's class.
            args: For every worker.
            per_worker: More keyword arguments for each: a list by rank, or a callable that gets the worker's record.
            timeout_s: None waits as long as it takes (a lost worker or node ends the wait all the same).
            kwargs: For every worker.

        Returns:
            Results by rank.

        Raises:
            WorkerError: A worker raised: the first one ends the wait (the others may wait for it), its exception is ``__cause__``. Or
                the method takes other arguments.
            WorkerLostError: A worker's process or node is gone.
            TimeoutError: Not all answered in time.
        """
        self._check_call(method, timeout_s)
        check_per_worker("per_worker", per_worker, self.world_size)
        refs: list[Any] = []
        for record in self.records:
            refs.append(self._call(record.rank, method, args, {**kwargs, **own_arguments("per_worker", per_worker, record)}))
        return self._wait({ref: rank for rank, ref in enumerate(refs)}, method, timeout_s)

    def run_rank(self, rank: int, method: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method on one worker and wait; errors as in :meth:`run_all`."""
        self._check_call(method, timeout_s)
        rank = check_whole("rank", rank)
        return self._wait({self._call(rank, method, args, kwargs): rank}, method, timeout_s)[0]

    def verify_bindings(self) -> list[Any]:
        """Look again, in every worker, at what the kernel holds now. One report per rank (None where nothing was to be bound)."""
        return self.run_all("_rl_cluster_verify")

    def _check_call(self, method: object, timeout_s: object) -> None:
        if self._ended:
            raise RlClusterError(f"{self.name_prefix}: the worker group must be up, but has been shut down. Fix: build it again")
        check_text("method", method)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)

    def _call(self, rank: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The reference of a call; Ray holds the arguments against the method's signature here, before it sends them."""
        found = self._method(rank, method)
        try:
            ref = found.remote(*args, **kwargs)
        except TypeError as error:
            record = self.records[rank]
            reason = " ".join(str(error).split())
            raise WorkerError(
                f"{self.name_prefix}.{method}: rank {rank} on {record.address} can't be called with these arguments ({reason}). "
                "Fix: give those that the method takes",
                rank=rank,
                node=record.address,
                cause_text=reason,
            ) from error
        if isinstance(ref, ray.ObjectRefGenerator):
            with contextlib.suppress(Exception):
                ray.cancel(ref)
            raise ConfigError(
                f"{self.name_prefix}.{method}: must return its result, not yield it. "
                "Fix: return a list, or read the stream of one handle of group.workers"
            )
        return ref

    def _method(self, rank: int, method: str) -> Any:
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"rank: must be between 0 and {self.world_size - 1}, got {rank}. Fix: name a rank of this group")
        found = getattr(self._actors[rank], method, None)
        if found is None:
            raise ConfigError(f"worker.method: the class has no method {method!r}. Fix: name one of its public methods")
        return found

    def _wait(self, ranks: Mapping[Any, int], method: str, timeout_s: float | None) -> list[Any]:
        try:
            return self._results(ranks, method, timeout_s)
        except BaseException:
            let_go(list(ranks))
            raise

    def _results(self, ranks: Mapping[Any, int], method: str, timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        waiting = list(ranks)
        while waiting:
            left = CHECK_EVERY_S if deadline is None else min(CHECK_EVERY_S, deadline - time.monotonic())
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
            for ref in ready:
                results[ranks[ref]] = self._result(ref, ranks[ref], method)
            if not ready:
                self._check_alive()
                if deadline is not None and time.monotonic() >= deadline:
                    late = sorted(ranks[ref] for ref in waiting)
                    raise TimeoutError(
                        f"{self.name_prefix}.{method}: no answer from rank {', '.join(map(str, late))} within {timeout_s:g} s"
                    )
        return [results[rank] for rank in sorted(results)]

    def _result(self, ref: Any, rank: int, method: str) -> Any:
        record = self.records[rank]
        try:
            return ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(
                f"{self.name_prefix}.{method}: rank {rank} on {record.address} raised {cause_text(error)}",
                rank=rank,
                node=record.address,
                cause_text=cause_text(error),
            ) from error
        except (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError) as error:
            self._check_alive()
            raise WorkerLostError(
                f"{self.name_prefix}: the worker of rank {rank} on {record.address} (logical node {record.node_idx}, pid {record.pid}) "
                f"is gone: {cause_text(error)}. Fix: build the group again{last_words(record.node_id, record.pid)}",
                ranks=(rank,),
                node_idx=[record.node_idx],
                node=[record.address],
            ) from error

    def _check_alive(self) -> None:
        try:
            self.cluster.check_alive()
        except WorkerLostError as lost:
            ranks = tuple(record.rank for record in self.records if record.node_idx in lost.node_idx and record.address in lost.node)
            raise WorkerLostError(f"{lost.message} (ranks {', '.join(map(str, ranks))})", **{**lost.facts, "ranks": ranks}) from None

    def check_alive(self) -> None:
        """Ask Ray whether every worker's process and node are still there, without disturbing the workers.

        Raises:
            WorkerLostError: One is gone; says which ranks.
        """
        self._check_alive()
        states = ray_state.actors()
        gone = [
            record
            for record, actor in zip(self.records, self._actors, strict=True)
            if states.get(actor._actor_id.hex(), {}).get("State") == "DEAD"
        ]
        if gone:
            names = ", ".join(f"rank {record.rank} on {record.address} (pid {record.pid})" for record in gone)
            raise WorkerLostError(
                f"{self.name_prefix}: the worker of {names} is gone. Fix: build the group again{last_words(gone[0].node_id, gone[0].pid)}",
                ranks=tuple(record.rank for record in gone),
                node_idx=sorted({record.node_idx for record in gone}),
                node=sorted({record.address for record in gone}),
            )

    def _check_bound(self) -> None:
        from rl_cluster.numa.bind import raise_if_not_bound

        for record in self.records:
            if record.binding is None:
                raise BindingError(f"numa.strict: rank {record.rank} on {record.address} sent no binding report", rank=record.rank)
            raise_if_not_bound(record.binding, rank=record.rank, node=record.address)

    # --- the end ---

    def end_profiled(self, *, timeout_s: float = END_S) -> tuple[ProfileRecord, ...]:
        """End the profiled workers in order, before all others, and wait until nsys has written; :meth:`shutdown` does it, too.

        Args:
            timeout_s: For both together, seconds; a worker that is still busy after half of it is ended hard.

        Returns:
            What was written of each, and why not where it was not.
        """
        if self._profiles:
            self._profiles.end(timeout_s)
        return self.profiles

    def shutdown(self, *, cleanup_method: str | None = None, timeout_s: float = 30.0, profile_timeout_s: float = END_S) -> bool:
        """End all workers. Idempotent.

        Args:
            cleanup_method: Called on every worker first (what it raises is not in the way of the end).
            timeout_s: How long the cleanup may take, seconds.
            profile_timeout_s: As in :meth:`end_profiled`.
        """
        actors, self._actors, self._ended = self._actors, (), True
        try:
            if cleanup_method is not None and ray.is_initialized() and actors:
                with contextlib.suppress(Exception):
                    ray.wait([getattr(actor, cleanup_method).remote() for actor in actors], num_returns=len(actors), timeout=timeout_s)
            self.end_profiled(timeout_s=profile_timeout_s)
        finally:
            end(actors if self._maker is None else [*actors, self._maker])
            self._maker = None
            bundles, self._bundles = self._bundles, []
            self.cluster.unclaim(bundles)
        return True

    def __enter__(self) -> RayWorkerGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown(profile_timeout_s=END_S if error is None else END_AFTER_ERROR_S)


def _check_arguments(cluster: object, name_prefix: object, args: object, kwargs: object, options: object, start_timeout_s: object) -> None:
    if not isinstance(cluster, RayVirtualCluster):
        raise ConfigError(f"cluster: must be a RayVirtualCluster, got {cluster!r}. Fix: build_cluster(...) makes one")
    check_text("name", name_prefix)
    check_sequence("args", args)
    check_names("kwargs", {} if kwargs is None else kwargs)
    check_names("options", {} if options is None else options)
    check_seconds("start_timeout_s", start_timeout_s)
