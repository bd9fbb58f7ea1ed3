"""summary.json and summary.csv: one row for each job of a sweep, written by the job itself. ``docs/sweeps.md`` describes every column."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, evolve, frozen

from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, EXIT_OK

SCHEMA_VERSION = 1
LOCK_TIMEOUT_S = 60.0
STATUSES = ("running", "ok", "planned", "failed", "interrupted", "not run")
COLUMNS = (
    *("job", "overrides", "status", "exit_code", "mode", "simulated", "physical_nodes", "workers"),
    *("ray_s", "placed_s", "workers_s", "total_s", "cpu_bindings", "memory_bindings", "error", "folder"),
)


@frozen
class Machine:
    """What a job placed on one physical node."""

    address: str
    accelerators: int  # of the node, used or not
    bundles: tuple[str, ...] = ()  # for each bundle: the logical node that it belongs to, "0", or "policy 0" in a recipe


@frozen
class JobRow:
    """One job of a sweep. What is not known (yet) is None."""

    job: int
    overrides: tuple[str, ...]
    status: str  # one of STATUSES
    exit_code: int | None = None
    mode: str | None = None  # up | plan | prefetch
    simulated: bool | None = None
    physical_nodes: int | None = None  # that hold at least one bundle
    workers: int | None = None
    ray_s: float | None = None  # seconds since the job's start until Ray was connected,
    placed_s: float | None = None  # all placement groups were there,
    workers_s: float | None = None  # all workers were ready,
    total_s: float | None = None  # everything was given back
    cpu_bindings: Mapping[str, int] = Factory(dict)  # status -> workers
    memory_bindings: Mapping[str, int] = Factory(dict)
    error: str | None = None  # its first line
    folder: str = ""  # the job's output directory
    machines: tuple[Machine, ...] = ()  # all that the job saw, in the order of the plan; only in summary.json


def finished_row(started: JobRow, *, exit_code: int, report: Mapping[str, Any] | None = None, error: str | None = None) -> JobRow:
    """The row of a job that has ended.

    Args:
        started: Its row so far.
        exit_code: The job's.
        report: Its report.json; None where it came to none.
        error: What ended it, where no report says so.
    """
    report = report or {}
    timings = report.get("timings_s", {})
    workers = report.get("workers", [])
    mode = report.get("mode", started.mode)
    machines = _machines(report)
    said = (report.get("error") or {}).get("message") or error or _broken_check(report)
    return evolve(
        started,
        status=_status(exit_code, mode),
        exit_code=exit_code,
        mode=mode,
        simulated=report.get("simulated", started.simulated),
        physical_nodes=sum(bool(machine.bundles) for machine in machines) if machines else None,
        workers=len(workers) if workers else None,
        ray_s=timings.get("ray"),
        placed_s=timings.get("placed"),
        workers_s=timings.get("workers"),
        total_s=timings.get("total"),
        cpu_bindings=_counted(workers, "cpu_status"),
        memory_bindings=_counted(workers, "mem_status"),
        error=said.splitlines()[0] if said and exit_code != EXIT_OK else None,
        machines=machines,
    )


def _status(exit_code: int, mode: str | None) -> str:
    if exit_code == EXIT_OK:
        return "planned" if mode == "plan" else "ok"
    return "interrupted" if exit_code >= 128 else "failed"  # 128 + the number of the signal, as shells count


def _broken_check(report: Mapping[str, Any]) -> str | None:
    return next((f"{check['name']}: {check['detail']}" for check in report.get("checks", []) if not check["ok"]), None)


def _counted(workers: Sequence[Mapping[str, Any]], field: str) -> dict[str, int]:
    return dict(Counter(worker["binding"][field] for worker in workers if worker.get("binding")).most_common())


def _machines(report: Mapping[str, Any]) -> tuple[Machine, ...]:
    layouts = {name: layout for name, layout in {"": report.get("layout"), **report.get("layouts", {})}.items() if layout}
    nodes: dict[str, Mapping[str, Any]] = {}
    bundles: dict[str, list[str]] = {}
    for name, layout in layouts.items():
        nodes.update({node["node_id"]: node for node in layout["nodes"]})
        for bundle in layout["bundles"]:
            bundles.setdefault(bundle["node_id"], []).append(f"{name} {bundle['node_idx']}".strip())
    accelerators = _accelerators(report, layouts)
    return tuple(
        Machine(node["address"], int(sum(node["total"].get(name, 0) for name in accelerators)), tuple(bundles.get(node_id, ())))
        for node_id, node in nodes.items()
        if any(node["total"].values())  # not a head that offers nothing
    )


def _accelerators(report: Mapping[str, Any], layouts: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The resource names of the accelerators that the bundles take."""
    roles = (report.get("recipe") or {}).get("roles", {}).values()
    clusters = [(report.get("spec") or {}).get("cluster"), *(role.get("cluster") for role in roles)]
    asked = {name for layout in layouts.values() for name in layout["bundle_resources"]}
    return {cluster["accelerator"] for cluster in clusters if cluster} & asked


