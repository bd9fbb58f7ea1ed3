"""A Ray of two nodes on this machine as others would have started it, for tests of what happens on each node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import rl_cluster

REPOSITORY = str(Path(rl_cluster.__file__).parent.parent)


@contextlib.contextmanager
def two_nodes(environ: Mapping[str, str], *, head: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Any]:
    """Start them with these variables, connect, and end both afterwards.

    Args:
        environ: For this process and both nodes, beside those that every test needs; PYTHONPATH is this package's folder unless given.
        head: Arguments of Ray's for the first node.
        second: For the second.

    Yields:
        Ray's ``Cluster``.
    """
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NEMO_RL_VENV_DIR", raising=False)
        for name, value in {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": REPOSITORY, **environ}.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
        try:
            cluster.add_node(**second)
            cluster.wait_for_nodes()
            ray.init(address=cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def offline(ground: Path) -> dict[str, str]:
    """Variables that keep uv from asking an index, with its cache in a folder."""
    return {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(ground / "uv-cache")}
