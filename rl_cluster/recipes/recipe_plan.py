"""recipe + inventory -> every role's bundles with their machines, or a shortfall. Pure: no Ray call, no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import frozen

from rl_cluster.config_files.recipe_spec import RecipeSpec, RoleSpec, bundles_on, out_of_range
from rl_cluster.errors import ConfigError, ResourceInsufficientError
from rl_cluster.grid import render_grid
from rl_cluster.inventory import Inventory
from rl_cluster.plan import close_spec, plan_layouts
from rl_cluster.planning.layout import Layout, PlacedBundle, Shortfall, error_at
from rl_cluster.planning.naming import count_of
from rl_cluster.planning.ranks import engine_slices, layout_positions, order_workers, rank_workers
from rl_cluster.process.nsight import check_patterns
from rl_cluster.process.records import WorkerRecord
from rl_cluster.process.worker_env import check_env
from rl_cluster.schema import ClusterSpec, EnvSpec
from rl_cluster.views.picture import CellWorker, GridCell, GridGroup, GridNode, Picture, build_role_picture

__all__ = [
    "RecipePlan",
    "RolePlan",
    "build_recipe_picture",
    "check_seats",
    "error_of_role",
    "plan_recipe",
    "seat_roles",
    "shortfall_error",
]

NODES_DRAWN = 2  # of an overlap


@frozen
class RolePlan:
    """The bundles of one role."""

    role: RoleSpec
    layout: Layout  # of the cluster that it sits on
    bundles: tuple[PlacedBundle, ...]  # in the planned order of ranks
    records: tuple[WorkerRecord, ...]  # what the plan knows of the workers: ranks and machines; no GPU ids, pid 0

    @property
    def is_whole(self) -> bool:
        """Whether it sits on all bundles of the cluster."""
        return len(self.bundles) == len(self.layout.bundles)

    @property
    def bundle_indices_list(self) -> list[tuple[int, list[int]]]:
        """What worker groups take (ours and NeMo-RL's): one pair per worker, in the order of ranks.

        Returns:
            (index of ``cluster.get_placement_groups()``, [index of the bundle in that group]).
        """
        return [(group, [index]) for group, index in map(self._address, self.bundles)]

    def engine_slices(self, k: int) -> list[tuple[int, list[int]]]:
        """Tied groups of ``k`` bundles on one machine each, in the order of ranks: for engines that span several GPUs.

        Returns:
            (index of ``cluster.get_placement_groups()``, [indices of the bundles in that group]), as NeMo-RL's ``bundle_indices_list``.

        Raises:
            ConfigError: On some machine this role's bundles are not a multiple of ``k``, or a slice would need two placement groups.
        """
        places = dict(zip(self.layout.bundles, layout_positions(self.layout), strict=True))
        key = f"{self.role.owner}.cluster"
        slices = []
        for indices in engine_slices([places[bundle] for bundle in self.bundles], k, key=key):
            addresses = [self._address(self.bundles[index]) for index in indices]
            groups = {group for group, _ in addresses}
            if len(groups) > 1:
                raise ConfigError(
                    f"engine_slices: {k} bundles must lie in one logical node, got bundles of {len(groups)}. "
                    f"Fix: {key}.unified=true, or a k that divides the bundles of a logical node"
                )
            slices.append((groups.pop(), [index for _, index in addresses]))
        return slices

    def _address(self, bundle: PlacedBundle) -> tuple[int, int]:
        """Index of the placement group, and of the bundle in it."""
        counts = self.layout.spec.bundle_counts
        if self.layout.spec.unified:
            return 0, sum(counts[: bundle.node_idx]) + bundle.bundle_idx
        return sum(1 for count in counts[: bundle.node_idx] if count), bundle.bundle_idx


@frozen
class RecipePlan:
    """Every cluster's layout and every role's bundles."""

    recipe: RecipeSpec
    layouts: Mapping[str, Layout]  # by the role that owns the cluster
    roles: Mapping[str, RolePlan]  # without pools


def plan_recipe(recipe: RecipeSpec, inventory: Inventory) -> RecipePlan | Shortfall:
    """Places the clusters of all roles together, and seats every role.

    Args:
        recipe: What is wanted.
        inventory: What is there; only ``free`` resources are taken.

    Returns:
        The plan, or the shortfall of the first cluster that does not fit (``shortfall.name`` says which).

    Raises:
        ConfigError: Roles overlap more than was declared (the message draws them), or a cluster's spec can't be read against these nodes.
    """
    clusters = {name: close_spec(spec, inventory) for name, spec in recipe.clusters.items()}
    _choose(recipe, {name: spec.bundle_counts for name, spec in clusters.items()})
    answer = plan_layouts(list(clusters.values()), inventory)
    if isinstance(answer, Shortfall):
        name = list(clusters)[answer.index]
        return answer.at(name, f"{recipe.roles[name].path}.cluster")
    return seat_roles(recipe, dict(zip(clusters, answer, strict=True)))


def seat_roles(recipe: RecipeSpec, layouts: Mapping[str, Layout]) -> RecipePlan:
    """Seats every role on layouts that are planned or placed already. Errors are those of :func:`plan_recipe`."""
    chosen = _choose(recipe, {name: layout.spec.bundle_counts for name, layout in layouts.items()})
    roles = {}
    for name, pairs in chosen.items():
        role = recipe.roles[name]
        layout = layouts[role.owner]
        wanted = set(pairs)
        here = [
            (bundle, position)
            for bundle, position in zip(layout.bundles, layout_positions(layout), strict=True)
            if (bundle.node_idx, bundle.bundle_idx) in wanted
        ]
        order = order_workers([position for _, position in here])
        ranks = rank_workers([here[index][1] for index in order], keep_order=True)
        bundles = tuple(here[index][0] for index in order)
        records = tuple(
            WorkerRecord(
                rank=rank.rank,
                local_rank=rank.local_rank,
                local_world_size=rank.local_world_size,
                node_rank=rank.node_rank,
                node_idx=bundle.node_idx,
                bundle_idx=bundle.bundle_idx,
                node_id=bundle.node_id,
                address=here[index][1].address,
                hostname="",
                gpu_ids=(),
                pid=0,
                python="",
                name=f"{name}-{bundle.node_idx}-{bundle.bundle_idx}",
            )
            for index, bundle, rank in zip(order, bundles, ranks, strict=True)
        )
        roles[name] = RolePlan(role=role, layout=layout, bundles=bundles, records=records)
    return RecipePlan(recipe=recipe, layouts=dict(layouts), roles=roles)


def check_seats(recipe: RecipeSpec) -> None:
    """What can be said of the roles' bundles before any machine is known.

    Raises:
        ConfigError: Roles overlap more than ``max_colocated_worker_groups`` of their cluster allows; the message draws them. Or a pattern
            of workers to profile matches none of a role's, or workers can't be given a variable.
    """
    chosen = _choose(recipe, {name: spec.bundle_counts for name, spec in recipe.clusters.items() if not spec.bundles_open})
    problems: list[str] = []
    for name, role in recipe.roles.items():
        try:
            check_env(role.env or EnvSpec())
            if role.worker is not None and name in chosen:
                check_patterns(role.worker, role.group_name, chosen[name])
        except ConfigError as error:
            problems += [f"{role.path}.{problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems=problems)


def shortfall_error(shortfall: Shortfall) -> ResourceInsufficientError:
    """The error to raise for a recipe's shortfall: says whose cluster it is."""
    return shortfall.to_error()


def error_of_role(recipe: RecipeSpec, error: ResourceInsufficientError) -> ResourceInsufficientError:
    """The error about one cluster of a recipe in the words of the recipe: says whose it is, and its keys."""
    shortfall = error.facts.get("shortfall")
    if not isinstance(shortfall, Shortfall):
        return error
    owner = next(role for role in recipe.roles.values() if role.cluster is not None and role.cluster.name == shortfall.spec.name)
    return error_at(error, owner.name, f"{owner.path}.cluster")


def build_recipe_picture(
    plan: RecipePlan, groups: Mapping[str, Sequence[WorkerRecord]] | None = None, *, title: str | None = None
) -> Picture:
    """Builds one drawing of all roles on all machines, colocated ones one above the other.

    Args:
        plan: Where everything is to be.
        groups: The running workers by role; of roles that are not among them the planned workers are drawn.
        title: The heading; default: the size of all in words.
    """
    by_cluster: dict[str, dict[str, Sequence[WorkerRecord]]] = {name: {} for name in plan.layouts}
    for name, role in plan.roles.items():
        by_cluster[role.role.owner][name] = (groups or {}).get(name, role.records)
    return build_role_picture(plan.layouts, by_cluster, title=title or _title(plan))


def _title(plan: RecipePlan) -> str:
    bundles = sum(layout.spec.world_size for layout in plan.layouts.values())
    machines = len({bundle.node_id for layout in plan.layouts.values() for bundle in layout.bundles})
    noun = next((layout.spec.accelerator for layout in plan.layouts.values() if layout.spec.use_gpus), "CPU bundle")
    return f"{', '.join(plan.roles)}: {count_of(bundles, noun)} on {count_of(machines, 'machine')}"


# --- who sits where ---


def _choose(recipe: RecipeSpec, counts: Mapping[str, Sequence[int]]) -> dict[str, list[tuple[int, int]]]:
    """The (logical node, bundle) pairs of every role on the clusters whose sizes are known."""
    chosen: dict[str, list[tuple[int, int]]] = {}
    problems: list[str] = []
    for owner, sizes in counts.items():
        users: dict[tuple[int, int], list[str]] = {}
        for role in recipe.members(owner):
            if role.on is not None:
                problems += [broken.line(f"{role.path}.on.{key}") for key, broken in out_of_range(role.on, sizes)]
            chosen[role.name] = list(bundles_on(role.on, sizes))
            for pair in chosen[role.name]:
                users.setdefault(pair, []).append(role.name)
        most = max(map(len, users.values()), default=0)
        cluster = recipe.clusters[owner]
        if most > cluster.max_colocated_worker_groups:
            problems.append(_overlap(recipe.roles[owner], cluster, sizes, users, most))
    if problems:
        raise ConfigError(problems=problems)
    return {name: chosen[name] for name in recipe.roles if name in chosen}


def _overlap(owner: RoleSpec, cluster: ClusterSpec, sizes: Sequence[int], users: Mapping[tuple[int, int], Sequence[str]], most: int) -> str:
    allowed = cluster.max_colocated_worker_groups
    crowded = [pair for pair, names in sorted(users.items()) if len(names) > allowed]
    node, bundle = next(pair for pair in crowded if len(users[pair]) == most)
    line = (
        f"{owner.path}.cluster.max_colocated_worker_groups: must be at least {most} for the roles that share bundle {bundle} of logical "
        f"node {node} ({', '.join(users[node, bundle])}), got {allowed}. "
        f"Fix: raise it to {most}, or give a role other bundles by on.nodes and on.gpus"
    )
    nodes = [node, *(other for other in dict.fromkeys(pair[0] for pair in crowded) if other != node)]
    return f"{line}\n{render_grid(_excerpt(owner, sizes, users, nodes), width=120)}"


def _excerpt(owner: RoleSpec, sizes: Sequence[int], users: Mapping[tuple[int, int], Sequence[str]], nodes: Sequence[int]) -> Picture:
    """The crowded logical nodes with every role on them, as the grid draws it."""
    here = {pair: names for pair, names in users.items() if pair[0] in nodes}
    ranks: Counter[str] = Counter()
    cells: dict[int, list[GridCell]] = {node: [] for node in nodes[:NODES_DRAWN]}
    for node, count in enumerate(sizes):
        for bundle in range(count):  # all of them, for the ranks
            workers = tuple(CellWorker(name, ranks[name]) for name in users.get((node, bundle), ()))
            ranks.update(worker.group for worker in workers)
            if node in cells:
                cells[node].append(GridCell(bundle, workers=workers))
    names = list(dict.fromkeys(name for names in here.values() for name in names))
    left_out = len(nodes) - len(cells)
    notes = (f"{count_of(left_out, 'logical node')} more likewise",) if left_out else ()
    return Picture(
        title=f"the cluster of {owner.name}, where roles overlap",
        nodes=tuple(GridNode(node, f"{owner.name} {node}", "", tuple(row)) for node, row in cells.items()),
        groups=tuple(GridGroup(name, ranks[name]) for name in names),
        notes=notes,
    )
