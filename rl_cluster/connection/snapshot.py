"""The Ray cluster that this process is connected to, at one moment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_cluster.errors import ClusterUnreachableError
from rl_cluster.inventory import HEAD_RESOURCE, Holder, Inventory, PhysicalNode, named_as_in_file
from rl_cluster.planning.topology import node_key

# Names that Ray makes up for the bundles of placement groups: CPU_group_<group>, GPU_group_0_<group>, bundle_group_<group>.
_GROUP_RESOURCE = re.compile(r"_group_(\d+_)?[0-9a-f]{30,}$")


def snapshot_inventory(*, holders: bool = False, can_grow: bool = False, simulated: bool = False, source: str = "") -> Inventory:
    """Looks at the Ray cluster that this process is connected to.

    What is free lags about 0.1 s behind what was given back or taken (raylets report to the GCS at that pace): who finds no room
    looks again before it says so.

    Args:
        holders: Also ask who holds what (placement groups and actors); only a diagnosis needs it, and it costs two more calls.
        can_grow: Whether others may add nodes or free resources; goes into the inventory as it is.
        simulated: Whether the nodes are made up; goes into the inventory as it is.
        source: How a person calls this cluster; default: ``ray at <address of the GCS>``.

    Returns:
        All nodes that Ray knows, dead ones included, in topology order; simulated ones that play machines of a file, by their names there.

    Raises:
        ClusterUnreachableError: This process is not connected to a Ray cluster.
    """
    import ray

    if not ray.is_initialized():
        raise ClusterUnreachableError(
            "snapshot_inventory: must be connected to a Ray cluster. Fix: call ray.init(address=...) first", address=None
        )
    # No public call tells what is free per node, or which nodes are draining (ray.nodes() knows neither; the state API needs a dashboard).
    from ray._private import state as ray_state

    free = ray_state.available_resources_per_node()
    draining = set(ray_state.state.get_draining_nodes())
    held = _snapshot_holders() if holders else {}
    nodes = []
    for entry in ray.nodes():
        node_id = entry["NodeID"]
        alive = entry["Alive"]
        total = _plain(entry["Resources"])
        left = _plain(free.get(node_id, {})) if alive else {}
        named = held.get(node_id, ())
        node = PhysicalNode(
            node_id=node_id,
            address=entry["NodeManagerAddress"],
            hostname=entry["NodeManagerHostname"],
            total=total,
            free=left,
            labels=dict(entry.get("Labels") or {}),
            is_head=HEAD_RESOURCE in total,
            state="dead" if not alive else "draining" if node_id in draining else "alive",
            holders=(*named, *_unnamed(total, left, named)) if holders and alive else (),
        )
        nodes.append(named_as_in_file(node))
    if not source:
        source = f"ray at {ray.get_runtime_context().gcs_address}"
    return Inventory(nodes=tuple(sorted(nodes, key=node_key)), source=source, simulated=simulated, can_grow=can_grow)


def _plain(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: float(amount) for name, amount in resources.items() if not _GROUP_RESOURCE.search(name)}


def _snapshot_holders() -> dict[str, tuple[Holder, ...]]:
    """Per node id: the placement groups with bundles there, and the living actors outside placement groups."""
    from ray._private import state as ray_state
    from ray.core.generated import gcs_pb2 as generated

    # The public placement_group_table() leaves the job out, and the public actor table leaves the resources out: read the records.
    gcs_pb2: Any = generated  # protobuf makes its classes at run time
    accessor = ray_state.state._connect_and_get_accessor()
    held: dict[str, list[Holder]] = {}
    for raw in accessor.get_placement_group_table():
        group = gcs_pb2.PlacementGroupTableData.FromString(raw)
        if group.state == gcs_pb2.PlacementGroupTableData.REMOVED:
            continue
        sums: dict[str, dict[str, float]] = {}
        for bundle in group.bundles:
            if bundle.node_id:
                amounts = sums.setdefault(bundle.node_id.hex(), {})
                for name, amount in bundle.unit_resources.items():
                    amounts[name] = amounts.get(name, 0.0) + amount
        for node_id, amounts in sums.items():
            holder = Holder("placement_group", group.name, group.placement_group_id.hex(), group.creator_job_id.hex(), amounts)
            held.setdefault(node_id, []).append(holder)
    for raw in accessor.get_actor_table(None, "ALIVE"):
        actor = gcs_pb2.ActorTableData.FromString(raw)
        if actor.required_resources and not actor.placement_group_id.strip(b"\xff"):
            name = actor.name or actor.class_name
            holder = Holder("actor", name, actor.actor_id.hex(), actor.job_id.hex(), dict(actor.required_resources))
            held.setdefault(actor.address.node_id.hex(), []).append(holder)
    return {node_id: tuple(sorted(some, key=lambda holder: (holder.kind, holder.name, holder.id))) for node_id, some in held.items()}


def _unnamed(total: Mapping[str, float], free: Mapping[str, float], named: Sequence[Holder]) -> tuple[Holder, ...]:
    """What is taken and held by no placement group and no actor: tasks, or something that ended a moment ago."""
    rest = {}
    for name, amount in total.items():
        if name.startswith("node:") or name in ("memory", "object_store_memory"):
            continue
        taken = amount - free.get(name, 0.0) - sum(holder.resources.get(name, 0.0) for holder in named)
        if taken > 1e-3:
            rest[name] = round(taken, 4)
    return (Holder("unknown", "", "", "", rest),) if rest else ()
