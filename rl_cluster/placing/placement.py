"""From a layout to Ray placement groups and back: every bundle pinned to its planned node, everything removed on every way out.

Ray's own strategies can't give what ours mean (two 4-GPU PACK groups on nodes of 16 and 8 GPUs land on one node), so each
bundle names its node by label. If another job takes the place between planning and placing, it is planned again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Sequence

import ray
from attrs import frozen
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rl_cluster.connection.session import look_around, started_here
from rl_cluster.errors import ConfigError, PlacementTimeoutError, ResourceInsufficientError, WorkerLostError
from rl_cluster.inventory import Inventory
from rl_cluster.placing.autoscaler import Autoscaler
from rl_cluster.plan import Layout, Shortfall, close_spec, plan_layouts
from rl_cluster.planning.layout import PlacedBundle
from rl_cluster.schema import ClusterSpec

logger = logging.getLogger(__name__)

RETRIES_VARIABLE = "NRL_VIRTUAL_CLUSTER_MAX_RETRIES"
CREATE_WAIT_S = 2.0  # a pinned group is there within milliseconds, or somebody else has the place
REMOVE_WAIT_S = 10.0
SETTLE_WAIT_S = 10.0
LAG_S = 1.5  # Ray's view of free resources follows about 0.1 s behind; on a busy machine longer
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
REPORT_EVERY_S = 5.0

Progress = Callable[[str], None]


class EmptyPlacementGroup(PlacementGroup):  # type: ignore[misc]
    """The group of a logical node without bundles (Ray's own empty group fails when asked for its bundles)."""

    def __init__(self) -> None:
        super().__init__(PlacementGroup.empty().id)

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """No bundles."""
        return []

    @property
    def bundle_count(self) -> int:
        """0."""
        return 0


@frozen
class Placement:
    """Placement groups that are there, and the layout that they follow."""

    groups: tuple[PlacementGroup, ...]  # one for each logical node (an empty one for a node without bundles), or one unified
    layout: Layout


def max_attempts() -> int | None:
    """``NRL_VIRTUAL_CLUSTER_MAX_RETRIES`` as a number; None where it is not set (then only ``timeout_s`` bounds the attempts)."""
    text = os.environ.get(RETRIES_VARIABLE)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and int(text)):  # "²" is a digit, too, for Python
        raise ConfigError(f"{RETRIES_VARIABLE}: must be an integer greater than 0, got {text!r}. Fix: unset it, or give 1 or more")
    return int(text)


def place(spec: ClusterSpec, *, on_progress: Progress | None = None) -> Placement:
    """Plan on what is free now, place, and plan again while others take the place or resources are missing.

    Args:
        spec: What to place. ``timeout_s`` bounds the whole call.
        on_progress: Gets one line whenever there is something new to say, else every few seconds at most; default: a warning in the log.

    Raises:
        ResourceInsufficientError: It does not fit, and waiting is no use (the Ray is ours, so nobody adds nodes).
        PlacementTimeoutError: It did not become free in time. Nothing stays behind.
        ConfigError: ``NRL_VIRTUAL_CLUSTER_MAX_RETRIES`` is not a positive integer.
    """
    return place_all([spec], on_progress=on_progress)[0]


