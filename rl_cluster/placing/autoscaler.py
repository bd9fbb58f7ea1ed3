"""What an autoscaler is asked for while resources are waited for, and that nothing of it stays.

Ray knows one request for the whole cluster. Whoever asks replaces it, and it means "so much in all, used or not". So each driver that
waits writes down in Ray's key-value store what it waits for, and whoever asks sends the sum: what all of them wait for, what is held
now, and what somebody else had asked for before. What a killed driver left there is taken out by the next one that places.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray._private import state as ray_state
from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental import internal_kv

from rl_cluster.connection.session import look_around
from rl_cluster.inventory import Inventory
from rl_cluster.plan import close_spec
from rl_cluster.schema import ClusterSpec

_SPACE = "rl_cluster"  # namespace of the store
_WAITS = "waits/"  # before the job's id, "/", and a name of the wait's own
_OTHERS = "others"  # what somebody else had asked for when the first of ours came
_RAYS_KEY = "autoscaler_resource_request"  # where Ray's first autoscaler has the request: resources of bundles. The second can't be read


class Autoscaler:
    """One wait. Asks for what is missing, and withdraws that at the end of the block."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._inventory: Inventory | None = None

    def ask(self, specs: Sequence[ClusterSpec], inventory: Inventory) -> None:
        """Ask for the bundles of these specs beside all else that is asked for, so that exactly what is missing is added."""
        closed = [close_spec(spec, inventory) for spec in specs]
        wanted = [_bundle(spec.bundle_resources, spec.label_selector) for spec in closed for _ in range(sum(spec.bundle_counts))]
        is_first = self._key is None
        self._key = self._key or f"{_WAITS}{ray.get_runtime_context().get_job_id()}/{uuid.uuid4().hex}"
        self._inventory = inventory
        _write(self._key, wanted)
        if is_first and _waits() == [self._key] and not is_autoscaler_v2():
            _write(_OTHERS, [_bundle(resources, {}) for resources in json.loads(internal_kv._internal_kv_get(_RAYS_KEY) or "[]")])
        _send(inventory)

    def __enter__(self) -> Autoscaler:
        if _dead_waits():
            _send(look_around())
        return self

    def __exit__(self, *_: object) -> None:
        if self._key is not None and ray.is_initialized():
            _delete(self._key)
            assert self._inventory is not None
            _send(self._inventory)


def _send(inventory: Inventory) -> None:
    """Send the sum of all that is waited for. The same again does no harm, and mends what two of ours sent at one moment."""
    for key in _dead_waits():
        _delete(key)
    waits = [bundle for key in _waits() for bundle in _read(key)]
    total = _read(_OTHERS)
    if waits:
        total += waits + _held({name for bundle in waits for name in bundle["resources"]}, inventory)
    else:
        _delete(_OTHERS)
    request_resources(
        bundles=[bundle["resources"] for bundle in total], bundle_label_selectors=[bundle["label_selector"] for bundle in total] or None
    )


def _held(names: set[str], inventory: Inventory) -> list[dict[str, dict[str, Any]]]:
    """What is taken on each node, of the resources that matter."""
    held = (
        {
            name: node.total[name] - node.free.get(name, 0.0)
            for name in sorted(names)
            if node.total.get(name, 0.0) > node.free.get(name, 0.0)
        }
        for node in inventory.nodes
        if node.state == "alive"
    )
    return [_bundle(taken, {}) for taken in held if taken]


def _bundle(resources: Mapping[str, float], label_selector: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {"resources": dict(resources), "label_selector": dict(label_selector)}


# --- the store ---


def _waits() -> list[str]:
    return sorted(key.decode() for key in internal_kv._internal_kv_list(_WAITS, namespace=_SPACE))


def _dead_waits() -> list[str]:
    """Those of drivers that have ended without withdrawing them."""
    keys = _waits()
    living = {job["JobID"] for job in ray_state.jobs() if not job["IsDead"]} if keys else set()
    return [key for key in keys if key[len(_WAITS) :].partition("/")[0] not in living]


def _read(key: str) -> list[dict[str, dict[str, Any]]]:
    return list(json.loads(internal_kv._internal_kv_get(key, namespace=_SPACE) or "[]"))


def _write(key: str, bundles: list[dict[str, dict[str, Any]]]) -> None:
    internal_kv._internal_kv_put(key, json.dumps(bundles), overwrite=True, namespace=_SPACE)


def _delete(key: str) -> None:
    internal_kv._internal_kv_del(key, namespace=_SPACE)
