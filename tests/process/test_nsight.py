"""Profiled workers, on two nodes of a real Ray of which one has a stand-in for nsys on its PATH. No real nsys is run."""

from __future__ import annotations

import ast
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standin_nsys import write_nsys
from two_nodes import REPOSITORY, two_nodes

from rl_cluster.config import from_config
from rl_cluster.errors import ConfigError, PythonEnvError
from rl_cluster.process.nsight import Nsight
from rl_cluster.schema import WorkerSpec

NAMES = ["policy-0-0", "policy-0-1", "policy-1-0"]


def asked(options: Any = "default", workers: list[str] | None = None) -> Nsight:
    return Nsight.asked(options, workers or ["*"], "/run/nsight")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("default", ["-t", "cuda,cudnn,cublas,nvtx", "--stop-on-exit=true", "-o", "OUT"]),
        ({"t": "nvtx", "capture-range": "cudaProfilerApi"}, ["-t", "nvtx", "--capture-range=cudaProfilerApi", "-o", "OUT"]),
        ({"stop-on-exit": False, "delay": 3}, ["--stop-on-exit=false", "--delay=3", "-o", "OUT"]),
    ],
    ids=["default", "names of one letter and of more", "flags and numbers"],
)
def test_the_options_are_those_of_rays_runtime_env(options: Any, words: list[str]) -> None:
    """One letter gets one dash, a longer name two; the output comes last."""
    assert asked(options).command("/bin/nsys", "OUT") == ("/bin/nsys", "profile", *words)


def test_each_profile_is_named_after_its_worker() -> None:
    """In the folder of the run, unless the user names an output; quotes as Ray's documentation has them are taken off."""
    assert asked().choose(NAMES[:1]) == {"policy-0-0": "/run/nsight/policy-0-0"}
    assert asked(workers=["policy-0-*"]).choose(NAMES) == {name: f"/run/nsight/{name}" for name in NAMES[:2]}
    assert asked({"o": "'mine_%p'"}).choose(NAMES) == dict.fromkeys(NAMES, "/run/nsight/mine_%p")
    assert asked({"output": "/else/where"}, ["policy-1-0"]).choose(NAMES) == {"policy-1-0": "/else/where"}


def test_a_pattern_that_matches_no_worker_is_told_with_the_names() -> None:
    """So that the next try is right."""
    with pytest.raises(ConfigError) as caught:
        asked(workers=["policy-*", "worker-0-0"]).choose(NAMES)
    assert str(caught.value) == (
        "worker.nsight_workers[1]: must match a worker, got 'worker-0-0'. Fix: the workers are policy-0-0, policy-0-1, policy-1-0"
    )


def test_an_output_lies_in_a_folder_that_is_known_before_the_worker() -> None:
    """nsys makes no folders; and the message shows what the user wrote."""
    line = r"^worker\.nsight\.o: must be in a folder that is there before the worker, got 'a%p/b'\. Fix: write it in the file's name"
    with pytest.raises(ConfigError, match=line):
        asked({"o": "a%p/b"}, ["policy-1-0"]).choose(NAMES)
    with pytest.raises(ConfigError, match=r"got 'rel/b'\. Fix: write rel/b_%p"):
        asked({"o": "rel/b"}).choose(NAMES)
    assert asked({"o": "rel/b_%p"}).choose(NAMES) == dict.fromkeys(NAMES, "/run/nsight/rel/b_%p")


def test_several_workers_do_not_write_one_file() -> None:
    """The user's own output needs the pid in it, then."""
    with pytest.raises(
        ConfigError, match=r"^worker\.nsight\.o: must hold %p \(the pid\) where 3 workers write, got '/a/b'\. Fix: write /a/b_%p"
    ):
        asked({"o": "/a/b"}).choose(NAMES)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("nsight", "defualt", "nsight: must be default or a mapping of nsys profile's options, got 'defualt'"),
        ("nsight", {}, "nsight: must hold an option at least, got {}. Fix: write default, or null to profile nothing"),
        (
            "nsight",
            {"--trace": "cuda"},
            "nsight: must be the name of an option of nsys profile, without dashes, got '--trace'. Fix: write trace",
        ),
        ("nsight", {"t": ["cuda"]}, "nsight.t: must be a text, a number, or true or false, got ['cuda']"),
        ("nsight", {"o": "a", "output": "b"}, "nsight: must name its output once, got"),
        ("nsight_workers", [], "nsight_workers: must hold a pattern at least, got []"),
    ],
    ids=["a slip", "nothing", "dashes", "a list", "two outputs", "no pattern"],
)
def test_slips_are_told(key: str, value: Any, line: str) -> None:
    """Each in a line, before anything starts."""
    with pytest.raises(ConfigError) as caught:
        from_config({key: value}, kind=WorkerSpec)
    assert str(caught.value).startswith(line)


