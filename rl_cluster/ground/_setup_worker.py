"""Becomes a worker process that has a runtime_env: in place of Ray's own ``setup_worker.py``, on a Ray that we start.

Ray's imports all of Ray, which costs as much as the worker's own start, to read one line of JSON and become the interpreter that it
names. This does the same with the standard library, for what a runtime_env mostly is: variables and an interpreter. Anything else is
left to Ray's. The raylet leaves this step out for a worker without a runtime_env, and knows it by the end of this file's name.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # modules of this folder must not be found instead of others of the same name
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]

import json
import shlex

CONTEXT = "--serialized-runtime-env-context="
LANGUAGE = "--language="
KNOWN = {"command_prefix", "env_vars", "py_executable", "override_worker_entrypoint", "java_jars"}


def plain_start(arguments: list[str]) -> tuple[dict[str, str], str] | None:
    """The variables to set and the line for the shell that starts the worker; None where a runtime_env says more than that.

    Args:
        arguments: As Ray's raylet gives them: two options for the setup, and the worker's own words.
    """
    ours = [word for word in arguments if word.startswith((CONTEXT, LANGUAGE))]
    if sys.platform != "linux" or len(ours) != 2 or LANGUAGE + "PYTHON" not in ours:
        return None
    context = json.loads(max(ours, key=lambda word: word.startswith(CONTEXT))[len(CONTEXT) :] or "{}")
    variables = context.get("env_vars") or {}
    if set(context) - KNOWN or context.get("command_prefix") or context.get("override_worker_entrypoint"):
        return None
    if any("$" in value for value in variables.values()):  # Ray puts other variables' values there
        return None
    python = context.get("py_executable") or sys.executable  # for the shell: may be a command line
    return variables, " ".join(["exec", python, *(shlex.quote(word) for word in arguments if word not in ours)])


def rays_own() -> str:
    """The file of Ray's that this one stands in for, found without importing Ray."""
    import importlib.util

    found = importlib.util.find_spec("ray")
    folder = os.path.dirname(str(found and found.origin))
    return os.path.join(folder, "_private", "workers", "setup_worker.py")


def main(arguments: list[str]) -> None:
    """Become the worker."""
    start = plain_start(arguments)
    if start is None:
        os.execv(sys.executable, [sys.executable, rays_own(), *arguments])
    variables, line = start
    os.environ.update(variables)
    os.execvp("bash", ["bash", "-c", line])


if __name__ == "__main__":
    main(sys.argv[1:])
