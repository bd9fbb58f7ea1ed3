"""Plain records of running workers, shared by the worker groups (who fill them) and the views (who only read them)."""

from __future__ import annotations

from attrs import frozen

from rl_cluster.numa.report import BindingReport


@frozen
class WorkerRecord:
    """One worker as it came up: measured in its own process, not derived."""

    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int  # dense; a "node" of the rank variables is the part of one logical node on one machine
    node_idx: int  # logical node, an index of ClusterSpec.bundle_counts
    bundle_idx: int  # within the logical node
    node_id: str  # physical node
    address: str
    hostname: str
    gpu_ids: tuple[str, ...]  # as Ray assigned them, in numeric order
    pid: int
    python: str  # sys.executable
    name: str
    binding: BindingReport | None = None
