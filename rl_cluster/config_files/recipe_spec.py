"""A recipe: roles (policy, generation, reward, ...), each with a cluster of its own or on bundles of another role's.

Recipes are found in a host's config, whose other keys are its own business. So that a typo in a role is not taken for one of those
keys: what stands under ``roles`` must be roles through and through; elsewhere a key that resembles one of ours is refused where
its value is a group with keys of ours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
from attrs import Factory, frozen

from rl_cluster import config
from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.schema import ClusterSpec, EnvSpec, NumaSpec, OnSpec, PythonSpec, RaySpec, WorkerSpec

__all__ = ["RecipeSpec", "RoleSpec", "recipe_from_config", "roles_of"]

ROLES_KEY, RAY_KEY = "roles", "ray"
ROLE_PARTS: Mapping[str, type] = {
    "cluster": ClusterSpec,
    "on": OnSpec,
    "numa": NumaSpec,
    "python": PythonSpec,
    "env": EnvSpec,
    "worker": WorkerSpec,
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # what Hydra's grammar reads within a key; others can't be changed by a word
_ALIKE = 0.8  # difflib's ratio: "clustr" and "clusters" are alike to "cluster", "data" is not to "numa"


@frozen
class RoleSpec:
    """One role: where its workers sit, and what they are."""

    name: str
    path: str  # where it stands in the config, for messages
    cluster: ClusterSpec | None = None  # a cluster of its own, named after the role unless it has a name
    on: OnSpec | None = None  # or bundles of another role's cluster
    numa: NumaSpec | None = None  # None: the workers are left unbound
    python: PythonSpec | None = None  # None: this interpreter
    env: EnvSpec | None = None
    worker: WorkerSpec | None = None  # None: the recipe's own code brings its workers

    @property
    def is_bare(self) -> bool:
        """Whether it says a place and nothing about workers."""
        return self.numa is None and self.python is None and self.env is None and self.worker is None

    @property
    def owner(self) -> str:
        """The role whose cluster this one sits on: itself, or that of ``on``."""
        return self.name if self.on is None else self.on.cluster

    @property
    def group_name(self) -> str:
        """The name of its workers' group: the role's own, unless ``worker.name`` says another."""
        named = None if self.worker is None or self.worker.name == attrs.fields(WorkerSpec).name.default else self.worker.name
        return named or self.name


@frozen
class RecipeSpec:
    """All roles of a recipe, by name, in the order of the config: clusters are planned in this order."""

    roles: Mapping[str, RoleSpec]
    ray: RaySpec | None = None  # the recipe's own choice of a Ray, where it has the key ``ray``
    pools: frozenset[str] = Factory(frozenset)  # bare clusters that other roles sit on: no workers of their own

    @property
    def clusters(self) -> dict[str, ClusterSpec]:
        """The clusters by the role that owns each."""
        return {name: role.cluster for name, role in self.roles.items() if role.cluster is not None}

    def members(self, owner: str) -> list[RoleSpec]:
        """The roles whose workers sit on a role's cluster, the owner first unless it is only a pool."""
        here = [role for role in self.roles.values() if role.owner == owner and role.name not in self.pools]
        return sorted(here, key=lambda role: role.name != owner)


