"""How long resources are waited for, on a clock that only the waiting moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rl_cluster.errors import PlacementTimeoutError, ResourceInsufficientError
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.placing import placement
from rl_cluster.schema import ClusterSpec


def one_node(*, free: float = 8.0) -> Inventory:
    """A machine of 8 GPUs."""
    total = {"CPU": 64.0, "GPU": 8.0}
    return Inventory(nodes=(PhysicalNode("n0", "10.0.0.1", total, {**total, "GPU": free}),))


class Waiting:
    """A cluster in which what is asked for never fits; notes when it was looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, inventory: Inventory, *, started_here: bool) -> None:
        self.now = 0.0
        self.looks: list[float] = []
        self.asked = 0
        self.said: list[str] = []
        self._inventory = inventory
        monkeypatch.setattr(placement, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))
        monkeypatch.setattr(placement, "look_around", self._look)
        monkeypatch.setattr(placement, "started_here", lambda: started_here)
        monkeypatch.setattr(placement, "Autoscaler", lambda: self)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def _look(self, *, holders: bool = False) -> Inventory:
        self.looks.append(self.now)
        return self._inventory

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked = -self.asked

    def ask(self, *_: Any) -> None:
        self.asked += 1

    def place(self, **spec: Any) -> None:
        placement.place(ClusterSpec(**spec), on_progress=self.said.append)


@pytest.mark.parametrize("timeout_s", [1.0, 12.0, 20.0, 180.0])
def test_the_last_attempt_is_at_the_deadline(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> None:
    """Also where the pause between attempts has grown beyond what is left."""
    waiting = Waiting(monkeypatch, one_node(free=3.0), started_here=False)
    with pytest.raises(PlacementTimeoutError, match=rf"waited until cluster\.timeout_s={timeout_s:g};"):
        waiting.place(gpus_per_node=8, timeout_s=timeout_s)
    assert waiting.looks[-2] == pytest.approx(timeout_s)  # the last one of all is for the diagnosis
    assert max(b - a for a, b in zip(waiting.looks, waiting.looks[1:], strict=False)) <= 5.0 * 1.3
    assert waiting.asked < 0  # withdrawn at the end


def test_what_never_fits_says_that_only_other_nodes_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, one_node(), started_here=False)
    with pytest.raises(PlacementTimeoutError):
        waiting.place(gpus_per_node=16, timeout_s=2.0)
    assert waiting.said[0].startswith("waiting for resources, 2 s left (only nodes that are not there yet would help): ")


@pytest.mark.parametrize("gpus", [8, 16], ids=["what is held", "what no machine has"])
def test_on_a_ray_of_our_own_the_answer_is_believed_once_rays_view_has_settled(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Where something is held it may have been given back a moment ago; where nothing is, the answer comes at once."""
    waiting = Waiting(monkeypatch, one_node(free=3.0), started_here=True)
    with pytest.raises(ResourceInsufficientError):
        waiting.place(gpus_per_node=gpus)
    assert placement.LAG_S < waiting.now < 2 * placement.LAG_S
    waiting = Waiting(monkeypatch, one_node(), started_here=True)
    with pytest.raises(ResourceInsufficientError):
        waiting.place(gpus_per_node=16)
    assert (waiting.now, len(waiting.looks), waiting.asked) == (0.0, 2, 0)
