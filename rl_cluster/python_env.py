"""Which Python runs in the workers: from ``python.executable`` to a plan, and from a plan to what Ray needs to know.

* SYSTEM: the interpreter that Ray's own workers have; no runtime_env at all, which is the quickest start.
* BASE, VLLM, any ``uv run ...``: an environment of the user's uv project, built once per node, whose ``bin/python`` runs directly.
* Anything else: a command line, such as a path to a python or a wrapper with arguments.

Planning is pure: it looks at no file, because the project lies on the nodes, which need not be this machine.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, MutableMapping

from attrs import field, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.ground.secrets import mask_text
from rl_cluster.process.uv_request import UvRequest, is_uv_run, parse_uv_run
from rl_cluster.schema import PythonSpec

__all__ = ["BASE", "SYSTEM", "VLLM", "PythonPlan", "disable_rays_uv_hook", "resolve_python"]

SYSTEM = sys.executable
"""This interpreter."""
BASE = "uv run --locked"
"""The locked environment of the uv project."""
VLLM = "uv run --locked --extra vllm"
"""The same with the project's extra ``vllm``."""

_NAMED = {"BASE": BASE, "VLLM": VLLM}


@frozen
class PythonPlan:
    """The Python of a worker group.

    Attributes:
        kind: ``system``, ``uv`` (an environment is built) or ``command``.
        requested: What the user wrote, as it may be shown.
        command: The whole command line; of a uv environment, the ``uv run`` that would give the same packages.
        project_dir: Absolute folder of the uv project, on every node; None unless ``kind`` is ``uv``.
        uv: What the environment is made of; None unless ``kind`` is ``uv``.
        venv_dir: Folder in which environments are built, from the spec or this process's $NEMO_RL_VENV_DIR; None means each node's default.
        build_timeout_s: Seconds that building one environment may take, waiting for another builder included.
        where: Path of the keys that it comes from, for messages (``policy.python``).
    """

    kind: str
    requested: str
    command: tuple[str, ...]
    project_dir: str | None = None
    uv: UvRequest | None = None
    venv_dir: str | None = None
    build_timeout_s: float = 1800.0
    where: str = field(default="python", eq=False)  # several roles may ask for the same

    @property
    def needs_build(self) -> bool:
        """Whether an environment must be built on the nodes before workers start."""
        return self.uv is not None

    def runtime_env(self, python: str | None = None) -> dict[str, object]:
        """What Ray must know to start workers in this Python: the start of a runtime_env, empty for SYSTEM.

        Args:
            python: The built environment's ``bin/python`` on the node. Without it a uv environment runs through ``uv run`` in every
                worker, which is right but slow, and many of them at once wait for each other.
        """
        if self.kind == "system":
            return {}
        if self.uv is None:
            return {"py_executable": shlex.join(self.command)}
        words = [python, *self.uv.interpreter_args] if python else [*self.command, "python", *self.uv.interpreter_args]
        # Ray puts this text into a shell's command line. The lock says what the environment holds: a PYTHONPATH that the raylet was
        # started with would put another environment's packages in front of it. A value in env.set wins over this one.
        return {"py_executable": shlex.join(words), "env_vars": {"PYTHONPATH": ""}}


def resolve_python(spec: PythonSpec, *, cwd: str | None = None, where: str = "python") -> PythonPlan:
    """Turn ``python.*`` into a plan. Pure: nothing is looked up or started.

    Args:
        spec: ``executable`` is SYSTEM, BASE, VLLM or a command line; ``project_dir`` is the uv project of a uv command.
        cwd: Folder from which a relative program, ``venv_dir`` or ``project_dir`` counts, and the missing ``project_dir``; default: this
            process's.
        where: Path of the spec in the config.

    Raises:
        ConfigError: The command line can't be read, or holds an option that makes no sense for workers.
    """
    text = _NAMED.get(spec.executable, spec.executable)
    if text in ("SYSTEM", SYSTEM):
        return PythonPlan(kind="system", requested=spec.executable, command=(SYSTEM,), build_timeout_s=spec.build_timeout_s, where=where)
    requested, key = mask_text(spec.executable), f"{where}.executable"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{key}: must be a command line ({error}), got {mask_text(text)!r}. Fix: close the quote") from None
    if not words:
        raise ConfigError(f"{key}: must be SYSTEM, BASE, VLLM or a command line, got {text!r}. Fix: write SYSTEM")
    here = cwd or os.getcwd()
    if "/" in words[0]:  # as for a shell: without a slash it is a program on PATH
        words[0] = _absolute(words[0], here)
    if not is_uv_run(words):
        return PythonPlan(kind="command", requested=requested, command=tuple(words), build_timeout_s=spec.build_timeout_s, where=where)
    request = parse_uv_run(words, where=key)
    if spec.project_dir and request.directory and spec.project_dir != request.directory:
        raise ConfigError(
            f"{where}.project_dir: must be the folder that {key} names, got {spec.project_dir!r} and {request.directory!r}. "
            "Fix: leave one of them out"
        )
    project = _absolute(spec.project_dir or request.directory or ".", here)
    venv_dir = spec.venv_dir or os.environ.get("NEMO_RL_VENV_DIR")  # the driver's counts on all nodes
    return PythonPlan(
        kind="uv",
        requested=requested,
        command=(*request.uv_run_args, "--directory", project),
        project_dir=project,
        uv=request,
        venv_dir=_absolute(venv_dir, here) if venv_dir else None,
        build_timeout_s=spec.build_timeout_s,
        where=where,
    )


def _absolute(path: str, here: str) -> str:
    return os.path.normpath(os.path.join(here, os.path.expanduser(path)))


def disable_rays_uv_hook(environ: MutableMapping[str, str] | None = None) -> bool:
    """Keep Ray from starting every worker through ``uv run`` when the driver itself was started by ``uv run``. Call before ``ray.init``.

    Ray's hook would repeat the driver's ``uv run`` in every worker and upload the working directory. With it off, the workers' Python
    is what ``python.executable`` says: SYSTEM is then the environment that Ray itself runs in, and BASE the project's own.

    Args:
        environ: Changed: RAY_ENABLE_UV_RUN_RUNTIME_ENV=0, unless the user set it to something. Default: ``os.environ``.

    Returns:
        Whether the driver was started by ``uv run`` (uv leaves UV_RUN_RECURSION_DEPTH in the environment) and the hook is now off.
    """
    target: MutableMapping[str, str] = os.environ if environ is None else environ
    if target.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0") != "0":
        return False
    constants = sys.modules.get("ray._private.ray_constants")
    if constants is not None:  # Ray reads the variable once, when it is imported
        constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False  # type: ignore[attr-defined]
    return _started_by_uv_run(target)


def _started_by_uv_run(environ: Mapping[str, str]) -> bool:
    return "UV_RUN_RECURSION_DEPTH" in environ
