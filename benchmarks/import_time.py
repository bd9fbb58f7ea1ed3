"""What starting costs: `run.py --help` against a Hydra app with an empty config, `import rl_cluster` against a bare interpreter.

The two of each pair run in turn in one call, so that a busy machine slows both; medians of CPU seconds (user and system) are
compared, wall seconds are printed beside them. Exit 1 where a bar is not kept: help at most 1.3 times, import at most 60 ms more,
and neither Ray nor Hydra imported by it.

    python benchmarks/import_time.py [--pairs 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMPTY_APP = """
import hydra

@hydra.main(version_base="1.3", config_path="conf", config_name="empty")
def main(config):
    pass

main()
"""
MOST_HELP_RATIO, MOST_IMPORT_MS = 1.3, 60.0
NOT_BY_IMPORT = ("ray", "hydra", "omegaconf", "rich", "pynvml")


def measure(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """CPU and wall seconds of one process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall


def compare(commands: Mapping[str, Sequence[str]], folder: Path, pairs: int) -> dict[str, dict[str, float]]:
    """Medians of each command, run in turn; one round before the first is not counted (it fills the file cache)."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(pairs + 1):
        for name, command in commands.items():
            seconds = measure(command, folder)
            if number:
                runs[name].append(seconds)
    return {
        name: {"cpu_s": statistics.median(cpu for cpu, _ in found), "wall_s": statistics.median(wall for _, wall in found)}
        for name, found in runs.items()
    }


def modules_of_import() -> list[str]:
    """Which of the costly modules `import rl_cluster` brings in."""
    code = f"import sys, rl_cluster; print(*[name for name in {NOT_BY_IMPORT!r} if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout.split()


def main() -> int:
    """Measure, print, and say whether the bars are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs (default 10)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file ('-': standard output)")
    options = parser.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conf").mkdir()
        (folder / "conf" / "empty.yaml").write_text("")
        (folder / "app.py").write_text(EMPTY_APP)
        help_ = compare({"empty": [python, "app.py", "--help"], "run.py": [python, str(ROOT / "run.py"), "--help"]}, folder, options.pairs)
        import_ = compare({"bare": [python, "-c", "pass"], "rl_cluster": [python, "-c", "import rl_cluster"]}, folder, options.pairs)
    found = {
        "pairs": options.pairs,
        "help": help_,
        "help_ratio": help_["run.py"]["cpu_s"] / help_["empty"]["cpu_s"],
        "import": import_,
        "import_ms": 1000 * (import_["rl_cluster"]["cpu_s"] - import_["bare"]["cpu_s"]),
        "imported": modules_of_import(),
    }
    kept = found["help_ratio"] <= MOST_HELP_RATIO and found["import_ms"] <= MOST_IMPORT_MS and not found["imported"]
    if options.json == "-":
        print(json.dumps({**found, "kept": kept}, indent=2))
        return 0 if kept else 1
    for title, pair in (("--help", help_), ("import", import_)):
        for which, seconds in pair.items():
            print(f"{title:8}{which:12}{1000 * seconds['cpu_s']:8.1f} ms CPU{1000 * seconds['wall_s']:10.1f} ms wall")
    print(f"run.py --help: {found['help_ratio']:.2f} times an empty Hydra app (at most {MOST_HELP_RATIO})")
    print(f"import rl_cluster: {found['import_ms']:.1f} ms over a bare interpreter (at most {MOST_IMPORT_MS:.0f})")
    print(f"imported by it: {', '.join(found['imported']) or 'none'} of {', '.join(NOT_BY_IMPORT)}")
    print("kept" if kept else "NOT KEPT")
    if options.json:
        Path(options.json).write_text(json.dumps({**found, "kept": kept}, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
