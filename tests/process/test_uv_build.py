"""Environments built by a real uv, by real processes, some of which are killed. Local packages only: no index is asked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from uv_project import builds_of, find_uv, lock, make_project

import rl_cluster
from rl_cluster.errors import PythonEnvError
from rl_cluster.process import uv_build, uv_store
from rl_cluster.process.uv_build import ensure_environment
from rl_cluster.process.uv_store import MARKER, default_venv_dir
from rl_cluster.python_env import PythonPlan, resolve_python
from rl_cluster.schema import PythonSpec

pytestmark = pytest.mark.skipif(find_uv() is None, reason="no uv (pip install uv)")
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _own_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    for name in ("UV_PROJECT_ENVIRONMENT", "VIRTUAL_ENV", "NEMO_RL_VENV_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose ray and rl_cluster only have the right versions: they import at once."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ray.py").write_text(f"__version__ = {importlib.metadata.version('ray')!r}")
    (tmp_path / "modules" / "rl_cluster.py").touch()
    return make_project(tmp_path, ground=str(tmp_path / "modules"))


def plan_of(project: Path, executable: str = "BASE", **spec: object) -> PythonPlan:
    return resolve_python(PythonSpec(executable=executable, project_dir=str(project), **spec))  # type: ignore[arg-type]


def ask(python: Path, code: str) -> str:
    answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=WAIT_S, cwd="/")
    return answer.stdout.strip() or answer.stderr.strip().rpartition("\n")[2]


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# A builder in a process of its own: prints each line of progress, and stops for ever at the line that holds the word in argv[4].
BUILDER = """
import sys, time
from rl_cluster.python_env import resolve_python
from rl_cluster.schema import PythonSpec
from rl_cluster.process.uv_build import ensure_environment

def progress(line):
    print(line, flush=True)
    while sys.argv[4] and sys.argv[4] in line:
        time.sleep(1)

