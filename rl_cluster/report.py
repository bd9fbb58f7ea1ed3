"""report.json: what a run asked for, what came out, and which checks held. ``docs/report.md`` describes every field."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, has

from rl_cluster.checks import Check, Rendezvous, check_workers
from rl_cluster.plan import Layout
from rl_cluster.records import WorkerRecord
from rl_cluster.schema import RunSpec
from rl_cluster.table import render_checks, render_table, render_verdict

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

SCHEMA_VERSION = 1
RESULT_LIMIT = 64 * 1024  # bytes of JSON that one worker's result may take
REPR_LIMIT = 1000  # characters of the repr of something that JSON can't hold
DEPTH_LIMIT = 32
SECRET_NAME = re.compile(r"token|secret|passw|credential|api_?key|access_?key|private_?key", re.IGNORECASE)
MASK = "***"


def build_report(
    *,
    mode: str,
    spec: RunSpec | Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    groups: Mapping[str, Sequence[WorkerRecord]] | None = None,
    results: Mapping[str, Mapping[int, Any]] | None = None,
    checks: Sequence[Check] = (),
    ray: Mapping[str, Any] | None = None,
    simulated: bool | None = None,
    started: datetime.datetime | None = None,
    finished: datetime.datetime | None = None,
    timings_s: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
    error: BaseException | str | None = None,
) -> dict[str, Any]:
    """Collects a run into plain values that JSON can hold.

    Args:
        mode: ``up`` or ``plan``.
        spec: The resolved config. Values whose key looks like a secret's are masked.
        layout: The planned layout.
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
        "workers": _workers(groups or {}, results or {}),
        "checks": [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks],
        "timings_s": {name: round(float(seconds), 6) for name, seconds in (timings_s or {}).items()},
        "warnings": all_warnings,
        "ok": error is None and all(check.ok for check in checks) and (mode == "plan" or bool(checks)),
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
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2, allow_nan=False)
            file.write("\n")
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's 0600 would hide the report from the user's group
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


NUMBER = (int, float)
TEXT_OR_NONE = (str, type(None))
MAP_OR_NONE = (dict, type(None))
# field -> types; the twin of docs/report.md
REPORT_FIELDS: dict[str, tuple[type, ...]] = {
    "schema_version": (int,),
    "rl_cluster": (str,),
    "mode": (str,),
    "simulated": (bool,),
    "started": (str,),
    "finished": (str,),
    "ray": (dict,),
    "spec": MAP_OR_NONE,
    "layout": MAP_OR_NONE,
    "workers": (list,),
    "checks": (list,),
    "timings_s": (dict,),
    "warnings": (list,),
    "ok": (bool,),
    "error": MAP_OR_NONE,
}
RAY_FIELDS: dict[str, tuple[type, ...]] = {"address": TEXT_OR_NONE, "version": TEXT_OR_NONE, "kind": TEXT_OR_NONE}
LAYOUT_FIELDS: dict[str, tuple[type, ...]] = {
    "strategy": (str,),
    "bundle_counts": (list,),
    "world_size": (int,),
    "nodes": (list,),
    "bundles": (list,),
}
NODE_FIELDS: dict[str, tuple[type, ...]] = {"node_id": (str,), "address": (str,), "hostname": (str,), "total": (dict,), "labels": (dict,)}
BUNDLE_FIELDS: dict[str, tuple[type, ...]] = {"node_idx": (int,), "bundle_idx": (int,), "node_id": (str,), "address": (str,)}
WORKER_FIELDS: dict[str, tuple[type, ...]] = {
    "group": (str,),
    "name": (str,),
    "rank": (int,),
    "local_rank": (int,),
    "local_world_size": (int,),
    "node_rank": (int,),
    "node_idx": (int,),
    "bundle_idx": (int,),
    "node_id": (str,),
    "address": (str,),
    "hostname": (str,),
    "gpu_ids": (list,),
    "pid": (int,),
    "python": (str,),
    "binding": MAP_OR_NONE,
}
CHECK_FIELDS: dict[str, tuple[type, ...]] = {"name": (str,), "ok": (bool,), "detail": (str,)}
ERROR_FIELDS: dict[str, tuple[type, ...]] = {"type": (str,), "message": (str,)}


