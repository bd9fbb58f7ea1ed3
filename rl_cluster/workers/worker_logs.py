"""What a worker's process wrote at its end: it belongs into the error, because the log's folder goes with a Ray that we started."""

from __future__ import annotations

import glob
import os
import re
import socket
from collections.abc import Iterator

from rl_cluster.process.python_check import last_lines

__all__ = ["last_words", "lines_of_process", "lines_of_starts"]

_RAYS_OWN = re.compile(r":(job_id|actor_name|task_name):")
_HEAD = 65_536  # bytes of a raylet's log in which it says its node's id
_TAIL = 65_536


def last_words(node_id: str, pid: int | None, *, since: float = 0.0) -> str:
    """For the end of an error: the last lines of a worker's log where this machine has it, else where it lies.

    Args:
        node_id: Of the worker.
        pid: Of its process; None where there was none that told Ray of itself: what such a process writes is in the log of its raylet.
        since: Clock time in seconds; an older log of a raylet is about others.
    """
    try:
        found = _found(node_id, pid, since)
    except Exception:  # Ray itself may be gone, or its folder: the error that this is for counts more
        return ""
    if found is None or isinstance(found, str):
        return f"\nIts log on that machine: {found}" if found else ""
    path, text = found
    lines = last_lines("\n".join(line for line in text.splitlines() if not _RAYS_OWN.match(line)))
    return f"\nLast lines of {path}:\n{lines}" if lines.strip() else f"\nNothing was written to {path}"


def _found(node_id: str, pid: int | None, since: float) -> tuple[str, str] | str | None:
    """The path and the end of the log; only where it lies, on another machine; None where nothing is known."""
    import ray
    from ray._private.worker import _global_node

    if _global_node is None:  # a driver that is connected by Ray's client
        return None
    folder = str(_global_node.get_logs_dir_path())
    if not any(node["NodeID"] == node_id and node["NodeManagerHostname"] == socket.gethostname() for node in ray.nodes()):
        return os.path.join(folder, f"worker-*-{pid}.err" if pid else "raylet*.err")
    return lines_of_process(folder, pid) if pid else lines_of_starts(folder, node_id, since)


def lines_of_process(folder: str, pid: int) -> tuple[str, str] | None:
    """The path and the end of a worker process's log of errors, in a folder of Ray's logs."""
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), f"worker-*-{pid}.err")), key=os.path.getmtime)
    return (paths[-1], _end(paths[-1])) if paths else None


def lines_of_starts(folder: str, node_id: str, since: float) -> tuple[str, str] | None:
    """The path and the end of what processes wrote that a node's raylet started, before they were workers; None if nothing since then."""
    for path in _of_raylet(folder, node_id):
        if os.path.isfile(path) and os.path.getmtime(path) >= since and (text := _end(path)).strip():
            return path, text
    return None


def _of_raylet(folder: str, node_id: str) -> Iterator[str]:
    """Several nodes of one machine have ``raylet.out``, ``raylet.1.out``, ... in one folder."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "raylet*.out"))):
        with open(path, "rb") as file:
            if f"Setting node ID node_id={node_id}".encode() in file.read(_HEAD):
                yield f"{path.removesuffix('.out')}.err"


def _end(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL))
        return file.read().decode(errors="replace")
