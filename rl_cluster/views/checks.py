"""The checks that decide whether a layout came out as planned: what workers reported against what was asked, naming who differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from attrs import frozen

from rl_cluster.planning.layout import Layout
from rl_cluster.planning.naming import count_of
from rl_cluster.planning.topology import natural_key
from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import RunSpec
from rl_cluster.views import checks_inside as inside
from rl_cluster.views.checks_inside import Problems, Rendezvous, place_of

__all__ = ["Check", "Rendezvous", "check_workers"]

OFFENDERS_NAMED = 4  # in one detail; the rest is counted


@frozen
class Check:
    """One check that was made."""

    name: str
    ok: bool
    detail: str  # one line: the finding, or who breaks the rule


def check_workers(
    records: Sequence[WorkerRecord],
    layout: Layout,
    spec: RunSpec,
    *,
    strict_numa: bool | None = None,
    rendezvous: Sequence[Rendezvous] | None = None,
    expected_python: str | Mapping[str, str] | None = None,
    world_size: int | None = None,
    ordered: bool = True,
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
        ordered: Whether ranks must follow (logical node, machine, device id); False where the user gave the order of the bundles.
        others: Workers of the groups that share these bundles, counted for the devices and the processes.

    Returns:
        The checks that were made, in a fixed order.
    """
    strict = spec.numa.strict if strict_numa is None else strict_numa
    expected = layout.spec.world_size if world_size is None else world_size
    everyone = [*records, *others]
    checks = [
        _check("ranks", _ranks(records, expected), f"0 to {expected - 1}, each once" if expected else "no worker wanted, none there"),
        _check(
            "rank variables", _local_ranks(records, ordered), "LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK agree with where the workers run"
        ),
        _check("placement", _placement(records, layout), "every worker on its planned machine"),
        _check("strategy", _strategy(records, layout), f"{layout.spec.strategy} kept by {count_of(len(_machines(records)), 'machine')}"),
        _check("devices", _devices(records, everyone, layout), _devices_kept(layout)),
        _check("processes", _processes(everyone), _processes_kept(len(records), len(others))),
        _check("bindings", inside.bindings(records, spec, strict), inside.binding_summary(records)),
        _check("python", inside.python(records, spec, expected_python), inside.python_summary(records)),
    ]
    if rendezvous is not None:
        found = {item.rank: item for item in rendezvous}
        problems = inside.rendezvous(records, found, expected)
        checks.insert(2, _check("rendezvous", problems, f"all meet at {inside.meeting_point(rendezvous)}, held by rank 0"))
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


def _local_ranks(records: Sequence[WorkerRecord], ordered: bool) -> Problems:
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
                **({"RANK": (part[0].rank + local_rank, record.rank)} if ordered else {}),
            }
            problems += [f"rank {record.rank} has {name} {got}, must be {want}" for name, (want, got) in wanted.items() if want != got]
        # Within a machine Ray's ids ascended with the bundle index whenever it was measured, but nothing promises it.
        firsts = [min(map(natural_key, record.gpu_ids)) for record in part if record.gpu_ids]
        if ordered and firsts != sorted(firsts):
            listed = ", ".join(",".join(record.gpu_ids) for record in part)
            problems.append(f"the ranks on {place_of(part[0])} don't follow the device ids, which are {listed}")
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
            problems.append(f"rank {record.rank} ({bundle}) runs on {place_of(record)}, planned on {names.get(where) or where[:8]}")
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
        names = {record.node_id: place_of(record) for record in records}
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
            problems.append(f"rank {record.rank} on {place_of(record)} has no {layout.spec.accelerator}")
        if not layout.spec.use_gpus and record.gpu_ids:
            problems.append(
                f"rank {record.rank} on {place_of(record)} has {layout.spec.accelerator} {','.join(record.gpu_ids)}, none was asked for"
            )
    holders: dict[tuple[str, str], list[WorkerRecord]] = defaultdict(list)
    for record in everyone:
        for gpu in record.gpu_ids:
            holders[record.node_id, gpu].append(record)
    for (_, gpu), sharing in holders.items():
        bundles = {(record.node_idx, record.bundle_idx) for record in sharing}
        if len(sharing) > layout.spec.max_colocated_worker_groups or len(bundles) > 1:
            problems.append(f"{layout.spec.accelerator} {gpu} of {place_of(sharing[0])} is given to {_names(sharing)}")
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


def _processes_kept(workers: int, others: int) -> str:
    shared = f"; none shared with the {count_of(others, 'worker')} of other groups on this cluster" if others else ""
    return f"{count_of(workers, 'worker')}, one process each{shared}"


def _machines(records: Sequence[WorkerRecord]) -> set[str]:
    return {record.node_id for record in records}


def _names(records: Sequence[WorkerRecord]) -> str:
    return ", ".join(f"{record.name or 'worker'} (rank {record.rank})" for record in records)
