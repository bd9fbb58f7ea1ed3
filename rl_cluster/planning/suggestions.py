"""The nearest things that would fit. What is said to fit now was planned with the very words that are printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.inventory import Inventory
from rl_cluster.planning.holders import endings, nothing_held
from rl_cluster.planning.naming import number
from rl_cluster.planning.problem import Problem, state_problem
from rl_cluster.schema import STRATEGIES, ClusterSpec

QUICK_STEPS = 5_000  # of each what-if question: there are dozens of them
MAX_ENDINGS_TRIED = 8
MAX_SEGMENTS_TRIED = 8
MAX_ENTRIES = 64  # of a list that somebody is asked to paste

Changes = Mapping[str, Any]

# What no longer keeps nodes out, by the kind of their reason (see `rl_cluster.planning.selectors.unusable_reasons`).
LIFTED: Mapping[str, Changes] = {
    "label": {"label_selector": {}},
    "excluded": {"exclude_nodes": []},
    "head": {"use_head": "always"},
    "domain": {"segment_size": None},
}
_LIFT = {
    "label": ("other nodes", "relax cluster.label_selector"),
    "excluded": ("the nodes left out", "shorten cluster.exclude_nodes"),
    "head": ("the head node", "cluster.use_head=always"),
    "domain": ("nodes without an NVLink domain", "unset cluster.segment_size"),
}
_SAME_NODES = frozenset({"strategy", "num_nodes", "gpus_per_node", "bundles_per_node", "bundle_ct_per_node_list"})
_OF_RAY = ("CPU", "memory", "object_store_memory")


def fits(problem: Problem, capacities: Sequence[int]) -> bool:
    """Whether a layout is found quickly."""
    return problem.solve(capacities, max_steps=QUICK_STEPS).places is not None


def lift(problem: Problem, inventory: Inventory, kind: str) -> Problem | None:
    """The problem without one kind of reason to leave nodes out; None where no node is left out for it."""
    if all(reason is None or reason[0] != kind for reason in problem.unusable):
        return None
    spec = problem.spec
    if kind == "draining":
        nodes = tuple(evolve(node, state="alive") if node.state == kind else node for node in inventory.nodes)
        inventory = evolve(inventory, nodes=nodes)
    else:
        spec = evolve(spec, **LIFTED[kind])
    try:
        return state_problem(spec, inventory)
    except ConfigError:
        return None


@frozen
class Question:
    """What is asked of a cluster that does not fit."""

    problem: Problem  # on what the clusters before it left
    left: Inventory  # the same, not yet in numbers
    inventory: Inventory  # as it is now
    plans: Callable[[ClusterSpec, Inventory], bool] | None = None  # do all clusters plan with this one? None: there is but one

    def with_changes(self, changes: Changes) -> bool:
        """Whether it fits now with these keys, and the clusters planned after it too."""
        try:
            spec = evolve(self.problem.spec, **changes)
            if changes.keys() <= _SAME_NODES:
                problem = evolve(self.problem, spec=spec, sizes=tuple(spec.bundle_counts))
            else:
                problem = state_problem(spec, self.left)
        except ConfigError:
            return False
        return fits(problem, problem.free) and (self.plans is None or self.plans(spec, self.inventory))

    def on(self, spec: ClusterSpec, inventory: Inventory) -> bool:
        """Whether it fits on other nodes."""
        if self.plans is not None:
            return self.plans(spec, inventory)
        problem = state_problem(spec, inventory)
        return fits(problem, problem.free)


def waits(question: Question) -> Iterator[str]:
    """Whose end would be enough, of what Ray knows."""
    spec = question.problem.spec
    tried = endings(question.inventory, spec.bundle_resources, most=MAX_ENDINGS_TRIED)
    enough = list(dict.fromkeys(name for name, freed in tried if question.on(spec, freed)))
    yield from (f"wait: it fits when {name}" for name in enough[:3])
    if not enough:
        yield "wait: it fits when enough of what is held is given back"


def fits_now(question: Question, culprits: Sequence[str]) -> Iterator[str]:
    """Words that, pasted behind the same command, make it fit."""
    spec, sizes = question.problem.spec, question.problem.sizes
    for strategy in STRATEGIES:
        if strategy != spec.strategy:
            yield from _if_it_fits(question, {"strategy": strategy})
    if spec.segment_size is not None and "domain" not in culprits:  # see lifts
        nearest = (*range(spec.segment_size - 1, max(0, spec.segment_size - MAX_SEGMENTS_TRIED), -1), 1)
        shorter = next((size for size in nearest if question.with_changes({"segment_size": size})), None)
        yield from _if_it_fits(question, {"segment_size": shorter})
    most = _largest(len(sizes) - 1, lambda count: question.with_changes(_fewer(spec, sizes[:count])))
    if spec.segment_size is not None and most > spec.segment_size:
        most -= most % spec.segment_size
    if most:
        yield from _if_it_fits(question, _fewer(spec, sizes[:most]))
    if len(set(sizes)) == 1:
        bundles = _largest(sizes[0] - 1, lambda count: question.with_changes(_smaller(spec, count)))
        if bundles:
            yield from _if_it_fits(question, _smaller(spec, bundles))
    if list(culprits) == ["CPU"]:
        size = max(sizes)
        shares = {int(node.free.get("CPU", 0.0) / size * 10) / 10 for node in question.left.nodes}
        smaller = sorted((share for share in shares if 0 < share < spec.bundle_resources["CPU"]), reverse=True)[:10]
        yield from [text for share in smaller for text in _if_it_fits(question, {"cpus_per_bundle": share})][:1]


def _fewer(spec: ClusterSpec, sizes: Sequence[int]) -> Changes:
    if spec.bundle_ct_per_node_list is None:
        return {"num_nodes": len(sizes)}
    return {"num_nodes": len(sizes), "bundle_ct_per_node_list": list(sizes)}  # both: num_nodes may have been written beside the list


def _smaller(spec: ClusterSpec, bundles: int) -> Changes:
    if spec.bundle_ct_per_node_list is not None:
        also = {} if spec.bundles_per_node is None else {"bundles_per_node": bundles}
        return {**also, "bundle_ct_per_node_list": [bundles] * len(spec.bundle_counts)}
    return {"gpus_per_node" if spec.use_gpus and spec.bundles_per_node is None else "bundles_per_node": bundles}


def _if_it_fits(question: Question, changes: Changes) -> Iterator[str]:
    words = [f"cluster.{key}={_value(value)}" for key, value in changes.items()]
    if all(not isinstance(value, list) or len(value) <= MAX_ENTRIES for value in changes.values()) and question.with_changes(changes):
        yield f"{' '.join(words)} fits now"


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return number(value) if isinstance(value, float) else "null" if value is None else str(value)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count from 1 to `most` that fits, where every smaller one fits too; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def lifts(question: Question, culprits: Sequence[str]) -> Iterator[str]:
    """The rule that keeps nodes out, where it alone stands in the way; or it and what is held."""
    for kind in culprits:
        if kind in LIFTED:
            changes, (who, what) = LIFTED[kind], _LIFT[kind]
            if question.with_changes(changes):
                yield f"{who} {'has' if kind == 'head' else 'have'} room: {what}"
            elif question.on(evolve(question.problem.spec, **changes), nothing_held(question.inventory)):
                yield f"{who} would have room if nothing were held: {what}"


def misspelt(problem: Problem, question: Question | None) -> Iterator[str]:
    """Resources that no node has, where one of nearly that name is there: Ray's names are GPU, not gpu."""
    living = [node for node in problem.nodes if node.state == "alive"]
    there = {name for node in living for name, amount in node.total.items() if amount and ":" not in name}
    asked = problem.spec.bundle_resources
    for name in asked:
        near = rules.near_word(name, there.difference(asked, _OF_RAY)) if name not in {*there, *_OF_RAY} else None
        if near is None:
            continue
        is_accelerator = name == problem.spec.accelerator
        if is_accelerator and question is not None and question.with_changes({"accelerator": near}):
            yield f"cluster.accelerator={near} fits now"
        else:
            yield f"no node has a resource {name}: write {near} in cluster.{'accelerator' if is_accelerator else 'resources'}"
