"""One run of run.py with ``mode=prefetch``: the Python environments are built on the nodes that could need them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from attrs import Factory, define

from rl_cluster.config_files.recipe_spec import RecipeSpec
from rl_cluster.errors import EXIT_OK, ResourceInsufficientError
from rl_cluster.ground.interrupts import Interrupts
from rl_cluster.planning.naming import count_of
from rl_cluster.process.python_build import look_ahead
from rl_cluster.process.python_prefetch import Prefetched, Requests, plans_to_prefetch, prefetch, requests_on, unfinished
from rl_cluster.programs.job import inventory_to_simulate
from rl_cluster.programs.recipe_job import recipe_of, run_alone
from rl_cluster.programs.rehearsal import planned_on, through_recipe, with_rehearsal
from rl_cluster.programs.runs import Run, RunState, connected
from rl_cluster.python_env import resolve_python
from rl_cluster.recipes.recipe_plan import error_of_role
from rl_cluster.schema import ClusterSpec, PythonSpec, RaySpec
from rl_cluster.views.screen import Screen
from rl_cluster.views.table import render_prefetched, render_prefetched_verdict, render_verdict

if TYPE_CHECKING:
    from rl_cluster.connection.session import RaySession, Watch


@define
class PrefetchState(RunState):
    """What a run has come to know."""

    recipe: RecipeSpec | None = None
    requests: Requests = Factory(dict)
    rows: list[Prefetched] = Factory(list)  # as they get done


@define(kw_only=True)
class PrefetchRun(Run):
    """The environments of a cluster's workers, or of a recipe's."""

    state: PrefetchState = Factory(PrefetchState)

    def work(self, interrupts: Interrupts) -> int:
        """Build them."""
        spec, state = self.spec, self.state
        state.recipe = None if spec.recipe is None else recipe_of(spec, self.overrides)
        wanted = [("python", spec.cluster, spec.python)] if state.recipe is None else wanted_by(state.recipe)
        try:
            prefetch_all(wanted, spec.ray, self._open_ray, state, self.screen, interrupts, modules_in=self.modules_in)
        except ResourceInsufficientError as error:
            told = error if state.recipe is None else through_recipe(error_of_role(state.recipe, error), spec.recipe_overrides)
            raise with_rehearsal(told, self.overrides, kind=planned_on(state.ray["kind"], asked=spec.ray.kind)) from error
        return EXIT_OK

    def findings(self) -> dict[str, Any]:
        """What became of each environment on each node."""
        state, spec = self.state, self.spec
        prefetched = unfinished(state.requests, state.rows)
        return {"spec": spec if spec.recipe is None else run_alone(spec), "recipe": state.recipe, "prefetched": prefetched}

    def last_line(self, failed: str | None) -> str:
        """The verdict."""
        rows = unfinished(self.state.requests, self.state.rows)
        states = {row.state for row in rows}
        if failed is not None and ("failed" not in states or "unfinished" in states):
            return render_verdict([], simulated=self.state.simulated, error=failed)
        return render_prefetched_verdict(rows, simulated=self.state.simulated)  # the causes stand in the table and in the error

    def _warn(self, notes: Sequence[str]) -> None:
        self.state.warn(notes, self.screen)

    def _open_ray(self, watch: Watch) -> AbstractContextManager[RaySession]:
        if self.state.recipe is not None:
            from rl_cluster.recipes.recipe import open_recipe_ray

            return open_recipe_ray(self.state.recipe, inventory=self.spec.inventory, warn=self._warn, watch=watch)
        from rl_cluster.connection import session
        from rl_cluster.python_env import disable_rays_uv_hook

        disable_rays_uv_hook()
        ray = self.spec.ray
        simulated = inventory_to_simulate(self.spec) if ray.kind == "simulated" else None
        if simulated is not None:
            self._warn(simulated.notes)
        return session.open_ray(ray, simulated=simulated, watch=watch)


def wanted_by(recipe: RecipeSpec) -> list[tuple[str, ClusterSpec, PythonSpec]]:
    """The Python of each role, with the path of its key and the cluster whose nodes need it."""
    clusters = recipe.clusters
    return [(f"{role.path}.python", clusters[role.owner], role.python or PythonSpec()) for role in recipe.roles.values()]


def prefetch_all(
    wanted: Sequence[tuple[str, ClusterSpec, PythonSpec]],
    ray: RaySpec,
    open_ray: Callable[[Watch], AbstractContextManager[RaySession]],
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
    from rl_cluster.connection import reach

    pythons = [(path, python) for path, _, python in wanted]
    plans_to_prefetch(pythons)
    if reach.starts_here(ray):
        look_ahead([(path, python) for path, python in pythons if resolve_python(python, where=path).needs_build])
    with ExitStack() as held:
        held.callback(interrupts.ending)
        screen.tell("starting a simulated Ray cluster ..." if state.simulated else "connecting to Ray ...")
        state.connected(held.enter_context(connected(open_ray, interrupts, modules_in=modules_in, tell=screen.tell)))
        held.callback(interrupts.ending)
        state.mark("ray")
        from rl_cluster.connection import session

        inventory = session.look_around()
        state.simulated = inventory.simulated
        state.requests = requests_on(wanted, inventory)
        nodes = {node.node_id for on in state.requests.values() for node in on}
        screen.tell(f"building Python environments on {len(nodes)} of {count_of(len(inventory.living), 'machine')} of {inventory.source}")

        def done(row: Prefetched) -> None:
            state.rows.append(row)
            screen.tell(f"{row.address}: {row.python} {row.state} after {row.seconds:.1f} s")

        try:
            prefetch(state.requests, tell=screen.tell, on_row=done)
        finally:
            screen.part("environments", render_prefetched(unfinished(state.requests, state.rows)), simulated=state.simulated)
        state.mark("prefetched")
    state.mark("given_back")