def place_all(specs: Sequence[ClusterSpec], *, on_progress: Progress | None = None) -> list[Placement]:
    """Place several clusters together: all of them, or none. Arguments and errors are those of :func:`place`.

    The clusters are planned in this order, each on what the former ones leave. The longest ``timeout_s`` bounds the whole call.
    """
    attempts, started = max_attempts(), time.monotonic()
    timeout_s = max(spec.timeout_s for spec in specs)
    deadline, settled, pause, tried = started + timeout_s, started + LAG_S, FIRST_PAUSE_S, 0
    say = _throttled(on_progress or logger.warning)  # who waits without a word is taken for one that hangs
    with Autoscaler() as autoscaler:
        while True:
            inventory = look_around()
            answer = plan_layouts([close_spec(spec, inventory) for spec in specs], inventory)
            tried += 1
            if not isinstance(answer, Shortfall):
                groups = _create_all(answer)
                if groups is not None:
                    return [Placement(groups=mine, layout=layout) for mine, layout in zip(groups, answer, strict=True)]
                say("the planned place was taken by another job before it could be placed; planning again")
            else:
                if not started_here():
                    left = f"waiting for resources, {max(0.0, deadline - time.monotonic()):.0f} s left"
                    say(f"{left}{' (only nodes that are not there yet would help)' * answer.never}: {answer.headline}")
                    autoscaler.ask(specs, inventory)
                elif time.monotonic() > settled or not _is_anything_held(specs, inventory):  # nobody else can add to a Ray of our own
                    raise _diagnosed(specs, answer, "")
            out_of_attempts = attempts is not None and tried >= attempts
            left_s = deadline - time.monotonic()
            if out_of_attempts or left_s <= 0:
                limit = f"{RETRIES_VARIABLE}={attempts}" if out_of_attempts else f"cluster.timeout_s={timeout_s:g}"
                raise _diagnosed(specs, answer if isinstance(answer, Shortfall) else None, limit)
            # drivers that met once must not meet for ever; the last attempt is at the deadline
            time.sleep(min(left_s, pause * random.uniform(0.7, 1.3)))
            pause = min(pause * 2, LAST_PAUSE_S if not started_here() else LAG_S / 4)


def _is_anything_held(specs: Sequence[ClusterSpec], inventory: Inventory) -> bool:
    """Whether the answer may be another one once Ray's view has caught up with what was given back just now."""
    names = {name for spec in specs for name in spec.bundle_resources}
    return any(node.free.get(name, 0.0) < node.total.get(name, 0.0) for node in inventory.nodes for name in names)


def _diagnosed(specs: Sequence[ClusterSpec], shortfall: Shortfall | None, limit: str) -> ResourceInsufficientError:
    """The error, with who holds what: looked up now, because it costs a few calls and only a failure needs it."""
    inventory = look_around(holders=True)
    answer = plan_layouts([close_spec(spec, inventory) for spec in specs], inventory)
    if isinstance(answer, Shortfall):
        shortfall = answer
    if shortfall is None:
        return PlacementTimeoutError(
            f"cluster: the planned place was taken by others again and again, gave up at {limit}. Fix: raise it, or use a quieter cluster",
            shortfall=None,
        )
    error = shortfall.to_error()
    if not limit:
        return error
    kind = PlacementTimeoutError if limit.startswith("cluster.timeout_s") else ResourceInsufficientError
    return kind(f"{error.message}\n(waited until {limit}; everything that was asked for is withdrawn)", shortfall=shortfall)


def _throttled(say: Progress) -> Progress:
    last = ("", float("-inf"))

    def throttled(text: str) -> None:
        nonlocal last
        key, now = text.partition(":")[2], time.monotonic()
        if key != last[0] or now - last[1] >= REPORT_EVERY_S:
            last = (key, now)
            say(text)

    return throttled


def _create_all(layouts: Sequence[Layout]) -> list[tuple[PlacementGroup, ...]] | None:
    """All groups of all layouts, or None with everything removed."""
    made: list[tuple[PlacementGroup, ...]] = []
    try:
        for layout in layouts:
            groups = _create(layout)
            if groups is None:
                remove([group for mine in made for group in mine])
                return None
            made.append(groups)
    except BaseException:
        remove([group for mine in made for group in mine])
        raise
    return made


def _create(layout: Layout) -> tuple[PlacementGroup, ...] | None:
    """Create the groups of a layout; None, with everything removed, if they are not there within moments."""
    spec = layout.spec
    # Ray refuses a name that any job of the cluster uses already, so two runs of one recipe must not choose the same
    prefix = f"{spec.name or 'rl_cluster'}-{uuid.uuid4().hex[:6]}"
    if spec.unified:
        batches = [(f"{prefix}-unified", list(layout.bundles))]
    else:
        batches = [
            (f"{prefix}-node{node_idx}", [bundle for bundle in layout.bundles if bundle.node_idx == node_idx])
            for node_idx in range(len(spec.bundle_counts))
        ]
    groups: list[PlacementGroup] = []
    try:
        for name, bundles in batches:
            if not bundles:
                groups.append(EmptyPlacementGroup())
                continue
            groups.append(
                placement_group(
                    [dict(spec.bundle_resources) for _ in bundles],
                    strategy="PACK",  # says nothing more: each bundle's node is pinned
                    name=name,
                    bundle_label_selector=[{"ray.io/node-id": bundle.node_id} for bundle in bundles],
                )
            )
        if _all_there([group for group in groups if not group.is_empty]):
            return tuple(groups)
    except BaseException:
        remove(groups)
        raise
    remove(groups)
    return None


