"""Binding on a real kernel with several NUMA nodes, in a virtual machine: what /proc shows, not what the library says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import attr
import machine
import pytest

pytestmark = [pytest.mark.vm, pytest.mark.timeout(machine.TIMEOUT_S + 60)]

HERE = Path(__file__).resolve().parent
PATHS = (str(HERE.parents[1]), str(Path(attr.__file__).resolve().parents[1]))


def node(number: int, *, cpus: str | None = None, memory: str | None = None) -> list[str]:
    """QEMU's arguments for a NUMA node; without CPUs or memory where they are left out."""
    words = f"node,nodeid={number}" + (f",cpus={cpus}" if cpus else "") + (f",memdev=m{number}" if memory else "")
    return [*(["-object", f"memory-backend-ram,id=m{number},size={memory}"] if memory else []), "-numa", words]


def gpus(*nodes: int) -> list[str]:
    """A display device behind a PCI bridge of each node; their order on the bus is this order."""
    words = []
    for k, number in enumerate(nodes):
        words += ["-device", f"pxb-pcie,id=pxb{k},bus=pcie.0,bus_nr={32 + 16 * k},numa_node={number}"]
        words += ["-device", f"pcie-root-port,id=rp{k},bus=pxb{k},chassis={k + 1},slot={k}", "-device", f"bochs-display,bus=rp{k}"]
    return words


TWO_NODES = [*node(0, cpus="0-1", memory="1G"), *node(1, cpus="2-3", memory="1G"), "-numa", "dist,src=0,dst=1,val=21", *gpus(1, 0)]
FOUR_NODES = [word for number in range(4) for word in node(number, cpus=f"{4 * number}-{4 * number + 3}", memory="512M")]
ODD_NODES = [*node(0, cpus="0-3", memory="1G"), *node(1, memory="1G"), *node(2, cpus="4-7")]
GUESTS = {
    "two": ["-cpu", "max", "-smp", "4,sockets=2,cores=2", *TWO_NODES],
    "four": ["-cpu", "Skylake-Server", "-smp", "16,sockets=2,cores=4,threads=2", *FOUR_NODES, *gpus(0, 1, 1, 3)],
    "odd": ["-cpu", "max", "-smp", "8,sockets=2,cores=4", *ODD_NODES, *gpus(0, 1, 2)],
}


@lru_cache
def checks_of(guest: str) -> dict[str, Any]:
    """Boots a guest once and gives what its checks found, by name."""
    output = machine.boot([str(HERE / "guest.py"), guest, *PATHS], "-machine", "q35", "-m", "2G", *GUESTS[guest])
    lines = [line.partition("CHECK ")[2] for line in output.splitlines() if "CHECK " in line]
    found = dict(json.loads(line) for line in lines)
    assert "guest exit 0" in output, output[-3000:]
    return found


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """What a check found in the guest of the test's parameter; skips where no guest can be booted, fails if it must be."""
    guest = request.function.__name__.split("_")[1]  # test_two_nodes_...

    def get(check: str) -> Any:
        try:
            result = checks_of(guest)[check]
        except machine.VmUnavailableError as error:
            if os.environ.get("RL_CLUSTER_REQUIRE_VM") == "1":
                pytest.fail(f"RL_CLUSTER_REQUIRE_VM is set, and: {error}")
            pytest.skip(str(error))
        if isinstance(result, dict) and "traceback" in result:
            pytest.fail(result["traceback"])
        return result

    return get


def test_two_nodes_bound_process_holds_node_1_with_all_threads_and_pages(found: Callable[[str], Any]) -> None:
    """All 21 threads have the node's mask, 50 MB (12,800 pages) lie on it to 100 %, and doing it again changes nothing."""
    got = found("bound_with_twenty_threads")
    assert (got["cpu_status"], got["mem_status"], got["source"]) == ("bound", "bound", "sysfs")
    assert (got["numa_nodes"], got["cpus_held"], got["policy_held"]) == ([1], "2-3", "bind:1")
    assert (got["threads_bound"], got["threads_before"]) == (21, 20)
    assert got["masks"] == ["2-3"]
    assert got["pages"] == {"1": 12800}
    assert got["verify"] == "bound/bound"
    assert got["again"] is True


