"""The checks that decide a run's last line: each can fail, and says who breaks the rule."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from made_up import make_binding, make_layout, make_workers

from rl_cluster.process.records import WorkerRecord
from rl_cluster.schema import NumaSpec, PythonSpec, RunSpec
from rl_cluster.views.checks import Check, Rendezvous, check_workers
from rl_cluster.views.checks_inside import drift

LAYOUT = make_layout([2, 2])
NAMES = ["ranks", "rank variables", "rendezvous", "placement", "strategy", "devices", "processes", "bindings", "python"]

Workers = list[WorkerRecord]


def make_rendezvous(workers: Workers, port: int = 1401) -> list[Rendezvous]:
    """What the workers see when all is well."""
    return [
        Rendezvous(
            worker.rank,
            {
                "RANK": str(worker.rank),
                "LOCAL_RANK": str(worker.local_rank),
                "NODE_RANK": str(worker.node_rank),
                "WORLD_SIZE": str(len(workers)),
                "LOCAL_WORLD_SIZE": str(worker.local_world_size),
                "MASTER_ADDR": workers[0].address,
                "MASTER_PORT": str(port),
            },
            port if worker.rank == 0 else None,
        )
        for worker in workers
    ]


def check(workers: Workers, layout: Any = LAYOUT, numa: NumaSpec | None = None, **more: Any) -> dict[str, Check]:
    """The checks by name, with the interpreter of `make_workers` asked for."""
    spec = RunSpec(cluster=layout.spec, numa=numa or NumaSpec())
    more = {"rendezvous": make_rendezvous(make_workers(layout)), "expected_python": "/env/bin/python", **more}
    return {item.name: item for item in check_workers(workers, layout, spec, **more)}


def evolve(number: int, /, **fields: Any) -> Callable[[Workers], Workers]:
    """A change of one worker."""
    return lambda workers: [attrs.evolve(worker, **fields) if worker.rank == number else worker for worker in workers]


@pytest.mark.parametrize(
    ("layout", "workers"),
    [
        (make_layout([1]), None),
        (make_layout([2, 2]), None),
        (make_layout([8, 4, 8], strategy="STRICT_SPREAD"), None),
        (make_layout([4, 0, 2], on=[[0, 0, 1, 1], [], [1, 1]], strategy="PACK"), None),
        (make_layout([2, 2], on=[[0, 0], [0, 0]]), None),
        (make_layout([4], use_gpus=False), None),
    ],
    ids=["1x1", "2x2", "uneven", "split", "shared", "cpu"],
)
def test_all_checks_hold_for_what_was_planned(layout: Any, workers: None) -> None:
    """A layout that came out as planned has nine checks, and all hold."""
    checks = check(make_workers(layout), layout)
    assert list(checks) == NAMES
    assert [item for item in checks.values() if not item.ok] == []


BROKEN: dict[str, tuple[Callable[[Workers], Workers], str, str]] = {
    "missing": (lambda workers: workers[:3], "ranks", "rank 3 is missing"),
    "no_workers": (lambda workers: [], "ranks", "rank 0 is missing; rank 1 is missing; rank 2 is missing; rank 3 is missing"),
    "twice": (evolve(3, rank=2), "ranks", "rank 3 is missing; rank 2 is held by 2 workers"),
    "outside": (evolve(3, rank=7), "ranks", "rank 3 is missing; rank 7 is outside 0..3"),
    "local_rank": (evolve(1, local_rank=0), "rank variables", "rank 1 has LOCAL_RANK 0, must be 1"),
    "local_world_size": (evolve(2, local_world_size=4), "rank variables", "rank 2 has LOCAL_WORLD_SIZE 4, must be 2"),
    "node_rank": (evolve(3, node_rank=0), "rank variables", "rank 3 has NODE_RANK 0, must be 1"),
    "device_order": (
        lambda workers: evolve(0, gpu_ids=("10",))(evolve(1, gpu_ids=("9",))(workers)),
        "rank variables",
        "the ranks on 10.0.0.1 don't follow the device ids, which are 10, 9",
    ),
    "wrong_machine": (
        evolve(3, node_id="00" * 28, address="10.0.0.1"),
        "placement",
        "rank 3 (bundle 1.1) runs on 10.0.0.1, planned on 10.0.0.2",
    ),
    "unknown_bundle": (evolve(3, bundle_idx=5), "placement", "rank 3 runs in bundle 1.5, which the layout has not"),
    "split": (
        evolve(3, node_id="00" * 28, address="10.0.0.1"),
        "strategy",
        "logical node 1 lies on 2 machines, SPREAD allows 1; "
        "logical nodes 0, 1 share machine 10.0.0.1, SPREAD with this plan allows 1 there",
    ),
    "device_twice": (evolve(1, gpu_ids=("0",)), "devices", "GPU 0 of 10.0.0.1 is given to worker-0-0 (rank 0), worker-0-1 (rank 1)"),
    "no_device": (evolve(1, gpu_ids=()), "devices", "rank 1 on 10.0.0.1 has no GPU"),
    "one_process": (evolve(1, pid=1000), "processes", "process 1000 of 10.0.0.1 runs worker-0-0 (rank 0), worker-0-1 (rank 1)"),
    "no_binding": (evolve(1, binding=None), "bindings", "rank 1 on 10.0.0.1 reports no binding"),
    "failed_binding": (
        evolve(1, binding=make_binding(1, cpu_status="failed: EPERM")),
        "bindings",
        "rank 1 on 10.0.0.1: CPUs failed: EPERM",
    ),
    "unnamed_skip": (evolve(1, binding=make_binding(1, cpu_status="skipped")), "bindings", "rank 1 on 10.0.0.1: unknown status 'skipped'"),
    "unnamed_failure": (
        evolve(1, binding=make_binding(1, mem_status="failed: ")),
        "bindings",
        "rank 1 on 10.0.0.1: unknown status 'failed: '",
    ),
    "untrue_cpus": (
        evolve(1, binding=attrs.evolve(make_binding(1), cpus_held="0-31")),
        "bindings",
        "rank 1 on 10.0.0.1: CPUs bound, but the kernel holds 0-31 and not 0-15",
    ),
    "untrue_memory": (
        evolve(1, binding=attrs.evolve(make_binding(1), policy_held="default")),
        "bindings",
        "rank 1 on 10.0.0.1: memory bound, but the kernel holds the policy default",
    ),
    "other_python": (evolve(2, python="/usr/bin/python3"), "python", "rank 2 on 10.0.0.2 runs /usr/bin/python3, asked was /env/bin/python"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_names_who_breaks_it(name: str) -> None:
    """Each check fails for its own fault and names the offender."""
    change, broken, detail = BROKEN[name]
    found = check(change(make_workers(LAYOUT)))[broken]
    assert (found.ok, found.detail) == (False, detail)


def test_a_fault_breaks_no_other_check() -> None:
    """A wrong interpreter is no wrong placement: the checks are independent."""
    checks = check(evolve(2, python="/usr/bin/python3")(make_workers(LAYOUT)))
    assert [name for name, item in checks.items() if not item.ok] == ["python"]


def test_many_offenders_are_counted() -> None:
    """A detail stays one readable line, however many break the rule."""
    layout = make_layout([32])
    found = check([attrs.evolve(worker, gpu_ids=()) for worker in make_workers(layout)], layout)["devices"]
    assert found.detail.endswith("rank 3 on 10.0.0.1 has no GPU; and 28 more")
    assert "\n" not in found.detail


STRATEGIES = {
    # what was planned for [2, 2] | machines that really hold each bundle | breaks the rule
    "strict_pack_split": ("STRICT_PACK", [[0, 0], [1, 1]], [[0, 1], [1, 1]], True),
    "strict_pack_shared": ("STRICT_PACK", [[0, 0], [0, 0]], [[0, 0], [0, 0]], False),
    "pack_split_as_planned": ("PACK", [[0, 1], [1, 2]], [[0, 1], [1, 2]], False),
    "pack_split_unplanned": ("PACK", [[0, 0], [1, 1]], [[0, 1], [1, 1]], True),
    "spread_shared_as_planned": ("SPREAD", [[0, 0], [0, 0]], [[0, 0], [0, 0]], False),
    "spread_shared_unplanned": ("SPREAD", [[0, 0], [1, 1]], [[0, 0], [0, 0]], True),
    "strict_spread_shared": ("STRICT_SPREAD", [[0, 0], [1, 1]], [[0, 0], [0, 0]], True),
    "strict_spread_distinct": ("STRICT_SPREAD", [[0, 0], [1, 1]], [[0, 0], [1, 1]], False),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_is_checked_by_where_workers_run(name: str) -> None:
    """The strict strategies hold always, the others as far as the plan did."""
    strategy, planned, real, broken = STRATEGIES[name]
    layout = make_layout([2, 2], on=planned, machines=3, strategy=strategy)
    workers = make_workers(make_layout([2, 2], on=real, machines=3))
    assert check(workers, layout)["strategy"].ok is not broken


def test_colocated_groups_may_share_a_device() -> None:
    """As many workers as max_colocated_worker_groups hold one GPU, in one bundle; one more is too many."""
    layout = make_layout([2], max_colocated_worker_groups=2)
    first = make_workers(layout)
    second = [attrs.evolve(worker, pid=worker.pid + 100, name="reward") for worker in make_workers(layout)]
    third = [attrs.evolve(worker, pid=worker.pid + 200, name="critic") for worker in make_workers(layout)]
    assert check(first, layout, others=second)["devices"].ok
    assert not check(first, layout, others=[*second, *third])["devices"].ok


def test_one_device_is_never_shared_between_bundles() -> None:
    """Colocation shares a bundle; two bundles on one GPU are a fault whatever the config allows."""
    layout = make_layout([2], max_colocated_worker_groups=2)
    assert not check(evolve(1, gpu_ids=("0",))(make_workers(layout)), layout)["devices"].ok


def test_colocated_groups_have_processes_of_their_own() -> None:
    """A worker of another group in the same process is a fault."""
    layout = make_layout([2], max_colocated_worker_groups=2)
    assert not check(make_workers(layout), layout, others=make_workers(layout, name="reward"))["processes"].ok


@pytest.mark.parametrize(
    ("others", "detail"),
    [(0, "2 workers, one process each"), (1, "2 workers, one process each; none shared with the 1 worker of other groups on this cluster")],
)
def test_a_groups_own_processes_are_counted_apart_from_the_others(others: int, detail: str) -> None:
    """The finding counts this group's workers, and says how many of other groups were compared with."""
    layout = make_layout([2], max_colocated_worker_groups=2)
    more = [attrs.evolve(record, pid=record.pid + 1000) for record in make_workers(layout, name="reward")[:others]]
    found = check(make_workers(layout), layout, others=more)["processes"]
    assert (found.ok, found.detail) == (True, detail)


