"""Inventories without a Ray, read from a file.

The file is YAML; only ``nodes`` is needed, and of each node only ``resources``, with its CPU (every bundle takes CPUs unless told
otherwise, so a node that is written without them would silently never be used)::

    nodes:
      - address: 10.0.0.1        # default: 10.0.0.<n>; with count it rises by one per node
        count: 8                 # as many nodes like this one
        resources: {GPU: 8, CPU: 128}
        free: {GPU: 4}           # default: as much as resources says; what else is not free may be said by holders
        labels: {ray.io/gpu-domain: rack-1}
        hostname: worker-1
        head: false              # true for one node at most
        state: alive             # alive | draining | dead
        node_id: a               # of one node; default: node-<address>; needed where several nodes have one address
        holders: [{kind: actor, name: engine, id: 5f, job_id: '02', resources: {GPU: 4}}]
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import field, frozen

from rl_cluster.config_files.text_file import UnreadableError, check_levels, read_text, why_unread
from rl_cluster.errors import ConfigError
from rl_cluster.ground.rules import RuleBroken, near_word
from rl_cluster.inventory import Holder, Inventory, PhysicalNode
from rl_cluster.planning.topology import TOPO_RANK_LABEL, rank_of_label

__all__ = ["load_inventory", "near_resource", "parse_inventory"]

NODE_KEYS = ("address", "count", "node_id", "resources", "free", "labels", "hostname", "head", "state", "holders")
HOLDER_KEYS = ("kind", "name", "id", "job_id", "resources")
STATES = ("alive", "draining", "dead")
HOLDER_KINDS = ("placement_group", "actor", "unknown")
MAX_COUNT = 100_000
MAX_NODES = 1_000_000  # of a file
MAX_AMOUNT = 10**14  # of a resource: Ray's own limit (MAX_RESOURCE_QUANTITY); memory is in bytes
MAX_BYTES = 64 * 2**20  # several hundred thousand nodes that are written one by one
RAYS_RESOURCES = ("GPU", "CPU", "TPU", "HPU", "NPU", "memory")  # names of Ray's own that people misspell
UNIT = 1e-4  # of a resource, in which Ray counts

_NAME = re.compile(r"[^\s:/\[\]\x00-\x1f\x7f]+")  # of a host
_ODD_NUMBER = re.compile(r"[+-]?0[0-9xb_].*|.*:.*")  # of YAML 1.1: 010 is 8, 0x10 is 16, 1:30 is 90
_NAME_RULE = "must be an IP address or a host name, without a port or a blank"


def slack(total: float) -> float:
    """How far apart two amounts may be that mean the same: what Ray counts in, and what a float of that size can't tell."""
    return UNIT + total * 1e-15


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
        text = read_text(path, max_bytes=MAX_BYTES)
        if "&" in text:  # a large file without aliases is read only once
            check_levels(text)
        content, slips = _read_yaml(text)
    except UnreadableError as error:
        raise ConfigError(f"inventory {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"inventory {path}: must be YAML, got {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"inventory {path}: must be YAML, got {why_unread(error)}") from None
    return _parsed(content, f"file {path}", [f"inventory {path}: {slip}" for slip in slips])


def _read_yaml(text: str) -> tuple[object, list[str]]:
    """The content, and what YAML alone knows of: keys that a group has twice (it keeps the last), and numbers that it reads as others."""
    import yaml

    slips: list[str] = []

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_mapping_node(self, anchor: object) -> Any:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    slips.append(f"line {key.start_mark.line + 1}: {key.value}: must stand once in its group, got it again")
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
            return node

        def compose_scalar_node(self, anchor: object) -> Any:
            node = super().compose_scalar_node(anchor)
            kind = node.tag.rpartition(":")[2]
            if node.style is None and (kind == "int" or (kind == "float" and ":" in node.value)) and _ODD_NUMBER.fullmatch(node.value):
                read = self.construct_yaml_int(node) if kind == "int" else self.construct_yaml_float(node)
                rule = f"must be a number that YAML leaves alone (it reads {node.value} as {read})"
                fix = f"write {read} if that is meant, or '{node.value}' in quotes for a text"
                slips.append(RuleBroken(rule, node.value, fix=fix).line(f"line {node.start_mark.line + 1}"))
            return node

    return yaml.load(text, Loader=Loader), slips


def parse_inventory(content: object, *, source: str = "file") -> Inventory:
    """An inventory from the plain content of an inventory file. Errors are those of `load_inventory`."""
    return _parsed(content, source, [])


def _parsed(content: object, source: str, problems: list[str]) -> Inventory:
    reader = _Reader(source, problems)
    nodes = list(reader.nodes(content))
    reader.check_together(nodes)
    if reader.problems:
        raise ConfigError(problems=reader.problems)
    return Inventory(tuple(entry.node for entry in nodes), source=source)


def near_resource(name: str) -> str | None:
    """The resource of Ray's own that another name was probably meant to be (``GPUs``, ``cpu``), or None."""
    near = next((known for known in RAYS_RESOURCES if name.lower().rstrip("s") == known.lower()), None)
    return None if near == name else near


@frozen
class _Entry:
    where: str
    node: PhysicalNode
    has_address: bool  # it is written, and no default
    has_id: bool


@frozen
class _Reader:
    source: str
    problems: list[str] = field(factory=list)

    def broken(self, where: str, rule: str, value: object, *, fix: str = "", note: str = "") -> None:
        self.problems.append(f"inventory {self.source}: {RuleBroken(rule, value, fix=fix, note=note).line(where)}")

    def nodes(self, content: object) -> Iterator[_Entry]:
        nodes = content.get("nodes", list(content)) if isinstance(content, Mapping) else content
        if not isinstance(content, Mapping) or "nodes" not in content or not isinstance(nodes, list) or not nodes:
            return self.broken("nodes", "must be a list with at least one node", nodes)
        self.known_keys("", content, ("nodes", "source"))
        number = 0
        for index, entry in enumerate(nodes):
            where = f"nodes[{index}]"
            if not isinstance(entry, Mapping):
                self.broken(where, "must be a mapping with resources", entry)
                number += 1
                continue
            for made in self.entry(where, entry, number):
                number += 1
                if number > MAX_NODES:
                    return self.broken(where, f"must be at most {MAX_NODES} nodes in all", number)
                yield made

    def check_together(self, entries: Sequence[_Entry]) -> None:
        """What no node says alone: no node stands twice, and one is the head."""
        seen: dict[str, _Entry] = {}
        heads: list[_Entry] = []
        for entry in entries:
            node = entry.node
            first = seen.setdefault(node.node_id, entry)
            if first is not entry and (entry.has_id or first.has_id):
                self.broken(f"{entry.where}.node_id", f"must differ from that of {first.where}", node.node_id)
            elif first is not entry:
                rule = f"must differ from that of {first.where}" + ("" if first.has_address else ", which is a default")
                note = "" if entry.has_address else "by default"
                fix = "" if entry.has_address and first.has_address else "write the address of each node"
                self.broken(f"{entry.where}.address", rule, node.address, fix=fix, note=note)
            if node.is_head and node.state != "dead":
                heads.append(entry)
        for entry in heads[1:2]:
            self.broken(f"{entry.where}.head", f"must be true for one node at most, and is for {heads[0].where}", True)

    def known_keys(self, where: str, group: Mapping[Any, Any], keys: Sequence[str]) -> None:
        for key in group:
            if key not in keys:
                near = near_word(key, [known for known in keys if known not in group])
                place = where if not _is_plain(key) else f"{where}.{key}" if where else key
                self.broken(place or "nodes", f"must be one of {', '.join(keys)}", key, fix=f"write {near}" if near else "")

    def entry(self, where: str, entry: Mapping[Any, Any], number: int) -> Iterator[_Entry]:
        """The nodes of an entry; also of one with problems, so that what they break together is told as well."""
        problems = len(self.problems)
        self.known_keys(where, entry, NODE_KEYS)
        count = entry.get("count", 1)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
            self.broken(f"{where}.count", f"must be a whole number from 1 to {MAX_COUNT}", count)
            count = 1
        if "resources" not in entry:
            self.broken(f"{where}.resources", "must be there", None)
        total = self.amounts(f"{where}.resources", entry.get("resources", {}))
        if isinstance(entry.get("resources"), Mapping) and entry.get("state") != "dead":
            self.resource_names(f"{where}.resources", [name for name in entry["resources"] if isinstance(name, str)])
        free = {**total, **self.free(f"{where}.free", entry)}
        labels = self.texts(f"{where}.labels", entry.get("labels", {}))
        rank = labels.get(TOPO_RANK_LABEL)
        if rank and rank_of_label(rank) is None:
            self.broken(f"{where}.labels.{TOPO_RANK_LABEL}", "must be a number", rank)
        state = entry.get("state", "alive")
        if state not in STATES:
            near = near_word(state, STATES)
            self.broken(f"{where}.state", f"must be one of {', '.join(STATES)}", state, fix=f"write {near}" if near else "")
        head = entry.get("head", False)
        if not isinstance(head, bool):
            self.broken(f"{where}.head", "must be true or false", head)
        hostname = entry.get("hostname", "")
        if hostname != "" and not _is_host(hostname):
            self.broken(f"{where}.hostname", "must be a host name, a text without a blank", hostname)
        node_id = entry.get("node_id")
        has_id = "node_id" in entry and _is_plain(node_id) and count == 1
        if "node_id" in entry and not has_id:
            self.broken(f"{where}.node_id", "must be a printable text that is not empty, of one node (count: 1)", node_id)
        holders = tuple(self.holders(f"{where}.holders", entry.get("holders", [])))
        addresses = self.addresses(f"{where}.address", entry, count, number)
        if state != "dead" and len(self.problems) == problems:
            self.check_held(where, total, free, holders)
        for step, address in enumerate(addresses):
            default = f"{where} {step}" if "node_id" in entry else f"node-{address}"
            node = PhysicalNode(
                node_id=str(node_id) if has_id else default,
                address=address,
                total=total,
                free={} if state == "dead" else free,
                hostname=hostname,
                labels=labels,
                is_head=head is True,
                state=state,
                holders=holders,
            )
            yield _Entry(where, node, has_address="address" in entry, has_id=has_id)

    def addresses(self, where: str, entry: Mapping[Any, Any], count: int, number: int) -> Iterator[str]:
        first = entry.get("address", str(ipaddress.ip_address("10.0.0.1") + number))
        unreadable = (f"{where} {step}" for step in range(count))
        if not isinstance(first, str):
            self.broken(where, f"{_NAME_RULE}, a text", first)
            return unreadable
        try:
            start: Any = ipaddress.ip_address(first)
        except ValueError:
            if not _is_host(first):
                self.broken(where, _NAME_RULE, first)
            elif count > 1:
                self.broken(where, "must be an IP address where count is more than 1", first)
            else:
                return iter([first])
            return unreadable
        last = 2**start.max_prefixlen - 1
        if int(start) + count - 1 > last:
            self.broken(where, f"must leave room for {count} addresses that rise by one", first)
            return unreadable
        return (str(start + step if step else start) for step in range(count))

    def free(self, where: str, entry: Mapping[Any, Any]) -> dict[str, float]:
        free = self.amounts(where, entry.get("free", {}))
        resources = entry.get("resources")
        if not isinstance(resources, Mapping):
            return {}
        names = [str(name) for name in resources]
        total = {str(name): amount for name, amount in resources.items()}
        for name, amount in free.items():
            if name not in names:
                near = near_resource(name)
                fix = f"write {near}" if near in names else "say it in resources as well"
                self.broken(f"{where}.{name}", "must be one of resources", name, fix=fix)
            elif isinstance(total[name], (int, float)) and amount > total[name]:
                self.broken(f"{where}.{name}", f"must be at most what resources says ({total[name]:g})", amount)
        return free

    def check_held(self, where: str, total: Mapping[str, float], free: Mapping[str, float], holders: Sequence[Holder]) -> None:
        held: Counter[str] = Counter()
        for holder in holders:
            held.update(holder.resources)
        for name, amount in held.items():
            taken = total.get(name, 0.0) - free.get(name, 0.0)
            if amount > taken + slack(total.get(name, 0.0)):
                has = f"{free.get(name, 0.0):g} of {total.get(name, 0.0):g} free"
                self.broken(f"{where}.holders", f"must hold at most what is not free of {name} ({has})", round(amount, 4))

    def amounts(self, where: str, value: object) -> dict[str, float]:
        if not isinstance(value, Mapping):
            self.broken(where, "must be a mapping from resource to amount", value)
            return {}
        amounts = {}
        for name, amount in value.items():
            if not _is_plain(name):
                self.broken(where, "must name a resource by a printable text", name, fix=_if_misread(name))
            elif isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < math.inf:
                self.broken(f"{where}.{name}", "must be a number, at least 0", amount, note=_if_a_text(amount))
            elif amount > MAX_AMOUNT:
                self.broken(f"{where}.{name}", f"must be at most {MAX_AMOUNT}", amount)
            else:
                amounts[str(name)] = float(amount)
        return amounts

    def resource_names(self, where: str, names: Sequence[str]) -> None:
        """A misspelt name of Ray's own would be a custom resource that nothing asks for."""
        meant = set()
        for name in names:
            near = near_resource(name)
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
            if not _is_plain(str(name) if type(name) is int else name):
                self.broken(where, "must name a label by a printable text", name, fix=_if_misread(name))
            elif isinstance(text, (bool, float)) or not isinstance(text, (str, int)):
                self.broken(f"{where}.{name}", "must be a text (YAML reads some words as other types: quote it)", text)
            elif not str(text).isprintable():
                self.broken(f"{where}.{name}", "must be a printable text", text)
        return {str(name): str(text) for name, text in value.items()}

    def holders(self, where: str, value: object) -> Iterator[Holder]:
        if not isinstance(value, list):
            return self.broken(where, "must be a list", value)
        for index, entry in enumerate(value):
            place = f"{where}[{index}]"
            if not isinstance(entry, Mapping) or entry.get("kind") not in HOLDER_KINDS:
                self.broken(place, f"must have the keys {', '.join(HOLDER_KEYS)} and a kind of {', '.join(HOLDER_KINDS)}", entry)
                continue
            self.known_keys(place, entry, HOLDER_KEYS)
            words = self.texts(place, {key: entry[key] for key in HOLDER_KEYS[:4] if key in entry})
            kind, name, id_, job_id = (words.get(key, "") for key in HOLDER_KEYS[:4])
            yield Holder(kind, name, id_, job_id, self.amounts(f"{place}.resources", entry.get("resources", {})))


def _is_plain(name: object) -> bool:
    """A text that can stand in a line: not empty, no blank at either end, no line break, no half of a character."""
    return isinstance(name, str) and name.strip() == name != "" and name.isprintable()


def _is_host(name: object) -> bool:
    return _is_plain(name) and _NAME.fullmatch(str(name)) is not None


def _if_misread(name: object) -> str:
    return "" if isinstance(name, str) else "write it in quotes: YAML reads some words as other types"


def _if_a_text(amount: object) -> str:
    """What to write for a number in quotes, or for one like 1e9, which YAML 1.1 takes for a text."""
    try:
        number = float(amount) if isinstance(amount, str) else math.nan
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    mantissa, _, exponent = f"{number:.12g}".partition("e")
    yaml_number = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}" if exponent else mantissa
    return f"(a text in YAML: write {yaml_number})"
