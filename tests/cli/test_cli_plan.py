"""mode=plan, and runs that end before a Ray is started: whole transcripts, exit codes, what the screen can show."""

from __future__ import annotations

import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_py import RUN_PY, Done, RunPy

from rl_cluster.views.report import validate_report

ESCAPE = "\x1b["
INVENTORY = """\
nodes:
  - address: 10.0.0.9
    count: 2
    resources: {GPU: 4, CPU: 32}
"""


def run_for_nothing(done: Done) -> None:
    """A run that planned: its files are there and valid, and name no worker and no check."""
    report = done.report
    assert validate_report(report) == []
    assert (report["mode"], report["ok"], report["workers"], report["checks"]) == ("plan", True, [], [])
    assert ElementTree.parse(done.folder / "layout.svg").getroot().tag.endswith("svg")


def test_plan_on_a_simulated_cluster(run_py: RunPy) -> None:
    """The whole transcript of a plan on a cluster that is made up to fit: every part says so, and no Ray is imported for it."""
    done = run_py("mode=plan", "cluster=2x8_spread", "ray=simulated", env={"PYTHONPROFILEIMPORTTIME": "1"})
    told = [line for line in done.err.splitlines() if not line.startswith("import time:")]
    assert (done.code, told) == (0, ["planning on a simulated cluster, made up to fit: 2 machines"])
    assert not re.search(r"\| +ray$", done.err, re.MULTILINE)
    assert (
        done.out
        == f"""\
2 logical nodes, 16 GPUs on 2 machines, SPREAD
SIMULATED: nodes and accelerators are made up, on this machine

                          ┌───┬───┬───┬───┬───┬───┬───┬───┐
node 0  127.0.0.1  bundle │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
                          ├───┼───┼───┼───┼───┼───┼───┼───┤
node 1  127.0.0.2  bundle │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
                          └───┴───┴───┴───┴───┴───┴───┴───┘

files: {done.folder}
PLANNED: 16 bundles on 2 machines, nothing was created (simulated)
"""
    )
    run_for_nothing(done)
    assert done.report["simulated"] is True
    assert "simulated" in (done.folder / "layout.svg").read_text(encoding="utf-8").lower()


def test_plan_on_a_local_ray_that_would_be_started(run_py: RunPy) -> None:
    """Without a cluster in reach the plan is on the Ray that `mode=up` would start here, and no process of it is started."""
    run = run_py.start("mode=plan", "ray.num_cpus=3", "ray.num_gpus=0")
    seen: set[str] = set()
    while run.process.poll() is None:
        seen |= {name for name in ("gcs_server", "raylet", "_reaper") for line in run_py.what_stays() if name in line}
    done = run.done()
    assert (done.code, done.err) == (0, "planning on a local Ray on this machine, which would be started: 1 machine\n")
    assert done.last_line == "PLANNED: 3 bundles on 1 machine, nothing was created"
    run_for_nothing(done)
    assert seen == set()


def test_plan_on_a_cluster_described_in_a_file(run_py: RunPy) -> None:
    """A plan on an inventory file needs no Ray; uneven nodes and an empty one are drawn as they are."""
    (run_py.folder / "cluster.yaml").write_text(INVENTORY, encoding="utf-8")
    done = run_py("mode=plan", "inventory=cluster.yaml", "cluster=uneven_8_4", "cluster.bundle_ct_per_node_list=[4,0,2]")
    assert (done.code, done.err) == (0, "planning on file cluster.yaml: 2 machines\n")
    assert (
        done.out
        == f"""\
3 logical nodes, 6 GPUs on 2 machines, SPREAD

                          ┌───┬───┬───┬───┐
node 0  10.0.0.9   bundle │ 0 │ 1 │ 2 │ 3 │
                          └───┴───┴───┴───┘
node 1  (no bundles)
                          ┌───┬───┐
node 2  10.0.0.10  bundle │ 0 │ 1 │
                          └───┴───┘

files: {done.folder}
PLANNED: 6 bundles on 2 machines, nothing was created
"""
    )
    run_for_nothing(done)
    assert done.report["ray"]["kind"] == "file"


def test_a_drawing_without_a_terminal_has_the_width_of_a_page(run_py: RunPy) -> None:
    """A machine of 64 bundles is continued below."""
    (run_py.folder / "cluster.yaml").write_text("nodes: [{resources: {CPU: 64}}]\n", encoding="utf-8")
    done = run_py("mode=plan", "inventory=cluster.yaml", "cluster=local")
    drawn = [line for line in done.out.splitlines() if "│" in line]
    assert [line.split(" │")[-2].strip() for line in drawn] == ["21", "43", "63"]
    assert max(map(len, drawn)) <= 140


