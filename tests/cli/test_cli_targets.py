"""A class that the workers can't run is said before anything is started: one line per problem, exit 1, the traceback in the log."""

from __future__ import annotations

import pytest
from run_py import RunPy

MODULE = """
class Adder:
    def __init__(self, base: int, *, more=()):
        pass

    def total(self):
        pass

    def add(self, number, *, scale=1):
        pass

    @staticmethod
    def free(number=0):
        pass

    @classmethod
    def made(cls, number):
        pass

    def stream(self):
        yield 1

    class Sub:
        async def __init__(self):
            pass

number = 3
"""
BROKEN = "raise RuntimeError('this module\\nis broken')"


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        pytest.param(
            ["worker.target=nowhere.Adder"],
            ["worker.target: no module named 'nowhere', got 'nowhere.Adder'. Fix: install it, or add its folder to PYTHONPATH"],
            id="no such module",
        ),
        pytest.param(
            ["worker.target=adders.Subber"],
            ["worker.target: module 'adders' has no 'Subber', got 'adders.Subber'. Fix: correct the name"],
            id="no such class",
        ),
        pytest.param(["worker.target=adders.number"], ["worker.target: must be a class, got 3. Fix: name a class"], id="not a class"),
        pytest.param(
            ["worker.target=adders.Adder.Sub"],
            [
                "worker.target: must have a plain __init__ (async def and yield do nothing there), got adders.Adder.Sub. "
                "Fix: do it in a method, which worker.method may name"
            ],
            id="nested class with an asynchronous init",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["worker.target=adders.Adder", "worker.method=stream", "worker.kwargs={base: 1}"],
            ["worker.method: must return its result, not yield it, got 'stream'. Fix: return a list"],
            id="generator",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["worker.target=adders.Adder", "worker.method=totl", "worker.kwargs={bse: 1, more: [2]}"],
            [
                "worker.method: must be a method of Adder, got 'totl'. Fix: write total",
                "worker.kwargs: must fit Adder.__init__ (missing a required argument: 'base'; it takes (base: int, *, more=())), "
                "got ['bse', 'more']",
            ],
            id="method and arguments",
        ),
        pytest.param(
            ["worker.target=adders.Adder", "worker.method=add", "worker.kwargs={base: 1}"],
            [
                "worker.method: must be callable without arguments (missing a required argument: 'number'; it takes "
                "(self, number, *, scale=1)), got 'add'. Fix: give its arguments default values, or take them by worker.kwargs in __init__"
            ],
            id="method that needs an argument",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["worker.target=adders.Adder", "worker.method=made", "worker.kwargs={base: 1}"],
            [
                "worker.method: must be callable without arguments (missing a required argument: 'number'; it takes "
                "(number)), got 'made'. Fix: give its arguments default values, or take them by worker.kwargs in __init__"
            ],
            id="class method that needs an argument",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_class_that_cannot_be_run(run_py: RunPy, words: list[str], problems: list[str]) -> None:
    """The module is looked for in the folder where the command was typed; no Ray is started for what it lacks."""
    (run_py.folder / "adders.py").write_text(MODULE, encoding="utf-8")
    done = run_py(*words)
    assert (done.code, done.err.splitlines()) == (1, problems)
    assert done.last_line == f"FAILED: {problems[0]}"
    assert done.report["error"] == {"type": "ConfigError", "message": "\n".join(problems)}
    assert "Traceback (most recent call last):" in done.log


def test_module_that_fails_at_import(run_py: RunPy) -> None:
    """The error of the user's own module is told in a line and is whole in the log."""
    (run_py.folder / "adders.py").write_text(BROKEN, encoding="utf-8")
    done = run_py("worker.target=adders.Adder")
    assert done.code == 1
    assert done.err.startswith("worker.target: importing 'adders' failed with RuntimeError: this module")
    assert "Traceback" not in done.err
    assert '/adders.py", line 1, in <module>' in done.log


def test_module_that_ends_the_process_at_import(run_py: RunPy) -> None:
    """The run goes on to its report, and its exit code says that the config is wrong."""
    (run_py.folder / "adders.py").write_text("raise SystemExit(0)", encoding="utf-8")
    done = run_py("worker.target=adders.Adder")
    problem = "worker.target: importing 'adders' failed with SystemExit: 0. Fix: see the log for its traceback"
    assert (done.code, done.err.splitlines(), done.last_line) == (1, [problem], f"FAILED: {problem}")
    assert done.report["error"] == {"type": "ConfigError", "message": problem}
