"""What a Python is started with to be asked whether it can run workers: a file, as Ray's worker is one (some wrappers look at that)."""

from __future__ import annotations

import os
import sys

MARK = "rl-cluster-python: "  # begins the line of the answer, whatever else is written


def main() -> None:
    """Answer in one line, or end with the error of the import."""
    # this folder's modules must not be found instead of others of the same name, nor make up for a rl_cluster that is not there
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    import json

    import ray

    import rl_cluster  # noqa: F401

    facts = {"python": ".".join(map(str, sys.version_info[:3])), "ray": ray.__version__, "executable": sys.executable}
    print(f"\n{MARK}{json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
