"""The checks that decide whether a layout came out as planned. Each compares what workers reported with what was asked, and names who differs."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from rl_cluster.picture import count_of
from rl_cluster.plan import Layout
from rl_cluster.records import WorkerRecord
from rl_cluster.schema import RunSpec

OFFENDERS_NAMED = 4  # in one detail; the rest is counted
BINDING_STATUSES = ("bound", "partial")  # and "skipped: <reason>", "failed: <reason>"


@frozen
class Check:
    """One check that was made."""

    name: str
    ok: bool
    detail: str  # one line: the finding, or who breaks the rule


@frozen
class Rendezvous:
    """What one worker sees of its group's meeting point, read in its own process."""

    rank: int
    master_addr: str  # $MASTER_ADDR
    master_port: int  # $MASTER_PORT
    env_rank: int  # $RANK
    env_local_rank: int  # $LOCAL_RANK
    env_node_rank: int  # $NODE_RANK
    env_world_size: int  # $WORLD_SIZE
    env_local_world_size: int  # $LOCAL_WORLD_SIZE
    holds_port: int | None = None  # the port that this process has leased


Problems = list[str]


def check_workers(
    records: Sequence[WorkerRecord],
    layout: Layout,
    spec: RunSpec,
    *,
    strict_numa: bool | None = None,
    rendezvous: Sequence[Rendezvous] | None = None,
    expected_python: str | Mapping[str, str] | None = None,
    world_size: int | None = None,
    others: Sequence[WorkerRecord] = (),
) -> list[Check]:
    """Checks one worker group.

    A check whose facts were not given (``rendezvous``) is not made and not listed: nothing passes unseen.

    Args:
        records: The group's workers as they reported themselves.
        layout: The planned layout.
        spec: What was asked.
        strict_numa: Whether anything short of a whole binding fails; default: ``spec.numa.strict``.
        rendezvous: What every worker sees of MASTER_ADDR and its rank variables.
        expected_python: The interpreter (or one by node id) that the workers must run; default: this process's for SYSTEM, the given
            path where ``python.executable`` is an absolute path; otherwise one interpreter per machine is all that is asked.
        world_size: Workers that must be there; default: one per bundle.
        others: Workers of the groups that share these bundles, counted for the GPUs and the processes.

    Returns:
        The checks that were made, in a fixed order.
    """
    strict = spec.numa.strict if strict_numa is None else strict_numa
    expected = layout.spec.world_size if world_size is None else world_size
    everyone = [*records, *others]
    checks = [
        _check("ranks", _ranks(records, expected), f"0 to {expected - 1}, each once" if expected else "no worker wanted, none there"),
        _check("rank variables", _local_ranks(records), "LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK agree with where the workers run"),
        _check("placement", _placement(records, layout), "every worker on its planned machine"),
        _check("strategy", _strategy(records, layout), f"{layout.spec.strategy} kept by {count_of(len(_machines(records)), 'machine')}"),
        _check("devices", _devices(records, everyone, layout), _devices_kept(layout)),
        _check("processes", _processes(everyone), f"{count_of(len(everyone), 'worker')}, one process each"),
        _check("bindings", _bindings(records, spec, strict), _binding_summary(records)),
        _check("python", _python(records, spec, expected_python), _python_summary(records)),
    ]
    if rendezvous is not None:
        found = {item.rank: item for item in rendezvous}
        at = next((f"{item.master_addr}:{item.master_port}" for item in rendezvous), "nowhere, no worker wanted")
        checks.insert(2, _check("rendezvous", _rendezvous(records, found, expected), f"all meet at {at}, held by rank 0"))
    return checks


def _check(name: str, problems: Problems, finding: str) -> Check:
    if not problems:
        return Check(name, True, finding)
    more = len(problems) - OFFENDERS_NAMED
    return Check(name, False, "; ".join(problems[:OFFENDERS_NAMED]) + (f"; and {more} more" if more > 0 else ""))


def _ranks(records: Sequence[WorkerRecord], expected: int) -> Problems:
    times = Counter(record.rank for record in records)
    problems = [f"rank {rank} is missing" for rank in range(expected) if not times[rank]]
    problems += [f"rank {rank} is held by {count} workers" for rank, count in sorted(times.items()) if count > 1]
    return problems + [f"rank {rank} is outside 0..{expected - 1}" for rank in sorted(times) if not 0 <= rank < expected]


