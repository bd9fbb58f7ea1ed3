"""The built-in worker of run.py: the workers really meet at MASTER_ADDR:MASTER_PORT."""

from __future__ import annotations

import os
import socket
from typing import Any

MEET_TIMEOUT_S = 60.0


class CheckWorker:
    """Meets the other workers of its group over the network, as a process group of torch.distributed would at its start."""

    def meet(self) -> dict[str, Any]:
        """Rank 0 listens on the master port until every other rank has said its number; the others connect and wait for the answer.

        Returns:
            ``rank``, and ``met``: the ranks that rank 0 heard of (all), or 0 for the others (they heard rank 0's answer).

        Raises:
            OSError: The meeting point can't be reached within 60 s (a firewall, a wrong address, a port that somebody else took).
        """
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0:
            return {"rank": 0, "met": self._listen(port, world_size - 1)}
        with self._connect(address, port) as connection, connection.makefile("rw") as stream:
            stream.write(f"{rank}\n")
            stream.flush()
            answer = stream.readline().strip()
        if answer != "0":
            raise ConnectionError(f"what answers at {address}:{port} is not rank 0: {answer!r}")
        return {"rank": rank, "met": [0]}

    def _listen(self, port: int, others: int) -> list[int]:
        met: list[int] = []
        with socket.create_server(("", port), backlog=max(1, others)) as server:
            server.settimeout(MEET_TIMEOUT_S)
            while len(met) < others:
                connection, _ = server.accept()
                with connection, connection.makefile("rw") as stream:
                    connection.settimeout(MEET_TIMEOUT_S)
                    met.append(int(stream.readline()))
                    stream.write("0\n")
                    stream.flush()
        return sorted(met)

    def _connect(self, address: str, port: int) -> socket.socket:
        import time

        deadline = time.monotonic() + MEET_TIMEOUT_S
        while True:
            try:
                return socket.create_connection((address, port), timeout=MEET_TIMEOUT_S)
            except ConnectionRefusedError:  # rank 0 does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
