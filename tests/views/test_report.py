"""report.json: complete, JSON-safe whatever workers return, true to its schema, written whole or not at all."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from made_up import make_layout, make_workers

from rl_cluster.errors import PortError
from rl_cluster.schema import EnvSpec, RunSpec, WorkerSpec
from rl_cluster.views.checks import Check
from rl_cluster.views.report import build_report, json_safe, validate_report, write_report

LAYOUT = make_layout([2], simulated=True)
WORKERS = make_workers(LAYOUT)
HELD, BROKEN = Check("ranks", True, "0 to 1, each once"), Check("devices", False, "GPU 0 is given twice")
START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))


def make_report(**more: Any) -> dict[str, Any]:
    """The report of a good run."""
    given: dict[str, Any] = {
        "mode": "up",
        "spec": RunSpec(cluster=LAYOUT.spec),
        "layout": LAYOUT,
        "groups": {"worker": WORKERS},
        "checks": [HELD],
        "ray": {"address": "10.0.0.1:6379", "version": "2.60.0", "kind": "simulated"},
        "started": START,
        "finished": START + datetime.timedelta(seconds=2.5),
        "timings_s": {"place": 0.25},
    }
    return build_report(**{**given, **more})


class Unspeakable:
    """Something whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@attrs.frozen
class Record:
    """A result of attrs."""

    loss: float
    parts: tuple[int, ...]


@dataclasses.dataclass
class Data:
    """A result of dataclasses."""

    loss: float


def test_a_report_holds_the_whole_run() -> None:
    """Every field of the schema is filled from what was given."""
    report = make_report(results={"worker": {1: {"loss": 0.5}}})
    assert validate_report(report) == []
    assert {name: report[name] for name in ("schema_version", "mode", "simulated", "started", "finished", "ray", "ok", "error")} == {
        "schema_version": 1,
        "mode": "up",
        "simulated": True,
        "started": "2026-01-02T02:04:05.000Z",
        "finished": "2026-01-02T02:04:07.500Z",
        "ray": {"address": "10.0.0.1:6379", "version": "2.60.0", "kind": "simulated"},
        "ok": True,
        "error": None,
    }
    worker = report["workers"][1]
    binding = worker.pop("binding")
    assert worker == {
        "group": "worker",
        "rank": 1,
        "local_rank": 1,
        "local_world_size": 2,
        "node_rank": 0,
        "node_idx": 0,
        "bundle_idx": 1,
        "node_id": "00" * 28,
        "address": "10.0.0.1",
        "hostname": "host0",
        "gpu_ids": ["1"],
        "pid": 1001,
        "python": "/env/bin/python",
        "name": "worker-0-1",
        "result": {"loss": 0.5},
    }
    assert (binding["cpu_status"], binding["cpus_held"], binding["numa_nodes"]) == ("bound", "0-15", [0])
    assert report["layout"]["bundles"][1] == {"node_idx": 0, "bundle_idx": 1, "node_id": "00" * 28, "address": "10.0.0.1"}
    assert report["layout"]["bundle_counts"] == [2]
    assert report["checks"] == [{"name": "ranks", "ok": True, "detail": "0 to 1, each once"}]
    assert report["spec"]["cluster"]["strategy"] == "SPREAD"


@pytest.mark.parametrize(
    ("change", "ok"),
    [
        ({}, True),
        ({"checks": [HELD, BROKEN]}, False),
        ({"checks": []}, False),
        ({"error": "lost"}, False),
        ({"mode": "plan", "checks": [], "groups": {}}, True),
    ],
    ids=["held", "broken", "nothing_checked", "error", "plan"],
)
def test_ok_needs_checks_that_held(change: dict[str, Any], ok: bool) -> None:
    """A run is never good because nothing was looked at; a plan builds nothing that could be checked."""
    report = make_report(**change)
    assert report["ok"] is ok
    assert validate_report(report) == []


