"""What the workers of a group are given, and what they can do."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import ray_constants
from ray_states import living_actors, processes_that_name, within
from ray_users import Async, Given, Grouped, Opinionated, OwnActor, Seen, Streams, Threaded

from rl_cluster.builders import build_binding, build_bindings, build_cluster, build_placement_groups, build_worker_group
from rl_cluster.connection.session import RaySession
from rl_cluster.errors import BindingError, ConfigError, WorkerStartError
from rl_cluster.ground import _setup_worker
from rl_cluster.virtual_cluster import RayVirtualCluster, _get_node_ip_and_free_port
from rl_cluster.worker_group import RayWorkerBuilder, RayWorkerGroup

pytestmark = pytest.mark.usefixtures("simulated")

PAIR = {"pool": "pair"}
TWO = {"bundle_ct_per_node_list": [1, 1], "strategy": "STRICT_SPREAD", "label_selector": PAIR}
ONE = {"bundle_ct_per_node_list": [1], "label_selector": PAIR}


# --- any class ---


@pytest.mark.parametrize("given", [Seen, "ray_users.Seen", ray.remote(Seen)], ids=["class", "import path", "decorated"])
def test_a_class_in_any_form(given: Any) -> None:
    """A class, its import path, and a decorated class make the same worker, of that class's name."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, given, name="policy") as group:
        (record,) = group.records
        assert group.run_all("who") == [("Seen", record.pid)]
        assert (record.name, group.name_prefix, group.world_size) == ("policy-0-0", "policy", 1)
        assert (record.rank, record.local_rank, record.node_rank, record.address) == (0, 0, 0, "127.0.0.2")
        assert group.worker_metadata[0]["local_rank"] == 0
        assert group.worker_metadata[0]["node_idx"] == 0


def test_arguments_and_base_class() -> None:
    """``__init__`` gets common and per-worker arguments, calls its base's by super(), and sees its rank."""
    builder = RayWorkerBuilder("ray_users.Given", 5, second="b")
    with build_cluster(TWO) as cluster:
        with build_worker_group(cluster, builder, per_worker_kwargs=lambda record: {"own": record.address}) as group:
            assert group.run_all("given") == [("0", 5, "b", "127.0.0.2", {}), ("1", 5, "b", "127.0.0.3", {})]
            assert group.run_all("given", x=1, per_worker=[{"y": 0}, {"y": 1}]) == [
                ("0", 5, "b", "127.0.0.2", {"x": 1, "y": 0}),
                ("1", 5, "b", "127.0.0.3", {"x": 1, "y": 1}),
            ]
            assert group.run_rank(1, "given", z=2)[-1] == {"z": 2}
            with pytest.raises(ConfigError, match=r"^per_worker: must have 2 entries, one per worker, got 1\. Fix: add or remove$"):
                group.run_all("given", per_worker=[{}])
            with pytest.raises(ConfigError, match="the class has no method 'gven'"):
                group.run_all("gven")
        with pytest.raises(ConfigError, match=r"per_worker_kwargs: must have 2 entries, one per worker, got 3\."):
            build_worker_group(cluster, Given, per_worker_kwargs=[{}, {}, {}])


def test_async_actor() -> None:
    """Async methods run beside each other on one loop, and async generators stream."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Async) as group:
        worker = group.workers[0]
        waiting = worker.wait_until_open.remote()
        assert group.run_all("open") == ["0"]
        assert ray.get(waiting, timeout=30) == "0"
        assert [ray.get(ref) for ref in worker.count.remote(3)] == [0, 1, 2]


def test_generator_on_a_handle() -> None:
    """A generator method streams its values on the handle."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Streams) as group:
        assert [ray.get(ref) for ref in group.workers[0].count.options(num_returns="streaming").remote(3)] == [0, 1, 2]


def test_options_of_the_decorator() -> None:
    """max_concurrency and concurrency groups of a decorated class hold; its num_gpus gives way to the bundle's."""
    with build_cluster({**ONE, "bundle_ct_per_node_list": [2], "max_colocated_worker_groups": 2}) as cluster:
        with build_worker_group(cluster, Threaded, workers_per_node=1) as group:
            assert sorted(ray.get([group.workers[0].meet.remote(), group.workers[0].meet.remote()], timeout=60)) == [0, 1]
        with build_worker_group(cluster, Grouped, workers_per_node=1) as group:
            waiting = group.workers[0].wait.remote()
            ray.get(group.workers[0].go.remote(), timeout=60)
            assert ray.get(waiting, timeout=60) is True


