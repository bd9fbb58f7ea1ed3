"""The node start-up probe."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_machine import make_machine, write

from rl_cluster import probe
from rl_cluster.numa.place import find_topo_rank

GPUS = {"0000:1a:00.0": 0, "0000:3d:00.0": 0, "0000:9b:00.0": 1, "0000:ab:00.0": -1}


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No NVML; nvidia-smi is what a test puts there."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin/nvidia-smi"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return make_machine(tmp_path / "root", {0: "0-7", 1: "8-15"}, gpus=GPUS)


def put_smi(path: Path, script: str) -> None:
    write(path, "#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_file_is_written_for_the_gpus_whose_node_is_known(tmp_path: Path, machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mode 0644; the GPU that nobody can place is named; standard output stays empty."""
    path = tmp_path / "map"
    assert probe.main(["--output", str(path)], root=machine, environ={}) == 0
    assert path.read_text() == "0:0-7\n1:0-7\n2:8-15\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    out, err = capsys.readouterr()
    assert out == ""
    assert "GPU 3: left out" in err


def test_path_comes_from_the_environment(tmp_path: Path, machine: Path) -> None:
    """NRL_GPU_CPU_AFFINITY_FILE, as the workers read it."""
    assert probe.main([], root=machine, environ={"NRL_GPU_CPU_AFFINITY_FILE": str(tmp_path / "map")}) == 0
    assert (tmp_path / "map").exists()


def test_old_file_is_not_asked_for_the_new_one(tmp_path: Path, machine: Path) -> None:
    """What is written comes from the machine, not from the last run."""
    write(tmp_path / "map", "0:15\n3:15")
    probe.main(["--output", str(tmp_path / "map")], root=machine, environ={})
    assert (tmp_path / "map").read_text() == "0:0-7\n1:0-7\n2:8-15\n"


