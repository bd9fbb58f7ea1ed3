"""The dictionary of cell texts behind ``RayVirtualCluster``'s visualization methods, and its printing.

Keys and cell texts are those that NeMo-RL's callers know: a row per logical node that has bundles, ``N.G`` names the GPU G of node N,
``W 3`` the worker 3 of the one group shown, ``G1:W3`` the worker 3 of group 1 in the view of all groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_cluster.planning.naming import count_of
from rl_cluster.views.picture import WorkerGroupLike, cell_of

SINGLE_CELL_WIDTH = 7
GLOBAL_CELL_WIDTH = 12


def create_visualization_grid(bundle_counts: Sequence[int], worker_groups: Any = None, is_global_view: bool = False) -> dict[str, Any]:
    """Collects what ``print_visualization`` prints.

    Args:
        bundle_counts: Bundles of each logical node, in order; 0 allowed.
        worker_groups: One worker group, a list or tuple of them, or None. A group is anything with ``name_prefix``, ``world_size``
            and ``worker_metadata``.
        is_global_view: Whether all groups are shown (cells name the group) or one.

    Returns:
        ``{"empty": True}`` where there is no bundle; else ``active_nodes``, ``empty_nodes`` (their indices), ``total_gpus``,
        ``worker_groups``, ``max_gpus_per_node``, ``cell_width`` (columns), ``h_divider``, ``is_global_view`` and ``rows``: per node
        with bundles ``node_idx``, ``bundle_count``, ``gpu_cells`` and ``worker_cells`` (a list per group), padded to ``max_gpus_per_node``.
    """
    groups: list[WorkerGroupLike] = (
        [] if worker_groups is None else list(worker_groups) if isinstance(worker_groups, (list, tuple)) else [worker_groups]
    )
    columns = max(bundle_counts, default=0)
    if not columns:
        return {"empty": True}
    rows: list[dict[str, Any]] = []
    places = _places(groups)
    cell_width = GLOBAL_CELL_WIDTH if is_global_view else SINGLE_CELL_WIDTH
    for node_idx, count in enumerate(bundle_counts):
        if not count:
            continue
        by_gpu = [_texts(places, (node_idx, gpu_idx), cell_width, is_global_view) for gpu_idx in range(count)]
        padding = [""] * (columns - count)
        rows.append(
            {
                "node_idx": node_idx,
                "bundle_count": count,
                "gpu_cells": [f" {node_idx}.{gpu_idx} " for gpu_idx in range(count)] + padding,
                "worker_cells": [[cells[index] for cells in by_gpu] + padding for index in range(len(groups))],
            }
        )
    # Ids of four digits, or several workers in a cell, need more than the usual width.
    for row in rows:
        for line in (row["gpu_cells"], *row["worker_cells"]):
            cell_width = max(cell_width, *(len(cell) for cell in line))
    for row in rows:
        row["gpu_cells"] = [cell.ljust(cell_width) for cell in row["gpu_cells"]]
        row["worker_cells"] = [[cell.ljust(cell_width) for cell in line] for line in row["worker_cells"]]
    return {
        "active_nodes": len(rows),
        "empty_nodes": [node_idx for node_idx, count in enumerate(bundle_counts) if not count],
        "total_gpus": sum(bundle_counts),
        "worker_groups": groups,
        "max_gpus_per_node": columns,
        "cell_width": cell_width,
        "h_divider": "+" + "+".join(["-" * cell_width] * columns) + "+",
        "is_global_view": is_global_view,
        "rows": rows,
    }


def get_worker_cells(
    node_idx: int, gpu_idx: int, worker_groups: Sequence[WorkerGroupLike], cell_width: int, is_global_view: bool
) -> list[str]:
    """The texts of one GPU's cell, one per worker group; blanks where a group has no worker there.

    Args:
        node_idx: Logical node.
        gpu_idx: Bundle within the logical node.
        worker_groups: The groups, in the order of the returned texts.
        cell_width: Least columns of a text.
        is_global_view: Whether the texts name the group.
    """
    return _texts(_places(worker_groups), (node_idx, gpu_idx), cell_width, is_global_view)


_Places = list[dict[tuple[int, int], list[str]]]  # per group: the workers of each (logical node, bundle)


def _places(worker_groups: Sequence[WorkerGroupLike]) -> _Places:
    places: _Places = [{} for _ in worker_groups]
    for place, group in zip(places, worker_groups, strict=True):
        for worker, metadata in enumerate(group.worker_metadata):
            place.setdefault((metadata["node_idx"], cell_of(metadata)), []).append(str(worker))
    return places


def _texts(places: _Places, where: tuple[int, int], cell_width: int, is_global_view: bool) -> list[str]:
    texts = []
    for index, place in enumerate(places):
        prefix = f" G{index}:W" if is_global_view else " W "
        texts.append((f"{prefix}{','.join(place[where])} " if where in place else "").ljust(cell_width))
    return texts


def print_visualization(grid_data: dict[str, Any]) -> None:
    """Prints the grid of ``create_visualization_grid`` with a heading and the legend."""
    if grid_data.get("empty"):
        print("\nRay cluster: no bundles")
        return
    groups: Sequence[WorkerGroupLike] = grid_data["worker_groups"]
    about = ""
    if groups and grid_data["is_global_view"]:
        about = f", {count_of(len(groups), 'worker group')}"
    elif groups:
        about = f", worker group {_name(groups[0])} ({count_of(groups[0].world_size, 'worker')})"
    view = "Ray cluster, all worker groups" if grid_data["is_global_view"] else "Ray cluster"
    print(f"\n{view}: {count_of(grid_data['active_nodes'], 'node')}, {count_of(grid_data['total_gpus'], 'bundle')}{about}")
    print(grid_data["h_divider"])
    for row in grid_data["rows"]:
        for cells in (row["gpu_cells"], *row["worker_cells"]):
            print("|" + "|".join(cell.ljust(grid_data["cell_width"]) for cell in cells) + "|")
        print(grid_data["h_divider"])
    print_legend(grid_data)


def print_legend(grid_data: dict[str, Any]) -> None:
    """Prints what the texts in the cells mean."""
    groups: Sequence[WorkerGroupLike] = grid_data.get("worker_groups", [])
    if grid_data.get("is_global_view"):
        for index, group in enumerate(groups):
            print(f"G{index}: {_name(group)} ({count_of(group.world_size, 'worker')})")
        if groups:
            print("W#: worker within its group")
    elif groups:
        print(f"W #: worker of {_name(groups[0])}")
    print("#.#: node.GPU")
    if grid_data.get("empty_nodes"):
        print(f"without bundles: node {', '.join(map(str, grid_data['empty_nodes']))}")


def _name(group: WorkerGroupLike) -> str:
    return getattr(group, "name_prefix", "") or "unnamed"
