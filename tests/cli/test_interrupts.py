"""Which signals end a run, and which ones can't break its end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rl_cluster.ground.interrupts import Interrupted, Interrupts, orderly_interrupts


@pytest.mark.parametrize(
    ("number", "shown", "code"),
    [
        pytest.param(signal.SIGINT, "Ctrl-C", 130, id="SIGINT"),
        pytest.param(signal.SIGTERM, "SIGTERM", 143, id="SIGTERM"),
        pytest.param(signal.SIGHUP, "SIGHUP", 129, id="SIGHUP"),
    ],
)
def test_first_signal_ends_the_run(number: int, shown: str, code: int) -> None:
    """The first signal raises, with the shell's exit code; the handlers are given back afterwards."""
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, orderly_interrupts():
        signal.raise_signal(number)
    assert (caught.value.shown, caught.value.exit_code) == (shown, code)
    assert signal.getsignal(number) is before


def test_later_signals_only_say_so(capfd: pytest.CaptureFixture[str]) -> None:
    """Once a signal has come, or the end has begun, further ones are answered by a line."""
    with orderly_interrupts() as interrupts:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        interrupts.ending()
        signal.raise_signal(signal.SIGTERM)
    assert capfd.readouterr().err == "still giving everything back, which takes a few seconds ...\n" * 2


def test_signal_that_was_lost() -> None:
    """If the end has not begun when the time is up, a further signal interrupts again; the first one names the exit code."""
    interrupts = Interrupts(swallowed_after_s=0.0)
    for number in (signal.SIGTERM, signal.SIGINT):
        with pytest.raises(Interrupted):
            interrupts.handle(number, None)
    assert interrupts.named(KeyboardInterrupt()).exit_code == 143
    interrupts.ending()
    interrupts.handle(signal.SIGINT, None)


def test_interrupt_that_ray_has_renamed() -> None:
    """A plain KeyboardInterrupt is the signal that came, or Ctrl-C if none went through our handler."""
    assert Interrupts().named(KeyboardInterrupt()).exit_code == 130


def test_a_signal_that_python_throws_away_comes_again() -> None:
    """What the handler raises in a ``__del__`` goes nowhere; the run is interrupted a moment later all the same."""

    class Unlucky:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # where the handler runs
                pass

    def run() -> None:
        Unlucky()
        time.sleep(60)

    with orderly_interrupts(), pytest.raises(Interrupted, match="SIGINT"):
        run()


def test_a_signal_after_a_hold_interrupts_again() -> None:
    """The first one has ended the hold, the second one what is waited for after it."""
    with orderly_interrupts() as interrupts:
        for _ in range(2):
            with pytest.raises(Interrupted):
                signal.raise_signal(signal.SIGINT)
            interrupts.rearm()
