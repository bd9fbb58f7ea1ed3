"""report.json: what a run asked for, what came out, and which checks held. ``docs/report.md`` describes every field."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import os
import reprlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, has

from rl_cluster.ground.secrets import mask_text, mask_value
from rl_cluster.planning.layout import Layout
from rl_cluster.process.nsight import ProfileRecord
from rl_cluster.process.python_prefetch import Prefetched
from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import RunSpec
from rl_cluster.views.checks import Check, Rendezvous, check_workers
from rl_cluster.views.report_schema import SCHEMA_VERSION, validate_report
from rl_cluster.views.table import render_checks, render_table, render_verdict

__all__ = [
    "Check",
    "Rendezvous",
    "build_report",
    "check_workers",
    "json_safe",
    "render_checks",
    "render_table",
    "render_verdict",
    "validate_report",
    "write_report",
]

RESULT_LIMIT = 64 * 1024  # bytes of JSON that one worker's result may take
REPR_LIMIT = 1000  # characters of the repr of something that JSON can't hold
DEPTH_LIMIT = 32
ITEM_LIMIT = 100_000  # of one value, all levels together


def build_report(
    *,
    mode: str,
    spec: RunSpec | Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    layouts: Mapping[str, Layout] | None = None,
    recipe: Any = None,
    groups: Mapping[str, Sequence[WorkerRecord]] | None = None,
    results: Mapping[str, Mapping[int, Any]] | None = None,
    checks: Sequence[Check] = (),
    ray: Mapping[str, Any] | None = None,
    simulated: bool | None = None,
    started: datetime.datetime | None = None,
    finished: datetime.datetime | None = None,
    timings_s: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
    profiles: Mapping[str, Sequence[ProfileRecord]] | None = None,
    prefetched: Sequence[Prefetched] = (),
    error: BaseException | str | None = None,
) -> dict[str, Any]:
    """Collects a run into plain values that JSON can hold.

    Args:
        mode: ``up``, ``plan`` or ``prefetch``.
        spec: The resolved config. Values whose key looks like a secret's are masked.
        layout: The planned layout.
        layouts: Of a recipe: the planned layouts by the role that owns each.
        recipe: Of a recipe: its resolved spec. Masked as ``spec`` is.
        groups: The workers by the name of their group.
        results: What ``worker.method`` returned: by group, then by rank. What JSON can't hold becomes ``{"_repr": ...}``, what is
            larger than 64 KiB becomes ``{"_truncated": ...}``.
        checks: The checks that were made.
        ray: ``address``, ``version`` and ``kind`` of the Ray cluster.
        simulated: Whether nodes and accelerators are made up; default: what the layout says.
        started: Start of the run, with a time zone.
        finished: End of the run, with a time zone; default: now.
        timings_s: Seconds by the name of the step.
        warnings: Sentences for a person; the layout's are added.
        profiles: Of profiled workers, by the name of their group.
        prefetched: Of mode ``prefetch``: what became of each environment on each node.
        error: What ended the run, if anything did.

    Returns:
        The report, see ``docs/report.md``; ``ok`` is true when there is no error and, in mode ``up``, checks were made and all held.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    made_up = bool(layout and layout.simulated) if simulated is None else simulated
    all_warnings = list(dict.fromkeys([*(layout.warnings if layout else ()), *warnings]))
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "rl_cluster": _version(),
        "mode": mode,
        "simulated": made_up,
        "started": _iso(started or now),
        "finished": _iso(finished or now),
        "ray": {"address": None, "version": None, "kind": None, **json_safe(ray or {})},
        "spec": _masked(json_safe(spec)),
        "layout": _layout(layout),
        "recipe": _masked(json_safe(recipe)),
        "layouts": {name: _layout(each) for name, each in (layouts or {}).items()},
        "workers": _workers(groups or {}, results or {}),
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks],
        "profiles": [{"group": group, **json_safe(each)} for group, records in (profiles or {}).items() for each in records],
        "prefetched": _masked(json_safe(prefetched)),
        "timings_s": {name: round(float(seconds), 6) for name, seconds in (timings_s or {}).items()},
        "warnings": all_warnings,
        "ok": error is None and all(check.ok for check in checks) and (mode != "up" or bool(checks)),
        "error": _error(error),
    }
    return report


