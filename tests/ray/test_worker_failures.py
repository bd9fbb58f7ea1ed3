"""What is said when a worker, its start, a call on it, or a bundle fails, and that nothing of it stays."""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from ray_states import living_actors, runs, within
from ray_users import Fails, Group, Seen

from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.errors import ConfigError, PythonEnvError, WorkerError, WorkerLostError, WorkerStartError

pytestmark = pytest.mark.usefixtures("simulated")

PAIR = {"pool": "pair"}
TWO = {"bundle_ct_per_node_list": [1, 1], "strategy": "STRICT_SPREAD", "label_selector": PAIR}
ONE = {"bundle_ct_per_node_list": [1], "label_selector": PAIR}


@pytest.mark.slow
def test_a_placement_group_that_somebody_has_removed_is_lost() -> None:
    """Ray itself would wait for its bundles without end, and would name the nodes that they lay on."""

    def remove(node_idx: int) -> None:
        group = cluster.get_placement_groups()[node_idx]
        ray.util.remove_placement_group(group)  # Ray only takes the order here
        assert within(10, lambda: ray.util.placement_group_table(group)["state"] == "REMOVED")

    with build_cluster(TWO) as cluster:
        remove(1)
        asks: list[Callable[[], Any]] = [
            cluster.check_alive,
            cluster.bundle_nodes,
            lambda: cluster.get_available_address_and_port(1, 0),
            lambda: cluster.get_available_addresses_and_ports_batch([(0, 0), (1, 0)]),
        ]
        for ask in asks:
            with pytest.raises(WorkerLostError) as caught:
                ask()
            assert str(caught.value) == "cluster: somebody has removed the placement group of logical node 1. Fix: build the cluster again"
            assert (caught.value.facts["node_idx"], caught.value.facts["node"]) == ([1], ["127.0.0.3"])
        assert cluster.get_master_address_and_port()[0] == "127.0.0.2"
        remove(0)
        with pytest.raises(WorkerLostError, match="of logical node 0, 1"):
            cluster.get_master_address_and_port()


@pytest.mark.parametrize(
    ("how", "cause", "log"),
    [
        pytest.param("raise", "ValueError: the weights", "", id="raises"),
        pytest.param(
            "die",
            "its process ended: Worker unexpectedly exits with a connection error code 2. End of file",
            r"\nLast lines of /\S+/worker-\S+\.err:\n(.*\n)*the weights are x+ \.\.\.",
            id="ends its process",
        ),
        pytest.param(
            "exit",
            "its process ended: Worker exits unexpectedly. Worker exits with an exit code bye",
            r"\n(Last lines of|Nothing was written to) /\S+/worker-\S+\.err(.*\n?)*",
            id="calls sys.exit",
        ),
    ],
)
def test_a_worker_that_fails_in_init(how: str, cause: str, log: str) -> None:
    """Rank, node and the real cause within the start's time, with the end of its log, which may be gone soon; and nothing stays. Then the
    same bundles serve another group."""
    with build_cluster({**TWO, "bundle_ct_per_node_list": [1, 2]}) as cluster:
        with pytest.raises(WorkerStartError) as caught:
            build_worker_group(cluster, Fails, kwargs={"how": how, "rank": 1})
        assert (caught.value.rank, caught.value.bundle) == (1, (1, 0))
        assert caught.value.node.startswith("127.0.0.3 ")
        assert caught.value.cause_text == cause
        assert str(caught.value).startswith("worker worker-1-0 (rank 1, bundle 0 of logical node 1) on 127.0.0.3 (node id ")
        assert re.fullmatch(rf".* failed in __init__: {re.escape(cause)}{log}", str(caught.value))
        assert "planted-secret" not in str(caught.value)
        assert within(20, lambda: living_actors() or None, until_none=True) is None
        if how == "die":
            with build_worker_group(cluster, Group) as group:
                assert group.run_all("echo", 1) == [1, 1, 1]


def test_a_python_that_dies_of_its_variables_is_told_before_any_worker() -> None:
    """What must be there before the process is tried with it: Ray would start such a worker again and again."""
    with build_cluster(ONE) as cluster, pytest.raises(PythonEnvError) as caught:
        build_worker_group(cluster, Seen, env={"set": {"PYTHONHOME": "/nonexistent"}})
    assert "127.0.0.2" in caught.value.node
    assert "it must import ray and rl_cluster, got " in str(caught.value)
    assert "(command: env PYTHONHOME=/nonexistent " in str(caught.value)
    assert "No module named 'encodings'" in caught.value.facts["output"]


@pytest.mark.slow
def test_a_worker_whose_python_never_starts_is_told_with_what_it_wrote(tmp_path: Path) -> None:
    """One that passes the check and dies then: at the end of the time the error has what it wrote."""
    wrapper = tmp_path / "python-wrapper"
    wrapper.write_text(f'#!/bin/sh\ncase "$1" in */_ask_python.py) exec {sys.executable} "$@";; esac\necho "not for $1" >&2\nexit 7\n')
    wrapper.chmod(0o755)
    with build_cluster(ONE) as cluster, pytest.raises(WorkerStartError) as caught:
        build_worker_group(cluster, Seen, python={"executable": str(wrapper)}, start_timeout_s=6)
    assert re.search(
        r"failed in its start: no answer within 6 s \(and so 1 of 1 workers\)\. Fix: raise worker\.start_timeout_s\n"
        r"Last lines of /\S+/raylet\S*\.err:\n(.*\n)*not for /\S+/default_worker\.py",
        str(caught.value),
    )


