"""One run of run.py with ``recipe=FILE``: all roles planned or brought up, checked, drawn, reported, given back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define

from rl_cluster.checks import Rendezvous, check_workers
from rl_cluster.checks_inside import drift
from rl_cluster.conclusion import Conclusion, conduct, error_text
from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_OK, ConfigError, ResourceInsufficientError, RlClusterError
from rl_cluster.interrupts import Interrupts, without_rays_handler
from rl_cluster.job import hold_until_interrupted, working_in
from rl_cluster.recipe_file import load_recipe
from rl_cluster.recipe_plan import RecipePlan, build_recipe_picture, check_overlaps, plan_recipe, shortfall_error
from rl_cluster.recipe_preview import inventory_to_plan_on, planned_line
from rl_cluster.recipe_spec import RecipeSpec
from rl_cluster.records import WorkerRecord
from rl_cluster.rehearsal import planned_on, with_rehearsal
from rl_cluster.report import build_report, write_report
from rl_cluster.rules import RuleBroken
from rl_cluster.run_state import RunFiles, RunState
from rl_cluster.schema import EnvSpec, NumaSpec, PythonSpec, RunSpec
from rl_cluster.screen import Screen
from rl_cluster.svg import render_svg
from rl_cluster.table import render_checks, render_table, render_verdict

if TYPE_CHECKING:
    from rl_cluster.recipe import Recipe

NOT_WITH_RECIPE = ("cluster", "numa", "python", "worker", "env")


@define
class _State(RunState):
    recipe: RecipeSpec | None = None
    plan: RecipePlan | None = None
    records: dict[str, Sequence[WorkerRecord]] = Factory(dict)  # by role
    results: dict[str, dict[int, Any]] = Factory(dict)


def run(
    spec: RunSpec,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    full_error: bool = False,
    modules_in: str | os.PathLike[str] | None = None,
) -> int:
    """Do what the spec's recipe says and write the files of the run; arguments and exit codes are those of :func:`rl_cluster.job.run`."""
    files, screen, state = RunFiles(folder), Screen(), _State(simulated=spec.ray.kind == "simulated")

    def work(interrupts: Interrupts) -> int:
        state.recipe = recipe = recipe_of(spec, overrides)
        if spec.mode == "plan":
            return _plan(recipe, spec, state, screen, overrides)
        return _up(recipe, spec, state, screen, interrupts, overrides, modules_in or os.curdir, files)

    conclusion = Conclusion(
        write=lambda error: _write(files, state, spec, error),
        last_line=lambda error: _last_line(spec, state, error),
    )
    return conduct(work, files, screen, conclusion, full_error=full_error)


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
            problems.append(RuleBroken("must be left out with a recipe, whose roles say it", word, fix=fix).line(key))
    if problems:
        raise ConfigError(problems=problems)
    assert spec.recipe is not None
    recipe = load_recipe(spec.recipe, overrides=spec.recipe_overrides)
    check_overlaps(recipe)
    if spec.mode == "up" and all(role.worker is None for role in recipe.roles.values()):
        fix = "add worker: {} to a role for the built-in check, or run the recipe's own program"
        raise ConfigError(RuleBroken("must have a role with a worker for mode up", sorted(recipe.roles), fix=fix).line("recipe"))
    return attrs.evolve(recipe, ray=spec.ray)


def _plan(recipe: RecipeSpec, spec: RunSpec, state: _State, screen: Screen, overrides: Sequence[str]) -> int:
    inventory = inventory_to_plan_on(recipe, spec.inventory)
    state.simulated = inventory.simulated
    screen.tell(f"planning on {inventory.source}: {len(inventory.nodes)} machine{'s' * (len(inventory.nodes) != 1)}")
    answer = plan_recipe(recipe, inventory)
    state.mark("planned")
    if not isinstance(answer, RecipePlan):
        raise with_rehearsal(shortfall_error(answer), overrides, kind=_planned_on(spec))
    state.plan = answer
    screen.grid(build_recipe_picture(answer))
    return EXIT_OK


