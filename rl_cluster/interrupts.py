"""Ctrl-C and SIGTERM: the first one ends the run in order, later ones can't break the giving back."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_BY_SIGNAL = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end. ``exit_code`` is the shell's usual one (130 for Ctrl-C)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.name = signal.Signals(number).name
        self.exit_code = EXIT_BY_SIGNAL[signal.Signals(number)]


class Interrupts:
    """Turns the first signal into :class:`Interrupted`; says of later ones that everything is being given back already."""

    def __init__(self) -> None:
        self._ending = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._ending:
            # not print: the interrupted code may be within a print of its own, which Python forbids to enter twice
            with contextlib.suppress(OSError):
                os.write(2, b"still giving everything back, which takes a few seconds ...\n")
            return
        self._ending = True
        raise Interrupted(number)

    def install(self) -> None:
        """Take the signals over (``ray.init`` sets a handler of its own for SIGTERM, so this is called again after it)."""
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_BY_SIGNAL:
                signal.signal(number, self.handle)

    def ending(self) -> None:
        """From here on no signal interrupts: the end has begun anyway."""
        self._ending = True


@contextlib.contextmanager
def orderly_interrupts() -> Iterator[Interrupts]:
    """Take the signals over for the block, and give them back."""
    before = {number: signal.getsignal(number) for number in EXIT_BY_SIGNAL}
    interrupts = Interrupts()
    interrupts.install()
    try:
        yield interrupts
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