def test_options_that_are_not_the_decorators_to_choose() -> None:
    """Name, restarts and placement of single actors make no sense in a group: one error names them all."""
    with build_cluster(ONE) as cluster, pytest.raises(ConfigError) as caught:
        build_worker_group(cluster, Opinionated)
    assert str(caught.value) == (
        "worker options: must not hold max_restarts, name, scheduling_strategy, which the group decides for all its workers. "
        "Fix: remove them from @ray.remote(...) or options"
    )


def test_runtime_env_of_the_user_is_kept() -> None:
    """What the user's runtime_env says stays, beside what env.set must set before the process starts."""
    options = {"runtime_env": {"env_vars": {"MINE": "1", "LC_BOTH": "theirs"}}}
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Seen, options=options, env={"set": {"LC_BOTH": "env.set"}}) as group:
        assert [group.run_rank(0, "env", name) for name in ("MINE", "LC_BOTH")] == ["1", "env.set"]


def test_our_raylets_start_workers_by_the_quick_way(simulated: RaySession) -> None:
    """On a Ray of ours a runtime_env does not cost another import of Ray; a Ray that this process starts otherwise has Ray's own way."""
    ours = set(processes_that_name(f"--gcs-address={simulated.address}"))
    assert len(ours & set(processes_that_name(_setup_worker.__file__))) == sum(node["Alive"] for node in ray.nodes())
    assert ray_constants.SETUP_WORKER_FILENAME == "setup_worker.py"


# --- environment and binding ---


def test_variables_and_mask_are_there_before_the_users_module(simulated: RaySession) -> None:
    """At the import of the user's module env.set holds, and the mask is the GPU's, for threads that the module starts as well."""
    numa = {"affinity_file": simulated.affinity_file, "source": "affinity_file", "membind": False}
    with (
        build_cluster({**ONE, "bundle_ct_per_node_list": [8]}) as cluster,
        build_worker_group(cluster, Seen, bundle_indices_list=[(0, [0, 7])], numa=numa, env={"set": {"MY_SWITCH": "on"}}) as group,
    ):
        assert group.run_all("env_at_import", "MY_SWITCH") == ["on", "on"]
        local = {line.split(":")[0]: [int(cpu) for cpu in line.split(":")[1].split(",")] for line in _lines(simulated.affinity_file)}
        expected = [local[record.gpu_ids[0]] for record in group.records]
        assert expected == [local["0"], local["7"]] or expected == [local["7"], local["0"]]
        assert group.run_all("masks") == [(cpus, cpus, cpus) for cpus in expected]
        assert [report.cpu_status for report in group.verify_bindings()] == ["bound", "bound"]
        assert [record.binding.cpu_status for record in group.records if record.binding] == ["bound", "bound"]


def _lines(path: str | None) -> list[str]:
    assert path is not None
    return [line for line in Path(path).read_text().splitlines() if not line.startswith("#")]


def test_strict_binding_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """numa.strict and an affinity file that knows no GPU: BindingError with the rank, and no worker stays."""
    empty = tmp_path / "affinity"
    empty.write_text("")
    numa = {"affinity_file": str(empty), "source": "affinity_file", "strict": True}
    with build_cluster(ONE) as cluster:
        with pytest.raises(BindingError, match="rank 0"):
            build_worker_group(cluster, Seen, numa=numa)
        assert within(20, lambda: living_actors() or None, until_none=True) is None


def test_other_resources_are_shared_out() -> None:
    """Memory of a bundle goes to its worker, as everything else of it does."""
    spec = {**ONE, "bundle_ct_per_node_list": [1], "resources": {"memory": 50_000_000}, "max_colocated_worker_groups": 2}
    with build_cluster(spec) as cluster, build_worker_group(cluster, Seen) as first, build_worker_group(cluster, Seen) as second:
        assert first.run_all("env", "RANK") == second.run_all("env", "RANK") == ["0"]


def test_environment_stays_in_its_group() -> None:
    """A variable of group A is neither in group B nor in the caller's environment or dict."""
    env = {"set": {"ONLY_A": "1"}}
    with build_cluster({**ONE, "max_colocated_worker_groups": 2}) as cluster:
        with build_worker_group(cluster, Seen, env=env) as a, build_worker_group(cluster, Seen) as b:
            assert a.run_all("env", "ONLY_A") + b.run_all("env", "ONLY_A") == ["1", None]
        with build_worker_group(cluster, Seen) as after:
            assert after.run_all("env", "ONLY_A") == [None]
    assert env == {"set": {"ONLY_A": "1"}}
    assert "ONLY_A" not in os.environ


