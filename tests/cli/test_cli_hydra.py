"""What Hydra gives to every app, for run.py: help, the config, completion, output folders, relative paths."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_py import RUN_PY, RunPy

from rl_cluster.config import GROUPS, option_names

GROUP_LINE = re.compile(r"(\w*) +(\S+) ")
TWO_MACHINES = """\
nodes:
  - address: 10.0.0.1
    count: 2
    resources: {GPU: 1, CPU: 8}
"""


def test_help_shows_groups_and_three_uses(run_py: RunPy) -> None:
    """--help names the three uses with their commands, every option of every group, and the config; it imports no Ray for it."""
    done = run_py("--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.code == 0
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert "hydra" in imported
    assert not imported & {"ray", "rich", "pynvml"}
    header, _, rest = done.out.partition("== Groups (group=option) ==\n")
    groups, _, config = rest.partition("== Config (key=value) ==\n")
    assert re.findall(r"^(\d\. \w+)", header, re.MULTILINE) == ["1. Run", "2. Sweep", "3. Embed"]
    for command in (
        "run.py cluster=2x8_spread ray=simulated",
        "run.py -m cluster.strategy=PACK,SPREAD",
        "/cluster@policy.cluster: 2x8_spread",
    ):
        assert command in header
    listed: dict[str, list[str]] = {}
    for line in groups.strip().splitlines():
        found = GROUP_LINE.match(line)
        assert found, line
        listed.setdefault(found[1] or list(listed)[-1], []).append(found[2])
    assert {group: sorted(options) for group, options in listed.items()} == {group: option_names(group) for group in GROUPS}
    assert yaml.safe_load(config.partition("\n\n")[0])["cluster"]["strategy"] == "SPREAD"


def test_cfg_job_prints_the_config(run_py: RunPy) -> None:
    """--cfg job prints what the words make of the config, as YAML, and runs nothing."""
    done = run_py("--cfg", "job", "cluster=2x8_spread", "numa.membind=false")
    assert (done.code, done.err) == (0, "")
    config = yaml.safe_load(done.out)
    assert config["cluster"]["num_nodes"] == 2
    assert config["numa"]["membind"] is False
    assert (config["mode"], config["worker"]["target"]) == ("up", None)
    assert list(run_py.folder.iterdir()) == []


@pytest.mark.slow
def test_completion_in_bash(run_py: RunPy) -> None:
    """What `-sc install=bash` prints makes bash complete the words of `python run.py` with options of a group, keys, and groups."""
    asked = ["cluster=2x", "cluster.strat", "ray"]
    script = 'eval "$(python run.py -sc install=bash)"\n'
    for word in asked:
        command = f"python run.py {word}"
        script += (
            f'COMP_LINE={shlex.quote(command)} COMP_POINT={len(command)} COMP_CWORD=2\nhydra_bash_completion\necho "${{COMPREPLY[*]}}"\n'
        )
    path = f"{Path(sys.executable).parent}:{run_py.env['PATH']}"
    found = subprocess.run(
        ["bash", "-c", script], cwd=RUN_PY.parent, env={**run_py.env, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout.splitlines() == ["cluster=2x8_pack cluster=2x8_spread", "cluster.strategy=", "ray. ray="]


def test_chdir_puts_files_into_the_output_directory(run_py: RunPy) -> None:
    """With hydra.job.chdir=true files lie in the output directory, and relative paths still mean where the command was typed."""
    (run_py.folder / "two.yaml").write_text(TWO_MACHINES, encoding="utf-8")
    done = run_py("hydra.job.chdir=true", "mode=plan", "inventory=two.yaml", "cluster=2x8_spread", "cluster.gpus_per_node=1")
    assert done.code == 0, done.err
    assert done.folder.is_relative_to(run_py.folder / "outputs")
    assert sorted(path.name for path in done.folder.iterdir()) == [".hydra", "layout.svg", "report.json", "rl_cluster.log"]
    assert [node["address"] for node in done.report["layout"]["nodes"]] == ["10.0.0.1", "10.0.0.2"]


def test_runs_at_the_same_moment_have_their_own_folders(run_py: RunPy) -> None:
    """Runs that start within one second don't write into each other's folder."""
    running = [run_py.start("mode=plan", "ray=simulated") for _ in range(3)]
    folders = {run.done().folder for run in running}
    assert len(folders) == 3


def test_folder_that_cannot_be_made(run_py: RunPy) -> None:
    """An output directory that can't be made is said in one line, exit 1."""
    done = run_py("hydra.run.dir=/dev/null/here", "mode=plan", "ray=simulated")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "hydra.run.dir: must be a folder that can be written, got /dev/null/here: Not a directory. Fix: hydra.run.dir=FOLDER\n"
    )


def test_files_that_cannot_be_written(run_py: RunPy) -> None:
    """A report that can't be written fails the run in one line with the reason; the layout is still shown."""
    blocked = run_py.folder / "here" / "report.json"
    blocked.mkdir(parents=True)
    done = run_py("hydra.run.dir=here", "mode=plan", "ray=simulated", "cluster=1x8")
    problem = f"files: {blocked} can't be written (Is a directory). Fix: make room there, or choose another folder: hydra.run.dir=FOLDER"
    assert done.code == 4
    assert done.err.splitlines()[-1] == problem
    assert done.last_line == f"FAILED: {problem} (simulated)"
    assert "1 logical node, 8 GPUs on 1 machine, STRICT_PACK" in done.out
    assert not [path for path in Path(blocked.parent).iterdir() if path.name.endswith(".tmp")]
