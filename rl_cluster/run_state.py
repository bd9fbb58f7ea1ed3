"""What every run has: its files, and what it has come to know by the time it ends."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, frozen

from rl_cluster.checks import Check

if TYPE_CHECKING:
    from rl_cluster.session import RaySession


@frozen
class RunFiles:
    """The files of a run."""

    folder: Path

    @property
    def report(self) -> Path:
        """Everything as JSON, see docs/report.md."""
        return self.folder / "report.json"

    @property
    def picture(self) -> Path:
        """The layout as SVG."""
        return self.folder / "layout.svg"


@define
class RunState:
    """What a run has come to know; the report is made of it, however the run ends."""

    started: datetime.datetime = Factory(lambda: datetime.datetime.now(datetime.timezone.utc))
    began: float = Factory(time.monotonic)
    timings: dict[str, float] = Factory(dict)
    ray: dict[str, Any] = Factory(dict)
    simulated: bool = False
    checks: list[Check] = Factory(list)
    warnings: list[str] = Factory(list)

    def mark(self, name: str) -> None:
        """Note the seconds since the start under a name."""
        self.timings[name] = time.monotonic() - self.began

    def connected(self, to: RaySession) -> None:
        """Note the Ray that the run works on."""
        import ray

        self.ray = {"kind": to.kind, "address": to.address, "version": str(ray.__version__)}
