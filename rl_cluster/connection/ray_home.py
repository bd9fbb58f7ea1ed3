"""The temporary folder of a Ray that we start, and that of a sweep: made, owned, and removed on every way out (see ``_reaper.py``)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rl_cluster.ground import _reaper

# Ray's sockets lie below it: <home>/session_<date>_<time>_<pid>/sockets/plasma_store.31, and a socket's path has at most 107 bytes
MAX_HOME_LENGTH = 40
HOMES = "RL_CLUSTER_RAY_HOMES"  # variable: the folder for the homes of a sweep's jobs, which the sweep owns


@contextlib.contextmanager
def homes_of_jobs() -> Iterator[None]:
    """Within the block, the homes of this process and of its children lie in one folder; at the end whatever is left there is ended.

    A launcher that kills the processes of its jobs with all their children (joblib's does, on Ctrl-C) kills their reapers, too.
    """
    with _owned("rls-", tempfile.gettempdir(), below="/rls-12345678/rlc-12345678") as folder:
        os.environ[HOMES] = str(folder)
        try:
            yield
        finally:
            os.environ.pop(HOMES, None)


@contextlib.contextmanager
def ray_home() -> Iterator[Path]:
    """Make a folder for Ray's sessions; end what still runs out of it and remove it afterwards, even if this process is killed."""
    with _owned("rlc-", os.environ.get(HOMES) or tempfile.gettempdir(), below="/rlc-12345678") as home:
        yield home


@contextlib.contextmanager
def _owned(prefix: str, parent: str, *, below: str) -> Iterator[Path]:
    """A new folder, with a reaper; ``below`` is as long as what comes below the parent."""
    too_long = len(os.fsencode(parent)) > MAX_HOME_LENGTH - len(below)
    folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp" if too_long else parent)
    try:
        reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", _reaper.__file__, folder, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the owner's business
        )
    except BaseException:
        os.rmdir(folder)
        raise
    try:
        yield Path(folder)
    finally:
        assert reaper.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was ended by somebody: nothing to tell
            reaper.stdin.write(b"now")  # closing says nothing as long as a forked child of this process holds a copy of the pipe
            reaper.stdin.close()
        reaper.wait()
        if os.path.isdir(folder):  # the reaper was killed
            _reaper.reap(folder)
