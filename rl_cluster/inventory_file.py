"""Inventories without a Ray: read from a file, written to one, or made up to fit a spec.

The file is YAML; only ``nodes`` is needed, and of each node only ``resources``, with its CPU (every bundle takes CPUs unless told
otherwise, so a node that is written without them would silently never be used)::

    nodes:
      - address: 10.0.0.1        # default: 10.0.0.<n>; with count it rises by one per node
        count: 8                 # as many nodes like this one
        resources: {GPU: 8, CPU: 128}
        free: {GPU: 4}           # default: as much as resources says
        labels: {ray.io/gpu-domain: rack-1}
        hostname: worker-1
        head: false
        state: alive             # alive | draining | dead
        holders: [{kind: actor, name: engine, id: 5f, job_id: '02', resources: {GPU: 4}}]
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import field, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import HEAD_RESOURCE, Holder, Inventory, PhysicalNode
from rl_cluster.rules import shown
from rl_cluster.schema import MAX_AMOUNT
from rl_cluster.simulated_inventory import simulated_inventory
from rl_cluster.text_file import UnreadableError, read_text, why_unread

__all__ = ["dump_inventory", "load_inventory", "parse_inventory", "simulated_inventory"]

NODE_KEYS = ("address", "count", "resources", "free", "labels", "hostname", "head", "state", "holders")
HOLDER_KEYS = ("kind", "name", "id", "job_id", "resources")
STATES = ("alive", "draining", "dead")
HOLDER_KINDS = ("placement_group", "actor", "unknown")
MAX_COUNT = 100_000
MAX_BYTES = 64 * 2**20  # several hundred thousand nodes that are written one by one
RAYS_RESOURCES = ("GPU", "CPU", "TPU", "HPU", "NPU", "memory")  # names of Ray's own that people misspell


def load_inventory(path: str | PathLike[str]) -> Inventory:
    """Reads an inventory file.

    Args:
        path: A YAML file as the head of this module describes it; a pipe that ends will do.

    Raises:
        ConfigError: The file can't be read, or breaks a rule; every broken rule is listed with its place in the file.
    """
    import yaml  # type: ignore[import-untyped]

    path = Path(path)
    try:
        content = yaml.safe_load(read_text(path, max_bytes=MAX_BYTES))
    except UnreadableError as error:
        raise ConfigError(f"inventory {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"inventory {path}: must be YAML, got {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise ConfigError(f"inventory {path}: must be YAML, got {why_unread(error)}") from None
    return parse_inventory(content, source=f"file {path}")


def parse_inventory(content: object, *, source: str = "file") -> Inventory:
    """An inventory from the plain content of an inventory file. Errors are those of `load_inventory`."""
    reader = _Reader(source)
    nodes = list(reader.nodes(content))
    seen: dict[str, str] = {}
    for where, node in nodes:
        if node.address in seen:
            reader.broken(f"{where}.address", f"must differ from that of {seen[node.address]}", node.address)
        seen.setdefault(node.address, where)
    if reader.problems:
        raise ConfigError(problems=reader.problems)
    return Inventory(tuple(node for _, node in nodes), source=source)


@frozen
class _Reader:
    source: str
    problems: list[str] = field(factory=list)

    def broken(self, where: str, rule: str, value: object, *, fix: str = "") -> None:
        self.problems.append(f"inventory {self.source}: {where}: {rule}, got {shown(value)}{f'. Fix: {fix}' if fix else ''}")

    def nodes(self, content: object) -> Iterator[tuple[str, PhysicalNode]]:
        if not isinstance(content, Mapping) or not isinstance(content.get("nodes"), list) or not content["nodes"]:
            got = list(content) if isinstance(content, Mapping) else content
            return self.broken("nodes", "must be a list with at least one node", got)
        for key in content:
            if key not in ("nodes", "source"):
                self.broken(str(key), "must be one of nodes, source", key)
        number = 0
        for index, entry in enumerate(content["nodes"]):
            where = f"nodes[{index}]"
            if not isinstance(entry, Mapping):
                self.broken(where, "must be a mapping with resources", entry)
                continue
            for made in self.entry(where, entry, number):
                number += 1
                yield where, made

    def entry(self, where: str, entry: Mapping[Any, Any], number: int) -> Iterator[PhysicalNode]:
        problems = len(self.problems)
        for key in entry:
            if key not in NODE_KEYS:
                self.broken(f"{where}.{key}", f"must be one of {', '.join(NODE_KEYS)}", key)
        count = entry.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
            self.broken(f"{where}.count", f"must be a whole number from 1 to {MAX_COUNT}", count)
        if "resources" not in entry:
            self.broken(f"{where}.resources", "must be there", None)
        total = self.amounts(f"{where}.resources", entry.get("resources", {}))
        if isinstance(entry.get("resources"), Mapping) and entry.get("state") != "dead":
            self.resource_names(f"{where}.resources", [str(name) for name in entry["resources"]])
        free = {**total, **self.amounts(f"{where}.free", entry.get("free", {}))}
        for name, amount in free.items():
            if amount > total.get(name, 0.0):
                self.broken(f"{where}.free.{name}", f"must be at most what resources says ({total.get(name, 0.0):g})", amount)
        labels = self.texts(f"{where}.labels", entry.get("labels", {}))
        state = entry.get("state", "alive")
        if state not in STATES:
            self.broken(f"{where}.state", f"must be one of {', '.join(STATES)}", state)
        head = entry.get("head", False)
        if not isinstance(head, bool):
            self.broken(f"{where}.head", "must be true or false", head)
        holders = tuple(self.holders(f"{where}.holders", entry.get("holders", [])))
        addresses = self.addresses(f"{where}.address", entry.get("address"), count, number)
        if len(self.problems) > problems:
            return
        for address in addresses(count):
            yield PhysicalNode(
                node_id=f"node-{address}",
                address=address,
                total=total,
                free={} if state == "dead" else free,
                hostname=str(entry.get("hostname", "")),
                labels=labels,
                is_head=head,
                state=state,
                holders=holders,
            )

    def addresses(self, where: str, first: object, count: object, number: int) -> Callable[[int], Iterator[str]]:
        if first is None:
            start: Any = ipaddress.ip_address("10.0.0.1") + number
        else:
            try:
                start = ipaddress.ip_address(str(first))
            except ValueError:
                if count != 1 or not isinstance(first, str) or not first:
                    self.broken(where, "must be an IP address where count is more than 1" if first else "must not be empty", first)
                return lambda _: iter([str(first)])
        return lambda count: (str(start + step) for step in range(count))

    def amounts(self, where: str, value: object) -> dict[str, float]:
        if not isinstance(value, Mapping):
            self.broken(where, "must be a mapping from resource to amount", value)
            return {}
        amounts = {}
        for name, amount in value.items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
                self.broken(f"{where}.{name}", "must be a number, at least 0", amount)
            elif amount > MAX_AMOUNT:
                self.broken(f"{where}.{name}", f"must be at most {MAX_AMOUNT}", amount)
            else:
                amounts[str(name)] = float(amount)
        return amounts

    def resource_names(self, where: str, names: Sequence[str]) -> None:
        """A misspelt name of Ray's own would be a custom resource that nothing asks for."""
        meant = set()
        for name in names:
            near = next((known for known in RAYS_RESOURCES if name.lower().rstrip("s") == known.lower()), None)
            if near is not None and near not in names:
                meant.add(near)
                self.broken(f"{where}.{name}", "must be a resource by Ray's name", name, fix=f"write {near}")
        if "CPU" not in names and "CPU" not in meant:
            self.broken(where, "must say CPU", sorted(names), fix="add CPU: <cores>, or CPU: 0 for a node that gives none")

    def texts(self, where: str, value: object) -> dict[str, str]:
        if not isinstance(value, Mapping):
            self.broken(where, "must be a mapping from label to value", value)
            return {}
        for name, text in value.items():
            if isinstance(text, (bool, float)) or not isinstance(text, (str, int)):
                self.broken(f"{where}.{name}", "must be a text (YAML reads some words as other types: quote it)", text)
        return {str(name): str(text) for name, text in value.items()}

    def holders(self, where: str, value: object) -> Iterator[Holder]:
        if not isinstance(value, list):
            return self.broken(where, "must be a list", value)
        for index, entry in enumerate(value):
            place = f"{where}[{index}]"
            if not isinstance(entry, Mapping) or entry.get("kind") not in HOLDER_KINDS or set(entry) - set(HOLDER_KEYS):
                self.broken(place, f"must have the keys {', '.join(HOLDER_KEYS)} and a kind of {', '.join(HOLDER_KINDS)}", entry)
                continue
            kind, name, id_, job_id = (str(entry.get(key, "")) for key in HOLDER_KEYS[:4])
            yield Holder(kind, name, id_, job_id, self.amounts(f"{place}.resources", entry.get("resources", {})))


