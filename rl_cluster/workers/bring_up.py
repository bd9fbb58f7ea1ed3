"""The two-phase start of a worker group: create all actors, hear where they came up, give ranks, run the user's ``__init__``.

Phase 1 needs no knowledge of ranks, so all processes start at once and none needs an environment of its own (which would keep
Ray from reusing worker processes). Only when every worker has said which node and GPU it has, ranks and the master port are given.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from attrs import frozen
from ray._private import state as ray_state
from ray.actor import ActorHandle

from rl_cluster.errors import WorkerStartError
from rl_cluster.plan import Layout
from rl_cluster.planning.ranks import WorkerPosition, WorkerRank, rank_workers
from rl_cluster.planning.topology import natural_key
from rl_cluster.process.node_work import exit_detail, let_go
from rl_cluster.process.records import WorkerRecord
from rl_cluster.workers.actors import Seat
from rl_cluster.workers.worker_logs import last_words

_PROCESS_ENDED = "its process ended: "
_PID = re.compile(r"\bpid: (\d+)")  # in Ray's text about an ended worker

Progress = Callable[[int, int], None]  # workers that are up, workers in all


@frozen
class BroughtUp:
    """Workers that are up, in rank order."""

    actors: tuple[ActorHandle, ...]
    records: tuple[WorkerRecord, ...]
    master_address: str
    master_port: int


def bring_up(
    create: Callable[[], list[ActorHandle]],
    seats: Sequence[Seat],
    layout: Layout,
    *,
    init_arguments: Callable[[WorkerRecord], tuple[Sequence[Any], Mapping[str, Any]]],
    port_range: tuple[int, int],
    keep_order: bool,
    timeout_s: float,
    on_progress: Progress | None = None,
) -> BroughtUp:
    """Start one worker on each seat.

    Args:
        create: Creates one actor for each seat, in their order (:class:`rl_cluster.workers.actors.ActorRecipe`).
        seats: In the order of the plan.
        layout: The placed layout; its nodes are in topology order.
        init_arguments: Positional and keyword arguments of the user's ``__init__`` for one worker.
        port_range: Half-open range of the master port.
        keep_order: Ranks follow the seats as given (the user listed the bundles) instead of (node, GPU id).
        timeout_s: For the whole call.
        on_progress: Called whenever more workers are up (each worker counts once, when its ``__init__`` is done).

    Raises:
        WorkerStartError: A worker failed or the time was up. All others have been ended.
    """
    deadline = time.monotonic() + timeout_s
    actors: list[ActorHandle] = []
    try:
        actors = create()
        hellos = _gather(
            [actor._rl_cluster_hello.remote() for actor in actors], seats, layout, "its start", deadline=deadline, timeout_s=timeout_s
        )
        _check_places(hellos, seats, layout)
        ranks = _ranks(hellos, seats, layout, keep_order)
        order = sorted(range(len(seats)), key=lambda number: ranks[number].rank)
        actors, seats = [actors[number] for number in order], [seats[number] for number in order]
        records = tuple(
            _record(ranks[number], seat, hellos[number], layout.spec.accelerator) for number, seat in zip(order, seats, strict=True)
        )
        if not records:
            return BroughtUp(actors=(), records=(), master_address="", master_port=0)
        lease = actors[0]._rl_cluster_lease.remote(low=port_range[0], high=port_range[1])
        port = _gather([lease], seats[:1], layout, "leasing the master port", deadline=deadline, timeout_s=timeout_s)[0]
        starts = []
        for actor, record in zip(actors, records, strict=True):
            args, kwargs = init_arguments(record)
            environment = rank_variables(record, world_size=len(records), master_address=records[0].address, master_port=port)
            starts.append(actor._rl_cluster_start.remote(env=environment, args=args, kwargs=kwargs))
        _gather(starts, seats, layout, "__init__", deadline=deadline, timeout_s=timeout_s, on_progress=on_progress)
        return BroughtUp(actors=tuple(actors), records=records, master_address=records[0].address, master_port=port)
    except BaseException:
        end(actors)
        raise


def rank_variables(record: WorkerRecord, *, world_size: int, master_address: str, master_port: int) -> dict[str, str]:
    """The environment variables of one worker that torch.distributed and its kin read."""
    return {
        "RANK": str(record.rank),
        "LOCAL_RANK": str(record.local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(record.local_world_size),
        "NODE_RANK": str(record.node_rank),
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
    }


def end(actors: Sequence[ActorHandle]) -> None:
    """End actors at once. Idempotent; quiet when Ray is gone."""
    if not ray.is_initialized():
        return
    for actor in actors:
        with contextlib.suppress(Exception):  # one that is dead already must not keep the others alive
            ray.kill(actor, no_restart=True)


def _gather(
    refs: Sequence[Any],
    seats: Sequence[Seat],
    layout: Layout,
    what: str,
    *,
    deadline: float,
    timeout_s: float,
    on_progress: Progress | None = None,
) -> list[Any]:
    """All results, in order. The first failure ends the wait: the others may be waiting for the failed one."""
    try:
        return _in_order(refs, seats, layout, what, deadline, timeout_s, on_progress)
    except BaseException:
        let_go(refs)
        raise


def _in_order(
    refs: Sequence[Any],
    seats: Sequence[Seat],
    layout: Layout,
    what: str,
    deadline: float,
    timeout_s: float,
    on_progress: Progress | None,
) -> list[Any]:
    began = deadline - timeout_s - time.monotonic() + time.time()
    index = {ref: number for number, ref in enumerate(refs)}
    results: list[Any] = [None] * len(refs)
    waiting = list(refs)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, min(1.0, deadline - time.monotonic())))
        more, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for ref in (*ready, *more):
            number = index[ref]
            try:
                results[number] = ray.get(ref)
            except Exception as error:
                cause = cause_text(error)
                ended = _last_words(ref, error, seats[number], began) if cause.startswith(_PROCESS_ENDED) else ""
                raise _start_error(seats[number], number, layout, what, cause, f"{_fix(error, seats[number])}{ended}") from error
        if on_progress is not None and (ready or more):
            on_progress(len(refs) - len(waiting), len(refs))
        if waiting and time.monotonic() >= deadline:
            number = index[waiting[0]]
            raise _start_error(
                seats[number],
                number,
                layout,
                what,
                f"no answer within {timeout_s:g} s (and so {len(waiting)} of {len(refs)} workers)",
                f". Fix: raise worker.start_timeout_s{_last_words(waiting[0], None, seats[number], began)}",
            )
    return results


def _start_error(seat: Seat, rank: int, layout: Layout, what: str, cause: str, fix: str = "") -> WorkerStartError:
    node = _node_text(layout, seat.bundle.node_id)
    return WorkerStartError(
        f"worker {seat.name} (rank {rank}, bundle {seat.bundle.bundle_idx} of logical node {seat.bundle.node_idx}) on {node} "
        f"failed in {what}: {cause}{fix}",
        rank=rank,
        bundle=(seat.bundle.node_idx, seat.bundle.bundle_idx),
        node=node,
        cause_text=cause,
    )


def cause_text(error: BaseException) -> str:
    """One line of what really went wrong in a worker: the user's exception where there is one, else Ray's reason."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {cause}".strip().splitlines()[0]
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    end = exit_detail(" ".join(lines))
    if end is not None:
        return f"{_PROCESS_ENDED}{end}"
    if "error raised in its creation task" in lines[0] or "Traceback" in str(error):
        return lines[-1]  # the last line of the worker's own traceback
    return f"{type(error).__name__}: {lines[0]}"


