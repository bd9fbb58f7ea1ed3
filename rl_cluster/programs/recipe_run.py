"""A recipe of one's own as a program: one call around the training function, with plans, signals, errors and exit codes in order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.errors import EXIT_OK, ClusterUnreachableError, ConfigError, ResourceInsufficientError, RlClusterError
from rl_cluster.ground.interrupts import Interrupts, last_words_of, orderly_interrupts
from rl_cluster.ground.rules import OneOf, RuleBroken
from rl_cluster.programs.rehearsal import machines_of, with_kind
from rl_cluster.programs.runs import connected, looking
from rl_cluster.recipes.recipe_plan import build_recipe_picture, check_seats
from rl_cluster.recipes.recipe_preview import check_this_machine, plan_on, planned_line
from rl_cluster.schema import MODES, RaySpec
from rl_cluster.views.screen import CLOSED, Screen, ready_streams, say, unshown_error

if TYPE_CHECKING:
    from rl_cluster.connection.session import RaySession, Watch
    from rl_cluster.recipes.recipe import Recipe

__all__ = ["run_recipe"]


def run_recipe(
    config: object,
    train: Callable[[Recipe], object],
    *,
    mode: str | None = None,
    inventory: str | None = None,
    modules_in: str | os.PathLike[str] | None = None,
) -> int:
    """Build what a recipe declares, run a training function on it, give everything back. For the body of a ``@hydra.main`` function.

    With mode ``plan`` the layout is drawn and nothing is created; with mode ``prefetch`` the roles' Python environments are built, no more.
    A problem of the config or of the resources is told in its own lines on standard error; what ``train`` itself raises goes on to the
    caller, after everything was given back.

    Args:
        config: The whole config of the recipe.
        train: Gets the running :class:`Recipe`. It may return an exit code, or False for 4; all else is 0.
        mode: ``up``, ``plan`` or ``prefetch``; default: the config's key ``mode``, else ``up``.
        inventory: With mode ``plan``, or a simulated Ray: a file that describes the machines; default: the config's key ``inventory``.
        modules_in: Folder where workers look for their modules, beside that of the program itself; default: the current one.

    Returns:
        The exit code: 0 done, 1 bad config, 3 not enough resources, 4 a worker or a check failed, 130 Ctrl-C, 143 SIGTERM.
    """
    is_open, screen = ready_streams(), Screen(logs=False)  # the log is the host's
    with orderly_interrupts() as interrupts:
        interrupts.when_stuck(lambda error, why: say(last_words_of(error, why)))
        recipe: RecipeSpec | None = None
        try:
            mode, inventory = _mode(config, mode, inventory)
            recipe = recipe_from_config(config)
            if inventory is not None and mode != "plan" and (recipe.ray or RaySpec()).kind != "simulated":
                fix = "write mode=plan, or ray=simulated"
                raise ConfigError(RuleBroken(f"must be left out with mode {mode}", inventory, fix=fix).line("inventory"))
            if mode == "plan":
                plan = plan_on(recipe, inventory=inventory, connected=lambda ray: looking(ray, interrupts, tell=say))
                screen.grid(build_recipe_picture(plan))
                screen.show(planned_line(plan))
                _check_shown(screen, is_open)
                return EXIT_OK
            check_seats(recipe)  # before Ray is imported
            if mode == "prefetch":
                _prefetch(recipe, screen, interrupts, modules_in or os.curdir, inventory)
                _check_shown(screen, is_open)
                return EXIT_OK
            return _up(recipe, train, interrupts, modules_in or os.curdir, inventory)
        except RlClusterError as error:
            interrupts.ending()
            if isinstance(error, ResourceInsufficientError) and recipe is not None:
                with contextlib.suppress(ClusterUnreachableError):  # it has gone meanwhile
                    error = with_kind(error, kind=machines_of(recipe.ray or RaySpec(), inventory))
            say(str(error))
            return error.exit_code
        except KeyboardInterrupt as stop:
            interrupts.ending()
            interrupted = interrupts.named(stop)
            say(f"interrupted by {interrupted.shown}; everything was given back")
            return interrupted.exit_code


def _prefetch(
    recipe: RecipeSpec, screen: Screen, interrupts: Interrupts, modules_in: str | os.PathLike[str], inventory: str | None
) -> None:
    from rl_cluster.programs.prefetch_job import PrefetchState, prefetch_all, wanted_by
    from rl_cluster.recipes.recipe import open_recipe_ray
    from rl_cluster.views.table import render_prefetched_verdict

    state = PrefetchState(simulated=(recipe.ray or RaySpec()).kind == "simulated")

    def open_ray(watch: Watch) -> contextlib.AbstractContextManager[RaySession]:
        return open_recipe_ray(recipe, inventory=inventory, warn=lambda notes: state.warn(notes, screen), watch=watch)

    prefetch_all(wanted_by(recipe), recipe.ray or RaySpec(), open_ray, state, screen, interrupts, modules_in=modules_in)
    screen.show(render_prefetched_verdict(state.rows, simulated=state.simulated))


def _check_shown(screen: Screen, is_open: bool) -> None:
    if screen.unshown is not None or not is_open:
        raise unshown_error(screen.unshown or CLOSED)


def _up(
    recipe: RecipeSpec,
    train: Callable[[Recipe], object],
    interrupts: Interrupts,
    modules_in: str | os.PathLike[str],
    inventory: str | None,
) -> int:
    from rl_cluster.recipes.recipe import build_recipe, check_recipe, open_recipe_ray

    check_recipe(recipe)
    check_this_machine(recipe)
    with contextlib.ExitStack() as held:
        held.callback(interrupts.ending)
        opened = connected(
            lambda watch: open_recipe_ray(recipe, inventory=inventory, warn=_warn, watch=watch), interrupts, modules_in=modules_in
        )
        ray_session = held.enter_context(opened)
        held.callback(interrupts.ending)
        built = held.enter_context(build_recipe(recipe, ray_session=ray_session, on_progress=say))
        held.callback(interrupts.ending)  # called before the giving back begins
        answer = train(built)
        for group in built.groups.values():
            group.end_profiled()  # while there is time for it: the giving back has 30 s
    if isinstance(answer, bool) or not isinstance(answer, int):
        return RlClusterError.exit_code if answer is False else EXIT_OK
    return answer


def _warn(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"warning: {note}")


def _mode(config: object, mode: str | None, inventory: str | None) -> tuple[str, str | None]:
    """What was asked by argument, else by the config's own keys."""
    keys: Mapping[Any, Any] = config if isinstance(config, Mapping) else {}
    mode = str(keys.get("mode") or "up") if mode is None else mode
    inventory = keys.get("inventory") if inventory is None else inventory
    try:
        OneOf(MODES)(mode)
    except RuleBroken as broken:
        raise ConfigError(broken.line("mode")) from None
    return mode, None if inventory is None else str(inventory)
