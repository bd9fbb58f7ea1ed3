"""The profiled workers of a group: from what is asked for to a profiler on each seat, and to profiles that are whole at the end."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from attrs import frozen
from ray.actor import ActorHandle

from rl_cluster.errors import ConfigError, PythonEnvError
from rl_cluster.process import nsight
from rl_cluster.process.node_work import NodeWork, let_go, on_nodes
from rl_cluster.process.nsight import NodeNsys, Nsight, ProfileRecord, Watched
from rl_cluster.process.records import WorkerRecord
from rl_cluster.workers.actors import Profiler, without_nsight
from rl_cluster.workers.bring_up import end
from rl_cluster.workers.target_import import import_target

logger = logging.getLogger(__name__)

END_AFTER_ERROR_S = 12.0  # with twice the next one less than ground.interrupts.STUCK_AFTER_S
ANSWER_S = 5.0  # more, for the answer of a node
START_S = 30.0  # more, for the first answer of a node


@frozen
class Asked:
    """What a group's profiling comes from."""

    request: Nsight
    outputs: Mapping[str, str]  # of the workers to profile, by name

    def profilers(self, node_of: Mapping[str, str], tell: Callable[[str], None] | None = None) -> dict[str, NodeNsys]:
        """Ask the nodes of the workers to profile whether they can.

        Args:
            node_of: Ray's id of each worker's node, by the worker's name.
            tell: Gets a line of text every 5 seconds; default: the log.

        Returns:
            What each node has, by its id.

        Raises:
            PythonEnvError: A node has no nsys, or nsys refuses the options, or the folder can't be written to.
        """
        outputs: dict[str, list[str]] = {}
        for name, output in self.outputs.items():
            outputs.setdefault(node_of[name], []).append(output)
        work = _work(self.request, seconds=nsight.CHECK_S + START_S)
        ready: dict[str, NodeNsys] = {}
        arguments = {node: (self.request, given) for node, given in outputs.items()}
        for node, outcome in on_nodes(work, nsight.check_here, arguments, tell or logger.info):
            if isinstance(outcome, PythonEnvError):
                raise outcome
            ready[node] = outcome
        return ready

    def profiler(self, name: str, here: NodeNsys | None) -> Profiler | None:
        """What stands in front of a worker's Python; None for a worker that is not profiled."""
        if here is None or name not in self.outputs:
            return None
        return Profiler(self.request.command(here.nsys, self.outputs[name]), here.python)


def _work(request: Nsight, *, seconds: float) -> NodeWork:
    return NodeWork(
        where=nsight.WHERE,
        what="nsys",
        command=request.command("nsys", request.output or request.folder),
        timeout_s=seconds,
        rule=f"it must answer within {seconds:.0f} s",
        late_fix="look whether the node is alive (ray status)",
    )


def ask_for_profiles(
    target: str | type,
    options: Mapping[str, Any],
    wanted: Any,
    workers: Sequence[str],
    folder: str | os.PathLike[str] | None,
    names: Sequence[str],
) -> tuple[dict[str, Any], Asked | None, bool]:
    """Which of a group's workers are to be profiled.

    Args:
        target: The class: ``@ray.remote(runtime_env={"nsight": ...})`` counts.
        options: Of the actors: ``runtime_env={"nsight": ...}`` counts, and more than the class's own.
        wanted: ``worker.nsight``, which counts most.
        workers: Patterns of names.
        folder: Where profiles go; default: a new folder below ``nsight`` in the current one.
        names: Of all workers.

    Returns:
        The options without what Ray's own plugin would act on; what is asked for; whether the class itself has been looked at.

    Raises:
        ConfigError: A value breaks a rule, or a pattern matches no worker.
    """
    try:
        of_class = without_nsight(import_target(target)[1])[1]
        seen = True
    except ConfigError:  # only the workers' own Python can import it, or none: that is said later
        of_class, seen = None, False
    rest, of_options = without_nsight(options)
    chosen = wanted if wanted is not None else of_options if of_options is not None else of_class
    if chosen is None:
        if list(workers) != ["*"] and seen:
            raise ConfigError(nsight.not_without_nsight(workers).line("worker.nsight_workers"))
        return rest, None, seen
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    request = Nsight.asked(chosen, workers, os.path.join("nsight", now) if folder is None else os.fspath(folder))
    return rest, Asked(request, request.choose(names)), seen


