"""What a recipe would look like, without building it. Ray is imported only where a Ray has to be asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.inventory import Inventory
from rl_cluster.planning.layout import Shortfall
from rl_cluster.planning.naming import count_of
from rl_cluster.planning.simulated_inventory import inventory_of_file, simulated_inventory_for_all
from rl_cluster.process.python_build import look_ahead
from rl_cluster.recipes.recipe_plan import RecipePlan, check_seats, plan_recipe, shortfall_error
from rl_cluster.schema import PythonSpec, RaySpec

Connected = Callable[[RaySpec], AbstractContextManager[object]]

__all__ = ["check_this_machine", "inventory_to_plan_on", "nodes_to_simulate", "plan_on", "planned_line"]


def plan_on(config: object, *, inventory: str | None = None, connected: Connected | None = None) -> RecipePlan:
    """The plan that ``build_recipe`` would follow, on what is there now; creates nothing.

    Args:
        config: The whole config of a recipe, or a :class:`RecipeSpec`.
        inventory: A file that describes the machines, instead of a Ray cluster.
        connected: How to connect to a Ray for the look at it.

    Raises:
        ConfigError: The config, or the file, breaks rules, or roles overlap more than declared.
        ResourceInsufficientError: It does not fit.
    """
    recipe = recipe_from_config(config)
    check_seats(recipe)
    answer = plan_recipe(recipe, inventory_to_plan_on(recipe, inventory, connected=connected))
    if isinstance(answer, Shortfall):
        raise shortfall_error(answer)
    return answer


def inventory_to_plan_on(recipe: RecipeSpec, inventory: str | None = None, *, connected: Connected | None = None) -> Inventory:
    """The machines of a file; else of the simulation, of the Ray cluster in reach, or of this machine, as the ``ray`` node says.

    Args:
        recipe: The roles, and which Ray.
        inventory: The file.
        connected: How to connect to a Ray for the look at it.

    Raises:
        PythonEnvError: All nodes are this machine, and it lacks what the Python of a role needs.
    """
    if inventory is not None:
        from rl_cluster.planning.inventory_file import load_inventory

        return load_inventory(inventory)
    spec = recipe.ray or RaySpec()
    ray = sys.modules.get("ray")
    is_connected = ray is not None and ray.is_initialized()
    if spec.kind == "simulated" and not is_connected:
        look_ahead(_pythons(recipe))
        return nodes_to_simulate(recipe)
    from rl_cluster.connection import reach, session

    if is_connected:
        return session.look_around(holders=True)
    spec = reach.resolve(spec)
    if spec.address is not None:
        with (connected or session.open_ray)(spec):
            return session.look_around(holders=True)
    look_ahead(_pythons(recipe))
    return session.this_machine(spec)


def check_this_machine(recipe: RecipeSpec) -> None:
    """Where a Ray would be started here: whether this machine has what the Pythons of the roles need, and for a local one whether it is
    large enough, before that takes its seconds.

    Raises:
        ResourceInsufficientError: It is not.
        PythonEnvError: It has not; says which role's key.
    """
    spec = recipe.ray or RaySpec()
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return
    if spec.kind != "simulated":
        from rl_cluster.connection import reach, session

        spec = reach.resolve(spec)
        if spec.address is not None:
            return
        answer = plan_recipe(recipe, session.this_machine(spec))
        if isinstance(answer, Shortfall):
            raise shortfall_error(answer)
    look_ahead(_pythons(recipe))


def _pythons(recipe: RecipeSpec) -> list[tuple[str, PythonSpec]]:
    """What workers are to run, with the path of its key."""
    return [(f"{role.path}.python", role.python) for role in recipe.roles.values() if role.worker is not None and role.python is not None]


def nodes_to_simulate(recipe: RecipeSpec, inventory: str | None = None) -> Inventory:
    """The nodes that a simulated Ray starts on this machine for a recipe: those of a file, or as many as its clusters need."""
    if inventory is not None:
        from rl_cluster.planning.inventory_file import load_inventory

        return inventory_of_file(load_inventory(inventory))
    return simulated_inventory_for_all(list(recipe.clusters.values()), recipe.ray or RaySpec(), cpus=len(os.sched_getaffinity(0)))


def planned_line(plan: RecipePlan) -> str:
    """The last line of mode ``plan``."""
    bundles = sum(len(layout.bundles) for layout in plan.layouts.values())
    used = len({bundle.node_id for layout in plan.layouts.values() for bundle in layout.bundles})
    suffix = " (simulated)" if any(layout.simulated for layout in plan.layouts.values()) else ""
    return (
        f"PLANNED: {count_of(len(plan.roles), 'role')} on {count_of(bundles, 'bundle')} of {count_of(used, 'machine')}, "
        f"nothing was created{suffix}"
    )
