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

from rl_cluster.process.uv_store import MARKER, hold_environment, take_away, write_marker
from rl_cluster.programs import python_env_cli
from rl_cluster.programs.python_env_cli import DAY_S, list_environments, main, prune_environments

NOW = 2_000_000_000.0
HALF, FAILED = "half-0123456789abcdef", "failed-0123456789abcdef"


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
    make_environment(tmp_path, HALF, unused_days=2, ready=False)
    records = list_environments(tmp_path, now=NOW)
    assert [(record.name, record.state, round(record.unused_s / DAY_S, 3)) for record in records] == [
        ("old", "ready", 40.0),
        ("damaged", "damaged", 3.0),
        (HALF, "unfinished", 2.0),
        ("new", "ready", 1.0),
    ]
    assert records[0].command == "uv run --locked"
    assert records[0].size_bytes > 0


def test_prune_takes_what_is_unused_or_unfinished_and_keeps_the_rest(tmp_path: Path) -> None:
    """Older than the limit, damaged or unfinished goes; used since then stays."""
    for name, days in (("new", 1), ("old", 40)):
        make_environment(tmp_path, name, unused_days=days)
    make_environment(tmp_path, HALF, unused_days=0, ready=False)
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, dry_run=True, now=NOW)] == ["old", HALF]
    assert set(states(tmp_path)) == {"new", "old", HALF}
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW)] == ["old", HALF]
    assert states(tmp_path) == {"new": "ready"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.lock", "new.log"]


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
    make_environment(tmp_path, HALF, unused_days=400, ready=False)
    with FileLock(tmp_path / f"{HALF}.lock"):
        assert states(tmp_path) == {HALF: "building"}
        assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
    assert states(tmp_path) == {HALF: "unfinished"}


HOLDS_IT = """
import sys, os, time
from pathlib import Path
from rl_cluster.process.uv_store import hold_environment
assert hold_environment(Path(sys.argv[1]))
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print(os.getpid(), flush=True)
input()
"""


def test_an_environment_that_a_process_holds_is_kept_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's lock keeps its environment where no library below the folder is mapped, and where /proc shows nothing of it."""
    folder = make_environment(tmp_path, "old", unused_days=400)
    command = [sys.executable, "-c", HOLDS_IT, str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(Path(python_env_cli.__file__).parents[2])}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as worker:
        assert worker.stdout
        forked = int(worker.stdout.readline())
        assert list_environments(tmp_path, now=NOW)[0].users == (forked,)
        assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
        with monkeypatch.context() as another_machine:
            another_machine.setattr(python_env_cli, "_users", lambda folder: ())
            assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
        worker.communicate(b"\n")
    assert [record.name for record in prune_environments(tmp_path, unused_s=0, now=NOW)] == ["old"]
    assert not hold_environment(folder)


def wait_for_user(folder: Path, pid: int) -> None:
    deadline = time.monotonic() + 30  # between fork and exec a child still is this process
    while not any(pid in record.users for record in list_environments(folder, now=NOW)):
        assert time.monotonic() < deadline, "nobody is seen to use it"
        time.sleep(0.01)


def test_users_are_seen_by_whatever_name_the_folder_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is given by a relative name or through a link is the same folder."""
    folder = make_environment(tmp_path / "real", "old", unused_days=400)
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([sys.executable, "-c", MAPS_A_LIBRARY, str(folder / "pyvenv.cfg")], stdin=subprocess.PIPE) as worker:
        wait_for_user(folder.parent, worker.pid)
        for name in ("real", "link"):
            assert list_environments(Path(name), now=NOW)[0].users == (worker.pid,)
        worker.communicate(b"\n")


@pytest.mark.parametrize("by", ["a-relative-path", "a-link", "its-path-after-a-change-of-folder", "the-PATH", "its-activation"])
def test_who_runs_it_is_seen_however_it_was_started(tmp_path: Path, by: str) -> None:
    """By a relative path, through a link to its folder, found on the PATH, or activated: it is used, and it is kept."""
    folder = make_environment(tmp_path / "real", "old", unused_days=400)
    (tmp_path / "link").symlink_to("real")
    leaves = "import os; os.chdir('/')\n" if by == "its-path-after-a-change-of-folder" else ""
    waits = ["-c", f"{leaves}print(flush=True); input()"]
    command = {
        "a-link": [f"{tmp_path}/link/old/bin/python", *waits],
        "the-PATH": ["env", "PATH=real/old/bin:/bin:/usr/bin", "python", *waits],
        "its-activation": ["env", f"VIRTUAL_ENV={tmp_path}/link/old", sys.executable, *waits],
    }.get(by, ["real/old/bin/python", *waits])
    environ = {**os.environ, "PWD": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, env=environ) as worker:
        assert worker.stdout
        worker.stdout.readline()
        assert prune_environments(folder.parent, unused_s=0, now=NOW) == []
        assert list_environments(folder.parent, now=NOW)[0].users == (worker.pid,)
        worker.communicate(b"\n")
    assert [record.name for record in prune_environments(folder.parent, unused_s=0, now=NOW)] == ["old"]


def test_another_environment_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    """A relative path counts from the folder of the process, and the first program on its PATH is meant."""
    ours, other = (make_environment(tmp_path / root, "old", unused_days=400) for root in ("ours", "other"))
    by_path = [f"--chdir={ours.parent}", f"PATH={other}/bin:{ours}/bin:/bin:/usr/bin", "python", "-c", "input()"]
    for command in (["--chdir", f"{other.parent}", "old/bin/python", "-c", "input()"], by_path):
        environ = {name: value for name, value in os.environ.items() if name != "PWD"}
        with subprocess.Popen(["env", *command], stdin=subprocess.PIPE, env=environ) as worker:
            wait_for_user(other.parent, worker.pid)
            assert list_environments(ours.parent, now=NOW)[0].users == ()
            worker.communicate(b"\n")


def test_the_number_of_users_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table."""
    make_environment(tmp_path, "old", unused_days=1)
    for users, told in (((), " - "), ((1,), " 1 process "), ((1, 2), " 2 processes ")):
        monkeypatch.setattr(python_env_cli, "_users", lambda folder, users=users: users)
        assert main(["list", "--venv-dir", str(tmp_path)]) == 0
        assert told in capsys.readouterr().out.splitlines()[1]


def test_an_environment_that_is_asked_for_while_prune_looks_around_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Age and users are looked at again at the moment of removal."""
    taken, run, free = (make_environment(tmp_path, name, unused_days=40) for name in ("taken", "run", "free"))
    measure = python_env_cli._size

    def meanwhile(folder: Path) -> int:
        if folder == taken:
            os.utime(folder / MARKER, (NOW, NOW))
        monkeypatch.setattr(python_env_cli, "_users", lambda folder: (1,) if folder == run else ())
        return measure(folder)

    monkeypatch.setattr(python_env_cli, "_size", meanwhile)
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW)] == ["free"]
    assert (taken.is_dir(), run.is_dir(), free.is_dir()) == (True, True, False)


def test_an_environment_in_which_workers_may_be_starting_is_kept(tmp_path: Path) -> None:
    """Between a run's asking and its workers nobody holds it: for ten minutes it is not pruned, whatever the limit."""
    make_environment(tmp_path, "just-taken", unused_days=9 / 1440)
    make_environment(tmp_path, "given-up", unused_days=11 / 1440)
    assert [record.name for record in prune_environments(tmp_path, unused_s=0, now=NOW)] == ["given-up"]


def test_two_prunes_at_once_each_count_what_they_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one has removed meanwhile is not told as one's own."""
    for name in ("a", "b"):
        make_environment(tmp_path, name, unused_days=40)
    listed, others = list_environments(tmp_path, now=NOW), []

    def another_prune_comes_first(*_: object, **__: object) -> object:
        monkeypatch.undo()
        others.extend(prune_environments(tmp_path, unused_s=0, now=NOW))
        return listed

    monkeypatch.setattr(python_env_cli, "list_environments", another_prune_comes_first)
    assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
    assert [record.name for record in others] == ["a", "b"]
    assert list(tmp_path.iterdir()) == []


def test_what_an_ended_remover_left_is_listed_and_removed(tmp_path: Path) -> None:
    """An environment that was taken away and not deleted goes with the next prune, of whatever age; one that is still used stays."""
    left = take_away(make_environment(tmp_path, "left", unused_days=0))
    used = take_away(make_environment(tmp_path, "used", unused_days=0))
    assert left is not None
    assert used is not None
    with subprocess.Popen([sys.executable, "-c", MAPS_A_LIBRARY, str(used / "pyvenv.cfg")], stdin=subprocess.PIPE) as worker:
        wait_for_user(tmp_path, worker.pid)
        assert states(tmp_path) == {left.name: "removed", used.name: "removed"}
        assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW)] == [left.name]
        worker.communicate(b"\n")
    assert [record.name for record in prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW)] == [used.name]


