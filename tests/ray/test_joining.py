"""Which Ray a driver joins, what it sees there, and nodes that come and go."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_states import processes_that_name, runs, within

from rl_cluster.connection.reach import check_reachable, visible_devices_tag, why_private
from rl_cluster.connection.session import RaySession, connected_address
from rl_cluster.errors import ClusterUnreachableError, ConfigError

HERE = Path(__file__).parent

JOIN = """
import json, os, sys
from ray._private import services
from rl_cluster.connection.session import connected_address, init_ray

real = services.find_gcs_addresses
def in_sight():  # other Rays that run on this machine are out of sight, so that they can't change the outcome
    return set(real()) & set(os.environ["IN_SIGHT"].split(","))
in_sight.cache_clear = real.cache_clear
services.find_gcs_addresses = in_sight

import ray
if os.environ.get("PLAIN"):
    ray.init(address="local", include_dashboard=False, log_to_driver=False, _temp_dir=os.environ["LOGS"])
else:
    init_ray(os.environ["LOGS"])
init_ray(os.environ["LOGS"])  # a second call changes nothing
tags = sorted(name for name in ray.cluster_resources() if name.startswith("nrl_tag_"))
print(json.dumps([connected_address(), tags, len(ray.nodes())]), flush=True)
sys.stdin.readline()
"""


def raylets(address: str) -> list[int]:
    """Process ids of the Ray node of this address."""
    found = [pid for pid in processes_that_name(f"--node_ip_address={address}") if os.readlink(f"/proc/{pid}/exe").endswith("/raylet")]
    assert found
    return found


class Joined:
    """A driver that has called init_ray and stays connected until it is ended."""

    def __init__(self, folder: Path, *, devices: str | None = None, in_sight: tuple[str, ...] = (), **environment: str) -> None:
        logs = tempfile.mkdtemp(prefix="l", dir=folder)
        env = {**os.environ, "IN_SIGHT": ",".join(in_sight), "LOGS": logs, **environment}
        if devices is not None:
            env["CUDA_VISIBLE_DEVICES"] = devices
        self.process = subprocess.Popen([sys.executable, "-c", JOIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.address, self.tags, self.nodes = json.loads(self.process.stdout.readline())

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.communicate("end\n", timeout=60)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets lie below it."""
    made = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield made
    assert within(20, lambda: not processes_that_name(str(made)))
    shutil.rmtree(made)


@pytest.mark.slow
def test_init_ray_joins_only_what_is_for_it(simulated: RaySession, folder: Path) -> None:
    """A local Ray is joined by drivers with the same set of GPUs, in any order; never by others, who also leave alone somebody's
    simulation; one without a tag is managed by others and is joined; a named one is obeyed."""
    somebodys = connected_address()
    with Joined(folder, devices="1,0") as first:
        assert first.tags == ["nrl_tag_0_1"]
        with Joined(folder, devices="0,1", in_sight=(first.address, somebodys)) as same:
            assert same.address == first.address
        with Joined(folder, devices="2", in_sight=(first.address, somebodys)) as other:
            assert other.address not in (first.address, somebodys)
            assert other.tags == ["nrl_tag_2"]
        with Joined(folder, devices="2", in_sight=(first.address,), RAY_ADDRESS=somebodys) as told:
            assert told.address == somebodys
        with Joined(folder, PLAIN="1") as managed, Joined(folder, devices="5", in_sight=(first.address, managed.address)) as user:
            assert user.address == managed.address
            assert user.tags == []


def test_a_simulation_says_whose_it_is(simulated: RaySession) -> None:
    """The reason why somebody's simulation is not joined names its process."""
    assert why_private(connected_address()) == f"it belongs to another run (process {os.getpid()}) and ends with it"


@pytest.mark.parametrize(
    ("devices", "tag"),
    [("1,0", "nrl_tag_0_1"), ("0, 1", "nrl_tag_0_1"), (None, "nrl_tag_ALL"), ("7", "nrl_tag_7"), ("10,9", "nrl_tag_10_9")],
)
def test_the_tag_is_the_sorted_set(devices: str | None, tag: str) -> None:
    """The same set of GPUs gives the same tag, in whatever order it is written."""
    assert visible_devices_tag({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}) == tag


