"""This machine as the sources see it: NUMA nodes, GPUs, the affinity file, NVML and nvidia-smi, each read on first use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rl_cluster.numa import affinity_file, gpus, pci
from rl_cluster.numa.gpus import Gpu, Unidentified
from rl_cluster.numa.system import NumaSystem, snapshot_system
from rl_cluster.numa.topo import parse_topo

if TYPE_CHECKING:
    from rl_cluster.numa.nvml import Nvml, NvmlGpu


class Machine:
    """This machine as the sources see it. Everything is read on first use and kept, so one object serves one question.

    Args:
        root: Folder that stands for ``/``.
        environ: Environment variables, for CUDA_DEVICE_ORDER and NRL_GPU_CPU_AFFINITY_FILE.
        affinity_path: The affinity file; default: $NRL_GPU_CPU_AFFINITY_FILE, then `affinity_file.DEFAULT_PATH`.
    """

    def __init__(self, root: Path = Path("/"), *, environ: Mapping[str, str] | None = None, affinity_path: str | None = None) -> None:
        self.root = root
        self.environ = os.environ if environ is None else environ
        self.affinity_path = affinity_path or self.environ.get(affinity_file.ENV_NAME) or affinity_file.DEFAULT_PATH
        self._smi_refusal: str | None = None

    def close(self) -> None:
        """Give NVML back, where it was asked."""
        if "nvml" in self.__dict__:
            self.nvml.close()

    # --- what is read ---
    @cached_property
    def system(self) -> NumaSystem:
        """NUMA nodes."""
        return snapshot_system(self.root)

    @cached_property
    def affinity(self) -> affinity_file.AffinityFile:
        """The affinity file."""
        return affinity_file.read_affinity_file(self.affinity_path)

    @cached_property
    def nvml(self) -> Nvml:
        """NVML."""
        from rl_cluster.numa.nvml import Nvml  # here: a worker whose affinity file or sysfs answers needs none

        return Nvml()

    @cached_property
    def nvml_gpus(self) -> tuple[NvmlGpu, ...]:
        """NVML's GPUs."""
        return self.nvml.gpus()

    @cached_property
    def kernel_gpus(self) -> tuple[Gpu, ...]:
        """GPUs that /proc and sysfs name: cheap to read, but without the NVIDIA driver's /proc there are none."""
        return gpus.list_proc_gpus(self.root) or gpus.list_amd_gpus(self.root)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs of this machine: by /proc and sysfs, else NVML, else nvidia-smi."""
        return self.kernel_gpus or gpus.list_nvml_gpus(self.nvml) or gpus.parse_smi_gpus(self.ask_smi(*gpus.SMI_QUERY)[0] or "")

    @cached_property
    def topo(self) -> tuple[Mapping[int, int | None], str]:
        """nvidia-smi's table, GPU index -> node, and why there is none."""
        text, refusal = self.ask_smi("topo", "-m")
        return ({} if text is None else parse_topo(text, cpu_nodes=self.system.cpu_nodes() or None)), refusal

    def ask_smi(self, *arguments: str) -> tuple[str | None, str]:
        """What ``nvidia-smi`` prints, or None and why; where it hung once it is not waited for again."""
        from rl_cluster.numa.commands import SLOW, run_command  # here: a worker whose affinity file answers needs no subprocess

        if self._smi_refusal is not None:
            return None, self._smi_refusal
        text, refusal = run_command(["nvidia-smi", *arguments])
        if SLOW in refusal:
            self._smi_refusal = refusal
        return text, refusal

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """PCI address of every GPU of the machine, in order: another container's too, which the driver's own tools hide."""
        seen = {gpu.bus_id for gpu in self.gpus if gpu.bus_id}
        return tuple(sorted(seen | {gpu.bus_id for gpu in pci.snapshot_pci_gpus(self.root)}, key=pci.bus_id_order))

    # --- which GPU ---
    def identify(self, gpu_id: str | int, *, cheap: bool = False) -> Gpu | Unidentified:
        """The GPU that Ray's id means.

        Args:
            gpu_id: Index (int or text), GPU or MIG UUID, or PCI address.
            cheap: Stay with /proc and sysfs; an index that they don't list comes back without address and UUID.
        """
        text = str(gpu_id).strip()
        table = self.kernel_gpus if cheap else self.gpus
        found = gpus.match_gpu(text, table)
        if found is not None:
            return found
        if text.isdecimal():
            if table:
                return Unidentified("unknown-gpu", f"GPU {text} is none of the {len(table)} GPUs that are listed here")
            return Gpu(index=int(text))
        if not gpus.is_uuid(text):
            return Unidentified("unknown-gpu", f"GPU id must be an index, UUID or PCI address, got {text!r}")
        parent = self.nvml.parent_of(text)
        if parent is not None:
            by_address = gpus.match_gpu(parent.bus_id or "", self.gpus)
            return by_address or Gpu(index=parent.index, bus_id=parent.bus_id, uuid=parent.uuid, model=parent.model)
        index = gpus.parse_smi_parent(self.ask_smi("-L")[0] or "", text)
        if index is not None:
            return gpus.match_gpu(str(index), self.gpus) or Gpu(index=index)
        return Unidentified("unresolved-uuid", f"{text} is known neither to /proc, NVML nor nvidia-smi")