plan = resolve_python(PythonSpec(executable=sys.argv[3], project_dir=sys.argv[1]))
print(ensure_environment(plan, venv_dir=sys.argv[2], progress=progress, deadline_s=100), flush=True)
"""


@pytest.fixture
def start_builder(tmp_path: Path, project: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(executable: str = "BASE", stop_at: str = "") -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(Path(rl_cluster.__file__).parent.parent)}
        command = [sys.executable, "-c", BUILDER, str(project), str(tmp_path / "envs"), executable, stop_at]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_base_and_vllm_are_two_environments_each_with_its_own_packages(tmp_path: Path) -> None:
    """The extra is importable in VLLM's environment and not in BASE's; both run the real ray and rl_cluster with this Python."""
    project = make_project(tmp_path)
    base = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    vllm = ensure_environment(plan_of(project, "VLLM"), venv_dir=tmp_path / "envs")
    assert base != vllm
    assert ask(base, "import standin") == "ModuleNotFoundError: No module named 'standin'"
    assert ask(vllm, "import standin; print(standin.NAME)") == "standin"
    for python in (base, vllm):
        assert ask(python, "import sys; print(sys.executable, sys.prefix)") == f"{python} {python.parent.parent}"
        assert ask(python, "import ray, rl_cluster, platform; print(platform.python_version())") == ".".join(map(str, sys.version_info[:3]))


def test_a_ready_environment_is_found_again_and_not_built(tmp_path: Path, project: Path) -> None:
    """The second request runs no uv: it says nothing, builds nothing, and marks the use."""
    lines: list[str] = []
    first = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", progress=lines.append)
    assert [line.partition(": ")[2].split(" demo-")[0] for line in lines] == [
        "builds the Python environment",
        "checks that ray and rl_cluster import in",
        "marks",
        "the Python environment",
    ]
    marker = first.parent.parent / MARKER
    os.utime(marker, (1, 1))
    lines.clear()
    assert ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", progress=lines.append) == first
    assert lines == []
    assert builds_of(tmp_path, "ground") == 1
    assert marker.stat().st_mtime > 1


def test_eight_processes_that_want_one_environment_build_it_once(
    tmp_path: Path, start_builder: Callable[..., subprocess.Popen[str]]
) -> None:
    """One of eight builds, seven wait and reuse; all get the same interpreter."""
    (tmp_path / "ground.gate").touch()
    builders = [start_builder() for _ in range(8)]
    wait_for(lambda: builds_of(tmp_path, "ground"))
    (tmp_path / "ground.gate").unlink()
    outputs = [builder.communicate(timeout=2 * WAIT_S)[0].splitlines() for builder in builders]
    assert len({output[-1] for output in outputs}) == 1
    assert [sum("builds the Python environment" in line for line in output) > 0 for output in outputs].count(True) == 1
    assert builds_of(tmp_path, "ground") == 1


def test_with_gives_another_environment_that_holds_the_package(tmp_path: Path, project: Path) -> None:
    """--with adds packages on top of the locked ones, in an environment of their own."""
    with_it = ensure_environment(plan_of(project, "uv run --locked --with ../standin"), venv_dir=tmp_path / "envs")
    without = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    assert with_it != without
    assert ask(with_it, "import standin, ground_module; print(standin.NAME)") == "standin"
    assert ask(without, "import standin") == "ModuleNotFoundError: No module named 'standin'"


def test_another_lock_gives_another_environment(tmp_path: Path, project: Path) -> None:
    """After the lock changed the old environment is left alone and a new one is built."""
    before = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    text = (project / "pyproject.toml").read_text().replace('dependencies = ["ground"]', 'dependencies = ["ground", "standin"]')
    (project / "pyproject.toml").write_text(text)
    lock(project)
    after = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    assert ask(after, "import standin; print(standin.NAME)") == "standin"
    assert ask(before, "import standin") == "ModuleNotFoundError: No module named 'standin'"


def _change(package: Path, old: str, new: str) -> None:
    """Another content in the wheel of a local package; nothing of it lies in the files that uv looks at."""
    backend = package / "backend.py"
    assert old in backend.read_text()
    backend.write_text(backend.read_text().replace(old, new))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("uv run --locked --extra vllm", id="dependency"),
        pytest.param("uv run --locked --extra vllm --offline", id="offline", marks=pytest.mark.slow),
        pytest.param("uv run --extra vllm", id="not-locked", marks=pytest.mark.slow),
        pytest.param("uv run --locked --with ../standin", id="with"),
    ],
)
def test_the_environment_of_a_changed_local_package_holds_the_change(tmp_path: Path, project: Path, line: str) -> None:
    """uv's cache has a wheel of the package as it was before; the environment of the new content must not get that one."""
    before = ensure_environment(plan_of(project, line), venv_dir=tmp_path / "envs")
    _change(tmp_path / "standin", "NAME = 'standin'", "NAME = 'changed'")
    after = ensure_environment(plan_of(project, line), venv_dir=tmp_path / "envs")
    assert before != after
    assert ask(before, "import standin; print(standin.NAME)") == "standin"
    assert ask(after, "import standin; print(standin.NAME)") == "changed"