def test_a_device_that_nobody_asked_for_is_a_fault() -> None:
    """CPU workers hold no GPU."""
    layout = make_layout([2], use_gpus=False)
    found = check(evolve(1, gpu_ids=("3",))(make_workers(layout)), layout)["devices"]
    assert (found.ok, found.detail) == (False, "rank 1 on 10.0.0.1 has GPU 3, none was asked for")


RENDEZVOUS = {
    "another_port": ({3: {"MASTER_PORT": "1500"}}, 1401, "rank 3 sees MASTER_PORT=1500, must be 1401"),
    "another_host": ({3: {"MASTER_ADDR": "10.0.0.9"}}, 1401, "rank 3 sees MASTER_ADDR=10.0.0.9, must be 10.0.0.1"),
    "not_the_host_of_rank_0": (
        {rank: {"MASTER_ADDR": "10.0.0.2"} for rank in range(4)},
        1401,
        "MASTER_ADDR is 10.0.0.2, rank 0 runs on 10.0.0.1",
    ),
    "another_rank": ({2: {"RANK": "3"}}, 1401, "rank 2 sees RANK=3, must be 2"),
    "no_rank": ({2: {"RANK": ""}}, 1401, "rank 2 sees RANK=(nothing), must be 2"),
    "world_size": ({2: {"WORLD_SIZE": "3"}}, 1401, "rank 2 sees WORLD_SIZE=3, must be 4"),
    "port_not_held": ({}, None, "MASTER_PORT is 1401, rank 0 holds no port"),
    "another_port_held": ({}, 1402, "MASTER_PORT is 1401, rank 0 holds 1402"),
}


