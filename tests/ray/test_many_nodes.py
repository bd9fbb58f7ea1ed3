"""What the plan says is what Ray does, on many uneven nodes; and drivers that race for the same nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.ray
def test_sixteen_uneven_nodes() -> None:
    """50 random specs on pools of 2, 4, 8 and 16 nodes, partly busy, lie where planned; of four drivers, none holds a half."""
    script = Path(__file__).with_name("many_nodes.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none held a half" in done.stdout
