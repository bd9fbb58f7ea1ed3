"""A run always comes to its report and its last line, whatever ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_cluster.programs.job import ClusterRun
from rl_cluster.programs.runs import RunFiles
from rl_cluster.schema import RunSpec
from rl_cluster.views.report import validate_report


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        pytest.param(SystemExit(0), "SystemExit: 0", id="SystemExit"),
        pytest.param(GeneratorExit("gone"), "GeneratorExit: gone", id="GeneratorExit"),
        pytest.param(ZeroDivisionError("by zero"), "ZeroDivisionError: by zero", id="Exception"),
    ],
)
def test_whatever_ends_a_run_it_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, said: str
) -> None:
    """An end of the process that a user's code asks for is a failure of the run: exit code 4, not that code's own."""

    def fails(*_: object) -> int:
        raise raised

    monkeypatch.setattr(ClusterRun, "_plan", fails)
    message = f"internal error: {said}. Its traceback is in the log of this run; please report it"
    assert ClusterRun(spec=RunSpec(mode="plan"), files=RunFiles(tmp_path)).to_its_end() == 4
    shown = capsys.readouterr()
    assert shown.err == f"{message}\n"
    assert shown.out.splitlines() == [f"files: {tmp_path}", f"FAILED: {message}"]
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (validate_report(report), report["ok"], report["error"]["message"]) == ([], False, message)
