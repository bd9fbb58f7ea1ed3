"""Ask a Python whether it can run this cluster's workers, before any worker is created."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.errors import PythonEnvError
from rl_cluster.ground import _ask_python
from rl_cluster.ground.secrets import mask_text, masked

__all__ = ["LAST_LINES", "check_python", "clean_environ", "ended_by", "env_error", "last_lines"]

LAST_LINES = 20
_LINE_LENGTH = 500
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")  # the line of a traceback that says it; at an early end more lines follow
# Variables of the environment that the builder itself runs in; uv and the new interpreter must not see them.
_NOT_FOR_UV = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "UV_RUN_RECURSION_DEPTH", "UV_PROJECT", "UV_WORKING_DIRECTORY")


def clean_environ() -> dict[str, str]:
    """This process's environment without the variables that speak of its own Python environment."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_UV}


def env_error(
    node: str, command: Sequence[str], *, rule: str, got: str, fix: str, output: str = "", where: str = "python.executable"
) -> PythonEnvError:
    """The one form of this package's errors about a worker's command line, secrets masked; ``where`` is the key that it comes from."""
    shown, output = mask_text(shlex.join(command)), mask_text(output)
    last = f"\nLast lines of its output:\n{output}" if output else ""
    message = mask_text(f"{where} on node {node}: {rule}, got {got} (command: {shown}). Fix: {fix}")
    return PythonEnvError(message + last, node=node, command=shown, output=output)


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The end of a tool's output as it may be shown: secrets masked, long lines cut."""
    lines = mask_text(text).rstrip().splitlines()[-count:]
    return "\n".join(line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]} ..." for line in lines)


def ended_by(code: int) -> str:
    """The exit code of a process in words."""
    return f"exit code {code}" if code >= 0 else f"its end by signal {-code}" + (" (out of memory?)" if code == -9 else "")


def check_python(
    command: Sequence[str],
    *,
    node: str,
    deadline_s: float,
    environ: Mapping[str, str] | None = None,
    early: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Ask a Python whether it can run this cluster's workers: ray and rl_cluster import, same Ray version, same Python minor.

    It is started as Ray starts a worker: with the variables that are set before the process, and with a file to run.

    Args:
        command: Command line of the interpreter.
        node: Name of this machine for messages.
        deadline_s: Seconds that the answer may take.
        environ: Environment that it starts with; default: :func:`clean_environ`.
        early: More variables, which workers get before their process starts; as in a runtime_env they may name others.

    Returns:
        ``python`` and ``ray``: its versions; ``executable``: its path.

    Raises:
        PythonEnvError: It can't.
    """
    asked = [*command, _ask_python.__file__]
    early = {name: _expanded(value) for name, value in (early or {}).items()}
    shown = ["env", *(f"{name}={value}" for name, value in masked(early).items()), *asked] if early else asked
    environ = {**(clean_environ() if environ is None else environ), **early}
    wanted_ray, wanted_python = importlib.metadata.version("ray"), platform.python_version()
    deadline_s = max(deadline_s, 1)
    # A file takes the output, not a pipe: a child that a killed wrapper leaves behind would hold the pipe open, and we would wait for it.
    with tempfile.TemporaryFile() as log:
        code, problem = None, ""
        try:
            code = subprocess.run(
                asked, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=deadline_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            problem = f"no answer in {deadline_s:.0f} s"
        except (OSError, ValueError) as error:  # the latter: a zero byte in a variable
            raise env_error(node, shown, rule="it must start", got=str(error), fix="give a Python that every node has") from error
        log.seek(0)
        text = log.read().decode(errors="replace")
    if code is None:
        raise env_error(node, shown, rule="it must start", got=problem, fix="try the command on that node", output=last_lines(text))
    facts = _answer(text)
    if facts is None:
        output = last_lines(text)
        lines = [line for line in output.splitlines() if line.strip()] if code else []
        got = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else ended_by(code))
        fix = _fix_of_import(output, early, wanted_ray)
        raise env_error(node, shown, rule="it must import ray and rl_cluster", got=got, fix=fix, output=output)
    if facts["ray"] != wanted_ray:
        fix = f"pin ray=={wanted_ray} in its dependencies and lock them"
        raise env_error(node, shown, rule=f"it must have the cluster's Ray {wanted_ray}", got=facts["ray"], fix=fix)
    if facts["python"].split(".")[:2] != wanted_python.split(".")[:2]:
        fix = f"leave --python out, or ask for {wanted_python}"
        raise env_error(node, shown, rule=f"it must have the cluster's Python {wanted_python}", got=facts["python"], fix=fix)
    return facts


def _expanded(value: str) -> str:
    """What Ray makes of a variable's value in a runtime_env (``update_envs`` in ray/_private/utils.py)."""
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))


def _answer(text: str) -> dict[str, str] | None:
    """The facts, from a line that may have others around it."""
    for line in text.splitlines():
        if line.startswith(_ask_python.MARK):
            try:
                return dict(json.loads(line[len(_ask_python.MARK) :]))
            except ValueError:  # a line that another process wrote into
                continue
    return None


def _fix_of_import(output: str, early: Mapping[str, str], ray: str) -> str:
    if "ImportError: " in output or re.search(r"ModuleNotFoundError: .*'(ray|rl_cluster)\b", output):
        fix = f"add ray=={ray} and rl-cluster to its dependencies"
        return fix if "PYTHONPATH" not in early else f"{fix}, or look at env.set.PYTHONPATH"
    if given := sorted(name for name, value in early.items() if value):
        return f"look at {', '.join(given)}, set before it starts, or try the command on that node"
    return "give a Python, or a wrapper that runs one with the words that it is given"
