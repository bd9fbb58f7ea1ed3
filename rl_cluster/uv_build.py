"""Build a uv environment on this machine once, whoever asks for it, and whatever interrupts the builder.

An environment is a folder named by its key. It counts as ready only when its marker says so, which is written last, after the new
interpreter has imported ray and rl_cluster. Builders of one key, also on a shared filesystem, are kept apart by a lock that the kernel
gives back when its holder dies. A folder without a valid marker is what a killed builder left: it is moved away and built anew.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import frozen
from filelock import FileLock, Timeout

from rl_cluster.errors import PythonEnvError
from rl_cluster.python_check import LAST_LINES, check_python, clean_environ, env_error
from rl_cluster.python_env import PythonPlan
from rl_cluster.uv_errors import explain
from rl_cluster.uv_key import environment_key, find_lock, split_with
from rl_cluster.uv_store import MARKER, default_venv_dir, is_whole, remove_environment, write_marker
from rl_cluster.worker_env import mask_text

__all__ = ["Environment", "ensure_environment", "prepare_environment"]

PROGRESS_EVERY_S = 5.0

# Started in front of uv: the kernel ends uv when its builder is killed, so that nothing writes on into a folder that the next one builds.
# 1 is PR_SET_PDEATHSIG; the parent may have died before it took effect, hence the second look.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
Progress = Callable[[str], None]


def ensure_environment(
    plan: PythonPlan,
    *,
    venv_dir: str | Path | None = None,
    deadline_s: float | None = None,
    progress: Progress | None = None,
    node: str | None = None,
) -> Path:
    """Make the environment of ``plan`` on this machine, or find it ready.

    Args:
        plan: A plan of kind ``uv``.
        venv_dir: Folder of all environments; default: the plan's, then :func:`default_venv_dir`.
        deadline_s: Seconds from now, for waiting and building together; default: the plan's ``build_timeout_s``.
        progress: Gets a line of text at each step, and every few seconds in between.
        node: Name of this machine for messages; default: its host name.

    Returns:
        The environment's ``bin/python``.

    Raises:
        PythonEnvError: uv, the project or its lock is missing, the build failed or took too long, or the new Python does not suit
            this cluster.
    """
    return prepare_environment(plan, venv_dir=venv_dir, deadline_s=deadline_s, progress=progress, node=node).python


@frozen
class Environment:
    """An environment that is ready on this machine."""

    python: Path  # its bin/python
    built: bool  # by this call, or ready already (also: built by another while this one waited)
    seconds: float  # that it took

    @property
    def folder(self) -> Path:
        """Of the environment."""
        return self.python.parent.parent


def prepare_environment(
    plan: PythonPlan,
    *,
    venv_dir: str | Path | None = None,
    deadline_s: float | None = None,
    progress: Progress | None = None,
    node: str | None = None,
) -> Environment:
    """As :func:`ensure_environment`, and says whether there was anything to build."""
    builder = _Builder(plan, venv_dir, time.monotonic() + (plan.build_timeout_s if deadline_s is None else deadline_s), progress, node)
    python = builder.ensure()
    return Environment(python=python, built=builder.built, seconds=time.monotonic() - builder.started)


class _Builder:
    """One attempt to have one environment: what it needs in every step."""

    def __init__(self, plan: PythonPlan, venv_dir: str | Path | None, deadline: float, progress: Progress | None, node: str | None) -> None:
        if plan.uv is None or plan.project_dir is None:
            raise ValueError(f"only a plan of kind uv is built, got {plan.kind}")
        self.plan, self.request, self.project = plan, plan.uv, Path(plan.project_dir)
        self.node = node or socket.gethostname()
        self.started, self.deadline = time.monotonic(), deadline
        self.progress = progress or (lambda line: None)
        self.root = Path(venv_dir or plan.venv_dir or default_venv_dir()).absolute()
        # The node's own interpreter, not a version: another one of the same version could lack what the cluster's was built with.
        self.base_python = self.request.python or getattr(sys, "_base_executable", None) or sys.executable
        self.command: Sequence[str] = plan.command
        self.built = False

    def ensure(self) -> Path:
        uv = self._find_uv()
        self._look_at_project()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            key = environment_key(self.request, project_dir=self.project, base_python=self.base_python)
            self.folder, self.log = self.root / key, self.root / f"{key}.log"
            if ready := self._ready():
                return ready
            with self._lock():
                return self._ready() or self._build(uv)
        except OSError as error:
            rule, fix = explain(str(error), self.plan)
            raise self._error(f"{error.filename or self.root}: {rule}", str(error), fix) from error

    def _find_uv(self) -> str:
        # An installed `uv` package lies beside the interpreter, whose folder is not on PATH when the environment isn't activated.
        found = shutil.which(self.request.uv) or shutil.which(self.request.uv, path=os.path.dirname(sys.executable))
        if not found:
            raise self._error("uv must be installed", f"no program {self.request.uv!r} on PATH", "pip install uv on every node")
        return found

    def _look_at_project(self) -> None:
        if not any((folder / "pyproject.toml").is_file() for folder in (self.project, *self.project.parents)):
            raise self._error(
                "python.project_dir must be a uv project on every node",
                f"no pyproject.toml in {self.project}",
                "give python.project_dir a folder that all nodes have, such as one on a shared filesystem",
            )
        if "--locked" in self.request.sync_args and find_lock(self.project) is None:
            raise self._error("the project must be locked", f"no uv.lock in {self.project}", f"run uv lock --directory {self.project}")

    def _ready(self) -> Path | None:
        if not is_whole(self.folder):
            return None
        with suppress(OSError):  # read-only for this user: then it isn't his to clean up either
            os.utime(self.folder / MARKER)  # last use, for `rl-cluster-envs prune`
        return self.folder / "bin" / "python"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        lock = FileLock(f"{self.folder}.lock")
        while True:
            try:
                lock.acquire(timeout=max(0.0, min(PROGRESS_EVERY_S, self.deadline - time.monotonic())), poll_interval=0.1)
                break
            except Timeout:
                holder = _first_line(self.log) or "another builder"
                if time.monotonic() >= self.deadline:
                    fix = f"raise python.build_timeout_s, or end that builder (its output is in {self.log})"
                    raise self._error(f"it must be ready within {self._budget():g} s", f"no end of the wait for {holder}", fix) from None
                self.progress(
                    f"node {self.node}: waits for the Python environment {self.folder.name}, {self._elapsed():.0f} s of at most "
                    f"{self._budget():g} s ({holder})"
                )
            except NotImplementedError:
                fix = "give python.venv_dir a folder on a filesystem with locks, such as a node-local one"
                raise self._error("its filesystem must have file locks", f"none in {self.root}", fix) from None
        try:
            yield
        finally:
            lock.release()

    def _build(self, uv: str) -> Path:
        if self.folder.exists():
            self.progress(f"node {self.node}: the Python environment {self.folder.name} was left unfinished or damaged, it is built anew")
            remove_environment(self.folder)
        self.log.write_text(f"built by process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        python = self.folder / "bin" / "python"
        try:
            self._run([uv, "sync", *self.request.sync_args, "--no-progress", "--python", self.base_python])
            if self.request.with_args:
                self._run([uv, "pip", "install", "--no-progress", "--python", str(python), *self.request.install_args, *self._added()])
            self.progress(f"node {self.node}: checks that ray and rl_cluster import in {self.folder.name}")
            facts = check_python([str(python)], node=self.node, deadline_s=self.deadline - time.monotonic())
            self.progress(f"node {self.node}: marks {self.folder.name} as ready")
            write_marker(
                self.folder,
                command=mask_text(shlex.join(self.plan.command)),
                python=facts["python"],
                ray=facts["ray"],
                host=socket.gethostname(),
                build_s=round(self._elapsed(), 3),
            )
        except BaseException:
            remove_environment(self.folder)
            raise
        self.built = True
        self.progress(f"node {self.node}: the Python environment {self.folder.name} is ready after {self._elapsed():.0f} s")
        return python

    def _added(self) -> Iterator[str]:
        for kind, value in self.request.with_args:
            if kind == "package":
                yield from split_with(value)
            else:
                yield from ("--editable" if kind == "editable" else "--requirements", value)

    def _run(self, command: Sequence[str]) -> None:
        """Run one step of the build; its output goes to the log beside the environment."""
        self.command = command
        what = f"{os.path.basename(command[0])} {command[1]}"
        self.progress(f"node {self.node}: builds the Python environment {self.folder.name} ({what})")
        environ = clean_environ()
        environ["UV_PROJECT_ENVIRONMENT"] = str(self.folder)
        wrapped = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        start = self.log.stat().st_size
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                wrapped,
                cwd=self.project,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    left = self.deadline - time.monotonic()
                    if left <= 0:
                        raise self._error(
                            f"it must be ready within {self._budget():g} s", f"{what} still runs", "raise python.build_timeout_s", start
                        )
                    try:
                        process.wait(timeout=min(PROGRESS_EVERY_S, left))
                    except subprocess.TimeoutExpired:
                        self.progress(
                            f"node {self.node}: builds the Python environment {self.folder.name} ({what}), {self._elapsed():.0f} s: "
                            f"{mask_text(_last_lines(self.log, start, 1))}"
                        )
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with the build backends that uv started
                    process.wait()
        if process.returncode:
            output = _last_lines(self.log, start, LAST_LINES)
            rule, fix = explain(output, self.plan)
            raise self._error(rule, f"exit code {process.returncode} of {what}", fix, start)

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _budget(self) -> float:
        return round(self.deadline - self.started, 1)

    def _error(self, rule: str, got: str, fix: str, log_start: int | None = None) -> PythonEnvError:
        output = mask_text(_last_lines(self.log, log_start, LAST_LINES)) if log_start is not None else ""
        return env_error(self.node, self.command, rule=rule, got=got, fix=fix, output=output)


def _first_line(path: Path) -> str:
    with suppress(OSError), path.open(errors="replace") as file:
        return file.readline().strip()
    return ""


def _last_lines(path: Path, start: int, count: int) -> str:
    with suppress(OSError), path.open("rb") as file:
        file.seek(start)
        return "\n".join(file.read().decode(errors="replace").rstrip().splitlines()[-count:])
    return ""
