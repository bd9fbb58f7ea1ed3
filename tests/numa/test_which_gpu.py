"""Which GPU is meant, and which source says where it is."""

from __future__ import annotations

import stat
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_machine import MadeUpKernel, make_machine, write

from rl_cluster.numa import commands
from rl_cluster.numa.bind import bind_process
from rl_cluster.numa.pci import normalize_bus_id
from rl_cluster.numa.report import BindingReport
from rl_cluster.schema import NumaSpec

EIGHT_GPUS = {f"0000:{bus:02x}:00.0": 0 if index < 4 else 1 for index, bus in enumerate((0x1A, 0x3D, 0x5F, 0x7A, 0x9B, 0xAB, 0xBC, 0xDB))}
TWO_SOCKETS = {0: "0-15", 1: "16-31"}


def bind(
    root: Path, gpu_id: object, *, environ: Mapping[str, str] | None = None, kernel: MadeUpKernel | None = None, **keys: Any
) -> BindingReport:
    spec = NumaSpec(**{"affinity_file": str(root / "no-file"), **keys})
    return bind_process(spec, gpu_ids=[gpu_id], root=root, kernel=kernel or MadeUpKernel("0-31"), environ=environ or {})  # type: ignore[list-item]


@pytest.fixture(autouse=True)
def no_vendor_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No NVML and no nvidia-smi, whatever this machine has."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def put_smi(tmp_path: Path, script: str) -> None:
    """A made-up nvidia-smi in front on PATH."""
    path = tmp_path / "bin/nvidia-smi"
    write(path, "#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class MadeUpNvml(types.ModuleType):
    """The functions of pynvml that are used, over a table of GPUs: index -> (bus id, uuid, memory nodes, CPUs)."""

    NVML_AFFINITY_SCOPE_NODE = 0

    def __init__(self, gpus: list[tuple[str, str, set[int], set[int]]], migs: Mapping[str, int] | None = None) -> None:
        super().__init__("pynvml")
        self.gpus, self.migs = gpus, dict(migs or {})
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[str, int]:
        return ("gpu", index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple[str, int]:
        if uuid in self.migs:
            return ("mig", self.migs[uuid])
        return ("gpu", next(index for index, gpu in enumerate(self.gpus) if gpu[1] == uuid))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: tuple[str, int]) -> tuple[str, int]:
        assert handle[0] == "mig"
        return ("gpu", handle[1])

    def nvmlDeviceGetIndex(self, handle: tuple[str, int]) -> int:
        return handle[1]

    def nvmlDeviceGetPciInfo(self, handle: tuple[str, int]) -> Any:
        return types.SimpleNamespace(busId=self.gpus[handle[1]][0].encode())

    def nvmlDeviceGetUUID(self, handle: tuple[str, int]) -> str:
        return self.gpus[handle[1]][1]

    def nvmlDeviceGetName(self, handle: tuple[str, int]) -> str:
        return "Made-up"

    def nvmlDeviceGetMemoryAffinity(self, handle: tuple[str, int], words: int, scope: int) -> list[int]:
        return [sum(1 << node for node in self.gpus[handle[1]][2]), *[0] * (words - 1)]

    def nvmlDeviceGetCpuAffinity(self, handle: tuple[str, int], words: int) -> list[int]:
        mask = sum(1 << cpu for cpu in self.gpus[handle[1]][3])
        return [mask >> 64 * word & (1 << 64) - 1 for word in range(words)]

    def nvmlDeviceGetNumaNodeId(self, handle: tuple[str, int]) -> int:
        raise AssertionError("the GPU's own memory node is never asked for")


@pytest.fixture
def put_nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(*args: Any, **keys: Any) -> MadeUpNvml:
        nvml = MadeUpNvml(*args, **keys)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return put


# --- which GPU ---
@pytest.mark.parametrize("visible", ["0,1,2,3,4,5,6,7", "3,6,5,4,0,7,1,2", "", None])
def test_the_gpu_that_ray_assigned_counts_whatever_is_visible(tmp_path: Path, visible: str | None) -> None:
    """Ray assigned 5: node 1, with any CUDA_VISIBLE_DEVICES."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    report = bind(tmp_path, "5", environ={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert (report.cpu_status, report.cpus_held, report.numa_nodes, report.source) == ("bound", "16-31", (1,), "sysfs")
    assert report.gpu is not None
    assert (report.gpu.index, report.gpu.bus_id, report.gpu.uuid) == (5, "0000:ab:00.0", "GPU-0000:ab:00.0")


def test_index_is_the_rank_of_the_pci_address_as_a_number(tmp_path: Path) -> None:
    """Domain 0008 comes after 0000, whatever the order of the folder."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0008:06:00.0": 1, "0000:f0:00.0": 0, "0000:0a:00.0": 0})
    assert [bind(tmp_path, gpu).numa_nodes for gpu in (0, 1, 2)] == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("00000008:06:00.0", "0008:06:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("GPU-1", None),
        ("", None),
    ],
)
def test_pci_address_is_spelled_as_in_sysfs(given: str, normal: str | None) -> None:
    """NVML's domain has 8 digits, sysfs' at least 4."""
    assert normalize_bus_id(given) == normal


