"""The specs: what a config may say, as attrs classes. Values are checked here, one by one; rules over several keys are in ``__attrs_post_init__``.

The classes are both the schema of the config groups (Hydra reads names, types and defaults) and the immutable specs that the
rest of the package takes. Only types that omegaconf 2.3 takes are used (no Literal, tuple, private field, union of containers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Dict, List, Optional  # noqa: UP035  (omegaconf 2.3 reads these annotations on every Python)

import attrs
from attrs import define, field, setters

STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")
CPU_BINDS = ("node", "exclusive", "socket", "none")
MEMPOLICIES = ("bind", "preferred", "interleave")
NUMA_SOURCES = ("auto", "affinity_file", "sysfs", "nvml", "nvidia_smi")
RAY_KINDS = ("auto", "local", "simulated")
MODES = ("up", "plan")

spec = define(kw_only=True, on_setattr=setters.frozen)


@spec
class ClusterSpec:
    """Logical nodes, their bundles, and how they lie on physical nodes."""

    name: str = ""  # prefix of the placement groups
    num_nodes: int = 1  # logical nodes
    gpus_per_node: int = 8  # 0 for a CPU-only cluster
    bundles_per_node: int | None = None  # default: gpus_per_node
    bundle_ct_per_node_list: list[int] | None = None  # uneven clusters; says num_nodes and bundles_per_node by itself
    use_gpus: bool = True
    accelerator: str = "GPU"  # Ray's resource name of one accelerator (GPU, NPU, TPU, ...)
    max_colocated_worker_groups: int = 1
    strategy: str = "SPREAD"
    unified: bool = False  # one placement group for all logical nodes, or one each
    cpus_per_bundle: float | None = None  # default: max_colocated_worker_groups
    label_selector: dict[str, str] = field(factory=dict)  # Ray node labels that every physical node must carry
    resources: dict[str, float] = field(factory=dict)  # extra resources per bundle
    exclude_nodes: list[str] = field(factory=list)  # node ids, addresses, or label=value
    use_head: str = "auto"  # auto | always | never: may the head node be used (auto: only where it has accelerators, for a GPU cluster)
    segment_size: int | None = None  # logical nodes per NVLink domain
    master_port_range_low: int = 1400
    master_port_range_high: int = 2000  # half-open
    timeout_s: float = 180.0

    # --- derived, one truth for every room ---
    @property
    def bundle_counts(self) -> list[int]:
        """Bundles of each logical node, in order: one entry per logical node, 0 allowed."""
        if self.bundle_ct_per_node_list is not None:
            return list(self.bundle_ct_per_node_list)
        per_node = self.gpus_per_node if self.bundles_per_node is None else self.bundles_per_node
        return [per_node] * self.num_nodes

    @property
    def world_size(self) -> int:
        """Bundles in all."""
        return sum(self.bundle_counts)

    @property
    def bundle_resources(self) -> dict[str, float]:
        """What one bundle takes, in Ray's resource names (CPU, GPU, ...); zeros are left out."""
        cpus = float(self.max_colocated_worker_groups) if self.cpus_per_bundle is None else float(self.cpus_per_bundle)
        wanted = {"CPU": cpus, **({self.accelerator: 1.0} if self.use_gpus else {}), **self.resources}
        return {name: float(amount) for name, amount in wanted.items() if amount}


@spec
class NumaSpec:
    """Which CPUs and memory each worker is bound to."""

    enabled: bool = True
    cpu_bind: str = "node"  # node | exclusive | socket | none
    membind: bool = True
    mempolicy: str = "bind"  # bind | preferred | interleave
    source: str = "auto"  # auto | affinity_file | sysfs | nvml | nvidia_smi
    affinity_file: str | None = None  # default: $NRL_GPU_CPU_AFFINITY_FILE, then /tmp/nrl_gpu_cpu_affinity
    strict: bool = False  # anything short of a verified binding is an error
    respect_inherited: bool = True  # a deliberate narrower mask of the process is kept
    migrate: bool = False  # move pages that are already there, best effort
    cpu_workers: str = "none"  # none | spread: workers without a GPU


@spec
class PythonSpec:
    """Which Python runs in the workers."""

    executable: str = "SYSTEM"  # SYSTEM | BASE | VLLM, or any command line
    project_dir: str | None = None  # the uv project of BASE and VLLM


@spec
class RaySpec:
    """Which Ray cluster is used."""

    kind: str = "auto"  # auto | local | simulated
    address: str | None = None  # host:port of a running cluster; default: $RAY_ADDRESS, then a running local one
    num_cpus: int | None = None  # of a local Ray that we start; default: this machine's
    num_gpus: int | None = None  # of a local Ray that we start; default: what Ray finds
    simulated_nodes: int | None = None  # default: as many as the spec needs
    simulated_gpus_per_node: int | None = None
    simulated_cpus_per_node: int | None = None
    log_to_driver: bool = False


@spec
class WorkerSpec:
    """The class that runs in every worker."""

    target: str | None = None  # import path of a class; default: the built-in check
    method: str | None = None  # called once on every worker; its result goes into the report
    kwargs: dict[str, Any] = field(factory=dict)  # arguments of the class
    name: str = "worker"  # prefix of the workers' names
    start_timeout_s: float = 300.0


@spec
class EnvSpec:
    """What of the driver's environment the workers see."""

    forward: list[str] = field(factory=list)  # more names (or NAME_* patterns) to forward
    set: dict[str, str] = field(factory=dict)  # values to set


@spec
class RunSpec:
    """Everything that run.py takes."""

    mode: str = "up"  # up | plan
    hold: bool = False  # keep the layout until Ctrl-C
    inventory: str | None = None  # with mode=plan: a file that describes the cluster, instead of a Ray cluster
    cluster: ClusterSpec = field(factory=ClusterSpec)
    numa: NumaSpec = field(factory=NumaSpec)
    python: PythonSpec = field(factory=PythonSpec)
    ray: RaySpec = field(factory=RaySpec)
    worker: WorkerSpec = field(factory=WorkerSpec)
    env: EnvSpec = field(factory=EnvSpec)