class Profiles:
    """The profiled workers of a group that is up."""

    def __init__(self, asked: Asked, ready: Mapping[str, NodeNsys], workers: Sequence[tuple[WorkerRecord, ActorHandle, Any]]) -> None:
        """Each worker comes with what its ``_rl_cluster_processes`` has answered."""
        self._request, self._ready = asked.request, ready
        self._actors = {record.name: actor for record, actor, _ in workers}
        self._watched = {
            record.name: Watched(tuple((pid, started) for pid, started in processes), asked.outputs[record.name])
            for record, _, processes in workers
        }
        self.records = tuple(
            ProfileRecord(
                rank=record.rank, name=record.name, node_id=record.node_id, address=record.address, output=asked.outputs[record.name]
            )
            for record, _, _ in workers
        )
        self._ended = False
        where = ", ".join(sorted({os.path.dirname(record.output) for record in self.records}))
        logger.info("nsight: profiles %s into %s on their nodes", ", ".join(record.name for record in self.records), where)

    def end(self, timeout_s: float) -> None:
        """End the workers in order, and wait until nsys has written. What is not written in time is in the records, and in the log.

        Args:
            timeout_s: For both together. A worker that is still busy after half of it is ended hard.
        """
        if self._ended or not ray.is_initialized():
            return
        deadline = time.monotonic() + timeout_s
        let_go([actor.__ray_terminate__.remote() for actor in self._actors.values()])
        killed: set[str] = set()
        left = self._look(self._watched, timeout_s / 2)
        if left:
            killed = {name for name, processes in left.items() if self._watched[name].processes[0] in processes}
            end([self._actors[name] for name in killed])
            self._look({name: self._watched[name] for name in left}, max(0.0, deadline - time.monotonic()), killed=killed)
        self._ended = True
        for record in self.records:
            if record.problem is not None:
                logger.warning("nsight: rank %d (%s) on %s: %s", record.rank, record.name, record.address, record.problem)

    def _look(self, watched: Mapping[str, Watched], seconds: float, *, killed: set[str] | frozenset[str] = frozenset()) -> dict[str, Any]:
        """Wait for workers; their records are true afterwards. Those of which something still runs, with their processes."""
        by_node: dict[str, dict[str, Watched]] = {}
        for record in self.records:
            if record.name in watched:
                by_node.setdefault(record.node_id, {})[record.name] = watched[record.name]
        arguments = {node: (workers, self._ready[node].since, seconds) for node, workers in by_node.items()}
        outcomes = dict(on_nodes(_work(self._request, seconds=seconds + ANSWER_S), nsight.end_here, arguments, logger.info))
        left: dict[str, Any] = {}
        records = []
        for record in self.records:
            if record.name in watched:
                outcome = outcomes.get(record.node_id)
                if isinstance(outcome, PythonEnvError):
                    record = nsight.after_end(record, (), f"its node was asked in vain: {outcome}")
                elif outcome is not None:
                    processes, files = outcome[record.name]
                    if processes:
                        left[record.name] = processes
                    record = nsight.after_end(record, files, _problem(bool(processes), record.name in killed))
            records.append(record)
        self.records = tuple(records)
        return left


def _problem(runs: bool, killed: bool) -> str | None:
    if runs:
        return "nsys had not ended in time: its profile is not there, or not whole"
    return "the worker was still busy and was ended hard: the end of its profile may be missing" if killed else None
