"""``hold=true``: a layout is kept until Ctrl-C, or until a part of it is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any

from rl_cluster.errors import RlClusterError
from rl_cluster.ground.interrupts import Interrupts
from rl_cluster.views.screen import Screen

HOLD_CHECK_EVERY_S = 5.0


def hold_until_interrupted(clusters: Sequence[Any], groups: Sequence[Any], screen: Screen, interrupts: Interrupts) -> None:
    """Keep everything until Ctrl-C, which is the right end here, or until a node or a worker is lost, which is not."""
    from rl_cluster.connection import session

    screen.tell(f"holding the layout; Ctrl-C ends it (the Ray is at {session.connected_address()})")
    try:
        while True:
            time.sleep(HOLD_CHECK_EVERY_S)
            for held in (*clusters, *groups):
                held.check_alive()
    except RlClusterError as lost:
        interrupts.cause = lost
        raise
    except KeyboardInterrupt as stop:
        interrupted = interrupts.named(stop)
        screen.tell(f"{interrupted.shown}: giving the layout back ...")
        interrupts.rearm()
        if interrupted.number != signal.SIGINT:
            raise interrupted from None
