"""One simulated cluster for the whole folder, and the rule that no test leaves anything on it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_states import what_stays, within

from rl_cluster.connection import session
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.schema import RaySpec

HERE = Path(__file__).parent
_held = contextlib.ExitStack()

os.environ["RAY_AUTH_MODE"] = "disabled"  # a token in the home folder would lock out the nodes
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
for _name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "NRL_VIRTUAL_CLUSTER_MAX_RETRIES", "OMP_NUM_THREADS"):
    os.environ.pop(_name, None)
# Ray tells workers the driver's folder, not its whole sys.path: what the nodes inherit is where workers find the classes of these tests
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts a real Ray."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)


def _node(gpus: int, cpus: int, **labels: str) -> PhysicalNode:
    amounts = {"CPU": float(cpus), "GPU": float(gpus)}
    return PhysicalNode("made-up", "", amounts, amounts, labels=labels)


# Tests choose among the nodes by label, so one start serves all of them. GPUs and CPUs are made up; addresses are 127.0.0.2, .3, ...
NODES = (
    _node(0, 0),  # the head: 0 CPUs, 0 GPUs
    _node(8, 16, pool="pair", size="8"),  # 127.0.0.2
    _node(8, 16, pool="pair", size="8"),  # 127.0.0.3
    _node(16, 32, pool="wide"),  # 127.0.0.4
    _node(8, 8, pool="wide", size="8"),  # 127.0.0.5
    _node(4, 16, pool="uneven"),  # 127.0.0.6
    _node(2, 16, pool="uneven"),  # 127.0.0.7
    _node(8, 32, pool="fourth", size="8"),  # 127.0.0.8
)


@pytest.fixture(scope="session")
def simulated() -> Iterator[session.RaySession]:
    """The simulated cluster, with this process connected to it."""
    with _held:
        yield _held.enter_context(session.open_ray(RaySpec(kind="simulated"), simulated=Inventory(NODES, simulated=True)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The cluster ends with the last test of this folder: those of other folders connect this process elsewhere."""
    if HERE in item.path.parents and (nextitem is None or HERE not in nextitem.path.parents):
        _held.close()


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test that used the cluster: no placement group, no living actor, everything free."""
    yield
    if "simulated" in request.fixturenames:
        left = within(20, lambda: what_stays() or None, until_none=True)
        assert left is None, left
