"""The schema of report.json, version 1: which fields there are, of which types. ``docs/report.md`` says what they mean."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 1
NUMBER = (int, float)
TEXT_OR_NONE = (str, type(None))
MAP_OR_NONE = (dict, type(None))
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
PROFILE_FIELDS: dict[str, tuple[type, ...]] = {
    "group": (str,),
    "rank": (int,),
    "name": (str,),
    "node_id": (str,),
    "address": (str,),
    "output": (str,),
    "files": (list,),
    "problem": TEXT_OR_NONE,
}
PREFETCHED_FIELDS: dict[str, tuple[type, ...]] = {
    "node_id": (str,),
    "address": (str,),
    "hostname": (str,),
    "python": (str,),
    "state": (str,),
    "seconds": NUMBER,
    "folder": TEXT_OR_NONE,
    "error": TEXT_OR_NONE,
}
CHECK_FIELDS: dict[str, tuple[type, ...]] = {"name": (str,), "ok": (bool,), "detail": (str,)}
ERROR_FIELDS: dict[str, tuple[type, ...]] = {"type": (str,), "message": (str,)}


def validate_report(report: Mapping[str, Any]) -> list[str]:
    """Says where a report breaks its schema.

    Args:
        report: What was read from a report.json, or built.

    Returns:
        One line per problem, ``path: rule, got value``; empty for a good report. Unknown fields are no problem: later ones may be added.
    """
    problems = _problems("report", report, REPORT_FIELDS)
    if problems:
        return problems
    if report["schema_version"] != SCHEMA_VERSION:
        return [f"report.schema_version: must be {SCHEMA_VERSION}, got {report['schema_version']!r}"]
    if report["mode"] not in ("up", "plan", "prefetch"):
        problems.append(f"report.mode: must be up, plan or prefetch, got {report['mode']!r}")
    for name in ("started", "finished"):
        if not _is_utc(report[name]):
            problems.append(f"report.{name}: must be an ISO 8601 time in UTC, got {report[name]!r}")
    problems += _problems("report.ray", report["ray"], RAY_FIELDS)
    parts = (("workers", WORKER_FIELDS), ("checks", CHECK_FIELDS), ("profiles", PROFILE_FIELDS), ("prefetched", PREFETCHED_FIELDS))
    for name, fields in parts:
        for index, item in enumerate(report.get(name, ())):  # the last two came later
            problems += _problems(f"report.{name}[{index}]", item, fields)
    for index, worker in enumerate(report["workers"]):
        if isinstance(worker, Mapping) and "result" not in worker:
            problems.append(f"report.workers[{index}].result: must be there, got nothing")
    if report["layout"] is not None:
        layout = report["layout"]
        broken = _problems("report.layout", layout, LAYOUT_FIELDS)
        problems += broken
        for name, fields in () if broken else (("nodes", NODE_FIELDS), ("bundles", BUNDLE_FIELDS)):
            for index, item in enumerate(layout[name]):
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
