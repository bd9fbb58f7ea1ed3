"""What of the driver's environment the workers see. Pure: values in, values out, nobody's dict and never ``os.environ`` is changed.

Forwarded is what an allow-list names (:data:`FORWARDED`), what ``env.forward`` adds and what ``env.set`` says. Never forwarded are the
launcher's variables, Ray's, the rank variables (they are ours), and what looks like a secret and is not named exactly.

``LD_LIBRARY_PATH`` and ``PYTHONPATH`` are not on the list: a worker has its node's own from the raylet, the driver's may name folders
that other nodes lack, and any variable that must exist before a process starts costs a second interpreter start in every worker.
``env.forward=[LD_LIBRARY_PATH]`` forwards it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import field, frozen

from rl_cluster.errors import ConfigError
from rl_cluster.ground.secrets import looks_secret, mask_value, masked
from rl_cluster.schema import EnvSpec

__all__ = [
    "EARLY",
    "FORWARDED",
    "LAUNCHER",
    "ORIGINS",
    "RANK_VARIABLES",
    "WorkerEnv",
    "check_env",
    "forwarded_env",
    "omp_threads",
    "split_early",
]

ORIGINS = ("default", "env.forward", "env.set")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FORWARDED = _words(
    """
    NCCL_* GLOO_* UCX_* FI_* NVSHMEM_* CUDA_* CUDNN_* CUBLAS_* NVTE_* NVIDIA_TF32_OVERRIDE
    TORCH_* TORCHINDUCTOR_* TORCHDYNAMO_* PYTORCH_* TRITON_* XLA_* JAX_*
    HF_* TRANSFORMERS_* TOKENIZERS_* DATASETS_* SAFETENSORS_* DIFFUSERS_* ACCELERATE_*
    VLLM_* SGLANG_* FLASHINFER_* MEGATRON_* DEEPSPEED_* NEMO_* NRL_*
    OMP_* KMP_* GOMP_* MKL_* OPENBLAS_* NUMEXPR_* BLIS_* VECLIB_*
    WANDB_* MLFLOW_* TENSORBOARD_* SWANLAB_*
    HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
"""
)
"""Names and patterns that are forwarded without being asked for."""

LAUNCHER = _words(
    """
    SLURM_* SLURMD_* SBATCH_* SRUN_* PMI* MPI_* MPIR_* MPICH_* OMPI_* OPAL_* ORTE_* PRTE_* I_MPI_* HYDI_* HYDRA_CONTROL_FD MV2_*
    PALS_* ALPS_* PBS_* LSB_* LSF_* JSM_* FLUX_* COBALT_* TORCHELASTIC_* TORCHRUN_* KUBERNETES_*
"""
)
"""The launcher's own: a worker that sees them believes to be a rank of the driver's job step. Forwarded only where named exactly."""

RANK_VARIABLES = frozenset(
    _words(
        """
    RANK LOCAL_RANK NODE_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS PMI_RANK PMI_SIZE PMIX_RANK MPI_LOCALRANKID MPI_LOCALNRANKS
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK
    MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE
"""
    )
)
"""What says who a worker is. Each worker gets its own; a user's value is an error."""

_RAYS_DEVICES = frozenset(
    _words(
        """
    CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES NEURON_RT_VISIBLE_CORES TPU_VISIBLE_CHIPS HABANA_VISIBLE_MODULES
    ASCEND_RT_VISIBLE_DEVICES ONEAPI_DEVICE_SELECTOR RBLN_DEVICES
"""
    )
)

EARLY = _words(
    """
    LD_* GLIBC_TUNABLES MALLOC_* TCMALLOC_* MIMALLOC_* ASAN_OPTIONS TSAN_OPTIONS UBSAN_OPTIONS LANG LC_* PYTHON_GIL PYTHON_JIT
    PYTHON_CPU_COUNT PYTHON_PERF_JIT_SUPPORT PYTHON_FROZEN_MODULES
"""
)
"""What the dynamic loader, the allocator or the interpreter reads once at its start, besides ``PYTHON<LETTERS>`` (PYTHONPATH, ...)."""