def recipe_from_config(cfg: object, *, roles: Sequence[str] | None = None, path: str = "") -> RecipeSpec:
    """Make the spec of a recipe of a config.

    A role is every node with ``cluster`` or ``on`` at the top of the config, and every key under ``roles``. The key ``ray``, where it is
    there, says which Ray; all other keys are the host's and left alone.

    Args:
        cfg: The whole config of a recipe (DictConfig or plain dict), or a :class:`RecipeSpec`, which comes back as it is.
        roles: Take exactly these nodes (dotted paths) as roles instead of looking for them; each is named by its path.
        path: Where ``cfg`` stands, for the messages. A DictConfig knows by itself.

    Raises:
        ConfigError: With all ``problems`` found, each with its path.
    """
    if isinstance(cfg, RecipeSpec):
        return cfg
    path = path or config.full_key(cfg)
    problems: list[str] = []
    if not isinstance(config.as_written(cfg), Mapping):
        raise ConfigError(RuleBroken("must be the config of a recipe", config.as_written(cfg)).line(path or "recipe"))
    nodes = list(_named(cfg, roles, path, problems) if roles is not None else _found(cfg, path, problems))
    built: dict[str, RoleSpec] = {}
    for name, where, node, strict in nodes:
        if name in built:
            problems.append(RuleBroken("must be named once", name, fix="rename one of the two roles").line(where))
            continue
        role = _role(name, where, node, strict=strict, problems=problems)
        if role is not None:
            built[name] = role
    ray = None
    top = cast("Mapping[Any, Any]", cfg)
    if RAY_KEY in top:
        ray = cast("RaySpec | None", config.build_spec(top[RAY_KEY], RaySpec, config.join_path(path, RAY_KEY), problems))
    if not nodes and not problems:
        fix = "write policy: {cluster: {...}}, or the group's option by its defaults list: - /cluster@policy.cluster: 2x8_spread"
        problems.append(RuleBroken("must have a role: a node with cluster or on", sorted(map(str, top)), fix=fix).line(path or "recipe"))
    if not problems:
        problems += [broken.line(where) for where, broken in _across(built)]
    if problems:
        raise ConfigError(problems=problems)
    return RecipeSpec(roles=built, ray=ray, pools=_pools(built))


def roles_of(keys: Iterable[object]) -> set[str]:
    """Which parts of a role stand among a node's keys. YAML 1.1 reads an unquoted ``on`` as true, so that key counts as ``on``."""
    return {_key(key) for key in keys} & set(ROLE_PARTS)


def _key(key: object) -> str:
    return "on" if key is True else str(key)


# --- which nodes are roles ---


def _found(cfg: object, path: str, problems: list[str]) -> Iterator[tuple[str, str, object, bool]]:
    for key, value in _present(cfg):
        where = config.join_path(path, str(key))
        if key == ROLES_KEY:
            if not isinstance(config.as_written(value), Mapping):
                problems.append(RuleBroken("must be a group of roles", config.as_written(value)).line(where))
                continue
            group = cast("Mapping[Any, Any]", value)
            written = {str(name): name for name in group}
            for name, node in config.config_items(group, where, problems):
                if _may_be_named([written[name]], where, problems):
                    yield name, config.join_path(where, name), node, True
        elif isinstance(value, Mapping):
            parts = roles_of(value)
            if parts & {"cluster", "on"}:
                if _may_be_named([key], path or "recipe", problems):
                    yield str(key), where, value, False
            elif key != RAY_KEY:
                problems += _nearly_a_role(where, value)


def _present(cfg: object) -> Iterator[tuple[Any, Any]]:
    """Keys and values of the host's config; what is missing or does not resolve is the host's business."""
    if not config.is_lazy(cfg):
        yield from cast("Mapping[Any, Any]", cfg).items()
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for key in cast("Mapping[Any, Any]", cfg):
        if not OmegaConf.is_missing(cfg, key):
            try:
                value = cast("Mapping[Any, Any]", cfg)[key]
            except OmegaConfBaseException:
                continue
            yield key, value


def _nearly_a_role(where: str, node: Mapping[Any, Any]) -> list[str]:
    """Problems of a node that has no place but otherwise looks like a role."""
    lines = [_misspelt(where, key, near) for key, near in _alike(node)]
    ours = sorted(part for part in ("numa", "python", "worker") if part in node and _is_ours(node[part], ROLE_PARTS[part]))
    if not lines and ours:
        fix = f"add {where}.cluster, or {where}.on: {{cluster: ROLE}}"
        lines.append(RuleBroken("must have cluster or on to be a role", sorted(map(str, node)), fix=fix).line(where))
    return lines


