"""One run of run.py: plan, place, bring up, check, show, report, give back."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import Factory, define, frozen

from rl_cluster.checks import Check, Rendezvous, check_workers
from rl_cluster.checks_inside import drift
from rl_cluster.errors import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    ClusterUnreachableError,
    ResourceInsufficientError,
    RlClusterError,
    WorkerLostError,
)
from rl_cluster.interrupts import Interrupted, Interrupts, orderly_interrupts, without_rays_handler
from rl_cluster.inventory import Inventory
from rl_cluster.layout import Layout, Shortfall
from rl_cluster.picture import Picture, build_picture
from rl_cluster.plan import close_spec, plan_layout
from rl_cluster.records import WorkerRecord
from rl_cluster.rehearsal import planned_on, with_rehearsal
from rl_cluster.report import build_report, write_report
from rl_cluster.schema import ClusterSpec, RunSpec, resolve_local
from rl_cluster.screen import Screen, say, unshown_error
from rl_cluster.svg import render_svg
from rl_cluster.table import render_checks, render_table, render_verdict

logger = logging.getLogger(__name__)

HOLD_CHECK_EVERY_S = 5.0
STUCK_AFTER_S = 30.0  # Ray's own limit for a lost control service is 60 s; then it ends the process with an exit code of its own


@frozen
class RunFiles:
    """The files of a run."""

    folder: Path

    @property
    def report(self) -> Path:
        """Everything as JSON, see docs/report.md."""
        return self.folder / "report.json"

    @property
    def picture(self) -> Path:
        """The layout as SVG."""
        return self.folder / "layout.svg"


@define
class RunState:
    """What a run has come to know; the report is made of it, however the run ends."""

    started: datetime.datetime = Factory(lambda: datetime.datetime.now(datetime.timezone.utc))
    began: float = Factory(time.monotonic)
    timings: dict[str, float] = Factory(dict)
    ray: dict[str, Any] = Factory(dict)
    spec: RunSpec | None = None
    simulated: bool = False
    layout: Layout | None = None
    records: Sequence[WorkerRecord] = ()
    results: dict[int, Any] = Factory(dict)
    checks: list[Check] = Factory(list)
    warnings: list[str] = Factory(list)

    def mark(self, name: str) -> None:
        """Note the seconds since the start under a name."""
        self.timings[name] = time.monotonic() - self.began


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
    files, screen, state = RunFiles(folder), Screen(), RunState(spec=spec, simulated=spec.ray.kind == "simulated")

    def work(interrupts: Interrupts) -> int:
        if spec.mode == "plan":
            return _plan(spec, state, screen, overrides)
        return _up(spec, state, screen, interrupts, overrides, modules_in or os.curdir)

    conclusion = Conclusion(
        write=lambda error: _write(files, state, spec, error),
        last_line=lambda error: _last_line(spec, state, error),
    )
    return conduct(work, files, screen, conclusion, full_error=full_error)


@frozen
class Conclusion:
    """How a run comes to its end: each function takes the error that ended it, or None."""

    write: Callable[[BaseException | None], None]  # the files of the run
    last_line: Callable[[BaseException | None], str]


def conduct(work: Callable[[Interrupts], int], files: RunFiles, screen: Screen, conclusion: Conclusion, *, full_error: bool) -> int:
    """Do the work of a run, and bring it to its report, its last line and its exit code, however the work ends.

    Args:
        work: Gives everything back by itself, and returns the exit code.
        files: Where the report goes.
        screen: Where the last line goes.
        conclusion: What is written and said.
        full_error: Whether tracebacks are shown.
    """
    error: BaseException | None = None
    with orderly_interrupts() as interrupts:
        interrupts.when_stuck(STUCK_AFTER_S, lambda: _give_up(interrupts.cause, conclusion))
        try:
            code = work(interrupts)
        except RlClusterError as problem:
            error, code = problem, problem.exit_code
            logger.debug("the run ended with this error", exc_info=True)
        except KeyboardInterrupt as stop:
            interrupted = interrupts.named(stop)
            error, code = interrupted, interrupted.exit_code
        except BaseException as problem:  # also the SystemExit of a user's code: a run always comes to its report
            error, code = problem, EXIT_CHECK_FAILED
            logger.debug("the run ended with this error", exc_info=True)
        interrupts.ending()
        interrupts.ended()
        if error is not None:
            complain(error, full_error=full_error)
        try:
            conclusion.write(error)
        except OSError as failure:
            unwritten = unwritable(files, failure)
            complain(unwritten, full_error=full_error)
            if error is None:
                error, code = unwritten, unwritten.exit_code
        screen.show(f"files: {files.folder}")
        screen.show(conclusion.last_line(error))
        if screen.unshown is not None:
            unshown = unshown_error(screen.unshown)
            complain(unshown, full_error=full_error)
            code = code or unshown.exit_code
    return code


def _give_up(cause: RlClusterError | None, conclusion: Conclusion) -> None:
    """End this process in the middle of giving back: its end closes what it holds, and what it started is ended by the reaper."""
    stuck = stuck_error()
    error = cause or stuck
    with contextlib.suppress(OSError):
        conclusion.write(error)
    print("\n".join([*dict.fromkeys([str(error), str(stuck)]), conclusion.last_line(error)]), file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def stuck_error() -> RlClusterError:
    """Ray does not answer while everything is given back."""
    return RlClusterError(
        f"ray: it must let go within {STUCK_AFTER_S:g} s at the end, got no answer (a process of Ray's hangs or is gone). "
        "Fix: see Ray's log; this process ends now, and with it everything that it started"
    )


def complain(error: BaseException, *, full_error: bool) -> None:
    """Say on standard error what ended a run."""
    if full_error:
        say("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip("\n"))
    say(error_text(error))


def unwritable(files: RunFiles, failure: OSError) -> RlClusterError:
    """The error for files of a run that can't be written."""
    reason = failure.strerror or str(failure)
    return RlClusterError(
        f"files: {failure.filename2 or failure.filename or files.folder} can't be written ({reason}). "
        "Fix: make room there, or choose another folder: hydra.run.dir=FOLDER"
    )


