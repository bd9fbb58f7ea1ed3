"""Which Ray this process uses: attach to a running one, start a local one, or start a simulated one; and give it back.

Ray's own ``ray.init(address="auto")`` joins whatever it finds on the machine: another person's simulation, or a local Ray that
was started for other GPUs. Here a cluster is joined when its address was given, or when it is managed by others; a local one
that carries a tag is joined only when the tag says the same set of GPUs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import ray
from attrs import frozen

from rl_cluster.errors import ClusterUnreachableError, ConfigError, RlClusterError
from rl_cluster.inventory import Inventory, PhysicalNode, snapshot_inventory
from rl_cluster.ray_home import ray_home
from rl_cluster.schema import RaySpec
from rl_cluster.simulate import OWNER_LABEL, SIMULATED_LABEL, SimulatedCluster, simulated_cluster
from rl_cluster.simulate_shared import SharedSimulation, shared_simulation

logger = logging.getLogger(__name__)

TAG_PREFIX = "nrl_tag_"  # the resource that NeMo-RL's init_ray registers, so that both tools read each other's tag
CONNECT_TIMEOUT_S = 5.0
FREE_WITHIN_S = 30.0  # what a job of a sweep has given back must show as free on the simulated cluster of the sweep
_STARTED_HERE: set[str] = set()  # addresses of clusters that this process started and nobody else can join


@frozen
class RaySession:
    """The Ray cluster that this process is connected to."""

    address: str
    kind: str  # "attached" | "local" | "simulated"
    affinity_file: str | None = None  # of a simulated cluster: the made-up GPU->CPU map

    @property
    def simulated(self) -> bool:
        """Whether nodes and GPUs are made up."""
        return self.kind == "simulated"


def visible_devices_tag(environ: Mapping[str, str] | None = None) -> str:
    """The resource name that marks a local Ray as started for one set of GPUs: the sorted CUDA_VISIBLE_DEVICES, or ALL."""
    devices = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES", "ALL")
    return TAG_PREFIX + "_".join(sorted({device.strip() for device in devices.split(",")}))


def look_around(*, holders: bool = False) -> Inventory:
    """A snapshot of the connected cluster, which knows whether it is simulated and whether it may still grow.

    Args:
        holders: Whether to find out who holds what (costs a few calls more).
    """
    found = snapshot_inventory(holders=holders, can_grow=not started_here())
    simulated = any(SIMULATED_LABEL in node.labels for node in found.nodes)
    return attrs.evolve(found, simulated=True, source=f"a simulated cluster ({found.source})") if simulated else found


def started_here() -> bool:
    """Whether the connected Ray was started by this process: nobody else can add nodes to it, so waiting for them is no use."""
    return ray.is_initialized() and connected_address() in _STARTED_HERE


def connected_address() -> str:
    """``host:port`` of the connected cluster's control service."""
    return str(ray.get_runtime_context().gcs_address)


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
        _refuse_client(named, where="RAY_ADDRESS")
        check_reachable(named, where="RAY_ADDRESS")
        return named
    from ray._private.services import find_bootstrap_address, find_gcs_addresses

    find_gcs_addresses.cache_clear()
    running = set(find_gcs_addresses())
    latest = find_bootstrap_address(None)
    for address in sorted(running, key=lambda found: (found != latest, found)):
        try:
            check_reachable(address, timeout_s=2.0)
        except (ClusterUnreachableError, ConfigError) as error:
            logger.warning("A Ray process is there but does not answer, so it is left alone: %s", error)
            continue
        try:
            private = _why_private(address)
        except Exception as error:  # Ray raises several kinds for what answers, but not as a Ray of this version
            logger.warning("A Ray process at %s does not answer as it should, so it is left alone: %s", address, _one_line(error))
            continue
        if private is None:
            return str(address)
        logger.info("The Ray cluster at %s is not joined: %s", address, private)
    return None


