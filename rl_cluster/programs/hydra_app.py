"""What run.py runs: Hydra composes the config, the door checks it, :mod:`rl_cluster.programs.job` does it; every error gets its exit code.

Ray is imported only when a job runs, so that ``--help``, ``--cfg job`` and completion stay quick.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_cluster.config import GROUPS, PRIMARY_CONFIG, conf_dir, describe_compose_error, from_config, option_names
from rl_cluster.config_files.command_line import folder_words, why_refused
from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_CONFIG, EXIT_OK, ConfigError
from rl_cluster.ground.interrupts import last_act, orderly_interrupts
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.programs.sweep import JobNote, end_sweep, noted_job, sweep_has_jobs
from rl_cluster.schema import RunSpec
from rl_cluster.views.screen import CLOSED, ready_streams, say, unshown_error, written

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig

    from rl_cluster.programs.runs import Run

FULL_ERROR = "HYDRA_FULL_ERROR"
_FOLDER_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def run_program() -> None:
    """Do what the command line says. Ends the process with the exit code of the worst job."""
    codes: list[int] = []
    # Hydra then raises instead of printing its own text and ending the process; a user who set it wants the traceback
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    os.environ[FULL_ERROR] = "1"
    is_open = ready_streams()
    logging.raiseExceptions = False  # a full disk below the log is no reason to end a run
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # Ray colours what it passes on from a node, whatever it writes to

    def at_once(code: int) -> int:
        return max(code, *codes, *end_sweep(interrupted=code >= 128, give_back=False))

    with orderly_interrupts() as interrupts, last_act(at_once):
        interrupted = False
        try:
            refusal = why_refused(sys.argv[1:])
            if refusal is None:
                _run_hydra(codes, full_error=wants_traceback)
            else:
                _complain([refusal])
                codes.append(EXIT_CONFIG)
            # what --help or --cfg has printed; a job looks by itself, and has its files
            failure = written("", sys.stdout) if is_open or codes or sweep_has_jobs() else CLOSED
            if failure is not None:
                codes.append(_unshown(failure))
        except KeyboardInterrupt as stop:
            interrupted = True
            if not any(code >= 128 for code in codes):
                codes.append(interrupts.named(stop).exit_code)
        except SystemExit:  # Hydra's own end, after --help
            if (failure := written("", sys.stdout) if is_open else CLOSED) is None:
                raise
            codes.append(_unshown(failure))
        except Exception as error:
            # was it standard output that refused, in one of Hydra's prints? Such an error names no file, so the stream itself is asked
            of_a_file = not isinstance(error, OSError) or error.filename or _output_dir(error) or _is_of_config(error)
            failure = None if of_a_file else written("\n", sys.stdout)
            if failure is not None or isinstance(error, BrokenPipeError):
                codes.append(EXIT_OK if failure is None else _unshown(failure))
            elif wants_traceback:
                raise
            else:
                codes.append(_explain(error, in_job=bool(codes) or sweep_has_jobs()))
        finally:
            if not wants_traceback:
                os.environ.pop(FULL_ERROR, None)
            interrupts.ending()
            codes += end_sweep(interrupted=interrupted)
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # everything is given back; an impatient Ctrl-C must not change the exit code
    sys.exit(max(codes, default=EXIT_OK))


def _run_hydra(codes: list[int], *, full_error: bool) -> None:
    import hydra

    def task(config: DictConfig) -> int:
        codes.append(EXIT_OK)  # a job has begun
        with noted_job() as note:
            _job(config, note, full_error=full_error)
        codes[-1] = note.code
        if codes[-1] >= 128:
            raise KeyboardInterrupt  # a signal ends the sweep, not only this job of it
        return codes[-1]

    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=PRIMARY_CONFIG)(task)()


def _is_of_config(error: Exception) -> bool:
    """Whether Hydra or omegaconf refuses the config; a missing option is an OSError as well."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return isinstance(error, (HydraException, OmegaConfBaseException))