@pytest.mark.parametrize("uuid", ["GPU-0000:ab:00.0", "gpu-0000:AB", "MIG-GPU-ab12/3/0"])
def test_uuid_finds_its_gpu_in_proc(tmp_path: Path, uuid: str) -> None:
    """A whole UUID, an unambiguous beginning, and an old MIG UUID, which holds its GPU's."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    write(tmp_path / "proc/driver/nvidia/gpus/0000:9b:00.0/information", "Model: A100\nGPU UUID: GPU-ab12")
    assert bind(tmp_path, uuid).numa_nodes == (1,)


@pytest.mark.parametrize("uuid", ["GPU-9999", "MIG-1c2e", "GPU-0000"])
def test_uuid_that_nobody_knows_is_a_named_skip(tmp_path: Path, uuid: str) -> None:
    """Never a ValueError; an ambiguous beginning is none either."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    report = bind(tmp_path, uuid)
    assert (report.cpu_status, report.mem_status) == ("skipped: unresolved-uuid", "skipped: unresolved-uuid")


def test_mig_uuid_is_resolved_by_nvml(tmp_path: Path, put_nvml: Any) -> None:
    """A MIG device is where its GPU is; NVML is given back."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    nvml = put_nvml([("00000000:1A:00.0", "GPU-a", {0}, set()), ("00000000:DB:00.0", "GPU-b", {1}, set())], migs={"MIG-1c2e": 1})
    report = bind(tmp_path, "MIG-1c2e")
    assert (report.numa_nodes, report.source) == ((1,), "sysfs")
    assert report.gpu is not None
    assert report.gpu.bus_id == "0000:db:00.0"
    assert nvml.open == 0


def test_mig_uuid_is_resolved_by_nvidia_smi(tmp_path: Path) -> None:
    """`nvidia-smi -L` lists MIG devices under their GPU."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    listing = "GPU 0: A (UUID: GPU-a)\nGPU 6: A (UUID: GPU-b)\n  MIG 1g.5gb     Device  0: (UUID: MIG-1c2e)\nGPU 7: A (UUID: GPU-c)"
    put_smi(tmp_path, f'[ "$1" = -L ] || exit 9\ncat <<X\n{listing}\nX\n'.replace("cat", "/bin/cat"))
    report = bind(tmp_path, "MIG-1c2e")
    assert report.gpu is not None
    assert (report.gpu.index, report.numa_nodes) == (6, (1,))


