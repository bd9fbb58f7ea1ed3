"""What NVML says (nvidia-ml-py, the optional extra ``nvml``): the GPUs, and the CPUs and memory nodes near each."""

from __future__ import annotations

import ctypes
from typing import Any

from attrs import frozen

from rl_cluster.numa.kernel import nodes_of_mask
from rl_cluster.numa.pci import normalize_bus_id

_CPU_WORDS = 128  # 8192 CPUs, the kernel's largest NR_CPUS
_FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED: the GPU has joined its domain
_NODE_WORDS = 16  # 1024 nodes, the kernel's largest MAX_NUMNODES


@frozen
class NvmlGpu:
    """One GPU as NVML describes it."""

    index: int
    bus_id: str | None
    uuid: str | None
    model: str = ""
    cpus: frozenset[int] = frozenset()  # CPU affinity
    nodes: frozenset[int] = frozenset()  # memory affinity: CPU nodes, on GB200 the GPUs' own too. Never nvmlDeviceGetNumaNodeId.


class Nvml:
    """NVML, from first use until `close`. Every answer is None or empty where NVML has none; nothing is raised."""

    def __init__(self) -> None:
        self.refusal: str | None = None  # why NVML is not there
        self._lib: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
        except ImportError:
            self.refusal = "nvml: nvidia-ml-py is not installed"
        except Exception as error:  # NVMLError, whose class is pynvml's
            self.refusal = f"nvml: {error}"

    def close(self) -> None:
        """Give NVML back."""
        if self._lib is not None:
            self._ask("nvmlShutdown")
            self._lib = None

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Every GPU that NVML can see, by index."""
        count = self._ask("nvmlDeviceGetCount") or 0
        handles = [(index, self._ask("nvmlDeviceGetHandleByIndex", index)) for index in range(count)]
        return tuple(self._describe(index, handle) for index, handle in handles if handle is not None)

    def parent_of(self, uuid: str) -> NvmlGpu | None:
        """The GPU that a GPU or MIG UUID belongs to."""
        handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None and self._lib is not None:
            handle = self._ask("nvmlDeviceGetHandleByUUID", uuid.encode())  # pynvml before 11.5 takes bytes
        if handle is None:
            return None
        if uuid.startswith("MIG-"):
            handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
            if handle is None:
                return None
        index = self._ask("nvmlDeviceGetIndex", handle)
        return None if index is None else self._describe(index, handle)

    def fabric_uuid(self, index: int) -> str | None:
        """UUID of the NVLink domain (the fabric's cluster) of a GPU, or None where it is in none."""
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            return None
        struct = getattr(self._lib, "c_nvmlGpuFabricInfo_t", None)  # pynvml 12 and later
        if struct is None:
            return None
        info = struct()
        if self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
            return None
        raw = bytes(value & 0xFF for value in info.clusterUuid)  # pynvml declares it as char or as uint8, by version
        if info.state != _FABRIC_COMPLETED or not any(raw):
            return None
        text = raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"

    def _describe(self, index: int, handle: Any) -> NvmlGpu:
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        scope = getattr(self._lib, "NVML_AFFINITY_SCOPE_NODE", 0)
        return NvmlGpu(
            index=index,
            bus_id=None if pci is None else normalize_bus_id(_text(pci.busId)),
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle)) or None,
            model=_text(self._ask("nvmlDeviceGetName", handle)),
            cpus=nodes_of_mask(list(self._ask("nvmlDeviceGetCpuAffinity", handle, _CPU_WORDS) or ())),
            nodes=nodes_of_mask(list(self._ask("nvmlDeviceGetMemoryAffinity", handle, _NODE_WORDS, scope) or ())),
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        if self._lib is None:
            return None
        try:
            return getattr(self._lib, function)(*arguments)
        except Exception:  # NVMLError (not supported, not found), or an old pynvml without the function
            return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
