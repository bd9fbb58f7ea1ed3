"""Runs a vendor's command with a hard deadline, so that a hanging driver can't hang a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

TIMEOUT_S = 8.0
SLOW = "no answer within"  # marks the refusal of a command that was killed


def run_command(command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> tuple[str | None, str]:
    """Run a command and give its output.

    Args:
        command: Program and arguments.
        timeout_s: Seconds after which the command and its children are killed.

    Returns:
        Its standard output and ``""``; or None and why there is none (missing, exit status, too slow).
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return None, f"{command[0]}: {(error.strerror or 'cannot start').lower()}"
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout is not None:  # a process that hangs in the driver can't be killed and keeps its end: don't wait for that
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        return None, f"{command[0]}: {SLOW} {timeout_s:g} s"
    if process.returncode != 0:
        return None, f"{command[0]}: exit status {process.returncode}"
    return output.decode("utf-8", errors="replace"), ""
