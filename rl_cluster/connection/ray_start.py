"""What a Ray that we start does otherwise than by itself, where Ray has no option for it. Each holds while its nodes are being started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from rl_cluster.ground import _setup_worker


@contextlib.contextmanager
def unannounced() -> Iterator[None]:
    """Keep Ray from writing our address where ``ray.init("auto")`` of anybody on this machine looks: a simulation is not for others."""
    from ray._private import utils

    announce = utils.write_ray_address
    utils.write_ray_address = lambda *_, **__: None
    try:
        yield
    finally:
        utils.write_ray_address = announce


@contextlib.contextmanager
def real_devices_hidden() -> Iterator[None]:
    """A choice among real devices (``CUDA_VISIBLE_DEVICES=3``) is not about made-up ones; Ray would hold it against num_gpus."""
    from ray._private.accelerators import get_all_accelerator_managers

    names = {manager.get_visible_accelerator_ids_env_var() for manager in get_all_accelerator_managers()}
    chosen = {name: os.environ.pop(name) for name in names if name and name in os.environ}
    try:
        yield
    finally:
        os.environ.update(chosen)


@contextlib.contextmanager
def inherited(environ: Mapping[str, str]) -> Iterator[None]:
    """Variables of processes that are started in the block."""
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def quick_worker_starts() -> Iterator[None]:
    """Let workers that have a runtime_env start through ``_setup_worker.py``."""
    from ray._private import ray_constants

    rays = ray_constants.SETUP_WORKER_FILENAME
    ray_constants.SETUP_WORKER_FILENAME = os.path.abspath(_setup_worker.__file__)  # Ray joins it to a folder, which a whole path overrules
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = rays
