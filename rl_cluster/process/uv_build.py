"""Build a uv environment on this machine once, whoever asks for it, and whatever interrupts the builder.

An environment is a folder named by its key. It counts as ready only when its marker says so, which is written last, after the new
interpreter has imported ray and rl_cluster. Builders of one key, also on a shared filesystem, are kept apart by a lock that the kernel
gives back when its holder dies. A folder without a valid marker is what a killed builder left: it is moved away and built anew. Who gets
an environment holds it as long as its process lives, so that nobody prunes it meanwhile.
"""

from __future__ import annotations

import errno
import math
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attrs import frozen

from rl_cluster.errors import PythonEnvError
from rl_cluster.ground.secrets import mask_text
from rl_cluster.process.python_check import LAST_LINES, check_python, clean_environ, env_error
from rl_cluster.process.uv_errors import explain
from rl_cluster.process.uv_key import environment_key
from rl_cluster.process.uv_local import find_lock, local_packages, split_with
from rl_cluster.process.uv_step import first_line, last_lines, run_step, start_log
from rl_cluster.process.uv_store import (
    MARKER,
    NoLocksError,
    default_venv_dir,
    hold_environment,
    is_whole,
    lock_key,
    remove_environment,
    remove_trash,
    trash_in,
    write_marker,
)
from rl_cluster.python_env import PythonPlan

__all__ = ["Environment", "ensure_environment", "look_at_project", "prepare_environment"]

PROGRESS_EVERY_S = 5.0

_POLL_S = 0.1
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


