"""What a run shows: results on standard output, what is going on on standard error; plain where that is no terminal."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TextIO

from rl_cluster.errors import EXIT_INTERRUPTED, RlClusterError
from rl_cluster.grid import render_grid
from rl_cluster.views.picture import Picture

logger = logging.getLogger(__name__)


P = ParamSpec("P")
PAGE_WIDTH = 140  # columns of a drawing where the width is not known: in a file or a pipe it stays readable
CLOSED = OSError(errno.EBADF, os.strerror(errno.EBADF))


def ready_streams() -> bool:
    """Make the standard streams such that no write to them ends a run.

    One that the caller has closed (``>&-``) leads nowhere from then on: the next file that is opened would get its number. A letter that
    the terminal has not is written as its number.

    Returns:
        Whether standard output is open, so that what is written there can be read by somebody.
    """
    is_open = sys.stdout is not None
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return is_open


def written(text: str, stream: TextIO) -> OSError | None:
    """Write a text out at once. A stream that refuses leads nowhere from then on.

    Returns:
        Why it refused; None also where only its reader has gone (``run.py | head -3``).
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as failure:
        # what Python still holds for this stream is written at its end, so the stream itself must lead nowhere
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        return None if isinstance(failure, BrokenPipeError) else failure
    return None


def say(text: str) -> None:
    """A line on standard error. Where that can't be written nobody can be told so."""
    written(f"{text}\n", sys.stderr)


def unshown_error(failure: OSError) -> RlClusterError:
    """The error for results that could not be shown."""
    return RlClusterError(
        f"standard output: must be writable, got {failure.strerror or failure}. Fix: write it to a disk with room, or to a terminal"
    )


def command(main: Callable[P, int]) -> Callable[P, int]:
    """For the main function of a command whose result is what it prints: where that can't be shown, a line says so, and it exits with 4.

    What it prints on standard output appears at its end. A reader that has just gone (``| head -3``) is no error; Ctrl-C is exit code 130.
    """

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        is_open = ready_streams()
        printed, ended, code = io.StringIO(), None, 0
        try:
            with contextlib.redirect_stdout(printed):
                code = main(*args, **kwargs)
        except SystemExit as end:  # argparse's, after --help or a word that it refuses
            ended = end
        except KeyboardInterrupt as stop:
            return int(getattr(stop, "exit_code", EXIT_INTERRUPTED))
        text = printed.getvalue()
        failure = (written(text, sys.stdout) if is_open else CLOSED) if text else None
        if failure is not None:
            unshown = unshown_error(failure)
            say(str(unshown))
            return code or unshown.exit_code
        if ended is not None:
            raise ended
        return code

    return guarded


class Screen:
    """Where a run shows things: results on standard output, what is going on on standard error.

    Args:
        logs: Whether what is going on also goes to the log: in a program of somebody else's that would be shown twice.
    """

    def __init__(self, *, logs: bool = True) -> None:
        self._logs = logs
        terminal = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.color = terminal and os.environ.get("TERM") != "dumb"
        # 0 is a terminal that does not say its width (before Python 3.11 it comes through)
        self.width = (shutil.get_terminal_size().columns or 80) if sys.stdout.isatty() else None
        self.unshown: OSError | None = None
        self.ascii_only = not _can_encode(sys.stdout.encoding)

    def show(self, text: str) -> None:
        """A part of the result. An output that refuses doesn't end the run; ``unshown`` says why, unless its reader has just gone."""
        self.unshown = written(f"{text}\n", sys.stdout) or self.unshown

    def part(self, name: str, text: str, *, simulated: bool) -> None:
        """A part of the result below its name, so that what is copied out of the screen says that it is simulated."""
        self.show(f"{name} (simulated):" if simulated else f"{name}:")
        self.show(text)

    def tell(self, text: str) -> None:
        """What is going on."""
        if self._logs:
            logger.info(text)
        say(text)

    def grid(self, picture: Picture) -> None:
        """The drawing."""
        self.show(render_grid(picture, width=self.width or PAGE_WIDTH, color=self.color, ascii_only=self.ascii_only))

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int, int], None]]:
        """A progress bar on a terminal; elsewhere a line at the end. Yields a function that takes (done, total)."""
        if not sys.stderr.isatty():
            last = 0

            def note(done: int, _: int) -> None:
                nonlocal last
                last = done

            yield note
            self.tell(f"{last} of {total} {what}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done, _: bar.update(task, completed=done)


def _can_encode(encoding: str | None) -> bool:
    try:
        "─│┌".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