def _local_ranks(records: Sequence[WorkerRecord]) -> Problems:
    parts: dict[tuple[int, str], list[WorkerRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.rank):
        parts[record.node_idx, record.node_id].append(record)
    problems: Problems = []
    # A part's first rank orders the parts, so NODE_RANK must count them in that order.
    for node_rank, part in enumerate(parts.values()):
        for local_rank, record in enumerate(part):
            wanted = {
                "LOCAL_RANK": (local_rank, record.local_rank),
                "LOCAL_WORLD_SIZE": (len(part), record.local_world_size),
                "NODE_RANK": (node_rank, record.node_rank),
                "RANK": (part[0].rank + local_rank, record.rank),
            }
            problems += [f"rank {record.rank} has {name} {got}, must be {want}" for name, (want, got) in wanted.items() if want != got]
    return problems


def _placement(records: Sequence[WorkerRecord], layout: Layout) -> Problems:
    planned = {(bundle.node_idx, bundle.bundle_idx): bundle.node_id for bundle in layout.bundles}
    names = {node.node_id: node.address or node.hostname for node in layout.nodes}
    problems: Problems = []
    for record in records:
        where = planned.get((record.node_idx, record.bundle_idx))
        bundle = f"bundle {record.node_idx}.{record.bundle_idx}"
        if where is None:
            problems.append(f"rank {record.rank} runs in {bundle}, which the layout has not")
        elif where != record.node_id:
            problems.append(f"rank {record.rank} ({bundle}) runs on {_place(record)}, planned on {names.get(where) or where[:8]}")
    return problems


def _strategy(records: Sequence[WorkerRecord], layout: Layout) -> Problems:
    used: dict[int, set[str]] = defaultdict(set)
    for record in records:
        used[record.node_idx].add(record.node_id)
    planned: dict[int, set[str]] = defaultdict(set)
    for bundle in layout.bundles:
        planned[bundle.node_idx].add(bundle.node_id)
    strategy = layout.spec.strategy
    problems: Problems = []
    for node_idx, machines in sorted(used.items()):
        # PACK and SPREAD may split a logical node, but only as far as the plan found it needed.
        allowed = 1 if strategy.startswith("STRICT") else max(1, len(planned[node_idx]))
        if len(machines) > allowed:
            problems.append(f"logical node {node_idx} lies on {len(machines)} machines, {strategy} allows {allowed}")
    if strategy in ("SPREAD", "STRICT_SPREAD"):
        users: dict[str, set[int]] = defaultdict(set)
        for record in records:
            users[record.node_id].add(record.node_idx)
        shared = Counter(node_id for machines in planned.values() for node_id in machines)
        names = {record.node_id: _place(record) for record in records}
        for node_id, nodes in users.items():
            allowed = 1 if strategy == "STRICT_SPREAD" else max(1, shared[node_id])
            if len(nodes) > allowed:
                listed = ", ".join(map(str, sorted(nodes)))
                problems.append(f"logical nodes {listed} share machine {names[node_id]}, {strategy} with this plan allows {allowed} there")
    return problems


def _devices(records: Sequence[WorkerRecord], everyone: Sequence[WorkerRecord], layout: Layout) -> Problems:
    problems: Problems = []
    for record in records:
        if layout.spec.use_gpus and not record.gpu_ids:
            problems.append(f"rank {record.rank} on {_place(record)} has no {layout.spec.accelerator}")
        if not layout.spec.use_gpus and record.gpu_ids:
            problems.append(
                f"rank {record.rank} on {_place(record)} has {layout.spec.accelerator} {','.join(record.gpu_ids)}, none was asked for"
            )
    holders: dict[tuple[str, str], list[WorkerRecord]] = defaultdict(list)
    for record in everyone:
        for gpu in record.gpu_ids:
            holders[record.node_id, gpu].append(record)
    for (_, gpu), sharing in holders.items():
        bundles = {(record.node_idx, record.bundle_idx) for record in sharing}
        if len(sharing) > layout.spec.max_colocated_worker_groups or len(bundles) > 1:
            problems.append(f"{layout.spec.accelerator} {gpu} of {_place(sharing[0])} is given to {_names(sharing)}")
    return problems


def _devices_kept(layout: Layout) -> str:
    if not layout.spec.use_gpus:
        return "no accelerator asked for, none given"
    share = layout.spec.max_colocated_worker_groups
    return f"no {layout.spec.accelerator} given twice" if share == 1 else f"no {layout.spec.accelerator} given more than {share} times"


def _processes(everyone: Sequence[WorkerRecord]) -> Problems:
    processes: dict[tuple[str, str, int], list[WorkerRecord]] = defaultdict(list)
    for record in everyone:
        processes[record.address, record.hostname, record.pid].append(record)
    return [
        f"process {pid} of {address or hostname} runs {_names(sharing)}"
        for (address, hostname, pid), sharing in processes.items()
        if len(sharing) > 1
    ]


def _bindings(records: Sequence[WorkerRecord], spec: RunSpec, strict: bool) -> Problems:
    problems: Problems = []
    for record in records:
        if record.binding is None:
            problems += [f"rank {record.rank} reports no binding"] if spec.numa.enabled else []
            continue
        statuses = (("CPUs", record.binding.cpu_status), ("memory", record.binding.mem_status))
        for what, status in statuses:
            # A container without CAP_SYS_NICE refuses every memory policy: best effort says so, only strict makes it an error.
            failed = what == "CPUs" and status.startswith("failed")
            if not _is_status(status):
                problems.append(f"rank {record.rank}: unknown status {status!r} of its {what}")
            elif failed or (strict and status != "bound" and not _not_asked(what, spec)):
                problems.append(f"rank {record.rank} on {_place(record)}: {what} {status}")
        if record.binding.cpu_status == "bound" and not record.binding.cpus_held:
            problems.append(f"rank {record.rank} says bound, but holds no CPU list that was read back")
    return problems


def _not_asked(what: str, spec: RunSpec) -> bool:
    return not spec.numa.enabled or (what == "memory" and not spec.numa.membind) or (what == "CPUs" and spec.numa.cpu_bind == "none")


def _is_status(status: str) -> bool:
    kind, _, reason = status.partition(":")
    return status in BINDING_STATUSES or (kind in ("skipped", "failed") and bool(reason.strip()))


def _binding_summary(records: Sequence[WorkerRecord]) -> str:
    def counted(statuses: Iterable[str]) -> str:
        return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common()) or "none reported"

    reports = [record.binding for record in records if record.binding is not None]
    return f"CPUs: {counted(report.cpu_status for report in reports)}; memory: {counted(report.mem_status for report in reports)}"