def test_the_log_and_lock_of_a_failed_build_go_with_age(tmp_path: Path) -> None:
    """They have no environment beside them; other locks and logs in the folder are not ours."""
    for name, days in ((FAILED, 40), ("new-0123456789abcdef", 1), ("uv", 400)):
        for kind in ("log", "lock"):
            (tmp_path / f"{name}.{kind}").touch()
            os.utime(tmp_path / f"{name}.{kind}", (NOW - days * DAY_S,) * 2)
    assert prune_environments(tmp_path, unused_s=30 * DAY_S, now=NOW) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"new-0123456789abcdef.{k}" for k in ("lock", "log")] + [
        "uv.lock",
        "uv.log",
    ]


def test_other_folders_are_nobodys_environments(tmp_path: Path) -> None:
    """A folder that no builder of ours made is neither listed nor removed, also one with a lock beside it."""
    for name in ("photos", "lk", "lk.lock"):
        (tmp_path / name).mkdir()
    (tmp_path / "photos.lock").touch()
    assert list_environments(tmp_path, now=NOW) == []
    assert prune_environments(tmp_path, unused_s=0, now=NOW) == []
    assert (tmp_path / "photos").is_dir()


def test_the_command_lists_and_prunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """list shows a table or JSON, prune says what went and how much."""
    os.utime(make_environment(tmp_path, "old", unused_days=0) / MARKER, (1, 1))
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


