"""Run one step of a build: uv dies with its builder, and what it writes goes to a log without secrets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from rl_cluster.ground.secrets import mask_text

__all__ = ["first_line", "last_lines", "run_step", "start_log"]

_LAST_OUTPUT_S = 2.0  # for what a process has written before its end; something that it left behind may keep the pipe open for longer

# Started in front of uv: the kernel ends uv when its builder is killed, so that nothing writes on into a folder that the next one builds.
# 1 is PR_SET_PDEATHSIG; the parent may have died before it took effect, hence the second look.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


def start_log(log: Path, line: str) -> None:
    """Begin a log anew, which only this user may read."""
    log.unlink(missing_ok=True)  # not another one's file, nor one with another mode
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(line + "\n")


def run_step(
    command: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    log: Path,
    deadline: float,
    tick_s: float,
    tick: Callable[[], object],
) -> int | None:
    """Run a command to its end.

    Args:
        command: Its first word is a path.
        cwd: Folder in which it runs.
        environ: Its environment; secret values of uv's own variables are masked in the log, as are logins and tokens.
        log: Gets what the command writes.
        deadline: On ``time.monotonic()``; then the command and what it started are killed.
        tick_s: Seconds after which ``tick`` is called, again and again.
        tick: What to do in between.

    Returns:
        The exit code, negative after a signal; None at the deadline.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout
    failure: list[OSError] = []
    copier = threading.Thread(target=_copy, args=(process.stdout, log, environ, failure), daemon=True)
    copier.start()
    try:
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            try:
                process.wait(timeout=min(tick_s, left))
            except subprocess.TimeoutExpired:
                tick()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the build backends that uv started
            process.wait()
        copier.join(_LAST_OUTPUT_S)
    if failure:
        raise failure[0]
    return process.returncode


def first_line(log: Path) -> str:
    """Of a log; empty where there is none that can be read."""
    with suppress(OSError), log.open(errors="replace") as file:
        return file.readline().strip()
    return ""


def last_lines(log: Path, start: int, count: int) -> str:
    """The end of what was written to a log after its first ``start`` bytes."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(start)
        return "\n".join(file.read().decode(errors="replace").rstrip().splitlines()[-count:])
    return ""


def _copy(source: IO[bytes], log: Path, environ: Mapping[str, str], failure: list[OSError]) -> None:
    # Not of all variables: RAY_AUTH_MODE=disabled would mask a word of the output.
    secrets = {name: value for name, value in environ.items() if name.startswith("UV_")}
    with source:
        try:
            with log.open("a") as file:
                for line in source:
                    file.write(mask_text(line.decode(errors="replace"), env=secrets))
                    file.flush()
        except OSError as error:  # the disk is full, say; uv must not wait for a reader
            failure.append(error)
            for _ in source:
                pass