def _python(records: Sequence[WorkerRecord], spec: RunSpec, expected: str | Mapping[str, str] | None) -> Problems:
    if expected is None:
        asked = spec.python.executable
        expected = sys.executable if asked == "SYSTEM" else asked if os.path.isabs(asked) and " " not in asked else None
    if expected is not None:
        wanted = dict(expected) if isinstance(expected, Mapping) else {record.node_id: expected for record in records}
        return [
            f"rank {record.rank} on {_place(record)} runs {record.python or 'an unknown Python'}, asked was {wanted.get(record.node_id)}"
            for record in records
            if not _same_python(record.python, wanted.get(record.node_id))
        ]
    by_machine: dict[str, set[str]] = defaultdict(set)
    for record in records:
        by_machine[record.node_id].add(record.python)
    names = {record.node_id: _place(record) for record in records}
    return [f"{names[node]} runs {', '.join(sorted(pythons))}" for node, pythons in by_machine.items() if len(pythons) > 1 or "" in pythons]


def _same_python(got: str, wanted: str | None) -> bool:
    """bin/python and bin/python3 of one folder are one interpreter; two environments over one base interpreter are two."""
    if not wanted or not got:
        return False
    return got == wanted or (Path(got).parent == Path(wanted).parent and os.path.realpath(got) == os.path.realpath(wanted))


def _python_summary(records: Sequence[WorkerRecord]) -> str:
    return ", ".join(dict.fromkeys(record.python for record in records)) or "no worker"


def _rendezvous(records: Sequence[WorkerRecord], found: Mapping[int, Rendezvous], expected: int) -> Problems:
    problems: Problems = []
    meeting = Counter((item.master_addr, item.master_port) for item in found.values())
    usual = meeting.most_common(1)[0][0] if meeting else ("", 0)
    first = next((record for record in records if record.rank == 0), None)
    for record in records:
        item = found.get(record.rank)
        if item is None:
            problems.append(f"rank {record.rank} did not report its rank variables")
            continue
        if (item.master_addr, item.master_port) != usual:
            problems.append(f"rank {record.rank} has {item.master_addr}:{item.master_port}, most have {usual[0]}:{usual[1]}")
        pairs = (
            ("RANK", record.rank, item.env_rank),
            ("LOCAL_RANK", record.local_rank, item.env_local_rank),
            ("NODE_RANK", record.node_rank, item.env_node_rank),
            ("LOCAL_WORLD_SIZE", record.local_world_size, item.env_local_world_size),
            ("WORLD_SIZE", expected, item.env_world_size),
        )
        problems += [f"rank {record.rank} sees {name}={got}, must be {want}" for name, want, got in pairs if want != got]
    if first is not None and 0 in found:
        if usual[0] not in (first.address, first.hostname):
            problems.append(f"MASTER_ADDR is {usual[0]}, rank 0 runs on {first.address}")
        if found[0].holds_port != usual[1]:
            problems.append(f"MASTER_PORT is {usual[1]}, rank 0 holds {found[0].holds_port or 'no port'}")
    return problems


def _machines(records: Sequence[WorkerRecord]) -> set[str]:
    return {record.node_id for record in records}


def _names(records: Sequence[WorkerRecord]) -> str:
    return ", ".join(f"{record.name or 'worker'} (rank {record.rank})" for record in records)


def _place(record: WorkerRecord) -> str:
    return record.address or record.hostname or record.node_id[:8]
