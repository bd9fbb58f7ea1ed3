"""The house: which room may import which, and what an import may bring in. docs/architecture.md says it in words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import rl_cluster

PACKAGE = Path(rl_cluster.__file__).parent

# From the ground up. A module imports from its own layer and from those below it, never from above.
LAYERS: dict[str, set[str]] = {
    "ground": {"errors", "label_rules", "process_rules", "rules", "schema", "interrupts", "_ask_python", "_reaper", "_setup_worker"},
    "config": {"arguments", "command_line", "compose_error", "config", "options", "recipe_file", "recipe_spec", "text_file"},
    "planning": {
        *(
            "diagnosis",
            "inventory",
            "inventory_file",
            "layout",
            "packing",
            "packing_exact",
            "packing_greedy",
            "packing_joint",
            "plan",
            "problem",
            "ranks",
        ),
        *("holders", "naming", "suggestions"),
        *("inventory_dump", "segments", "selectors", "shortfall_text", "simulated_inventory", "simulated_union", "topology"),
    },
    "numa": {
        *("numa", "numa.affinity_file", "numa.bind", "numa.callback", "numa.choose", "numa.commands", "numa.cpulist", "numa.gpus"),
        *("numa.kernel", "numa.machine", "numa.memory", "numa.nvml", "numa.pci", "numa.report", "numa.sources", "numa.split"),
        *("numa.place", "numa.system", "numa.threads", "numa.topo", "numa_utils"),
    },
    "process": {
        *("node_work", "nsight", "ports", "records", "worker_env"),
        *("python_build", "python_check", "python_env", "python_prefetch", "uv_build", "uv_errors", "uv_key"),
        *("uv_local", "uv_request", "uv_step", "uv_store"),
    },
    "views": {
        *("checks", "checks_inside", "grid", "grid_data", "picture", "report", "report_schema", "screen", "svg", "svg_shapes"),
        *("sweep_summary", "sweep_svg", "sweep_table", "table"),
    },
    "recipes": {"recipe_plan"},
    "ray": {"ray_home", "ray_start", "snapshot", "reach", "session", "simulate", "simulate_shared"},
    "cluster": {"autoscaler", "placement", "port_keeper", "virtual_cluster"},
    "workers": {
        *("actors", "bring_up", "bundle_choice", "profiles", "target_check", "target_import"),
        *("worker_boot", "worker_group", "worker_logs", "worker_setup"),
    },
    "builders": {"builders", "recipe", "recipe_preview"},
    "programs": {
        *("app", "check_cli", "check_worker", "conf_check", "conf_lines", "hold", "hydra_app", "inventory_cli", "job", "pulse"),
        *("prefetch_job", "probe"),
        *("python_env_cli", "recipe_job", "recipe_run", "rehearsal", "runs", "sweep"),
    },
}

# Only these may import Ray when they are imported; all others import it inside the function that needs it, or never.
IMPORT_RAY = {
    "actors",
    "autoscaler",
    "bring_up",
    "builders",
    "placement",
    "port_keeper",
    "profiles",
    "recipe",
    "session",
    "target_import",
    "virtual_cluster",
    "worker_group",
    "bundle_choice",
}
# Libraries that cost time to import, so only functions import them.
ONLY_INSIDE_FUNCTIONS = {"ray", "hydra", "omegaconf", "rich", "pynvml"}


def name_of(path: Path) -> str:
    """The module's name below the package: ``numa/bind.py`` is ``numa.bind``, ``numa/__init__.py`` is ``numa``."""
    return ".".join(part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}
LEVEL = {module: level for level, modules in enumerate(LAYERS.values()) for module in modules}


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


def test_every_module_has_its_layer() -> None:
    """No module is outside the house, and no layer names one that is not there."""
    assert set(LEVEL) == set(MODULES)
    assert len(LEVEL) == sum(len(modules) for modules in LAYERS.values())


PAGE = Path(__file__).parents[1] / "docs/architecture.md"


def test_the_page_shows_the_same_rooms() -> None:
    """docs/architecture.md has a row for each layer, in this order, and its names (``checks*``, ``numa/*``) mean that layer's modules."""
    table = PAGE.read_text(encoding="utf-8").split("| room | modules |", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|") for line in table.splitlines()[2:]]
    assert [cells[1].strip() for cells in rows] == list(LAYERS)
    for cells in rows:
        modules = {module.replace(".", "/") for module in LAYERS[cells[1].strip()]} - {"numa"}
        names = re.findall(r"`([^`]+)`", cells[2])
        assert {module for module in modules if not any(fnmatchcase(module, name) for name in names)} == set(), cells[1]
        assert [name for name in names if not any(fnmatchcase(module, name) for module in modules)] == [], cells[1]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    """A module imports, also inside functions, only from its own layer and those below."""
    level = LEVEL[module]
    assert {name for name in own_imports(module) if LEVEL[name] > level} == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_costly_libraries_are_imported_inside_functions(module: str) -> None:
    """Ray only by the modules that are about a running Ray; Hydra, omegaconf, rich and NVML by no module at its top."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    top = {name.split(".")[0] for name, inside in imports(tree) if not inside}
    allowed = {"ray"} if module in IMPORT_RAY else set()
    assert top & ONLY_INSIDE_FUNCTIONS <= allowed


def test_what_needs_no_ray_imports_none() -> None:
    """Importing every module that is not about a running Ray brings in no Ray, Hydra, omegaconf or rich, and prints nothing."""
    about_ray = {*IMPORT_RAY, "job", "prefetch_job", "recipe_job", "target_check", "worker_setup"}  # those that import one of them
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
