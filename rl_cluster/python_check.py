"""Ask a Python whether it can run this cluster's workers, before any worker is created."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.errors import PythonEnvError
from rl_cluster.worker_env import mask_text

__all__ = ["LAST_LINES", "check_python", "clean_environ", "env_error"]

LAST_LINES = 20
_IMPORT_CHECK = (
    "import json, sys, ray, rl_cluster; "
    "print(json.dumps({'python': '.'.join(map(str, sys.version_info[:3])), 'ray': ray.__version__, 'executable': sys.executable}))"
)
# Variables of the environment that the builder itself runs in; uv and the new interpreter must not see them.
_NOT_FOR_UV = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX", "UV_RUN_RECURSION_DEPTH", "UV_PROJECT", "UV_WORKING_DIRECTORY")


def clean_environ() -> dict[str, str]:
    """This process's environment without the variables that speak of its own Python environment."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_UV}


def env_error(
    node: str, command: Sequence[str], *, rule: str, got: str, fix: str, output: str = "", where: str = "python.executable"
) -> PythonEnvError:
    """The one form of this package's errors about a worker's command line, secrets masked; ``where`` is the key that it comes from."""
    shown = mask_text(shlex.join(command))
    last = f"\nLast lines of its output:\n{output}" if output else ""
    message = f"{where} on node {node}: {rule}, got {mask_text(got)} (command: {shown}). Fix: {fix}{last}"
    return PythonEnvError(message, node=node, command=shown, output=output)


def check_python(command: Sequence[str], *, node: str, deadline_s: float, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Ask a Python whether it can run this cluster's workers: ray and rl_cluster import, same Ray version, same Python minor.

    Args:
        command: Command line of the interpreter.
        node: Name of this machine for messages.
        deadline_s: Seconds that the answer may take.
        environ: Environment that it starts with; default: :func:`clean_environ`.

    Returns:
        ``python`` and ``ray``: its versions; ``executable``: its path.

    Raises:
        PythonEnvError: It can't.
    """
    asked = [*command, "-c", _IMPORT_CHECK]
    environ = clean_environ() if environ is None else dict(environ)
    wanted_ray, wanted_python = importlib.metadata.version("ray"), platform.python_version()
    try:
        # From the root folder: with -c the working folder is importable, and a checkout there would hide that the package is missing.
        answer = subprocess.run(
            asked, cwd="/", env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=max(deadline_s, 1)
        )
    except subprocess.TimeoutExpired:
        raise env_error(
            node, asked, rule="it must start", got=f"no answer in {deadline_s:.0f} s", fix="try the command on that node"
        ) from None
    except OSError as error:
        raise env_error(node, asked, rule="it must start", got=str(error), fix="give a Python that every node has") from error
    try:
        facts = json.loads(answer.stdout.strip().rpartition("\n")[2])
    except ValueError:
        output = mask_text("\n".join((answer.stdout + answer.stderr).splitlines()[-LAST_LINES:]))
        got = next((line for line in reversed(answer.stderr.splitlines()) if line), f"exit code {answer.returncode}")
        fix = f"add ray=={wanted_ray} and rl-cluster to its dependencies"
        raise env_error(node, asked, rule="it must import ray and rl_cluster", got=got, fix=fix, output=output) from None
    if facts["ray"] != wanted_ray:
        fix = f"pin ray=={wanted_ray} in its dependencies and lock them"
        raise env_error(node, asked, rule=f"it must have the cluster's Ray {wanted_ray}", got=facts["ray"], fix=fix)
    if facts["python"].split(".")[:2] != wanted_python.split(".")[:2]:
        fix = f"leave --python out, or ask for {wanted_python}"
        raise env_error(node, asked, rule=f"it must have the cluster's Python {wanted_python}", got=facts["python"], fix=fix)
    return dict(facts)