def dump_inventory(inventory: Inventory) -> str:
    """The text of an inventory file that `load_inventory` reads as the same nodes.

    Left out is what Ray makes up for each node (``node:`` resources, the object store, the label with its random id).
    """
    import yaml

    nodes = []
    for node in inventory.nodes:
        total = _kept(node.total)
        if node.state != "dead":
            total = {"CPU": 0, **total}  # Ray leaves out what a node has none of
        free = _kept(node.free)
        held = {name: free.get(name, 0) for name, amount in total.items() if free.get(name, 0) != amount}
        labels = {name: text for name, text in node.labels.items() if name != "ray.io/node-id"}
        entry: dict[str, Any] = {"address": node.address, "resources": total}
        if held and node.state != "dead":
            entry["free"] = held
        if labels:
            entry["labels"] = labels
        if node.hostname:
            entry["hostname"] = node.hostname
        if node.is_head:
            entry["head"] = True
        if node.state != "alive":
            entry["state"] = node.state
        if node.holders:
            entry["holders"] = [
                {"kind": holder.kind, "name": holder.name, "id": holder.id, "job_id": holder.job_id, "resources": _kept(holder.resources)}
                for holder in node.holders
            ]
        nodes.append(entry)
    text: str = yaml.safe_dump({"source": inventory.source, "nodes": nodes}, sort_keys=False, default_flow_style=None, width=140)
    return text


def _kept(resources: Mapping[str, float]) -> dict[str, float]:
    made_by_ray = (HEAD_RESOURCE, "object_store_memory")
    return {
        name: int(amount) if amount == int(amount) else amount
        for name, amount in sorted(resources.items())
        if name not in made_by_ray and not name.startswith("node:")
    }
