"""The quick start of a worker that has a runtime_env: it does what Ray's own file does, or leaves it to that one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_cluster.ground import _setup_worker

SHOW = """
import json, os, sys
# of the shell; the others are set by importing Ray (and, on Python 3.13, readline), which a worker does as well
left_out = ("_", "SHLVL", "PWD", "OLDPWD", "RAY_CLIENT_MODE", "LINES", "COLUMNS")
names = [name for name in os.environ if name not in left_out]
print(json.dumps([sys.executable, sys.orig_argv[1:], sys.flags.dev_mode, {name: os.environ[name] for name in names}]))
"""


def arguments(context: dict[str, Any], *words: str) -> list[str]:
    """What the raylet gives for a runtime_env."""
    return [*words, f"--serialized-runtime-env-context={json.dumps(context)}", "--language=PYTHON"]


def started(program: str, words: list[str]) -> Any:
    environ = {"PATH": os.environ["PATH"], "KEPT": "as it was", "HOME": "/nowhere"}
    answer = subprocess.run([sys.executable, program, *words], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize(
    "context",
    [
        pytest.param({"env_vars": {"A": "a b", "B": "\"quoted\" 'twice'", "KEPT": "changed"}}, id="variables"),
        pytest.param({"py_executable": f"{sys.executable} -X dev"}, id="a command line"),
        pytest.param({"env_vars": {"BOTH": "${KEPT} and ${NOBODY}"}}, id="a variable in a value, left to Ray's"),
        pytest.param({"command_prefix": ["cd / &&"], "env_vars": {"A": "1"}}, id="a prefix, left to Ray's"),
        pytest.param({}, id="nothing"),
    ],
)
def test_a_worker_starts_as_with_rays_own_file(context: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "show it.py"
    script.write_text(SHOW)
    words = arguments(context, str(script), "--plain", "with space", "a'b\"c", "$KEPT;`ls`", "--empty=")
    assert started(_setup_worker.__file__, words) == started(_setup_worker.rays_own(), words)


@pytest.mark.parametrize(
    ("context", "others"),
    [
        pytest.param({"command_prefix": ["cd /tmp &&"]}, (), id="a prefix"),
        pytest.param({"override_worker_entrypoint": "/in/the/image.py"}, (), id="an image"),
        pytest.param({"env_vars": {"A": "$HOME"}}, (), id="a variable in a value"),
        pytest.param({"a_new_field": 1}, (), id="a field of a later Ray"),
        pytest.param({}, ("--language=CPP",), id="two languages"),
    ],
)
def test_more_than_variables_and_an_interpreter_is_left_to_rays_own(context: dict[str, Any], others: tuple[str, ...]) -> None:
    assert _setup_worker.plain_start(arguments(context, "worker.py", *others)) is None


def test_another_language_is_left_to_rays_own() -> None:
    assert _setup_worker.plain_start(["worker", "--serialized-runtime-env-context={}", "--language=JAVA"]) is None


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """It runs in the raylet's Python, beside modules of ours that have the names of others (``selectors``, ``records``)."""
    script = tmp_path / "show.py"
    script.write_text("import sys; print(*sys.path)")
    words = [sys.executable, "-I", "-S", _setup_worker.__file__, *arguments({"py_executable": f"{sys.executable} -S"}, str(script))]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert os.path.dirname(_setup_worker.__file__) not in answer.stdout.split()
