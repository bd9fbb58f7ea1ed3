"""However a driver ends, nothing of it stays: no process, no folder, no placement group, no actor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import ray
from ray_states import living_actors, placement_groups, processes_that_name, runs, within

from rl_cluster.connection.session import RaySession, connected_address

HERE = Path(__file__).parent
AT_MOST_S = 60.0


class Driver:
    """A driver in a process group of its own, as a shell starts it."""

    def __init__(self, moment: str, address: str, folder: Path) -> None:
        self.folder = folder
        (folder / "notes").mkdir()
        self.errors: IO[bytes] = open(folder / "stderr", "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "ray_driver.py"), moment, address, str(folder / "notes")],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )

    def says(self, word: str) -> bool:
        """Wait for a line that begins with the word."""
        assert self.process.stdout is not None
        return any(line.startswith(word) for line in self.process.stdout)

    def notes(self, what: str) -> list[int]:
        """Process ids of the workers that have noted this."""
        return [int(path.name.partition("-")[2]) for path in (self.folder / "notes").glob(f"{what}-*")]

    def homes(self) -> list[Path]:
        return list(self.folder.glob("rlc-*"))

    def end(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.read()
        return self.process.wait(AT_MOST_S)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: Ray's sockets lie below it."""
    made = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield made
    assert within(20, lambda: not processes_that_name(str(made)))
    shutil.rmtree(made)


def was_ended(code: int, how: signal.Signals) -> bool:
    """Whether an exit code is that of a driver that was ended, not done. Ray's C++ side has a say in the code after SIGTERM."""
    return code != 0 if how is signal.SIGTERM else code in (-how, 128 + how)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="SIGKILL"),
    ],
)
@pytest.mark.parametrize("moment", ["waiting", "init", pytest.param("running", marks=pytest.mark.slow)])
def test_a_shared_cluster_is_as_it_was(simulated: RaySession, folder: Path, moment: str, how: signal.Signals) -> None:
    """A driver on somebody else's Ray is ended while it waits for GPUs, while workers start, while they run: its groups, actors and
    processes are gone and everything is free (the fixture looks afterwards)."""
    driver = Driver(moment, connected_address(), folder)
    if moment == "waiting":
        assert driver.says("waiting for resources"), (folder / "stderr").read_text()
    else:
        note = {"init": "init", "running": "work"}[moment]
        assert within(AT_MOST_S, lambda: len(driver.notes(note)) == 2), (folder / "stderr").read_text()
        assert len(placement_groups("CREATED")) == 1
        assert len(living_actors()) == 2
    workers = driver.notes("init")
    os.killpg(driver.process.pid, how)  # as a terminal does: everything of the driver's group
    assert was_ended(driver.end(), how), (folder / "stderr").read_text()
    assert within(20, lambda: not placement_groups("CREATED", "PENDING", "PREPARED"))
    assert within(20, lambda: not living_actors())
    assert within(20, lambda: not any(runs(pid) for pid in workers))


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        pytest.param("starting", signal.SIGINT, id="SIGINT while Ray starts", marks=pytest.mark.slow),
        pytest.param("starting", signal.SIGKILL, id="SIGKILL while Ray starts", marks=pytest.mark.slow),
        pytest.param("running", signal.SIGINT, id="SIGINT while workers run", marks=pytest.mark.slow),
        pytest.param("running", signal.SIGKILL, id="SIGKILL while workers run", marks=pytest.mark.slow),
        pytest.param("recipe", signal.SIGINT, id="SIGINT in a recipe's block", marks=pytest.mark.slow),
        pytest.param("recipe", signal.SIGTERM, id="SIGTERM in a recipe's block", marks=pytest.mark.slow),
        pytest.param("recipe", signal.SIGKILL, id="SIGKILL in a recipe's block", marks=pytest.mark.slow),
        pytest.param("ending", signal.SIGINT, id="SIGINT while things are given back", marks=pytest.mark.slow),
        pytest.param("ending", signal.SIGTERM, id="SIGTERM while things are given back", marks=pytest.mark.slow),
    ],
)
def test_a_ray_of_our_own_is_gone(folder: Path, moment: str, how: signal.Signals) -> None:
    """A driver that started its own Ray is ended: no process of that Ray lives and its folder is gone within 20 s."""
    driver = Driver(moment, "simulated", folder)
    if moment == "starting":
        assert within(AT_MOST_S, lambda: any(len(processes_that_name(str(home))) >= 2 for home in driver.homes()))
    else:
        note = {"running": "work", "recipe": "work", "ending": "last"}[moment]
        assert within(AT_MOST_S, lambda: len(driver.notes(note)) == 2), (folder / "stderr").read_text()
    (home,) = driver.homes()
    workers = driver.notes("init")
    os.killpg(driver.process.pid, how)
    assert was_ended(driver.end(), how), (folder / "stderr").read_text()
    assert within(20, lambda: not home.exists())
    assert within(20, lambda: not processes_that_name(home.name))
    assert within(20, lambda: not any(runs(pid) for pid in workers))


