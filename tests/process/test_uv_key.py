"""What makes another environment of a request, and what doesn't: files in a temporary folder, no uv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_cluster.process.uv_key import environment_key
from rl_cluster.process.uv_local import local_packages, split_with
from rl_cluster.process.uv_request import UvRequest, parse_uv_run

OUTPUTS = ("../p/build/lib", "../p/dist/p.whl", "../p/src/p.egg-info/a", "../p/.git/HEAD", "../p/src/q/__pycache__/a.pyc")
LOCK = '[[package]]\nname = "p"\nsource = { directory = "../p" }\n[[package]]\nname = "e"\nsource = { editable = "../e" }\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("demo", "p", "e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    (tmp_path / "demo" / "uv.lock").write_text(LOCK)
    (tmp_path / "demo" / "r.txt").write_text("x\n")
    (tmp_path / "demo" / "local.txt").write_text(f"# ours\ne @ file://{tmp_path}/e ; python_version > '3'\n")
    (tmp_path / "demo" / "nested.txt").write_text("-r local.txt\n")
    put(tmp_path / "w" / "other.py")
    put(tmp_path / "v" / "other.py")
    (tmp_path / "w" / "pyproject.toml").write_text('[project]\nname = "w"\n[tool.uv.sources]\nv = { path = "../v" }\n')
    (tmp_path / "demo" / "pyproject.toml").write_text('[tool.uv.sources]\nw = { path = "../w" }\ne = { path = "../e", editable = true }\n')
    return tmp_path / "demo"


def put(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x = 1\n")


def key(project: Path, line: str = "uv run --locked", python: str = "/usr/bin/python3") -> str:
    return environment_key(parse_uv_run(line.split()), project_dir=project, base_python=python)


def test_a_key_begins_with_words_for_a_person(project: Path) -> None:
    """The folder's name says project and extras; the digest behind it decides."""
    assert key(project, "uv run --locked --extra vllm --with ./pkg-1.0").rpartition("-")[0] == "demo-vllm-pkg-1.0"
    assert len(key(project).rpartition("-")[2]) == 16


@pytest.mark.parametrize(
    "line",
    [
        "uv run --frozen",
        "uv run --locked --extra a",
        "uv run --locked --extra b",
        "uv run --locked --group a",
        "uv run --locked --with p",
        "uv run --locked --with-editable ../e",
        "uv run --locked --with-requirements r.txt",
        "uv run --locked --no-editable",
    ],
)
def test_another_request_is_another_environment(project: Path, line: str) -> None:
    """An extra, a group, a --with: each changes what is in the environment, so each has its own."""
    assert key(project, line) != key(project)