def error_text(error: BaseException) -> str:
    """What ended a run, in words for a person."""
    if isinstance(error, RlClusterError):
        return str(error)
    if isinstance(error, Interrupted):
        return f"interrupted by {error.shown}; everything was given back"
    return f"internal error: {type(error).__name__}: {error}. Its traceback is in the log of this run; please report it"


def _last_line(spec: RunSpec, state: RunState, error: BaseException | None) -> str:
    text = None if error is None else error_text(error).splitlines()[0]
    if spec.mode == "plan" and error is None and state.layout is not None:
        used = len({bundle.node_id for bundle in state.layout.bundles})
        suffix = " (simulated)" if state.simulated else ""
        return f"PLANNED: {len(state.layout.bundles)} bundles on {used} machine{'s' * (used != 1)}, nothing was created{suffix}"
    return render_verdict(state.checks, workers=state.records, simulated=state.simulated, error=text)


def _write(files: RunFiles, state: RunState, spec: RunSpec, error: BaseException | None) -> None:
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
        error=None if error is None else error if isinstance(error, RlClusterError) else error_text(error),
    )
    write_report(files.report, report)
    if state.layout is not None:
        files.picture.write_text(render_svg(_picture(spec, state)), encoding="utf-8")


def _picture(spec: RunSpec, state: RunState) -> Picture:
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


def _plan(spec: RunSpec, state: RunState, screen: Screen, overrides: Sequence[str]) -> int:
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


def _inventory_to_plan_on(spec: RunSpec, state: RunState) -> Inventory:
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
            state.ray = {"kind": ray_session.kind, "address": ray_session.address, "version": _ray_version()}
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
    spec: RunSpec, state: RunState, screen: Screen, interrupts: Interrupts, overrides: Sequence[str], modules_in: str | os.PathLike[str]
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
        state.ray = {"kind": ray_session.kind, "address": ray_session.address, "version": _ray_version()}
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
                    start_timeout_s=spec.worker.start_timeout_s,
                    on_progress=on_progress,
                )
            )
        held.callback(interrupts.ending)
        state.records = group.records
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


def _check(group: Any, state: RunState) -> list[Check]:
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


def _ray_version() -> str:
    import ray

    return str(ray.__version__)