@pytest.mark.parametrize("address", ["nowhere", "10.0.0.1:", ":6379", "10.0.0.1:x", "10.0.0.1:²", "10.0.0.1:70000"])
def test_an_address_that_is_none(address: str) -> None:
    """Not host:port: said at once."""
    with pytest.raises(ConfigError, match=r"must be host:port, got"):
        check_reachable(address)


def test_an_address_where_nothing_answers() -> None:
    """A closed port, and a server that is no Ray: an error within seconds, not minutes of tries."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        port = server.getsockname()[1]
        with pytest.raises(ClusterUnreachableError, match=f"no Ray cluster answers at 127.0.0.1:{port} within 0.2 s"):
            check_reachable(f"127.0.0.1:{port}", timeout_s=0.2)
    with pytest.raises(ClusterUnreachableError, match="Connection refused"):
        check_reachable(f"127.0.0.1:{port}")


@pytest.mark.slow
def test_gpu_ids_are_ordered_as_numbers(folder: Path) -> None:
    """CUDA_VISIBLE_DEVICES=10,2,9,11 before Ray: ranks follow 2, 9, 10, 11, and these physical ids are what is shown."""
    code = """
import json
from ray_users import Seen
from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.schema import RaySpec
from rl_cluster.connection.session import open_ray
with open_ray(RaySpec(kind="local", num_cpus=4, num_gpus=4)):
    with build_cluster({"bundle_ct_per_node_list": [4]}) as cluster, build_worker_group(cluster, Seen) as group:
        print(json.dumps([[record.gpu_ids for record in group.records], group.run_all("gpus")]))
"""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "10,2,9,11", "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    recorded, seen = json.loads(done.stdout)
    assert recorded == [["2"], ["9"], ["10"], ["11"]]
    assert seen == [[[gpu], gpu] for gpu in ("2", "9", "10", "11")]


@pytest.mark.slow
def test_a_node_that_joins_late_and_is_lost(simulated: RaySession, folder: Path) -> None:
    """Waiting says why, ends when the node joins, and a call to workers on a node that is lost ends with their ranks and logical node."""
    code = """
import sys
from ray_users import Group
from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.errors import WorkerLostError
from rl_cluster.schema import RaySpec
from rl_cluster.connection.session import open_ray
def say(*words): print(*words, flush=True)
spec = {"bundle_ct_per_node_list": [0, 2], "label_selector": {"pool": "late"}, "timeout_s": 90}
with open_ray(RaySpec(address=sys.argv[1])), build_cluster(spec, on_progress=say) as cluster:
    say("placed", {node.address for node in cluster.layout.nodes if node.node_id == cluster.layout.bundles[0].node_id})
    with build_worker_group(cluster, Group) as group:
        say("up", *group.run_all("echo", "here"))
        try:
            group.run_all("wait")
        except WorkerLostError as lost:
            say("lost", list(lost.node_idx), list(lost.node), set(lost.ranks) <= {0, 1} and bool(lost.ranks))
        try:
            cluster.check_alive()
        except WorkerLostError as lost:
            say("node", list(lost.node_idx), list(lost.node))
"""
    command = [sys.executable, "-c", code, connected_address()]
    driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    node = None
    try:
        assert driver.stdout is not None
        waits = "waiting for resources, 90 s left (only nodes that are not there yet would help): 1 logical node of 2 GPUs"
        assert driver.stdout.readline().startswith(waits)
        start = f"ray start --address={connected_address()} --node-ip-address=127.0.0.99 --num-cpus=4 --num-gpus=2 --labels=pool=late"
        options = ["--object-store-memory=80000000", "--disable-usage-stats", "--block"]
        node = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *start.split()[1:], *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        said = []
        for line in driver.stdout:
            if not line.startswith("waiting"):
                said.append(line.strip())
            if line.startswith("up"):
                for pid in raylets("127.0.0.99"):
                    os.kill(pid, signal.SIGTERM)  # the end of a node, as its machine's shutdown would bring it about
        assert said == ["placed {'127.0.0.99'}", "up here here", "lost [1] ['127.0.0.99'] True", "node [1] ['127.0.0.99']"]
        assert driver.wait(60) == 0
        assert within(20, lambda: not any(n["Alive"] for n in ray.nodes() if n["NodeManagerAddress"] == "127.0.0.99"))
    finally:
        for process in (driver, node):
            if process is not None and runs(process.pid):
                process.kill()
            if process is not None:
                process.wait()
        assert driver.stdout is not None
        driver.stdout.close()
