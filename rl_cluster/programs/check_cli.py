"""``rl-cluster-check PATH...``: are these option files and recipes such that Hydra and rl_cluster take them as they are meant?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rl_cluster.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from rl_cluster.programs.conf_check import check_conf, find_files, kind_of_file
from rl_cluster.programs.conf_lines import read_source
from rl_cluster.views.screen import command


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Checks files, and all YAML files below folders; prints ``file:line: problem`` and one last line.

    Args:
        arguments: The words of the command line; default: those of this process.

    Returns:
        0 where nothing was found, else 1.
    """
    parser = argparse.ArgumentParser(
        prog="rl-cluster-check",
        description="Check your own option files (folders cluster, numa, python, ray) and recipes: unknown keys, types and values, options "
        "that are not there, absolute interpolation, @package headers, _target_, and words that YAML reads as something else (on, 010).",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a YAML file, or a folder with some")
    files = [file for path in parser.parse_args(arguments).paths for file in find_files(path)]
    count, checked = 0, 0
    for file in dict.fromkeys(files):
        try:
            problems = [str(finding) for finding in check_conf(file)]
            mine = bool(problems) or bool(kind_of_file(read_source(file)))
        except ConfigError as error:
            problems, mine = list(error.problems), True
        for problem in problems:
            print(problem)
        checked += mine
        count += len(problems)
    others = f"; {len(dict.fromkeys(files)) - checked} with nothing of rl_cluster left alone" if checked < len(dict.fromkeys(files)) else ""
    print(f"{'FAILED' if count else 'OK'}: {checked} file{'s' * (checked != 1)} checked, {count} problem{'s' * (count != 1)}{others}")
    return EXIT_CONFIG if count else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
