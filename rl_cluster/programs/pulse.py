"""The sign of life of the Ray that a run works on.

Where the head node of a cluster dies, Ray's calls hang, and no signal reaches Python code that waits inside one of them; after a minute
Ray ends the process by itself, without a word of ours. So a thread asks the control service again and again, and ends the run before that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from rl_cluster.connection import reach
from rl_cluster.errors import ClusterUnreachableError, WorkerLostError
from rl_cluster.ground.interrupts import Interrupts

EVERY_S = 3.0
RAYS_LIMIT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"  # raised where the control service of a cluster may be started anew
RAYS_LIMIT_S = 60.0
OF_RAYS_LIMIT = 0.75


def lost_after_s() -> float:
    """Seconds without an answer after which a cluster counts as lost: below those after which Ray ends this process."""
    try:
        limit_s = float(os.environ[RAYS_LIMIT_VARIABLE])
    except (KeyError, ValueError):
        limit_s = RAYS_LIMIT_S
    return OF_RAYS_LIMIT * limit_s


@contextlib.contextmanager
def watched(address: str, interrupts: Interrupts, *, tell: Callable[[str], None]) -> Iterator[None]:
    """Watch a control service for the block.

    Args:
        address: ``host:port`` of the control service.
        interrupts: Ends the process; at once where a signal came and it is plain that nothing answers.
        tell: Gets a line when the service falls silent, and when it answers again.
    """
    end = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, interrupts, tell, end), name="rl_cluster-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()


def _watch(address: str, interrupts: Interrupts, tell: Callable[[str], None], end: threading.Event) -> None:
    silent_since: float | None = None
    while not end.wait(EVERY_S):
        asked = time.monotonic()
        try:
            reach.check_reachable(address)
        except ClusterUnreachableError:
            if end.is_set():
                return
            if silent_since is None:
                silent_since = asked
                wait = "" if interrupts.asked() is not None else f"; waits {lost_after_s():g} s for it ..."
                tell(f"ray: the control service at {address} does not answer{wait}")
            silent_s = time.monotonic() - silent_since
            if silent_s >= lost_after_s() or (interrupts.asked() is not None and silent_s >= 2 * EVERY_S):
                interrupts.give_up(_lost(address, silent_s))
        else:
            if silent_since is not None:
                tell(f"ray: the control service at {address} answers again")
            silent_since = None


def _lost(address: str, silent_s: float) -> WorkerLostError:
    return WorkerLostError(
        f"ray: the control service at {address} has not answered for {silent_s:.0f} s, and with it the whole cluster is lost. "
        "Fix: start Ray and this run again",
        ranks=(),
        node_idx=(),
        node=[address],
    )
