"""The house: which room may import which, and what an import may bring in. docs/architecture.md says it in words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rl_cluster

PACKAGE = Path(rl_cluster.__file__).parent

# From the ground up: a room is a folder, and perhaps doors, modules at the top of the package. A module imports from its own room and from
# those below it, never from above.
ROOMS: dict[str, set[str]] = {
    "ground": {"errors", "schema"},
    "config_files": {"config"},
    "planning": {"inventory", "plan"},
    "numa": {"numa_utils"},
    "process": {"ports", "python_env"},
    "views": {"grid"},
    "connection": {"simulate"},
    "placing": {"virtual_cluster"},
    "workers": {"worker_group"},
    "recipes": {"builders"},
    "programs": {"app", "probe"},
}
# Only these may import Ray when they are imported; all others import it inside the function that needs it, or never.
IMPORT_RAY = {
    "builders",
    "connection.session",
    *("placing.autoscaler", "placing.placement", "placing.port_keeper"),
    "recipes.recipe",
    "virtual_cluster",
    "worker_group",
    *("workers.actors", "workers.bring_up", "workers.bundle_choice", "workers.profiles", "workers.target_import"),
}
# Libraries that cost time to import, so only functions import them.
ONLY_INSIDE_FUNCTIONS = {"ray", "hydra", "omegaconf", "rich", "pynvml"}


def name_of(path: Path) -> str:
    """The module's name below the package: ``numa/bind.py`` is ``numa.bind``, ``numa/__init__.py`` is ``numa``."""
    return ".".join(part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}
ROOM = {door: room for room, doors in ROOMS.items() for door in doors}


def level_of(module: str) -> int:
    """The place of a module's room, from the ground up."""
    return list(ROOMS).index(ROOM.get(module) or module.partition(".")[0])


def is_for_types(node: ast.AST) -> bool:
    """An ``if TYPE_CHECKING:`` block, which nothing imports at run time."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST, *, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Full names that are imported below a node, each with whether that happens inside a function."""
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from ((f"{child.module}.{alias.name}", inside) for alias in child.names)
        else:
            yield from imports(child, inside=inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports, wherever in it."""
    found = set()
    for name, _ in imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        parts = name.split(".")
        if parts[0] == "rl_cluster":
            below = ".".join(parts[1:])
            found.add(below if below in MODULES else ".".join(parts[1:-1]))
    return found - {""}


def test_every_module_is_in_a_room() -> None:
    """A folder for each room; what stands beside the folders is a door."""
    assert {module.partition(".")[0] for module in MODULES} == set(ROOMS) | set(ROOM)
    assert set(ROOM) <= set(MODULES)


PAGE = Path(__file__).parents[1] / "docs/architecture.md"


def test_the_page_shows_the_same_rooms() -> None:
    """docs/architecture.md has a row for each room, in this order, with its doors."""
    table = PAGE.read_text(encoding="utf-8").split("| room | doors |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
    assert {cells[1].strip("`/"): set(re.findall(r"`([^`]+)`", cells[2])) for cells in rows} == ROOMS
    assert [cells[1].strip("`/") for cells in rows] == list(ROOMS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    """A module imports, also inside functions, only from its own room and those below."""
    assert {name for name in own_imports(module) if level_of(name) > level_of(module)} == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_costly_libraries_are_imported_inside_functions(module: str) -> None:
    """Ray only by the modules that are about a running Ray; Hydra, omegaconf, rich and NVML by no module at its top."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    top = {name.split(".")[0] for name, inside in imports(tree) if not inside}
    allowed = {"ray"} if module in IMPORT_RAY else set()
    assert top & ONLY_INSIDE_FUNCTIONS <= allowed


def test_what_needs_no_ray_imports_none() -> None:
    """Importing every module that is not about a running Ray brings in no Ray, Hydra, omegaconf or rich, and prints nothing."""
    importers = ("programs.job", "programs.prefetch_job", "programs.recipe_job", "workers.target_check", "workers.worker_setup")
    about_ray = {*IMPORT_RAY, *importers}  # those that import one of them
    wanted = sorted(set(MODULES) - about_ray)
    program = "\n".join(
        [
            "import rl_cluster, sys",
            *(f"import rl_cluster.{module}" for module in wanted),
            "found = {'ray', 'hydra', 'omegaconf', 'rich', 'pynvml'} & set(sys.modules)",
            "sys.exit(f'imported: {sorted(found)}' if found else 0)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
