"""The entry point of run.py and of the command ``rl-cluster``: Ctrl-C is taken over before the imports, which take a while."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType


def main() -> None:
    """Do what the command line says. Ends the process with the exit code of the worst job."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, _end_quietly)
    from rl_cluster.programs.hydra_app import run_program

    run_program()


def _end_quietly(number: int, frame: FrameType | None) -> None:
    """Nothing has been started yet, so there is nothing to give back: no traceback of whatever was being imported."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted by Ctrl-C; nothing had been started\n")
    os._exit(130)


if __name__ == "__main__":
    main()
