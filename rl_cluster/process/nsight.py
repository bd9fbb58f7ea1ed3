"""Workers under NVIDIA's profiler: which ones, by which command line, and what their node must have for it.

Ray has a runtime_env key ``nsight`` of its own. It starts ``nsys profile ... python``: whatever ``python`` is first on the PATH of the
raylet, in place of ``py_executable``, with a default output in the session's logs, which go with a Ray of our own. And it ends nsys
together with the worker, before nsys has written. So its options are taken over here, and the profiler is put in front of the group's own
Python.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.ground.process_rules import NSIGHT_DEFAULT, is_nsight, names_one
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.ground.secrets import mask_text
from rl_cluster.process.python_check import LAST_LINES, env_error
from rl_cluster.schema import WorkerSpec

__all__ = [
    "NodeNsys",
    "Nsight",
    "ProfileRecord",
    "Watched",
    "after_end",
    "check_here",
    "check_patterns",
    "check_profiles",
    "end_here",
    "processes_up_to_ray",
    "still_there",
]

WHERE = "worker.nsight"
CHECK_S = 120.0
END_S = 120.0  # for the workers to end and nsys to write, where nothing is wrong
LOOK_EVERY_S = 0.1
RAYS_KEYS = ("nsight", "_nsight")  # in a runtime_env, as the user writes it and as Ray's RuntimeEnv keeps it

# Ray's own (NSIGHT_DEFAULT_CONFIG in ray/_private/runtime_env/nsight.py), without the output
_DEFAULT = {"t": "cuda,cudnn,cublas,nvtx", "stop-on-exit": "true"}

Process = tuple[int, int]  # its pid, and when it started, because pids come back


@frozen
class Nsight:
    """What is asked for: checked, with every value as the text that nsys gets."""

    options: Mapping[str, str]  # without the output
    output: str | None  # the user's own, in ``folder`` unless it is absolute; else each worker's is named after it
    folder: str  # absolute: for outputs without a folder of their own
    workers: tuple[str, ...]

    @classmethod
    def asked(cls, options: Any, workers: Sequence[str], folder: str) -> Nsight:
        """From ``worker.nsight`` and ``worker.nsight_workers``.

        Raises:
            ConfigError: One of them breaks a rule.
        """
        for name, value, rule in (("nsight", options, is_nsight), ("nsight_workers", list(workers), names_one)):
            try:
                rule(value)
            except RuleBroken as broken:
                raise ConfigError(broken.line(f"worker.{name}")) from None
        texts = {name: _text(value) for name, value in (_DEFAULT if options == NSIGHT_DEFAULT else options).items()}
        output = texts.pop("o", None) or texts.pop("output", None)
        folder = os.path.abspath(os.path.expanduser(folder))
        return cls(
            options=texts,
            # Ray's own documentation puts its value in quotes, for the shell that it goes through there
            output=None if output is None else os.path.expanduser(output.strip("'")),
            folder=folder,
            workers=tuple(workers),
        )

    def choose(self, names: Sequence[str]) -> dict[str, str]:
        """The workers to profile, each with the output that nsys is given for it.

        Raises:
            ConfigError: A pattern matches none of the names, or several workers would write one file.
        """
        for number, pattern in enumerate(self.workers):
            if not fnmatch.filter(names, pattern):
                broken = RuleBroken("must match a worker", pattern, at=f"[{number}]", fix=f"the workers are {_few(names)}")
                raise ConfigError(broken.line("worker.nsight_workers"))
        chosen = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.workers)]
        if self.output is None:
            return {name: os.path.join(self.folder, re.sub(r"[^\w.-]", "_", name)) for name in chosen}
        if len(chosen) > 1 and "%p" not in self.output:
            fix = f"write {self.output}_%p, or leave it out: each worker's profile is then named after it"
            raise ConfigError(
                RuleBroken(f"must hold %p (the pid) where {len(chosen)} workers write", self.output, fix=fix).line(f"{WHERE}.o")
            )
        if "%" in os.path.dirname(self.output):
            fix = "write it in the file's name: nsys makes no folders"
            raise ConfigError(RuleBroken("must be in a folder that is there before the worker", self.output, fix=fix).line(f"{WHERE}.o"))
        return dict.fromkeys(chosen, os.path.join(self.folder, self.output))

    def command(self, nsys: str, output: str) -> tuple[str, ...]:
        """The words in front of a Python's command line."""
        given = (word for option, value in self.options.items() for word in _words(option, value))
        return (nsys, "profile", *given, "-o", output)


