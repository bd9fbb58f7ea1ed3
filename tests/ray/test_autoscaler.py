"""What an autoscaler is asked for while a cluster that others manage has too little, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler.sdk import request_resources
from ray.experimental import internal_kv
from ray_states import within

from rl_cluster.connection.session import RaySession, look_around
from rl_cluster.errors import PlacementTimeoutError
from rl_cluster.placing import autoscaler, placement
from rl_cluster.placing.autoscaler import Autoscaler
from rl_cluster.placing.placement import place
from rl_cluster.schema import ClusterSpec

POOL = {"pool": "uneven"}  # nodes of 4 and 2 GPUs
BUNDLE = {"CPU": 1.0, "GPU": 1.0}
WANTED = ClusterSpec(bundle_ct_per_node_list=[3], strategy="STRICT_PACK", label_selector=POOL, timeout_s=1.5)


def request() -> list[dict[str, float]]:
    """What Ray's autoscaler would read."""
    return list(json.loads(internal_kv._internal_kv_get("autoscaler_resource_request") or "[]"))


@pytest.fixture
def of_others(simulated: RaySession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster that looks as if others managed it (one that we started is not waited for)."""
    monkeypatch.setattr(placement, "started_here", lambda: False)
    yield
    left = request(), internal_kv._internal_kv_list("", namespace="rl_cluster")
    request_resources(bundles=[])
    assert left == ([], [])


@pytest.fixture
def held(of_others: None) -> Iterator[None]:
    """Four of the six GPUs are somebody's."""
    holder = place(ClusterSpec(bundle_ct_per_node_list=[4], label_selector=POOL))
    yield
    placement.remove(holder.groups)


def test_the_shortfall_is_asked_for_and_withdrawn(held: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bundles of that label beside what is held, while it waits; nothing afterwards. What fits has asked nobody."""
    assert request() == []
    sent: list[Any] = []

    def noted(**asked: Any) -> None:
        sent.append((asked["bundles"], asked["bundle_label_selectors"]))
        request_resources(**asked)

    monkeypatch.setattr(autoscaler, "request_resources", noted)
    with pytest.raises(PlacementTimeoutError):
        place(WANTED)
    assert sent[0] == ([BUNDLE] * 3 + [{"CPU": 4.0, "GPU": 4.0}], [POOL] * 3 + [{}])
    assert sent[-1] == ([], None)
    assert all(again == sent[0] for again in sent[:-1])
    assert request() == []


def test_two_that_wait_are_asked_for_together(held: None) -> None:
    """The one that ends first leaves the other's request."""
    inventory, taken = look_around(), {"CPU": 4.0, "GPU": 4.0}
    with Autoscaler() as first:
        first.ask([WANTED], inventory)
        assert request() == [BUNDLE] * 3 + [taken]
        with Autoscaler() as second:
            second.ask([WANTED, WANTED], inventory)
            assert request() == [BUNDLE] * 9 + [taken]
        assert request() == [BUNDLE] * 3 + [taken]
    assert request() == []


def test_what_the_user_asked_for_himself_stays(held: None) -> None:
    """During the wait, and after it."""
    request_resources(num_cpus=2)
    with Autoscaler() as wait:
        wait.ask([WANTED], look_around())
        assert request() == [{"CPU": 1}] * 2 + [BUNDLE] * 3 + [{"CPU": 4.0, "GPU": 4.0}]
    assert request() == [{"CPU": 1}] * 2
    request_resources(bundles=[])


WAITS = """
import sys, ray
from rl_cluster.placing import autoscaler, placement
from rl_cluster.schema import ClusterSpec
ray.init(address=sys.argv[1], log_to_driver=False)
placement.started_here = lambda: False
print("waits", flush=True)
placement.place(ClusterSpec(bundle_ct_per_node_list=[64], strategy="STRICT_PACK", timeout_s=100))
"""


def test_the_request_of_a_killed_driver_is_withdrawn_by_the_next_that_places(
    of_others: None, simulated: RaySession, tmp_path: Path
) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    driver = subprocess.Popen([sys.executable, script, simulated.address], stdout=subprocess.PIPE, text=True)
    try:
        assert within(60, request) == [BUNDLE] * 64
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        driver.kill()
        driver.communicate()

    def placed() -> bool:
        placement.remove(place(ClusterSpec(bundle_ct_per_node_list=[1], label_selector=POOL)).groups)
        return request() == []

    assert within(20, placed)  # Ray needs a moment to notice that a driver is gone
