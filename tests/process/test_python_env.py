"""From ``python.executable`` to a plan: values in, values out."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_cluster import python_env
from rl_cluster.errors import ConfigError
from rl_cluster.process.uv_request import UvRequest
from rl_cluster.process.uv_store import MARKER
from rl_cluster.python_env import disable_rays_uv_hook, resolve_python
from rl_cluster.schema import PythonSpec
from rl_cluster.workers.worker_boot import environment_of


@pytest.mark.parametrize("executable", ["SYSTEM", sys.executable], ids=["by-name", "by-path"])
def test_system_is_this_interpreter_and_needs_no_runtime_env(executable: str) -> None:
    """SYSTEM, also given as this interpreter's path, adds nothing to a worker's start."""
    plan = resolve_python(PythonSpec(executable=executable))
    assert (plan.kind, plan.command, plan.needs_build, plan.runtime_env()) == ("system", (sys.executable,), False, {})


@pytest.mark.parametrize(
    ("executable", "command"),
    [
        pytest.param("BASE", "uv run --locked --directory /proj", id="base"),
        pytest.param("VLLM", "uv run --locked --extra vllm --directory /proj", id="vllm"),
        pytest.param(python_env.VLLM, "uv run --locked --extra vllm --directory /proj", id="the-constant"),
        pytest.param(
            "/opt/uv --offline run --frozen -p 3.11", "/opt/uv run --offline --frozen --python 3.11 --directory /proj", id="options"
        ),
        pytest.param(
            "uv run --locked --extra=a --with 'x>1' --isolated", "uv run --locked --extra a --with 'x>1' --directory /proj", id="with"
        ),
    ],
)
def test_a_uv_command_becomes_an_environment_of_the_project(executable: str, command: str) -> None:
    """BASE, VLLM and any uv run are a build in project_dir, and say the uv run that gives the same packages."""
    plan = resolve_python(PythonSpec(executable=executable, project_dir="/proj"))
    assert (plan.kind, plan.needs_build, plan.project_dir, shlex.join(plan.command)) == ("uv", True, "/proj", command)


def test_a_built_environment_starts_its_own_python_and_an_unbuilt_one_uv_run() -> None:
    """Workers of a built environment run bin/python directly; without a build every worker goes through uv run."""
    plan = resolve_python(PythonSpec(executable="uv run --locked python -X dev", project_dir="/proj"))
    assert plan.runtime_env("/envs/a b/bin/python") == {"py_executable": "'/envs/a b/bin/python' -X dev", "env_vars": {"PYTHONPATH": ""}}
    assert plan.runtime_env() == {"py_executable": "uv run --locked --directory /proj python -X dev", "env_vars": {"PYTHONPATH": ""}}


def test_any_other_command_line_is_taken_as_it_is() -> None:
    """A path to a python, or a wrapper with arguments, is what workers start; words with blanks stay quoted."""
    plan = resolve_python(PythonSpec(executable="nsys profile -o '/my out/%p' /opt/py/bin/python"))
    assert (plan.kind, plan.needs_build) == ("command", False)
    assert plan.runtime_env() == {"py_executable": "nsys profile -o '/my out/%p' /opt/py/bin/python"}


@pytest.mark.parametrize(
    ("project_dir", "executable", "absolute"),
    [
        pytest.param(None, "BASE", "/here", id="missing-is-the-working-folder"),
        pytest.param("sub/../proj", "BASE", "/here/proj", id="relative"),
        pytest.param("/proj", "BASE", "/proj", id="absolute"),
        pytest.param(None, "uv run --directory x", "/here/x", id="of-the-command-line"),
        pytest.param(None, "uv run --project=/x", "/x", id="project-of-the-command-line"),
    ],
)
def test_the_project_folder_is_absolute(project_dir: str | None, executable: str, absolute: str) -> None:
    """Nodes have other working folders than the driver, so the plan holds an absolute one."""
    assert resolve_python(PythonSpec(executable=executable, project_dir=project_dir), cwd="/here").project_dir == absolute


def test_the_request_holds_everything_an_environment_is_made_of() -> None:
    """Extras, groups, --with, Python and indexes are kept apart; what has no effect on an environment is dropped."""
    line = (
        "uv -q run --locked --extra a --group=b -w p --with-editable ./e --with-requirements r.txt -p 3.12 -i http://i -n python -u -X dev"
    )
    assert resolve_python(PythonSpec(executable=line)).uv == UvRequest(
        uv="uv",
        sync_args=("--locked", "--extra", "a", "--group", "b", "--index-url", "http://i", "--no-cache"),
        with_args=(("package", "p"), ("editable", "./e"), ("requirements", "r.txt")),
        python="3.12",
        interpreter_args=("-u", "-X", "dev"),
    )


def test_options_that_pip_install_shares_are_told_apart() -> None:
    """Indexes and caches hold for --with packages too; the lock and the extras don't."""
    request = resolve_python(PythonSpec(executable="uv run --locked --extra a -i http://i --offline --with p")).uv
    assert request is not None
    assert request.install_args == ("--index-url", "http://i", "--offline")


