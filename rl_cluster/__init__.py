"""Declarative Ray layouts for RL post-training. Importing this package imports no Ray and has no side effect.

The names below are loaded from their modules when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_cluster.builders import build_binding as build_binding
    from rl_cluster.builders import build_bindings as build_bindings
    from rl_cluster.builders import build_cluster as build_cluster
    from rl_cluster.builders import build_clusters as build_clusters
    from rl_cluster.builders import build_placement_groups as build_placement_groups
    from rl_cluster.builders import build_runtime_env as build_runtime_env
    from rl_cluster.builders import build_worker_group as build_worker_group
    from rl_cluster.builders import open_ray as open_ray
    from rl_cluster.builders import prefetch_python as prefetch_python
    from rl_cluster.config import from_config as from_config
    from rl_cluster.config import load_cluster as load_cluster
    from rl_cluster.config import load_numa as load_numa
    from rl_cluster.config import load_python as load_python
    from rl_cluster.config import load_ray as load_ray
    from rl_cluster.config_files.recipe_file import load_recipe as load_recipe
    from rl_cluster.config_files.recipe_spec import recipe_from_config as recipe_from_config
    from rl_cluster.programs.recipe_run import run_recipe as run_recipe
    from rl_cluster.recipes.recipe import build_recipe as build_recipe
    from rl_cluster.virtual_cluster import RayVirtualCluster as RayVirtualCluster
    from rl_cluster.worker_group import RayWorkerGroup as RayWorkerGroup

_HOMES = {
    "RayVirtualCluster": "virtual_cluster",
    "RayWorkerGroup": "worker_group",
    "build_binding": "builders",
    "build_bindings": "builders",
    "build_cluster": "builders",
    "build_clusters": "builders",
    "build_placement_groups": "builders",
    "build_recipe": "recipes.recipe",
    "build_runtime_env": "builders",
    "build_worker_group": "builders",
    "from_config": "config",
    "load_cluster": "config",
    "load_numa": "config",
    "load_python": "config",
    "load_ray": "config",
    "load_recipe": "config_files.recipe_file",
    "open_ray": "builders",
    "prefetch_python": "builders",
    "recipe_from_config": "config_files.recipe_spec",
    "run_recipe": "programs.recipe_run",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("rl-cluster")
    if name in _HOMES:
        return getattr(importlib.import_module(f"rl_cluster.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rl_cluster' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
