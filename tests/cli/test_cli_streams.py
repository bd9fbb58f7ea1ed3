"""Standard streams that are closed or full, a full disk, a folder that shadows libraries, and Ctrl-C before anything has begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_py import RUN_PY, RunPy

PLAN = ("cluster=1x8", "mode=plan", "ray=simulated", "hydra.run.dir=out")
FULL = "standard output: must be writable, got No space left on device. Fix: write it to a disk with room, or to a terminal"
PLANNING = "planning on a simulated cluster, made up to fit: 1 machine"


def redirected(run_py: RunPy, redirection: str, *words: str, program: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run it by a shell, with its streams redirected."""
    arguments = [sys.executable, *(["-c", program] if program else [str(RUN_PY)]), *words]
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *arguments],
        cwd=run_py.folder,
        env={**run_py.env, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "redirection", ["<&- >&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-", "2>/dev/full"))]
)
def test_a_stream_that_nobody_reads_is_no_problem(run_py: RunPy, redirection: str) -> None:
    """Without standard output, or without a place for messages, a run does its work, and its files are right."""
    done = redirected(run_py, redirection, *PLAN)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert json.loads((run_py.folder / "out/report.json").read_text(encoding="utf-8"))["ok"] is True
    assert (run_py.folder / "out/layout.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("words", "before"), [(PLAN, [PLANNING]), (("--help",), []), (("--cfg", "job"), [])], ids=["plan", "help", "cfg"])
def test_a_full_standard_output_is_one_line_and_exit_4(run_py: RunPy, words: tuple[str, ...], before: list[str], unbuffered: str) -> None:
    """What was asked for could not be shown; the files of a run are written all the same."""
    done = redirected(run_py, ">/dev/full", *words, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr.splitlines()) == (4, [*before, FULL])
    assert (run_py.folder / "out/report.json").exists() == (words is PLAN)


CLOSED = FULL.replace("No space left on device", "Bad file descriptor")
COMMAND = "import sys\nfrom rl_cluster.{} import main\nsys.exit(main())"
RECIPE = (
    "from rl_cluster import run_recipe\n"
    "recipe = {'policy': {'cluster': {'num_nodes': 1, 'gpus_per_node': 1}}, 'ray': {'kind': 'simulated'}}\n"
    "raise SystemExit(run_recipe(recipe, print, mode='plan'))"
)
SHOWS = {
    "check": (COMMAND.format("programs.check_cli"), ["."]),
    "check --help": (COMMAND.format("programs.check_cli"), ["--help"]),
    "envs": (COMMAND.format("programs.python_env_cli"), ["--venv-dir=.", "list"]),
    "probe": (COMMAND.format("probe"), ["--show"]),
    "inventory --help": (COMMAND.format("programs.inventory_cli"), ["--help"]),
    "recipe": (RECIPE, []),
    "version": ("", ["--version"]),
    "help": ("", ["--help"]),
}


@pytest.mark.parametrize("shows", SHOWS)
@pytest.mark.slow
@pytest.mark.parametrize(("redirection", "code", "said"), [(">/dev/full", 4, [FULL]), (">&-", 4, [CLOSED]), ("| true", 0, [])])
def test_what_can_only_be_shown_is_an_error_where_it_can_not(
    run_py: RunPy, shows: str, redirection: str, code: int, said: list[str]
) -> None:
    """One line and exit code 4, unless the reader has just gone. Its files are what a run gives, but these give nothing else."""
    program, words = SHOWS[shows]
    done = redirected(run_py, redirection, *words, program=program, PYTHONPATH=str(RUN_PY.parent))
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (code, "", said)


def test_a_command_that_shows_nothing_needs_no_standard_output(run_py: RunPy) -> None:
    """rl-cluster-probe --write says on standard error what it has written."""
    done = redirected(run_py, ">/dev/full", "--write", "--output=gpus", program=COMMAND.format("probe"), PYTHONPATH=str(RUN_PY.parent))
    assert (done.returncode, "standard output" in done.stderr) == (0, False)


def test_a_sweep_that_can_not_be_shown(run_py: RunPy) -> None:
    """Each of its jobs is done, and the sweep exits with 4 and one line."""
    done = redirected(run_py, ">/dev/full", "-m", "hydra.sweep.dir=sweep", "cluster.gpus_per_node=1,2", *PLAN[:-1])
    assert (done.returncode, done.stderr.splitlines()) == (4, [PLANNING, FULL, PLANNING])
    assert len(json.loads((run_py.folder / "sweep/summary.json").read_text(encoding="utf-8"))["jobs"]) == 2


def test_a_full_disk_names_the_folder(run_py: RunPy, tmp_path: Path) -> None:
    """Hydra's own files are the first that find no room; the system's error does not say where."""
    # A disk that is full when Hydra writes its first file, made up: a real one takes a mount
    program = (
        "import builtins, errno, os, sys\n"
        f"sys.argv = ['run.py', *sys.argv[1:]]\n"
        "real = builtins.open\n"
        "def full(file, *args, **kwargs):\n"
        "    if str(file).endswith('hydra.yaml') and 'out' in str(file):\n"
        "        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "    return real(file, *args, **kwargs)\n"
        "builtins.open = full\n"
        f"sys.path.insert(0, {str(RUN_PY.parent)!r})\n"
        "from rl_cluster.app import main\n"
        "main()\n"
    )
    done = redirected(run_py, "", *PLAN, program=program)
    problem = "hydra.run.dir: must be a folder that can be written, got out: No space left on device. Fix: hydra.run.dir=FOLDER"
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (1, "", [problem])


def test_a_module_beside_the_recipe_does_not_stand_in_for_a_library(run_py: RunPy) -> None:
    """The current folder is looked at last: worker.target is found there, a ray.py is the user's own business."""
    for name in ("ray", "psutil", "yaml", "ipaddress"):
        (run_py.folder / f"{name}.py").write_text("raise RuntimeError('this is not the library')\n", encoding="utf-8")
    (run_py.folder / "adders.py").write_text("class Adder:\n    def total(self):\n        pass\n", encoding="utf-8")
    done = run_py("worker.target=adders.Adder", "worker.method=totl")
    assert (done.code, done.err) == (1, "worker.method: must be a method of Adder, got 'totl'. Fix: write total\n")


def test_ctrl_c_before_anything_has_begun(run_py: RunPy) -> None:
    """While the modules are still being imported: a line, the shell's exit code, no traceback."""
    program = (
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rl_cluster.programs.hydra_app':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
        f"sys.path.insert(0, {str(RUN_PY.parent)!r})\n"
        "from rl_cluster.app import main\n"
        "main()\n"
    )
    done = redirected(run_py, "", program=program)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted by Ctrl-C; nothing had been started\n")
    assert os.listdir(run_py.folder) == []


@pytest.mark.parametrize("value", ["[]", "[gpu_local,exclusive]"])
def test_a_group_takes_one_option(run_py: RunPy, value: str) -> None:
    """Hydra would take none and several."""
    done = run_py("mode=plan", "ray=simulated", f"numa={value}")
    listed = [word for word in value.strip("[]").split(",") if word]
    fix = "Fix: write numa=<option>; they are cpu_only, exclusive, gpu_local, preferred, unbound"
    assert (done.code, done.err) == (1, f"numa: must be one option, got {listed}. {fix}\n")