def test_two_nodes_policy_is_the_binding_threads_and_its_descendants(found: Callable[[str], Any]) -> None:
    """A thread that existed before keeps the default policy, one that starts afterwards inherits."""
    got = found("bound_with_twenty_threads")
    assert got["policy_of_a_thread_before"] == "default"
    assert got["policy_of_a_thread_after"] == got["policy_of_main_by_proc"] == "bind:1"


def test_two_nodes_unbind_restores_masks_of_each_thread_and_policy(found: Callable[[str], Any]) -> None:
    """After two bindings: the masks as they were before the first, one thread's own included; twice is once."""
    got = found("unbind_restores")
    assert got["before"] == got["after"] == ["0-2", "0", "0-2", "0-2"]
    assert got["policy"] == [0, []]
    assert got["cpu_status"] == got["mem_status"] == "skipped: unbound"
    assert got["twice"] is True


def test_two_nodes_drift_is_reported(found: Callable[[str], Any]) -> None:
    """Mask and policy that somebody changed later."""
    got = found("drift_is_seen")
    assert (got["cpu_status"], got["cpus_held"]) == ("failed: drift", "0")
    assert (got["mem_status"], got["policy_held"]) == ("failed: drift", "default")


def test_two_nodes_verify_works_from_any_thread(found: Callable[[str], Any]) -> None:
    """The policy of the thread that was bound counts, not the asking one's."""
    got = found("seen_from_another_thread")
    assert (got["cpu_status"], got["mem_status"], got["policy_held"]) == ("bound", "bound", "bind:1")


def test_two_nodes_preferred_policy_fills_the_node(found: Callable[[str], Any]) -> None:
    """MPOL_PREFERRED is held, and the pages lie there while there is room."""
    got = found("preferred")
    assert (got["policy_held"], got["mem_status"], got["pages"]) == ("preferred:1", "bound", {"1": 5120})


def test_two_nodes_memory_can_be_off_alone(found: Callable[[str], Any]) -> None:
    """membind=false leaves the CPUs bound and the policy alone."""
    got = found("memory_off")
    assert (got["cpu_status"], got["mem_status"], got["policy_held"]) == ("bound", "skipped: disabled", "default")


def test_two_nodes_cpus_can_be_off_alone(found: Callable[[str], Any]) -> None:
    """cpu_bind=none leaves the mask alone and binds the memory."""
    got = found("memory_only")
    assert (got["cpu_status"], got["cpus_held"], got["mem_status"], got["pages"]) == ("skipped: disabled", "0-3", "bound", {"1": 5120})


def test_two_nodes_migrate_moves_the_pages_that_are_there(found: Callable[[str], Any]) -> None:
    """20 MB (5,120 pages) on node 0 before the binding are on node 1 after it, and counted."""
    got = found("pages_move")
    assert got["pages_moved"] >= 5120
    assert got["pages_elsewhere"] == 0
    assert set(got["after"]) == {"1"}


def test_two_nodes_refused_policy_is_reported_with_the_kernels_word(found: Callable[[str], Any]) -> None:
    """seccomp refuses the policy as in a container: memory failed: EPERM, CPUs bound."""
    got = found("refused_by_seccomp")
    assert (got["cpu_status"], got["masks"]) == ("bound", ["2-3"])
    assert (got["mem_status"], got["policy_held"]) == ("failed: EPERM", "unknown")


def test_two_nodes_cpuset_is_the_limit(found: Callable[[str], Any]) -> None:
    """A cgroup with node 0 only: nothing of node 1 is bound, by named reasons; OpenMP's one-CPU mask is not taken for a limit."""
    got = found("inside_a_cpuset")
    assert got["far"]["cpu_status"] == "skipped: no-allowed-local-cpu"
    assert got["far"]["cpus_held"] == "0-1"
    assert got["memory_only"]["mem_status"] == "skipped: node-not-allowed"
    assert (got["pinned"]["cpu_status"], got["pinned"]["cpus_held"]) == ("bound", "0-1")


