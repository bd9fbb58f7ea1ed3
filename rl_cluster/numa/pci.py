"""PCI addresses, and the display-class devices that sysfs shows."""

from __future__ import annotations

import os
import re
from pathlib import Path

from attrs import frozen

from rl_cluster.numa.system import read_text

NVIDIA, AMD = 0x10DE, 0x1002

_BUS_ID = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
_CLASSES = (0x03, 0x12)  # display controller, processing accelerator (PCI base classes)


@frozen
class PciGpu:
    """A GPU as the PCI bus shows it, even where its driver gives this process no access."""

    bus_id: str
    vendor: int
    numa_node: int  # -1: the firmware does not say


def normalize_bus_id(text: str) -> str | None:
    """A PCI address as sysfs spells it: ``00000008:06:00.0`` (NVML) becomes ``0008:06:00.0``. None: no PCI address."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def bus_id_order(bus_id: str) -> tuple[int, ...]:
    """The order in which drivers number their devices: by domain, bus, device, function, as numbers."""
    return tuple(int(part, 16) for part in re.split("[:.]", bus_id))


def numa_node_of(bus_id: str, *, root: Path = Path("/")) -> int | None:
    """``numa_node`` of a PCI device: -1 where the firmware does not say, None where sysfs has no such device."""
    text = read_text(f"{root}/sys/bus/pci/devices/{bus_id}/numa_node")
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def snapshot_pci_gpus(root: Path = Path("/")) -> tuple[PciGpu, ...]:
    """Every NVIDIA and AMD device of a display or accelerator class, by address: those of other containers too."""
    base = f"{root}/sys/bus/pci/devices"
    try:
        names = os.listdir(base)
    except OSError:
        return ()
    found = []
    for name in names:
        vendor = _hex(f"{base}/{name}/vendor")
        bus_id = normalize_bus_id(name)
        if bus_id is None or vendor not in (NVIDIA, AMD) or (_hex(f"{base}/{name}/class") or 0) >> 16 not in _CLASSES:
            continue
        node = numa_node_of(bus_id, root=root)
        found.append(PciGpu(bus_id=bus_id, vendor=vendor, numa_node=-1 if node is None else node))
    return tuple(sorted(found, key=lambda gpu: bus_id_order(gpu.bus_id)))


def _hex(path: str) -> int | None:
    text = read_text(path)
    try:
        return None if text is None else int(text, 16)
    except ValueError:
        return None
