"""Which Ray this process uses: attach to a running one, start a local one, or start a simulated one; and give it back.

A cluster is joined when its address was given, or when it is managed by others; a local one that carries a tag only when the tag
says the same set of GPUs (:mod:`rl_cluster.connection.reach`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import ray
from attrs import frozen

from rl_cluster.connection import reach
from rl_cluster.connection.ray_home import ray_home
from rl_cluster.connection.ray_start import quick_worker_starts
from rl_cluster.connection.simulate_shared import SharedSimulation, shared_simulation
from rl_cluster.connection.snapshot import snapshot_inventory
from rl_cluster.errors import ClusterUnreachableError, ConfigError, RlClusterError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.schema import RaySpec
from rl_cluster.simulate import OWNER_LABEL, SIMULATED_LABEL, SimulatedCluster, simulated_cluster

logger = logging.getLogger(__name__)

Watch = Callable[[str], contextlib.AbstractContextManager[None]]  # gets the address of a control service

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
                f"ray: a local Ray could not be started: {reach.one_line(error)}. Fix: see the log (a full disk? a limit of processes?)",
                address=address,
            ) from error
        raise ClusterUnreachableError(
            f"ray.address: the Ray cluster at {address} did not let this process join: {reach.one_line(error)}. "
            "Fix: is it of the same Ray version, and reachable from here on all its ports?",
            address=address,
        ) from error


def unwatched(address: str) -> contextlib.AbstractContextManager[None]:
    """Nothing is done."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def _local(*, num_cpus: int | None, num_gpus: int | None, log_to_driver: bool, watch: Watch) -> Iterator[RaySession]:
    with ray_home() as home, _given_back():
        with quick_worker_starts():
            _connect(
                "local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                resources={reach.visible_devices_tag(): 1},
                labels={OWNER_LABEL: str(os.getpid())},
                log_to_driver=log_to_driver,
                _temp_dir=str(home),
            )
        address = _note_started()
        with watch(address):
            yield RaySession(address=address, kind="local")


@contextlib.contextmanager
def _simulated(spec: RaySpec, inventory: Inventory, watch: Watch) -> Iterator[RaySession]:
    shared = shared_simulation()
    if shared is not None:
        with _given_back():
            simulated = _free_simulation(shared, spec, inventory)
            with watch(simulated.address):
                yield _simulated_session(simulated)
        return
    with simulated_cluster(inventory) as simulated, _given_back(), watch(simulated.address):
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
        reach.check_reachable(simulated.address)
    except ClusterUnreachableError as error:
        return str(error)
    alive, all_of_them = len(reach.alive_nodes(simulated.address)), len(simulated.node_ids)
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
def _attached(address: str, *, log_to_driver: bool, watch: Watch) -> Iterator[RaySession]:
    with _given_back(), watch(address):
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


@contextlib.contextmanager
def open_ray(spec: RaySpec, *, simulated: Inventory | None = None, watch: Watch = unwatched) -> Iterator[RaySession]:
    """Connect this process to the Ray that ``spec`` means, and give back whatever was started.

    A Ray that this process is already connected to is used as it is and left connected (recipes that embed us). In a sweep, a
    simulated cluster is that of the sweep (:mod:`rl_cluster.connection.simulate_shared`), and only the connection is this job's.

    Args:
        spec: Which Ray.
        simulated: What to start for ``kind=simulated``.
        watch: What is done around the use of the address, from before it is joined: Ray's own calls wait long for one that has died.
    """
    if ray.is_initialized():
        with watch(connected_address()):
            yield RaySession(address=connected_address(), kind="local" if started_here() else "attached")
        return
    if spec.kind == "simulated":
        if simulated is None:
            raise ConfigError(
                "ray.kind: a simulated Ray needs to know what is to run on it, got nothing. "
                "Fix: open_ray(config, clusters=[...]) of rl_cluster, with the clusters' configs, or build_recipe"
            )
        context = _simulated(spec, simulated, watch)
    else:
        address = reach.address_in_reach(spec)
        if address is not None:
            context = _attached(address, log_to_driver=spec.log_to_driver, watch=watch)
        else:
            context = _local(num_cpus=spec.num_cpus, num_gpus=spec.num_gpus, log_to_driver=spec.log_to_driver, watch=watch)
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
    address = reach.find_running()
    if address is not None:
        ray.init(address=address, log_to_driver=True)
        logger.info("Connected to the Ray cluster at %s: %s", address, ray.cluster_resources())
        return
    tag = reach.visible_devices_tag()
    with quick_worker_starts():
        ray.init(
            address="local",
            include_dashboard=False,
            resources={tag: 1},
            log_to_driver=True,
            _temp_dir=os.path.abspath(log_dir) if log_dir else None,
        )
    _STARTED_HERE.add(connected_address())
    logger.info("Started a local Ray with tag %s: %s", tag, ray.cluster_resources())
