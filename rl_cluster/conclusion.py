"""How a run comes to its end: its report, its last line and its exit code, whatever ended it."""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Callable

from attrs import frozen

from rl_cluster.errors import EXIT_CHECK_FAILED, RlClusterError
from rl_cluster.interrupts import Interrupted, Interrupts, orderly_interrupts
from rl_cluster.run_state import RunFiles
from rl_cluster.screen import Screen, say, unshown_error

logger = logging.getLogger(__name__)

STUCK_AFTER_S = 30.0  # Ray's own limit for a lost control service is 60 s; then it ends the process with an exit code of its own


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
    say("\n".join([*dict.fromkeys([str(error), str(stuck)]), conclusion.last_line(error)]))
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
