"""A stand-in for NVIDIA's ``nsys``, which needs their toolkit: the part of its command line that matters for who starts whom and when."""

from __future__ import annotations

import sys
from pathlib import Path

# It runs the command as its child, and writes after the child's end, as nsys does: first a file without a name of its own, then the
# profile. What it writes is its own command line and how the child ended. `gate` in its folder keeps it from writing.
SCRIPT = """#!{python}
import os, re, subprocess, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
KNOWN = ("t", "o", "output", "trace", "stop-on-exit", "sample")

def main(words):
    if words[0] != "profile":
        sys.exit("usage: nsys profile [options] command")
    output, words = "report1", words[1:]
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, _, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            value = words.pop(0)
        if name not in KNOWN:
            sys.exit("unrecognised option '" + word + "'\\nusage: nsys profile [options] command")
        if name in ("o", "output"):
            output = value
    child = subprocess.Popen(words)
    code = child.wait()
    parent = os.getppid()
    while os.path.exists(os.path.join(HERE, "gate")) and os.getppid() == parent:
        time.sleep(0.02)
    path = output.replace("%p", str(child.pid)) + ".nsys-rep"
    with open(path + ".tmp", "w") as file:
        file.write(repr((words[0], code)))
    os.replace(path + ".tmp", path)
    sys.exit(code if code >= 0 else 128 - code)

main(sys.argv[1:])
"""


def write_nsys(folder: Path) -> Path:
    """Put it into a folder, which is then to be on PATH."""
    folder.mkdir(exist_ok=True)
    program = folder / "nsys"
    program.write_text(SCRIPT.format(python=sys.executable))
    program.chmod(0o755)
    return folder
