"""A recipe becomes running parts: all clusters placed together, all or nothing, and the worker groups on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import ray
from attrs import frozen

from rl_cluster.builders import build_clusters, build_worker_group, numa_on
from rl_cluster.config_files.recipe_spec import RecipeSpec, RoleSpec, recipe_from_config
from rl_cluster.connection import session
from rl_cluster.connection.session import RaySession
from rl_cluster.errors import ConfigError, PythonEnvError, ResourceInsufficientError
from rl_cluster.grid import render_grid
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.plan import close_spec
from rl_cluster.planning.layout import Shortfall, error_at
from rl_cluster.process.python_build import named
from rl_cluster.process.records import WorkerRecord
from rl_cluster.python_env import disable_rays_uv_hook
from rl_cluster.recipes.recipe_plan import RecipePlan, build_recipe_picture, check_seats, seat_roles
from rl_cluster.recipes.recipe_preview import check_this_machine, nodes_to_simulate
from rl_cluster.schema import NumaSpec, RaySpec, WorkerSpec
from rl_cluster.views.picture import Picture
from rl_cluster.virtual_cluster import RayVirtualCluster
from rl_cluster.worker_group import RayWorkerGroup
from rl_cluster.workers.target_check import check_target

__all__ = ["Recipe", "build_recipe", "check_recipe", "open_recipe_ray", "worker_target"]

CHECK_WORKER = "rl_cluster.programs.check_worker.CheckWorker"

Progress = Callable[[str], None]


@frozen
class Recipe:
    """A recipe that is up."""

    spec: RecipeSpec
    plan: RecipePlan  # as placed
    clusters: Mapping[str, RayVirtualCluster]  # by role; roles on one cluster have the same one
    groups: Mapping[str, RayWorkerGroup]  # of the roles that name a worker
    ray: RaySession

    def bundle_indices_list(self, role: str) -> list[tuple[int, list[int]]]:
        """The bundles of a role for the worker group of a framework, one pair per worker: see :class:`RolePlan`."""
        return self.plan.roles[role].bundle_indices_list

    def engine_slices(self, role: str, k: int) -> list[tuple[int, list[int]]]:
        """Tied groups of ``k`` bundles of a role, each on one machine: see :class:`RolePlan`."""
        return self.plan.roles[role].engine_slices(k)

    def numa(self, role: str) -> NumaSpec | None:
        """What the workers of a role bind themselves to, for frameworks that make their own actors: give it to ``build_binding``."""
        spec = self.spec.roles[role].numa
        return None if spec is None else numa_on(spec, self.ray)

    def picture(self, groups: Mapping[str, Sequence[WorkerRecord]] | None = None) -> Picture:
        """Every role on every GPU, for ``render_grid`` and ``render_svg``; a role without running workers is drawn as planned."""
        return build_recipe_picture(self.plan, groups or {name: group.records for name, group in self.groups.items()})

    def print_all_worker_groups(self) -> None:
        """Print every role on every GPU."""
        print(render_grid(self.picture()), flush=True)


@contextlib.contextmanager
def build_recipe(
    config: object,
    *,
    ray_session: RaySession | None = None,
    nsight_dir: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Iterator[Recipe]:
    """Everything that a recipe declares: planned together, placed all or nothing, its workers brought up; given back on every way out.

    Where this process is not connected to Ray, the one that the recipe's ``ray`` node means is opened, and given back at the end.

    Args:
        config: The whole config of a recipe, or a :class:`RecipeSpec`.
        ray_session: What ``open_recipe_ray`` yielded, where the caller opened Ray.
        nsight_dir: Folder of the profiles on the workers' nodes; default: a new one below ``nsight`` in the current folder.
        on_progress: Gets a line of text for each step.

    Yields:
        The clusters and worker groups by the names of their roles.

    Raises:
        ConfigError: The config breaks rules (all of them are listed), roles overlap more than declared, a worker's class is not there.
        ResourceInsufficientError: It does not fit; says which role's cluster; nothing stays behind.
        WorkerStartError, BindingError, PythonEnvError: A worker does not come up; nothing stays behind.
    """
    recipe = recipe_from_config(config)
    check_recipe(recipe)
    say: Progress = on_progress or (lambda _: None)
    with contextlib.ExitStack() as held:
        if ray_session is None:
            check_this_machine(recipe)
            ray_session = held.enter_context(open_recipe_ray(recipe))
        here = session.look_around()
        specs = {name: close_spec(spec, here) for name, spec in recipe.clusters.items()}
        try:
            owned = held.enter_context(build_clusters(specs, on_progress=on_progress))
        except ResourceInsufficientError as error:
            short = error.facts.get("shortfall")
            name = short.name if isinstance(short, Shortfall) else ""
            raise error_at(error, name, f"{recipe.roles[name].path}.cluster" if name else "") from None
        plan = seat_roles(recipe, {name: cluster.layout for name, cluster in owned.items()})
        for warning in dict.fromkeys(f"{name}: {text}" for name, layout in plan.layouts.items() for text in layout.warnings):
            say(f"warning: {warning}")
        groups: dict[str, RayWorkerGroup] = {}
        for name, seats in plan.roles.items():
            role = recipe.roles[name]
            if role.worker is None:
                continue
            try:
                groups[name] = held.enter_context(
                    build_worker_group(
                        owned[role.owner],
                        worker_target(role.worker),
                        name=role.group_name,
                        kwargs=role.worker.kwargs,
                        bundle_indices_list=None if seats.is_whole else seats.bundle_indices_list,
                        numa=None if role.numa is None else numa_on(role.numa, ray_session),
                        python=role.python,
                        env=role.env,
                        nsight=role.worker.nsight,
                        nsight_workers=role.worker.nsight_workers,
                        nsight_dir=nsight_dir,
                        start_timeout_s=role.worker.start_timeout_s,
                        tell=on_progress and partial(_say_of, on_progress, name),
                    )
                )
            except PythonEnvError as error:
                raise named(error, f"{role.path}.") from error
            say(f"{name}: {len(seats.bundles)} of {len(seats.bundles)} workers up")
        clusters = {name: owned[role.owner] for name, role in recipe.roles.items()}
        yield Recipe(spec=recipe, plan=plan, clusters=clusters, groups=groups, ray=ray_session)


def _say_of(say: Progress, name: str, line: str) -> None:
    say(f"{name}: {line}")


def worker_target(worker: WorkerSpec) -> str:
    """The class of a role's workers: its own, else the built-in check."""
    return worker.target or CHECK_WORKER


