"""What every run of run.py has: its files, what it comes to know, and its end, with a report, a last line and an exit code in any case."""

from __future__ import annotations

import abc
import contextlib
import datetime
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import Factory, define, frozen

from rl_cluster.errors import EXIT_CHECK_FAILED, RlClusterError
from rl_cluster.ground.interrupts import Interrupted, Interrupts, last_words_of, orderly_interrupts, without_rays_handler
from rl_cluster.process.nsight import END_S, ProfileRecord, check_profiles
from rl_cluster.process.records import WorkerRecord
from rl_cluster.programs.pulse import watched
from rl_cluster.schema import RaySpec, RunSpec
from rl_cluster.views.checks import Check, Rendezvous
from rl_cluster.views.picture import Picture
from rl_cluster.views.report import build_report, write_report
from rl_cluster.views.screen import Screen, say, unshown_error
from rl_cluster.views.svg import render_svg
from rl_cluster.views.table import render_checks

if TYPE_CHECKING:
    from rl_cluster.connection.session import RaySession, Watch
    from rl_cluster.worker_group import RayWorkerGroup

logger = logging.getLogger(__name__)


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

    @property
    def profiles(self) -> Path:
        """Folder of the workers' profiles, on their nodes."""
        return self.folder / "nsight"


@define
class RunState:
    """What a run has come to know; the report is made of it, however the run ends."""

    started: datetime.datetime = Factory(lambda: datetime.datetime.now(datetime.timezone.utc))
    began: float = Factory(time.monotonic)
    timings: dict[str, float] = Factory(dict)
    ray: dict[str, Any] = Factory(dict)
    simulated: bool = False
    checks: list[Check] = Factory(list)
    warnings: list[str] = Factory(list)
    groups: dict[str, RayWorkerGroup] = Factory(dict)  # that have come up, by name

    def mark(self, name: str) -> None:
        """Note the seconds since the start under a name."""
        self.timings[name] = time.monotonic() - self.began

    def connected(self, to: RaySession) -> None:
        """Note the Ray that the run works on."""
        import ray

        self.ray = {"kind": to.kind, "address": to.address, "version": str(ray.__version__)}

    def warn(self, warnings: Sequence[str], screen: Screen) -> None:
        """Say warnings now, and in the report."""
        self.warnings += warnings
        for warning in warnings:
            screen.tell(f"warning: {warning}")

    def came_up(self, name: str, group: RayWorkerGroup, screen: Screen) -> None:
        """Note a worker group, and say which of its workers are profiled."""
        self.groups[name] = group
        if group.profiles:
            ranks = ", ".join(str(record.rank) for record in group.profiles)
            folders = ", ".join(sorted({str(Path(record.output).parent) for record in group.profiles}))
            machines = ", ".join(sorted({record.address for record in group.profiles}))
            screen.tell(f"nsight: profiles {name}, rank{'s' * (len(group.profiles) > 1)} {ranks}, into {folders} on {machines}")

    @property
    def profiles(self) -> dict[str, tuple[ProfileRecord, ...]]:
        """Of the groups that have come up, as far as they are known."""
        return {name: group.profiles for name, group in self.groups.items()}

    def end_profiled(self, screen: Screen) -> None:
        """End the profiled workers in order, while there is time for it, and check that their profiles were written."""
        for name, group in self.groups.items():
            if group.profiles:
                screen.tell(f"nsight: waits for the profiles of {name}, {END_S:.0f} s at most (Ctrl-C ends the wait) ...")
                held, detail = check_profiles(group.end_profiled(timeout_s=END_S))
                self.checks.append(Check(name="profiles" if len(self.groups) == 1 else f"{name}: profiles", ok=held, detail=detail))
                screen.show(render_checks(self.checks).splitlines()[-1])  # below those that were shown before it


