"""What a Ray cluster holds, asked from outside; and waiting for a state with a deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray

from rl_cluster.connection.snapshot import snapshot_inventory

Value = TypeVar("Value")


def within(seconds: float, look: Callable[[], Value], *, until_none: bool = False) -> Value:
    """Look until the answer is true (or, with ``until_none``, None); the last answer, whatever it is."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if (value is None) if until_none else bool(value):
            return value
        if time.monotonic() > deadline:
            return value
        time.sleep(0.1)


def placement_groups(*states: str) -> list[dict[str, Any]]:
    """The placement groups that Ray has in one of these states."""
    table = ray.util.placement_group_table()
    return [group for group in table.values() if group["state"] in states]


def living_actors() -> list[dict[str, Any]]:
    """Actors of any driver that are alive or may become so."""
    from ray._private.state import actors

    return [actor for actor in actors().values() if actor["State"] != "DEAD"]


def what_stays() -> dict[str, Any]:
    """Everything that a finished job should have given back; empty when there is nothing."""
    groups = placement_groups("PENDING", "CREATED", "PREPARED", "RESCHEDULING")
    actors = living_actors()
    taken = {
        node.address: (name, node.free.get(name, 0.0), total)
        for node in snapshot_inventory().nodes
        if node.state == "alive"
        for name, total in node.total.items()
        if name in ("CPU", "GPU") and node.free.get(name, 0.0) != total
    }
    return {name: found for name, found in (("groups", groups), ("actors", actors), ("taken", taken)) if found}


def runs(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def processes_that_name(text: str) -> list[int]:
    """Processes, beside this one, on whose command line the text stands."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as handle:
                    if os.fsencode(text) in handle.read():
                        found.append(int(entry))
            except OSError:
                continue  # it ended meanwhile
    return found
