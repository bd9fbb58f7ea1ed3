"""What is said of a node whose part of a piece of work brings no answer: Ray's words in, ours out."""

from __future__ import annotations

import pytest

from rl_cluster.process.node_work import why_lost

KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: _NodeHand
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a
connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage."""
NO_PACKAGE = """The actor died because of an error raised in its creation task, ray::_NodeHand.__init__()
RuntimeError: The actor with name _NodeHand failed to import on the worker.
  File "/ray/function_manager.py", line 1, in load
ModuleNotFoundError: No module named 'rl_cluster'
"""


@pytest.mark.parametrize(
    ("text", "alive", "rule", "got"),
    [
        pytest.param(
            KILLED,
            True,
            "the process that works there must live",
            "Worker unexpectedly exits with a connection error code 2. End of file",
            id="killed",
        ),
        pytest.param(KILLED, False, "the node must live", "The actor died unexpectedly before finishing this task.", id="the-node-is-gone"),
        pytest.param(
            "The actor died because its node has died.",
            True,
            "the node must live",
            "The actor died because its node has died.",
            id="just-now",
        ),
        pytest.param(
            NO_PACKAGE,
            True,
            "the Python of Ray itself must have rl_cluster there",
            "ModuleNotFoundError: No module named 'rl_cluster'",
            id="no-package",
        ),
        pytest.param("", False, "the node must live", "no answer", id="without-a-word"),
    ],
)
def test_the_cause_is_told_in_one_line(text: str, alive: bool, rule: str, got: str) -> None:
    """A process that was killed, a node that is gone, and a node whose Ray lacks this package are three things."""
    assert why_lost(text, alive=alive)[:2] == (rule, got)