def _alive_nodes(address: str) -> list[dict[str, Any]]:
    """Ray's records of the nodes of a cluster, asked without connecting as a driver."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    state._initialize_global_state(GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False))
    try:
        return [node for node in state.node_table() if node["Alive"]]
    finally:
        state.disconnect()


def _why_private(address: str) -> str | None:
    """Why a cluster of this machine is not for us, or None. Looks without connecting as a driver."""
    nodes = _alive_nodes(address)
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


def _connect(address: str, **options: Any) -> None:
    try:
        ray.init(
            address=address,
            include_dashboard=False if address == "local" else None,
            logging_level=logging.WARNING,
            **options,
        )
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        if address == "local":
            raise RlClusterError(
                f"ray: a local Ray could not be started: {_one_line(error)}. Fix: see the log; is the disk full, or are processes limited?",
                address=address,
            ) from error
        raise ClusterUnreachableError(
            f"ray.address: the Ray cluster at {address} did not let this process join: {_one_line(error)}. "
            "Fix: is it of the same Ray version, and reachable from here on all its ports?",
            address=address,
        ) from error


def _one_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _refuse_client(address: str, *, where: str) -> None:
    if address.startswith("ray://"):
        raise ConfigError(
            f"{where}: a Ray Client address can't be used (actors are pinned and watched by a driver inside the cluster), got "
            f"{address!r}. Fix: run on a machine of the cluster and give host:port, the address that `ray start --head` printed"
        )


@contextlib.contextmanager
def _local(*, num_cpus: int | None, num_gpus: int | None, log_to_driver: bool) -> Iterator[RaySession]:
    with ray_home() as home, _given_back():
        _connect(
            "local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources={visible_devices_tag(): 1},
            labels={OWNER_LABEL: str(os.getpid())},
            log_to_driver=log_to_driver,
            _temp_dir=str(home),
        )
        yield RaySession(address=_note_started(), kind="local")


@contextlib.contextmanager
def _simulated(spec: RaySpec, inventory: Inventory) -> Iterator[RaySession]:
    shared = shared_simulation()
    if shared is not None:
        with _given_back():
            yield _simulated_session(_free_simulation(shared, spec, inventory))
        return
    with simulated_cluster(inventory) as simulated, _given_back():
        _connect(simulated.address, log_to_driver=spec.log_to_driver)
        yield _simulated_session(simulated)


def _simulated_session(simulated: SimulatedCluster) -> RaySession:
    return RaySession(address=_note_started(), kind="simulated", affinity_file=str(simulated.affinity_file))


def _free_simulation(shared: SharedSimulation, spec: RaySpec, inventory: Inventory) -> SimulatedCluster:
    """Connect to the shared cluster once all of it is free; what an earlier job has broken or still holds is replaced by a fresh one."""
    for is_last in (False, True):
        simulated = shared.cluster_for(spec, inventory)
        held = _what_broke(simulated)
        if held is None:
            _connect(simulated.address, log_to_driver=spec.log_to_driver)
            held = _held_after(FREE_WITHIN_S)
        if held is None:
            return simulated
        ray.shutdown()
        shared.close()
        if not is_last:
            logger.warning("The sweep's simulated cluster is not as it was before the job before (%s): starting a fresh one.", held)
    raise RlClusterError(f"ray.kind: a simulated cluster that was just started must be whole and free, got: {held}. Fix: see Ray's log")


def _what_broke(simulated: SimulatedCluster) -> str | None:
    """Why the cluster can't be used any more, or None; asked before connecting, which needs an unbroken one."""
    try:
        check_reachable(simulated.address)
    except ClusterUnreachableError as error:
        return str(error)
    alive, all_of_them = len(_alive_nodes(simulated.address)), len(simulated.node_ids)
    return f"{alive} of its {all_of_them} nodes are alive" if alive < all_of_them else None


def _held_after(seconds: float) -> str | None:
    """What is still held after so many seconds on a cluster that only we use, or None."""
    deadline = time.monotonic() + seconds
    while True:
        held = [
            f"{total - node.free.get(name, 0.0):g} of {total:g} {name} held on {node.address}"
            for node in snapshot_inventory().nodes
            for name, total in node.total.items()
            if name in ("CPU", "GPU") and node.free.get(name, 0.0) < total
        ]
        if not held:
            return None
        if time.monotonic() > deadline:
            return "; ".join(held)
        time.sleep(0.1)


@contextlib.contextmanager
def _attached(address: str, *, log_to_driver: bool) -> Iterator[RaySession]:
    with _given_back():
        _connect(address, log_to_driver=log_to_driver)
        yield RaySession(address=connected_address(), kind="attached")


@contextlib.contextmanager
def _given_back() -> Iterator[None]:
    """Disconnect at the end, also when connecting itself was interrupted (Ray's processes and state are half there then)."""
    try:
        yield
    finally:
        if ray.is_initialized():
            _STARTED_HERE.discard(connected_address())
        ray.shutdown()


