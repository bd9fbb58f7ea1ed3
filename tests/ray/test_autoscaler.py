"""What an autoscaler is asked for while a cluster that others manage has too little, and that the request is withdrawn."""

from __future__ import annotations

from typing import Any

import pytest

from rl_cluster import placement
from rl_cluster.errors import PlacementTimeoutError
from rl_cluster.placement import place
from rl_cluster.schema import ClusterSpec
from rl_cluster.session import RaySession

POOL = {"pool": "uneven"}  # nodes of 4 and 2 GPUs


@pytest.fixture
def asked(simulated: RaySession, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests, on a cluster that looks as if others managed it (one that we started is not waited for)."""
    requests: list[Any] = []
    monkeypatch.setattr(placement, "started_here", lambda: False)

    def request(*, bundles: list[dict[str, float]], bundle_label_selectors: list[dict[str, str]] | None = None) -> None:
        requests.append((bundles, bundle_label_selectors))

    monkeypatch.setattr(placement, "request_resources", request)
    return requests


def test_the_shortfall_is_asked_for_once_and_withdrawn(asked: list[Any]) -> None:
    """Three bundles beside what is held: one request though it is planned several times, and an empty one at the end."""
    held = ClusterSpec(bundle_ct_per_node_list=[4], label_selector=POOL)
    wanted = ClusterSpec(bundle_ct_per_node_list=[3], strategy="STRICT_PACK", label_selector=POOL, timeout_s=1.5)
    holder = place(held)
    assert asked == []  # it fitted: nobody was asked
    try:
        with pytest.raises(PlacementTimeoutError):
            place(wanted)
    finally:
        placement.remove(holder.groups)
    bundle = {"CPU": 1.0, "GPU": 1.0}
    assert asked == [([bundle, bundle, bundle, {"CPU": 4.0, "GPU": 4.0}], [POOL, POOL, POOL, {}]), ([], None)]