def check_recipe(recipe: RecipeSpec) -> None:
    """Everything that can be said before a Ray is there: overlaps, and whether workers that run this interpreter can be what is asked.

    Raises:
        ConfigError: With all problems.
    """
    check_seats(recipe)
    problems = [problem for role in recipe.roles.values() for problem in _target_problems(role)]
    if problems:
        raise ConfigError(problems=problems)


def _target_problems(role: RoleSpec) -> list[str]:
    if role.python is not None and role.python.prefetch:
        fix = "leave it out, or write mode=prefetch, which builds the environments of all roles"
        return [RuleBroken("must be left out where workers are to run", True, fix=fix).line(f"{role.path}.python.prefetch")]
    if role.worker is None or (role.python is not None and role.python.executable != "SYSTEM"):
        return []
    try:
        check_target(role.worker)
    except ConfigError as error:
        return [f"{role.path}.{problem}" for problem in error.problems]
    return []


@contextlib.contextmanager
def open_recipe_ray(
    recipe: RecipeSpec,
    *,
    inventory: str | None = None,
    warn: Callable[[Sequence[str]], object] | None = None,
    watch: session.Watch = session.unwatched,
) -> Iterator[RaySession]:
    """Connect to the Ray that the recipe's ``ray`` node means (default: the one in reach, else a local one); one that is connected is used.

    Args:
        recipe: What is to run on it.
        inventory: For a simulated one: a file that describes its machines.
        warn: Gets what of the file is not started, a sentence each.
        watch: See :func:`rl_cluster.connection.session.open_ray`.

    Yields:
        The session, to be handed to :func:`build_recipe`.
    """
    spec = recipe.ray or RaySpec()
    simulated = None
    if not ray.is_initialized():
        disable_rays_uv_hook()
        simulated = nodes_to_simulate(recipe, inventory) if spec.kind == "simulated" else None
    if simulated is not None and warn is not None:
        warn(simulated.notes)
    with session.open_ray(spec, simulated=simulated, watch=watch) as opened:
        yield opened
