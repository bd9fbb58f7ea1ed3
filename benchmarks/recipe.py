"""How long a recipe of four roles takes to plan, on 32 and on 128 machines: ``python benchmarks/recipe.py [--json]``.

The four roles are two clusters, each with a second role on it: everything that ``mode=plan`` does after the config is read, drawing
included. The whole command, interpreter and imports included, is timed as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rl_cluster.config_files.recipe_spec import RecipeSpec, recipe_from_config
from rl_cluster.grid import render_grid
from rl_cluster.planning.inventory_file import parse_inventory
from rl_cluster.planning.layout import Shortfall
from rl_cluster.recipes.recipe_plan import build_recipe_picture, plan_recipe
from rl_cluster.views.svg import render_svg

RUN_PY = Path(__file__).resolve().parent.parent / "run.py"
REPEATS = 5


def roles(nodes: int) -> dict[str, object]:
    """Four roles over so many machines of 8 GPUs."""
    half = nodes // 2
    return {
        "actor": {"cluster": {"num_nodes": half, "max_colocated_worker_groups": 2}, "numa": {}},
        "reference": {"on": "actor"},
        "critic": {"cluster": {"num_nodes": nodes - half, "max_colocated_worker_groups": 2}, "numa": {}},
        "reward": {"on": {"cluster": "critic", "gpus": [4, 5, 6, 7]}},
    }


def machines(nodes: int) -> dict[str, object]:
    """An inventory file's content."""
    return {"nodes": [{"count": nodes, "resources": {"GPU": 8, "CPU": 128}}]}


def measure(nodes: int) -> dict[str, float]:
    """Medians in seconds: of the plan alone, and with both drawings."""
    inventory, plans, drawings = parse_inventory(machines(nodes)), [], []
    recipe: RecipeSpec = recipe_from_config(roles(nodes))
    for _ in range(REPEATS):
        began = time.perf_counter()
        plan = plan_recipe(recipe, inventory)
        assert not isinstance(plan, Shortfall)
        plans.append(time.perf_counter() - began)
        picture = build_recipe_picture(plan)
        render_grid(picture)
        render_svg(picture)
        drawings.append(time.perf_counter() - began)
    return {"plan_s": median(plans), "plan_and_drawings_s": median(drawings)}


def measure_command(nodes: int) -> float:
    """Seconds of ``run.py recipe=... mode=plan inventory=...``."""
    with tempfile.TemporaryDirectory() as folder:
        # JSON is YAML, too
        Path(folder, "recipe.yaml").write_text(json.dumps(roles(nodes)), encoding="utf-8")
        Path(folder, "machines.yaml").write_text(json.dumps(machines(nodes)), encoding="utf-8")
        words = ["recipe=recipe.yaml", "inventory=machines.yaml", "mode=plan"]
        began = time.perf_counter()
        subprocess.run([sys.executable, str(RUN_PY), *words], cwd=folder, check=True, capture_output=True, timeout=120)
        return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    as_json = parser.parse_args().json
    small, large = measure(32), measure(128)
    figures = {
        "machines_32": small,
        "machines_128": {**large, "command_s": measure_command(128)},
        "ratio_128_to_32": large["plan_s"] / small["plan_s"],
    }
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    print(f"4 roles on  32 machines: plan {small['plan_s']:.3f} s, with drawings {small['plan_and_drawings_s']:.3f} s")
    print(f"4 roles on 128 machines: plan {large['plan_s']:.3f} s, with drawings {large['plan_and_drawings_s']:.3f} s")
    print(f"four times the machines, {figures['ratio_128_to_32']:.1f} times the seconds")
    print(f"run.py recipe=... mode=plan inventory=... on 128 machines: {figures['machines_128']['command_s']:.2f} s in all")


if __name__ == "__main__":
    main()