def not_without_nsight(patterns: Sequence[str]) -> RuleBroken:
    """The rule that patterns without a profiler break."""
    return RuleBroken("must be left out without worker.nsight", list(patterns), fix="write worker.nsight=default, or leave it out")


def check_patterns(worker: WorkerSpec, name: str, bundles: Iterable[tuple[int, int]]) -> None:
    """What :meth:`Nsight.choose` refuses, before anything is started.

    Args:
        worker: Of a group.
        name: The group's.
        bundles: (logical node, bundle) of each of its workers.

    Raises:
        ConfigError: See there.
    """
    if worker.nsight is None and worker.target is None and list(worker.nsight_workers) != ["*"]:
        raise ConfigError(not_without_nsight(worker.nsight_workers).line("worker.nsight_workers"))
    if worker.nsight is not None:
        names = [f"{name}-{node}-{bundle}" for node, bundle in bundles]
        Nsight.asked(worker.nsight, worker.nsight_workers, os.curdir).choose(names)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(option: str, value: str) -> tuple[str, ...]:
    return (f"--{option}={value}",) if len(option) > 1 else (f"-{option}", value)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@frozen
class NodeNsys:
    """What a node has for profiling."""

    nsys: str  # path of the program
    python: str  # interpreter of Ray's own workers there
    since: float  # the node's clock when it was asked: profiles are newer


@frozen
class ProfileRecord:
    """The profile of one worker."""

    rank: int
    name: str
    node_id: str
    address: str
    output: str  # as nsys was given it: without the file's extension
    files: tuple[str, ...] = ()  # what nsys wrote, on that node; known when the worker has ended
    problem: str | None = "the worker has not ended"  # why there is none, or why its end may be missing


def after_end(record: ProfileRecord, files: Iterable[str], problem: str | None) -> ProfileRecord:
    """The record of a worker that has ended."""
    found = tuple(files)
    return evolve(
        record, files=found, problem=problem or (None if found else "nsys ended without a profile (its output is in the worker's log)")
    )


def check_profiles(records: Sequence[ProfileRecord]) -> tuple[bool, str]:
    """Whether every profile was written, and one line about them."""
    broken = [record for record in records if record.problem is not None]
    if broken:
        said = "; ".join(f"rank {record.rank} on {record.address}: {record.problem}" for record in broken[:4])
        return False, said + (f"; and {len(broken) - 4} more" if len(broken) > 4 else "")
    files = [path for record in records for path in record.files]
    return True, f"{len(files)} written, {', '.join(files[:4])}" + (f" and {len(files) - 4} more" if len(files) > 4 else "")


# --- on a node ---


def check_here(request: Nsight, outputs: Sequence[str], *, node: str, tell: Callable[[str], None]) -> NodeNsys:
    """The work of one node before its workers start: nsys is there, takes the options, and has a folder to write to.

    Raises:
        PythonEnvError: One of these is not so.
    """
    since = time.time()
    tell("looks for nsys, and profiles a Python that does nothing")
    nsys = shutil.which("nsys")
    if nsys is None:
        raise env_error(
            node,
            request.command("nsys", outputs[0]),
            rule="nsys must be on PATH",
            got="no program 'nsys' that can be run",
            fix="install Nsight Systems there and start Ray with it on PATH, or name workers of other nodes in worker.nsight_workers",
            where=WHERE,
        )
    for folder in sorted({os.path.dirname(output) for output in outputs}):
        try:
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            fix = f"give {WHERE}.o a path in a folder that every node can write to"
            raise env_error(
                node, request.command(nsys, outputs[0]), rule=f"{folder} must be writable", got=str(error), fix=fix, where=WHERE
            ) from None
    with tempfile.TemporaryDirectory(prefix="rl-cluster-nsys-") as folder:
        _try(request.command(nsys, os.path.join(folder, "check")), node)
    return NodeNsys(nsys=nsys, python=sys.executable, since=since)


