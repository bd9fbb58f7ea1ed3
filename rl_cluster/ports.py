"""Port leases: a TCP port that stays ours from the moment it is chosen until the server that needs it listens on it.

Two things make a port ours. Among the leases of one user on one host an ``flock`` on a file per port decides, from the lease until
its release or the end of the process. Against everybody else the port is really bound, on all interfaces and without
``SO_REUSEADDR``, and never listens.

At :meth:`PortLease.hand_over` the flag ``SO_REUSEADDR`` is set on the bound socket. Linux lets two sockets bind one port when both
have the flag and neither listens (``inet_csk_bind_conflict`` in net/ipv4/inet_connection_sock.c), so a server that sets it, such as
torch's TCPStore or Python's ``socketserver``, now binds and listens beside ours. There is no moment without an owner: a socket
without the flag is still refused, and the kernel gives a bound port to no outgoing connection and to no ``bind(0)``.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import socket
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rl_cluster.errors import ConfigError, PortError

__all__ = ["PortLease", "check_port_range", "lease_port"]

logger = logging.getLogger(__name__)

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_UNPRIVILEGED_START = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")

# Leases are kept alive here: a port is ours until it is released, even when nobody holds the PortLease any more.
_live: set[PortLease] = set()
# Held while a lease is made and while this process forks, so that no child inherits descriptors that `_live` does not know yet.
_fork_lock = threading.Lock()
_fork_hook_set = False


class PortLease:
    """A leased TCP port. Made by :func:`lease_port`; a context manager that releases at its end.

    A forked child (``os.fork``, multiprocessing) closes its copies at once and holds nothing; a child made by exec never had them.
    Only a fork from C code that bypasses Python keeps the port taken until that child ends.

    Attributes:
        port: The port number.
        host: The address that is bound, ``""`` for all interfaces.
    """

    def __init__(self, port: int, host: str, *, _socket: socket.socket, _lock_fd: int) -> None:
        self.port = port
        self.host = host
        self._socket: socket.socket | None = _socket
        self._lock_fd: int | None = _lock_fd

    @property
    def held(self) -> bool:
        """Whether no other lease can get this port: true until :meth:`release`, also after :meth:`hand_over`."""
        return self._lock_fd is not None

    @property
    def address(self) -> str:
        """An address of this host at which the port is reached: ``host``, or else the one that packets to other hosts leave from.

        On a host with several networks the latter is a guess; where Ray runs, its node address is the one that peers use.

        Raises:
            PortError: This host has no route to any other.
        """
        return self.host or _outgoing_address()

    def hand_over(self, *, keep_bound: bool = True) -> int:
        """Let the real server take the port. Call it in the server's process, right before the server starts.

        Args:
            keep_bound: True sets ``SO_REUSEADDR`` on the socket and leaves it bound, which is without any gap but needs a server that
                sets ``SO_REUSEADDR`` itself (torch's TCPStore, gloo, Python's ``socketserver`` and ``http.server`` do). False closes
                the socket, for a server that binds without the flag or with ``SO_REUSEPORT`` alone (gRPC): until that server binds,
                only other leases of this user stay away from the port.

        Returns:
            The port number. Other leases of this user stay away from it until :meth:`release` or the end of this process.

        Raises:
            PortError: The lease was released, or belongs to the parent of this forked process.
        """
        if not self.held:
            raise PortError(
                f"port {self.port}: hand_over() needs a held lease, got a released one. Fix: hand over once, in the process that leased it",
                low=self.port,
                high=self.port + 1,
            )
        if self._socket is not None:
            if keep_bound:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            else:
                self._socket.close()
                self._socket = None
        return self.port

    def release(self) -> None:
        """Give the port back. Harmless when repeated."""
        _live.discard(self)
        sock, self._socket = self._socket, None
        lock_fd, self._lock_fd = self._lock_fd, None
        if sock is not None:
            sock.close()
        if lock_fd is not None:
            os.close(lock_fd)

    def __enter__(self) -> PortLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<PortLease {self.host or '*'}:{self.port} {'held' if self.held else 'released'}>"


def lease_port(low: int, high: int, *, host: str = "") -> PortLease:
    """Lease a free TCP port of the half-open range ``[low, high)``.

    Every port is tried once, from a random start, so that many leases at once seldom meet.

    Args:
        low: First port of the range.
        high: The port after the last one.
        host: Address to bind; ``""`` is all interfaces, of IPv6 too where this host has it.

    Returns:
        A lease, held until it is released or this process ends.

    Raises:
        ConfigError: The range is empty, reversed, or not made of port numbers.
        PortError: No port of the range can be had.
    """
    for warning in check_port_range(low, high):
        logger.warning("%s", warning)
    _release_in_forked_children()
    leased, refused = 0, {errno.EADDRINUSE: 0, errno.EACCES: 0}
    start = random.randrange(low, high)
    for port in (*range(start, high), *range(low, start)):
        try:
            lease = _try_lease(port, host)
        except PortError:
            raise
        except OSError as error:
            if error.filename is not None or error.errno not in refused:
                raise _not_leasable(low, high, host, error) from error
            refused[error.errno] += 1
        else:
            if lease is not None:
                return lease
            leased += 1
    counts = ((leased, "leased by jobs of yours"), (refused[errno.EADDRINUSE], "in use"), (refused[errno.EACCES], "need root"))
    found = ", ".join(f"{count} {what}" for count, what in counts if count)
    raise PortError(
        f"ports {low}-{high - 1} on {socket.gethostname()}: one must be free, got {high - low} tried: {found}. "
        "Fix: widen cluster.master_port_range_low and cluster.master_port_range_high",
        low=low,
        high=high,
    )


def check_port_range(low: int, high: int) -> tuple[str, ...]:
    """Check the half-open range ``[low, high)`` of ports.

    Returns:
        Warnings: an overlap with the range that the kernel gives to outgoing connections, or ports that only root may bind.

    Raises:
        ConfigError: The range is empty, reversed, or not made of port numbers.
    """
    where = "cluster.master_port_range_low, cluster.master_port_range_high"
    fix = "Fix: give 1 <= low < high <= 65536, the high one is not used itself"
    if not 1 <= low <= 65535 or not 1 <= high <= 65536:
        raise ConfigError(f"{where}: must be port numbers, got {low} and {high}. {fix}")
    if low >= high:
        raise ConfigError(f"{where}: must not be {'empty' if low == high else 'reversed'}, got {low} and {high}. {fix}")
    warnings = []
    ephemeral = _read_numbers(_EPHEMERAL_RANGE)
    if len(ephemeral) == 2 and low <= ephemeral[1] and high > ephemeral[0]:
        warnings.append(
            f"ports {low}-{high - 1} overlap the kernel's range for outgoing connections {ephemeral[0]}-{ephemeral[1]} "
            f"({_EPHEMERAL_RANGE}): any connection may take one before a server does. Fix: choose {where} outside of it"
        )
    privileged = _read_numbers(_UNPRIVILEGED_START)
    if privileged and low < privileged[0] and os.geteuid() != 0:
        last = min(high, privileged[0]) - 1
        warnings.append(
            f"ports {low}-{last} need root ({_UNPRIVILEGED_START} is {privileged[0]}) and are skipped. Fix: choose {where} above them"
        )
    return tuple(warnings)


def _not_leasable(low: int, high: int, host: str, error: OSError) -> PortError:
    if error.filename is not None:  # of the lock file
        where, fix = f"{error.filename} in {tempfile.gettempdir()}: must be writable", "set TMPDIR to a folder of yours"
    else:
        where, fix = f"ports {low}-{high - 1}: must be bindable on {host or 'all interfaces'}", "give host= an address of this host"
    return PortError(f"{where}, got {error.strerror or error}. Fix: {fix}", low=low, high=high)


def _read_numbers(path: Path) -> list[int]:
    # Not every kernel has these files (macOS, a hidden /proc); then there is nothing to warn of.
    with suppress(OSError):
        return [int(word) for word in path.read_text().split()]
    return []


def _try_lease(port: int, host: str) -> PortLease | None:
    """A lease of ``port``, or None where another lease has it. OSError where it can't be bound."""
    with _fork_lock:
        lock_fd = _lock_port(port)
        if lock_fd is None:
            return None
        try:
            lease = PortLease(port, host, _socket=_bind(host, port), _lock_fd=lock_fd)
        except BaseException:
            os.close(lock_fd)
            raise
        _live.add(lease)
        return lease


