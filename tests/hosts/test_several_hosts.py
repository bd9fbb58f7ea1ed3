"""The main job on a Ray cluster of several hosts with addresses, process trees and file systems of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import Host, hosts, why_not

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(280)]

QUICK_DEATH = {  # Ray notices a lost node within seconds instead of half a minute
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
}
ENVIRONMENT = {**os.environ, **QUICK_DEATH, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Two hosts with two made-up GPUs each, and a head without any; every test leaves them as they were."""
    reason = why_not()
    if reason is not None and os.environ.get("RL_CLUSTER_REQUIRE_HOSTS"):
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)
    with hosts(3, tmp_path_factory.mktemp("hosts")) as made:
        small = ["--object-store-memory=80000000", "--disable-usage-stats"]
        head = ["start", "--head", "--port=6379", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
        started = made[0].run([*RAY, *head, f"--node-ip-address={made[0].address}", *small], timeout_s=60, env=ENVIRONMENT)
        assert started.returncode == 0, started.stdout
        for host in made[1:]:
            join = ["start", f"--address={made[0].address}:6379", f"--node-ip-address={host.address}", "--num-cpus=4", "--num-gpus=2"]
            started = host.run([*RAY, *join, *small], timeout_s=60, env=ENVIRONMENT)
            assert started.returncode == 0, started.stdout
        yield made


def app(host: Host, output: Path, *words: str) -> list[str]:
    """The command line of the main job on that cluster."""
    address = f"ray.address={host.address}:6379"
    return [
        sys.executable,
        "-m",
        "rl_cluster.app",
        f"hydra.run.dir={output}",
        "cluster=2x8_spread",
        "cluster.gpus_per_node=2",
        address,
        *words,
    ]


def test_each_logical_node_has_a_host(cluster: list[Host], repository_output: Path) -> None:
    """Ranks 0 and 1 are on the host of the lower address, 2 and 3 on the other; all meet at rank 0's address over the network."""
    done = cluster[0].run(app(cluster[0], repository_output), timeout_s=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout
    report = json.loads((repository_output / "report.json").read_text())
    seen = [
        (worker["rank"], worker["local_rank"], worker["node_rank"], worker["address"], worker["hostname"]) for worker in report["workers"]
    ]
    first, second = cluster[1], cluster[2]
    assert seen == [
        (0, 0, 0, first.address, first.name),
        (1, 1, 0, first.address, first.name),
        (2, 0, 1, second.address, second.name),
        (3, 1, 1, second.address, second.name),
    ]
    assert report["workers"][0]["result"] == {"rank": 0, "met": [1, 2, 3]}
    assert report["simulated"] is False


def test_a_lost_host_ends_a_held_layout(cluster: list[Host], repository_output: Path) -> None:
    """A host is gone while the layout is held: the run says soon which logical node that was, and ends with 4. The last test here."""
    run = cluster[0].popen(
        app(cluster[0], repository_output, "hold=true"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT
    )
    try:
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            if "holding the layout" in line:
                break
        assert "holding the layout" in lines[-1], "".join(lines)
        cluster[2].kill()
        killed = time.monotonic()
        rest, _ = run.communicate(timeout=60)
        assert run.returncode == 4, rest
        assert time.monotonic() - killed < 45, "30 s to notice, and what a busy machine takes to give everything back"
        assert f"the node {cluster[2].address} is gone, and with it logical node 1" in rest
    finally:
        run.kill()
        run.wait()


@pytest.fixture
def repository_output(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An output folder that hosts and test see alike: beside the tests, for /tmp is each host's own. Removed afterwards."""
    folder = Path(__file__).parent / f".out-{os.getpid()}-{request.node.name}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
