"""What uv's messages mean for a user: the rule that was broken, and what to do. Pure.

The texts are those of uv 0.13; one that isn't known gives a general answer, and the output itself is always shown.
"""

from __future__ import annotations

import re
import shlex

from rl_cluster.python_env import PythonPlan

__all__ = ["explain"]

_KNOWN = (
    (r"Unable to find lockfile", "the project must be locked", "run uv lock --directory {project}"),
    (r"lockfile .*needs to be updated", "the lock must be up to date", "run uv lock --directory {project}"),
    (r"Extra `([^`]+)` is not defined", "the project must define the extra {0}", "add it to project.optional-dependencies of {project}"),
    (r"Group `([^`]+)` is not defined", "the project must define the group {0}", "add it to dependency-groups of {project}"),
    (
        r"incompatible with the project's Python requirement",
        "the project must allow the cluster's Python",
        "widen requires-python of {project}",
    ),
    (
        r"No `pyproject.toml` found",
        "python.project_dir must be a uv project on every node",
        "give python.project_dir a folder that all nodes have",
    ),
    (
        r"No space left on device|os error 28|Errno 28",
        "the disk must have room",
        "give python.venv_dir another disk, or run rl-cluster-envs prune",
    ),
    (
        r"Permission denied|os error 13|Errno 13|Read-only file system",
        "the folder must be writable",
        "give python.venv_dir a folder of yours",
    ),
    (
        r"(dns error|Failed to fetch|error sending request|Could not connect|network connectivity is disabled)",
        "its packages must be in reach",
        "check the network of the node, or fill uv's cache there and add --offline",
    ),
    (r"No interpreter found|No Python", "the Python that is asked for must be there", "leave --python out, or install it on every node"),
    (
        r"signal: 9|Killed signal terminated|SIGKILL|MemoryError",
        "the node must have the memory to build its packages",
        "take fewer compilers at once (MAX_JOBS), or build on a larger node",
    ),
    (r"Failed to build|Call to `.*build", "its packages must build", "build it by hand on that node: {command}"),
)


def explain(output: str, plan: PythonPlan) -> tuple[str, str]:
    """``(rule, fix)`` for the output of a command that failed."""
    command = shlex.join(plan.command)
    for pattern, rule, fix in _KNOWN:
        found = re.search(pattern, output)
        if found:
            return rule.format(*found.groups()), fix.format(project=plan.project_dir, command=command)
    return "the environment must build", f"try it by hand on that node: {command}"