def _alike(node: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    for key in node:
        near = difflib.get_close_matches(str(key).lower(), ROLE_PARTS, n=1, cutoff=_ALIKE)
        if near and near[0] != str(key) and _shares_keys(_value(node, key), near[0]):
            yield str(key), near[0]


def _shares_keys(value: object, part: str) -> bool:
    """A group with at least one key of that part: a host may have ``envs`` or ``workers`` of its own."""
    return isinstance(value, Mapping) and bool(set(map(str, value)) & set(rules.field_types(ROLE_PARTS[part])))


def _value(node: Mapping[Any, Any], key: Any) -> Any:
    written = config.as_written(node)
    return cast("Mapping[Any, Any]", written)[key]


def _is_ours(value: object, kind: type) -> bool:
    """A group of keys all of which a spec has."""
    written = config.as_written(value)
    return isinstance(written, Mapping) and bool(written) and set(map(str, written)) <= set(rules.field_types(kind))


def _misspelt(where: str, key: str, near: str) -> str:
    fix = f"write {config.join_path(where, near)}, or rename the key if it is not meant for rl_cluster"
    return RuleBroken("must not resemble a part of a role", key, fix=fix).line(config.join_path(where, key))


def _named(cfg: object, names: Sequence[str], path: str, problems: list[str]) -> Iterator[tuple[str, str, object, bool]]:
    for name in names:
        node: Any = cfg
        for part in name.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        where = config.join_path(path, name)
        if not isinstance(node, Mapping):
            problems.append(RuleBroken("must be a role: a node with cluster or on", config.as_written(node)).line(where))
        elif _may_be_named(name.split("."), path or "recipe", problems):
            yield name, where, node, False


def _may_be_named(keys: Sequence[object], path: str, problems: list[str]) -> bool:
    """Whether a role's keys can stand in words of a command line, as the suggestions have them; else a problem is noted."""
    odd = next((key for key in keys if not (isinstance(key, str) and _NAME.fullmatch(key))), None)
    if odd is None:
        return True
    plain = re.sub("[^A-Za-z0-9_-]+", "_", str(odd)).strip("_-") or "role"
    fix = f"write {plain if isinstance(odd, str) and _NAME.fullmatch(plain) else f'role_{plain}'}"
    if isinstance(odd, bool):
        fix = "rename the role: YAML reads yes, on, no and off as true or false"
    problems.append(RuleBroken("must name a role by letters, digits, _ and -, with a letter or _ first", odd, fix=fix).line(path))
    return False


# --- one role ---


def _role(name: str, path: str, node: object, *, strict: bool, problems: list[str]) -> RoleSpec | None:
    """The role, or None after at least one problem was noted."""
    before = len(problems)
    if not isinstance(config.as_written(node), Mapping):
        fix = f"write {path}: {{cluster: ...}} or {path}: {{on: {{cluster: ROLE}}}}"
        problems.append(RuleBroken("must be a role: a group of keys", config.as_written(node), fix=fix).line(path))
        return None
    parts: dict[str, Any] = {}
    mapping = cast("Mapping[Any, Any]", node)
    for key in mapping:
        part, where = _key(key), config.join_path(path, _key(key))
        if part in ROLE_PARTS:
            value = _read(mapping, key, where, problems)
            if value is not None:
                parts[part] = config.build_spec(_on(value) if part == "on" else value, ROLE_PARTS[part], where, problems)
        elif strict:
            near = rules.near_word(part, ROLE_PARTS)
            fix = f"write {config.join_path(path, near)}" if near else f"leave it out; the keys here are {', '.join(ROLE_PARTS)}"
            problems.append(RuleBroken("must be a part of a role", _value(mapping, key), fix=fix).line(where))
    if not strict:
        problems += [_misspelt(path, key, near) for key, near in _alike(mapping)]
    if len(problems) > before:
        return None
    if ("cluster" in parts) == ("on" in parts):
        got = "both" if "cluster" in parts else sorted(map(_key, mapping))
        fix = f"leave one of the two out (null): {path}.cluster is a cluster of its own, {path}.on means another role's"
        problems.append(RuleBroken("must have either cluster or on", got, fix=fix).line(path))
        return None
    cluster = parts.get("cluster")
    if cluster is not None and not cluster.name:
        parts["cluster"] = attrs.evolve(cluster, name=name)
    return RoleSpec(name=name, path=path, **parts)


def _read(node: Mapping[Any, Any], key: Any, where: str, problems: list[str]) -> Any:
    """The value of one key, or None after a problem was noted; missing values go on as they are written."""
    if not config.is_lazy(node):
        return node[key]
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return "???" if OmegaConf.is_missing(node, key) else node[key]
    except OmegaConfBaseException as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        problems.append(RuleBroken(f"must resolve ({reason})", _value(node, key)).line(where))
        return None


def _on(value: object) -> object:
    """``on: policy`` is short for ``on: {cluster: policy}``."""
    return {"cluster": value} if isinstance(value, str) else value


# --- rules over several roles ---


def _across(roles: Mapping[str, RoleSpec]) -> Iterator[tuple[str, RuleBroken]]:
    owners = [name for name, role in roles.items() if role.cluster is not None]
    for role in roles.values():
        if role.on is None:
            continue
        where = f"{role.path}.on"
        target = roles.get(role.on.cluster)
        if target is None or target.cluster is None:
            near = rules.near_word(role.on.cluster, owners)
            rule = (
                f"must name a role that has a cluster of its own ({rules.either(owners)})" if owners else "must name a role with a cluster"
            )
            yield f"{where}.cluster", RuleBroken(rule, role.on.cluster, fix=f"write {near}" if near else "")
        elif not target.cluster.bundles_open:
            yield from ((f"{where}.{key}", broken) for key, broken in out_of_range(role.on, target.cluster.bundle_counts))


def out_of_range(on: OnSpec, counts: Sequence[int]) -> Iterator[tuple[str, RuleBroken]]:
    """Rules that ``on.nodes`` and ``on.gpus`` break on a cluster with so many bundles per logical node."""
    nodes = range(len(counts)) if on.nodes is None else on.nodes
    last = len(counts) - 1
    beyond = [(f"nodes[{index}]", node) for index, node in enumerate(nodes) if node > last]
    for key, node in beyond:
        yield key, RuleBroken(f"must be a logical node of {on.cluster} ({f'0 to {last}' if last else 'only 0'})", node)
    inside = [counts[node] for node in nodes if node <= last]
    for index, gpu in enumerate(on.gpus or ()):
        if inside and gpu >= max(inside) > 0:
            yield (
                f"gpus[{index}]",
                RuleBroken(f"must be a bundle of the chosen logical nodes of {on.cluster} (0 to {max(inside) - 1})", gpu),
            )
    if not beyond and max(inside) == 0:
        yield "nodes", RuleBroken("must leave a bundle", on.nodes, fix="choose a logical node that has bundles")


def bundles_on(on: OnSpec | None, counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The (logical node, bundle) pairs that a role sits on, ascending; None means all. Indices out of range are left out.

    With ``on.gpus`` on an uneven cluster, a logical node gives those of them that it has.
    """
    for node, count in enumerate(counts):
        if on is None or on.nodes is None or node in on.nodes:
            yield from ((node, bundle) for bundle in range(count) if on is None or on.gpus is None or bundle in on.gpus)


def _pools(roles: Mapping[str, RoleSpec]) -> frozenset[str]:
    used = {role.on.cluster for role in roles.values() if role.on is not None}
    return frozenset(name for name, role in roles.items() if name in used and role.is_bare)
