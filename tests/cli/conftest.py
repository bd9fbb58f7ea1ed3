"""Each test gets run.py in folders of its own, and must leave nothing behind: no process, no folder of a Ray."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_py import RunPy

GIVEN_BACK_WITHIN_S = 30.0


@pytest.fixture
def run_py(tmp_path: Path) -> Iterator[RunPy]:
    """Call it with the words of the command line."""
    # Ray's sockets lie below it, and a socket's path has at most 107 bytes, so pytest's own folder is too deep
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    run = RunPy(tmp_path, temporary)
    try:
        yield run
        deadline = time.monotonic() + GIVEN_BACK_WITHIN_S
        while run.what_stays() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.what_stays() == []
    finally:
        run.end()
        shutil.rmtree(temporary, ignore_errors=True)
