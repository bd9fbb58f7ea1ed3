"""Which physical nodes a spec may use: Ray's label selectors, nodes to leave out, the head node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rl_cluster.errors import ConfigError
from rl_cluster.inventory import FILE_ID_LABEL, PhysicalNode
from rl_cluster.schema import ClusterSpec

# The grammar that Ray checks (Kubernetes label values; `!`, `in(...)`, `!in(...)`), see ray.util.placement_group's bundle_label_selector.
_VALUE = r"[a-zA-Z0-9](?:[a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?"
_SELECTOR = re.compile(rf"(?P<no>!?)(?:in\((?P<many>{_VALUE}(?:, ?{_VALUE})*)\)|(?P<one>{_VALUE})?)")


def parse_selector(value: str, *, where: str = "cluster.label_selector") -> tuple[bool, frozenset[str]]:
    """Reads one value of a label selector.

    Args:
        value: ``v``, ``!v``, ``in(a,b)`` or ``!in(a,b)``.
        where: The key that an error names.

    Returns:
        Whether the label's value must be (True) or must not be (False) one of the values, and those values.

    Raises:
        ConfigError: The value is none of the four forms.
    """
    match = _SELECTOR.fullmatch(value) if isinstance(value, str) else None
    if match is None or value == "!":
        raise ConfigError(f"{where}: must be v, !v, in(a,b) or !in(a,b), got {value!r}. Fix: write it in Ray's label selector syntax")
    many, one = match["many"], match["one"]
    values = frozenset(re.split(r", ?", many)) if many else frozenset([one or ""])
    return not match["no"], values


def matches_selector(labels: Mapping[str, str], selector: Mapping[str, str]) -> str | None:
    """Whether a node's labels fulfil a selector; a label that is missing fulfils ``!v`` and ``!in(...)``, as in Ray.

    Returns:
        None where they do, else one clause that says which label is wrong.
    """
    for key, value in selector.items():
        wanted, values = parse_selector(value, where=f"cluster.label_selector.{key}")
        held = labels.get(key)
        if (held in values) != wanted:
            return f"label {key} is {held!r}, wanted {value}" if held is not None else f"has no label {key}, wanted {value}"
    return None


def _is_named(node: PhysicalNode, name: str) -> bool:
    key, equals, value = name.partition("=")
    if equals:
        return node.labels.get(key) == value
    return name in (node.node_id, node.address, node.hostname, node.labels.get(FILE_ID_LABEL))


def unusable_reasons(spec: ClusterSpec, nodes: Sequence[PhysicalNode]) -> list[tuple[str, str] | None]:
    """Why each node may not be used, whatever is free on it.

    Returns:
        One entry per node: None, or (kind, clause); kind is ``dead``, ``draining``, ``excluded``, ``head`` or ``label``.

    Raises:
        ConfigError: The label selector can't be read.
    """
    for key, value in spec.label_selector.items():
        parse_selector(value, where=f"cluster.label_selector.{key}")
    excluded = list(spec.exclude_nodes)
    return [_unusable(spec, node, excluded) for node in nodes]


def _unusable(spec: ClusterSpec, node: PhysicalNode, excluded: Sequence[str]) -> tuple[str, str] | None:
    if node.state != "alive":
        return node.state, f"is {node.state}"
    if excluded and any(_is_named(node, name) for name in excluded):
        return "excluded", "is left out by cluster.exclude_nodes"
    if node.is_head:
        if spec.use_head == "never":
            return "head", "is the head node, left out by cluster.use_head=never"
        if spec.use_head == "auto" and spec.use_gpus and not node.total.get(spec.accelerator):
            return "head", f"is the head node and has no {spec.accelerator}"
    if spec.label_selector:
        clause = matches_selector(node.labels, spec.label_selector)
        if clause:
            return "label", clause
    return None


def unknown_exclusions(spec: ClusterSpec, nodes: Sequence[PhysicalNode]) -> list[str]:
    """The entries of ``exclude_nodes`` that name no node: mostly a slip of the pen that a person wants to hear of."""
    return [name for name in spec.exclude_nodes if not any(_is_named(node, name) for node in nodes)]
