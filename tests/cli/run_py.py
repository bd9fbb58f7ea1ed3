"""run.py as a user calls it: a process of its own, in a folder of its own, with a temporary folder of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

RUN_PY = Path(__file__).resolve().parents[2] / "run.py"
TIMEOUT_S = 150.0  # of one run; far above what any takes


@frozen
class Done:
    """A run that has ended."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """Of standard output."""
        return self.out.rstrip("\n").rpartition("\n")[2]

    @property
    def folder(self) -> Path:
        """Hydra's output directory, as the run itself names it."""
        return Path(self.folders[-1])

    @property
    def folders(self) -> list[str]:
        """Of each job of a sweep."""
        return re.findall(r"^files: (.*)$", self.out, re.MULTILINE)

    @property
    def report(self) -> dict[str, Any]:
        """report.json of the (last) job."""
        return read_report(self.folder)

    @property
    def log(self) -> str:
        """The log file of the run."""
        return (self.folder / "rl_cluster.log").read_text(encoding="utf-8")


def read_report(folder: str | Path) -> dict[str, Any]:
    """report.json in a run's folder."""
    found: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
    return found


class Running:
    """A run that goes on; its standard error is read while it does."""

    def __init__(self, process: subprocess.Popen[bytes], err: Path) -> None:
        self.process, self._err = process, err

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(encoding="utf-8")

    def until(self, ready: Callable[[], object]) -> None:
        """Wait for a state of the run."""
        deadline = time.monotonic() + TIMEOUT_S
        while not ready():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            assert time.monotonic() < deadline, f"it did not come so far: {self.err}"
            time.sleep(0.02)

    def until_it_says(self, text: str) -> None:
        """Wait for a text on standard error."""
        self.until(lambda: text in self.err)

    def ctrl_c(self) -> None:
        """What a terminal does: SIGINT to the whole process group, Ray's processes included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM to the run alone, as a batch system does it."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the run alone, as the kernel does it for want of memory."""
        self.process.kill()

    def done(self) -> Done:
        """Wait for its end."""
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        return Done(self.process.returncode, out.decode(), self.err)


class RunPy:
    """Calls run.py in ``folder``. No running Ray is looked for unless a test names one."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary = folder, temporary
        dropped = ("RAY_", "HYDRA_", "NRL_", "COMP_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        for name in ("CUDA_VISIBLE_DEVICES", "NO_COLOR", "COLUMNS", "PYTHONPATH", "OMP_NUM_THREADS"):
            self.env.pop(name, None)
        self.env |= {
            "RAY_ADDRESS": "local",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": str(temporary),
            "PYTHONIOENCODING": "utf-8",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *words: str, env: Mapping[str, str | None] | None = None) -> Done:
        """Run it to its end."""
        return self.start(*words, env=env).done()

    def start(self, *words: str, env: Mapping[str, str | None] | None = None, before: str = "") -> Running:
        """Start it, in a process group of its own. A variable that is None is taken away. ``before`` is run in the same process."""
        changed = {**self.env, **({"PYTHONPATH": str(RUN_PY.parent)} if before else {}), **(env or {})}
        err = self.temporary / f"err-{len(self._started)}"
        with open(err, "wb") as sink:
            process = subprocess.Popen(
                [sys.executable, *(["-c", f"{before}\nfrom rl_cluster.app import main\nmain()"] if before else [str(RUN_PY)]), *words],
                cwd=self.folder,
                env={name: value for name, value in changed.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
            )
        self._started.append(process)
        return Running(process, err)

    def what_stays(self) -> list[str]:
        """Folders of a Ray or of a sweep that a run has started, and processes that belong to one of its runs."""
        return [str(path) for path in self.temporary.glob("rl[cs]-*")] + [f"process {pid}: {command}" for pid, command in self._processes()]

    def _processes(self) -> list[tuple[int, str]]:
        """All that inherited our temporary folder's name in their environment."""
        mark = f"TMPDIR={self.temporary}\0".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if mark in Path(f"/proc/{entry}/environ").read_bytes():
                        command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found.append((int(entry), command.strip()))
                except OSError:
                    continue  # it ended meanwhile, or is another user's
        return [(pid, command) for pid, command in found if command]  # without those that have ended and are not yet reaped

    def end(self) -> None:
        """End runs that a failed test has left."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
