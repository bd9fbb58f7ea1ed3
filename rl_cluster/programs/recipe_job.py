"""One run of run.py with ``recipe=FILE``: all roles planned or brought up, checked, drawn, reported, given back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define

from rl_cluster.config_files.recipe_file import load_recipe
from rl_cluster.config_files.recipe_spec import RecipeSpec
from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, ResourceInsufficientError
from rl_cluster.ground.interrupts import Interrupts
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.planning.naming import count_of
from rl_cluster.process.records import WorkerRecord
from rl_cluster.programs.hold import hold_until_interrupted
from rl_cluster.programs.rehearsal import machines_of, planned_on, through_recipe, with_rehearsal
from rl_cluster.programs.runs import Run, RunState, look_again, looking
from rl_cluster.recipes.recipe_plan import RecipePlan, build_recipe_picture, check_seats, plan_recipe, shortfall_error
from rl_cluster.recipes.recipe_preview import check_this_machine, inventory_to_plan_on, planned_line
from rl_cluster.schema import EnvSpec, NumaSpec, PythonSpec, RunSpec
from rl_cluster.views.checks import check_workers
from rl_cluster.views.checks_inside import drift
from rl_cluster.views.picture import Picture
from rl_cluster.views.table import render_checks, render_table, render_verdict

if TYPE_CHECKING:
    from rl_cluster.recipes.recipe import Recipe

NOT_WITH_RECIPE = ("cluster", "numa", "python", "worker", "env")


@define
class _State(RunState):
    recipe: RecipeSpec | None = None
    plan: RecipePlan | None = None
    records: dict[str, Sequence[WorkerRecord]] = Factory(dict)  # by role
    results: dict[str, dict[int, Any]] = Factory(dict)


@define(kw_only=True)
class RecipeRun(Run):
    """All roles of a recipe."""

    state: _State = Factory(_State)

    def work(self, interrupts: Interrupts) -> int:
        """Plan, or bring up and verify."""
        self.state.recipe = recipe = recipe_of(self.spec, self.overrides)
        return self._plan(recipe, interrupts) if self.spec.mode == "plan" else self._up(recipe, interrupts)

    def findings(self) -> dict[str, Any]:
        """Recipe, layouts, workers and results."""
        state = self.state
        layouts = state.plan.layouts if state.plan else {}
        return {
            "spec": run_alone(self.spec),
            "layouts": layouts,
            "recipe": state.recipe,
            "groups": state.records,
            "results": state.results,
            "warnings": [*(f"{name}: {text}" for name, layout in layouts.items() for text in layout.warnings), *state.warnings],
        }

    def picture(self) -> Picture | None:
        """All roles, with their workers as far as they are up."""
        return None if self.state.plan is None else build_recipe_picture(self.state.plan, self.state.records)

    def last_line(self, failed: str | None) -> str:
        """What was planned, or the verdict."""
        state = self.state
        if self.spec.mode == "plan" and failed is None and state.plan is not None:
            return planned_line(state.plan)
        workers = [record for records in state.records.values() for record in records]
        return render_verdict(state.checks, workers=workers, simulated=state.simulated, error=failed)

    def _plan(self, recipe: RecipeSpec, interrupts: Interrupts) -> int:
        state, screen = self.state, self.screen
        inventory = inventory_to_plan_on(recipe, self.spec.inventory, connected=lambda ray: looking(ray, interrupts, tell=screen.tell))
        state.simulated = inventory.simulated
        screen.tell(f"planning on {inventory.source}: {count_of(len(inventory.living), 'machine')}")
        answer = plan_recipe(recipe, inventory)
        state.mark("planned")
        if not isinstance(answer, RecipePlan):
            error = through_recipe(shortfall_error(answer), self.spec.recipe_overrides)
            raise with_rehearsal(error, self.overrides, kind=machines_of(self.spec.ray, self.spec.inventory))
        state.plan = answer
        screen.grid(build_recipe_picture(answer))
        return EXIT_OK

    def _up(self, recipe: RecipeSpec, interrupts: Interrupts) -> int:
        from rl_cluster.recipes.recipe import build_recipe, check_recipe, open_recipe_ray

        state, screen = self.state, self.screen
        check_recipe(recipe)
        try:
            check_this_machine(recipe)
        except ResourceInsufficientError as error:
            told = through_recipe(error, self.spec.recipe_overrides)
            raise with_rehearsal(told, self.overrides, kind=planned_on("local", asked=self.spec.ray.kind)) from None
        with ExitStack() as held:
            held.callback(interrupts.ending)
            screen.tell("starting a simulated Ray cluster ..." if state.simulated else "connecting to Ray ...")
            ray_session = self.join_ray(
                held,
                interrupts,
                lambda watch: open_recipe_ray(
                    recipe, inventory=self.spec.inventory, warn=lambda notes: state.warn(notes, screen), watch=watch
                ),
            )
            try:
                built = held.enter_context(
                    build_recipe(recipe, ray_session=ray_session, nsight_dir=self.files.profiles, on_progress=screen.tell)
                )
            except ResourceInsufficientError as error:
                told = through_recipe(error, self.spec.recipe_overrides)
                raise with_rehearsal(told, self.overrides, kind=planned_on(ray_session.kind, asked=self.spec.ray.kind)) from error
            held.callback(interrupts.ending)
            state.plan = built.plan
            state.simulated = any(layout.simulated for layout in built.plan.layouts.values())
            state.records = {name: group.records for name, group in built.groups.items()}
            for name, group in built.groups.items():
                state.came_up(name, group, screen)
            state.mark("workers")
            for name, group in built.groups.items():
                worker = recipe.roles[name].worker
                assert worker is not None
                method = worker.method or (None if worker.target else "meet")
                if method is not None:
                    state.results[name] = dict(enumerate(group.run_all(method)))
            for name in built.groups:
                self._check(name, built)
                for warning in drift(state.records[name]):
                    state.warnings.append(f"{name}: {warning}")
                    screen.tell(f"warning: {name}: {warning}")
            state.mark("checked")
            screen.grid(built.picture(state.records))
            screen.show("")
            for name, records in state.records.items():
                screen.part(f"workers of {name}", render_table(records, width=screen.width, color=screen.color), simulated=state.simulated)
                screen.show("")
            screen.part("checks", render_checks(state.checks), simulated=state.simulated)
            if self.spec.hold:
                hold_until_interrupted(list(dict.fromkeys(built.clusters.values())), list(built.groups.values()), screen, interrupts)
            state.end_profiled(screen)
        state.mark("given_back")
        return EXIT_OK if all(check.ok for check in state.checks) else EXIT_CHECK_FAILED

    def _check(self, name: str, built: Recipe) -> None:
        """The checks of one role, each named after it."""
        state, seats = self.state, built.plan.roles[name]
        records, meeting, expected = look_again(built.groups[name])
        state.records[name] = records
        owner = seats.role.owner
        others = [
            record
            for other, role in built.plan.roles.items()
            if other != name and role.role.owner == owner
            for record in state.records.get(other, ())
        ]
        asked = RunSpec(
            cluster=seats.layout.spec,
            numa=built.numa(name) or NumaSpec(enabled=False),
            python=seats.role.python or PythonSpec(),
            env=seats.role.env or EnvSpec(),
        )
        checks = check_workers(
            records,
            seats.layout,
            asked,
            rendezvous=meeting,
            expected_python=expected,
            world_size=len(seats.bundles),
            ordered=seats.is_whole,
            others=others,
        )
        state.checks += [attrs.evolve(check, name=f"{name}: {check.name}") for check in checks]


def run_alone(spec: RunSpec) -> dict[str, Any]:
    """The keys of a run that count beside a recipe: what its roles say is not run.py's."""
    return {name: value for name, value in attrs.asdict(spec, recurse=False).items() if name not in NOT_WITH_RECIPE}


def recipe_of(spec: RunSpec, overrides: Sequence[str]) -> RecipeSpec:
    """The recipe of the file; run.py's own choice of a Ray counts, the recipe's does not.

    Raises:
        ConfigError: The command line changes a key that the recipe says itself.
    """
    problems = []
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0].partition("@")[0].partition(".")[0].partition("/")[0]
        if key in NOT_WITH_RECIPE:
            fix = f"change the recipe's own key: 'recipe_overrides=[\"ROLE.{key}...\"]'"
            if "python.prefetch" in word:
                fix = "write mode=prefetch"
            problems.append(RuleBroken("must be left out with a recipe, whose roles say it", word, fix=fix).line(key))
    if problems:
        raise ConfigError(problems=problems)
    assert spec.recipe is not None
    recipe = load_recipe(spec.recipe, overrides=spec.recipe_overrides)
    check_seats(recipe)
    if spec.mode == "up" and all(role.worker is None for role in recipe.roles.values()):
        fix = "add worker: {} to a role for the built-in check, or run the recipe's own program"
        raise ConfigError(RuleBroken("must have a role with a worker for mode up", sorted(recipe.roles), fix=fix).line("recipe"))
    return attrs.evolve(recipe, ray=spec.ray)