def test_a_secret_is_nowhere_to_read(simulated: RaySession) -> None:
    """A secret of env.set reaches the worker, but no command line and no file of Ray's session folder."""
    secret = "hunter2-" + os.urandom(8).hex()
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Seen, env={"set": {"MY_TOKEN": secret, "LC_PLAIN": "x"}}) as group:
        assert group.run_all("env", "MY_TOKEN") == [secret]
        assert processes_that_name(secret) == []
        folder = Path(str(simulated.affinity_file)).parent
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        assert [path for path in files if secret.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("cluster", "env", "expected"),
    [
        pytest.param({}, {}, "1", id="one CPU", marks=pytest.mark.slow),
        pytest.param({"cpus_per_bundle": 4}, {}, "4", id="four CPUs", marks=pytest.mark.slow),
        pytest.param({"cpus_per_bundle": 4, "max_colocated_worker_groups": 2}, {}, "2", id="half of four CPUs"),
        pytest.param({"cpus_per_bundle": 4}, {"set": {"OMP_NUM_THREADS": "3"}}, "3", id="the user's value wins"),
    ],
)
def test_omp_num_threads(cluster: dict[str, Any], env: dict[str, Any], expected: str) -> None:
    """OMP_NUM_THREADS is the worker's CPUs, unless the user says otherwise."""
    with build_cluster({**ONE, **cluster}) as placed, build_worker_group(placed, Seen, env=env) as group:
        assert group.run_all("env_at_import", "OMP_NUM_THREADS") == [expected]


def test_nothing_of_omegaconf_is_sent() -> None:
    """What a worker gets of a DictConfig are plain values: it can be pickled where omegaconf is not imported."""
    from omegaconf import OmegaConf

    config = OmegaConf.create({"numa": {"cpu_bind": "none"}, "env": {"set": {"A": "1"}}, "cluster": ONE})
    assert b"omegaconf" not in pickle.dumps(build_binding(config.numa))
    with build_cluster(config.cluster) as cluster, build_worker_group(cluster, Seen, numa=config.numa, env=config.env) as group:
        assert group.run_rank(0, "env", "A") == "1"
        loaded = ray.get(group.workers[0].__ray_call__.remote(lambda self: "omegaconf" in __import__("sys").modules))
        assert loaded is False


# --- who sits where ---


def test_listed_bundles_keep_their_order() -> None:
    """Ranks follow bundle_indices_list, whatever the topology says."""
    with build_cluster({**TWO, "bundle_ct_per_node_list": [2, 2]}) as cluster:
        with build_worker_group(cluster, Seen, bundle_indices_list=[(1, [1, 0]), (0, [1])]) as group:
            assert [(r.rank, r.node_idx, r.bundle_idx, r.address) for r in group.records] == [
                (0, 1, 1, "127.0.0.3"),
                (1, 1, 0, "127.0.0.3"),
                (2, 0, 1, "127.0.0.2"),
            ]
            assert group.run_all("ranks") == [("0", "0", "2", "0", "3"), ("1", "1", "2", "0", "3"), ("2", "0", "1", "1", "3")]
        for wrong, message in (
            ([(2, [0])], "bundle_indices_list[0]: the placement group must be between 0 and 1, got 2. Fix: correct it"),
            ([(0, [0]), (1, [2])], "bundle_indices_list[1]: the bundle must be between 0 and 1, got 2. Fix: correct it"),
            ([(0, [0, 0])], "bundle_indices_list[0]: bundle 0 of placement group 0 is listed twice. Fix: list each bundle once"),
        ):
            with pytest.raises(ConfigError) as caught:
                build_worker_group(cluster, Seen, bundle_indices_list=wrong)
            assert str(caught.value) == message


def test_workers_per_node() -> None:
    """Fewer workers than bundles, the same number or one's own for each node."""
    with build_cluster({**TWO, "bundle_ct_per_node_list": [2, 2]}) as cluster:
        with RayWorkerGroup(cluster, RayWorkerBuilder("ray_users.Seen"), [2, 1], "mine") as group:
            assert [record.name for record in group.records] == ["mine-0-0", "mine-0-1", "mine-1-0"]
        with pytest.raises(ConfigError, match=r"workers_per_node\[0\]: must be between 0 and 2 \(its bundles\), got 3"):
            build_worker_group(cluster, Seen, workers_per_node=3)
        with pytest.raises(ConfigError, match="must have 2 entries, one per logical node with bundles"):
            build_worker_group(cluster, Seen, workers_per_node=[1])