def _planned_on(spec: RunSpec) -> str:
    """What :func:`with_rehearsal` calls the machines that were planned on."""
    if spec.inventory is not None:
        return "file"
    if spec.ray.kind == "simulated":
        return "simulated"
    from rl_cluster import reach

    attached = spec.ray.kind == "auto" and reach.address_in_reach(spec.ray) is not None
    return planned_on("attached" if attached else "local", asked=spec.ray.kind)


def _up(
    recipe: RecipeSpec,
    spec: RunSpec,
    state: _State,
    screen: Screen,
    interrupts: Interrupts,
    overrides: Sequence[str],
    modules_in: str | os.PathLike[str],
    files: RunFiles,
) -> int:
    from rl_cluster.recipe import build_recipe, check_recipe, open_recipe_ray

    check_recipe(recipe)
    with contextlib.ExitStack() as held:
        held.callback(interrupts.ending)
        screen.tell("starting a simulated Ray cluster ..." if state.simulated else "connecting to Ray ...")
        with without_rays_handler(), working_in(modules_in):
            ray_session = held.enter_context(open_recipe_ray(recipe))
        held.callback(interrupts.ending)
        state.connected(ray_session)
        state.mark("ray")
        try:
            built = held.enter_context(build_recipe(recipe, ray_session=ray_session, nsight_dir=files.profiles, on_progress=screen.tell))
        except ResourceInsufficientError as error:
            raise with_rehearsal(error, overrides, kind=planned_on(ray_session.kind, asked=spec.ray.kind)) from error
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
            _check(name, built, state)
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
        if spec.hold:
            hold_until_interrupted(list(dict.fromkeys(built.clusters.values())), list(built.groups.values()), screen, interrupts)
        state.end_profiled(screen)
    state.mark("given_back")
    return EXIT_OK if all(check.ok for check in state.checks) else EXIT_CHECK_FAILED


def _check(name: str, built: Recipe, state: _State) -> None:
    """The checks of one role, each named after it."""
    group, seats = built.groups[name], built.plan.roles[name]
    seen = group.run_all("_rl_cluster_rendezvous")
    meeting = [Rendezvous(rank=rank, env=variables, holds_port=port) for rank, (variables, port) in enumerate(seen)]
    # the bindings as the kernel holds them now, after the user's class has started
    again = group.verify_bindings()
    records = tuple(attrs.evolve(record, binding=report) for record, report in zip(group.records, again, strict=True))
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
    expected = {node: here.python for node, here in group.pythons.items() if here.python}
    checks = check_workers(
        records,
        seats.layout,
        asked,
        rendezvous=meeting,
        expected_python=expected or None,
        world_size=len(seats.bundles),
        ordered=seats.is_whole,
        others=others,
    )
    state.checks += [attrs.evolve(check, name=f"{name}: {check.name}") for check in checks]


def _write(files: RunFiles, state: _State, spec: RunSpec, error: BaseException | None) -> None:
    state.mark("total")
    layouts = state.plan.layouts if state.plan else {}
    report = build_report(
        mode=spec.mode,
        spec=spec,
        layouts=layouts,
        recipe=state.recipe,
        groups=state.records,
        results=state.results,
        checks=state.checks,
        ray=state.ray,
        simulated=state.simulated,
        started=state.started,
        timings_s=state.timings,
        warnings=[*(f"{name}: {text}" for name, layout in layouts.items() for text in layout.warnings), *state.warnings],
        profiles=state.profiles,
        error=None if error is None else error if isinstance(error, RlClusterError) else error_text(error),
    )
    write_report(files.report, report)
    if state.plan is not None:
        files.picture.write_text(render_svg(build_recipe_picture(state.plan, state.records)), encoding="utf-8")


def _last_line(spec: RunSpec, state: _State, error: BaseException | None) -> str:
    if spec.mode == "plan" and error is None and state.plan is not None:
        return planned_line(state.plan)
    text = None if error is None else error_text(error).splitlines()[0]
    workers = [record for records in state.records.values() for record in records]
    return render_verdict(state.checks, workers=workers, simulated=state.simulated, error=text)
