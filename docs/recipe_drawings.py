"""Makes the drawings, messages and pictures in docs/recipes.md: ``python docs/recipe_drawings.py`` writes them anew.

Each is the block after a comment ``<!-- recipe {"file": FILE, "overrides": [...], "gpus": [2, 2, 2]} -->``; with ``"svg": FILE`` the
picture is written there, too. ``<!-- check {...} -->`` shows what rl-cluster-check says of the YAML files that it holds.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from rl_cluster.config_files.recipe_file import load_recipe
from rl_cluster.errors import ConfigError
from rl_cluster.grid import render_grid
from rl_cluster.planning.inventory_file import parse_inventory
from rl_cluster.planning.layout import Shortfall
from rl_cluster.programs.check_cli import main as check
from rl_cluster.recipes.recipe_plan import build_recipe_picture, plan_recipe, shortfall_error
from rl_cluster.recipes.recipe_preview import planned_line
from rl_cluster.views.svg import render_svg

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "recipes.md"
_BLOCK = re.compile(r"(?P<comment><!-- (?P<kind>recipe|check) (?P<what>\{.*?\}) -->\n)```text\n.*?```", re.DOTALL)


def draw(what: str) -> tuple[str, dict[Path, str]]:
    """The drawing of a recipe's plan, or the error; and the pictures to write."""
    wish: dict[str, Any] = json.loads(what)
    inventory = parse_inventory({"nodes": [{"resources": {"GPU": count, "CPU": 128}} for count in wish["gpus"]]})
    try:
        plan = plan_recipe(load_recipe(ROOT / wish["file"], overrides=wish.get("overrides", [])), inventory)
    except ConfigError as error:
        return str(error), {}
    if isinstance(plan, Shortfall):
        return str(shortfall_error(plan)), {}
    picture = build_recipe_picture(plan)
    files = {ROOT / wish["svg"]: render_svg(picture)} if "svg" in wish else {}
    return f"{render_grid(picture, width=100)}\n{planned_line(plan)}", files


def say(what: str) -> str:
    """What rl-cluster-check prints of files by name."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        for name, text in json.loads(what).items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        check([folder])
    return out.getvalue().replace(f"{folder}/", "").rstrip("\n")


def refresh(page: str) -> tuple[str, dict[Path, str]]:
    """The page with every drawing made anew, and the pictures to write."""
    files: dict[Path, str] = {}

    def block(match: re.Match[str]) -> str:
        if match["kind"] == "check":
            text = say(match["what"])
        else:
            text, pictures = draw(match["what"])
            files.update(pictures)
        return f"{match['comment']}```text\n{text}\n```"

    return _BLOCK.sub(block, page), files


if __name__ == "__main__":
    page, files = refresh(PAGE.read_text(encoding="utf-8"))
    for file, text in {PAGE: page, **files}.items():
        file.write_text(text, encoding="utf-8")
    sys.exit(0)
