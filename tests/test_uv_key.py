"""What makes another environment of a request, and what doesn't: files in a temporary folder, no uv."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_cluster.uv_key import environment_key, split_with
from rl_cluster.uv_request import UvRequest, parse_uv_run

LOCK = '[[package]]\nname = "p"\nsource = { directory = "../p" }\n[[package]]\nname = "e"\nsource = { editable = "../e" }\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("demo", "p", "e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    (tmp_path / "demo" / "uv.lock").write_text(LOCK)
    (tmp_path / "demo" / "r.txt").write_text("x\n")
    return tmp_path / "demo"


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
        pytest.param(lambda p: (p / "../p/__pycache__").mkdir() or (p / "../p/__pycache__/a.pyc").write_text("x"), id="bytecode"),
        pytest.param(lambda p: (p / "../p/.git").mkdir() or (p / "../p/.git/HEAD").write_text("x"), id="hidden"),
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
