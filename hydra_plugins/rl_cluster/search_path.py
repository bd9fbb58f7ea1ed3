"""Offers the config groups of ``rl_cluster`` to every recipe in whose environment it is installed."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class RlClusterSearchPathPlugin(SearchPathPlugin):
    """Appends our option files, so that files of the recipe with the same name win."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra each time before it composes; schemas are stored here because an import must not change Hydra's state."""
        from rl_cluster.config import conf_dir, register_schemas

        register_schemas()
        # Not as_uri(): Hydra's file source takes the text after file:// as it is, so %20 for a space would not be found.
        search_path.append(provider="rl_cluster", path=f"file://{conf_dir().as_posix()}")
