"""Ctrl-C and SIGTERM: the first one ends the run in order, later ones can't break the giving back."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from rl_cluster.errors import RlClusterError

LastWords = Callable[[RlClusterError, RlClusterError], None]  # what ended the run, and why it can't be ended in order

STUCK_AFTER_S = 30.0  # Ray's own limit for a lost control service is 60 s; then it ends the process with an exit code of its own
EXIT_BY_SIGNAL = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
_LAST_ACTS: list[Callable[[int], int]] = []
LOST_AGAIN_AFTER_S = 0.05  # after which the hook that lost it has ended


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end. ``exit_code`` is the shell's usual one (130 for Ctrl-C)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.shown = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self.exit_code = EXIT_BY_SIGNAL[signal.Signals(number)]


class Interrupts:
    """Turns the first signal into :class:`Interrupted`; says of later ones that everything is being given back already.

    Args:
        swallowed_after_s: A signal this long after the first one interrupts again if the end has not begun by then: what the first
            one raised can have been lost, in a ``__del__`` or in a callback of a library.
    """

    def __init__(self, *, swallowed_after_s: float = 10.0) -> None:
        self._swallowed_after_s = swallowed_after_s
        self._ending = False
        self._first: int | None = None
        self._when = 0.0
        self._stuck: threading.Timer | None = None
        self._last_words: LastWords | None = None
        self._noted: socket.socket | None = None  # gives the number of each signal as soon as it comes
        self.cause: RlClusterError | None = None  # what ended the run, as far as it is known while everything is given back

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        lately = self._first is not None and time.monotonic() < self._when + self._swallowed_after_s
        if self._ending or lately:
            # not print: the interrupted code may be within a print of its own, which Python forbids to enter twice
            with contextlib.suppress(OSError):
                os.write(2, b"still giving everything back, which takes a few seconds ...\n")
            return
        self._first, self._when = number if self._first is None else self._first, time.monotonic()
        raise Interrupted(number)

    def rearm(self) -> None:
        """The first signal has done its work, which was no end yet: the next one interrupts at once."""
        self._when = -math.inf

    def named(self, stop: KeyboardInterrupt) -> Interrupted:
        """Which signal it was: a wait inside Ray turns what our handler raises into a plain KeyboardInterrupt."""
        return stop if isinstance(stop, Interrupted) else Interrupted(signal.SIGINT if self._first is None else self._first)

    def asked(self) -> int | None:
        """The first signal that came, also one whose handler has not run: a wait inside Ray is one step for Python, and handlers run
        between its steps."""
        if self._noted is not None and self._first is None:
            with contextlib.suppress(OSError):  # nothing came, or it is closed by now
                self._first = next((number for number in self._noted.recv(4096) if number in EXIT_BY_SIGNAL), None)
        return self._first

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take the signals over for the block, and give them back (nothing in a thread, which signals don't reach)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._noted, notes = socket.socketpair()
        with self._noted, notes:
            notes.setblocking(False)
            self._noted.setblocking(False)
            before = {number: signal.signal(number, self.handle) for number in EXIT_BY_SIGNAL}
            others = signal.set_wakeup_fd(notes.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(others)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def lost(self, stop: Interrupted) -> None:
        """Interrupt once more: Python throws away what is raised in a ``__del__`` or in a hook around a fork (subprocess, logging)."""
        if not self._ending:
            self._when = -math.inf
            again = threading.Timer(LOST_AGAIN_AFTER_S, os.kill, (os.getpid(), stop.number))
            again.daemon = True
            again.start()

    def when_stuck(self, last_words: LastWords) -> None:
        """What is still said and written where this process ends at once: a Ray whose processes hang never answers, and no signal
        reaches a wait inside it. That is so when giving back takes too long, and when :meth:`give_up` is called."""
        self._last_words = last_words
        self._stuck = threading.Timer(STUCK_AFTER_S, lambda: self.give_up(stuck_error()))
        self._stuck.daemon = True

    def give_up(self, why: RlClusterError) -> None:
        """End this process, from any thread: its end closes what it holds, and what it started is ended by the reaper.

        Args:
            why: Why it can't be ended in order. The exit code is that of the signal that asked for the end, or of what else ended the run.
        """
        error, number = self.cause or why, self.asked()
        code = error.exit_code
        if number is not None:
            error, code = RlClusterError(f"interrupted by {Interrupted(number).shown}; {why}"), EXIT_BY_SIGNAL[signal.Signals(number)]
        try:
            if self._last_words is not None:
                self._last_words(error, why)
            for act in reversed(_LAST_ACTS):
                code = act(code)
        finally:
            os._exit(code)

    def ending(self) -> None:
        """From here on no signal interrupts: the end has begun anyway."""
        if not self._ending and self._stuck is not None:
            self._stuck.start()
        self._ending = True

    def ended(self) -> None:
        """Everything has been given back."""
        if self._stuck is not None:
            self._stuck.cancel()


@contextlib.contextmanager
def last_act(act: Callable[[int], int]) -> Iterator[None]:
    """Within the block: what else is done where this process ends at once. It gets the exit code and returns it, or another one."""
    _LAST_ACTS.append(act)
    try:
        yield
    finally:
        _LAST_ACTS.remove(act)


def last_words_of(error: RlClusterError, why: RlClusterError) -> str:
    """Both, for a person; the first may say the second already."""
    return str(error) if str(why) in str(error) else f"{error}\n{why}"


def stuck_error() -> RlClusterError:
    """Ray does not answer while everything is given back."""
    return RlClusterError(
        f"ray: it must let go within {STUCK_AFTER_S:g} s at the end, got no answer (a process of Ray's hangs or is gone). "
        "Fix: see Ray's log; this process ends now, and with it everything that it started"
    )


@contextlib.contextmanager
def without_rays_handler() -> Iterator[None]:
    """Keep ``ray.init`` from taking SIGTERM over within the block: its handler ends the process at once, whatever is still held.

    Ray's C++ part takes it over, too, below Python: prints a stack, and aborts the process 3 s later. So it is taken back at the end.
    """
    from ray._private import utils

    rays = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = rays
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextlib.contextmanager
def orderly_interrupts() -> Iterator[Interrupts]:
    """Take the signals over for the block, and give them back."""
    interrupts = Interrupts()
    unraisable = sys.unraisablehook

    def not_for_nothing(told: sys.UnraisableHookArgs) -> None:
        if isinstance(told.exc_value, Interrupted):
            interrupts.lost(told.exc_value)
        else:
            unraisable(told)

    sys.unraisablehook = not_for_nothing
    try:
        with interrupts.installed():
            yield interrupts
    finally:
        interrupts.ended()
        sys.unraisablehook = unraisable