def test_an_entry_that_cannot_be_looked_at_is_passed_over_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One odd entry does not keep the others from being listed and pruned."""
    os.utime(make_environment(tmp_path, "old", unused_days=0) / MARKER, (1, 1))
    make_environment(tmp_path, HALF, unused_days=1, ready=False)
    (tmp_path / f"{HALF}.lock").unlink()
    (tmp_path / f"{HALF}.lock").mkdir()
    for command, shown in ((["list"], "old "), (["prune"], "old\nremoved 1 (")):
        assert main(["--venv-dir", str(tmp_path), *command]) == 0
        out, err = capsys.readouterr()
        assert shown in out
        assert err.startswith(f"rl-cluster-envs: {tmp_path / HALF} is passed over, got [Errno 21] Is a directory")
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["list", "prune"])
def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """No traceback for a wrong folder: one line, exit code 1."""
    (tmp_path / "file").touch()
    assert main(["--venv-dir", str(tmp_path / "file"), command]) == 1
    assert capsys.readouterr().err.startswith(f"rl-cluster-envs: {tmp_path / 'file'} must be usable, got [Errno 20] Not a directory")


@pytest.mark.parametrize("days", ["nan", "-1", "inf", "many"])
def test_days_that_are_no_number_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], days: str) -> None:
    """They would select all, or mean nothing."""
    make_environment(tmp_path, "old", unused_days=0)
    with pytest.raises(SystemExit) as left:
        main(["--venv-dir", str(tmp_path), "prune", f"--unused-days={days}"])
    assert left.value.code == 2
    assert f"must be a number of days, 0 or more, got {days}. Fix: e.g. --unused-days 30" in capsys.readouterr().err
    assert (tmp_path / "old").is_dir()
