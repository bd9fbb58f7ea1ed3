"""One run of run.py: plan, place, bring up, check, show, report, give back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import attrs
from attrs import Factory, define

from rl_cluster.config_files.recipe_spec import bundles_on
from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_OK, ResourceInsufficientError
from rl_cluster.ground.interrupts import Interrupts
from rl_cluster.inventory import Inventory
from rl_cluster.plan import close_spec, plan_layout
from rl_cluster.planning.layout import Layout, Shortfall
from rl_cluster.planning.naming import count_of
from rl_cluster.process.nsight import check_patterns
from rl_cluster.process.python_build import look_ahead
from rl_cluster.process.records import WorkerRecord
from rl_cluster.process.worker_env import check_env
from rl_cluster.programs.hold import hold_until_interrupted
from rl_cluster.programs.rehearsal import planned_on, with_rehearsal
from rl_cluster.programs.runs import Run, RunState, look_again, looking
from rl_cluster.schema import ClusterSpec, RunSpec, resolve_local
from rl_cluster.views.checks import check_workers
from rl_cluster.views.checks_inside import drift
from rl_cluster.views.picture import Picture, build_picture
from rl_cluster.views.table import render_checks, render_table, render_verdict


@define
class _State(RunState):
    spec: RunSpec | None = None  # as it was closed for the inventory
    layout: Layout | None = None
    records: Sequence[WorkerRecord] = ()
    results: dict[int, Any] = Factory(dict)


@define(kw_only=True)
class ClusterRun(Run):
    """One cluster and one group of workers on it."""

    state: _State = Factory(_State)

    def work(self, interrupts: Interrupts) -> int:
        """Plan, or bring up and verify."""
        cluster, worker = self.spec.cluster, self.spec.worker
        check_env(self.spec.env)
        if not cluster.bundles_open:
            check_patterns(worker, worker.name, bundles_on(None, cluster.bundle_counts))
        return self._plan(interrupts) if self.spec.mode == "plan" else self._up(interrupts)

    def findings(self) -> dict[str, Any]:
        """Layout, workers and results."""
        state, name = self.state, self.spec.worker.name
        return {
            "spec": state.spec or self.spec,
            "layout": state.layout,
            "groups": {name: state.records} if state.records else {},
            "results": {name: state.results} if state.results else {},
        }

    def picture(self) -> Picture | None:
        """The layout, with the workers as far as they are up."""
        if self.state.layout is None:
            return None
        return build_picture(self.state.layout, {self.spec.worker.name: self.state.records} if self.state.records else None)

    def last_line(self, failed: str | None) -> str:
        """What was planned, or the verdict."""
        state = self.state
        if self.spec.mode == "plan" and failed is None and state.layout is not None:
            used = len({bundle.node_id for bundle in state.layout.bundles})
            suffix = " (simulated)" if state.simulated else ""
            return f"PLANNED: {count_of(len(state.layout.bundles), 'bundle')} on {count_of(used, 'machine')}, nothing was created{suffix}"
        return render_verdict(state.checks, workers=state.records, simulated=state.simulated, error=failed)

    def _show_layout(self) -> None:
        picture = self.picture()
        assert picture is not None
        self.screen.grid(picture)

    # --- plan ---

    def _plan(self, interrupts: Interrupts) -> int:
        state, screen = self.state, self.screen
        inventory = self._inventory_to_plan_on(interrupts)
        state.simulated = inventory.simulated
        cluster = close_spec(self.spec.cluster, inventory)
        state.spec = attrs.evolve(self.spec, cluster=cluster)
        screen.tell(f"planning on {inventory.source}: {count_of(len(inventory.living), 'machine')}")
        state.layout = self._layout_or_raise(cluster, inventory, kind=planned_on(state.ray["kind"], asked=self.spec.ray.kind))
        if state.ray["kind"] in ("simulated", "local"):
            look_ahead([("python", self.spec.python)])
        state.mark("planned")
        for warning in state.layout.warnings:
            screen.tell(f"warning: {warning}")
        self._show_layout()
        return EXIT_OK

    def _inventory_to_plan_on(self, interrupts: Interrupts) -> Inventory:
        spec, state = self.spec, self.state
        if spec.inventory is not None:
            from rl_cluster.planning.inventory_file import load_inventory

            state.ray = {"kind": "file", "address": None}
            return load_inventory(spec.inventory)
        if spec.ray.kind == "simulated":
            state.ray = {"kind": "simulated", "address": None}
            return inventory_to_simulate(spec)
        from rl_cluster.connection import reach, session

        ray = reach.resolve(spec.ray)
        if ray.address is not None:
            with looking(ray, interrupts, tell=self.screen.tell) as ray_session:
                state.connected(ray_session)
                return session.look_around(holders=True)
        state.ray = {"kind": "local", "address": None}
        return session.this_machine(spec.ray)

    def _layout_or_raise(self, cluster: ClusterSpec, inventory: Inventory, *, kind: str) -> Layout:
        answer = plan_layout(cluster, inventory)
        if isinstance(answer, Shortfall) and kind in ("none", "local") and cluster.use_head == "auto":
            # This machine would be the head node, and for want of GPUs one that is not used: the amounts say more than that rule.
            answer = plan_layout(attrs.evolve(cluster, use_head="always"), inventory)
        if isinstance(answer, Shortfall):
            raise with_rehearsal(answer.to_error(), self.overrides, kind=kind)
        return answer

    # --- up ---

    def _up(self, interrupts: Interrupts) -> int:
        from rl_cluster.builders import build_cluster, build_worker_group, numa_on
        from rl_cluster.connection import reach, session
        from rl_cluster.python_env import disable_rays_uv_hook
        from rl_cluster.workers.target_check import check_target

        spec, state, screen = self.spec, self.state, self.screen
        disable_rays_uv_hook()
        if spec.worker.target is not None and spec.python.executable == "SYSTEM":
            # The workers run this interpreter, so what they can't run is known before anything is started.
            check_target(spec.worker)
        to_simulate = inventory_to_simulate(spec) if spec.ray.kind == "simulated" else None
        ray = reach.resolve(spec.ray)
        if ray.address is None:
            if to_simulate is None:
                here = session.this_machine(spec.ray)
                # asked before a Ray is started: what does not fit is said at once
                self._layout_or_raise(close_spec(spec.cluster, here), here, kind=planned_on("local", asked=spec.ray.kind))
            look_ahead([("python", spec.python)])
        with ExitStack() as held:
            held.callback(interrupts.ending)
            starts = to_simulate is not None and not session.simulation_runs(spec.ray, to_simulate)
            screen.tell("starting a simulated Ray cluster ..." if starts else "connecting to Ray ...")
            if to_simulate is not None:
                state.warn(to_simulate.notes, screen)
            ray_session = self.join_ray(held, interrupts, lambda watch: session.open_ray(ray, simulated=to_simulate, watch=watch))
            inventory = session.look_around()
            state.simulated = inventory.simulated
            cluster_spec = close_spec(spec.cluster, inventory)
            numa = numa_on(spec.numa, ray_session)
            state.spec = attrs.evolve(spec, cluster=cluster_spec, numa=numa)
            screen.tell(f"placing on {inventory.source}: {count_of(len(inventory.living), 'machine')}")
            try:
                cluster = held.enter_context(build_cluster(cluster_spec, on_progress=screen.tell))
            except ResourceInsufficientError as error:
                raise with_rehearsal(error, self.overrides, kind=planned_on(ray_session.kind, asked=spec.ray.kind)) from error
            held.callback(interrupts.ending)
            state.layout = cluster.layout
            state.mark("placed")
            target = spec.worker.target or "rl_cluster.programs.check_worker.CheckWorker"
            method = spec.worker.method or (None if spec.worker.target else "meet")
            with screen.progress("workers up", cluster.world_size()) as on_progress:
                group = held.enter_context(
                    build_worker_group(
                        cluster,
                        target,
                        name=spec.worker.name,
                        kwargs=spec.worker.kwargs,
                        numa=numa,
                        python=spec.python,
                        env=spec.env,
                        nsight=spec.worker.nsight,
                        nsight_workers=spec.worker.nsight_workers,
                        nsight_dir=self.files.profiles,
                        start_timeout_s=spec.worker.start_timeout_s,
                        on_progress=on_progress,
                        tell=screen.tell,
                    )
                )
            held.callback(interrupts.ending)
            state.records = group.records
            state.came_up(spec.worker.name, group, screen)
            state.mark("workers")
            if method is not None:
                state.results = dict(enumerate(group.run_all(method)))
            state.records, meeting, expected = look_again(group)
            state.checks = check_workers(state.records, state.layout, state.spec, rendezvous=meeting, expected_python=expected)
            state.warn(drift(state.records), screen)
            state.mark("checked")
            self._show_layout()
            screen.show("")
            screen.part("workers", render_table(state.records, width=screen.width, color=screen.color), simulated=state.simulated)
            screen.show("")
            screen.part("checks", render_checks(state.checks), simulated=state.simulated)
            if spec.hold:
                screen.show(self.last_line(None))
                hold_until_interrupted([cluster], [group], screen, interrupts)
            state.end_profiled(screen)
        state.mark("given_back")
        return EXIT_OK if all(check.ok for check in state.checks) else EXIT_CHECK_FAILED


def inventory_to_simulate(spec: RunSpec) -> Inventory:
    """What ``ray=simulated`` starts for a spec."""
    from rl_cluster.planning.inventory_file import load_inventory
    from rl_cluster.planning.simulated_inventory import inventory_of_file, simulated_inventory

    if spec.inventory is not None:
        return inventory_of_file(load_inventory(spec.inventory))
    cpus = len(os.sched_getaffinity(0))
    return simulated_inventory(resolve_local(spec.cluster, cpus), spec.ray)


def resolve_paths(spec: RunSpec, folder: str) -> RunSpec:
    """The spec with absolute paths: relative ones mean where the command was typed, also where hydra.job.chdir has left it."""
    if os.path.samefile(folder, os.curdir):
        return spec

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.join(folder, os.path.expanduser(path))

    python = attrs.evolve(spec.python, project_dir=absolute(spec.python.project_dir), venv_dir=absolute(spec.python.venv_dir))
    return attrs.evolve(spec, inventory=absolute(spec.inventory), recipe=absolute(spec.recipe), python=python)
