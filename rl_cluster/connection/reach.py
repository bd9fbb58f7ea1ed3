"""Which running Ray may be joined, found and judged without connecting as a driver.

Ray's own ``address="auto"`` joins whatever it finds on the machine: another person's simulation, or a local Ray that was started for
other GPUs. And ``ray.init`` tries a dead address for minutes, so here it is asked first whether anything answers.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from rl_cluster.errors import ClusterUnreachableError, ConfigError
from rl_cluster.schema import RaySpec
from rl_cluster.simulate import OWNER_LABEL

logger = logging.getLogger(__name__)

TAG_PREFIX = "nrl_tag_"  # the resource that NeMo-RL's init_ray registers, so that both tools read each other's tag
CONNECT_TIMEOUT_S = 5.0


def visible_devices_tag(environ: Mapping[str, str] | None = None) -> str:
    """The resource name that marks a local Ray as started for one set of GPUs: the sorted CUDA_VISIBLE_DEVICES, or ALL."""
    devices = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES", "ALL")
    return TAG_PREFIX + "_".join(sorted({device.strip() for device in devices.split(",")}))


def address_in_reach(spec: RaySpec) -> str | None:
    """The running cluster that ``spec`` means, checked to answer; None where one is to be started.

    Raises:
        ConfigError: The address is not of a kind that can work here.
        ClusterUnreachableError: An address was named and nothing answers there.
    """
    if spec.kind != "auto":
        return None
    if spec.address in (None, "auto"):
        return find_running()
    refuse_client(spec.address, where="ray.address")
    if spec.address == "local":
        return None
    check_reachable(spec.address)
    return spec.address


def resolve(spec: RaySpec) -> RaySpec:
    """The spec with the address of the running cluster that it means, so that nobody looks again; ``address`` is None where one is to be
    started. Errors as in :func:`address_in_reach`."""
    address = address_in_reach(spec)
    return attrs.evolve(spec, address=address, kind="local" if address is None and spec.kind == "auto" else spec.kind)


def starts_here(spec: RaySpec) -> bool:
    """Whether a Ray is to be started, so that all its nodes are this machine. Errors as in :func:`address_in_reach`."""
    ray = sys.modules.get("ray")
    return not (ray is not None and ray.is_initialized()) and address_in_reach(spec) is None


def check_reachable(address: str, *, timeout_s: float = CONNECT_TIMEOUT_S, where: str = "ray.address") -> None:
    """Ask whether a Ray control service answers, within seconds (``ray.init`` itself tries a dead address for minutes).

    Ray's control service is a gRPC server, so it answers the opening of an HTTP/2 connection (RFC 9113, section 3.4) with a
    SETTINGS frame. A closed port, a stopped process and another kind of server all fail this.

    Args:
        address: ``host:port``.
        timeout_s: For the whole question.
        where: What the messages name: the key or variable that said the address.

    Raises:
        ConfigError: ``address`` is not ``host:port``.
        ClusterUnreachableError: Nothing answers there, or not like gRPC.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigError(f"{where}: must be host:port, got {address!r}. Fix: {where}=10.0.0.1:6379")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            answer = connection.recv(9)
    except OSError as error:
        raise ClusterUnreachableError(
            f"{where}: no Ray cluster answers at {address} within {timeout_s:g} s ({error}). "
            "Fix: start it (ray start --head), correct the address, or rehearse with ray=simulated",
            address=address,
        ) from None
    if len(answer) < 4 or answer[3] != 4:
        raise ClusterUnreachableError(
            f"{where}: what answers at {address} is not a Ray control service. Fix: give the address that `ray start --head` printed",
            address=address,
        )


def find_running() -> str | None:
    """The address of a running cluster that may be joined: ``$RAY_ADDRESS``, else one on this machine that is not private.

    Raises:
        ClusterUnreachableError: ``$RAY_ADDRESS`` is set and nothing answers there (never a silent way out to another cluster).
    """
    named = os.environ.get("RAY_ADDRESS", "").strip()
    if named == "local":
        return None
    if named and named != "auto":
        refuse_client(named, where="RAY_ADDRESS")
        check_reachable(named, where="RAY_ADDRESS")
        return named
    from ray._private.services import find_bootstrap_address, find_gcs_addresses

    find_gcs_addresses.cache_clear()
    running = set(find_gcs_addresses())
    latest = find_bootstrap_address(None)
    for address in sorted(running, key=lambda found: (found != latest, found)):
        try:
            check_reachable(address, timeout_s=2.0)
        except (ClusterUnreachableError, ConfigError):
            logger.warning("A Ray process at %s does not answer (it starts, ends or hangs), so it is left alone", address)
            continue
        try:
            private = why_private(address)
        except Exception as error:  # Ray raises several kinds for what answers, but not as a Ray of this version
            logger.warning("A Ray process at %s does not answer as it should, so it is left alone: %s", address, one_line(error))
            continue
        if private is None:
            return str(address)
        logger.info("The Ray cluster at %s is not joined: %s", address, private)
    return None


def alive_nodes(address: str) -> list[dict[str, Any]]:
    """Ray's records of the nodes of a cluster, asked without connecting as a driver."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    state._initialize_global_state(GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False))
    try:
        return [node for node in state.node_table() if node["Alive"]]
    finally:
        state.disconnect()


def why_private(address: str) -> str | None:
    """Why a cluster of this machine is not for us, or None. Looks without connecting as a driver."""
    nodes = alive_nodes(address)
    if not nodes:
        return "it has no node, so it is about to start or to end"
    owners = sorted({node["Labels"][OWNER_LABEL] for node in nodes if OWNER_LABEL in node["Labels"]})
    if owners:
        return f"it belongs to another run (process {', '.join(owners)}) and ends with it"
    tags = sorted({name for node in nodes for name in node["Resources"] if name.startswith(TAG_PREFIX)})
    mine = visible_devices_tag()
    if tags and mine not in tags:
        return f"it was started for another set of GPUs ({', '.join(tags)}; this process has {mine})"
    return None


def refuse_client(address: str, *, where: str) -> None:
    """Refuse an address of Ray Client; ``where`` is the key or variable that said it."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"{where}: a Ray Client address can't be used (actors are pinned and watched by a driver inside the cluster), got "
            f"{address!r}. Fix: run on a machine of the cluster and give host:port, the address that `ray start --head` printed"
        )


def one_line(error: BaseException) -> str:
    """The first line of what a library says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
