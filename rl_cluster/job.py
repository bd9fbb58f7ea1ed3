"""One run of run.py: plan, place, bring up, check, show, report, give back."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import Factory, define

from rl_cluster.checks import Check, Rendezvous, check_workers
from rl_cluster.checks_inside import drift
from rl_cluster.conclusion import Conclusion, conduct, error_text
from rl_cluster.errors import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    ClusterUnreachableError,
    ResourceInsufficientError,
    RlClusterError,
    WorkerLostError,
)
from rl_cluster.interrupts import Interrupts, without_rays_handler
from rl_cluster.inventory import Inventory
from rl_cluster.layout import Layout, Shortfall
from rl_cluster.nsight import check_patterns
from rl_cluster.picture import Picture, build_picture
from rl_cluster.plan import close_spec, plan_layout
from rl_cluster.records import WorkerRecord
from rl_cluster.rehearsal import planned_on, with_rehearsal
from rl_cluster.report import build_report, write_report
from rl_cluster.run_state import RunFiles, RunState
from rl_cluster.schema import ClusterSpec, RunSpec, resolve_local
from rl_cluster.screen import Screen
from rl_cluster.svg import render_svg
from rl_cluster.table import render_checks, render_table, render_verdict

HOLD_CHECK_EVERY_S = 5.0


@define
class _State(RunState):
    spec: RunSpec | None = None  # as it was closed for the inventory
    layout: Layout | None = None
    records: Sequence[WorkerRecord] = ()
    results: dict[int, Any] = Factory(dict)


def run(
    spec: RunSpec,
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    full_error: bool = False,
    modules_in: str | os.PathLike[str] | None = None,
) -> int:
    """Do what the spec says and write the files of the run.

    Args:
        spec: The checked config.
        folder: Hydra's output directory.
        overrides: The words of the command line, for the commands that messages suggest.
        full_error: Show the traceback of an error, too (it is in the log anyway).
        modules_in: Folder where workers look for ``worker.target``, too; default: the current one.

    Returns:
        The exit code: 0 done and verified, 3 not enough resources, 4 a check failed, 130 Ctrl-C, 143 SIGTERM.
    """
    files, screen, state = RunFiles(folder), Screen(), _State(spec=spec, simulated=spec.ray.kind == "simulated")

    def work(interrupts: Interrupts) -> int:
        check_patterns(spec.worker, spec.cluster)
        if spec.mode == "plan":
            return _plan(spec, state, screen, overrides)
        return _up(spec, state, screen, interrupts, overrides, modules_in or os.curdir, files)

    conclusion = Conclusion(
        write=lambda error: _write(files, state, spec, error),
        last_line=lambda error: _last_line(spec, state, error),
    )
    return conduct(work, files, screen, conclusion, full_error=full_error)


def _last_line(spec: RunSpec, state: _State, error: BaseException | None) -> str:
    text = None if error is None else error_text(error).splitlines()[0]
    if spec.mode == "plan" and error is None and state.layout is not None:
        used = len({bundle.node_id for bundle in state.layout.bundles})
        suffix = " (simulated)" if state.simulated else ""
        return f"PLANNED: {len(state.layout.bundles)} bundles on {used} machine{'s' * (used != 1)}, nothing was created{suffix}"
    return render_verdict(state.checks, workers=state.records, simulated=state.simulated, error=text)


def _write(files: RunFiles, state: _State, spec: RunSpec, error: BaseException | None) -> None:
    state.mark("total")
    report = build_report(
        mode=spec.mode,
        spec=state.spec,
        layout=state.layout,
        groups={spec.worker.name: state.records} if state.records else {},
        results={spec.worker.name: state.results} if state.results else {},
        checks=state.checks,
        ray=state.ray,
        simulated=state.simulated,
        started=state.started,
        timings_s=state.timings,
        warnings=state.warnings,
        profiles=state.profiles,
        error=None if error is None else error if isinstance(error, RlClusterError) else error_text(error),
    )
    write_report(files.report, report)
    if state.layout is not None:
        files.picture.write_text(render_svg(_picture(spec, state)), encoding="utf-8")


def _picture(spec: RunSpec, state: _State) -> Picture:
    assert state.layout is not None
    return build_picture(state.layout, {spec.worker.name: state.records} if state.records else None)


def resolve_paths(spec: RunSpec, folder: str) -> RunSpec:
    """The spec with absolute paths: relative ones mean where the command was typed, also where hydra.job.chdir has left it."""
    if os.path.samefile(folder, os.curdir):
        return spec

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.join(folder, os.path.expanduser(path))

    python = attrs.evolve(spec.python, project_dir=absolute(spec.python.project_dir), venv_dir=absolute(spec.python.venv_dir))
    return attrs.evolve(spec, inventory=absolute(spec.inventory), recipe=absolute(spec.recipe), python=python)


# --- plan ---


def _plan(spec: RunSpec, state: _State, screen: Screen, overrides: Sequence[str]) -> int:
    inventory = _inventory_to_plan_on(spec, state)
    state.simulated = inventory.simulated
    cluster = close_spec(spec.cluster, inventory)
    state.spec = attrs.evolve(spec, cluster=cluster)
    screen.tell(f"planning on {inventory.source}: {len(inventory.nodes)} machine{'s' * (len(inventory.nodes) != 1)}")
    state.layout = _layout_or_raise(cluster, inventory, overrides, kind=planned_on(state.ray["kind"], asked=spec.ray.kind))
    state.mark("planned")
    for warning in state.layout.warnings:
        screen.tell(f"warning: {warning}")
    screen.grid(_picture(spec, state))
    return EXIT_OK


def _inventory_to_plan_on(spec: RunSpec, state: _State) -> Inventory:
    if spec.inventory is not None:
        from rl_cluster.inventory_file import load_inventory

        state.ray = {"kind": "file", "address": None}
        return load_inventory(spec.inventory)
    if spec.ray.kind == "simulated":
        state.ray = {"kind": "simulated", "address": None}
        return inventory_to_simulate(spec)
    from rl_cluster import reach, session

    if spec.ray.kind == "auto" and reach.address_in_reach(spec.ray) is not None:
        with without_rays_handler(), session.open_ray(spec.ray) as ray_session:
            state.connected(ray_session)
            return session.look_around(holders=True)
    state.ray = {"kind": "local", "address": None}
    return session.this_machine(spec.ray)


def inventory_to_simulate(spec: RunSpec) -> Inventory:
    """What ``ray=simulated`` starts for a spec."""
    from rl_cluster.inventory_file import load_inventory, simulated_inventory
    from rl_cluster.topology import with_topo_ranks

    if spec.inventory is not None:
        found = load_inventory(spec.inventory)
        return attrs.evolve(found, nodes=with_topo_ranks(found.nodes), source=f"a simulated cluster ({found.source})", simulated=True)
    cpus = len(os.sched_getaffinity(0))
    return simulated_inventory(resolve_local(spec.cluster, cpus), spec.ray)


def _layout_or_raise(cluster: ClusterSpec, inventory: Inventory, overrides: Sequence[str], *, kind: str) -> Layout:
    answer = plan_layout(cluster, inventory)
    if isinstance(answer, Shortfall) and kind in ("none", "local") and cluster.use_head == "auto":
        # This machine would be the head node, and for want of GPUs one that is not used: the amounts say more than that rule.
        answer = plan_layout(attrs.evolve(cluster, use_head="always"), inventory)
    if isinstance(answer, Shortfall):
        raise with_rehearsal(answer.to_error(), overrides, kind=kind)
    return answer


# --- up ---


def _up(
    spec: RunSpec,
    state: _State,
    screen: Screen,
    interrupts: Interrupts,
    overrides: Sequence[str],
    modules_in: str | os.PathLike[str],
    files: RunFiles,
) -> int:
    from rl_cluster import reach, session
    from rl_cluster.builders import build_cluster, build_worker_group, numa_on
    from rl_cluster.python_env import disable_rays_uv_hook
    from rl_cluster.target_check import check_target

    disable_rays_uv_hook()
    if spec.worker.target is not None and spec.python.executable == "SYSTEM":
        # The workers run this interpreter, so what they can't run is known before anything is started.
        check_target(spec.worker)
    to_simulate = inventory_to_simulate(spec) if spec.ray.kind == "simulated" else None
    if to_simulate is None and reach.address_in_reach(spec.ray) is None:
        here = session.this_machine(spec.ray)
        # asked before a Ray is started: what does not fit is said at once
        _layout_or_raise(close_spec(spec.cluster, here), here, overrides, kind=planned_on("local", asked=spec.ray.kind))
    with contextlib.ExitStack() as held:
        held.callback(interrupts.ending)
        starts = to_simulate is not None and not session.simulation_runs(spec.ray, to_simulate)
        screen.tell("starting a simulated Ray cluster ..." if starts else "connecting to Ray ...")
        # ray.init tells the workers which folder is the current one then, and they look for modules there
        with without_rays_handler(), working_in(modules_in):
            ray_session = held.enter_context(session.open_ray(spec.ray, simulated=to_simulate))
        held.callback(interrupts.ending)
        state.connected(ray_session)
        state.mark("ray")
        inventory = session.look_around()
        state.simulated = inventory.simulated
        cluster_spec = close_spec(spec.cluster, inventory)
        numa = numa_on(spec.numa, ray_session)
        state.spec = attrs.evolve(spec, cluster=cluster_spec, numa=numa)
        screen.tell(f"placing on {inventory.source}: {len(inventory.nodes)} machine{'s' * (len(inventory.nodes) != 1)}")
        try:
            cluster = held.enter_context(build_cluster(cluster_spec, on_progress=screen.tell))
        except ResourceInsufficientError as error:
            raise with_rehearsal(error, overrides, kind=planned_on(ray_session.kind, asked=spec.ray.kind)) from error
        held.callback(interrupts.ending)
        state.layout = cluster.layout
        state.mark("placed")
        for warning in cluster.layout.warnings:
            screen.tell(f"warning: {warning}")
        target = spec.worker.target or "rl_cluster.check_worker.CheckWorker"
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
                    nsight_dir=files.profiles,
                    start_timeout_s=spec.worker.start_timeout_s,
                    on_progress=on_progress,
                )
            )
        held.callback(interrupts.ending)
        state.records = group.records
        state.came_up(spec.worker.name, group, screen)
        state.mark("workers")
        if method is not None:
            state.results = dict(enumerate(group.run_all(method)))
        state.checks = _check(group, state)
        for warning in drift(state.records):
            state.warnings.append(warning)
            screen.tell(f"warning: {warning}")
        state.mark("checked")
        screen.grid(_picture(spec, state))
        screen.show("")
        screen.part("workers", render_table(state.records, width=screen.width, color=screen.color), simulated=state.simulated)
        screen.show("")
        screen.part("checks", render_checks(state.checks), simulated=state.simulated)
        if spec.hold:
            screen.show(_last_line(spec, state, None))
            hold_until_interrupted([cluster], [group], screen, interrupts)
        state.end_profiled(screen)
    state.mark("given_back")
    return EXIT_OK if all(check.ok for check in state.checks) else EXIT_CHECK_FAILED


@contextlib.contextmanager
def working_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Make a folder the current one for the block."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _check(group: Any, state: _State) -> list[Check]:
    assert state.layout is not None
    assert state.spec is not None
    seen = group.run_all("_rl_cluster_rendezvous")
    meeting = [Rendezvous(rank=rank, env=variables, holds_port=port) for rank, (variables, port) in enumerate(seen)]
    # the bindings as the kernel holds them now, after the user's class has started
    again = group.verify_bindings()
    state.records = tuple(attrs.evolve(record, binding=report) for record, report in zip(group.records, again, strict=True))
    expected: Mapping[str, str] = {node: here.python for node, here in group.pythons.items() if here.python}
    return check_workers(state.records, state.layout, state.spec, rendezvous=meeting, expected_python=expected or None)


def hold_until_interrupted(clusters: Sequence[Any], groups: Sequence[Any], screen: Screen, interrupts: Interrupts) -> None:
    """Keep everything until Ctrl-C, which is the right end here, or until a node or a worker is lost, which is not."""
    from rl_cluster import reach, session

    address = session.connected_address()
    screen.tell(f"holding the layout; Ctrl-C ends it (the Ray is at {address})")
    try:
        while True:
            time.sleep(HOLD_CHECK_EVERY_S)
            try:
                reach.check_reachable(address)
            except ClusterUnreachableError as gone:
                # Ray's own calls would wait for it for a minute, and then end this process
                raise WorkerLostError(
                    f"ray: the control service at {address} is gone, and with it the whole cluster. Fix: start Ray and this run again",
                    ranks=(),
                    node_idx=(),
                    node=[address],
                ) from gone
            for held in (*clusters, *groups):
                held.check_alive()
    except RlClusterError as lost:
        interrupts.cause = lost
        raise
    except KeyboardInterrupt as stop:
        interrupted = interrupts.named(stop)
        screen.tell(f"{interrupted.shown}: giving the layout back ...")
        if interrupted.number != signal.SIGINT:
            raise interrupted from None