@pytest.mark.parametrize("name", RENDEZVOUS)
def test_all_workers_meet_at_the_port_of_rank_0(name: str) -> None:
    """Everybody sees the same address and port, which rank 0 holds, and its own rank variables."""
    changes, held, detail = RENDEZVOUS[name]
    workers = make_workers(LAYOUT)
    seen = [attrs.evolve(item, env={**item.env, **changes.get(item.rank, {})}) for item in make_rendezvous(workers)]
    seen[0] = attrs.evolve(seen[0], holds_port=held)
    found = check(workers, rendezvous=seen)["rendezvous"]
    assert (found.ok, found.detail) == (False, detail)


def test_a_silent_worker_breaks_the_rendezvous() -> None:
    """A worker that did not say what it sees is named."""
    workers = make_workers(LAYOUT)
    found = check(workers, rendezvous=make_rendezvous(workers)[:3])["rendezvous"]
    assert (found.ok, found.detail) == (False, "rank 3 did not report its rank variables")


def test_what_was_not_looked_at_is_not_listed() -> None:
    """Without its facts the rendezvous is not checked, and does not count as held."""
    assert list(check(make_workers(LAYOUT), rendezvous=None)) == [name for name in NAMES if name != "rendezvous"]


STRICT = {
    # numa | status of CPUs, of memory | holds without strict, with strict
    "bound": ("bound", "bound", True, True),
    "disabled_memory": ("bound", "skipped: disabled", True, True),
    "single_node": ("bound", "skipped: single-node", True, False),
    "refused_memory": ("bound", "failed: EPERM", True, False),
    "partial": ("partial", "bound", True, False),
    "skipped": ("skipped: unknown-node", "skipped: unknown-node", True, False),
    "failed": ("failed: EPERM", "bound", False, False),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_takes_only_a_whole_binding(name: str) -> None:
    """Best effort may fall short as long as it says so; strict may not, but for what the config turned off."""
    cpus, memory, loose_holds, strict_holds = STRICT[name]
    workers = evolve(1, binding=make_binding(1, cpu_status=cpus, mem_status=memory))(make_workers(LAYOUT))
    assert check(workers)["bindings"].ok is loose_holds
    assert check(workers, numa=NumaSpec(strict=True))["bindings"].ok is strict_holds
    assert check(workers, strict_numa=True)["bindings"].ok is strict_holds


def test_without_numa_no_binding_is_asked_for() -> None:
    """A worker that was left alone has nothing to report."""
    workers = make_workers(LAYOUT, binding=False)
    found = check(workers, numa=NumaSpec(enabled=False))["bindings"]
    assert (found.ok, found.detail) == (True, "CPUs: none reported; memory: none reported")


def test_bindings_are_counted_by_status() -> None:
    """The line of a held check says how many were bound and how many were not."""
    workers = evolve(1, binding=make_binding(1, mem_status="failed: EPERM"))(make_workers(LAYOUT))
    assert check(workers)["bindings"].detail == "CPUs: 4 bound; memory: 3 bound, 1 failed: EPERM"


def python_check(workers: Workers, executable: str, **more: Any) -> Check:
    """The check of the interpreter for one value of python.executable."""
    spec = RunSpec(cluster=LAYOUT.spec, python=PythonSpec(executable=executable))
    return next(item for item in check_workers(workers, LAYOUT, spec, **more) if item.name == "python")


def test_system_means_this_interpreter() -> None:
    """With SYSTEM the workers run the driver's own interpreter."""
    assert python_check(make_workers(LAYOUT, python=sys.executable), "SYSTEM").ok
    assert not python_check(make_workers(LAYOUT, python="/env/bin/python"), "SYSTEM").ok


def test_a_path_means_that_interpreter() -> None:
    """An absolute path is what must run."""
    assert python_check(make_workers(LAYOUT), "/env/bin/python").ok
    assert not python_check(make_workers(LAYOUT), "/other/bin/python").ok


def test_a_command_line_means_one_interpreter_per_machine() -> None:
    """What a command starts isn't known before: but it must be one and the same on a machine."""
    workers = make_workers(LAYOUT)
    assert python_check(workers, "uv run --locked").ok
    found = python_check(evolve(1, python="/usr/bin/python3")(workers), "uv run --locked")
    assert (found.ok, found.detail) == (False, "10.0.0.1 runs /env/bin/python, /usr/bin/python3")


def test_each_machine_may_have_an_interpreter_of_its_own() -> None:
    """Environments that were built on each node are checked node by node."""
    workers = make_workers(LAYOUT)
    paths = {LAYOUT.nodes[0].node_id: "/env/bin/python", LAYOUT.nodes[1].node_id: "/env2/bin/python"}
    found = python_check(workers, "BASE", expected_python=paths)
    assert found.detail == "; ".join(f"rank {rank} on 10.0.0.2 runs /env/bin/python, asked was /env2/bin/python" for rank in (2, 3))


def test_python_and_python3_of_one_environment_are_the_same(tmp_path: Path) -> None:
    """Two names in one folder for one interpreter are one; the same base interpreter in two environments is not."""
    for environment in ("a", "b"):
        folder = tmp_path / environment
        folder.mkdir()
        for name in ("python", "python3"):
            (folder / name).symlink_to(sys.executable)
    workers = make_workers(LAYOUT, python=str(tmp_path / "a" / "python3"))
    assert python_check(workers, "BASE", expected_python=str(tmp_path / "a" / "python")).ok
    assert not python_check(workers, "BASE", expected_python=str(tmp_path / "b" / "python3")).ok


def test_ranks_in_an_order_of_the_users_own() -> None:
    """Where the user listed the bundles, ranks need not be contiguous on a node; the local ones count on."""
    places = [(0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)]  # node_idx, bundle_idx, local_rank; node_rank = node_idx
    workers = [
        attrs.evolve(
            next(worker for worker in make_workers(LAYOUT) if (worker.node_idx, worker.bundle_idx) == (node_idx, bundle_idx)),
            rank=rank,
            local_rank=local_rank,
        )
        for rank, (node_idx, bundle_idx, local_rank) in enumerate(places)
    ]
    assert check(workers, ordered=False)["rank variables"].ok
    assert not check(workers)["rank variables"].ok


def test_a_group_on_some_bundles_is_checked_by_its_own_size() -> None:
    """A group that takes only some bundles has as many ranks as it was asked to have."""
    workers = [attrs.evolve(worker, local_world_size=2) for worker in make_workers(LAYOUT)[:2]]
    assert not check(workers)["ranks"].ok
    found = check(workers, world_size=2, rendezvous=make_rendezvous(workers))
    assert [item for item in found.values() if not item.ok] == []


def test_a_binding_that_has_changed_is_a_warning_with_its_ranks() -> None:
    """One sentence, however many there are; without strict no check fails for it."""
    note = "drift: 1 of 9 threads hold CPUs 0-3 instead of 0-1"
    workers = make_workers(LAYOUT)
    moved = attrs.evolve(make_binding(0, cpu_status="partial"), notes=("other", note))
    changed = [attrs.evolve(worker, binding=moved) if worker.rank in (1, 3) else worker for worker in workers]
    assert drift(workers) == []
    assert drift(changed) == [
        "numa: the binding of rank 1, 3 has changed since it was made (rank 1: 1 of 9 threads hold CPUs 0-3 instead of 0-1)"
    ]
    assert check(changed)["bindings"].ok