def test_plan_on_a_file_that_does_not_hold_it(run_py: RunPy) -> None:
    """A shortfall on a file gives exit 3 and what would fit; a rehearsal on a cluster made up to fit would say nothing of that file."""
    (run_py.folder / "cluster.yaml").write_text(INVENTORY, encoding="utf-8")
    done = run_py("mode=plan", "inventory=cluster.yaml", "cluster=2x8_spread")
    assert done.code == 3
    assert done.err.splitlines()[-1] == "Fix: cluster.gpus_per_node=4 fits now"
    assert "rehearse" not in done.err
    assert done.last_line.startswith("FAILED: 2 logical nodes of 8 GPUs: ")
    assert validate_report(done.report) == []
    assert done.report["error"]["type"] == "ResourceInsufficientError"


def test_plan_on_a_file_that_is_not_there(run_py: RunPy) -> None:
    """An inventory that can't be read is one line, exit 1."""
    done = run_py("mode=plan", "inventory=nowhere.yaml")
    problem = "inventory nowhere.yaml: must be a readable file, got No such file or directory. Fix: correct its path"
    assert (done.code, done.err, done.last_line) == (1, f"{problem}\n", f"FAILED: {problem}")


@pytest.mark.parametrize("mode", [pytest.param("plan", marks=pytest.mark.slow), "up"])
def test_cluster_that_this_machine_cannot_hold(run_py: RunPy, mode: str) -> None:
    """No cluster in reach and too little here: exit 3, with needed and there in numbers, and the command that rehearses it."""
    words = ["cluster=2x8_spread", "numa.membind=false", *(["mode=plan"] if mode == "plan" else [])]
    done = run_py(*words, "ray.num_cpus=4", "ray.num_gpus=0")
    told = [line for line in done.err.splitlines() if not line.startswith("planning on")]
    assert done.code == 3
    assert told[0].startswith("2 logical nodes of 8 GPUs: ")
    assert done.last_line == f"FAILED: {told[0]}"
    head, cpu, gpu = (line.split() for line in told[1:4])
    assert head == ["node", "resource", "needed", "free", "total", "held", "by"]
    assert cpu[1:5] == ["CPU", "8", "4", "4"]
    assert gpu[:4] == ["GPU", "8", "0", "0"]
    assert told[-2:] == [
        "No running Ray cluster was found (looked at ray.address, $RAY_ADDRESS and this machine), and a local one here would be too small. "
        "Fix: ray.address=HOST:PORT for a cluster that holds it. To rehearse it on this machine:",
        f"  python {RUN_PY} {' '.join(words)} ray=simulated",
    ]
    assert validate_report(done.report) == []


@pytest.mark.slow
def test_the_rehearsal_keeps_a_config_dir(run_py: RunPy) -> None:
    """The suggested command has all that was typed but the choice of a Ray, so that it finds the same option; and it works."""
    options = run_py.folder / "conf" / "cluster"
    options.mkdir(parents=True)
    (options / "big.yaml").write_text("num_nodes: 2\ngpus_per_node: 64\n", encoding="utf-8")
    done = run_py("--config-dir", "conf", "cluster=big", "ray.num_cpus=4", "mode=plan")
    command = done.err.splitlines()[-1]
    assert command == f"  python {RUN_PY} --config-dir=conf cluster=big mode=plan ray=simulated"
    assert run_py(*command.split()[2:]).last_line == "PLANNED: 128 bundles on 2 machines, nothing was created (simulated)"


def test_a_recipe_that_does_not_fit_is_told_with_a_rehearsal(run_py: RunPy) -> None:
    """As a single cluster is: whose cluster, what is short, and the command that rehearses the recipe."""
    (run_py.folder / "r.yaml").write_text("policy:\n  cluster: {num_nodes: 2, gpus_per_node: 64}\n", encoding="utf-8")
    done = run_py("recipe=r.yaml", "mode=plan", "ray.num_cpus=4", "ray.num_gpus=0")
    assert done.code == 3
    headline = "policy: 2 logical nodes of 64 GPUs: no GPU anywhere: the only node is the head node "
    assert done.last_line.startswith(f"FAILED: {headline}")
    assert done.err.splitlines()[-1] == f"  python {RUN_PY} recipe=r.yaml mode=plan ray=simulated"


