"""A sweep (``run.py -m``): its jobs, the row that each of them writes, the simulated cluster that they share, and its end.

Hydra composes one job after the other and, in version 1.3, says nothing at the end of a sweep in which a job failed. So the sweep
begins by a callback (:class:`SweepBegin`, in conf/rl_cluster.yaml), which knows the words of all jobs; each job notes itself in the
summary (:func:`noted_job`), in whatever process a launcher runs it; and the program that began the sweep ends it (:func:`end_sweep`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import define

from rl_cluster.connection.ray_home import homes_of_jobs
from rl_cluster.connection.simulate_shared import SharedSimulation, sharing
from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, EXIT_OK, ConfigError, RlClusterError
from rl_cluster.ground.interrupts import EXIT_BY_SIGNAL, last_act
from rl_cluster.views.screen import Screen, say, unshown_error
from rl_cluster.views.sweep_summary import JobRow, SummaryFiles, finished_row, unfinished_row

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rl_cluster.inventory import Inventory
    from rl_cluster.schema import RaySpec, RunSpec

logger = logging.getLogger(__name__)

BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@define
class Sweep:
    """The sweep that this process has begun."""

    files: SummaryFiles
    jobs: tuple[tuple[str, ...], ...]  # the words of each job; empty where the sweeper decides as it goes
    config_name: str
    called_from: str
    simulation: SharedSimulation
    held: contextlib.ExitStack


_BEGUN: list[Sweep] = []  # at most one: Hydra runs one sweep in a process


class SweepBegin:
    """Hydra's callback. Copies of it travel to the processes of a launcher, so it holds nothing."""

    def on_multirun_start(self, config: DictConfig, config_name: str | None = None, **_: Any) -> None:
        """Note the sweep before its first job is composed."""
        hydra_config = config.hydra
        folder = Path(str(hydra_config.runtime.cwd), str(hydra_config.sweep.dir))
        jobs = _words_of_jobs(config) if hydra_config.sweeper.get("_target_") == BASIC_SWEEPER else ()
        called_from, simulation = str(hydra_config.runtime.cwd), SharedSimulation(_simulated_by_all_jobs)
        sweep = Sweep(SummaryFiles(folder), jobs, config_name or "", called_from, simulation, contextlib.ExitStack())
        _BEGUN[:] = [sweep]
        sweep.files.clear()
        sweep.held.enter_context(homes_of_jobs())
        sweep.held.callback(simulation.close)

    def _nothing(self, **_: Any) -> None:
        pass

    on_run_start = on_run_end = on_multirun_end = on_job_start = on_job_end = on_compose_config = _nothing


