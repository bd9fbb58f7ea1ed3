"""What run.py runs: Hydra composes the config, the door checks it, :mod:`rl_cluster.job` does it; every error gets its exit code.

Ray is imported only when a job runs, so that ``--help``, ``--cfg job`` and completion stay quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_cluster.config import PRIMARY_CONFIG, conf_dir, describe_compose_error, from_config
from rl_cluster.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from rl_cluster.schema import RunSpec

if TYPE_CHECKING:
    from omegaconf import DictConfig

FULL_ERROR = "HYDRA_FULL_ERROR"


def main() -> None:
    """Entry point of run.py and of the command ``rl-cluster``. Ends the process with the exit code of the worst job."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    codes: list[int] = []

    def task(config: DictConfig) -> int:
        codes.append(_job(config))
        return codes[-1]

    # Hydra then raises instead of printing its own text and ending the process; a user who set it wants the traceback
    wants_traceback = os.environ.get(FULL_ERROR) == "1"
    os.environ[FULL_ERROR] = "1"
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=PRIMARY_CONFIG)(task)()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        if wants_traceback:
            raise
        _complain(error.problems if isinstance(error, ConfigError) else describe_compose_error(error, sys.argv[1:]))
        codes.append(EXIT_CONFIG)
    except KeyboardInterrupt:
        codes.append(130)
    finally:
        if not wants_traceback:
            os.environ.pop(FULL_ERROR, None)
    sys.exit(max(codes, default=EXIT_OK))


def _job(config: DictConfig) -> int:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    overrides = list(OmegaConf.to_container(hydra_config.overrides.task) or [])
    sys.path.insert(1, os.getcwd())  # worker.target may live beside the recipe, also for the installed command
    try:
        spec = from_config(config, kind=RunSpec)
    except ConfigError as error:
        _complain(error.problems)
        return EXIT_CONFIG
    from rl_cluster.job import run

    return run(spec, folder, overrides=[str(word) for word in overrides])


def _complain(problems: Sequence[str]) -> None:
    for problem in problems:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    main()