# --- with a Ray ---

USER = """
import os, sys, time
import ray

class Who:
    def who(self):
        return sys.executable, sys.flags.dev_mode, os.environ.get("MINE")

    def wait(self, path):
        while not os.path.exists(path):
            time.sleep(0.02)

@ray.remote(runtime_env={"nsight": "default", "env_vars": {"MINE": "decorated"}})
class Decorated(Who):
    pass
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where nsys and the user's module lie."""
    folder = tmp_path_factory.mktemp("ground")
    write_nsys(folder / "bin")
    (folder / "nsight_user.py").write_text(USER)
    return folder


@pytest.fixture(scope="module")
def connected(ground: Path) -> Iterator[None]:
    """A Ray of two nodes: the resource ``nsys`` is where the program is, ``none`` where it is not. ``python`` of PATH is none of ours."""
    (ground / "bin" / "python").write_text("#!/bin/sh\nexit 9\n")
    (ground / "bin" / "python").chmod(0o755)
    with_it = {"PATH": f"{ground}/bin:{os.environ['PATH']}"}
    head = {"num_cpus": 4, "resources": {"nsys": 4}, "env_vars": with_it}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ground))
        environ = {"PYTHONPATH": os.pathsep.join([str(ground), REPOSITORY])}
        with two_nodes(environ, head=head, second={"num_cpus": 4, "resources": {"none": 4}}):
            yield


def cluster_of(resource: str, bundles: int = 2) -> Any:
    from rl_cluster.builders import build_cluster

    return build_cluster(
        {"gpus_per_node": 0, "bundles_per_node": bundles, "resources": {resource: 1}, "use_head": "always", "timeout_s": 30}
    )


def group_of(cluster: Any, target: str = "nsight_user.Who", **more: Any) -> Any:
    from rl_cluster.builders import build_worker_group

    return build_worker_group(cluster, target, name="policy", **more)


