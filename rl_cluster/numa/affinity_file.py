"""The file that maps each GPU of a node to its CPUs, one ``index:cpulist`` a line, written at node start-up.

Its format is NeMo-RL's: the key is the index that ``nvidia-smi`` gives the GPU.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

from attrs import Factory, frozen

from rl_cluster.numa.cpulist import format_cpulist, parse_cpulist

DEFAULT_PATH = "/tmp/nrl_gpu_cpu_affinity"
ENV_NAME = "NRL_GPU_CPU_AFFINITY_FILE"

_KEY = re.compile(r"(?:GPU)?(\d+)", re.IGNORECASE)
_MAX_BYTES = 1 << 20


@frozen
class AffinityFile:
    """What the file says."""

    cpus_by_gpu: Mapping[int, frozenset[int]] = Factory(dict)  # GPU index -> CPUs
    simulated: bool = False
    problems: tuple[str, ...] = ()  # bad lines, named
    refusal: str | None = None  # why nothing of it is used
    untrusted: bool = False  # the refusal is about who could have written it


def read_affinity_file(path: str) -> AffinityFile:
    """Read the map; a bad line is named in ``problems`` and the others count.

    The file is opened without following a link, and must belong to root or this user and not be writable by everybody:
    it lies in a shared folder, and whoever can write it moves other people's processes.

    Args:
        path: The file.

    Returns:
        The map, or the reason why there is none, in ``refusal``.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if os.path.islink(path):
            return AffinityFile(refusal=f"{path} is a symbolic link, not trusted", untrusted=True)
        return AffinityFile(refusal=f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}")
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            return AffinityFile(refusal=f"{path} is not a regular file")
        if facts.st_uid not in (0, os.geteuid()):
            return AffinityFile(refusal=f"{path} belongs to user {facts.st_uid}, not trusted", untrusted=True)
        if facts.st_mode & stat.S_IWOTH:
            return AffinityFile(refusal=f"{path} is writable by everybody, not trusted", untrusted=True)
        text = os.read(handle, _MAX_BYTES).decode("utf-8", errors="replace")
    finally:
        os.close(handle)
    return _parse(path, text)


def _parse(path: str, text: str) -> AffinityFile:
    cpus_by_gpu: dict[int, frozenset[int]] = {}
    problems = []
    simulated = False
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("#"):
            simulated = simulated or "simulated" in line
            continue
        if not line:
            continue
        key, colon, cpulist = line.partition(":")
        match = _KEY.fullmatch(key.strip())
        try:
            if not colon or match is None:
                raise ValueError("must be 'GPU index:cpulist'")
            cpus = parse_cpulist(cpulist)
            if not cpus:
                raise ValueError("must name at least one CPU")
            if int(match[1]) in cpus_by_gpu:
                raise ValueError("must name a GPU once, the first line counts")
        except ValueError as error:
            problems.append(f"{path} line {number}: {error}, got {line[:80]!r}")
            continue
        cpus_by_gpu[int(match[1])] = cpus
    refusal = None if cpus_by_gpu else f"{path} maps no GPU"
    return AffinityFile(cpus_by_gpu=cpus_by_gpu, simulated=simulated, problems=tuple(problems), refusal=refusal)


def write_affinity_file(path: str, cpus_by_gpu: Mapping[int, Iterable[int]], *, simulated: bool = False, comment: str = "") -> None:
    """Write the map atomically, mode 0644: a reader sees the old file or the whole new one.

    Args:
        path: The file; a link there is replaced, not followed.
        cpus_by_gpu: GPU index -> CPUs.
        simulated: Mark the map as made up.
        comment: A line for a person at the top.

    Raises:
        OSError: The folder can't be written.
    """
    lines = ["# made up for a simulated cluster, over this machine's real CPUs"] if simulated else []
    lines += [f"# {line}" for line in comment.splitlines()]
    lines += [f"{gpu}:{format_cpulist(cpus)}" for gpu, cpus in sorted(cpus_by_gpu.items())]
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(handle, "w") as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fchmod(handle, 0o644)  # whatever the umask
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
