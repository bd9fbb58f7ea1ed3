"""What runs inside a worker process: environment and binding in its first breath, ranks later.

A worker is a real Ray actor whose class is made by :func:`worker_class`: ``class Worker(Boot, UserClass)``. Ray ships that
class by value. Pickle rebuilds the bases from left to right, and ``Boot`` carries a payload that acts while it is rebuilt, so
environment variables and the NUMA binding are in force *before* the module of the user's class is imported. (Threads that
a library starts at import inherit the mask and the memory policy; libraries that read a variable at import see it.)
``Boot`` has no ``__init__`` of the user: that one runs in the second phase, when the rank is known.

This module is imported by every worker, so it imports little.
"""

from __future__ import annotations

import os
import socket
import sys
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_cluster.numa.report import BindingReport
    from rl_cluster.ports import PortLease

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")

Binder = Callable[[], "BindingReport"]


class _Payload:
    """Acts when it is unpickled in the worker process that is being made of this class, before the user's module is imported."""

    def __init__(self, token: str, env: Mapping[str, str], binder: Binder | None) -> None:
        self.token = token
        self.env = dict(env)
        self.binder = binder

    def __reduce__(self) -> tuple[Any, ...]:
        return _boot, (self.token, self.env, self.binder)


_report: BindingReport | None = None
_lease: PortLease | None = None


def _boot(token: str, env: Mapping[str, str], binder: Binder | None) -> None:
    """Ray loads the class in every process that gets a handle, too: those must keep their own environment and binding."""
    global _report
    import ray

    context = ray.get_runtime_context()
    task = context.get_task_function_name() if context.worker.mode == ray.WORKER_MODE else None
    if task is None or token not in task or not task.endswith(".__init__"):
        return
    from rl_cluster.process.uv_store import hold_environment

    hold_environment(Path(sys.prefix))  # where this Python is one that was built: nobody prunes it under its workers
    os.environ.update(environment_of(sys.prefix, os.environ))
    os.environ.update(env)
    if binder is not None:
        _report = binder()


def environment_of(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker in a built environment sees, as below ``uv run``; nothing for another interpreter.

    Without these variables VIRTUAL_ENV is the one that the raylet was started with, a nested ``uv`` works on the wrong environment, and
    programs are found that are not the environment's (``python``, ``ninja``, ``torchrun``).

    Args:
        prefix: Folder of the interpreter (``sys.prefix``).
        environ: The process's own environment.
    """
    from rl_cluster.process.uv_store import MARKER

    if not os.path.exists(os.path.join(prefix, MARKER)):
        return {}
    path = os.pathsep.join(filter(None, [os.path.join(prefix, "bin"), environ.get("PATH")]))
    return {"VIRTUAL_ENV": prefix, "UV_PROJECT_ENVIRONMENT": prefix, "PATH": path}


class Boot:
    """The two phases of a worker's start. Every name begins with ``_rl_cluster_``: the user's class has all others."""

    def __init__(self, binder: Binder | None = None) -> None:
        """The user's ``__init__`` runs later, in :meth:`_rl_cluster_start`. A binder given here differs from worker to worker."""
        global _report
        if binder is not None:
            _report = binder()

    def _rl_cluster_hello(self) -> dict[str, Any]:
        """Phase 1: where this process came up, and what it is bound to."""
        import ray

        context = ray.get_runtime_context()
        ids = context.get_accelerator_ids()
        return {
            "node_id": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "hostname": socket.gethostname(),
            "accelerator_ids": {kind: [str(i) for i in found] for kind, found in ids.items() if found},
            "pid": os.getpid(),
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "binding": _report,
        }

    def _rl_cluster_lease(self, low: int, high: int) -> int:
        """Rank 0's process leases the master port and holds it until it is handed over (just before the user's ``__init__``)."""
        global _lease
        from rl_cluster.ports import lease_port

        if _lease is not None:
            _lease.release()
        _lease = lease_port(low, high)
        return _lease.port

    def _rl_cluster_start(self, env: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Phase 2: ranks into the environment, then the user's ``__init__``."""
        os.environ.update(env)
        if _lease is not None:
            _lease.hand_over()
        user_init = next(vars(kind)["__init__"] for kind in type(self).__mro__ if "__init__" in vars(kind) and not issubclass(kind, Boot))
        user_init(self, *args, **kwargs)

    def _rl_cluster_processes(self) -> list[tuple[int, int]]:
        """This process and those in front of it, such as a profiler."""
        from rl_cluster.process.nsight import processes_up_to_ray

        return processes_up_to_ray(os.getpid())

    def _rl_cluster_rendezvous(self) -> tuple[dict[str, str], int | None]:
        """The rank variables as this process has them now, and the port that it has leased."""
        return {name: os.environ.get(name, "") for name in RANK_NAMES}, None if _lease is None else _lease.port

    def _rl_cluster_verify(self) -> BindingReport | None:
        """Look again at what the kernel holds now (a library may have changed the mask since)."""
        if _report is None:
            return None
        from rl_cluster.numa.bind import verify

        return verify(_report)


def worker_class(user_class: type, *, env: Mapping[str, str], binder: Binder | None) -> type:
    """A class to give to ``ray.remote``: the user's, which boots first.

    Args:
        user_class: Any class that Ray can run as an actor (methods, async methods, generators all work).
        env: Environment variables that must be there before the user's module is imported. Never on a command line.
        binder: Called in the worker process before the user's module is imported; its report is sent in phase 1.
    """
    # Ray names the creating task by module and class, so the module's name tells a process whether it is being made of this class
    token = f"rl_cluster_{uuid.uuid4().hex}"
    payload = _Payload(token, env, binder)
    boot = types.new_class("_Boot", (Boot,), {}, lambda body: body.update(_payload=payload, __module__=token))
    module = f"{user_class.__module__}.{token}"
    names = {"__module__": module, "__qualname__": user_class.__qualname__, "__doc__": user_class.__doc__}
    return types.new_class(user_class.__name__, (boot, user_class), {}, lambda body: body.update(names))