@pytest.mark.parametrize(
    ("gpu_id", "status"), [("8", "skipped: unknown-gpu"), ("0:1", "skipped: unknown-gpu"), ("", "skipped: unknown-gpu")]
)
def test_id_of_no_gpu_is_a_named_skip(tmp_path: Path, gpu_id: str, status: str) -> None:
    """An index beyond the last GPU, or no id at all."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    assert bind(tmp_path, gpu_id).cpu_status == status


def test_different_models_without_device_order_are_noted(tmp_path: Path) -> None:
    """CUDA numbers the fastest first then; PCI_BUS_ID settles it."""
    make_machine(tmp_path, TWO_SOCKETS, gpus=EIGHT_GPUS)
    write(tmp_path / "proc/driver/nvidia/gpus/0000:9b:00.0/information", "Model: T4\nGPU UUID: GPU-t")
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in bind(tmp_path, 0).notes)
    assert bind(tmp_path, 0, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).notes == ()


def test_amd_gpus_are_found_through_drm(tmp_path: Path) -> None:
    """card0's device is the PCI device; connectors like card0-DP-1 are no GPUs."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0000:83:00.0": 1, "0000:03:00.0": 0}, vendor="0x1002")
    for card, bus_id in (("card1", "0000:03:00.0"), ("card0", "0000:83:00.0"), ("card0-DP-1", "0000:83:00.0")):
        link = tmp_path / "sys/class/drm" / card / "device"
        link.parent.mkdir(parents=True)
        link.symlink_to(tmp_path / "sys/bus/pci/devices" / bus_id)
    write(tmp_path / "sys/bus/pci/devices/0000:83:00.0/unique_id", "1a2b")
    report = bind(tmp_path, 1)
    assert (report.numa_nodes, report.source) == ((1,), "sysfs")
    assert report.gpu is not None
    assert (report.gpu.bus_id, report.gpu.uuid) == ("0000:83:00.0", "1a2b")


# --- which source ---
def test_firmware_that_does_not_say_leaves_it_to_nvml(tmp_path: Path, put_nvml: Any) -> None:
    """numa_node is -1, NVML knows: NVML's node, and the report says why sysfs did not answer."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0008:06:00.0": -1})
    put_nvml([("00000008:06:00.0", "GPU-a", {1}, {16, 17})])
    report = bind(tmp_path, 0)
    assert (report.source, report.numa_nodes, report.cpus_held) == ("nvml", (1,), "16-31")
    assert any("numa_node of 0008:06:00.0 is -1" in note for note in report.source_notes)


def test_firmware_that_does_not_say_on_a_machine_with_one_cpu_node(tmp_path: Path) -> None:
    """There is only one place where the GPU can be."""
    make_machine(tmp_path, {0: "0-7"}, gpus={"0000:06:00.0": -1})
    report = bind(tmp_path, 0, kernel=MadeUpKernel("0-7"))
    assert (report.cpu_status, report.source, report.numa_nodes) == ("bound", "only_node", (0,))


def test_firmware_that_does_not_say_on_several_nodes_is_a_named_skip(tmp_path: Path) -> None:
    """Nobody knows: nothing is guessed."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0000:06:00.0": -1})
    report = bind(tmp_path, 0)
    assert (report.cpu_status, report.mem_status, report.source) == ("skipped: unknown-node", "skipped: unknown-node", None)


def test_memory_of_the_gpu_itself_is_never_a_target(tmp_path: Path, put_nvml: Any) -> None:
    """GB200: memory affinity names the CPU node and the GPUs' own nodes, which have no CPUs."""
    make_machine(tmp_path, {0: "0-3", 1: "4-7", **dict.fromkeys(range(2, 34), "")}, gpus={"0008:06:00.0": -1})
    put_nvml([("00000008:06:00.0", "GPU-a", {1, 18, 19, 33}, set())])
    report = bind(tmp_path, 0, kernel=MadeUpKernel("0-7"))
    assert (report.cpu_status, report.mem_status) == ("bound", "bound")
    assert (report.numa_nodes, report.mem_nodes, report.cpus_held, report.policy_held) == ((1,), (1,), "4-7", "bind:1")