def test_a_run_that_failed_early_has_a_report_too() -> None:
    """Without layout, workers and Ray there is still a valid report, with the error."""
    report = build_report(mode="up", error=PortError("ports: none free, got 1-2. Fix: widen the range", low=1, high=2))
    assert validate_report(report) == []
    assert report["error"] == {"type": "PortError", "message": "ports: none free, got 1-2. Fix: widen the range"}


VALUES: dict[str, tuple[Any, Any]] = {
    "plain": ({"a": [1, 2.5, None, True, "x"]}, {"a": [1, 2.5, None, True, "x"]}),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({3, 1, 2}, [1, 2, 3]),
    "key": ({1: "a", (2, 3): "b"}, {"1": "a", "(2, 3)": "b"}),
    "nan": (float("nan"), {"_repr": "nan", "_type": "builtins.float"}),
    "infinity": ([float("inf")], [{"_repr": "inf", "_type": "builtins.float"}]),
    "path": (Path("/a/b"), "/a/b"),
    "attrs": (Record(0.5, (1, 2)), {"loss": 0.5, "parts": [1, 2]}),
    "dataclass": (Data(0.5), {"loss": 0.5}),
    "time": (START, "2026-01-02T03:04:05+01:00"),
    "bytes": (b"x", {"_repr": "b'x'", "_type": "builtins.bytes"}),
    "class": (Data, {"_repr": repr(Data), "_type": "builtins.type"}),
}


@pytest.mark.parametrize("name", VALUES)
def test_anything_becomes_plain_values(name: str) -> None:
    """What JSON can hold is kept, what it can't is marked as a repr."""
    value, plain = VALUES[name]
    assert json_safe(value) == plain
    json.dumps(json_safe(value), allow_nan=False)


def test_something_whose_repr_fails_is_marked() -> None:
    """A result that can't even be shown doesn't cost the report."""
    assert json_safe([Unspeakable()])[0]["_repr"].startswith("<Unspeakable instance at ")
    assert json_safe(type("list", (Unspeakable,), {})())["_repr"] == "<list whose repr raised TypeError>"


def test_something_that_holds_itself_ends() -> None:
    """Cycles, however they branch, become a mark instead of an endless walk."""
    knot: list[Any] = []
    knot += [knot, knot]
    assert json_safe(knot)["_type"] == "builtins.list"


def test_a_long_repr_is_cut() -> None:
    """A tensor's or an array's repr doesn't fill the report."""
    assert len(json_safe(b"x" * 10**6)["_repr"]) <= 1000


def test_a_large_result_is_cut_with_a_note() -> None:
    """A result above 64 KiB of JSON keeps its beginning and says how large it was."""
    result = make_report(results={"worker": {0: "x" * 100_000}})["workers"][0]["result"]
    assert (result["_bytes"], result["_limit"]) == (100_002, 65_536)
    assert result["_truncated"].startswith('"xxx')
    assert len(result["_truncated"]) < 1100


def test_a_huge_result_is_marked() -> None:
    """A result of very many items isn't walked to its end."""
    result = make_report(results={"worker": {0: list(range(10**6))}})["workers"][0]["result"]
    assert result["_type"] == "builtins.list"


def test_secrets_of_the_config_are_masked() -> None:
    """Values that look like secrets never reach the file, wherever in the config they stand."""
    spec = RunSpec(
        cluster=LAYOUT.spec,
        env=EnvSpec(set={"HF_TOKEN": "hf_verysecret", "HTTP_PROXY": "http://me:pass@proxy:1", "OMP_NUM_THREADS": "4"}),
        worker=WorkerSpec(kwargs={"api_key": "verysecret", "nested": [{"password": "verysecret"}], "lr": 0.1}),
    )
    report = make_report(spec=spec, error="no answer from http://me:pass@proxy:1")
    text = json.dumps(report)
    assert "verysecret" not in text
    assert "me:pass" not in text
    assert report["spec"]["env"]["set"]["OMP_NUM_THREADS"] == "4"
    assert report["spec"]["worker"]["kwargs"]["lr"] == 0.1


def test_a_config_of_plain_values_is_taken_too() -> None:
    """Hosts without the spec classes give a mapping."""
    assert make_report(spec={"cluster": {"num_nodes": 2}})["spec"] == {"cluster": {"num_nodes": 2}}