def test_two_nodes_children_inherit(found: Callable[[str], Any]) -> None:
    """A forked child has the mask, puts its pages on the node, verifies what it inherited, and can give it back for itself."""
    got = found("inherited_by_children")
    assert got == {"masks": ["2-3"], "pages": {"1": 2560}, "verify": ["bound", "bound"], "unbound": ["0-3", 0]}


def test_two_nodes_uuid_and_several_gpus(found: Callable[[str], Any]) -> None:
    """A UUID finds its GPU; a worker with GPUs on both nodes gets both."""
    got = found("by_uuid_and_several")
    assert (got["one"]["numa_nodes"], got["one"]["cpus_held"]) == ([1], "2-3")
    assert (got["both"]["numa_nodes"], got["both"]["cpus_held"], got["both"]["policy_held"]) == ([0, 1], "0-3", "bind:0-1")


def test_two_nodes_workers_without_gpu_are_spread(found: Callable[[str], Any]) -> None:
    """Worker i gets node i mod 2."""
    assert found("workers_without_gpu") == [["bound", cpus, "bound", f"bind:{i}"] for cpus, i in (("0-1", 0), ("2-3", 1), ("0-1", 0))]


def test_two_nodes_affinity_file_decides_cpus_and_memory(found: Callable[[str], Any]) -> None:
    """The file's CPUs, without the one that does not exist; memory of the node on which they lie."""
    got = found("named_by_the_file")
    assert (got["source"], got["cpu_status"], got["cpus_held"]) == ("affinity_file", "bound", "2-3")
    assert (got["policy_held"], got["pages"]) == ("bind:1", {"1": 2560})
    assert got["notes"] == ["CPUs 99 are named by affinity_file and offline"]


def test_four_nodes_each_gpu_is_bound_to_its_own(found: Callable[[str], Any]) -> None:
    """GPUs on nodes 0, 1, 1, 3, each with its node's CPUs and pages."""
    nodes = found("machine")["nodes"]
    for number, held, pages, status in found("each_on_its_node"):
        assert (held, pages, status) == (nodes[str(number)][0], {str(number): 2560}, "bound")
    assert found("machine")["gpus"] == [0, 1, 1, 3]


def test_four_nodes_exclusive_shares_are_disjoint_whole_cores(found: Callable[[str], Any]) -> None:
    """Two GPUs of node 1 get one of its two cores each, with both hardware threads; a GPU alone gets its whole node."""
    nodes = found("machine")["nodes"]
    got = found("exclusive_shares")
    assert [status for status, _, _, _ in got] == ["bound"] * 4
    assert [kind for _, kind, _, _ in got] == ["exclusive"] * 4
    assert [held for _, _, held, _ in got] == [nodes["0"][0], "4-5", "6-7", nodes["3"][0]]


def test_four_nodes_socket_takes_both_nodes_of_the_socket(found: Callable[[str], Any]) -> None:
    """A GPU on node 3: CPUs and interleaved memory of nodes 2 and 3."""
    got = found("socket")
    assert (got["cpu_status"], got["cpu_bind"], got["cpus_held"]) == ("bound", "socket", "8-15")
    assert (got["policy_held"], got["mem_status"]) == ("interleave:2-3", "bound")
    assert set(got["pages"]) == {"2", "3"}
    assert sum(got["pages"].values()) == 5120
    assert min(got["pages"].values()) > 2000  # by turns, counted from the start of the mapping


def test_odd_nodes_are_never_a_target_for_what_they_lack(found: Callable[[str], Any]) -> None:
    """A node without CPUs and one without memory: named skips, no EINVAL."""
    nodes, got = found("machine")["nodes"], found("on_every_kind_of_node")
    kinds = {}
    for each in got.values():
        cpus, memory = nodes[str(each["node"])]
        kinds[bool(cpus), memory] = (each["cpu_status"], each["mem_status"])
    assert kinds == {
        (True, True): ("bound", "bound"),
        (True, False): ("bound", "skipped: node-without-memory"),
        (False, True): ("skipped: node-without-cpus", "skipped: node-without-cpus"),
    }
    assert found("the_kernel_refuses_a_node_without_memory") == "EINVAL"
