"""Makes the drawings and diagnoses in docs/placement.md: ``python docs/drawings.py`` writes them anew.

Each is the block after a comment ``<!-- plan {"gpus": [8, 8], "cluster": {...}} -->`` (or ``"inventory": FILE`` for ``"gpus"``).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from rl_cluster.grid import render_grid
from rl_cluster.inventory import Inventory
from rl_cluster.plan import Shortfall, plan_layout, render_shortfall
from rl_cluster.planning.inventory_file import load_inventory, parse_inventory
from rl_cluster.schema import ClusterSpec
from rl_cluster.views.picture import build_picture

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "placement.md"
_BLOCK = re.compile(r"(?P<comment><!-- plan (?P<what>\{.*?\}) -->\n)```text\n.*?```", re.DOTALL)


def draw(what: str) -> str:
    """The drawing of a layout, or the text of a shortfall."""
    wish = json.loads(what)
    answer = plan_layout(ClusterSpec(**wish["cluster"]), _inventory(wish))
    if isinstance(answer, Shortfall):
        return render_shortfall(answer)
    return render_grid(build_picture(answer), width=100).rstrip("\n")


def _inventory(wish: dict[str, object]) -> Inventory:
    if "inventory" in wish:
        return load_inventory(ROOT / str(wish["inventory"]))
    gpus = wish["gpus"]
    assert isinstance(gpus, list)
    return parse_inventory({"nodes": [{"resources": {"GPU": count, "CPU": 128}} for count in gpus]})


def refresh(page: str) -> str:
    """The page with every drawing made anew."""
    return _BLOCK.sub(lambda match: f"{match['comment']}```text\n{draw(match['what'])}\n```", page)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
