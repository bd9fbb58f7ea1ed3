"""The order of physical nodes: NVLink domain, then topology rank, then address as a number; Ray's random node id only at the very end."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence

from rl_cluster.errors import ConfigError
from rl_cluster.ground.rules import shown
from rl_cluster.inventory import FILE_ID_LABEL, PhysicalNode

DOMAIN_LABEL = "ray.io/gpu-domain"
DOMAIN_RESOURCE_PREFIX = "nvlink_domain_"
TOPO_RANK_LABEL = "rl_cluster/topo-rank"
TOPO_RANK_RESOURCE = "topo_rank"

NaturalKey = tuple[tuple[int, int, str], ...]
AddressKey = tuple[int, int, NaturalKey]
NodeKey = tuple[bool, NaturalKey, float, AddressKey, NaturalKey, str]

_DIGITS = re.compile(r"([0-9]+)")  # \d would take digits of other scripts, too


def natural_key(text: str | int) -> NaturalKey:
    """A sort key that reads runs of digits as numbers, so that ``node9`` comes before ``node10`` and ``"9"`` before ``"10"``."""
    parts = enumerate(_DIGITS.split(str(text)))  # the odd ones are digits
    return tuple(_number_key(part) if place % 2 else (1, 0, part) for place, part in parts if part)


def _number_key(digits: str) -> tuple[int, int, str]:
    """The longer number is the larger one; Python makes no int of more than 4300 digits."""
    digits = digits.lstrip("0")
    return 0, len(digits), digits


def address_key(address: str) -> AddressKey:
    """A sort key for addresses: IPv4 as numbers, then IPv6 as numbers, then host names with their digits as numbers.

    Args:
        address: An address or host name as Ray reports it (``NodeManagerAddress``), without a port.
    """
    parts = address.split(".")
    if len(parts) == 4 and all(len(part) <= 3 and part.isascii() and part.isdigit() for part in parts):
        a, b, c, d = map(int, parts)  # ipaddress takes ten times as long, and clusters of 10,000 nodes are sorted at each plan
        return 0, (a << 24) + (b << 16) + (c << 8) + d, ()
    if ":" in address:
        try:
            return 1, int(ipaddress.IPv6Address(address.strip("[]").partition("%")[0])), ()
        except ValueError:
            pass
    return 2, 0, natural_key(address)


def gpu_domain(node: PhysicalNode) -> str | None:
    """The NVLink domain of a node, or None where nothing says so.

    The label ``ray.io/gpu-domain`` comes first, then a resource named ``nvlink_domain_<uuid>``.
    """
    label = node.labels.get(DOMAIN_LABEL)
    if label:
        return label
    names = [name for name in node.total if name.startswith(DOMAIN_RESOURCE_PREFIX)]
    return min(names)[len(DOMAIN_RESOURCE_PREFIX) :] if names else None


def topo_rank(node: PhysicalNode) -> float | None:
    """The place of a node that its administrator gave it, or None.

    The label ``rl_cluster/topo-rank`` comes first, then the amount of the resource ``topo_rank``.

    Raises:
        ConfigError: The label is not a finite number.
    """
    label = node.labels.get(TOPO_RANK_LABEL)
    if label:
        rank = rank_of_label(label)
        if rank is None:
            raise ConfigError(
                f"node {node.address}: the label {TOPO_RANK_LABEL} must be a number, got {shown(label)}. "
                "Fix: start its Ray with a number there",
                node=node.address,
            )
        return rank
    return node.total.get(TOPO_RANK_RESOURCE)


def rank_of_label(label: str) -> float | None:
    """The topology rank that a label says, or None where it is no finite number."""
    try:
        rank = float(label)
    except ValueError:
        return None
    return rank if math.isfinite(rank) else None


def node_key(node: PhysicalNode) -> NodeKey:
    """The sort key of a physical node: (domain, topology rank, address, host name, node id); nodes without one of them come last."""
    domain = gpu_domain(node)
    rank = topo_rank(node)
    return (
        domain is None,
        natural_key(domain) if domain else (),
        float("inf") if rank is None else rank,
        address_key(node.address),
        natural_key(node.hostname) if node.hostname else (),
        node.labels.get(FILE_ID_LABEL, node.node_id),
    )


def sort_nodes(nodes: Sequence[PhysicalNode]) -> list[PhysicalNode]:
    """The nodes in topology order, whatever order they come in.

    Raises:
        ConfigError: Two living nodes carry the same topology rank.
    """
    seen: dict[float, PhysicalNode] = {}
    ordered = sorted(nodes, key=node_key)
    for node in ordered:
        rank = topo_rank(node) if node.state == "alive" else None
        if rank is None:
            continue
        if rank in seen:
            raise ConfigError(
                f"nodes {seen[rank].address} and {node.address}: topology ranks must be unique, got {rank:g} twice. "
                f"Fix: give each node its own {TOPO_RANK_LABEL} label ({TOPO_RANK_RESOURCE} resource)",
                nodes=(seen[rank].address, node.address),
            )
        seen[rank] = node
    return ordered