def test_a_forked_child_does_not_hold_up_the_end(folder: Path) -> None:
    """A child that the driver forked (a data loader, say) lives on: the folder is removed at the end of the block all the same."""
    code = """
import os, time
from rl_cluster.connection.ray_home import ray_home
with ray_home() as home:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
print(home.exists(), flush=True)
os.kill(child, 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)


def test_a_killed_owner_with_a_forked_child(folder: Path) -> None:
    """The driver is killed while a child that it forked lives on: the folder is removed all the same."""
    code = """
import os, time
from rl_cluster.connection.ray_home import ray_home
with ray_home() as home:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "TMPDIR": str(folder)}
    owner = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        (home,) = folder.glob("rlc-*")
        owner.kill()
        owner.wait()
        assert within(20, lambda: not home.exists())
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_the_end_is_quiet(simulated: RaySession) -> None:
    """shutdown() twice, after ray.shutdown(), by the garbage collector, and never (at the interpreter's exit): nothing on stderr."""
    code = """
import gc, sys, ray
from rl_cluster.virtual_cluster import RayVirtualCluster
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
unplaced, collected, after, never = (RayVirtualCluster([1], name=name) for name in ("a", "b", "c", "d"))
broken = RayVirtualCluster.__new__(RayVirtualCluster)  # as after an error in __init__
for cluster in (collected, after, never):
    cluster.get_placement_groups()
del collected, broken
gc.collect()
ray.shutdown()
print(after.shutdown(), after.shutdown(), unplaced.shutdown(), flush=True)
never.myself = never
"""
    done = subprocess.run([sys.executable, "-c", code, connected_address()], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr, done.returncode) == ("True True True\n", "", 0)


@pytest.mark.slow
def test_two_drivers_with_room_for_one(simulated: RaySession) -> None:
    """Two drivers want all 8 + 8 GPUs at the same time: one gets them all, the other times out with nothing, never half and half."""
    code = """
import sys
from rl_cluster.builders import build_cluster
from rl_cluster.errors import PlacementTimeoutError
from rl_cluster.schema import RaySpec
from rl_cluster.connection.session import open_ray
spec = {"bundle_ct_per_node_list": [8, 8], "strategy": "STRICT_SPREAD", "label_selector": {"pool": "pair"}, "timeout_s": 9}
with open_ray(RaySpec(address=sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        with build_cluster(spec):
            print("placed", flush=True)
            sys.stdin.readline()
    except PlacementTimeoutError as error:
        print("timeout" if "waited until cluster.timeout_s=9" in str(error) else error, flush=True)
        sys.stdin.readline()
"""
    drivers = [
        subprocess.Popen([sys.executable, "-c", code, connected_address()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        said = []
        for driver in drivers:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "ready\n"
        for driver in drivers:
            assert driver.stdin is not None
            driver.stdin.write("go\n")
            driver.stdin.flush()
        for driver in drivers:
            assert driver.stdout is not None
            said.append(driver.stdout.readline().strip())
        assert sorted(said) == ["placed", "timeout"]
        assert placement_groups("PENDING") == []
        assert sorted(len(group["bundles"]) for group in placement_groups("CREATED")) == [8, 8]
    finally:
        for driver in drivers:
            driver.communicate("end\n", timeout=60)


def test_a_timeout_leaves_no_pending_group(simulated: RaySession) -> None:
    """What timed out takes nothing when the blocker goes."""
    code = """
import sys
from rl_cluster.builders import build_cluster
from rl_cluster.errors import PlacementTimeoutError
from rl_cluster.schema import RaySpec
from rl_cluster.connection.session import open_ray
with open_ray(RaySpec(address=sys.argv[1])):
    try:
        build_cluster({"bundle_ct_per_node_list": [8], "strategy": "STRICT_PACK", "label_selector": {"pool": "pair"}, "timeout_s": 1})
    except PlacementTimeoutError as error:
        print(error.shortfall.nodes[0].free["GPU"], flush=True)
    sys.stdin.readline()
"""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Labels"].get("pool") == "pair"]
    blockers = [ray.util.placement_group([{"GPU": 4}], bundle_label_selector=[{"ray.io/node-id": node}]) for node in nodes]
    assert all(blocker.wait(20) for blocker in blockers)
    with subprocess.Popen(
        [sys.executable, "-c", code, connected_address()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "4.0\n"
            assert placement_groups("PENDING") == []
        finally:
            for blocker in blockers:
                ray.util.remove_placement_group(blocker)
        assert within(20, lambda: ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"])
        assert placement_groups("CREATED", "PENDING") == []
        driver.communicate("end\n", timeout=60)
