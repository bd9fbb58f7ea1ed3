"""What must hold for the repository as a whole."""

from __future__ import annotations

import ast
import configparser
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rl_cluster

ROOT = Path(__file__).parents[1]
PACKAGE = Path(rl_cluster.__file__).parent
MODULES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def repository_files() -> list[Path]:
    """The files that git keeps; of an unpacked sdist, all that came with it."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
        return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not {"outputs", ".venv", "__pycache__"} & set(path.parts)]


FILES = repository_files()
SELF = Path(__file__).resolve()


def test_no_lock_file_is_kept() -> None:
    """A lock file names the registry of whoever made it."""
    assert [path.name for path in FILES if path.name == "uv.lock"] == []


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"(index-url|find-links|registry)[\"' ]*[= ][\"' ]*(https?|file)://|files\.pythonhosted", id="a package registry"),
        pytest.param(
            r"(?<![\w.$}])/(root|Users|opt/venv)/|(?<![\w.$}])/home/(?!(you|user|me|alice|bob)\b)\w+/", id="a path of one machine"
        ),
    ],
)
def test_no_file_names(pattern: str) -> None:
    """What is kept works on any machine, behind any registry."""
    found = []
    for path in FILES:
        if path.resolve() == SELF or path.suffix == ".svg":
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in re.finditer(pattern, text)]
    assert found == []


def test_ci_runs_every_supported_python() -> None:
    """pyproject's classifiers, requires-python and what .ci/run tests are one list."""
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    in_ci = re.search(r"^PYTHONS=\((.*?)\)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert in_ci is not None
    assert in_ci[1].split() == supported
    assert f'requires-python = ">={supported[0]}"' in PYPROJECT


def test_ci_stops_no_ray_of_others() -> None:
    """Ending Ray by its stop command ends every Ray on the machine."""
    forbidden = re.compile(r"ray[ ]stop")
    found = [path for path in FILES if path.suffix in (".py", "") and forbidden.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert [path.relative_to(ROOT).as_posix() for path in found if path.resolve() != SELF] == []


# --- modules ---


@pytest.mark.parametrize("module", MODULES)
def test_modules_fit_a_head(module: str) -> None:
    """Under 400 lines."""
    lines = len((PACKAGE / module).read_text(encoding="utf-8").splitlines())
    assert lines < 400


def public_definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Public functions and classes of a module, and public methods of its public classes."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if "overload" in decorators or any(name.endswith(".setter") for name in decorators):
                continue
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{prefix}{node.name}.")


def is_stub(node: ast.AST) -> bool:
    """A protocol's ``...``: the protocol's docstring speaks for it."""
    body = getattr(node, "body", [])
    return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and body[0].value.value is ...


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(module: str) -> None:
    """The module itself, and every public function, class and method in it."""
    tree = MODULES[module]
    assert ast.get_docstring(tree), "the module"
    private = any(part.startswith("_") and part != "__init__.py" for part in module.split("/"))
    bare = [name for name, node in public_definitions(tree) if not is_stub(node) and not ast.get_docstring(node)]
    assert private or bare == []


@pytest.mark.parametrize("module", [name for name, tree in MODULES.items() if "__all__" in ast.dump(tree)])
def test_every_listed_name_is_there(module: str) -> None:
    """``__all__`` names what exists, each once."""
    dotted = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__").removesuffix("__init__")
    loaded = importlib.import_module(f"rl_cluster.{dotted}".removesuffix("."))
    assert [name for name in loaded.__all__ if not hasattr(loaded, name)] == []
    assert len(set(loaded.__all__)) == len(loaded.__all__)


# --- packaging ---


def section(name: str) -> dict[str, str]:
    """The plain ``key = "text"`` lines of a table in pyproject.toml (Python 3.10 has no TOML reader)."""
    parser = configparser.ConfigParser(interpolation=None)
    body = PYPROJECT.split(f"[{name}]\n", 1)[1].split("\n[", 1)[0]
    parser.read_string(f"[it]\n{body}")
    return {key: value.strip('"') for key, value in parser["it"].items()}


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("rl-cluster", "rl_cluster.app:main"),
        ("rl-cluster-check", "rl_cluster.programs.check_cli:main"),
        ("rl-cluster-envs", "rl_cluster.programs.python_env_cli:main"),
        ("rl-cluster-inventory", "rl_cluster.programs.inventory_cli:main"),
        ("rl-cluster-probe", "rl_cluster.probe:main"),
    ],
)
def test_commands_are_installed(command: str, target: str) -> None:
    """Each command that the pages name is a script of the package, and its function is there."""
    assert section("project.scripts")[command] == target
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_sdist_names_what_is_there() -> None:
    """Every path that the sdist is to hold exists."""
    listed = re.search(r"\[tool\.hatch\.build\.targets\.sdist\]\nonly-include = \[(.*?)\]", PYPROJECT, re.DOTALL)
    assert listed is not None
    wanted = set(re.findall(r'"([^"]+)"', listed[1]))
    sources = {"rl_cluster", "hydra_plugins", "conf"}  # also inside the package, where only the wheel is installed
    assert [name for name in wanted - sources if not (ROOT / name).exists()] == []


def test_the_licence_is_apache_2() -> None:
    """As pyproject says."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert 'license = "Apache-2.0"' in PYPROJECT


def test_the_changelog_has_this_version() -> None:
    """Newest first, after what is not released yet."""
    version = re.search(r'^version = "(.+)"', PYPROJECT, re.MULTILINE)
    assert version is not None
    titles = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert titles[:2] == ["Unreleased", version[1]]
