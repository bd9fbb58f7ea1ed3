"""What is asked of a Python before it runs workers: real processes of this machine's own Python, and wrappers of every kind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rl_cluster.errors import PythonEnvError
from rl_cluster.process.python_check import check_python, ended_by, env_error


def wrapper(folder: Path, text: str) -> list[str]:
    """A shell script in front of this Python."""
    program = folder / "wrapper"
    program.write_bytes(b"#!/bin/sh\n" + text.replace("PYTHON", sys.executable).encode("latin-1") + b"\n")
    program.chmod(0o755)
    return [str(program)]


def refused(command: list[str], **early: str) -> PythonEnvError:
    with pytest.raises(PythonEnvError) as caught:
        check_python(command, node="here", deadline_s=60, early=early)
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('PYTHON "$@"; echo "and goodbye"', id="a line after it"),
        pytest.param('printf "no end of line"; echo "[1]"; exec PYTHON "$@"', id="lines before it"),
        pytest.param('printf "\\377\\376"; exec PYTHON "$@"', id="bytes that are no text"),
    ],
)
def test_an_answer_is_found_whatever_else_a_wrapper_writes(tmp_path: Path, text: str) -> None:
    """It has a line of its own, with a mark."""
    facts = check_python(wrapper(tmp_path, text), node="here", deadline_s=60)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("text", "got", "output"),
    [
        pytest.param('printf "\\377\\376 broken"; exit 3', "\ufffd\ufffd broken", "\ufffd\ufffd broken", id="bytes that are no text"),
        pytest.param('echo "[1]"', "exit code 0", "[1]", id="JSON that is no answer"),
        pytest.param("""echo 'rl-cluster-python: {"x'""", "exit code 0", 'rl-cluster-python: {"x', id="half an answer"),
        pytest.param("exit 7", "exit code 7", "", id="nothing"),
        pytest.param("kill -9 $$", "its end by signal 9 (out of memory?)", "", id="killed"),
        pytest.param(
            '[ "$1" = -c ] && exec PYTHON "$@"; echo "no, I want -c"; exit 7', "no, I want -c", "no, I want -c", id="not with a file to run"
        ),
        pytest.param(
            "yes 0123456789 | head -c 3000 | tr -d '\\n'; exit 1", f"{'0123456789' * 50} ...", f"{'0123456789' * 50} ...", id="long"
        ),
    ],
)
def test_a_program_that_runs_no_script_is_told_with_what_it_wrote(tmp_path: Path, text: str, got: str, output: str) -> None:
    """In one line and the last lines of its output, whatever these are."""
    error = refused(wrapper(tmp_path, text))
    assert str(error).startswith(
        f"python.executable on node here: it must import ray and rl_cluster, got {got} (command: {tmp_path}/wrapper "
    )
    assert "Fix: give a Python, or a wrapper that runs one with the words that it is given" in str(error)
    assert error.facts["output"] == output


def test_a_python_that_lacks_a_package_is_told_which(tmp_path: Path) -> None:
    """With the dependencies to add; a package of that name in the checkout does not count."""
    error = refused([sys.executable, "-I", "-S"])
    assert "it must import ray and rl_cluster, got ModuleNotFoundError: No module named 'ray' (command: " in str(error)
    assert "Fix: add ray==" in str(error)


@pytest.mark.parametrize(
    ("name", "value", "got", "fix"),
    [
        pytest.param(
            "PYTHONHOME",
            "/nonexistent",
            "ModuleNotFoundError: No module named 'encodings'",
            "look at PYTHONHOME, set before it starts, or try the command on that node",
            id="home",
        ),
        pytest.param("PYTHONPATH", "{folder}", "ImportError: not the one you want", "or look at env.set.PYTHONPATH", id="path"),
    ],
)
def test_variables_that_are_there_before_the_process_are_tried(tmp_path: Path, name: str, value: str, got: str, fix: str) -> None:
    """The command of the error can be pasted."""
    (tmp_path / "ray.py").write_text("raise ImportError('not the one you want')")
    value = value.format(folder=tmp_path)
    error = refused([sys.executable], **{name: value})
    assert f"it must import ray and rl_cluster, got {got} (command: " in str(error)
    assert fix in str(error)
    assert error.facts["command"].startswith(f"env {name}={value} {sys.executable} ")


def test_a_wrapper_that_leaves_a_child_behind_does_not_hold_us(tmp_path: Path) -> None:
    """After the deadline it is ended, and what it started is not waited for."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with pytest.raises(PythonEnvError, match=r"it must start, got no answer in 1 s .*\nLast lines of its output:\nwaits"):
        check_python(wrapper(tmp_path, f"echo waits; cat {gate}; exit 1"), node="here", deadline_s=1)
    os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # there is a reader, and now it ends


def test_every_part_of_an_error_is_masked() -> None:
    """A login may stand in any of them."""
    url = "https://me:planted-secret@index.invalid/simple"
    error = env_error(url, ["uv", url], rule=url, got=url, fix=url, output=url, where=url)
    for text in (str(error), error.facts["command"], error.facts["output"]):
        assert "planted-secret" not in text
        assert "https://***@index.invalid/simple" in text


@pytest.mark.parametrize(
    ("code", "words"), [(2, "exit code 2"), (-15, "its end by signal 15"), (-9, "its end by signal 9 (out of memory?)")]
)
def test_how_a_process_ended_is_said_in_words(code: int, words: str) -> None:
    assert ended_by(code) == words