def write_report(path: str | os.PathLike[str], report: Mapping[str, Any]) -> Path:
    """Writes the report in one step: a reader sees the old file or the whole new one.

    Args:
        path: The file; its folder must exist.
        report: What ``build_report`` returned.

    Returns:
        The path.

    Raises:
        OSError: The folder is not there or can't be written.
        ValueError: The report breaks its schema.
    """
    problems = validate_report(report)
    if problems:
        raise ValueError("report: breaks its schema: " + "; ".join(problems))
    target = Path(path)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            json.dump(report, file, indent=2, allow_nan=False)
            file.write("\n")
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return target


def json_safe(value: Any) -> Any:
    """The value as JSON can hold it: records and mappings as dicts, sets and tuples as lists, paths as text, the rest marked.

    Args:
        value: Anything.

    Returns:
        Plain values. What has no JSON form (NaN and infinities too) becomes ``{"_repr": ..., "_type": ...}`` in its place; so does the
        whole value if it is nested more than 32 deep or has more than 100,000 items.
    """
    try:
        return _safe(value, 0, itertools.count())
    except _TooLarge:
        return _marked(value)


class _TooLarge(Exception):
    """Something has more items than a report holds, or holds itself."""


def _safe(value: Any, depth: int, items: Iterator[int]) -> Any:
    if depth > DEPTH_LIMIT or next(items) > ITEM_LIMIT:
        raise _TooLarge
    if value is None or type(value) in (bool, str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _marked(value)
    if isinstance(value, (str, os.PathLike)):
        return str(value)
    if has(type(value)):
        return _safe(asdict(value, recurse=False), depth, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _safe(getattr(value, field.name), depth + 1, items) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _safe(item, depth + 1, items) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(item, depth + 1, items) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_safe(item, depth + 1, items) for item in value), key=repr)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return _marked(value)


def _marked(value: Any) -> dict[str, str]:
    """Tensors, arrays, handles: a person gets an idea, a program sees that it is not the value."""
    short = reprlib.Repr()
    short.maxother = short.maxstring = REPR_LIMIT
    try:
        text = short.repr(value)
    except Exception as error:  # reprlib goes by the class's name: a foreign class called "list" need not be one
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return {"_repr": text, "_type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _result(value: Any) -> Any:
    safe = json_safe(value)
    text = json.dumps(safe)
    if len(text) <= RESULT_LIMIT:
        return safe
    return {"_truncated": text[:REPR_LIMIT] + "…", "_bytes": len(text), "_limit": RESULT_LIMIT}


def _workers(groups: Mapping[str, Sequence[WorkerRecord]], results: Mapping[str, Mapping[int, Any]]) -> list[dict[str, Any]]:
    workers = []
    for group, records in groups.items():
        for record in sorted(records, key=lambda record: record.rank):
            binding = json_safe(record.binding.to_dict()) if record.binding is not None else None
            fields = json_safe({name: value for name, value in asdict(record, recurse=False).items() if name != "binding"})
            result = _result(results.get(group, {}).get(record.rank))
            workers.append({"group": group, **fields, "binding": binding, "result": result})
    return workers


def _layout(layout: Layout | None) -> dict[str, Any] | None:
    if layout is None:
        return None
    addresses = {node.node_id: node.address for node in layout.nodes}
    return {
        "strategy": layout.spec.strategy,
        "bundle_counts": layout.spec.bundle_counts,
        "world_size": layout.spec.world_size,
        "bundle_resources": layout.spec.bundle_resources,
        "nodes": [
            {
                "node_id": node.node_id,
                "address": node.address,
                "hostname": node.hostname,
                "total": dict(node.total),
                "labels": dict(node.labels),
                "is_head": node.is_head,
            }
            for node in layout.nodes
        ],
        "bundles": [{**json_safe(bundle), "address": addresses.get(bundle.node_id, "")} for bundle in layout.bundles],
    }


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    return mask_value(name, value) if isinstance(value, str) else value


def _error(error: BaseException | str | None) -> dict[str, Any] | None:
    if error is None:
        return None
    if isinstance(error, str):
        return {"type": "Error", "message": mask_text(error)}
    return {"type": type(error).__name__, "message": mask_text(str(error)) or type(error).__name__}


def _iso(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rl_cluster")
    except PackageNotFoundError:
        return "unknown (not installed)"