def test_nvml_that_names_every_node_tells_nothing(tmp_path: Path, put_nvml: Any) -> None:
    """A virtual machine without topology: the next source, here none."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0000:06:00.0": -1})
    put_nvml([("00000000:06:00.0", "GPU-a", {0, 1}, set(range(32)))])
    assert bind(tmp_path, 0).cpu_status == "skipped: unknown-node"


TOPO = """
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\t0,2,4\t1\t\tN/A
GPU1\tSYS\t X \t1,3,5\t0-1\t\tN/A
"""


def test_nvidia_smi_answers_last_and_its_cpu_column_is_not_used(tmp_path: Path) -> None:
    """The node of the table, the CPUs of the node from sysfs; two nodes at once are no answer."""
    make_machine(tmp_path, TWO_SOCKETS)
    put_smi(tmp_path, f'[ "$1" = topo ] || exit 9\n/bin/cat <<X\n{TOPO}\nX')
    report = bind(tmp_path, 0)
    assert (report.source, report.numa_nodes, report.cpus_held) == ("nvidia_smi", (1,), "16-31")
    assert [note.partition(":")[0] for note in report.source_notes] == ["affinity_file", "sysfs", "nvml"]
    assert bind(tmp_path, 1).cpu_status == "skipped: unknown-node"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "no such file or directory"),
        ("exit 3", "exit status 3"),
        ("/bin/sleep 60 & /bin/sleep 60", "no answer within 0.2 s"),
        ("echo nonsense", "no single host node"),
    ],
    ids=["missing", "fails", "hangs", "nonsense"],
)
def test_nvidia_smi_that_gives_nothing_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    """Missing, failing, hanging with a child, or talking nonsense: a note, no exception."""
    monkeypatch.setattr(commands.run_command, "__kwdefaults__", {"timeout_s": 0.2})
    make_machine(tmp_path, TWO_SOCKETS)
    if script is not None:
        put_smi(tmp_path, script)
    report = bind(tmp_path, 0)
    assert report.cpu_status == "skipped: unknown-node"
    assert any(words in note for note in report.source_notes if note.startswith("nvidia_smi"))


def test_hanging_command_is_waited_for_less_than_ten_seconds() -> None:
    """The deadline of every call, and a source that hung once is not asked again."""
    assert commands.TIMEOUT_S < 10


@pytest.mark.parametrize("source", ["affinity_file", "sysfs", "nvml", "nvidia_smi"])
def test_a_named_source_is_the_only_one_asked(tmp_path: Path, put_nvml: Any, source: str) -> None:
    """Each source places the GPU elsewhere, so the answer tells who was asked."""
    make_machine(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}, gpus={"0000:06:00.0": 1})
    put_nvml([("00000000:06:00.0", "GPU-a", {2}, set())])
    put_smi(tmp_path, '[ "$1" = topo ] || exit 9\necho "GPU0 CPU Affinity NUMA Affinity"; echo "GPU0 X 0-7 3"')
    write(tmp_path / "map", "0:0-3")
    report = bind(tmp_path, 0, source=source, affinity_file=str(tmp_path / "map"), kernel=MadeUpKernel("0-15"))
    assert report.source == source
    assert report.numa_nodes == ({"affinity_file": 0, "sysfs": 1, "nvml": 2, "nvidia_smi": 3}[source],)


def test_sources_are_asked_in_order(tmp_path: Path) -> None:
    """The affinity file before sysfs."""
    make_machine(tmp_path, TWO_SOCKETS, gpus={"0000:06:00.0": 1})
    write(tmp_path / "map", "0:0-3")
    report = bind(tmp_path, 0, affinity_file=str(tmp_path / "map"))
    assert (report.source, report.cpus_held, report.source_notes) == ("affinity_file", "0-3", ())