@pytest.mark.slow
def test_a_worker_that_does_not_come_up_in_time() -> None:
    """start_timeout_s bounds an __init__ that hangs; the error says which worker, and how long."""
    with build_cluster(ONE) as cluster:
        with pytest.raises(WorkerStartError) as caught:
            build_worker_group(cluster, Fails, kwargs={"how": "hang", "rank": 0}, start_timeout_s=6)
        # on a busy machine the time may be up before __init__ begins
        assert re.search(r"failed in (__init__|its start|leasing the master port): no answer within 6 s", str(caught.value))
        assert within(20, lambda: living_actors() or None, until_none=True) is None


def test_a_module_that_workers_can_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that only the driver has: the error names it, and the node where it is missing."""
    (tmp_path / "only_here.py").write_text("class Worker:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with build_cluster(ONE) as cluster:
        with pytest.raises(WorkerStartError) as caught:
            build_worker_group(cluster, "only_here.Worker")
        assert caught.value.cause_text == "ModuleNotFoundError: No module named 'only_here'"
        assert "Fix: workers look in their Python's packages, in the folder where the command was typed" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.node.startswith("127.0.0.2 ")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("Worker", "worker.target: must be an import path like pkg.module.Class, got 'Worker'. Fix: name the module too"),
        ("ray_userz.A", "worker.target: no module named 'ray_userz', got 'ray_userz.A'. Fix: install it, or add its folder to PYTHONPATH"),
        ("ray_users.Sen", "worker.target: module 'ray_users' has no 'Sen', got 'ray_users.Sen'. Fix: correct the name"),
    ],
)
def test_a_class_that_is_not_there(target: str, message: str) -> None:
    """A wrong import path is said before anything starts."""
    with build_cluster(ONE) as cluster:
        with pytest.raises(ConfigError) as caught:
            build_worker_group(cluster, target)
        assert str(caught.value) == message


def test_a_lost_worker_ends_the_call() -> None:
    """One rank's process ends while the others wait for it: WorkerLostError with its rank, not a hang."""
    with build_cluster(TWO) as cluster, build_worker_group(cluster, Group) as group:
        pids = [record.pid for record in group.records]
        with pytest.raises(WorkerLostError) as caught:
            group.run_all("die", 1)
        assert (caught.value.ranks, caught.value.node_idx, caught.value.node) == ((1,), [1], ["127.0.0.3"])
        assert str(pids[1]) in str(caught.value)
        assert re.search(rf"Fix: build the group again\nLast lines of /\S+-{pids[1]}\.err:\n(.*\n)*I have had enough$", str(caught.value))
        with pytest.raises(WorkerLostError):
            group.run_rank(1, "echo")
    assert within(20, lambda: not any(runs(pid) for pid in pids))


def test_arguments_that_a_method_does_not_take() -> None:
    """WorkerError with the signature's own reason, and the group goes on."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Group) as group:
        for call in (lambda: group.run_all("die"), lambda: group.run_rank(0, "die")):
            with pytest.raises(WorkerError) as caught:
                call()
            assert caught.value.rank == 0
            assert re.fullmatch(
                r"worker\.die: rank 0 on 127\.0\.0\.2 can't be called with these arguments \(missing a required argument: '\w+'\)\. "
                "Fix: give those that the method takes",
                str(caught.value),
            )
        assert group.run_all("echo", 3) == [3]


def test_an_exception_on_one_rank_ends_the_call() -> None:
    """One rank raises while the others wait for it: WorkerError with its rank and exception, at once; the group can then be ended."""
    with build_cluster(TWO) as cluster, build_worker_group(cluster, Group) as group:
        with pytest.raises(WorkerError) as caught:
            group.run_all("fail", 1)
        assert caught.value.rank == 1
        assert caught.value.cause_text == "RuntimeError: loss is nan on 1"
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert str(caught.value) == "worker.fail: rank 1 on 127.0.0.3 raised RuntimeError: loss is nan on 1"
        assert pickle.loads(pickle.dumps(caught.value)).rank == 1


def test_a_call_with_a_deadline() -> None:
    """timeout_s names the ranks that did not answer."""
    with build_cluster(ONE) as cluster, build_worker_group(cluster, Group) as group, pytest.raises(TimeoutError) as caught:
        group.run_all("wait", timeout_s=0.5)
    assert str(caught.value) == "worker.wait: no answer from rank 0 within 0.5 s"


def test_a_group_ends_its_workers() -> None:
    """After shutdown the processes are gone and the group may be shut down again, its cluster still there."""
    with build_cluster(ONE) as cluster:
        with build_worker_group(cluster, Group) as group:
            pids = [record.pid for record in group.records]
            assert all(runs(pid) for pid in pids)
        assert within(20, lambda: not any(runs(pid) for pid in pids))
        assert group.shutdown() is True
        with build_worker_group(cluster, Group) as again:
            assert again.run_all("echo", "still here") == ["still here"]
