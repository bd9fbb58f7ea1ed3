"""The rules about what a worker sees inside its own process: its meeting point, its binding, its Python."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from rl_cluster.numa.cpulist import parse_cpulist
from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import RunSpec

Problems = list[str]  # a clause each, that names who breaks the rule


@frozen
class Rendezvous:
    """What one worker sees of its group's meeting point, read in its own process."""

    rank: int  # by which the driver calls it
    env: Mapping[str, str]  # its rank variables: RANK, ..., MASTER_ADDR, MASTER_PORT
    holds_port: int | None = None  # the port that this process has leased


def bindings(records: Sequence[WorkerRecord], spec: RunSpec, strict: bool) -> Problems:
    """Best effort may fall short, if the record says so truthfully; ``strict`` may not."""
    problems: Problems = []
    for record in records:
        report = record.binding
        who = f"rank {record.rank} on {place_of(record)}"
        if report is None:
            problems += [f"{who} reports no binding"] if spec.numa.enabled else []
            continue
        unknown = [status for status in (report.cpu_status, report.mem_status) if not _is_status(status)]
        if unknown:
            problems.append(f"{who}: unknown status {unknown[0]!r}")
        elif report.cpu_status == "bound" and (not report.cpus_held or _cpus(report.cpus_held) != _cpus(report.cpus_wanted)):
            problems.append(
                f"{who}: CPUs bound, but the kernel holds {report.cpus_held or 'nothing'} and not {report.cpus_wanted or 'nothing'}"
            )
        elif report.mem_status == "bound" and report.policy_held in ("", "default", "unknown"):
            problems.append(f"{who}: memory bound, but the kernel holds the policy {report.policy_held or 'of nobody'}")
        # A container without CAP_SYS_NICE refuses every memory policy: best effort says so, only strict makes it an error.
        elif report.cpu_status.startswith("failed"):
            problems.append(f"{who}: CPUs {report.cpu_status}")
        elif strict and report.shortcoming is not None:
            problems.append(f"{who}: {report.shortcoming}, numa.strict asks for bound")
    return problems


def drift(records: Sequence[WorkerRecord]) -> list[str]:
    """A sentence about the bindings that somebody changed after they were made, with their ranks. Only ``strict`` makes more of it."""
    found = {
        record.rank: note.removeprefix("drift: ")
        for record in records
        for note in (() if record.binding is None else record.binding.notes)
        if note.startswith("drift: ")
    }
    if not found:
        return []
    first = min(found)
    return [f"numa: the binding of rank {', '.join(map(str, sorted(found)))} has changed since it was made (rank {first}: {found[first]})"]


def _cpus(text: str) -> frozenset[int] | str:
    try:
        return parse_cpulist(text)
    except ValueError:
        return text


def _is_status(status: str) -> bool:
    kind, _, reason = status.partition(":")
    return status in ("bound", "partial") or (kind in ("skipped", "failed") and bool(reason.strip()))


def binding_summary(records: Sequence[WorkerRecord]) -> str:
    """How many workers have which status."""

    def counted(statuses: Iterable[str]) -> str:
        return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common()) or "none reported"

    reports = [record.binding for record in records if record.binding is not None]
    return f"CPUs: {counted(report.cpu_status for report in reports)}; memory: {counted(report.mem_status for report in reports)}"


def python(records: Sequence[WorkerRecord], spec: RunSpec, expected: str | Mapping[str, str] | None) -> Problems:
    """Each worker runs the interpreter that was asked for; see ``check_workers`` for what that is."""
    fix = ""
    if expected is None:
        asked = spec.python.executable
        expected = sys.executable if asked == "SYSTEM" else asked if os.path.isabs(asked) and " " not in asked else None
        fix = " (a Ray that runs already has a Python of its own. Fix: ray=local, or python=base)" * (asked == "SYSTEM")
    if expected is not None:
        wanted = dict(expected) if isinstance(expected, Mapping) else {record.node_id: expected for record in records}
        return [
            f"rank {record.rank} on {place_of(record)} runs {record.python or 'an unknown Python'}, "
            f"asked was {wanted.get(record.node_id)}{fix}"
            for record in records
            if not _same_python(record.python, wanted.get(record.node_id))
        ]
    by_machine: dict[str, set[str]] = defaultdict(set)
    for record in records:
        by_machine[record.node_id].add(record.python)
    names = {record.node_id: place_of(record) for record in records}
    return [f"{names[node]} runs {', '.join(sorted(pythons))}" for node, pythons in by_machine.items() if len(pythons) > 1 or "" in pythons]


def _same_python(got: str, wanted: str | None) -> bool:
    """bin/python and bin/python3 of one folder are one interpreter; two environments over one base interpreter are two."""
    if not wanted or not got:
        return False
    return got == wanted or (Path(got).parent == Path(wanted).parent and os.path.realpath(got) == os.path.realpath(wanted))


def python_summary(records: Sequence[WorkerRecord]) -> str:
    """The interpreters that run."""
    return ", ".join(dict.fromkeys(record.python for record in records)) or "no worker"


def rendezvous(records: Sequence[WorkerRecord], found: Mapping[int, Rendezvous], expected: int) -> Problems:
    """All see the same meeting point, which rank 0's process holds, and their own rank variables."""
    problems: Problems = []
    meeting = Counter((item.env.get("MASTER_ADDR", ""), item.env.get("MASTER_PORT", "")) for item in found.values())
    usual = meeting.most_common(1)[0][0] if meeting else ("", "")
    for record in records:
        item = found.get(record.rank)
        if item is None:
            problems.append(f"rank {record.rank} did not report its rank variables")
            continue
        wanted = {
            "RANK": record.rank,
            "LOCAL_RANK": record.local_rank,
            "NODE_RANK": record.node_rank,
            "LOCAL_WORLD_SIZE": record.local_world_size,
            "WORLD_SIZE": expected,
            "MASTER_ADDR": usual[0],
            "MASTER_PORT": usual[1],
        }
        sees = {name: (item.env.get(name, ""), str(want)) for name, want in wanted.items()}
        problems += [
            f"rank {record.rank} sees {name}={got or '(nothing)'}, must be {want}" for name, (got, want) in sees.items() if got != want
        ]
    first = next((record for record in records if record.rank == 0), None)
    if first is not None and 0 in found:
        if not usual[0] or usual[0] not in (first.address, first.hostname):
            problems.append(f"MASTER_ADDR is {usual[0] or '(nothing)'}, rank 0 runs on {place_of(first)}")
        holds = found[0].holds_port
        if holds is None or str(holds) != usual[1]:
            problems.append(f"MASTER_PORT is {usual[1] or '(nothing)'}, rank 0 holds {holds or 'no port'}")
    return problems


def meeting_point(found: Sequence[Rendezvous]) -> str:
    """Where the workers meet, for a person."""
    return f"{found[0].env.get('MASTER_ADDR')}:{found[0].env.get('MASTER_PORT')}" if found else "nowhere, there is no worker"


def place_of(record: WorkerRecord) -> str:
    """The worker's machine, for a person."""
    return record.address or record.hostname or record.node_id[:8]