def processes_naming(path: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if os.fsencode(path) in command:
            found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.mark.parametrize(
    "stop_at",
    [
        pytest.param("", id="while-uv-builds"),
        pytest.param("checks that ray", id="before-the-check"),
        pytest.param("marks demo", id="before-the-marker"),
    ],
)
def test_a_killed_builder_leaves_nothing_that_counts_as_ready(
    tmp_path: Path, project: Path, start_builder: Callable[..., subprocess.Popen[str]], stop_at: str
) -> None:
    """After SIGKILL at any point the next builder builds anew, at once, and no uv of the dead one writes on."""
    if not stop_at:
        (tmp_path / "ground.gate").touch()
    builder = start_builder(stop_at=stop_at)
    assert builder.stdout
    if stop_at:
        while stop_at not in builder.stdout.readline():
            assert builder.poll() is None
    else:
        wait_for(lambda: builds_of(tmp_path, "ground"))
    builder.kill()
    builder.wait()
    wait_for(lambda: not [command for command in processes_naming(project.parent / "uv-cache") if "uv sync" in command])
    (tmp_path / "ground.gate").unlink(missing_ok=True)
    folders = [path for path in (tmp_path / "envs").iterdir() if path.is_dir()]
    assert [(folder / MARKER).exists() for folder in folders] == [False]

    lines: list[str] = []
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", progress=lines.append, deadline_s=WAIT_S)
    assert "was left unfinished or damaged, it is built anew" in lines[0]
    assert ask(python, "import ground_module, ray, rl_cluster; print('whole')") == "whole"
    assert [path for path in (tmp_path / "envs").iterdir() if path.is_dir()] == folders


def test_uv_dies_with_its_builder(tmp_path: Path, start_builder: Callable[..., subprocess.Popen[str]]) -> None:
    """The kernel ends uv when its builder is killed: nothing writes on into a folder that another builder has taken over."""
    (tmp_path / "ground.gate").touch()
    builder = start_builder()
    wait_for(lambda: builds_of(tmp_path, "ground"))
    (uv,) = psutil.Process(builder.pid).children()
    assert uv.name() == "uv"
    builder.kill()
    builder.wait()
    wait_for(lambda: not uv.is_running() or uv.status() == psutil.STATUS_ZOMBIE)


def test_a_waiter_says_for_whom_it_waits_and_gives_up_at_its_deadline(
    tmp_path: Path, project: Path, start_builder: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another one builds there are lines of progress; at the deadline there is an error that names the other."""
    monkeypatch.setattr(uv_build, "PROGRESS_EVERY_S", 0.1)
    (tmp_path / "ground.gate").touch()
    builder = start_builder()
    wait_for(lambda: builds_of(tmp_path, "ground"))
    lines: list[str] = []
    with pytest.raises(PythonEnvError) as caught:
        ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", deadline_s=0.5, progress=lines.append, node="node-7")
    assert lines[0].startswith("node node-7: waits for the Python environment demo-")
    assert f"(built by process {builder.pid} on " in lines[0]
    assert str(caught.value).startswith(
        "python.executable on node node-7: it must be ready within 0.5 s, got one that is still being built by process "
    )
    assert "Fix: raise python.build_timeout_s, or end that builder" in str(caught.value)
    assert builder.poll() is None


@pytest.mark.slow
def test_a_build_that_takes_too_long_is_ended(tmp_path: Path, project: Path) -> None:
    """At the deadline uv and what it started are killed, the half environment is removed, and the error says what ran."""
    (tmp_path / "ground.gate").touch()
    with pytest.raises(PythonEnvError, match=r"must be ready within 2 s, got uv sync still runs .* Fix: raise python\.build_timeout_s"):
        ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", deadline_s=2)
    wait_for(lambda: not processes_naming(tmp_path / "ground"))
    assert [path for path in (tmp_path / "envs").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda env: next(env.glob("lib/python*/site-packages/ground_module.py")).unlink(), id="a-module-is-gone"),
        pytest.param(
            lambda env: next(env.glob("lib/python*/site-packages/ground.pth")).unlink(), id="a-pth-file-is-gone", marks=pytest.mark.slow
        ),
        pytest.param(lambda env: (env / "bin" / "python").unlink(), id="no-interpreter", marks=pytest.mark.slow),
        pytest.param(lambda env: (env / "pyvenv.cfg").unlink(), id="no-pyvenv.cfg", marks=pytest.mark.slow),
        pytest.param(lambda env: (env / MARKER).write_text((env / MARKER).read_text()[:40]), id="half-a-marker"),
        pytest.param(lambda env: (env / MARKER).write_text("{}"), id="another-marker", marks=pytest.mark.slow),
        pytest.param(lambda env: (env / MARKER).unlink(), id="no-marker"),
    ],
)
def test_a_damaged_environment_is_built_anew(tmp_path: Path, project: Path, damage: Callable[[Path], object]) -> None:
    """Lost files, or a marker that isn't whole, make an environment unready; it is rebuilt in the same place."""
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    damage(python.parent.parent)
    lines: list[str] = []
    assert ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", progress=lines.append) == python
    assert "built anew" in lines[0]
    assert ask(python, "import ground_module, ray; print('whole')") == "whole"
    assert json.loads((python.parent.parent / MARKER).read_text())["key"] == python.parent.parent.name


def _unlock(project: Path) -> None:
    (project / "uv.lock").unlink()


def _outdate(project: Path) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace('dependencies = ["ground"]', 'dependencies = ["ground", "standin"]'))


def _break(project: Path) -> None:
    (project.parent / "ground.broken").touch()


def _require_another_python(project: Path) -> None:
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace(">=3.10", ">=3.99"))


