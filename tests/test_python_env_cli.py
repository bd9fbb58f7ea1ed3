"""``rl-cluster-envs``: made-up environments in a temporary folder, real locks and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from rl_cluster.python_env_cli import DAY_S, list_environments, main, prune_environments
from rl_cluster.uv_store import MARKER, write_marker

NOW = 2_000_000_000.0


def make_environment(root: Path, name: str, *, unused_days: float, ready: bool = True) -> Path:
    folder = root / name
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / f"{name}.lock").touch()
    (root / f"{name}.log").write_text("built by process 1\n")
    if ready:
        write_marker(folder, command="uv run --locked", python="3.11.7", ray="2.60.0")
    used = NOW - unused_days * DAY_S
    os.utime(folder / MARKER if ready else folder, (used, used))
    return folder


def states(root: Path) -> dict[str, str]:
    return {record.name: record.state for record in list_environments(root, now=NOW)}


def test_environments_are_listed_by_how_long_nobody_used_them(tmp_path: Path) -> None:
    """Each has a state, its last use and the command that made it; the longest unused one comes first."""
    make_environment(tmp_path, "new", unused_days=1)
    make_environment(tmp_path, "old", unused_days=40)
    damaged = make_environment(tmp_path, "damaged", unused_days=3)
    (damaged / "pyvenv.cfg").unlink()
    os.utime(damaged / MARKER, (NOW - 3 * DAY_S,) * 2)
    make_environment(tmp_path, "half", unused_days=2, ready=False)
    records = list_environments(tmp_path, now=NOW)
    assert [(record.name, record.state, round(record.unused_s / DAY_S, 3)) for record in records] == [
        ("old", "ready", 40.0),
        ("damaged", "damaged", 3.0),
        ("half", "unfinished", 2.0),
        ("new", "ready", 1.0),
    ]
    assert records[0].command == "uv run --locked"
    assert records[0].size_bytes > 0


def test_prune_takes_what_is_unused_or_unfinished_and_keeps_the_rest(tmp_path: Path) -> None:
    """Older than the limit, damaged or unfinished goes; used since then stays."""
    for name, days in (("new", 1), ("old", 40)):
        make_environment(tmp_path, name, unused_days=days)
    make_environment(tmp_path, "half", unused_days=0, ready=False)
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, dry_run=True, now=NOW)] == ["old", "half"]
    assert set(states(tmp_path)) == {"new", "old", "half"}
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW)] == ["old", "half"]
    assert states(tmp_path) == {"new": "ready"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.lock", "new", "new.lock", "new.log", "old.lock"]


MAPS_A_LIBRARY = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); input()"


@pytest.mark.parametrize("by", ["its-interpreter", "a-mapped-library"])
def test_an_environment_in_use_is_kept_however_old(tmp_path: Path, by: str) -> None:
    """A process that runs its Python, or has a library of it mapped (Ray workers hide their command line), keeps an environment."""
    folder = make_environment(tmp_path, "old", unused_days=400)
    own = [str(folder / "bin" / "python"), "-c", "input()"]
    other = [sys.executable, "-c", MAPS_A_LIBRARY, str(folder / "pyvenv.cfg")]
    with subprocess.Popen(own if by == "its-interpreter" else other, stdin=subprocess.PIPE) as worker:
        # between fork and exec the child still is this process
        deadline = time.monotonic() + 30
        while list_environments(tmp_path, now=NOW)[0].users != (worker.pid,) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list_environments(tmp_path, now=NOW)[0].users == (worker.pid,)
        assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
        worker.communicate(b"\n")
    assert [record.name for record in prune_environments(tmp_path, unused_s=0, now=NOW)] == ["old"]


def test_an_environment_that_is_being_built_is_kept(tmp_path: Path) -> None:
    """A held lock means a builder, on this or another machine."""
    make_environment(tmp_path, "half", unused_days=400, ready=False)
    with FileLock(tmp_path / "half.lock"):
        assert states(tmp_path) == {"half": "building"}
        assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
    assert states(tmp_path) == {"half": "unfinished"}


def test_other_folders_are_nobodys_environments(tmp_path: Path) -> None:
    """A folder that no builder of ours made is neither listed nor removed."""
    (tmp_path / "photos").mkdir()
    assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
    assert (tmp_path / "photos").is_dir()


def test_the_command_lists_and_prunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """list shows a table or JSON, prune says what went and how much."""
    make_environment(tmp_path, "old", unused_days=0)
    assert main(["list", "--venv-dir", str(tmp_path)]) == 0
    header, row, where = capsys.readouterr().out.splitlines()
    assert where == f"in {tmp_path}"
    assert header.split() == ["environment", "state", "size", "unused", "used", "by", "made", "by"]
    assert row.split()[:2] == ["old", "ready"]
    assert main(["--venv-dir", str(tmp_path), "list", "--json"]) == 0
    assert [(entry["name"], entry["state"]) for entry in json.loads(capsys.readouterr().out)] == [("old", "ready")]
    assert main(["--venv-dir", str(tmp_path), "prune", "--unused-days", "0", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("old\nwould remove 1 (")
    assert main(["--venv-dir", str(tmp_path), "prune", "--unused-days", "0"]) == 0
    assert capsys.readouterr().out.startswith("old\nremoved 1 (")
    assert main(["--venv-dir", str(tmp_path), "list"]) == 0
    assert capsys.readouterr().out == f"no environments in {tmp_path}\n"


def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a wrong folder: one line, exit code 1."""
    make_environment(tmp_path, "half", unused_days=1, ready=False)
    (tmp_path / "half.lock").unlink()
    (tmp_path / "half.lock").mkdir()
    assert main(["--venv-dir", str(tmp_path), "list"]) == 1
    assert capsys.readouterr().err.startswith(f"rl-cluster-envs: {tmp_path} must be usable, got ")