def living() -> list[str]:
    from ray._private.state import actors

    return [actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"]


def profile(path: str | Path) -> tuple[str, int]:
    """The stand-in's profile: which program it started, and with what code that one ended."""
    program, code = ast.literal_eval(Path(path).read_text())
    return program, code


@pytest.mark.slow
@pytest.mark.ray
def test_one_of_two_workers_is_profiled_in_its_own_python(connected: None, tmp_path: Path) -> None:
    """The pattern chooses; it runs the interpreter of its group and not PATH's, ends in order, and its profile is there afterwards."""
    with cluster_of("nsys") as cluster:
        with group_of(cluster, nsight="default", nsight_workers=["policy-0-1"], nsight_dir=tmp_path) as group:
            assert group.run_all("who") == [(sys.executable, False, None)] * 2
            (record,) = group.profiles
            assert (record.name, record.output, record.files) == ("policy-0-1", str(tmp_path / "policy-0-1"), ())
            assert group.records[record.rank].name == "policy-0-1"
        (record,) = group.profiles
        assert (record.files, record.problem) == ((str(tmp_path / "policy-0-1.nsys-rep"),), None)
        assert profile(record.files[0]) == (sys.executable, 0)
        assert os.listdir(tmp_path) == ["policy-0-1.nsys-rep"]


@pytest.mark.slow
@pytest.mark.ray
def test_a_command_line_keeps_its_words_behind_the_profiler(connected: None, tmp_path: Path) -> None:
    """Ray's own way to ask (``options``) means the same, with an output of the user's and other things of the runtime_env."""
    runtime_env = {"nsight": {"t": "nvtx", "o": f"{tmp_path}/mine_%p"}, "env_vars": {"MINE": "set"}}
    with cluster_of("nsys") as cluster:
        with group_of(cluster, python={"executable": f"{sys.executable} -X dev"}, options={"runtime_env": runtime_env}) as group:
            assert group.run_all("who") == [(sys.executable, True, "set")] * 2
        assert [record.files for record in group.profiles] == [(f"{tmp_path}/mine_{record.pid}.nsys-rep",) for record in group.records]
        assert [record.problem for record in group.profiles] == [None, None]


@pytest.mark.slow
@pytest.mark.ray
def test_a_class_that_is_decorated_for_rays_profiler(connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is profiled as it says, below the current folder; what the caller says counts more."""
    monkeypatch.chdir(tmp_path)
    with cluster_of("nsys", 1) as cluster:
        with group_of(cluster, "nsight_user.Decorated") as group:
            assert group.run_all("who") == [(sys.executable, False, "decorated")]
        (written,) = (tmp_path / "nsight").glob("*/policy-0-0.nsys-rep")
        assert group.profiles[0].files == (str(written),)
        with group_of(cluster, "nsight_user.Decorated", nsight={"t": "osrt"}, nsight_dir=tmp_path / "other") as group:
            pass
        assert group.profiles[0].files == (f"{tmp_path}/other/policy-0-0.nsys-rep",)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("resource", "options", "said"),
    [
        (
            "none",
            "default",
            r"^worker\.nsight on node .*: nsys must be on PATH, got no program 'nsys' .* Fix: install Nsight Systems there",
        ),
        (
            "nsys",
            {"tarce": "cuda"},
            r"^worker\.nsight on node .*: nsys must take these options, got exit code 1: unrecognised option '--tarce=",
        ),
        (
            "nsys",
            {"o": "/proc/there/p_%p"},
            r"^worker\.nsight on node .*: /proc/there must be writable, got .* Fix: give worker\.nsight\.o a path",
        ),
    ],
    ids=["no nsys on the node", "refused options", "no folder"],
)
def test_what_a_node_can_not_do_is_told_before_any_worker(connected: None, tmp_path: Path, resource: str, options: Any, said: str) -> None:
    """One error that names the node; no worker is left, and the bundles are free for the next group."""
    with cluster_of(resource) as cluster:
        with pytest.raises(PythonEnvError, match=said):
            group_of(cluster, nsight=options, nsight_dir=tmp_path)
        assert [name for name in living() if name not in ("_NodeHand",)] == []
        assert list(tmp_path.iterdir()) == []
        with group_of(cluster) as group:
            assert group.world_size == 2


@pytest.fixture
def gate(ground: Path) -> Iterator[Path]:
    """While this file is there, nsys does not write."""
    path = ground / "bin" / "gate"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.ray
def test_a_profile_that_is_still_written_is_waited_for(connected: None, gate: Path, tmp_path: Path) -> None:
    """The group has ended only when nsys has."""
    with cluster_of("nsys", 1) as cluster:
        group = group_of(cluster, nsight="default", nsight_dir=tmp_path)
        gate.touch()
        ending = threading.Thread(target=group.shutdown)
        ending.start()
        pid = group.records[0].pid
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.02)
        ending.join(1)  # within which Ray ends what it takes for left over by the worker
        assert ending.is_alive()
        gate.unlink()
        ending.join()
        assert [(record.files, record.problem) for record in group.profiles] == [((f"{tmp_path}/policy-0-0.nsys-rep",), None)]


@pytest.mark.slow
@pytest.mark.ray
def test_a_profile_that_is_not_written_in_time_is_told(connected: None, gate: Path, tmp_path: Path) -> None:
    """nsys that does not come to its end holds nothing up for longer than was given."""
    with cluster_of("nsys", 1) as cluster, group_of(cluster, nsight="default", nsight_dir=tmp_path) as group:
        gate.touch()
        (record,) = group.end_profiled(timeout_s=2)
        assert (record.files, record.problem) == ((), "nsys had not ended in time: its profile is not there, or not whole")


@pytest.mark.slow
@pytest.mark.ray
def test_a_busy_worker_is_ended_hard_and_that_is_told(connected: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After half of the time; what nsys wrote of it is there all the same."""
    with cluster_of("nsys", 1) as cluster:
        with group_of(cluster, nsight="default", nsight_dir=tmp_path) as group:
            group.workers[0].wait.remote(f"{tmp_path}/never")
            (record,) = group.end_profiled(timeout_s=4)
        assert record.files == (f"{tmp_path}/policy-0-0.nsys-rep",)
        assert record.problem == "the worker was still busy and was ended hard: the end of its profile may be missing"
        assert f"rank 0 (policy-0-0) on {record.address}: the worker was still busy" in caplog.text


def test_a_decoration_that_only_the_workers_python_can_see_is_refused(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's plugin would act on it, with another Python; nothing is started."""
    from rl_cluster.workers.actors import ActorRecipe

    monkeypatch.syspath_prepend(str(ground))
    with pytest.raises(ConfigError, match=r"^worker options: nsight of @ray\.remote must be known .* Fix: give it as worker\.nsight$"):
        ActorRecipe("nsight_user.Decorated", {}, None, nsight_seen=False).create([])


def test_patterns_without_a_profiler_are_refused() -> None:
    """They would silently do nothing."""
    from rl_cluster.workers.profiles import ask_for_profiles

    with pytest.raises(
        ConfigError, match=r"^worker\.nsight_workers: must be left out without worker\.nsight, got \['a'\]\. Fix: write worker"
    ):
        ask_for_profiles(threading.Thread, {}, None, ["a"], None, ["a"])
    assert ask_for_profiles(threading.Thread, {"num_cpus": 1}, None, ["*"], None, ["a"]) == ({"num_cpus": 1}, None, True)