@pytest.mark.parametrize(
    ("executable", "change", "rule", "fix"),
    [
        pytest.param(
            "BASE", _unlock, "the project must be locked, got no uv.lock in {project}", "run uv lock --directory {project}", id="no-lock"
        ),
        pytest.param(
            "BASE", _outdate, "the lock must be up to date, got exit code 1", "run uv lock --directory {project}", id="lock-out-of-date"
        ),
        pytest.param(
            "uv run --locked --extra wurst",
            None,
            "the project must define the extra wurst, got exit code 2",
            "add it to project.optional-dependencies of {project}",
            id="unknown-extra",
        ),
        pytest.param(
            "uv run --locked --group wurst",
            None,
            "the project must define the group wurst, got exit code 2",
            "add it to dependency-groups of {project}",
            id="unknown-group",
        ),
        pytest.param(
            "BASE", _break, "its packages must build, got exit code 1", "build it by hand on that node: uv run --locked", id="build-fails"
        ),
        pytest.param(
            "BASE",
            _require_another_python,
            "the project must allow the cluster's Python",
            "widen requires-python of {project}",
            id="other-python",
        ),
        pytest.param("BASE", shutil.rmtree, "must be a uv project on every node", "give python.project_dir a", id="no-project"),
        pytest.param("/nowhere/uv run --locked", None, "uv must be installed, got no program '/nowhere/uv'", "pip install uv", id="no-uv"),
    ],
)
def test_what_can_go_wrong_with_a_project_is_one_clear_error(
    tmp_path: Path, project: Path, executable: str, change: Callable[[Path], object] | None, rule: str, fix: str
) -> None:
    """Each cause has its own rule and fix; the error names the node and the command, shows the output without secrets, leaves no folder."""
    if change:
        change(project)
    with pytest.raises(PythonEnvError) as caught:
        ensure_environment(plan_of(project, executable), venv_dir=tmp_path / "envs", node="node-7")
    text = str(caught.value)
    where = "python.project_dir" if change is shutil.rmtree else "python.executable"
    assert text.startswith(f"{where} on node node-7: " + rule.format(project=project))
    assert f"Fix: {fix.format(project=project)}" in text
    assert "planted-secret" not in text
    assert caught.value.facts["node"] == "node-7"
    assert caught.value.facts["command"]
    if "exit code" in rule:
        assert "\nLast lines of its output:\n" in text
        assert caught.value.facts["output"]
    if (tmp_path / "envs").exists():
        assert [path for path in (tmp_path / "envs").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("modules", "rule"),
    [
        pytest.param({}, "it must import ray and rl_cluster, got ModuleNotFoundError: No module named 'ray'", id="no-ray"),
        pytest.param(
            {"ray": "__version__ = '1.2.3'"},
            "it must import ray and rl_cluster, got ModuleNotFoundError: No module named 'rl_cluster'",
            id="no-rl-cluster",
        ),
        pytest.param({"ray": "__version__ = '1.2.3'", "rl_cluster": ""}, "it must have the cluster's Ray", id="another-ray"),
        pytest.param(
            {"ray": "import sys, importlib.metadata\nsys.version_info = (3, 99, 0)\n__version__ = {ray!r}", "rl_cluster": ""},
            "it must have the cluster's Python",
            id="another-python",
        ),
    ],
)
def test_an_environment_that_does_not_suit_the_cluster_is_refused(tmp_path: Path, modules: dict[str, str], rule: str) -> None:
    """ray and rl_cluster must import, with the cluster's Ray version and Python minor; else no environment stays."""
    (tmp_path / "modules").mkdir()
    for name, text in modules.items():
        (tmp_path / "modules" / f"{name}.py").write_text(text.replace("{ray!r}", repr(importlib.metadata.version("ray"))))
    project = make_project(tmp_path, ground=str(tmp_path / "modules"))
    with pytest.raises(PythonEnvError) as caught:
        ensure_environment(plan_of(project), venv_dir=tmp_path / "envs", node="node-7")
    assert str(caught.value).startswith(f"python.executable on node node-7: {rule}")
    assert "Fix: " in str(caught.value)
    assert [path for path in (tmp_path / "envs").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("venv_dir", "reason"),
    [
        pytest.param("{tmp}/file", "[Errno 17] File exists: '{tmp}/file'", id="a-file"),
        pytest.param("{tmp}/file/x", "[Errno 20] Not a directory: '{tmp}/file/x'", id="below-a-file"),
        pytest.param("/dev/null/x", "[Errno 20] Not a directory: '/dev/null/x'", id="below-a-device"),
        pytest.param("/proc/x", "[Errno 2] No such file or directory: '/proc/x'", id="not-on-a-disk"),
    ],
)
def test_a_venv_dir_that_is_no_folder_is_one_clear_error(tmp_path: Path, project: Path, venv_dir: str, reason: str) -> None:
    """The key is named, with the folder, the reason of the system, and what helps."""
    (tmp_path / "file").touch()
    with pytest.raises(PythonEnvError) as caught:
        ensure_environment(plan_of(project), venv_dir=venv_dir.format(tmp=tmp_path), node="node-7")
    text = str(caught.value)
    assert text.startswith(
        f"python.venv_dir on node node-7: must be a folder that can be written, got {reason.format(tmp=tmp_path)} (command"
    )
    assert text.endswith("Fix: remove what is in the way, or give python.venv_dir another folder of yours")


