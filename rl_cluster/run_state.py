"""What every run has: its files, and what it has come to know by the time it ends."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, frozen

from rl_cluster.checks import Check
from rl_cluster.nsight import ProfileRecord, check_profiles
from rl_cluster.screen import Screen
from rl_cluster.table import render_checks

if TYPE_CHECKING:
    from rl_cluster.session import RaySession
    from rl_cluster.worker_group import RayWorkerGroup


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

    @property
    def profiles(self) -> Path:
        """Folder of the workers' profiles, on their nodes."""
        return self.folder / "nsight"


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
    groups: dict[str, RayWorkerGroup] = Factory(dict)  # that have come up, by name

    def mark(self, name: str) -> None:
        """Note the seconds since the start under a name."""
        self.timings[name] = time.monotonic() - self.began

    def connected(self, to: RaySession) -> None:
        """Note the Ray that the run works on."""
        import ray

        self.ray = {"kind": to.kind, "address": to.address, "version": str(ray.__version__)}

    def came_up(self, name: str, group: RayWorkerGroup, screen: Screen) -> None:
        """Note a worker group, and say which of its workers are profiled."""
        self.groups[name] = group
        if group.profiles:
            ranks = ", ".join(str(record.rank) for record in group.profiles)
            folders = ", ".join(sorted({str(Path(record.output).parent) for record in group.profiles}))
            machines = ", ".join(sorted({record.address for record in group.profiles}))
            screen.tell(f"nsight: profiles {name}, rank{'s' * (len(group.profiles) > 1)} {ranks}, into {folders} on {machines}")

    @property
    def profiles(self) -> dict[str, tuple[ProfileRecord, ...]]:
        """Of the groups that have come up, as far as they are known."""
        return {name: group.profiles for name, group in self.groups.items()}

    def end_profiled(self, screen: Screen) -> None:
        """End the profiled workers in order, while there is time for it, and check that their profiles were written."""
        for name, group in self.groups.items():
            if group.profiles:
                screen.tell(f"nsight: waits for the profiles of {name} ...")
                held, detail = check_profiles(group.end_profiled())
                self.checks.append(Check(name="profiles" if len(self.groups) == 1 else f"{name}: profiles", ok=held, detail=detail))
                screen.show(render_checks(self.checks).splitlines()[-1])  # below those that were shown before it
