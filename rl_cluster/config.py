"""The one door from config to specs: DictConfig, plain dict or spec in, valid spec out; all problems at once, each with its path.

Hydra and omegaconf are imported when they are needed, so that this module costs nothing to import.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import attrs

from rl_cluster.errors import ConfigError
from rl_cluster.ground import rules
from rl_cluster.ground.rules import RuleBroken
from rl_cluster.schema import ClusterSpec, EnvSpec, NumaSpec, PythonSpec, RaySpec, RunSpec, WorkerSpec

if TYPE_CHECKING:
    from omegaconf import DictConfig

Spec = TypeVar("Spec", ClusterSpec, NumaSpec, PythonSpec, RaySpec, WorkerSpec, EnvSpec, RunSpec)

GROUPS: Mapping[str, type] = {"cluster": ClusterSpec, "numa": NumaSpec, "python": PythonSpec, "ray": RaySpec}
PRIMARY_CONFIG = "rl_cluster"
SCHEMA_GROUP = "rl_cluster/schema"  # a group of its own: schemas among the options would be run by glob(*)


@overload
def from_config(cfg: object, *, path: str = "") -> RunSpec: ...
@overload
def from_config(cfg: object, *, kind: type[Spec], path: str = "") -> Spec: ...
def from_config(cfg: object, *, kind: type[Any] = RunSpec, path: str = "") -> Any:
    """Make a spec of a config.

    Args:
        cfg: a DictConfig (any node of a recipe), a plain dict, or a spec of that kind, which comes back as it is.
            A plain dict is taken literally, interpolations are resolved in a DictConfig only.
        kind: the spec class.
        path: where the config stands, for the messages, e.g. "policy.cluster". A DictConfig knows by itself.

    Returns:
        A valid spec that shares nothing with ``cfg``.

    Raises:
        ConfigError: with all ``problems`` found: ``path: rule, got value. Fix: ...``.
    """
    problems: list[str] = []
    spec = build_spec(cfg, kind, path or full_key(cfg), problems)
    if problems:
        raise ConfigError(problems=problems)
    return spec


def is_lazy(value: object) -> bool:
    """Is it an omegaconf container? Who holds one has imported omegaconf, so nobody else pays for the import."""
    omegaconf = sys.modules.get("omegaconf")
    return omegaconf is not None and bool(omegaconf.OmegaConf.is_config(value))


def full_key(cfg: object) -> str:
    """Where a node of a DictConfig stands in the whole config, e.g. ``policy.cluster``; "" where that is not known."""
    # omegaconf has no public question for it; the pinned 2.3 line answers this one.
    return str(cfg._get_full_key(None)) if is_lazy(cfg) else ""  # type: ignore[attr-defined]


def join_path(path: str, name: object) -> str:
    """``path.name``."""
    return f"{path}.{name}" if path else str(name)


def build_spec(cfg: object, kind: type, path: str, problems: list[str]) -> object:
    """The spec, or None after at least one problem was noted: what :func:`from_config` does, for callers that collect problems."""
    if isinstance(cfg, kind):
        return cfg
    if not isinstance(as_written(cfg), Mapping):
        problems.append(_not_a_node(cfg, kind, path))
        return None
    values: dict[str, object] = {}
    before = len(problems)
    types = rules.field_types(kind)
    for key, value in config_items(cast("Mapping[Any, Any]", cfg), path, problems):
        if key not in types:
            problems.append(_unknown_key(key, value, kind, path))
        elif isinstance(value, str) and value == "???":
            problems.append(RuleBroken("must be given", value, fix=f"set {join_path(path, key)}").line(join_path(path, key)))
        elif isinstance(types[key], type) and attrs.has(types[key]):
            values[key] = build_spec(value, types[key], join_path(path, key), problems)
        else:
            try:
                values[key] = rules.check_field(kind, key, _resolved(value))
            except RuleBroken as broken:
                problems.append(broken.line(join_path(path, key)))
    if len(problems) > before:
        return None  # rules over several keys would only repeat what is said already
    try:
        return cast("object", kind(**values))
    except ConfigError as error:
        problems.extend(join_path(path, problem) for problem in error.problems)
        return None


def config_items(cfg: Mapping[Any, Any], path: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Keys with values; one that can't be resolved becomes a problem."""
    if not is_lazy(cfg):
        for key, value in cfg.items():
            yield str(key), value
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for key in cast("DictConfig", cfg):
        if OmegaConf.is_missing(cfg, key):
            yield str(key), "???"
            continue
        try:
            value = cast("DictConfig", cfg)[key]
        except OmegaConfBaseException as error:
            broken = RuleBroken(f"must resolve ({_first_line(error)})", cast("dict[Any, Any]", as_written(cfg))[key])
            problems.append(broken.line(join_path(path, key)))
            continue
        yield str(key), value


