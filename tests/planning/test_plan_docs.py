"""The page on placement shows what the program draws."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "drawings.py"


def test_the_drawings_are_the_programs_own() -> None:
    """Every drawing and diagnosis of docs/placement.md is made by the program; ``python docs/drawings.py`` makes them anew."""
    spec = importlib.util.spec_from_file_location("drawings", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    drawings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawings)
    page = drawings.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- plan ") == 8
    assert drawings.refresh(page) == page
