"""The specs: what a config may say, as attrs classes. A field's own rules stand beside it, rules over several keys in ``_across``.

The classes are both the schema of the config groups (Hydra reads names, types and defaults) and the immutable specs that the
rest of the package takes. Only types that omegaconf 2.3 takes are used (no Literal, tuple, private field, union of containers).
Frozen attrs classes can't be extended by YAML, frozen ``on_setattr`` can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from attrs import define, field, setters

from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.ground.label_rules import LABEL_KEY, LABEL_VALUE
from rl_cluster.ground.process_rules import NO_RANKS, RANK_VARIABLES, forwards_no_rank, is_executable, is_nsight, names_one
from rl_cluster.ground.rules import (
    AtLeast,
    AtMost,
    AtMostItems,
    Between,
    EachItem,
    EachKey,
    EachValue,
    Matches,
    MatchesNot,
    MoreThan,
    NotIn,
    OneOf,
    RuleBroken,
    is_finite,
    keeps,
)

STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")
CPU_BINDS = ("node", "exclusive", "socket", "none")
MEMPOLICIES = ("bind", "preferred", "interleave")
NUMA_SOURCES = ("auto", "affinity_file", "sysfs", "nvml", "nvidia_smi")
CPU_WORKERS = ("none", "spread")
USE_HEAD = ("auto", "always", "never")
RAY_KINDS = ("auto", "local", "simulated")
MODES = ("up", "plan", "prefetch")

MAX_COUNT = 100_000  # of nodes, of accelerators of one, ...: ten times the largest cluster that is planned for
MAX_WORLD_SIZE = 1_000_000
MAX_SECONDS = 10_000_000  # 115 days; waits of Python and of Ray overflow somewhere above
MAX_AMOUNT = 10**12  # of a resource: Ray counts in steps of 1e-4 in 64 bits
MIN_AMOUNT = 1e-4  # of a resource, of one worker: Ray counts in this unit

_COUNT = AtMost(MAX_COUNT)
_COUNTS = (AtMostItems(MAX_COUNT), EachItem(AtLeast(0)), EachItem(_COUNT))
_SECONDS = (MoreThan(0), AtMost(MAX_SECONDS))
_NOT_EMPTY = Matches(r"(?s).*\S.*", "a text that is not empty")
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_NOT_OURS = MatchesNot(r"__(?!call__)\w*__|_rl_cluster_\w*", "which is called at its own time", "write the name of a method of your own")


class _Spec:
    """Checks itself when it is made, wherever that is: every spec that exists is a valid one."""

    __slots__ = ()

    def __attrs_post_init__(self) -> None:
        kind: Any = type(self)
        problems = []
        for name in rules.field_types(kind):
            try:
                object.__setattr__(self, name, rules.check_field(kind, name, getattr(self, name)))
            except RuleBroken as broken:
                problems.append(broken.line(name))
        if not problems:
            problems = [broken.line(name) for name, broken in self._across()]
        if problems:
            raise ConfigError(problems=problems)

    def _across(self) -> Iterator[tuple[str, RuleBroken]]:
        """Broken rules over several keys, each with the key to name; also fills in what follows from other keys."""
        return iter(())


@define(kw_only=True, on_setattr=setters.frozen)
class ClusterSpec(_Spec):
    """Logical nodes, their bundles, and how they lie on physical nodes.

    After construction ``num_nodes`` is an int and agrees with ``bundle_ct_per_node_list``, and ``use_gpus`` is False when
    ``gpus_per_node`` is 0.
    """

    name: str = ""  # prefix of the placement groups
    num_nodes: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))  # logical nodes; default: the list's length, else 1
    gpus_per_node: int = field(default=8, metadata=keeps(AtLeast(0), _COUNT))  # of a logical node; 0 for a CPU-only cluster
    bundles_per_node: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))  # default: gpus_per_node
    bundle_ct_per_node_list: list[int] | None = field(  # uneven clusters; says num_nodes and bundles_per_node by itself
        default=None, metadata=keeps(*_COUNTS)
    )
    use_gpus: bool = True
    accelerator: str = field(  # Ray's resource name of one accelerator (GPU, NPU, TPU, ...)
        default="GPU",
        metadata=keeps(_NOT_EMPTY, NotIn(("CPU", "memory", "object_store_memory"), "which is no accelerator", "write GPU")),
    )
    max_colocated_worker_groups: int = field(default=1, metadata=keeps(AtLeast(1), _COUNT))
    strategy: str = field(default="SPREAD", metadata=keeps(OneOf(STRATEGIES)))
    unified: bool = False  # one placement group for all logical nodes, or one each
    cpus_per_bundle: float | None = field(  # default: max_colocated_worker_groups
        default=None, metadata=keeps(AtLeast(0), is_finite, AtMost(MAX_AMOUNT))
    )
    label_selector: dict[str, str] = field(  # Ray node labels that every physical node must carry
        factory=dict, metadata=keeps(EachKey(LABEL_KEY), EachValue(LABEL_VALUE))
    )
    resources: dict[str, float] = field(  # extra resources per bundle
        factory=dict,
        metadata=keeps(
            EachKey(_NOT_EMPTY),
            EachKey(NotIn(("CPU", "GPU"), "which has a key of its own", "use cpus_per_bundle and use_gpus")),
            EachKey(NotIn(("object_store_memory",), "which no bundle can hold", "leave it out")),
            EachValue(MoreThan(0)),
            EachValue(is_finite),
            EachValue(AtMost(MAX_AMOUNT)),
        ),
    )
    exclude_nodes: list[str] = field(factory=list, metadata=keeps(EachItem(_NOT_EMPTY)))  # node ids, addresses, or label=value
    use_head: str = field(  # may the head node be used (auto: only where it has accelerators, for a GPU cluster)
        default="auto", metadata=keeps(OneOf(USE_HEAD))
    )
    segment_size: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))  # logical nodes per NVLink domain
    master_port_range_low: int = field(default=1400, metadata=keeps(Between(1, 65535)))
    master_port_range_high: int = field(default=2000, metadata=keeps(Between(1, 65535)))  # half-open
    timeout_s: float = field(default=180.0, metadata=keeps(*_SECONDS))  # seconds to wait for the resources

    # --- derived, one truth for every room ---
    @property
    def bundles_open(self) -> bool:
        """True while the number of bundles waits for a machine: one CPU-only logical node without ``bundles_per_node``."""
        return self.bundle_ct_per_node_list is None and self.bundles_per_node is None and self.gpus_per_node == 0

    @property
    def bundle_counts(self) -> list[int]:
        """Bundles of each logical node, in order: one entry per logical node, 0 allowed.

        Raises:
            ConfigError: ``bundles_open``; ``resolve_local`` closes it.
        """
        if self.bundle_ct_per_node_list is not None:
            return list(self.bundle_ct_per_node_list)
        if self.bundles_open:
            raise ConfigError(_no_bundles().line("bundles_per_node"))
        per_node = self.gpus_per_node if self.bundles_per_node is None else self.bundles_per_node
        return [per_node] * (self.num_nodes or 1)

    @property
    def node_count(self) -> int:
        """Logical nodes that have bundles."""
        return sum(1 for count in self.bundle_counts if count)

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

    def _across(self) -> Iterator[tuple[str, RuleBroken]]:
        if self.gpus_per_node == 0:
            object.__setattr__(self, "use_gpus", False)
        counts = self.bundle_ct_per_node_list
        if counts is not None:
            yield from self._across_list(counts)
        elif self.use_gpus and (self.bundles_per_node or 0) > self.gpus_per_node:
            broken = RuleBroken(
                "must be at most gpus_per_node when bundles use GPUs",
                self.bundles_per_node,
                note=f"with gpus_per_node {self.gpus_per_node}",
                fix=f"set gpus_per_node to {self.bundles_per_node}, or use_gpus to false",
            )
            yield "bundles_per_node", broken
        if self.num_nodes is None:
            object.__setattr__(self, "num_nodes", 1 if counts is None else len(counts))
        if self.bundles_open and self.num_nodes != 1:
            yield "bundles_per_node", _no_bundles()
        if self.master_port_range_low >= self.master_port_range_high:
            broken = RuleBroken(
                "must be more than master_port_range_low",
                self.master_port_range_high,
                note=f"with master_port_range_low {self.master_port_range_low}",
                fix="swap the two, or leave both out",
            )
            yield "master_port_range_high", broken
        if self.accelerator in self.resources:
            yield "resources", RuleBroken("must not name the accelerator", self.resources, fix="leave it out: each bundle gets one")
        if not self.bundles_open and self.world_size > MAX_WORLD_SIZE:
            where = "num_nodes" if counts is None else "bundle_ct_per_node_list"
            yield where, RuleBroken(f"must make at most {MAX_WORLD_SIZE} bundles in all", self.world_size)
        groups = self.max_colocated_worker_groups
        for name, amount in self.bundle_resources.items():
            if amount < groups * MIN_AMOUNT:
                key = {"CPU": "cpus_per_bundle", self.accelerator: "max_colocated_worker_groups"}.get(name, f"resources.{name}")
                rule = f"must leave each worker {MIN_AMOUNT:g} {name} at least, the least that Ray counts"
                yield key, RuleBroken(rule, groups if name == self.accelerator else amount)
        if not self.bundle_resources:
            yield "cpus_per_bundle", RuleBroken("must be more than 0 for bundles without a GPU", self.cpus_per_bundle, fix="leave it out")

    def _across_list(self, counts: list[int]) -> Iterator[tuple[str, RuleBroken]]:
        if not sum(counts):
            yield "bundle_ct_per_node_list", RuleBroken("must have a bundle at least", counts, fix="write one entry per node, e.g. [8, 4]")
        elif self.num_nodes is not None and self.num_nodes != len(counts):
            broken = RuleBroken(
                "must have one entry per logical node",
                counts,
                note=f"({len(counts)} entries) with num_nodes {self.num_nodes}",
                fix="leave num_nodes out (null): the list says it",
            )
            yield "bundle_ct_per_node_list", broken
        if self.bundles_per_node is not None and any(count != self.bundles_per_node for count in counts):
            broken = RuleBroken(
                "must agree with bundles_per_node",
                counts,
                note=f"with bundles_per_node {self.bundles_per_node}",
                fix="leave bundles_per_node out (null): the list says it",
            )
            yield "bundle_ct_per_node_list", broken


def _no_bundles() -> RuleBroken:
    return RuleBroken("must be given for a CPU-only cluster (gpus_per_node 0)", None, fix="set bundles_per_node to the bundles of one node")


def resolve_local(spec: ClusterSpec, cpus: float) -> ClusterSpec:
    """Close an open spec with as many bundles as the ``cpus`` allow that a machine offers to Ray, at least 1; any other stays as it is."""
    if not spec.bundles_open:
        return spec
    return attrs.evolve(spec, bundles_per_node=max(1, int(cpus // spec.bundle_resources.get("CPU", 1.0))))


@define(kw_only=True, on_setattr=setters.frozen)
class NumaSpec(_Spec):
    """Which CPUs and memory each worker is bound to."""

    enabled: bool = True
    cpu_bind: str = field(default="node", metadata=keeps(OneOf(CPU_BINDS)))
    membind: bool = True
    mempolicy: str = field(default="bind", metadata=keeps(OneOf(MEMPOLICIES)))
    source: str = field(default="auto", metadata=keeps(OneOf(NUMA_SOURCES)))
    affinity_file: str | None = field(  # default: $NRL_GPU_CPU_AFFINITY_FILE, then /tmp/nrl_gpu_cpu_affinity
        default=None, metadata=keeps(_NOT_EMPTY)
    )
    strict: bool = False  # anything short of a verified binding is an error
    respect_inherited: bool = True  # a deliberate narrower mask of the process is kept
    migrate: bool = False  # move pages that are already there, best effort
    cpu_workers: str = field(default="none", metadata=keeps(OneOf(CPU_WORKERS)))  # workers without a GPU


@define(kw_only=True, on_setattr=setters.frozen)
class PythonSpec(_Spec):
    """Which Python runs in the workers."""

    executable: str = field(default="SYSTEM", metadata=keeps(_NOT_EMPTY, is_executable))  # SYSTEM | BASE | VLLM, or any command line
    project_dir: str | None = field(default=None, metadata=keeps(_NOT_EMPTY))  # the uv project of BASE and VLLM
    venv_dir: str | None = field(  # where environments are built; default: $NEMO_RL_VENV_DIR, then a cache folder of the user
        default=None, metadata=keeps(_NOT_EMPTY)
    )
    build_timeout_s: float = field(  # seconds to build one environment, waiting for others included
        default=1800.0, metadata=keeps(*_SECONDS)
    )
    prefetch: bool = False  # build the environment and nothing else: mode=prefetch


@define(kw_only=True, on_setattr=setters.frozen)
class RaySpec(_Spec):
    """Which Ray cluster is used."""

    kind: str = field(default="auto", metadata=keeps(OneOf(RAY_KINDS)))
    address: str | None = field(  # host:port of a running cluster; default: $RAY_ADDRESS, then a running local one
        default=None, metadata=keeps(_NOT_EMPTY)
    )
    num_cpus: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))  # of a local Ray that we start; default: this machine's
    num_gpus: int | None = field(default=None, metadata=keeps(AtLeast(0), _COUNT))  # of a local Ray that we start; default: what Ray finds
    simulated_nodes: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))  # default: as many as the spec needs
    simulated_gpus_per_node: int | None = field(default=None, metadata=keeps(AtLeast(0), _COUNT))
    simulated_cpus_per_node: int | None = field(default=None, metadata=keeps(AtLeast(1), _COUNT))
    log_to_driver: bool = False

    def _across(self) -> Iterator[tuple[str, RuleBroken]]:
        if self.address is not None and self.kind != "auto":
            fix = "leave address out, or write kind auto (ray=auto) to use that cluster"
            yield "address", RuleBroken(f"must be left out with kind {self.kind}, which starts a Ray of its own", self.address, fix=fix)


@define(kw_only=True, on_setattr=setters.frozen)
class WorkerSpec(_Spec):
    """The class that runs in every worker."""

    target: str | None = field(  # import path of a class; default: the built-in check
        default=None,
        metadata=keeps(Matches(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})+", "an import path of a class", "write package.module.Class")),
    )
    method: str | None = field(  # called once on every worker; its result goes into the report
        default=None, metadata=keeps(Matches(_IDENTIFIER, "the name of a method"), _NOT_OURS)
    )
    kwargs: dict[str, Any] = field(
        factory=dict,
        metadata=keeps(
            EachKey(Matches(_IDENTIFIER, "the name of an argument")),
            EachKey(NotIn(("self",), "which Python itself passes", "leave it out")),
        ),
    )
    name: str = field(default="worker", metadata=keeps(_NOT_EMPTY))  # prefix of the workers' names
    start_timeout_s: float = field(default=300.0, metadata=keeps(*_SECONDS))  # seconds
    nsight: Any = field(default=None, metadata=keeps(is_nsight))  # default, or options of nsys profile, which then runs the workers
    nsight_workers: list[str] = field(  # patterns of the workers' names, <name>-<logical node>-<bundle>: which are profiled
        factory=lambda: ["*"], metadata=keeps(names_one, EachItem(_NOT_EMPTY))
    )


@define(kw_only=True, on_setattr=setters.frozen)
class EnvSpec(_Spec):
    """What of the driver's environment the workers see."""

    forward: list[str] = field(  # more names (or NAME_* patterns) to forward
        factory=list,
        metadata=keeps(
            EachItem(Matches(r"[A-Za-z_*?][A-Za-z0-9_*?]*", "a variable's name or a pattern NAME_*")), EachItem(forwards_no_rank)
        ),
    )
    set: dict[str, str] = field(  # values to set
        factory=dict,
        metadata=keeps(
            EachKey(Matches(_IDENTIFIER, "a variable's name")), EachKey(NotIn(RANK_VARIABLES, "which the layout itself sets", NO_RANKS))
        ),
    )