def _resolved(value: object) -> object:
    """A leaf without omegaconf's containers."""
    if not is_lazy(value):
        return value
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(cast("DictConfig", value), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise RuleBroken(f"must resolve ({_first_line(error)})", as_written(value)) from None


def as_written(value: object) -> object:
    """A value as it was written, for a message."""
    if not is_lazy(value):
        return value
    from omegaconf import OmegaConf

    return OmegaConf.to_container(cast("DictConfig", value), resolve=False)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _unknown_key(key: str, value: object, kind: type, path: str) -> str:
    names = [attribute.name for attribute in attrs.fields(kind)]
    inside = [f"{group}.{key}" for group, member in GROUPS.items() if group in names and key in attrs.fields_dict(member)]
    parts = [name for name in names if key.lower() in name.split("_")]  # gpus: gpus_per_node or use_gpus
    near = rules.near_word(key, names)
    meant = inside or (parts if len(parts) > 1 else [near] if near else [])
    fix = (
        f"write {rules.either([join_path(path, name) for name in meant])}"
        if meant
        else f"leave it out; the keys here are {', '.join(names)}"
    )
    return RuleBroken(f"must be a key of {kind.__name__}", as_written(value), fix=fix).line(join_path(path, key))


def _group_of(kind: type) -> str | None:
    return next((group for group, member in GROUPS.items() if member is kind), None)


def _not_a_node(cfg: object, kind: type, path: str) -> str:
    group, value, fix = _group_of(kind), as_written(cfg), ""
    if group and (value is None or isinstance(value, str)):
        names = option_names(group)
        near = value if value is None or value in names else rules.near_word(value, names)
        where = group if path == group else f"{group}@{path or '<where the group stands>'}"
        fix = f"to choose an option write {where}={near or '<option>'}"
        if value is None or value != near:
            fix += f"; the options are {', '.join(names)}"
    return RuleBroken(f"must be a group of keys ({kind.__name__})", value, fix=fix).line(path or "config")


# --- the option files ---


def conf_dir() -> Path:
    """The folder of the option files: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def option_names(group: str) -> list[str]:
    """Names of a group's options, sorted. ``group`` is one of ``GROUPS``."""
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


def load_cluster(name: str = "local", *, overrides: Sequence[str] = ()) -> ClusterSpec:
    """The spec of an option of the group ``cluster``, without Hydra's global state.

    Args:
        name: an option, e.g. "2x8_spread".
        overrides: Hydra's words, e.g. ``["num_nodes=4"]`` or ``["cluster.num_nodes=4"]``.

    Raises:
        ConfigError: an unknown option, key or value.
    """
    return _load(ClusterSpec, "cluster", name, overrides)


def load_numa(name: str = "gpu_local", *, overrides: Sequence[str] = ()) -> NumaSpec:
    """The spec of an option of the group ``numa``; see ``load_cluster``."""
    return _load(NumaSpec, "numa", name, overrides)


def load_python(name: str = "system", *, overrides: Sequence[str] = ()) -> PythonSpec:
    """The spec of an option of the group ``python``; see ``load_cluster``."""
    return _load(PythonSpec, "python", name, overrides)


def load_ray(name: str = "auto", *, overrides: Sequence[str] = ()) -> RaySpec:
    """The spec of an option of the group ``ray``; see ``load_cluster``."""
    return _load(RaySpec, "ray", name, overrides)


def load_run(overrides: Sequence[str] = ()) -> RunSpec:
    """The spec that ``run.py`` gets from these words, e.g. ``["cluster=2x8_spread", "numa.membind=false"]``, without Hydra's global state.

    Raises:
        ConfigError: an unknown option, key or value.
    """
    from rl_cluster.config_files import options

    tree, problems = options.run_tree(_words(overrides))
    return _spec_of(tree, RunSpec, "", problems)


def _load(kind: type[Spec], group: str, name: str, overrides: Sequence[str]) -> Spec:
    from rl_cluster.config_files import options

    tree, problems = options.group_tree(group, name, _words(overrides))
    return _spec_of(tree, kind, group, problems)


def _words(overrides: object) -> Sequence[str]:
    words = overrides if isinstance(overrides, Sequence) and not isinstance(overrides, (str, bytes)) else None
    if words is None or not all(isinstance(word, str) for word in words):
        raise ConfigError(RuleBroken("must be a list of words", overrides, fix='write e.g. ["num_nodes=4"]').line("overrides"))
    return words


def _spec_of(tree: object, kind: type[Spec], path: str, problems: list[str]) -> Spec:
    spec = build_spec(tree, kind, path, problems) if tree is not None else None
    if problems:
        raise ConfigError(problems=problems)
    return cast("Spec", spec)


def describe_compose_error(error: BaseException, overrides: Sequence[str]) -> list[str]:
    """Say in our words why Hydra refused to compose ``run.py``'s config: one line for each problem.

    Hydra stops at its first problem and knows neither rules nor near words; the same words are read here again, all of them.

    Args:
        error: what Hydra raised (with HYDRA_FULL_ERROR=1).
        overrides: the whole command line (``sys.argv[1:]``), Hydra's flags and its own keys (``hydra.*``) with it: they say where a
            user's own option files lie, which are read too.
    """
    from rl_cluster.config_files.compose_error import explain_compose_error

    return explain_compose_error(error, overrides)


def register_schemas() -> None:
    """Store the schemas in Hydra's ConfigStore, in the group ``rl_cluster/schema``. Done by the search-path plugin, never by an import."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    for group, kind in {**GROUPS, "run": RunSpec}.items():
        # An instance, for a class would keep attrs' Factory objects as values.
        node = OmegaConf.structured(kind())
        # A spec fills num_nodes in; in the schema it stays open, so that bundle_ct_per_node_list alone says it.
        cluster = node.cluster if kind is RunSpec else node if kind is ClusterSpec else None
        if cluster is not None:
            cluster.num_nodes = None
        _open_mappings(node)
        store.store(group=SCHEMA_GROUP, name=group, node=node, provider="rl_cluster")


def _open_mappings(node: DictConfig) -> None:
    """Let a mapping take new keys from the command line: worker.kwargs={lr: 0.1}, where Hydra would ask for +worker.kwargs."""
    from omegaconf import DictConfig, OmegaConf

    for key in node:
        child = node[key]
        if isinstance(child, DictConfig):
            if attrs.has(OmegaConf.get_type(child) or object):
                _open_mappings(child)
            else:
                OmegaConf.set_struct(child, False)
