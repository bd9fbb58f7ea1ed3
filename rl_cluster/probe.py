"""The node's start-up probe, for whoever runs ``ray start``: ``rl-cluster-probe``, or ``python -m rl_cluster.probe``.

Without options it writes the GPU -> cpulist file that workers bind by. ``--resources`` and ``--labels`` print what tells Ray
the node's place, ``--show`` and ``--check`` show a person what the machine says of its GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_cluster.errors import EXIT_CHECK_FAILED, EXIT_OK
from rl_cluster.numa.affinity_file import write_affinity_file
from rl_cluster.numa.cpulist import format_cpulist
from rl_cluster.numa.gpus import Gpu
from rl_cluster.numa.machine import Machine
from rl_cluster.numa.place import NodePlace, find_place
from rl_cluster.numa.sources import SOURCES, Location, find_gpu
from rl_cluster.numa.system import snapshot_system
from rl_cluster.views.screen import command, say


@command
def main(argv: Sequence[str] | None = None, *, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> int:
    """Run the probe.

    Args:
        argv: Arguments; default: the command line's.
        root: Folder that stands for ``/``.
        environ: Environment variables; default: the process's.

    Returns:
        Exit status: 0, or 4 where sources disagree or the file can't be written. Without any GPU it is 0: there is nothing to compare.
    """
    options = _parser().parse_args(argv)
    machine = Machine(root, environ=environ, affinity_path=options.output)
    try:
        status = EXIT_OK
        views = options.resources or options.labels or options.show or options.check
        if options.write or not views:
            status = max(status, _write(machine))
        if options.resources or options.labels:
            place = find_place(machine, os.uname().nodename)
            for note in place.notes:
                _say(note)
            if options.resources:
                print(json.dumps(place.resources()))
            if options.labels:
                print(format_labels(place))
        if options.show:
            print(render_machine(machine))
        if options.check:
            text, agree = render_check(machine)
            print(text)
            status = max(status, EXIT_OK if agree else EXIT_CHECK_FAILED)
        return status
    finally:
        machine.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rl-cluster-probe",
        description="Tell GPU workers and Ray where this node's GPUs are. Without options: write the GPU -> cpulist file.",
        epilog="""ray start --resources="$(rl-cluster-probe --write --resources)" --labels="$(rl-cluster-probe --labels)" ...""",
    )
    parser.add_argument("--write", action="store_true", help="write the GPU -> cpulist file, also beside the other options")
    parser.add_argument("--output", metavar="PATH", help="the file (default: $NRL_GPU_CPU_AFFINITY_FILE, /tmp/nrl_gpu_cpu_affinity)")
    parser.add_argument("--resources", action="store_true", help="print JSON for `ray start --resources`: nvlink_domain_<uuid>, topo_rank")
    parser.add_argument("--labels", action="store_true", help="print the same for `ray start --labels`")
    parser.add_argument("--show", action="store_true", help="print GPUs, NUMA nodes, CPUs and distances")
    parser.add_argument("--check", action="store_true", help="ask every source for every GPU; exit 4 where they disagree, 0 without a GPU")
    return parser


def _write(machine: Machine) -> int:
    cpus_by_gpu = {}
    for gpu in machine.gpus or _gpus_of_topo(machine):
        _, place, notes = find_gpu(machine, gpu.index, without=("affinity_file",))
        if isinstance(place, Location) and place.cpus:
            cpus_by_gpu[gpu.index] = place.cpus
        else:
            _say(f"GPU {gpu.index}: left out, its NUMA node is not known: {'; '.join(notes)}")
    if not cpus_by_gpu:
        _say(f"{machine.affinity_path} is not written: no GPU whose NUMA node is known. {_what_is_missing(machine)}")
        return EXIT_OK
    try:
        write_affinity_file(machine.affinity_path, cpus_by_gpu)
    except OSError as error:
        _say(f"{machine.affinity_path}: must be writable, got {error.strerror}. Fix: --output PATH and NRL_GPU_CPU_AFFINITY_FILE=PATH")
        return EXIT_CHECK_FAILED
    _say(f"{machine.affinity_path}: {len(cpus_by_gpu)} GPUs")
    return EXIT_OK


def format_labels(place: NodePlace) -> str:
    """Labels as ``ray start --labels`` takes them: ``key=value,key=value``. (Its older JSON form refuses keys of ``ray.io/``.)"""
    return ",".join(f"{key}={value}" for key, value in place.labels().items())


def render_machine(machine: Machine) -> str:
    """GPUs and NUMA nodes of the machine, for a person."""
    rows = [("GPU", "PCI address", "UUID", "NUMA node", "CPUs", "source")]
    for gpu in _every_gpu(machine):
        found, place, _ = find_gpu(machine, gpu.index)
        where = (
            ("?", place.reason, "")
            if not isinstance(place, Location)
            else (format_cpulist(place.nodes), format_cpulist(place.cpus), place.source)
        )
        best = found or gpu
        rows.append((str(gpu.index), best.bus_id or "?", best.uuid or "?", *where))
    text = _table(rows) if len(rows) > 1 else f"no GPU found. {_what_is_missing(machine)}"
    system = snapshot_system(machine.root, distances=True)
    if not system.nodes:
        return f"{text}\n\nno NUMA nodes: the kernel shows none"
    ids = [node.id for node in system.nodes]
    table = [("NUMA node", "CPUs", "memory", *(f"to {i}" for i in ids))]
    for node in system.nodes:
        distances = (str(node.distances.get(i, "?")) for i in ids)
        table.append((str(node.id), format_cpulist(node.cpus) or "none", "yes" if node.has_memory else "none", *distances))
    return f"{text}\n\n{_table(table)}"


def render_check(machine: Machine) -> tuple[str, bool]:
    """What every source says of every GPU, side by side, and whether those that answer agree.

    An affinity file agrees with a node where its CPUs lie on that node, all or some.
    """
    rows = [("GPU", "PCI address", *SOURCES, "verdict")]
    notes: list[str] = []
    agree = True
    for gpu in _every_gpu(machine):
        answers = {}
        for name in SOURCES:
            _, place, why = find_gpu(machine, gpu.index, name)
            if isinstance(place, Location) and place.source == name:
                answers[name] = format_cpulist(place.nodes) or "no node"
            else:
                notes += [note for note in why if note not in notes]
        same = len(set(answers.values())) < 2
        agree = agree and same
        verdict = "no answer" if not answers else ("agree" if len(answers) > 1 else "one answer") if same else "DISAGREE"
        rows.append((str(gpu.index), gpu.bus_id or "?", *(answers.get(name, "-") for name in SOURCES), verdict))
    if len(rows) == 1:
        return f"no GPU found, so there is nothing to compare. {_what_is_missing(machine)}", True
    lines = [_table(rows), *(f"  {note}" for note in notes)]
    lines.append("the sources agree" if agree else "the sources DISAGREE: choose one by numa.source, and tell us of this machine")
    return "\n".join(lines), agree


def _every_gpu(machine: Machine) -> tuple[Gpu, ...]:
    found = {gpu.index: gpu for gpu in machine.gpus}
    for index in (*machine.affinity.cpus_by_gpu, *machine.topo[0]):
        found.setdefault(index, Gpu(index=index))
    return tuple(found[index] for index in sorted(found))


def _gpus_of_topo(machine: Machine) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=index) for index in sorted(machine.topo[0]))


def _what_is_missing(machine: Machine) -> str:
    reasons = [] if machine.kernel_gpus else ["/proc/driver/nvidia and /sys/class/drm: no GPU"]
    reasons += [machine.nvml.refusal] if machine.nvml.refusal else []
    reasons += [f"nvidia-smi: {machine.topo[1]}" if "nvidia-smi" not in machine.topo[1] else machine.topo[1]] if machine.topo[1] else []
    return "; ".join(reasons)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _say(text: str) -> None:
    say(f"rl-cluster-probe: {text}")  # standard output belongs to what `ray start` takes


if __name__ == "__main__":
    sys.exit(main())
