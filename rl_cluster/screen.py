"""What a run shows: results on standard output, what is going on on standard error; plain where that is no terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator

from rl_cluster.grid import render_grid
from rl_cluster.picture import Picture

logger = logging.getLogger(__name__)


class Screen:
    """Where a run shows things: results on standard output, what is going on on standard error."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.color = terminal and os.environ.get("TERM") != "dumb"
        # 0 is a terminal that does not say its width (before Python 3.11 it comes through)
        self.width = (shutil.get_terminal_size().columns or 80) if sys.stdout.isatty() else None
        self.ascii_only = not _can_encode(sys.stdout.encoding)

    def show(self, text: str) -> None:
        """A part of the result. A reader that has gone (``run.py | head -3``) doesn't end the run."""
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # what Python still holds for this stream is written at its end, so the stream itself must lead nowhere
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def part(self, name: str, text: str, *, simulated: bool) -> None:
        """A part of the result below its name, so that what is copied out of the screen says that it is simulated."""
        self.show(f"{name} (simulated):" if simulated else f"{name}:")
        self.show(text)

    def tell(self, text: str) -> None:
        """What is going on; goes to the log as well."""
        logger.info(text)
        print(text, file=sys.stderr, flush=True)

    def grid(self, picture: Picture) -> None:
        """The drawing."""
        self.show(render_grid(picture, width=self.width, color=self.color, ascii_only=self.ascii_only))

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