def validate_report(report: Mapping[str, Any]) -> list[str]:
    """Says where a report breaks its schema.

    Args:
        report: What was read from a report.json, or built.

    Returns:
        One line per problem, ``path: rule, got value``; empty for a good report. Unknown fields are no problem: a later version may add some.
    """
    problems = _problems("report", report, REPORT_FIELDS)
    if problems:
        return problems
    if report["schema_version"] != SCHEMA_VERSION:
        return [f"report.schema_version: must be {SCHEMA_VERSION}, got {report['schema_version']!r}"]
    if report["mode"] not in ("up", "plan"):
        problems.append(f"report.mode: must be up or plan, got {report['mode']!r}")
    for name in ("started", "finished"):
        if not _is_utc(report[name]):
            problems.append(f"report.{name}: must be an ISO 8601 time in UTC, got {report[name]!r}")
    problems += _problems("report.ray", report["ray"], RAY_FIELDS)
    for name, fields in (("workers", {**WORKER_FIELDS}), ("checks", CHECK_FIELDS)):
        for index, item in enumerate(report[name]):
            problems += _problems(f"report.{name}[{index}]", item, fields)
    for index, worker in enumerate(report["workers"]):
        if isinstance(worker, Mapping) and "result" not in worker:
            problems.append(f"report.workers[{index}].result: must be there, got nothing")
    if report["layout"] is not None:
        layout = report["layout"]
        problems += _problems("report.layout", layout, LAYOUT_FIELDS)
        for name, fields in (("nodes", NODE_FIELDS), ("bundles", BUNDLE_FIELDS)):
            for index, item in enumerate(layout.get(name) or ()):
                problems += _problems(f"report.layout.{name}[{index}]", item, fields)
    for name, seconds in report["timings_s"].items():
        if isinstance(seconds, bool) or not isinstance(seconds, NUMBER):
            problems.append(f"report.timings_s.{name}: must be seconds, got {seconds!r}")
    if report["error"] is not None:
        problems += _problems("report.error", report["error"], ERROR_FIELDS)
    if report["ok"] and (
        report["error"] is not None or not all(check.get("ok") for check in report["checks"] if isinstance(check, Mapping))
    ):
        problems.append("report.ok: must be false where there is an error or a broken check, got True")
    return problems


def json_safe(value: Any) -> Any:
    """The value as JSON can hold it: attrs instances and mappings as dicts, sets and tuples as lists, paths as text, the rest as marked reprs.

    Args:
        value: Anything.

    Returns:
        Plain values. NaN and infinities, which JSON has not, become ``{"_repr": "nan"}``; so does whatever has no JSON form or is nested
        more than 32 deep.
    """
    return _safe(value, 0)


def _safe(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, str)) and type(value) in (bool, str):
        return value
    if depth > DEPTH_LIMIT:
        return _marked(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _marked(value)
    if isinstance(value, (str, os.PathLike)):
        return str(value)
    if has(type(value)):
        return _safe(asdict(value, recurse=False), depth)
    if isinstance(value, Mapping):
        return {str(key): _safe(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_safe(item, depth + 1) for item in value), key=repr)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return _marked(value)


def _marked(value: Any) -> dict[str, str]:
    """Tensors, arrays, handles: a person gets an idea, a program sees that it is not the value."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  (a foreign repr may raise anything)
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return {
        "_repr": text if len(text) <= REPR_LIMIT else text[:REPR_LIMIT] + "…",
        "_type": f"{type(value).__module__}.{type(value).__qualname__}",
    }


def _result(value: Any) -> Any:
    safe = json_safe(value)
    size = len(json.dumps(safe))
    if size <= RESULT_LIMIT:
        return safe
    return {"_truncated": json.dumps(safe)[:REPR_LIMIT] + "…", "_bytes": size, "_limit": RESULT_LIMIT}


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


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: MASK if SECRET_NAME.search(key) and item else _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


def _error(error: BaseException | str | None) -> dict[str, Any] | None:
    if error is None:
        return None
    if isinstance(error, str):
        return {"type": "Error", "message": error}
    return {"type": type(error).__name__, "message": str(error) or type(error).__name__}


def _problems(path: str, value: Any, fields: Mapping[str, tuple[type, ...]]) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"{path}: must be an object, got {value!r}"]
    problems = []
    for name, kinds in fields.items():
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        if name not in value:
            problems.append(f"{path}.{name}: must be there, got nothing")
        elif not isinstance(value[name], kinds) or (isinstance(value[name], bool) and bool not in kinds):
            problems.append(f"{path}.{name}: must be {names}, got {value[name]!r}")
    return problems


def _is_utc(text: str) -> bool:
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return False
    return moment.utcoffset() == datetime.timedelta(0)


def _iso(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rl_cluster")
    except PackageNotFoundError:
        return "unknown (not installed)"