@frozen
class SummaryFiles:
    """The files of a sweep, in Hydra's sweep directory."""

    folder: Path

    @property
    def table(self) -> Path:
        """A line per job."""
        return self.folder / "summary.csv"

    @property
    def records(self) -> Path:
        """The same with the layouts, for programs and for the picture."""
        return self.folder / "summary.json"

    @property
    def picture(self) -> Path:
        """All jobs at a glance."""
        return self.folder / "summary.svg"

    def clear(self) -> None:
        """Forget the sweep that was here before."""
        for path in (self.table, self.records, self.picture):
            with contextlib.suppress(OSError):  # what is in the way is said by whoever writes there
                path.unlink()

    def read(self) -> tuple[JobRow, ...]:
        """The rows so far, by job number.

        Raises:
            ValueError: The file is no summary.
            OSError: It can't be read (none is there yet: no rows).
        """
        try:
            content = json.loads(self.records.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ()
        return tuple(_row(fields) for fields in content["jobs"])

    def put(self, *rows: JobRow) -> tuple[JobRow, ...]:
        """Add rows, or replace those of the same jobs. Safe against other processes that do so at the same time.

        Returns:
            All rows.

        Raises:
            OSError: The folder can't be written.
        """
        from filelock import FileLock

        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".summary.lock", timeout=LOCK_TIMEOUT_S):
            known = {row.job: row for row in self.read()} | {row.job: row for row in rows}
            every = tuple(known[job] for job in sorted(known))
            content = {"schema_version": SCHEMA_VERSION, "jobs": [asdict(row) for row in every]}
            _replace(self.records, json.dumps(content, indent=1) + "\n")
            _replace(self.table, render_csv(every))
        return every


def render_csv(rows: Sequence[JobRow]) -> str:
    """The rows as CSV (RFC 4180, but with a bare newline at line ends), with a header. What is not known is empty."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(getattr(row, column)) for column in COLUMNS])
    return output.getvalue()


def render_counts(counts: Mapping[str, int]) -> str:
    """``8 bound; 1 skipped: no-gpu``."""
    return "; ".join(f"{count} {status}" for status, count in counts.items())


def unfinished_row(row: JobRow, *, interrupted: bool) -> JobRow:
    """The row of a job that began and has not said how it ended, when the sweep is over."""
    if interrupted:
        return evolve(row, status="interrupted", exit_code=EXIT_INTERRUPTED, error="the sweep was interrupted while this job ran")
    return evolve(row, status="failed", exit_code=EXIT_CHECK_FAILED, error="the job's process ended without saying how")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return render_counts(value)
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _row(fields: Mapping[str, Any]) -> JobRow:
    machines = tuple(Machine(each["address"], each["accelerators"], tuple(each["bundles"])) for each in fields["machines"])
    return JobRow(**{**fields, "overrides": tuple(fields["overrides"]), "machines": machines})


def _replace(path: Path, text: str) -> None:
    """A reader sees the old file or the whole new one."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
