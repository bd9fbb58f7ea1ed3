"""Which GPU is meant: from what Ray assigned to index, PCI address and UUID, by what the machine tells."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from rl_cluster.numa.pci import AMD, bus_id_order, normalize_bus_id
from rl_cluster.numa.report import GpuIdentity
from rl_cluster.numa.system import read_text

if TYPE_CHECKING:
    from rl_cluster.numa.nvml import Nvml

_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+")  # before driver 470 a MIG UUID held its GPU's
_UUID = re.compile(r"(?:GPU-|MIG-).+", re.IGNORECASE)


@frozen
class Gpu:
    """A GPU of this machine."""

    index: int
    bus_id: str | None = None
    uuid: str | None = None
    model: str = ""

    def identity(self) -> GpuIdentity:
        """What of it goes into the report."""
        return GpuIdentity(index=self.index, bus_id=self.bus_id, uuid=self.uuid)


@frozen
class Unidentified:
    """Why a GPU id could not be turned into a GPU."""

    reason: str  # of rl_cluster.numa.report.REASONS
    text: str


def list_proc_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """GPUs of the NVIDIA driver, from ``/proc/driver/nvidia/gpus/<bus id>/information``: no library, no start-up of the driver.

    The index is the rank of the PCI address. That is how nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID count in practice; NVML's manual
    promises no order, so ``rl-cluster-probe --check`` compares this with what nvidia-smi says of the same index.
    """
    base = f"{root}/proc/driver/nvidia/gpus"
    try:
        names = os.listdir(base)
    except OSError:
        return ()
    bus_ids = sorted((bus_id for bus_id in map(normalize_bus_id, names) if bus_id), key=bus_id_order)
    spelling = {normalize_bus_id(name): name for name in names}
    gpus = []
    for index, bus_id in enumerate(bus_ids):
        text = read_text(f"{base}/{spelling[bus_id]}/information") or ""
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
        uuid = facts.get("GPU UUID", "")
        gpus.append(Gpu(index=index, bus_id=bus_id, uuid=uuid if uuid and "?" not in uuid else None, model=facts.get("Model", "")))
    return tuple(gpus)


def list_amd_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """AMD GPUs: the cards of ``/sys/class/drm``, by PCI address."""
    base = f"{root}/sys/class/drm"
    bus_ids: set[str] = set()
    try:
        cards = [name for name in os.listdir(base) if re.fullmatch(r"card\d+", name)]
    except OSError:
        cards = []
    for card in cards:
        device = f"{base}/{card}/device"
        bus_id = normalize_bus_id(os.path.basename(os.path.realpath(device)))
        if bus_id is not None and (read_text(f"{device}/vendor") or "").lower() == f"{AMD:#06x}":
            bus_ids.add(bus_id)
    return tuple(
        Gpu(index=index, bus_id=bus_id, uuid=read_text(f"{root}/sys/bus/pci/devices/{bus_id}/unique_id") or None, model="AMD")
        for index, bus_id in enumerate(sorted(bus_ids, key=bus_id_order))
    )


def list_nvml_gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """GPUs that NVML sees."""
    return tuple(Gpu(index=gpu.index, bus_id=gpu.bus_id, uuid=gpu.uuid, model=gpu.model) for gpu in nvml.gpus())


SMI_QUERY = ("--query-gpu=index,pci.bus_id,uuid,name", "--format=csv,noheader")
"""Arguments of the ``nvidia-smi`` call that `parse_smi_gpus` reads."""


def parse_smi_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs of the table that ``nvidia-smi`` prints for `SMI_QUERY`."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and cells[0].isdecimal():
            gpus.append(Gpu(index=int(cells[0]), bus_id=normalize_bus_id(cells[1]), uuid=cells[2] or None, model=cells[3]))
    return tuple(gpus)


def parse_smi_parent(text: str, uuid: str) -> int | None:
    """Index of the GPU under which ``nvidia-smi -L`` lists a GPU or MIG UUID."""
    index = None
    for line in text.splitlines():
        match = re.match(r"GPU (\d+):", line)
        if match is not None:
            index = int(match[1])
        if f"UUID: {uuid})" in line:
            return index
    return None


def is_uuid(gpu_id: str) -> bool:
    """Is the id a GPU's or MIG device's UUID, not an index?"""
    return _UUID.fullmatch(gpu_id.strip()) is not None


def match_gpu(gpu_id: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU of the table that an index, UUID (or its unambiguous beginning, as CUDA allows) or PCI address names."""
    text = gpu_id.strip()
    old_mig = _OLD_MIG.fullmatch(text)
    text = old_mig[1] if old_mig else text
    if text.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(text)), None)
    if is_uuid(text):
        found = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(text.lower())]
        return found[0] if len(found) == 1 else None
    bus_id = normalize_bus_id(text)
    return next((gpu for gpu in gpus if bus_id is not None and gpu.bus_id == bus_id), None)


def device_order_note(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> str | None:
    """Warns where CUDA may number the GPUs otherwise than the machine: different models and CUDA_DEVICE_ORDER not PCI_BUS_ID."""
    models = {gpu.model for gpu in gpus if gpu.model}
    if len(models) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return None
    return (
        "GPUs of different models: CUDA numbers the fastest first, set CUDA_DEVICE_ORDER=PCI_BUS_ID so that its indices are the machine's"
    )