def test_full_error_shows_the_traceback_of_a_run(run_py: RunPy) -> None:
    """HYDRA_FULL_ERROR=1 shows the traceback of what ended a run; the line, the exit code and the files stay the same."""
    done = run_py("mode=plan", "inventory=nowhere.yaml", env={"HYDRA_FULL_ERROR": "1"})
    assert done.code == 1
    assert "Traceback (most recent call last):" in done.err.splitlines()
    assert done.err.splitlines()[-1].startswith("inventory nowhere.yaml: must be a readable file, got No such file or directory.")
    assert validate_report(done.report) == []


@pytest.mark.parametrize("by", ["RAY_ADDRESS", "ray.address"])
@pytest.mark.parametrize(
    ("address", "code", "problem"),
    [
        pytest.param(
            "127.0.0.1:{port}", 3, "no Ray cluster answers at 127.0.0.1:{port} within 5 s ([Errno 111] Connection refused)", id="dead"
        ),
        pytest.param("nonsense", 1, "must be host:port, got 'nonsense'", id="malformed", marks=pytest.mark.slow),
    ],
)
def test_address_that_does_not_work(run_py: RunPy, by: str, address: str, code: int, problem: str) -> None:
    """An address where nothing answers gives exit 3 at once and never another cluster; a malformed one is a config error."""
    with socket.socket() as unused:  # bound, not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        address = address.format(port=port)
        done = run_py(
            *([f"ray.address={address}"] if by == "ray.address" else []), env={"RAY_ADDRESS": address} if by == "RAY_ADDRESS" else {}
        )
    assert (done.code, len(done.err.splitlines())) == (code, 1)
    assert done.err.startswith(f"{by}: {problem.format(port=port)}. Fix: ")
    assert done.last_line == f"FAILED: {done.err.strip()}"


def test_ray_client_address(run_py: RunPy) -> None:
    """A Ray Client address can't work here, and the line says what can."""
    done = run_py("ray.address=ray://10.0.0.1:10001")
    assert done.code == 1
    assert done.err == (
        "ray.address: a Ray Client address can't be used (actors are pinned and watched by a driver inside the cluster), got "
        "'ray://10.0.0.1:10001'. Fix: run on a machine of the cluster and give host:port, the address that `ray start --head` printed\n"
    )


def on_a_terminal(run_py: RunPy, *words: str, **env: str) -> str:
    """What a run shows where standard output is a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(RUN_PY), *words],
        cwd=run_py.folder,
        env={**run_py.env, "TERM": "xterm-256color", **env},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # EIO: the other end is closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("env", "colours"),
    [
        pytest.param({}, True, id="a terminal has colours"),
        pytest.param({"NO_COLOR": "1"}, False, id="NO_COLOR", marks=pytest.mark.slow),
        pytest.param({"TERM": "dumb"}, False, id="a dumb terminal", marks=pytest.mark.slow),
    ],
)
def test_colours(run_py: RunPy, env: dict[str, str], colours: bool) -> None:
    """A terminal gets colours unless it or the user says no."""
    shown = on_a_terminal(run_py, "mode=plan", "ray=simulated", "cluster=1x8", **env)
    assert (ESCAPE in shown) is colours
    assert "┌───┬" in shown


def test_ascii_output(run_py: RunPy) -> None:
    """Where standard output takes only ASCII, frames are drawn with ASCII and other letters are escaped; nothing fails."""
    folder = run_py.folder / "läufe"
    done = run_py(f"hydra.run.dir='{folder}'", "mode=plan", "ray=simulated", "cluster=1x8", env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0, done.err
    assert done.out.isascii()
    assert "+---+---+" in done.out
    assert done.out.splitlines()[-2] == f"files: {run_py.folder}/l\\xe4ufe"
    assert (folder / "report.json").exists()


@pytest.mark.parametrize("words", [["mode=plan", "ray=simulated", "cluster=1x8"], ["--help"]], ids=["plan", "help"])
def test_reader_that_goes_away(run_py: RunPy, words: list[str]) -> None:
    """`run.py | head` ends in order: no traceback, exit 0, all files written."""
    ours, theirs = os.pipe()
    os.close(ours)
    err = run_py.folder / "err"
    with open(err, "wb") as sink:
        process = subprocess.Popen([sys.executable, str(RUN_PY), *words], cwd=run_py.folder, env=run_py.env, stdout=theirs, stderr=sink)
    os.close(theirs)
    assert process.wait(timeout=60) == 0
    assert [line for line in err.read_text().splitlines() if not line.startswith("planning on")] == []
    if words[0] == "mode=plan":
        assert len(list(Path(run_py.folder).glob("outputs/*/*/layout.svg"))) == 1