def _bind(host: str, port: int) -> socket.socket:
    """A socket bound to ``port``, without SO_REUSEADDR, not listening, closed on exec."""
    if host:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, proto)
    elif socket.has_dualstack_ipv6():
        # One dual-stack socket holds both families: torch's TCPStore listens on [::], most others on 0.0.0.0.
        sock, where = socket.socket(socket.AF_INET6, socket.SOCK_STREAM), ("::", port)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        sock, where = socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("0.0.0.0", port)
    try:
        sock.bind(where)
    except BaseException:
        sock.close()
        raise
    return sock


def _lock_port(port: int) -> int | None:
    """A descriptor that holds the lock of ``port``, or None where another lease has it.

    The files stay when a lease ends (to remove one while another process opens it would give two owners); an unlocked file means nothing.
    """
    folder_fd = _open_lock_folder()
    try:
        fd = os.open(str(port), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            os.close(fd)
            return None
    finally:
        os.close(folder_fd)


def _open_lock_folder() -> int:
    # One folder per user: nobody else can plant links in it or hold its locks. Between users the bound socket decides.
    # The host's name is in it because some sites put the temporary folder on a shared filesystem.
    folder = Path(tempfile.gettempdir()) / f"rl_cluster-ports-{os.getuid()}-{socket.gethostname()}"
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    problem = ""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        problem = error.strerror or str(error)
    else:
        found = os.fstat(fd)
        if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return fd
        os.close(fd)
        problem = f"owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):o}"
    raise PortError(
        f"{folder}: must be a folder that only user {os.getuid()} can write, got {problem}. "
        "Fix: remove it, or set TMPDIR to a folder of yours"
    )


def _outgoing_address() -> str:
    # A connected UDP socket sends nothing; the kernel only chooses the route. The addresses are public and need not answer.
    for family, peer in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 53))
            return str(sock.getsockname()[0])
    raise PortError(f"{socket.gethostname()}: must have a route to other hosts, got none. Fix: give host= an address of this host")


def _release_in_forked_children() -> None:
    """Once per process tree: a forked child closes its copies of socket and lock. Closing a copy doesn't unlock the parent's."""
    global _fork_hook_set

    def in_child() -> None:
        _fork_lock.release()
        for lease in list(_live):
            lease.release()

    with _fork_lock:
        if not _fork_hook_set:
            os.register_at_fork(before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=in_child)
            _fork_hook_set = True