@pytest.mark.parametrize(
    ("executable", "problem"),
    [
        pytest.param("uv run 'x", "python.executable: must be a command line (No closing quotation)", id="quote"),
        pytest.param(
            "uv run --no-project", "python.executable: must not hold --no-project (workers need the project's environment)", id="no-project"
        ),
        pytest.param("uv run -m mod", "python.executable: must not hold --module (Ray chooses what the interpreter runs)", id="module"),
        pytest.param("uv run --env-file .env", "python.executable: must not hold --env-file (use env.set)", id="env-file"),
        pytest.param("uv run --wurst", "python.executable: must hold options of uv run, got --wurst", id="unknown"),
        pytest.param("uv run --wurst=1", "python.executable: must hold options of uv run, got --wurst", id="unknown-with-value"),
        pytest.param("uv run --extra", "python.executable: --extra must have a value, got none", id="no-value"),
        pytest.param("uv run train.py", "python.executable: must run python, got 'train.py' after uv run", id="a-script"),
    ],
)
def test_a_command_line_that_makes_no_sense_for_workers_is_a_config_error(executable: str, problem: str) -> None:
    """What can't be built, or would run something else than Ray's worker, is refused with a fix before anything starts."""
    with pytest.raises(ConfigError) as caught:
        resolve_python(PythonSpec(executable=executable))
    assert str(caught.value).startswith(problem)
    assert "Fix: " in str(caught.value)


def test_two_project_folders_are_a_config_error() -> None:
    """project_dir and --directory that differ leave open which one is meant."""
    with pytest.raises(
        ConfigError, match=r"^python\.project_dir: must be the folder that python\.executable names, got '/a' and '/b'\. Fix:"
    ):
        resolve_python(PythonSpec(executable="uv run --directory /b", project_dir="/a"))


def test_variables_of_a_built_environment_name_it(tmp_path: Path) -> None:
    """A nested uv and tools that look at VIRTUAL_ENV find the worker's own environment, and its programs come first; another interpreter
    is left as it is."""
    environ = {"PATH": "/usr/bin", "VIRTUAL_ENV": "/raylets"}
    assert environment_of(str(tmp_path), environ) == {}
    (tmp_path / MARKER).touch()
    root = str(tmp_path)
    assert environment_of(root, environ) == {"VIRTUAL_ENV": root, "UV_PROJECT_ENVIRONMENT": root, "PATH": f"{root}/bin:/usr/bin"}
    assert environment_of(root, {})["PATH"] == f"{root}/bin"


@pytest.mark.parametrize(
    ("executable", "command"),
    [
        pytest.param("./garb -X dev", ("/here/garb", "-X", "dev"), id="here"),
        pytest.param("envs/../bin/python", ("/here/bin/python",), id="below"),
        pytest.param("~/bin/python", (os.path.expanduser("~/bin/python"),), id="home"),
        pytest.param("python3", ("python3",), id="of-the-nodes-path"),
        pytest.param("/opt/python ./arg", ("/opt/python", "./arg"), id="arguments-are-its-own"),
        pytest.param("./uv run", ("/here/uv", "run", "--directory", "/here"), id="uv"),
    ],
)
def test_a_relative_program_counts_from_the_working_folder(executable: str, command: tuple[str, ...]) -> None:
    """As a shell takes it, and as the folders of ``python`` count: with a slash it is a path, without one a program on PATH."""
    assert resolve_python(PythonSpec(executable=executable), cwd="/here").command == command


def test_a_login_of_the_command_line_is_not_shown_and_still_used() -> None:
    """What was asked for is shown in tables and reports; what runs keeps it."""
    plan = resolve_python(PythonSpec(executable="uv run --index https://me:planted-secret@index.invalid/simple"))
    assert plan.requested == "uv run --index https://***@index.invalid/simple"
    assert "https://me:planted-secret@index.invalid/simple" in plan.command
    with pytest.raises(ConfigError) as caught:
        resolve_python(PythonSpec(executable="uv run --index 'https://me:planted-secret@index.invalid/simple"))
    assert "planted-secret" not in str(caught.value)


def test_errors_name_the_key_of_the_role() -> None:
    """The same Python of two roles is one plan."""
    with pytest.raises(ConfigError, match=r"^policy\.python\.executable: must run python"):
        resolve_python(PythonSpec(executable="uv run train.py"), where="policy.python")
    one, other = (resolve_python(PythonSpec(executable="BASE"), where=where) for where in ("policy.python", "rollout.python"))
    assert (one, hash(one)) == (other, hash(other))


@pytest.mark.parametrize(
    ("environ", "answer", "variable", "constant"),
    [
        pytest.param({}, False, "0", False, id="plain-driver"),
        pytest.param({"UV_RUN_RECURSION_DEPTH": "1"}, True, "0", False, id="driver-started-by-uv-run"),
        pytest.param({"UV_RUN_RECURSION_DEPTH": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "1"}, False, "1", True, id="the-user-wants-the-hook"),
    ],
)
def test_rays_uv_hook_is_off_unless_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], answer: bool, variable: str, constant: bool
) -> None:
    """The hook is turned off in the environment and, where Ray is imported already, in Ray; a user's choice is kept."""
    constants = SimpleNamespace(RAY_ENABLE_UV_RUN_RUNTIME_ENV=True)
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", constants)
    assert disable_rays_uv_hook(environ) is answer
    assert environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == variable
    assert constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV is constant


@pytest.mark.parametrize(
    ("given", "variable", "folder"),
    [
        pytest.param(None, "", None, id="default-of-each-node"),
        pytest.param(None, "/shared/envs", "/shared/envs", id="variable"),
        pytest.param(None, "envs", "/here/envs", id="relative-variable"),
        pytest.param("mine", "/shared/envs", "/here/mine", id="the-key-wins"),
    ],
)
def test_the_drivers_folder_of_environments_counts_on_all_nodes(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str, folder: str | None
) -> None:
    """NEMO_RL_VENV_DIR is read where the user sets it, which need not be where Ray was started."""
    monkeypatch.setenv("NEMO_RL_VENV_DIR", variable)
    assert resolve_python(PythonSpec(executable="BASE", venv_dir=given), cwd="/here").venv_dir == folder
