"""docs/sweeps.md shows what the program makes of a real sweep, whose summary.json lies beside the picture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rl_cluster.views.sweep_summary import COLUMNS, STATUSES, JobRow, SummaryFiles
from rl_cluster.views.sweep_svg import render_sweep_svg
from rl_cluster.views.sweep_table import render_sweep_table, render_sweep_verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def rows(tmp_path: Path) -> tuple[JobRow, ...]:
    """The rows of that sweep."""
    shutil.copy(DOCS / "images" / "sweep.json", tmp_path / "summary.json")
    return SummaryFiles(tmp_path).read()


def test_page_shows_the_table_of_that_sweep(rows: tuple[JobRow, ...]) -> None:
    """The table and the last line are the program's own."""
    page = (DOCS / "sweeps.md").read_text(encoding="utf-8")
    assert f"sweep (simulated):\n{render_sweep_table(rows)}\n\n" in page
    assert f"\n{render_sweep_verdict(rows)}\n```" in page


def test_page_shows_the_picture_of_that_sweep(rows: tuple[JobRow, ...]) -> None:
    """The picture is the program's own."""
    assert (DOCS / "images" / "sweep.svg").read_text(encoding="utf-8") == render_sweep_svg(rows)


def test_page_explains_every_column_and_status() -> None:
    """Nothing in the files is without its line."""
    page = (DOCS / "sweeps.md").read_text(encoding="utf-8")
    table = page[page.index("| column | meaning |") :]
    assert [name for name in (*COLUMNS, "machines") if f"`{name}`" not in table.partition("\n\n")[0]] == []
    assert [status for status in STATUSES if f"`{status}`" not in table] == []
