"""The kernel's cpulist text (``0-3,8``), which sysfs uses for sets of CPUs and of NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ID = 65535  # far above any kernel's NR_CPUS (8192); keeps a typo like 0-99999999999 from filling the memory

_PART = re.compile(r"(\d+)(?:\s*-\s*(\d+)(?::(\d+)/(\d+))?)?")


def parse_cpulist(text: str) -> frozenset[int]:
    """Parse a cpulist, in the grammar of the kernel's ``bitmap_parselist``.

    Args:
        text: Numbers and ranges between commas; ``0-31:1/2`` takes the first 1 of each 2. Blank text is the empty set.

    Returns:
        The ids.

    Raises:
        ValueError: The text is no cpulist; the message quotes it.
    """
    ids: set[int] = set()
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"cpulist: must be numbers and ranges like '0-3,8', got {text!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first or last > MAX_ID:
            raise ValueError(f"cpulist: a range must ascend and end at most at {MAX_ID}, got {text!r}")
        if match[3] is None:
            ids.update(range(first, last + 1))
            continue
        used, group = int(match[3]), int(match[4])
        if group == 0 or used > group:
            raise ValueError(f"cpulist: 'used/group' must have used <= group and group > 0, got {text!r}")
        for start in range(first, last + 1, group):
            ids.update(range(start, min(start + used, last + 1)))
    return frozenset(ids)


def format_cpulist(ids: Iterable[int]) -> str:
    """Write ids as the shortest cpulist of ascending ranges; the inverse of `parse_cpulist`. No ids: an empty string."""
    runs: list[list[int]] = []
    for i in sorted(set(ids)):
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
