"""One run of run.py with ``mode=prefetch``: the Python environments are built on the nodes that could need them, and nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import Factory, define

from rl_cluster.conclusion import Conclusion, conduct, error_text
from rl_cluster.errors import EXIT_OK, ResourceInsufficientError, RlClusterError
from rl_cluster.interrupts import Interrupts, without_rays_handler
from rl_cluster.job import inventory_to_simulate, working_in
from rl_cluster.python_prefetch import Prefetched, Requests, plans_to_prefetch, prefetch, requests_on, unfinished
from rl_cluster.recipe_job import recipe_of
from rl_cluster.recipe_spec import RecipeSpec
from rl_cluster.rehearsal import planned_on, with_rehearsal
from rl_cluster.report import build_report, write_report
from rl_cluster.run_state import RunFiles, RunState
from rl_cluster.schema import ClusterSpec, PythonSpec, RunSpec
from rl_cluster.screen import Screen
from rl_cluster.table import render_prefetched, render_prefetched_verdict, render_verdict

if TYPE_CHECKING:
    from rl_cluster.session import RaySession


@define
class PrefetchState(RunState):
    """What a run has come to know."""

    recipe: RecipeSpec | None = None
    requests: Requests = Factory(dict)
    rows: list[Prefetched] = Factory(list)  # as they get done


def run(
    spec: RunSpec,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    full_error: bool = False,
    modules_in: str | os.PathLike[str] | None = None,
) -> int:
    """Build what the spec's or its recipe's workers would run in; arguments and exit codes are those of :func:`rl_cluster.job.run`."""
    files, screen, state = RunFiles(folder), Screen(), PrefetchState(simulated=spec.ray.kind == "simulated")

    def work(interrupts: Interrupts) -> int:
        state.recipe = None if spec.recipe is None else recipe_of(spec, overrides)
        wanted = [("python", spec.cluster, spec.python)] if state.recipe is None else wanted_by(state.recipe)
        try:
            prefetch_all(wanted, lambda: _open(spec, state.recipe), state, screen, interrupts, modules_in=modules_in or os.curdir)
        except ResourceInsufficientError as error:
            raise with_rehearsal(error, overrides, kind=planned_on(state.ray["kind"], asked=spec.ray.kind)) from error
        return EXIT_OK

    conclusion = Conclusion(
        write=lambda error: _write(files, state, spec, error),
        last_line=lambda error: _last_line(state, error),
    )
    return conduct(work, files, screen, conclusion, full_error=full_error)


def wanted_by(recipe: RecipeSpec) -> list[tuple[str, ClusterSpec, PythonSpec]]:
    """The Python of each role, with the path of its key and the cluster whose nodes need it."""
    clusters = recipe.clusters
    return [(f"{role.path}.python", clusters[role.owner], role.python or PythonSpec()) for role in recipe.roles.values()]


def prefetch_all(
    wanted: Sequence[tuple[str, ClusterSpec, PythonSpec]],
    open_ray: Callable[[], contextlib.AbstractContextManager[RaySession]],
    state: PrefetchState,
    screen: Screen,
    interrupts: Interrupts,
    *,
    modules_in: str | os.PathLike[str],
) -> None:
    """Build what is wanted, and show what became of it, also of an attempt that fails.

    Raises:
        ConfigError: There is nothing to build, said before Ray is started.
        ResourceInsufficientError: No node could hold a bundle of a cluster.
        PythonEnvError: A node failed; the others are done by then.
    """
    plans_to_prefetch([(path, python) for path, _, python in wanted])
    with contextlib.ExitStack() as held:
        held.callback(interrupts.ending)
        screen.tell("starting a simulated Ray cluster ..." if state.simulated else "connecting to Ray ...")
        with without_rays_handler(), working_in(modules_in):
            ray_session = held.enter_context(open_ray())
        held.callback(interrupts.ending)
        state.connected(ray_session)
        state.mark("ray")
        from rl_cluster import session

        inventory = session.look_around()
        state.simulated = inventory.simulated
        state.requests = requests_on([(cluster, python) for _, cluster, python in wanted], inventory)
        nodes = {node.node_id for on in state.requests.values() for node in on}
        screen.tell(f"building Python environments on {len(nodes)} of {len(inventory.nodes)} machines of {inventory.source}")

        def done(row: Prefetched) -> None:
            state.rows.append(row)
            screen.tell(f"{row.address}: {row.python} {row.state} after {row.seconds:.1f} s")

        try:
            prefetch(state.requests, tell=screen.tell, on_row=done)
        finally:
            screen.part("environments", render_prefetched(unfinished(state.requests, state.rows)), simulated=state.simulated)
        state.mark("prefetched")
    state.mark("given_back")


def _open(spec: RunSpec, recipe: RecipeSpec | None) -> contextlib.AbstractContextManager[RaySession]:
    if recipe is not None:
        from rl_cluster.recipe import open_recipe_ray

        return open_recipe_ray(recipe)
    from rl_cluster import session
    from rl_cluster.python_env import disable_rays_uv_hook

    disable_rays_uv_hook()
    return session.open_ray(spec.ray, simulated=inventory_to_simulate(spec) if spec.ray.kind == "simulated" else None)


def _write(files: RunFiles, state: PrefetchState, spec: RunSpec, error: BaseException | None) -> None:
    state.mark("total")
    report = build_report(
        mode=spec.mode,
        spec=spec,
        recipe=state.recipe,
        ray=state.ray,
        simulated=state.simulated,
        started=state.started,
        timings_s=state.timings,
        warnings=state.warnings,
        prefetched=unfinished(state.requests, state.rows),
        error=None if error is None else error if isinstance(error, RlClusterError) else error_text(error),
    )
    write_report(files.report, report)


def _last_line(state: PrefetchState, error: BaseException | None) -> str:
    if error is not None:
        return render_verdict([], simulated=state.simulated, error=error_text(error).splitlines()[0])
    return render_prefetched_verdict(state.rows, simulated=state.simulated)