def test_colocated_groups_share_gpus_and_a_third_is_refused() -> None:
    """max_colocated_worker_groups=2: two groups on the same GPUs, a third is an error at once; when one ends there is room again."""
    with build_cluster({**ONE, "bundle_ct_per_node_list": [2], "max_colocated_worker_groups": 2}) as cluster:
        first = build_worker_group(cluster, Seen)
        with build_worker_group(cluster, Seen) as second:
            assert [r.gpu_ids for r in first.records] == [r.gpu_ids for r in second.records]
            assert len({r.gpu_ids for r in first.records}) == 2
            with pytest.raises(
                ConfigError, match=r"^cluster.max_colocated_worker_groups: must be at least 3 for one more worker on bundle 0"
            ):
                build_worker_group(cluster, Seen)
            first.shutdown()
            with build_worker_group(cluster, Seen, workers_per_node=1) as third:
                assert third.records[0].gpu_ids == second.records[0].gpu_ids


def test_two_workers_on_one_gpu_are_an_error() -> None:
    """A share that the cluster does not know of would put two workers of a group on one GPU: an error, and nothing stays."""
    with build_cluster({**ONE, "bundle_ct_per_node_list": [2], "unified": True}) as cluster:
        # both in the same bundle: what a wrong bundle index would do
        cluster.bundle_address = lambda bundle: (cluster.get_placement_groups()[0], 0)  # type: ignore[method-assign]
        with pytest.raises(WorkerStartError, match="at most 1 worker") as caught:
            build_worker_group(cluster, Seen, options={"num_gpus": 0.5, "num_cpus": 0.5})
        assert caught.value.cause_text == "duplicate GPU"
        assert within(20, lambda: living_actors() or None, until_none=True) is None


# --- ports ---


def test_groups_that_have_not_bound_yet_get_different_ports() -> None:
    """Three groups on one cluster: three MASTER_PORTs from the range, each of which its rank 0 can listen on."""
    spec = {**ONE, "max_colocated_worker_groups": 3, "master_port_range_low": 21400, "master_port_range_high": 21500}
    with build_cluster(spec) as cluster:
        groups = [build_worker_group(cluster, Seen) for _ in range(3)]
        ports = [group.master_port for group in groups]
        assert len(set(ports)) == 3
        assert all(21400 <= port < 21500 for port in ports)
        assert [group.run_rank(0, "listen") for group in groups] == [("hello", port) for port in ports]
        assert [group.run_rank(0, "env", "MASTER_PORT") for group in groups] == [str(port) for port in ports]


def test_each_master_port_that_is_asked_for_is_another() -> None:
    """get_master_address_and_port twice: two ports of the first bundle's node, on which a server can listen."""
    with RayVirtualCluster([1]) as cluster:
        (address, first), (_, second) = cluster.get_master_address_and_port(), cluster.get_master_address_and_port()
        placed = next(node.address for node in cluster.layout.nodes if node.node_id == cluster.layout.bundles[0].node_id)
        assert address == placed
        assert first != second
        for port in (first, second):
            assert 1400 <= port < 2000
            with socket.create_server(("", port)):  # sets SO_REUSEADDR, as torch's store does
                pass
            with socket.socket() as plain, pytest.raises(OSError, match="in use"):
                plain.bind(("", port))


def test_node_address_and_free_port() -> None:
    """_get_node_ip_and_free_port is a Ray task that says the address of its node and a port of the range."""
    address, port = ray.get(_get_node_ip_and_free_port.options(label_selector={"pool": "uneven"}).remote(21300, 21310))
    assert address in ("127.0.0.6", "127.0.0.7")
    assert 21300 <= port < 21310


# --- frameworks that make their own actors ---


def test_own_actors_on_built_groups() -> None:
    """A framework makes its own actors: build_placement_groups and build_binding are all it needs."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bind = build_binding({"membind": False})  # the nodes of a simulation tell their workers of the made-up map
    with build_placement_groups(TWO) as groups:
        actors = [
            OwnActor.options(num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote(bind)
            for group in groups
            for index in range(group.bundle_count)
        ]
        for report, mask in ray.get([actor.seen.remote() for actor in actors]):
            assert (report.cpu_status, report.source, report.simulated) == ("bound", "affinity_file", True)
            assert report.cpus_held == ",".join(map(str, mask)) or report.cpus_held == f"{mask[0]}-{mask[-1]}"


@pytest.mark.slow
def test_no_binding_where_it_is_turned_off() -> None:
    """numa.enabled=false gives no callable; otherwise one per worker."""
    assert build_binding({"enabled": False}) is None
    assert build_bindings({"enabled": False}, 2) == [None, None]
    assert len({id(one) for one in build_bindings({}, 3)}) == 3