_EARLY_PYTHON = re.compile(r"PYTHON[A-Z]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN = re.compile(r"[A-Za-z0-9_]*\*")


def _masked_repr(values: Mapping[str, str]) -> str:
    return repr(masked(values))


@frozen
class WorkerEnv:
    """What the workers of a group get, and why. Its repr shows no secret.

    Attributes:
        values: Name to value.
        origins: Name to ``default`` (the allow-list), ``env.forward`` or ``env.set``; the same names as ``values``.
        withheld: Name to reason, of variables that the allow-list or ``env.forward`` asks for and that are kept back.
    """

    values: Mapping[str, str] = field(repr=_masked_repr)
    origins: Mapping[str, str]
    withheld: Mapping[str, str]

    def summary(self) -> str:
        """One line for the log, names only: ``default: NCCL_DEBUG; env.set: X; withheld: HF_TOKEN (looks like a secret; ...)``."""
        groups = {origin: ", ".join(name for name in self.values if self.origins[name] == origin) for origin in ORIGINS}
        groups["withheld"] = ", ".join(f"{name} ({reason})" for name, reason in self.withheld.items())
        return "; ".join(f"{group}: {names}" for group, names in groups.items() if names) or "nothing is forwarded"


def forwarded_env(environ: Mapping[str, str], env_spec: EnvSpec) -> WorkerEnv:
    """Choose what the workers of one group see of ``environ``.

    Args:
        environ: The driver's environment; not changed.
        env_spec: ``env.forward``: names, and prefixes with one ``*`` at the end. ``env.set``: values, which win.

    Raises:
        ConfigError: A rank variable, a device list or a variable of Ray's was asked for, or a name isn't one. All problems at once.
    """
    exact = [name for name in env_spec.forward if "*" not in name]
    patterns = [name for name in env_spec.forward if "*" in name]
    problems = [*_problems(exact, "env.forward"), *_pattern_problems(patterns), *_problems(list(env_spec.set), "env.set")]
    if problems:
        raise ConfigError(problems=problems)

    values: dict[str, str] = {}
    origins: dict[str, str] = {}
    withheld = {name: "is not set in the driver's environment" for name in exact if name not in environ and name not in env_spec.set}
    for name in sorted(environ):
        named = name in exact
        origin = "env.forward" if named or _matches(name, patterns) else "default" if _matches(name, FORWARDED) else None
        if origin is None or name in env_spec.set:
            continue
        reason = _reason_to_withhold(name, environ[name], named=named)
        if reason:
            withheld[name] = reason
        else:
            values[name], origins[name] = environ[name], origin
    for name, value in env_spec.set.items():
        values[name], origins[name] = str(value), "env.set"
    return WorkerEnv(values=values, origins=origins, withheld=withheld)


def split_early(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split into what must exist before a worker's process starts, and what may be set in it before the user's module is imported.

    The early part goes into a runtime_env, which any user of the node can read on the command line of the starting process and in Ray's
    logs. So it must hold no secret, and is best empty: without a runtime_env workers start sooner.

    Returns:
        ``(early, late)``: together the items of ``env``.

    Raises:
        ConfigError: An early value looks like a secret.
    """
    early = {name: value for name, value in env.items() if _matches(name, EARLY) or _EARLY_PYTHON.fullmatch(name)}
    problems = [
        f"env: {name} must exist before a worker starts, so it is readable on a command line and must hold no secret, "
        f"got {mask_value(name, value)}. Fix: take the secret out of it, or choose another name"
        for name, value in early.items()
        if looks_secret(name, value)
    ]
    if problems:
        raise ConfigError(problems=problems)
    return early, {name: value for name, value in env.items() if name not in early}


def omp_threads(environ: Mapping[str, str], cpus: float) -> str:
    """The value of OMP_NUM_THREADS for a worker: the user's, else its CPUs, rounded down, at least 1.

    Args:
        environ: The values that the user gave (:attr:`WorkerEnv.values`). Not the worker's ``os.environ``: Ray sets the variable there.
        cpus: CPUs of this worker: its share of the bundle or, bound to CPUs of its own, their number.
    """
    return environ.get("OMP_NUM_THREADS") or str(max(1, int(cpus)))


def check_env(env_spec: EnvSpec) -> None:
    """What can be said of ``env`` before anything is started.

    Raises:
        ConfigError: See :func:`forwarded_env` and :func:`split_early`.
    """
    split_early(forwarded_env({}, env_spec).values)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _reason_to_withhold(name: str, value: str, *, named: bool) -> str:
    if name in RANK_VARIABLES or name in _RAYS_DEVICES or name.startswith("RAY_"):
        return "belongs to each worker"
    if not named and _matches(name, LAUNCHER):
        return "belongs to the driver's launcher; name it exactly in env.forward to forward it"
    if not named and looks_secret(name, value):
        return "looks like a secret; name it exactly in env.forward to forward it"
    return ""


def _problems(names: Sequence[str], where: str) -> list[str]:
    found = []
    for name in names:
        if not _NAME.fullmatch(name):
            found.append(
                f"{where}: must be names of variables, got {name!r}. Fix: use letters, digits and _, and a * at the end of a prefix"
            )
        elif name in RANK_VARIABLES:
            found.append(f"{where}: must not hold a rank variable, each worker gets its own, got {name}. Fix: remove it")
        elif name in _RAYS_DEVICES:
            found.append(f"{where}: must not hold a device list, Ray gives each worker its own, got {name}. Fix: remove it")
        elif name.startswith("RAY_"):
            found.append(f"{where}: must not hold a variable of Ray's, got {name}. Fix: set it where Ray is started")
    return found


def _pattern_problems(patterns: Sequence[str]) -> list[str]:
    found = []
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            found.append(f"env.forward: must be a name, or a prefix with one * at its end, got {pattern!r}. Fix: e.g. MYLIB_*")
        elif _matches(pattern[:-1], (*LAUNCHER, "RAY_*")):
            found.append(f"env.forward: must not hold all variables of a launcher or of Ray, got {pattern}. Fix: name the ones you need")
    return found