def _note_started() -> str:
    address = connected_address()
    _STARTED_HERE.add(address)
    return address


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
    _refuse_client(spec.address, where="ray.address")
    if spec.address == "local":
        return None
    check_reachable(spec.address)
    return spec.address


@contextlib.contextmanager
def open_ray(spec: RaySpec, *, simulated: Inventory | None = None) -> Iterator[RaySession]:
    """Connect this process to the Ray that ``spec`` means, and give back whatever was started.

    A Ray that this process is already connected to is used as it is and left connected (recipes that embed us). In a sweep, a
    simulated cluster is that of the sweep (:mod:`rl_cluster.simulate_shared`), and only the connection is this job's.

    Args:
        spec: Which Ray.
        simulated: What to start for ``kind=simulated``.
    """
    if ray.is_initialized():
        yield RaySession(address=connected_address(), kind="local" if started_here() else "attached")
        return
    if spec.kind == "simulated":
        if simulated is None:
            raise ConfigError(
                "ray.kind: a simulated Ray needs to know what is to run on it, got nothing. "
                "Fix: open_ray(config, clusters=[...]) of rl_cluster, with the clusters' configs, or build_recipe"
            )
        context = _simulated(spec, simulated)
    else:
        address = address_in_reach(spec)
        if address is not None:
            context = _attached(address, log_to_driver=spec.log_to_driver)
        else:
            context = _local(num_cpus=spec.num_cpus, num_gpus=spec.num_gpus, log_to_driver=spec.log_to_driver)
    with context as session:
        yield session


def simulation_runs(spec: RaySpec, wanted: Inventory) -> bool:
    """Whether an earlier job of this sweep has started a simulated cluster that this job can use."""
    shared = shared_simulation()
    return shared is not None and shared.runs_for(spec, wanted)


def this_machine(spec: RaySpec) -> Inventory:
    """What a local Ray would offer if it were started now, without starting it.

    The amounts are what Ray itself would detect: CPUs by cgroup and affinity, GPUs by NVML and CUDA_VISIBLE_DEVICES.
    """
    from ray._private.accelerators import get_accelerator_manager_for_resource
    from ray._private.utils import get_num_cpus

    cpus = get_num_cpus() if spec.num_cpus is None else spec.num_cpus
    gpus = spec.num_gpus
    if gpus is None:
        manager = get_accelerator_manager_for_resource("GPU")
        visible = manager.get_current_process_visible_accelerator_ids() if manager else None
        found = manager.get_current_node_num_accelerators() if manager else 0
        gpus = found if visible is None else min(found, len(visible))
    amounts = {name: float(amount) for name, amount in {"CPU": cpus, "GPU": gpus}.items() if amount}
    node = PhysicalNode(
        node_id="local", address=ray.util.get_node_ip_address(), hostname=socket.gethostname(), total=amounts, free=amounts, is_head=True
    )
    return Inventory(nodes=(node,), source="a local Ray on this machine, which would be started")


def init_ray(log_dir: str | None = None) -> None:
    """Connect to a Ray cluster as NeMo-RL's function of this name does: join one that others manage, else a local one of ours.

    A running cluster that carries no tag is managed by others and is joined. One that carries the tag of the same set of
    visible GPUs (started by an earlier call) is joined. Otherwise a new local Ray is started, with the tag. Unlike
    NeMo-RL's, this does not copy the driver's environment to every worker.

    Args:
        log_dir: Folder for Ray's logs and temporary files of a Ray that is started here; default: Ray's.

    Raises:
        ClusterUnreachableError: ``$RAY_ADDRESS`` names a cluster and nothing answers there.
    """
    if ray.is_initialized():
        logger.info("Ray is already connected at %s", connected_address())
        return
    address = find_running()
    if address is not None:
        ray.init(address=address, log_to_driver=True)
        logger.info("Connected to the Ray cluster at %s: %s", address, ray.cluster_resources())
        return
    tag = visible_devices_tag()
    ray.init(
        address="local",
        include_dashboard=False,
        resources={tag: 1},
        log_to_driver=True,
        _temp_dir=os.path.abspath(log_dir) if log_dir else None,
    )
    _STARTED_HERE.add(connected_address())
    logger.info("Started a local Ray with tag %s: %s", tag, ray.cluster_resources())
