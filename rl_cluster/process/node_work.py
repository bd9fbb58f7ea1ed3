"""One piece of work on each of several nodes at once, by an actor of each node that takes no CPU and is gone afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen

from rl_cluster.errors import PythonEnvError
from rl_cluster.planning.naming import count_of
from rl_cluster.planning.naming import node_names as short_names
from rl_cluster.process.python_check import env_error

__all__ = ["NodeWork", "exit_detail", "let_go", "node_names", "on_nodes", "why_lost"]

PROGRESS_EVERY_S = 5.0
_ANSWER_S = 0.5  # for what a node is at; one that has not begun does not answer
_MOST_NODES = 3  # that a line speaks of
_MOST_LETTERS = 300  # of what one of them says
# Ray says why a worker's process ended, and goes on with what it could be in general.
_EXIT_DETAIL = re.compile(r"Worker exit detail: (.+?)(?: Some common causes|$)")


@frozen
class NodeWork:
    """What messages say of a piece of work.

    Attributes:
        where: The key that it comes from.
        what: What a node is to have ready, for the line of progress.
        command: The command line that it is about.
        timeout_s: Seconds that all nodes together may take, the way to them included.
        late_fix: What to do about a node that does not answer in time.
        rule: What a node must keep to answer in time.
    """

    where: str
    what: str
    command: Sequence[str]
    timeout_s: float
    late_fix: str
    rule: str

    def error(self, node: str, *, rule: str, got: str, fix: str) -> PythonEnvError:
        """The error of one node."""
        return env_error(node, self.command, rule=rule, got=got, fix=fix, where=self.where)


def on_nodes(
    work: NodeWork, do: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]], tell: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    """Call a function in a process of each node.

    Args:
        work: For the messages.
        do: The function, of a module that every node has. It also gets ``node``, the node's name for messages, and ``tell``, to which
            it says in a line what it is at.
        arguments: Its positional arguments by Ray's id of the node.
        tell: Gets a line every 5 seconds: on how many nodes it is ready, after how many seconds, and what the others are at.

    Yields:
        Each node's id with what the function returned, or with the :class:`PythonEnvError` that it raised or that stands for a node which
        is lost or late; in the order in which they come. When the generator is closed, what still runs is ended.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    known = node_names()
    names = {node: known.get(node, node[:12]) for node in arguments}
    addresses = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in ray.nodes()}
    short = short_names({node: addresses.get(node, "") for node in arguments})
    # Actors, not tasks: to end the work at once ray.kill is safe at any moment, while ray.cancel(force=True) of a task that ends just
    # then aborts the whole driver (Ray 2.60, "Tried to complete task that was not pending" in task_manager.cc).
    hand = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=2)(_NodeHand)
    started = told = time.monotonic()
    hands: dict[str, Any] = {}
    node_of: dict[Any, str] = {}
    done = 0
    try:
        for node, given in arguments.items():
            hands[node] = hand.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)).remote()
            node_of[hands[node].do.remote(do, given, names[node])] = node
        waiting = list(node_of)
        while waiting:
            now = time.monotonic()
            left = min(told + PROGRESS_EVERY_S, started + work.timeout_s) - now
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, left))
            for reference in ready:
                done += 1
                yield node_of[reference], _result(ray, reference, node_of[reference], names[node_of[reference]], work)
            elapsed = time.monotonic() - started
            if waiting and time.monotonic() >= told + PROGRESS_EVERY_S:
                told = time.monotonic()
                at = _at_work(ray, {node_of[reference]: hands[node_of[reference]] for reference in waiting}, short)
                tell(f"{work.what}: ready on {done} of {count_of(len(arguments), 'node')} after {elapsed:.0f} s; {at}")
            if waiting and elapsed >= work.timeout_s:
                for late in (node_of[reference] for reference in waiting):
                    yield late, work.error(names[late], rule=work.rule, got="no answer from the node", fix=work.late_fix)
                return
    finally:
        let_go(list(node_of))  # those that are not waited for any more, too
        for actor in hands.values():
            with suppress(Exception):  # Ray itself may be gone
                ray.kill(actor)


def let_go(refs: Sequence[Any]) -> None:
    """Say of results that nobody will wait for them any more, so that Ray does not print each of their errors."""
    for ref in refs:
        with suppress(Exception):  # Ray itself may be gone
            ref.future().add_done_callback(lambda done: done.exception())


class _NodeHand:
    """The actor of one node."""

    last = "has begun"

    def do(self, function: Callable[..., Any], arguments: tuple[Any, ...], node: str) -> Any:
        def tell(line: str) -> None:
            self.last = line.removeprefix(f"node {node}: ")

        return function(*arguments, node=node, tell=tell)

    def at(self) -> str:
        """What it said last; answers while it works."""
        return self.last


def _at_work(ray: Any, hands: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """What the first few of some nodes are at, and how many more there are."""
    asked = {node: hand.at.remote() for node, hand in list(hands.items())[:_MOST_NODES]}
    answers, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_S)
    said = []
    for node, answer in asked.items():
        line = "has not begun"
        if answer in answers:
            with suppress(ray.exceptions.RayError):  # its end is told as the result of its work
                line = ray.get(answer)[:_MOST_LETTERS]
        said.append(f"{names[node]}: {line}")
    let_go(list(asked.values()))
    more = [f"and {len(hands) - len(asked)} more"] if len(hands) > len(asked) else []
    return "; ".join([*said, *more])


def node_names() -> dict[str, str]:
    """The name of each node in messages, by Ray's id: id, host, address."""
    import ray

    return {
        entry["NodeID"]: f"{entry['NodeID'][:12]} ({entry['NodeManagerHostname']}, {entry['NodeManagerAddress']})" for entry in ray.nodes()
    }


def _result(ray: Any, reference: Any, node_id: str, node: str, work: NodeWork) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PythonEnvError):
            return error.cause
        return work.error(node, rule="it must be set up", got=repr(error.cause), fix="read the traceback in Ray's log of that node")
    except ray.exceptions.RayError as error:
        alive = any(entry["NodeID"] == node_id and entry["Alive"] for entry in ray.nodes())
        rule, got, fix = why_lost(str(error), alive=alive)
        return work.error(node, rule=rule, got=got, fix=fix)


def exit_detail(text: str) -> str | None:
    """Which end of a process Ray saw, from what it says in one line; None where it says none."""
    found = _EXIT_DETAIL.search(text)
    return found[1].rstrip(".") if found else None


def why_lost(text: str, *, alive: bool) -> tuple[str, str, str]:
    """Rule, value and fix for a node's actor that Ray gives no answer of.

    Args:
        text: What Ray says.
        alive: Whether the node is among the living.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    flat = " ".join(lines)
    if not alive or "node has died" in flat:
        return "the node must live", next(iter(lines), "no answer"), "take a node that is alive (ray status)"
    if "error raised in its creation task" in flat:
        return "the Python of Ray itself must have rl_cluster there", lines[-1], "install rl-cluster where Ray is started on that node"
    got = exit_detail(flat) or flat
    return "the process that works there must live", got, "look whether it ran out of memory (dmesg on that node), and try again"