def _try(command: Sequence[str], node: str) -> None:
    """Profile a Python that does nothing."""
    asked = [*command, sys.executable, "-c", "pass"]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                asked, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=tempfile.gettempdir()
            )
        except OSError as error:
            raise env_error(node, asked, rule="nsys must start", got=str(error), fix="try the command on that node", where=WHERE) from None
        try:
            code = process.wait(timeout=CHECK_S)
        except subprocess.TimeoutExpired:
            got = f"no end within {CHECK_S:.0f} s"
            raise env_error(
                node, asked, rule="nsys must profile a Python that does nothing", got=got, fix="try the command on that node", where=WHERE
            ) from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            log.seek(0)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            raise env_error(
                node,
                asked,
                rule="nsys must take these options",
                got=f"exit code {code}: {lines[0]}" if lines else f"exit code {code}",
                fix="see nsys profile --help on that node",
                output=mask_text("\n".join(lines[-LAST_LINES:])),
                where=WHERE,
            )


def processes_up_to_ray(pid: int) -> list[Process]:
    """A worker's process and those that started it, the raylet not among them: a profiler is one of them, and ends after it."""
    found: list[Process] = []
    while pid > 1:
        name, parent, started = _stat(pid)
        if name == "raylet":
            return found
        found.append((pid, started))
        pid = parent
    return found[:1]  # no raylet above: then what is there is none of ours


def _stat(pid: int) -> tuple[str, int, int]:
    """Name, parent and start of a process (man 5 proc); the start is 0 where there is none, or one that has ended already."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return "", 0, 0
    fields = rest.split()
    return head.partition("(")[2], int(fields[1]), 0 if fields[0] in "ZX" else int(fields[19])


def still_there(process: Process) -> bool:
    """Whether a process runs."""
    return _stat(process[0])[2] == process[1]


@frozen
class Watched:
    """A profiled worker, as its node sees it."""

    processes: tuple[Process, ...]  # the worker's own first, then what started it
    output: str  # as nsys was given it


def end_here(
    workers: Mapping[str, Watched], since: float, seconds: float, *, node: str, tell: Callable[[str], None]
) -> dict[str, tuple[list[Process], list[str]]]:
    """Wait until workers and their profilers have ended, and look what was written.

    Args:
        workers: By name.
        since: The node's clock before they started: older files are others'.
        seconds: How long they may take.
        node: Not used; every work of a node gets it.
        tell: Gets a line of text at the start.

    Returns:
        By name: the processes that still run, and the files.
    """
    deadline = time.monotonic() + seconds
    tell(f"waits for nsys to write, {seconds:.0f} s at most")
    left = {name: list(worker.processes) for name, worker in workers.items()}
    while True:
        left = {name: [process for process in processes if still_there(process)] for name, processes in left.items()}
        if not any(left.values()) or time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY_S)
    return {name: (left[name], _written(worker, since)) for name, worker in workers.items()}


def _written(worker: Watched, since: float) -> list[str]:
    """Files of an output, whatever nsys put in the places of %h, %q{NAME} and so on, and whatever extension it gave them."""
    pids = [str(pid) for pid, _ in worker.processes]
    for output in (*(worker.output.replace("%p", pid) for pid in pids), worker.output):
        pattern = "*".join(map(glob.escape, re.split(r"%q\{[^}]*\}|%[a-z]", output)))
        found = sorted(path for path in {*glob.glob(pattern), *glob.glob(f"{pattern}.*")} if _changed(path) >= since - 1)
        if found:
            return found
    return []


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # gone meanwhile
        return 0.0
