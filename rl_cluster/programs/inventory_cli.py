"""``rl-cluster-inventory``: prints the Ray cluster in reach as an inventory file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rl_cluster.errors import EXIT_OK, RlClusterError
from rl_cluster.ground.interrupts import Interrupts, last_words_of, orderly_interrupts
from rl_cluster.programs.runs import looking
from rl_cluster.views.screen import command, say


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Looks at the cluster, prints YAML to standard output, and leaves everything as it was.

    Args:
        arguments: The words of the command line; default: those of this process.

    Returns:
        0, or the exit code of the error (3: no Ray cluster answers), whose one line goes to standard error; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="rl-cluster-inventory",
        description="Print the Ray cluster in reach as an inventory file (YAML): rl-cluster-inventory > FILE, "
        "then `rl-cluster mode=plan inventory=FILE` plans on it without any Ray.",
    )
    parser.add_argument("--address", help="host:port of the cluster; default: $RAY_ADDRESS, then a running local one")
    parser.add_argument("--no-holders", action="store_true", help="leave out which placement groups and actors hold resources")
    options = parser.parse_args(arguments)
    with orderly_interrupts() as interrupts:
        interrupts.when_stuck(lambda error, why: say(f"rl-cluster-inventory: {last_words_of(error, why)}"))
        try:
            print(_look(options.address, interrupts, holders=not options.no_holders), end="")
        except RlClusterError as error:
            say(f"rl-cluster-inventory: {error}")
            return error.exit_code
    return EXIT_OK


def _look(address: str | None, interrupts: Interrupts, *, holders: bool) -> str:
    from rl_cluster.connection import reach, session
    from rl_cluster.errors import ClusterUnreachableError
    from rl_cluster.planning.inventory_dump import dump_inventory
    from rl_cluster.schema import RaySpec

    found = reach.address_in_reach(RaySpec(address=address))
    if found is None:
        raise ClusterUnreachableError(
            "--address: must be a running Ray cluster, got none (looked at $RAY_ADDRESS and this machine). Fix: --address HOST:PORT",
            address=None,
        )
    with looking(RaySpec(address=found), interrupts, tell=say):
        return dump_inventory(session.look_around(holders=holders))


if __name__ == "__main__":
    sys.exit(main())