def test_warnings_are_kept_once() -> None:
    """The layout's warnings come first; none is repeated."""
    layout = attrs.evolve(LAYOUT, warnings=("shared",))
    assert make_report(layout=layout, warnings=["shared", "slow"])["warnings"] == ["shared", "slow"]


PROBLEMS: dict[str, tuple[list[Any], Any, str]] = {
    "version": (["schema_version"], 2, "report.schema_version: must be 1, got 2"),
    "mode": (["mode"], "down", "report.mode: must be up, plan or prefetch, got 'down'"),
    "bool_for_int": (["workers", 0, "rank"], True, "report.workers[0].rank: must be int, got True"),
    "int_for_bool": (["ok"], 1, "report.ok: must be bool, got 1"),
    "time_zone": (["started"], "2026-01-02T03:04:05", "report.started: must be an ISO 8601 time in UTC, got '2026-01-02T03:04:05'"),
    "not_a_time": (["finished"], "soon", "report.finished: must be an ISO 8601 time in UTC, got 'soon'"),
    "worker": (["workers", 1], "w", "report.workers[1]: must be an object, got 'w'"),
    "check": (["checks", 0, "detail"], None, "report.checks[0].detail: must be str, got None"),
    "bundle": (["layout", "bundles", 0, "node_id"], 3, "report.layout.bundles[0].node_id: must be str, got 3"),
    "nodes": (["layout", "nodes"], 3, "report.layout.nodes: must be list, got 3"),
    "seconds": (["timings_s", "place"], "fast", "report.timings_s.place: must be seconds, got 'fast'"),
    "ray": (["ray", "kind"], 3, "report.ray.kind: must be str or null, got 3"),
    "error": (["error"], {"type": "X"}, "report.error.message: must be there, got nothing"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_broken_report_is_told_where(name: str) -> None:
    """Validation names the path, the rule and the value."""
    path, value, problem = PROBLEMS[name]
    report = json.loads(json.dumps(make_report(checks=[BROKEN])))
    inner = report
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert validate_report(report) == [problem]


@pytest.mark.parametrize("name", ["rank", "binding", "result", "gpu_ids"])
def test_a_missing_field_of_a_worker_is_a_problem(name: str) -> None:
    """Every field of a worker must be there."""
    report = make_report()
    del report["workers"][0][name]
    assert validate_report(report) == [f"report.workers[0].{name}: must be there, got nothing"]


def test_a_missing_field_is_a_problem() -> None:
    """Every field of the report must be there."""
    report = make_report()
    del report["checks"]
    assert validate_report(report) == ["report.checks: must be there, got nothing"]


def test_ok_beside_a_broken_check_is_a_problem() -> None:
    """A report can't claim what its own checks deny."""
    assert validate_report({**make_report(checks=[BROKEN]), "ok": True}) == [
        "report.ok: must be false where there is an error or a broken check, got True"
    ]


def test_fields_of_later_versions_are_no_problem() -> None:
    """A reader of version 1 takes what it knows."""
    assert validate_report({**make_report(), "extra": 1}) == []


def test_the_file_is_what_was_built(tmp_path: Path) -> None:
    """Written and read again, a report is the same; nothing else is left in the folder."""
    report = make_report()
    assert write_report(tmp_path / "report.json", report) == tmp_path / "report.json"
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    assert os.listdir(tmp_path) == ["report.json"]


def test_an_old_file_is_replaced_whole_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way leaves the old report and no other file."""
    path = write_report(tmp_path / "report.json", make_report())
    before = path.read_text(encoding="utf-8")

    def fail(source: object, target: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(path, make_report(checks=[BROKEN]))
    assert path.read_text(encoding="utf-8") == before
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_broken_report_is_not_written(tmp_path: Path) -> None:
    """Nothing that breaks the schema reaches the disk."""
    with pytest.raises(ValueError, match=r"report\.mode: must be up, plan or prefetch, got 'down'"):
        write_report(tmp_path / "report.json", {**make_report(), "mode": "down"})
    assert os.listdir(tmp_path) == []