def _words_of_jobs(config: DictConfig) -> tuple[tuple[str, ...], ...]:
    """The jobs in the order of Hydra's basic sweeper: the product of the values, the last word varying fastest."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    values: dict[str, list[str]] = {}
    for override in parser.parse_overrides([*words, *config.hydra.overrides.task]):
        key = override.get_key_element()
        each = override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
        values[key] = [f"{key}={value}" for value in each]
    return tuple(itertools.product(*values.values()))


def _simulated_by_all_jobs() -> list[tuple[RaySpec, Inventory]]:
    """What each job would simulate. A job whose config is refused has its own moment to say so."""
    from hydra import compose

    from rl_cluster.config import from_config
    from rl_cluster.schema import RunSpec

    sweep = _BEGUN[0]
    found = []
    for words in sweep.jobs:
        with contextlib.suppress(RlClusterError, OSError):
            spec = from_config(compose(sweep.config_name, overrides=list(words)), kind=RunSpec)
            if spec.ray.kind == "simulated" and spec.mode != "plan":
                found.append((spec.ray, _simulated_by(spec, sweep.called_from)))
    return found


def _simulated_by(spec: RunSpec, called_from: str) -> Inventory:
    from rl_cluster.programs.job import inventory_to_simulate, resolve_paths

    spec = resolve_paths(spec, called_from)
    if spec.recipe is None:
        return inventory_to_simulate(spec)
    from rl_cluster.config_files.recipe_file import load_recipe
    from rl_cluster.recipes.recipe_preview import nodes_to_simulate

    recipe = load_recipe(spec.recipe, overrides=spec.recipe_overrides)
    return nodes_to_simulate(attrs.evolve(recipe, ray=spec.ray), spec.inventory)


# --- a job ---


@define
class JobNote:
    """What a job says of its end: its exit code, and what ended it if that comes into no report."""

    code: int = EXIT_OK
    error: str | None = None


@contextlib.contextmanager
def noted_job() -> Iterator[JobNote]:
    """Note the job that Hydra runs now in the summary of its sweep, when it begins and when it ends. Outside a sweep it does nothing."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    hydra_config = HydraConfig.get()
    note = JobNote()
    if hydra_config.mode != RunMode.MULTIRUN:
        yield note
        return
    folder = Path(str(hydra_config.runtime.output_dir))
    for name in ("report.json", "layout.svg"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()  # of a sweep that was here before
    files = SummaryFiles(Path(str(hydra_config.runtime.cwd), str(hydra_config.sweep.dir)))
    overrides = tuple(str(word) for word in hydra_config.overrides.task)
    row = JobRow(int(hydra_config.job.num), overrides, "running", folder=str(folder))

    def ended(code: int) -> int:
        _put(files, finished_row(row, exit_code=code, report=_report(folder), error=note.error))
        return code

    try:
        with sharing(_BEGUN[0].simulation) if _BEGUN else contextlib.nullcontext(), last_act(ended):
            _put(files, row)
            yield note
    except BaseException as error:
        note.code = note.code or _code_of(error)
        note.error = note.error or str(error) or type(error).__name__
        raise
    finally:
        with _signals_later():
            ended(note.code)


def _code_of(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return int(getattr(error, "exit_code", EXIT_INTERRUPTED))
    return error.exit_code if isinstance(error, ConfigError) else EXIT_CHECK_FAILED


def _report(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _put(files: SummaryFiles, *rows: JobRow) -> None:
    """A summary that can't be written is no reason to end a job; the end of the sweep says so."""
    try:
        files.put(*rows)
    except (OSError, ValueError) as error:
        logger.warning("%s: can't be written (%s)", files.records, error)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Let signals come through after the block only: a row that is half decided would be wrong."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_BY_SIGNAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- the end ---


def sweep_has_jobs() -> bool:
    """Whether a job of this process's sweep has begun, in whatever process."""
    return bool(_BEGUN) and _BEGUN[0].files.records.exists()


def end_sweep(*, interrupted: bool, give_back: bool = True) -> list[int]:
    """Give the shared cluster back, complete the summary, show the table and draw the picture. Without a sweep it does nothing.

    Args:
        interrupted: Whether a signal ended the sweep.
        give_back: Whether there is time to end the shared cluster in order; else it ends with this process.

    Returns:
        The exit codes of its jobs.
    """
    if not _BEGUN:
        return []
    sweep = _BEGUN.pop()
    if give_back:
        sweep.held.close()
    codes = []
    try:
        rows = _completed(sweep, interrupted=interrupted)
        if rows and (failure := _show(sweep, rows)) is not None:
            unshown = unshown_error(failure)
            say(str(unshown))
            codes.append(unshown.exit_code)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = getattr(error, "filename2", None) or getattr(error, "filename", None) or sweep.files.records
        Screen().tell(
            f"summary: {where} can't be written ({reason}). Fix: make room there, or choose another folder: hydra.sweep.dir=FOLDER"
        )
        return [EXIT_CHECK_FAILED]
    return codes + [row.exit_code for row in rows if row.exit_code is not None]


def _completed(sweep: Sweep, *, interrupted: bool) -> Sequence[JobRow]:
    rows = sweep.files.read()
    if not rows:
        return ()
    changed = [unfinished_row(row, interrupted=interrupted) for row in rows if row.status == "running"]
    noted = {row.job for row in rows}
    changed += [JobRow(number, words, "not run") for number, words in enumerate(sweep.jobs) if number not in noted]
    return sweep.files.put(*changed) if changed else rows


def _show(sweep: Sweep, rows: Sequence[JobRow]) -> OSError | None:
    """Returns why standard output has refused it."""
    from rl_cluster.views.sweep_svg import render_sweep_svg
    from rl_cluster.views.sweep_table import render_sweep_table, render_sweep_verdict

    screen = Screen()
    screen.show("")
    simulated = any(row.simulated for row in rows)
    screen.part("sweep", render_sweep_table(rows, width=screen.width), simulated=simulated)
    sweep.files.picture.write_text(render_sweep_svg(rows), encoding="utf-8")
    screen.show("")
    screen.show(f"summary: {sweep.files.table}, {sweep.files.records.name}, {sweep.files.picture.name}")
    screen.show(render_sweep_verdict(rows))
    return screen.unshown