@pytest.mark.parametrize("kind", ["lock", "log"])
def test_a_folder_in_the_place_of_a_lock_is_one_clear_error(tmp_path: Path, project: Path, kind: str) -> None:
    """What lies in the way is named."""
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    shutil.rmtree(python.parent.parent)
    in_the_way = python.parent.parent.with_name(f"{python.parent.parent.name}.{kind}")
    in_the_way.unlink()
    in_the_way.mkdir()
    with pytest.raises(
        PythonEnvError, match=r"python\.venv_dir on node .* got \[Errno 21\] Is a directory: .*\.l.* Fix: remove what is in"
    ):
        ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")


def test_a_file_in_the_place_of_an_environment_is_taken_away(tmp_path: Path, project: Path) -> None:
    """It counts as a damaged environment."""
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    shutil.rmtree(python.parent.parent)
    python.parent.parent.touch()
    assert ensure_environment(plan_of(project), venv_dir=tmp_path / "envs") == python
    assert not list((tmp_path / "envs").glob(".trash-*"))


def test_a_builder_removes_what_an_ended_remover_left(tmp_path: Path, project: Path) -> None:
    """Whichever environment it was."""
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    environment = python.parent.parent
    environment.rename(environment.with_name(f".trash-{environment.name}-01234567"))
    (tmp_path / "envs" / ".trash-other-0123456789abcdef-01234567").mkdir()
    ensure_environment(plan_of(project, "VLLM"), venv_dir=tmp_path / "envs")
    assert not list((tmp_path / "envs").glob(".trash-*"))