@define(kw_only=True)
class Run(abc.ABC):
    """One run of run.py. What it does, and what its report and its last line say, is its kind's."""

    spec: RunSpec  # as it was asked for
    files: RunFiles
    overrides: Sequence[str] = ()  # the words of the command line, for the commands that messages suggest
    modules_in: str | os.PathLike[str] = os.curdir  # where workers look for worker.target, too
    full_error: bool = False  # show tracebacks, which are in the log anyway
    screen: Screen = Factory(Screen)
    state: RunState = Factory(RunState)

    def __attrs_post_init__(self) -> None:
        self.state.simulated = self.spec.ray.kind == "simulated"

    @abc.abstractmethod
    def work(self, interrupts: Interrupts) -> int:
        """Do what was asked for, give everything back, and return the exit code."""

    @abc.abstractmethod
    def findings(self) -> dict[str, Any]:
        """Arguments of :func:`build_report`, beside those that every run has."""

    @abc.abstractmethod
    def last_line(self, failed: str | None) -> str:
        """The last line; ``failed`` is the first line of the error that ended the run."""

    def picture(self) -> Picture | None:
        """What is drawn, as far as it is known."""
        return None

    def to_its_end(self) -> int:
        """Do the work, and bring the run to its report, its last line and its exit code, however the work ends.

        Returns:
            The exit code: 0 done and verified, 3 not enough resources, 4 a check failed, 130 Ctrl-C, 143 SIGTERM.
        """
        error: BaseException | None = None
        with orderly_interrupts() as interrupts:
            interrupts.when_stuck(self._last_words)
            try:
                code = self.work(interrupts)
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
                complain(error, full_error=self.full_error)
            try:
                self.write(error)
            except OSError as failure:
                unwritten = unwritable(self.files, failure)
                complain(unwritten, full_error=self.full_error)
                if error is None:
                    error, code = unwritten, unwritten.exit_code
            self.screen.show(f"files: {self.files.folder}")
            self.screen.show(self._last_line(error))
            if self.screen.unshown is not None:
                unshown = unshown_error(self.screen.unshown)
                complain(unshown, full_error=self.full_error)
                code = code or unshown.exit_code
        return code

    def join_ray(
        self, held: ExitStack, interrupts: Interrupts, open_ray: Callable[[Watch], AbstractContextManager[RaySession]]
    ) -> RaySession:
        """Connect as :func:`connected` does, until ``held`` is closed, and note it."""
        ray_session = held.enter_context(connected(open_ray, interrupts, modules_in=self.modules_in, tell=self.screen.tell))
        held.callback(interrupts.ending)
        self.state.connected(ray_session)
        self.state.mark("ray")
        return ray_session

    def write(self, error: BaseException | None) -> None:
        """Write the files of the run."""
        state = self.state
        state.mark("total")
        common: dict[str, Any] = {
            "mode": self.spec.mode,
            "spec": self.spec,
            "checks": state.checks,
            "ray": state.ray,
            "simulated": state.simulated,
            "started": state.started,
            "timings_s": state.timings,
            "warnings": state.warnings,
            "profiles": state.profiles,
            "error": None if error is None else error if isinstance(error, RlClusterError) else error_text(error),
        }
        write_report(self.files.report, build_report(**{**common, **self.findings()}))
        picture = self.picture()
        if picture is not None:
            self.files.picture.write_text(render_svg(picture), encoding="utf-8")

    def _last_line(self, error: BaseException | None) -> str:
        return self.last_line(None if error is None else error_text(error).splitlines()[0])

    def _last_words(self, error: RlClusterError, why: RlClusterError) -> None:
        """What is written and said where this process ends in the midst of its work."""
        with contextlib.suppress(Exception):  # the main thread may be writing to the same things
            self.write(error)
        say(last_words_of(error, why))
        self.screen.show(f"files: {self.files.folder}")
        self.screen.show(self._last_line(error))


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


# --- steps that several kinds of runs take ---


@contextlib.contextmanager
def connected(
    open_ray: Callable[[Watch], AbstractContextManager[RaySession]],
    interrupts: Interrupts,
    *,
    modules_in: str | os.PathLike[str] = os.curdir,
    tell: Callable[[str], None] = say,
) -> Iterator[RaySession]:
    """Connect to Ray, or start one, and watch that it lives; it is given back at the end of the block.

    Args:
        open_ray: Opens the Ray that is meant.
        interrupts: Ends this process where Ray is lost.
        modules_in: Folder where workers look for modules.
        tell: Gets a line where Ray falls silent.
    """
    with ExitStack() as held:
        # ray.init tells the workers which folder is the current one then, and they look for modules there
        with without_rays_handler(), _working_in(modules_in):
            ray_session = held.enter_context(open_ray(lambda address: watched(address, interrupts, tell=tell)))
        yield ray_session


def looking(ray: RaySpec, interrupts: Interrupts, *, tell: Callable[[str], None]) -> AbstractContextManager[RaySession]:
    """Connect to a running Ray for a look at it. Arguments as of :func:`connected`."""
    from rl_cluster.connection import session

    return connected(lambda watch: session.open_ray(ray, watch=watch), interrupts, tell=tell)


@contextlib.contextmanager
def _working_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def look_again(group: RayWorkerGroup) -> tuple[tuple[WorkerRecord, ...], list[Rendezvous], Mapping[str, str] | None]:
    """What the checks of a group that is up hold against the layout.

    Returns:
        The workers, with their bindings as the kernel holds them now, after the user's class has started; what each says of the meeting
        point; and the interpreter that was built for each node, if any was.
    """
    seen = group.run_all("_rl_cluster_rendezvous")
    meeting = [Rendezvous(rank=rank, env=variables, holds_port=port) for rank, (variables, port) in enumerate(seen)]
    records = tuple(attrs.evolve(record, binding=now) for record, now in zip(group.records, group.verify_bindings(), strict=True))
    return records, meeting, {node: here.python for node, here in group.pythons.items() if here.python} or None
