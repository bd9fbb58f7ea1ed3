"""Where a node is among the others: its NVLink domain and its rank in the network's topology, as Ray resources and labels."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import frozen

from rl_cluster.numa.machine import Machine
from rl_cluster.planning.topology import DOMAIN_LABEL, DOMAIN_RESOURCE_PREFIX, TOPO_RANK_LABEL, TOPO_RANK_RESOURCE

_NO_DOMAIN = "00000000-0000-0000-0000-000000000000"
_LEVELS, _BASE = 3, 10_000  # Ray keeps amounts as 64-bit integers of 1/10,000: three levels of four digits fit


@frozen
class NodePlace:
    """What is known of a node's place."""

    domain: str | None = None  # ClusterUUID of the NVLink fabric
    topo_rank: int | None = None  # at least 1: Ray drops a resource of 0
    notes: tuple[str, ...] = ()  # what could not be found

    def resources(self) -> Mapping[str, float]:
        """For ``ray start --resources``."""
        domain = {} if self.domain is None else {f"{DOMAIN_RESOURCE_PREFIX}{self.domain}": 1.0}
        return domain | ({} if self.topo_rank is None else {TOPO_RANK_RESOURCE: float(self.topo_rank)})

    def labels(self) -> Mapping[str, str]:
        """For ``ray start --labels``."""
        domain = {} if self.domain is None else {DOMAIN_LABEL: self.domain}
        return domain | ({} if self.topo_rank is None else {TOPO_RANK_LABEL: str(self.topo_rank)})


def find_place(machine: Machine, hostname: str) -> NodePlace:
    """Find a node's place.

    Args:
        machine: This machine, with its environment.
        hostname: Its name.

    Returns:
        What is known, and notes on what is not.
    """
    notes = []
    domain = _domain(machine)
    if domain is None:
        notes.append("no NVLink domain: neither NVML nor nvidia-smi -q shows a ClusterUUID")
    rank = find_topo_rank(machine.environ, hostname)
    if rank is None:
        notes.append(f"no topo_rank: no SLURM_TOPOLOGY_ADDR, no SLURM_PROCID, and no number in the host name {hostname!r}")
    return NodePlace(domain=domain, topo_rank=rank, notes=tuple(notes))


def _domain(machine: Machine) -> str | None:
    for gpu in machine.gpus:
        uuid = machine.nvml.fabric_uuid(gpu.index)
        if uuid is not None:
            return uuid
    text, _ = machine.ask_smi("-q")
    uuids = re.findall(r"^\s*ClusterUUID\s*:\s*([0-9a-fA-F-]{36})\s*$", text or "", re.MULTILINE)
    return next((uuid.lower() for uuid in uuids if uuid != _NO_DOMAIN), None)


def find_topo_rank(environ: Mapping[str, str], hostname: str) -> int | None:
    """The node's rank in the topology: nodes near each other have near ranks. At least 1.

    Args:
        environ: With Slurm's ``SLURM_TOPOLOGY_ADDR`` (switches and node, ``s0.s4.node17``), else ``SLURM_PROCID``.
        hostname: Its numbers are taken last; those of a container's made-up name (12 hex digits) are not.

    Returns:
        The rank, or None where nothing has a number: nodes that share a made-up rank would be worse than nodes without one.
    """
    by_switch = _by_numbers(environ.get("SLURM_TOPOLOGY_ADDR", ""))
    if by_switch is not None:
        return by_switch
    task = environ.get("SLURM_PROCID", "")
    if task.isdecimal():
        return int(task) + 1
    short = hostname.partition(".")[0]
    return None if re.fullmatch(r"[0-9a-f]{12,64}", short) else _by_numbers(short)


def _by_numbers(text: str) -> int | None:
    numbers = [int(digits) for digits in re.findall(r"\d+", text)][-_LEVELS:]
    if not numbers:
        return None
    rank = 0
    for number in numbers:
        rank = rank * _BASE + number % _BASE
    return rank + 1