@define(kw_only=True, on_setattr=setters.frozen)
class OnSpec(_Spec):
    """Which bundles of another role's cluster a role of a recipe sits on."""

    cluster: str = field(default="", metadata=keeps(Matches(r"(?s).*\S.*", "the name of a role that has a cluster")))
    nodes: list[int] | None = field(default=None, metadata=keeps(*_COUNTS))  # logical nodes; default: all
    gpus: list[int] | None = field(default=None, metadata=keeps(*_COUNTS))  # bundles within each of them; default: all

    def _across(self) -> Iterator[tuple[str, RuleBroken]]:
        for name, indices in (("nodes", self.nodes), ("gpus", self.gpus)):
            if indices is not None and not indices:
                yield name, RuleBroken("must name one at least", indices, fix=f"leave {name} out: all are meant")
            elif indices is not None and len(set(indices)) < len(indices):
                yield name, RuleBroken("must name each one once", indices)


@define(kw_only=True, on_setattr=setters.frozen)
class RunSpec(_Spec):
    """Everything that run.py takes."""

    mode: str = field(default="up", metadata=keeps(OneOf(MODES)))
    hold: bool = False  # keep the layout until Ctrl-C
    inventory: str | None = field(  # a file that describes the cluster: to plan on with mode=plan, to start with ray=simulated
        default=None, metadata=keeps(_NOT_EMPTY)
    )
    recipe: str | None = field(  # a recipe file with several roles, run instead of cluster, numa, python, worker and env
        default=None, metadata=keeps(_NOT_EMPTY)
    )
    recipe_overrides: list[str] = field(  # words for the recipe, e.g. ["policy.cluster.num_nodes=4"]
        factory=list, metadata=keeps(EachItem(_NOT_EMPTY))
    )
    cluster: ClusterSpec = field(factory=ClusterSpec)
    numa: NumaSpec = field(factory=NumaSpec)
    python: PythonSpec = field(factory=PythonSpec)
    ray: RaySpec = field(factory=RaySpec)
    worker: WorkerSpec = field(factory=WorkerSpec)
    env: EnvSpec = field(factory=EnvSpec)

    def _across(self) -> Iterator[tuple[str, RuleBroken]]:
        if self.python.prefetch and self.mode == "plan":
            yield "python.prefetch", RuleBroken("must be left out with mode plan, which builds nothing", True, fix="write mode=prefetch")
        elif self.python.prefetch:
            object.__setattr__(self, "mode", "prefetch")
        if self.hold and self.mode == "prefetch":
            yield "hold", RuleBroken("must be left out with mode prefetch, which places nothing", True)
        if self.inventory is not None and self.mode != "plan" and self.ray.kind != "simulated":
            fix = "write mode=plan, or ray=simulated"
            yield "inventory", RuleBroken(f"must be left out with mode {self.mode}", self.inventory, fix=fix)
        elif self.inventory is not None and self.ray.address is not None:
            yield "ray.address", RuleBroken("must be left out with an inventory, which says the machines", self.ray.address)
        if self.recipe_overrides and self.recipe is None:
            yield "recipe_overrides", RuleBroken("must be left out without a recipe", self.recipe_overrides, fix="write recipe=FILE")