def _explain(error: Exception, *, in_job: bool) -> int:
    """Say what went wrong, one line for each problem. Returns the exit code."""
    of_config = _is_of_config(error)
    if isinstance(error, ConfigError):
        _complain(error.problems)
    elif isinstance(error, OSError) and not of_config and (not in_job or error.errno in _FOLDER_REFUSES):
        where = error.filename or _output_dir(error)
        got = f"{where}: {error.strerror or error}" if where else error.strerror or error
        _complain([f"hydra.run.dir: must be a folder that can be written, got {got}. Fix: hydra.run.dir=FOLDER"])
    elif in_job and not of_config:
        _complain([f"internal error: {type(error).__name__}: {error}. Fix: {FULL_ERROR}=1 shows its traceback; please report it"])
        return EXIT_CHECK_FAILED
    else:
        # Some refusals of Hydra's are plain ValueErrors.
        _complain(describe_compose_error(error, sys.argv[1:]))
    return EXIT_CONFIG


def _output_dir(error: OSError) -> str | None:
    """Where Hydra was about to write: a full disk refuses without naming a file, and Hydra has forgotten its folder by now."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "run_job" and "output_dir" in frame.f_locals:
            return str(frame.f_locals["output_dir"])
    return None


def _unshown(failure: OSError) -> int:
    error = unshown_error(failure)
    _complain([str(error)])
    return error.exit_code


def _job(config: DictConfig, note: JobNote, *, full_error: bool) -> None:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from rl_cluster.programs.job import resolve_paths
    from rl_cluster.programs.runs import RunFiles

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    called_from = str(hydra_config.runtime.cwd)
    overrides = [*folder_words(sys.argv[1:]), *(OmegaConf.to_container(hydra_config.overrides.task) or [])]
    if called_from not in sys.path:
        # worker.target may live beside the recipe, also for the installed command; last, so that no ray.py there is taken for Ray
        sys.path.append(called_from)
    _mask_hydras_copies(config, hydra_config)
    try:
        _check_choices(overrides)
        spec = resolve_paths(from_config(config, kind=RunSpec), called_from)
    except ConfigError as error:
        if full_error:
            raise
        _complain(error.problems)
        note.code, note.error = EXIT_CONFIG, error.problems[0]
        return
    note.code = _kind_of_run(spec)(
        spec=spec, files=RunFiles(folder), overrides=[str(word) for word in overrides], full_error=full_error, modules_in=called_from
    ).to_its_end()


def _mask_hydras_copies(config: DictConfig, hydra_config: HydraConf) -> None:
    """Hydra has written down what was asked for, as it was written, for everybody to read."""
    from omegaconf import OmegaConf

    from rl_cluster.ground.secrets import mask_text

    given = OmegaConf.to_container(OmegaConf.select(config, "env.set") or OmegaConf.create({}), resolve=False)
    values = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else {}
    folder = Path(hydra_config.runtime.output_dir)
    for path in (*folder.glob(f"{hydra_config.output_subdir}/*.yaml"), *folder.parent.glob("multirun.yaml")):
        with contextlib.suppress(OSError, UnicodeError):
            text = path.read_text(encoding="utf-8")
            masked = mask_text(text, env=values)
            if masked != text:
                path.write_text(masked, encoding="utf-8")


def _kind_of_run(spec: RunSpec) -> type[Run]:
    if spec.mode == "prefetch":
        from rl_cluster.programs.prefetch_job import PrefetchRun

        return PrefetchRun
    if spec.recipe is not None:
        from rl_cluster.programs.recipe_job import RecipeRun

        return RecipeRun
    from rl_cluster.programs.job import ClusterRun

    return ClusterRun


def _check_choices(words: Sequence[str]) -> None:
    """Hydra takes a list of options for a group: of none the schema's defaults would be left, of several a mixture."""
    from rl_cluster.config_files.options import parse_words

    problems = []
    for _, override in parse_words(words, []):
        group = str(override.key_or_group)
        if group in GROUPS and isinstance(override.value(), list):
            broken = RuleBroken(
                "must be one option", override.value(), fix=f"write {group}=<option>; they are {', '.join(option_names(group))}"
            )
            problems.append(broken.line(group))
    if problems:
        raise ConfigError(problems=problems)


def _complain(problems: Sequence[str]) -> None:
    for problem in problems:
        say(problem)
