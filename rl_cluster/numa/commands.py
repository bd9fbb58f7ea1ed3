"""Runs a vendor's command with a hard deadline, so that a hanging driver can't hang a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

TIMEOUT_S = 8.0


def run_command(command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> tuple[str | None, str]:
    """Run a command and give its output.

    Args:
        command: Program and arguments.
        timeout_s: Seconds after which the command and its children are killed.

    Returns:
        Its standard output and ``""``; or None and why there is none (missing, exit status, too slow).
    """
    # A file, no pipe: a killed command's children would keep a pipe open, and a process that hangs in the driver can't even be killed.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            return None, f"{command[0]}: {(error.strerror or 'cannot start').lower()}"
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it is left behind
                process.wait(1.0)
            return None, f"{command[0]}: no answer within {timeout_s:g} s"
        if status != 0:
            return None, f"{command[0]}: exit status {status}"
        output.seek(0)
        return output.read().decode("utf-8", errors="replace"), ""