def look_at_project(plan: PythonPlan, *, node: str) -> None:
    """The first part of a build, which starts nothing: uv, the project and its lock are there.

    Raises:
        PythonEnvError: One is missing.
    """
    builder = _Builder(plan, None, math.inf, None, node)
    builder.find_uv()
    builder.look_at_project()


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
        uv = self.find_uv()
        self.look_at_project()
        try:
            key = environment_key(self.request, project_dir=self.project, base_python=self.base_python)
            self.local = [name for local in local_packages(self.request, project_dir=self.project) for name in local.names]
        except OSError as error:
            fix = "make the project and the local packages that it names readable on every node"
            raise self._error("the project must be readable", str(error), fix) from error
        self.folder, self.log = self.root / key, self.root / f"{key}.log"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if ready := self._ready():
                return ready
            with self._lock():
                return self._ready() or self._build(uv)
        except NoLocksError:
            fix = "give python.venv_dir a folder on a filesystem with locks, such as a node-local one"
            raise self._error("its filesystem must have file locks", f"none in {self.root}", fix) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                rule, fix = explain(os.strerror(errno.ENOSPC), self.plan)
                raise self._error(f"{self.root}: {rule}", str(error), fix) from error
            fix = "remove what is in the way, or give python.venv_dir another folder of yours"
            got = str(error) if str(self.root) in str(error) else f"{self.root}: {error}"
            raise self._error("must be a folder that can be written", got, fix, where="python.venv_dir") from error

    def find_uv(self) -> str:
        # An installed `uv` package lies beside the interpreter, whose folder is not on PATH when the environment isn't activated.
        found = shutil.which(self.request.uv) or shutil.which(self.request.uv, path=os.path.dirname(sys.executable))
        if not found:
            raise self._error("uv must be installed", f"no program {self.request.uv!r} on PATH", "pip install uv on every node")
        return found

    def look_at_project(self) -> None:
        if not any((folder / "pyproject.toml").is_file() for folder in (self.project, *self.project.parents)):
            raise self._error(
                "must be a uv project on every node",
                f"no pyproject.toml in {self.project}",
                "give python.project_dir a folder that all nodes have, such as one on a shared filesystem",
                where="python.project_dir",
            )
        if "--locked" in self.request.sync_args and find_lock(self.project) is None:
            raise self._error("the project must be locked", f"no uv.lock in {self.project}", f"run uv lock --directory {self.project}")

    def _ready(self) -> Path | None:
        if not (is_whole(self.folder) and hold_environment(self.folder)):
            return None
        with suppress(OSError):  # read-only for this user: then it isn't his to clean up either
            os.utime(self.folder / MARKER)  # last use, for `rl-cluster-envs prune`
        return self.folder / "bin" / "python"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        told = time.monotonic() - max(0.0, PROGRESS_EVERY_S - 1)  # the first time after a second
        with ExitStack() as held:
            while not held.enter_context(lock_key(self.folder)):
                now = time.monotonic()
                holder = first_line(self.log) or "built by another process"
                if now >= self.deadline:
                    fix = f"raise python.build_timeout_s, or end that builder (its output is in {self.log})"
                    raise self._error(f"it must be ready within {self._budget():g} s", f"one that is still being {holder}", fix) from None
                if now >= told + PROGRESS_EVERY_S:
                    told = now
                    self.progress(
                        f"node {self.node}: waits for the Python environment {self.folder.name}, {self._elapsed():.0f} s of at most "
                        f"{self._budget():g} s ({holder})"
                    )
                time.sleep(max(0.0, min(_POLL_S, self.deadline - now)))
            yield

    def _build(self, uv: str) -> Path:
        if os.path.lexists(self.folder):
            self.progress(f"node {self.node}: the Python environment {self.folder.name} was left unfinished or damaged, it is built anew")
            remove_environment(self.folder)
        for left in trash_in(self.root):  # of removers that were ended
            with suppress(OSError):  # another user's
                remove_trash(left)
        start_log(self.log, f"built by process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        python = self.folder / "bin" / "python"
        try:
            self._run([uv, "sync", *self.request.sync_args, *self._anew(), "--no-progress", "--python", self.base_python])
            if self.request.with_args:
                options = ["--no-progress", "--python", str(python), *self.request.install_args, *self._anew()]
                self._run([uv, "pip", "install", *options, *self._added()])
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
            hold_environment(self.folder)
        except BaseException:
            remove_environment(self.folder)
            raise
        self.built = True
        self.progress(f"node {self.node}: the Python environment {self.folder.name} is ready after {self._elapsed():.0f} s")
        return python

    def _anew(self) -> Iterator[str]:
        """What makes uv build the local packages of this content, and not take what it once built of another one."""
        yield from (word for name in dict.fromkeys(self.local) for word in ("--reinstall-package", name))

    def _added(self) -> Iterator[str]:
        for kind, value in self.request.with_args:
            if kind == "package":
                yield from split_with(value)
            else:
                yield from ("--editable" if kind == "editable" else "--requirements", value)

    def _run(self, command: Sequence[str]) -> None:
        """Run one step of the build; its output goes to the log beside the environment."""
        what = f"{os.path.basename(command[0])} {command[1]}"
        own = {"UV_PROJECT_ENVIRONMENT": str(self.folder)}
        self.command = ["env", "-C", str(self.project), *(f"{name}={value}" for name, value in own.items()), *command]
        begun = f"node {self.node}: builds the Python environment {self.folder.name} ({what})"
        self.progress(begun)
        start = self.log.stat().st_size
        code = run_step(
            command,
            cwd=self.project,
            environ={**clean_environ(), **own},
            log=self.log,
            deadline=self.deadline,
            tick_s=PROGRESS_EVERY_S,
            tick=lambda: self.progress(f"{begun}, {self._elapsed():.0f} s: {last_lines(self.log, start, 1).strip()}"),
        )
        if code is None:
            rule = f"it must be ready within {self._budget():g} s"
            raise self._error(rule, f"{what} still runs", "raise python.build_timeout_s", start)
        if code < 0:
            fix = "look whether the node ran out of memory (dmesg), then start again"
            name = signal.Signals(-code).name if -code in {*signal.Signals} else "unknown"
            raise self._error("nothing must end the build", f"{what} was killed by signal {-code} ({name})", fix, start)
        if code:
            rule, fix = explain(last_lines(self.log, start, LAST_LINES), self.plan)
            raise self._error(rule, f"exit code {code} of {what}", fix, start)

    def _elapsed(self) -> float:
        return time.monotonic() - self.started

    def _budget(self) -> float:
        return round(self.deadline - self.started, 1)

    def _error(self, rule: str, got: str, fix: str, log_start: int | None = None, *, where: str = "python.executable") -> PythonEnvError:
        output = last_lines(self.log, log_start, LAST_LINES) if log_start is not None else ""
        return env_error(self.node, self.command, rule=rule, got=got, fix=fix, output=output, where=where)