def _all_there(groups: Sequence[PlacementGroup]) -> bool:
    """Whether all groups are created within moments. Ray takes them in turn, so the last one is waited for, and the others are looked up
    in one call; one wait for each costs as much again as creating them."""
    deadline = time.monotonic() + CREATE_WAIT_S

    def there(group: PlacementGroup) -> bool:
        return bool(group.wait(max(0.05, deadline - time.monotonic())))

    if not groups or not there(groups[-1]):
        return not groups
    table = placement_group_table() if len(groups) > 1 else {}
    return all(table.get(group.id.hex(), {}).get("state") == "CREATED" or there(group) for group in groups[:-1])


def check_alive(placed: Placement) -> None:
    """Ask Ray whether every node of the layout and every placement group is still there.

    Raises:
        WorkerLostError: A node is gone, or somebody has removed a group; says which logical nodes that is.
    """
    layout = placed.layout
    gone = {bundle.node_id for bundle in layout.bundles} - {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if gone:
        addresses = ", ".join(sorted(node.address for node in layout.nodes if node.node_id in gone))
        lost = [bundle for bundle in layout.bundles if bundle.node_id in gone]
        raise _lost(layout, lost, f"the node {addresses} is gone, and with it", "build the cluster again once the node is back or replaced")
    groups = {group.id.hex(): node_idx for node_idx, group in enumerate(placed.groups) if not group.is_empty}
    table = placement_group_table()
    removed = {node_idx for group, node_idx in groups.items() if table.get(group, {}).get("state", "REMOVED") == "REMOVED"}
    if removed:
        lost = [bundle for bundle in layout.bundles if layout.spec.unified or bundle.node_idx in removed]
        raise _lost(layout, lost, "somebody has removed the placement group of", "build the cluster again")


def _lost(layout: Layout, bundles: Sequence[PlacedBundle], what: str, fix: str) -> WorkerLostError:
    logical, nodes = sorted({bundle.node_idx for bundle in bundles}), {bundle.node_id for bundle in bundles}
    return WorkerLostError(
        f"cluster: {what} logical node {', '.join(map(str, logical))}. Fix: {fix}",
        ranks=(),
        node_idx=logical,
        node=sorted(node.address for node in layout.nodes if node.node_id in nodes),
    )


def _settle(groups: Sequence[PlacementGroup]) -> None:
    """Wait until Ray is not in the midst of reserving the bundles of one of these groups.

    A group that is removed between the two phases of its reservation leaves its bundles' resources taken on the node for ever, held by
    nothing that Ray can name (Ray 2.60). What is CREATED, or known to have no place now, is removed cleanly.
    """
    deadline = time.monotonic() + SETTLE_WAIT_S
    for group in groups:
        while time.monotonic() < deadline:
            table = placement_group_table(group)
            reserving = table.get("stats", {}).get("scheduling_state") in ("QUEUED", "SCHEDULING_STARTED")
            if table.get("state") != "PREPARED" and not (table.get("state") in ("PENDING", "RESCHEDULING") and reserving):
                break
            time.sleep(0.005)


def remove(groups: Sequence[PlacementGroup]) -> None:
    """Remove placement groups (and so end every actor in them) and wait until Ray says so. Idempotent; quiet after ``ray.shutdown()``."""
    if not ray.is_initialized():
        return  # groups are never detached: they went with the driver's connection
    _settle([group for group in groups if not group.is_empty])
    asked = []
    for group in groups:
        if not group.is_empty:
            with contextlib.suppress(Exception):  # one that is gone already must not keep the others from being removed
                remove_placement_group(group)
                asked.append(group)
    deadline = time.monotonic() + REMOVE_WAIT_S
    for group in asked:
        while placement_group_table(group).get("state") not in (None, "REMOVED"):
            if time.monotonic() > deadline:
                logger.error("Ray did not remove placement group %s within %g s", group.id.hex(), REMOVE_WAIT_S)
                return
            time.sleep(0.01)