def test_the_log_of_a_build_holds_no_login_and_is_the_users_own(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can read the folder of environments; what uv writes may name an index with its login."""
    _break(project)
    monkeypatch.setenv("UV_INDEX_OURS_PASSWORD", "planted-password")
    _change(tmp_path / "ground", "this package does not build", "planted-password does not build")
    with pytest.raises(PythonEnvError):
        ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    (log,) = (tmp_path / "envs").glob("*.log")
    assert "https://***@index.invalid/simple" in log.read_text()
    assert "planted" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_command_of_a_failed_build_can_be_pasted(tmp_path: Path, project: Path) -> None:
    """In a shell, from any folder, it does what the builder did."""
    _break(project)
    envs = tmp_path / "the envs"
    with pytest.raises(PythonEnvError) as caught:
        ensure_environment(plan_of(project), venv_dir=envs)
    (tmp_path / "ground.broken").unlink()
    subprocess.run(["sh", "-c", caught.value.facts["command"]], cwd="/", check=True, capture_output=True, timeout=WAIT_S)
    (made,) = (path for path in envs.iterdir() if path.is_dir())
    assert ask(made / "bin" / "python", "import ground_module; print('there')") == "there"
    assert not (project / ".venv").exists()


def test_a_uv_that_is_killed_is_told_as_such(tmp_path: Path, start_builder: Callable[..., subprocess.Popen[str]]) -> None:
    """The signal is named, and what sends it most."""
    (tmp_path / "ground.gate").touch()
    builder = start_builder()
    wait_for(lambda: builds_of(tmp_path, "ground"))
    (uv,) = psutil.Process(builder.pid).children()
    uv.kill()
    out, _ = builder.communicate(timeout=WAIT_S)
    assert "nothing must end the build, got uv sync was killed by signal 9 (SIGKILL) (command: env -C " in out
    assert "Fix: look whether the node ran out of memory (dmesg), then start again" in out


def test_an_environment_that_is_taken_away_at_the_last_moment_is_built_again(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its files and the hold on it a prune may have been quicker."""
    python = ensure_environment(plan_of(project), venv_dir=tmp_path / "envs")
    look = uv_build.is_whole

    def then_prune(folder: Path) -> bool:
        monkeypatch.setattr(uv_build, "is_whole", look)
        answer = look(folder)
        uv_store.remove_environment(folder)
        return answer

    monkeypatch.setattr(uv_build, "is_whole", then_prune)
    assert ensure_environment(plan_of(project), venv_dir=tmp_path / "envs") == python
    assert ask(python, "import ground_module; print('there')") == "there"


def test_a_full_disk_is_one_clear_error(tmp_path: Path, project: Path) -> None:
    """On a disk without room the error says so and names what frees some."""
    small = tmp_path / "small"
    small.mkdir()
    code = (
        "import sys\nfrom rl_cluster.python_env import resolve_python\nfrom rl_cluster.schema import PythonSpec\n"
        "from rl_cluster.process.uv_build import ensure_environment\nfrom rl_cluster.errors import PythonEnvError\n"
        "try:\n    ensure_environment(resolve_python(PythonSpec(executable='BASE', project_dir=sys.argv[1])), venv_dir=sys.argv[2])\n"
        "except PythonEnvError as error:\n    print(error)\n"
    )
    mount = f'mount -t tmpfs -o size=16k small "{small}" && exec "$@"'
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        mount,
        "sh",
        sys.executable,
        "-c",
        code,
        str(project),
        str(small),
    ]
    environ = {**os.environ, "PYTHONPATH": str(Path(rl_cluster.__file__).parent.parent)}
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S)
    if "unshare" in answer.stderr or "mount:" in answer.stderr:
        pytest.skip(f"a small disk can't be made here: {answer.stderr.strip()}")
    assert "the disk must have room" in answer.stdout
    assert "Fix: give python.venv_dir another disk, or run rl-cluster-envs prune" in answer.stdout


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        pytest.param({"HOME": "/h"}, "/h/.cache/rl_cluster/envs", id="cache-of-the-user"),
        pytest.param({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/rl_cluster/envs", id="xdg"),
        pytest.param({"HOME": "/h", "XDG_CACHE_HOME": "/c", "NEMO_RL_VENV_DIR": "/v"}, "/v", id="nemo-rl"),
    ],
)
def test_where_environments_lie_by_default(environ: dict[str, str], folder: str) -> None:
    """NEMO_RL_VENV_DIR is honoured; else it is a cache folder of the user."""
    assert default_venv_dir(environ) == Path(folder)