def test_folder_that_can_not_be_written_is_one_line_and_4(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the cure."""
    assert probe.main(["--output", "/proc/no/map"], root=machine, environ={}) == 4
    assert capsys.readouterr().err.count("Fix: --output PATH") == 1


def test_machine_without_gpu_says_what_it_could_not_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No driver, no NVML, no nvidia-smi: no file, status 0, so that a start-up script goes on."""
    root = make_machine(tmp_path / "root", {0: "0-7"})
    assert probe.main(["--output", str(tmp_path / "map")], root=root, environ={}) == 0
    assert not (tmp_path / "map").exists()
    err = capsys.readouterr().err
    assert "/proc/driver/nvidia" in err
    assert "nvidia-ml-py is not installed" in err
    assert "nvidia-smi" in err


QUERY = """
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 0A1B2C3D-0000-1111-2222-333344445555
"""


def test_resources_and_labels_are_what_ray_start_takes(machine: Path, tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The NVLink domain and the rank, the same in both forms."""
    put_smi(tools, f'[ "$1" = -q ] || exit 9\n/bin/cat <<X\n{QUERY}\nX')
    assert probe.main(["--resources", "--labels"], root=machine, environ={"SLURM_PROCID": "6"}) == 0
    resources, labels = capsys.readouterr().out.splitlines()
    assert json.loads(resources) == {"nvlink_domain_0a1b2c3d-0000-1111-2222-333344445555": 1.0, "topo_rank": 7.0}
    assert labels == "ray.io/gpu-domain=0a1b2c3d-0000-1111-2222-333344445555,rl_cluster/topo-rank=7"


def test_ray_takes_the_labels() -> None:
    """Ray's own parser of --labels."""
    parse = pytest.importorskip("ray._private.label_utils").parse_node_labels_string
    text = probe.format_labels(probe.NodePlace(domain="0a1b2c3d-0000-1111-2222-333344445555", topo_rank=7))
    assert parse(text) == {"ray.io/gpu-domain": "0a1b2c3d-0000-1111-2222-333344445555", "rl_cluster/topo-rank": "7"}


def test_unknown_place_is_an_empty_object(
    machine: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fabric UUID of zeros is none; what is missing is said on standard error, so the JSON stays clean."""
    put_smi(tools, "echo '  ClusterUUID : 00000000-0000-0000-0000-000000000000'")
    monkeypatch.setattr(probe.os, "uname", lambda: type("Uname", (), {"nodename": "login"}))
    assert probe.main(["--resources"], root=machine, environ={}) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {}
    assert "no NVLink domain" in err
    assert "no number in the host name 'login'" in err


@pytest.mark.parametrize(
    ("environ", "hostname", "rank"),
    [
        ({"SLURM_TOPOLOGY_ADDR": "s0.s4.node17", "SLURM_PROCID": "3"}, "node17", 40018),
        ({"SLURM_TOPOLOGY_ADDR": "root.node0"}, "x", 1),
        ({"SLURM_PROCID": "0"}, "node17", 1),
        ({"SLURM_PROCID": "11"}, "node17", 12),
        ({}, "gpu-r2-node10.cluster.local", 20011),
        ({}, "worker-0", 1),
        ({}, "login", None),
        ({}, "3f2a9b7c1d0e", None),
        ({"SLURM_TOPOLOGY_ADDR": "", "SLURM_PROCID": "x"}, "n5", 6),
    ],
)
def test_rank_comes_from_the_switches_then_the_task_then_the_name(environ: dict[str, str], hostname: str, rank: int | None) -> None:
    """Never 0, which Ray drops; nothing made up; a container's random name does not count."""
    assert find_topo_rank(environ, hostname) == rank


def test_nodes_of_one_switch_are_neighbours() -> None:
    """The order of ranks is the order of (switch, node) as numbers."""
    names = ["s0.s2.n9", "s0.s2.n10", "s0.s10.n1", "s1.s0.n0"]
    ranks = [find_topo_rank({"SLURM_TOPOLOGY_ADDR": name}, "") for name in names]
    assert ranks == [20010, 20011, 100002, 100000001]


def test_show_draws_gpus_nodes_and_distances(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person."""
    for node, distances in ((0, "10 21"), (1, "21 10")):
        write(machine / f"sys/devices/system/node/node{node}/distance", distances)
    assert probe.main(["--show", "--output", "/nonexistent"], root=machine, environ={}) == 0
    assert capsys.readouterr().out == (
        "GPU  PCI address   UUID              NUMA node  CPUs          source\n"
        "0    0000:1a:00.0  GPU-0000:1a:00.0  0          0-7           sysfs\n"
        "1    0000:3d:00.0  GPU-0000:3d:00.0  0          0-7           sysfs\n"
        "2    0000:9b:00.0  GPU-0000:9b:00.0  1          8-15          sysfs\n"
        "3    0000:ab:00.0  GPU-0000:ab:00.0  ?          unknown-node\n"
        "\n"
        "NUMA node  CPUs  memory  to 0  to 1\n"
        "0          0-7   yes     10    21\n"
        "1          8-15  yes     21    10\n"
    )


TOPO = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X SYS 0-7 0\nGPU1 SYS X 0-7 {node}\n"


@pytest.mark.parametrize(("node", "status"), [(0, 0), (1, 4)])
def test_check_shows_every_source_and_fails_where_they_disagree(
    machine: Path, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], node: int, status: int
) -> None:
    """sysfs says node 0 for GPU 1; nvidia-smi says what the test lets it say."""
    put_smi(tools, f'[ "$1" = topo ] || exit 9\n/bin/cat <<X\n{TOPO.format(node=node)}\nX')
    write(tmp_path / "map", "0:0-3\n2:8-15")
    assert probe.main(["--check", "--output", str(tmp_path / "map")], root=machine, environ={}) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["GPU", "PCI", "address", "affinity_file", "sysfs", "nvml", "nvidia_smi", "verdict"]
    assert lines[1].split() == ["0", "0000:1a:00.0", "0", "0", "-", "0", "agree"]
    assert lines[2].split() == ["1", "0000:3d:00.0", "-", "0", "-", str(node), "DISAGREE" if status else "agree"]
    assert lines[3].split() == ["2", "0000:9b:00.0", "1", "1", "-", "-", "agree"]
    assert lines[4].split() == ["3", "0000:ab:00.0", "-", "-", "-", "-", "no", "answer"]
    assert any("numa_node of 0000:ab:00.0 is -1" in line for line in lines)


def test_module_runs_as_a_program() -> None:
    """python -m rl_cluster.probe."""
    result = subprocess.run([sys.executable, "-m", "rl_cluster.probe", "--help"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "--resources" in result.stdout


def test_check_without_any_gpu_has_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, and a line that says so: a CPU node is no fault."""
    (tmp_path / "root").mkdir()
    assert probe.main(["--check", "--output", str(tmp_path / "map")], root=tmp_path / "root", environ={"PATH": str(tmp_path)}) == 0
    assert capsys.readouterr().out.startswith("no GPU found, so there is nothing to compare. ")