def _last_words(ref: Any, error: BaseException | None, seat: Seat, began: float) -> str:
    """What the log of a worker says that has ended, or does not answer."""
    found = _PID.search(str(error))
    with contextlib.suppress(Exception):  # Ray itself may be gone: what is known is said all the same
        pid = int(found[1]) if found else ray_state.actors(ref.task_id().actor_id().hex()).get("Pid")
        return last_words(seat.bundle.node_id, pid or None, since=began)
    return ""


def _fix(error: BaseException, seat: Seat) -> str:
    """What to do about a module that the driver has and the worker has not."""
    if not isinstance(getattr(error, "cause", None), ModuleNotFoundError) and "ModuleNotFoundError: " not in cause_text(error):
        return ""
    runtime_env = seat.options.get("runtime_env") or {}
    if runtime_env.get("py_executable") and runtime_env.get("env_vars", {}).get("PYTHONPATH") == "":
        return (
            ". Fix: workers look in their environment's packages and in the folder where the command was typed; in a built environment "
            "PYTHONPATH is empty: add the module to the project, or write env.set.PYTHONPATH=FOLDER"
        )
    return (
        ". Fix: workers look in their Python's packages, in the folder where the command was typed, and in PYTHONPATH: install the module "
        "there, or write env.set.PYTHONPATH=FOLDER"
    )


def _node_text(layout: Layout, node_id: str) -> str:
    node = next((node for node in layout.nodes if node.node_id == node_id), None)
    return f"{node.address if node else 'an unknown node'} (node id {node_id[:8]})"


def _check_places(hellos: Sequence[Mapping[str, Any]], seats: Sequence[Seat], layout: Layout) -> None:
    for number, (hello, seat) in enumerate(zip(hellos, seats, strict=True)):
        if hello["node_id"] != seat.bundle.node_id:
            raise _start_error(seat, number, layout, "placement", f"it came up on {hello['address']} instead of its planned node")


def _ranks(hellos: Sequence[Mapping[str, Any]], seats: Sequence[Seat], layout: Layout, keep_order: bool) -> list[WorkerRank]:
    topology = {node.node_id: place for place, node in enumerate(layout.nodes)}
    positions = [
        WorkerPosition(
            node_idx=seat.bundle.node_idx,
            bundle_idx=seat.bundle.bundle_idx,
            node_id=hello["node_id"],
            address=hello["address"],
            gpu_ids=_gpu_ids(hello, layout.spec.accelerator),
            topology=topology[hello["node_id"]],
        )
        for seat, hello in zip(seats, hellos, strict=True)
    ]
    # one group has one worker on a bundle, so it never shares a GPU with itself, whatever the colocation
    return rank_workers(positions, max_colocated=1, keep_order=keep_order)


def _gpu_ids(hello: Mapping[str, Any], accelerator: str) -> tuple[str, ...]:
    return tuple(sorted(hello["accelerator_ids"].get(accelerator, ()), key=natural_key))


def _record(rank: WorkerRank, seat: Seat, hello: Mapping[str, Any], accelerator: str) -> WorkerRecord:
    return WorkerRecord(
        rank=rank.rank,
        local_rank=rank.local_rank,
        local_world_size=rank.local_world_size,
        node_rank=rank.node_rank,
        node_idx=seat.bundle.node_idx,
        bundle_idx=seat.bundle.bundle_idx,
        node_id=hello["node_id"],
        address=hello["address"],
        hostname=hello["hostname"],
        gpu_ids=_gpu_ids(hello, accelerator),
        pid=hello["pid"],
        python=hello["python"],
        name=seat.name,
        binding=hello["binding"],
    )