@pytest.mark.parametrize("line", ["uv run --locked --isolated", "uv --quiet run --locked", "/opt/uv run --locked python -X dev"])
def test_what_changes_no_package_changes_no_key(project: Path, line: str) -> None:
    """Options of uv's output and arguments of the interpreter share the environment."""
    assert key(project, line) == key(project)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        pytest.param("uv run --locked", lambda p: (p / "uv.lock").write_text(LOCK + "#"), id="lock"),
        pytest.param("uv run --locked", lambda p: (p / "pyproject.toml").write_text("[project]"), id="pyproject"),
        pytest.param("uv run --locked", lambda p: (p / ".python-version").write_text("3.12"), id="python-version"),
        pytest.param("uv run --locked", lambda p: (p / "../p/code.py").write_text("x = 1"), id="local-source-copied"),
        pytest.param("uv run --locked", lambda p: put(p / "../p/src/p/build/__init__.py"), id="a-subpackage-named-build"),
        pytest.param("uv run --locked", lambda p: put(p / "../p/src/p/.data/a"), id="a-hidden-folder-inside"),
        pytest.param("uv run --locked", lambda p: put(p / "../p/build/__init__.py"), id="a-package-named-build"),
        pytest.param("uv run --locked --no-editable-package E", lambda p: put(p / "../e/code.py"), id="one-editable-copied"),
        pytest.param("uv run --locked --with ../e[dev]", lambda p: put(p / "../e/code.py"), id="with-local-folder-and-extra"),
        pytest.param("uv run --locked --with-requirements local.txt", lambda p: put(p / "../e/code.py"), id="folder-of-requirements"),
        pytest.param("uv run --locked --with-requirements nested.txt", lambda p: put(p / "../e/code.py"), id="nested-requirements"),
        pytest.param("uv run --locked --with ../w", lambda p: put(p / "../v/code.py"), id="source-of-a-with"),
        pytest.param("uv run", lambda p: put(p / "../w/code.py"), id="source-that-is-not-locked-yet"),
        pytest.param("uv run --locked --no-editable", lambda p: (p / "../e/code.py").write_text("x = 1"), id="editable-copied"),
        pytest.param("uv run --locked --with-requirements r.txt", lambda p: (p / "r.txt").write_text("y"), id="requirements"),
        pytest.param("uv run --locked --with ../e", lambda p: (p / "../e/code.py").write_text("x = 1"), id="with-local-folder"),
    ],
)
def test_another_content_is_another_environment(project: Path, line: str, change: Callable[[Path], object]) -> None:
    """The lock, the project's files, and what is copied from local folders count by their content."""
    before = key(project, line)
    change(project)
    assert key(project, line) != before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda p: (p / "../e/code.py").write_text("x = 1"), id="editable-source"),
        pytest.param(lambda p: (p / "train.py").write_text("x = 1"), id="the-projects-own-code"),
        *(pytest.param(lambda p, f=f: put(p / f), id=f) for f in OUTPUTS),
    ],
)
def test_code_that_is_read_in_place_needs_no_new_environment(project: Path, change: Callable[[Path], object]) -> None:
    """Editable sources are read where they lie, and caches are no source."""
    before = key(project)
    change(project)
    assert key(project) == before


def test_another_interpreter_is_another_environment(project: Path) -> None:
    """An environment belongs to the interpreter that it was made with."""
    assert key(project, python="/opt/python3") != key(project)


def test_a_workspace_member_is_keyed_with_the_lock_above_it(project: Path) -> None:
    """The lock of a workspace lies above its members and counts for each."""
    member = project / "packages" / "m"
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text("[project]\n")
    before = environment_key(UvRequest(uv="uv"), project_dir=member, base_python="p")
    (project / "uv.lock").write_text(LOCK + "#")
    assert environment_key(UvRequest(uv="uv"), project_dir=member, base_python="p") != before


@pytest.mark.parametrize(
    ("value", "packages"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a>=1,<2,b[x,y]==3", ["a>=1,<2", "b[x,y]==3"]),
        ("./local,a", ["./local", "a"]),
    ],
)
def test_commas_of_one_with(value: str, packages: list[str]) -> None:
    """Commas part packages, except those of a version range or of extras."""
    assert split_with(value) == packages


@pytest.mark.parametrize(
    ("line", "names"),
    [
        pytest.param("uv run --locked", ["p"], id="of-the-lock"),
        pytest.param("uv run --locked --no-editable", ["e", "p"], id="editables-by-copy"),
        pytest.param("uv run", ["p", "w"], id="of-a-lock-that-may-change"),
        pytest.param("uv run --locked --with ../e --with numpy,./no-folder", ["e", "p"], id="with"),
        pytest.param("uv run --locked --with-requirements nested.txt", ["e", "p"], id="requirements"),
        pytest.param("uv run --locked --with ./a_b-1.0-py3-none-any.whl", ["a_b", "p"], id="wheel"),
    ],
)
def test_which_packages_are_copied_from_this_machine(project: Path, line: str, names: list[str]) -> None:
    """uv must build these anew, whatever its cache holds of them; what is installed editable or from an index is not among them."""
    put(project / "a_b-1.0-py3-none-any.whl")
    found = local_packages(parse_uv_run(line.split()), project_dir=project)
    assert sorted(name for local in found for name in local.names) == names
