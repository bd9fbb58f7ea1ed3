"""Creating the actors of a group: by the driver, or by a maker inside the group's own Python where the driver can't import the class."""

from __future__ import annotations

import inspect
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from attrs import frozen
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rl_cluster.errors import ConfigError
from rl_cluster.planning.layout import PlacedBundle
from rl_cluster.process.nsight import RAYS_KEYS
from rl_cluster.workers.target_import import import_target
from rl_cluster.workers.worker_boot import Binder, environment_of, worker_class

logger = logging.getLogger(__name__)

GROUPS_OWN = (
    *("name", "namespace", "get_if_exists", "lifetime", "max_restarts", "label_selector"),
    *("scheduling_strategy", "placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks"),
)
"""Options of a Ray actor that a worker group decides."""


@frozen
class RayWorkerBuilder:
    """A class and the arguments of its ``__init__``, as NeMo-RL's recipes hand them over."""

    ray_actor_class_fqn: str | type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, ray_actor_class_fqn: str | type, /, *args: Any, **kwargs: Any) -> None:
        self.__attrs_init__(ray_actor_class_fqn, args, kwargs)  # type: ignore[attr-defined]


# Ray (2.60) ends the process group that a worker was in when it came up, as soon as the worker has ended: a profiler in the same group
# would be killed before it has written.
_OWN_GROUP = "import os, sys\ntry: os.setpgid(0, 0)\nexcept OSError: pass\nos.execvp(sys.argv[1], sys.argv[1:])"


@frozen
class Profiler:
    """What stands in front of a worker's Python."""

    command: tuple[str, ...]
    python: str  # the interpreter of Ray's own workers on that node, which it then has to name

    def in_front_of(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of an actor that starts through it."""
        runtime_env = dict(options.get("runtime_env") or {})
        start = shlex.join([*self.command, self.python, "-I", "-S", "-c", _OWN_GROUP])
        python = runtime_env.get("py_executable") or shlex.quote(self.python)
        return {**options, "runtime_env": {**runtime_env, "py_executable": f"{start} {python}"}}


@frozen
class Seat:
    """Where one worker is to sit, and what it is given there."""

    bundle: PlacedBundle
    group: PlacementGroup
    bundle_index: int  # in the placement group
    name: str
    options: Mapping[str, Any]  # of this actor (num_cpus, num_gpus, runtime_env, ...)
    binder: Callable[[], Any] | None = None  # one of its own, where the class does not carry one for all
    profiler: Profiler | None = None


@frozen
class ActorRecipe:
    """What all actors of a group have in common."""

    target: str | type
    env: Mapping[str, str]  # in force before the user's module is imported; travels inside the class, never on a command line
    binder: Binder | None
    nsight_seen: bool = True  # whether the group has looked for Ray's nsight among the options of the class itself

    def create(self, seats: Sequence[Seat]) -> list[ActorHandle]:
        """Ask Ray for one actor on each seat; they come up by themselves.

        Raises:
            ConfigError: The target can't be imported, or is no class, or an option is not the user's to choose.
        """
        user_class, default_options = import_target(self.target)
        default_options, nsight = without_nsight(default_options)
        if nsight is not None and not self.nsight_seen:
            raise ConfigError(
                "worker options: nsight of @ray.remote must be known before a worker starts, and this process can't import the class. "
                "Fix: give it as worker.nsight"
            )
        if hasattr(user_class, "configure_worker"):
            logger.warning(
                "%s.configure_worker is not called: options, env and kwargs of build_worker_group say what it would", self.target
            )
        for options in (default_options, *(seat.options for seat in seats[:1])):
            check_options(options)
        made = worker_class(user_class, env=self.env, binder=self.binder)
        # Ray takes concurrency groups with the class only, not in .options()
        groups = merge_options(default_options, *(seat.options for seat in seats[:1])).get("concurrency_groups")
        actor_class = ray.remote(concurrency_groups=groups)(made) if groups else ray.remote(made)
        actors = []
        for seat in seats:
            place = PlacementGroupSchedulingStrategy(seat.group, seat.bundle_index, placement_group_capture_child_tasks=True)
            options = {name: value for name, value in merge_options(default_options, seat.options).items() if name != "concurrency_groups"}
            options = options if seat.profiler is None else seat.profiler.in_front_of(options)
            actors.append(actor_class.options(**{**options, "scheduling_strategy": place}).remote(seat.binder))
        return actors


class ActorMaker:
    """Runs in the Python of a group whose class only that Python can import. It owns the actors, so it lives as long as they do."""

    def __init__(self, env: Mapping[str, str]) -> None:
        os.environ.update({**environment_of(sys.prefix, os.environ), **env})

    def create(self, recipe: ActorRecipe, seats: Sequence[Seat]) -> list[ActorHandle]:
        """See :meth:`ActorRecipe.create`."""
        return recipe.create(seats)


def start_maker(recipe: ActorRecipe, seat: Seat) -> ActorHandle:
    """Start a maker on the machine of a seat, in that seat's Python."""
    runtime_env = seat.options.get("runtime_env")
    node = NodeAffinitySchedulingStrategy(seat.bundle.node_id, soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": node, **({"runtime_env": runtime_env} if runtime_env else {})}
    return ray.remote(ActorMaker).options(**options).remote(dict(recipe.env))


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what makes no sense for one of many actors, or is decided by the layout.

    A restarted actor would come up without the rank variables and without the user's ``__init__``, so restarts are refused, too.

    Raises:
        ConfigError: Names all such options.
    """
    wrong = sorted(name for name in GROUPS_OWN if options.get(name))
    if wrong:
        raise ConfigError(
            f"worker options: must not hold {', '.join(wrong)}, which the group decides for all its workers. "
            "Fix: remove them from @ray.remote(...) or options"
        )


def merge_options(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an actor, later layers over earlier ones; of a runtime_env (and its env_vars) the keys are merged."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            both = name in ("runtime_env", "env_vars") and isinstance(merged.get(name), Mapping) and isinstance(value, Mapping)
            merged[name] = merge_options(merged[name], value) if both else value
    return merged


def without_nsight(options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Options of an actor without Ray's nsight, and what it says (None where it is not there): see ``nsight.py``."""
    runtime_env = options.get("runtime_env")
    if not isinstance(runtime_env, Mapping):
        return dict(options), None
    found = next((runtime_env[key] for key in RAYS_KEYS if runtime_env.get(key)), None)
    left = {key: value for key, value in runtime_env.items() if key not in RAYS_KEYS}
    rest = {name: value for name, value in options.items() if name != "runtime_env"}
    return {**rest, **({"runtime_env": left} if left else {})}, found


def made_by(maker: ActorHandle, recipe: ActorRecipe, seats: Sequence[Seat]) -> list[ActorHandle]:
    """The actors that a maker creates; a mistake of the user's comes back as itself."""
    try:
        actors: list[ActorHandle] = ray.get(maker.create.remote(recipe, list(seats)))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ConfigError):
            raise error.cause from None
        raise
    for actor in actors:
        _take_positional(actor)
    return actors


def _take_positional(actor: ActorHandle) -> None:
    """Ray stands in for a class that it can't import here by one whose methods refuse positional arguments: let them pass."""
    for parameters in actor._ray_method_signatures.values():
        kinds = {parameter.kind for parameter in parameters}
        if inspect.Parameter.VAR_KEYWORD in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
            parameters.insert(0, inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL))
