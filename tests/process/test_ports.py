"""Port leases, against this machine's kernel: real sockets, processes, threads and forks."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_cluster import ports
from rl_cluster.errors import ConfigError, PortError
from rl_cluster.ports import check_port_range, lease_port

LOW, HIGH = 1400, 2000


@pytest.fixture(autouse=True)
def _own_lock_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ports.tempfile, "tempdir", None)
    yield
    for lease in list(ports._live):
        lease.release()


def bind(port: int, *, address: str = "0.0.0.0", option: int | None = None) -> str:
    """Bind and listen as a server would; "ok", or the name of the errno."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
        if option is not None:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            server.bind((address, port))
            server.listen()
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return "ok"


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::", "::1"])
@pytest.mark.parametrize("option", [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT], ids=["plain", "reuseaddr", "reuseport"])
def test_a_held_port_refuses_every_other_socket(address: str, option: int | None) -> None:
    """Until it is handed over a leased port can't be bound by anybody, on any address and with any option."""
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    with lease_port(LOW, HIGH) as lease:
        assert bind(lease.port, address=address, option=option) == "EADDRINUSE"
    assert bind(lease.port, address=address, option=option) == "ok"


@pytest.mark.parametrize(
    ("keep_bound", "option", "result"),
    [
        pytest.param(True, socket.SO_REUSEADDR, "ok", id="kept-for-a-reuseaddr-server"),
        pytest.param(True, None, "EADDRINUSE", id="kept-refuses-a-plain-server"),
        pytest.param(True, socket.SO_REUSEPORT, "EADDRINUSE", id="kept-refuses-a-reuseport-server"),
        pytest.param(False, None, "ok", id="closed-for-a-plain-server"),
        pytest.param(False, socket.SO_REUSEPORT, "ok", id="closed-for-a-reuseport-server"),
    ],
)
def test_which_servers_can_take_a_port_that_was_handed_over(keep_bound: bool, option: int | None, result: str) -> None:
    """A socket left bound lets only SO_REUSEADDR servers in; a closed one lets in every server."""
    with lease_port(LOW, HIGH) as lease:
        assert lease.hand_over(keep_bound=keep_bound) == lease.port
        assert bind(lease.port, option=option) == result


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "dual-stack"])
def test_a_real_server_serves_on_a_handed_over_port_and_its_port_stays_ours(family: socket.AddressFamily) -> None:
    """A TCP server accepts on the port while the lease still holds it, also when the server is started again."""
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        address_family = family

    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(self.request.recv(5).upper())

    with lease_port(LOW, HIGH) as lease:
        lease.hand_over()
        for _ in range(2):
            with Server(("", lease.port), Echo) as server:
                thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
                thread.start()
                with socket.create_connection(("127.0.0.1", lease.port), timeout=10) as client:
                    client.sendall(b"hello")
                    assert client.recv(5) == b"HELLO"
                server.shutdown()
                thread.join()
            assert bind(lease.port) == "EADDRINUSE"
        with pytest.raises(PortError):
            lease_port(lease.port, lease.port + 1)


def test_the_kernel_gives_a_handed_over_port_to_no_outgoing_connection() -> None:
    """Between hand-over and the server's listen neither bind(0) nor connect() gets the port, even from a tiny ephemeral range."""
    option = getattr(socket, "IP_LOCAL_PORT_RANGE", 51)  # Linux 6.3; it only narrows the system's range, so the lease is taken from that
    first, last = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    with lease_port(first, last + 1) as lease:
        only_this_port = struct.pack("=I", lease.port << 16 | lease.port)
        lease.hand_over()
        for reuse in (0, 1):
            with socket.socket() as other:
                try:
                    other.setsockopt(socket.IPPROTO_IP, option, only_this_port)
                except OSError:
                    pytest.skip("this kernel can't narrow the ephemeral range of one socket (Linux 6.3 can)")
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("", 0))
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
            client.setsockopt(socket.IPPROTO_IP, option, only_this_port)
            with pytest.raises(OSError, match="assign requested address"):
                client.connect(server.getsockname())
    with socket.socket() as other:  # the control: the same bind takes the port once it is released
        other.setsockopt(socket.IPPROTO_IP, option, only_this_port)
        other.bind(("", 0))
        assert other.getsockname()[1] == lease.port


def test_a_handed_over_port_belongs_to_no_other_lease_even_when_its_socket_is_closed() -> None:
    """After hand-over without a socket the lock still keeps other leases of this user away, until release."""
    lease = lease_port(LOW, HIGH)
    lease.hand_over(keep_bound=False)
    with pytest.raises(PortError, match="1 leased by jobs of yours"):
        lease_port(lease.port, lease.port + 1)
    lease.release()
    lease.release()
    assert lease_port(lease.port, lease.port + 1).held


def test_a_lease_is_held_when_nobody_refers_to_it_any_more() -> None:
    """Only release() or the end of the process gives a port back, not the garbage collector."""
    port = lease_port(LOW, HIGH).port
    assert bind(port) == "EADDRINUSE"


LEASE_MANY = """
import sys
from concurrent.futures import ThreadPoolExecutor
from rl_cluster.ports import lease_port
with ThreadPoolExecutor(10) as pool:
    leases = list(pool.map(lambda _: lease_port(1400, 2000), range(25)))
print(*(lease.port for lease in leases), flush=True)
sys.stdin.read()
"""


def test_200_concurrent_leases_over_processes_and_threads_are_200_ports() -> None:
    """No port is leased twice: 8 processes, each with 10 threads, lease 25 each, all held at the same time."""
    command = [sys.executable, "-c", LEASE_MANY]
    holders = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    try:
        found = [int(word) for holder in holders if holder.stdout for word in holder.stdout.readline().split()]
    finally:
        for holder in holders:
            holder.communicate("")
    assert len(found) == 200
    assert len(set(found)) == 200
    assert all(LOW <= port < HIGH for port in found)


def test_threads_that_want_the_same_few_ports_each_get_one() -> None:
    """Every port of the range is tried once: 20 threads share out exactly 20 free ports, and one more finds none."""
    low = 21000
    with ThreadPoolExecutor(20) as pool:
        leases = list(pool.map(lambda _: lease_port(low, low + 20), range(20)))
    assert sorted(lease.port for lease in leases) == list(range(low, low + 20))
    with pytest.raises(PortError) as caught:
        lease_port(low, low + 20)
    assert str(caught.value) == (
        f"ports 21000-21019 on {socket.gethostname()}: one must be free, got 20 tried: 20 leased by jobs of yours. "
        "Fix: widen cluster.master_port_range_low and cluster.master_port_range_high"
    )
    assert (pickle.loads(pickle.dumps(caught.value)).low, caught.value.high) == (21000, 21020)


def test_a_port_in_use_by_another_program_is_passed_over() -> None:
    """A port that a listener without any lease holds is never leased; the error counts it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortError, match=rf"ports {port}-{port} .* 1 tried: 1 in use"):
            lease_port(port, port + 1)


def test_the_port_is_free_again_when_the_holder_is_killed() -> None:
    """SIGKILL of the process that holds a lease frees its port; the file that stays means nothing."""
    script = "import sys; from rl_cluster.ports import lease_port; print(lease_port(1400, 2000).port, flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    port = int(holder.stdout.readline())
    with pytest.raises(PortError):
        lease_port(port, port + 1)
    holder.kill()
    holder.communicate()
    assert lease_port(port, port + 1).port == port


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_holds_nothing_and_the_parent_still_does() -> None:
    """A fork closes its copies: the port is the parent's alone, and is free at its release though the child lives."""
    lease = lease_port(LOW, HIGH)
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(to_child)
        try:
            lease.hand_over()
        except PortError:
            os.write(to_parent, b"refused")
        else:
            os.write(to_parent, b"handed ")
        os.read(from_parent, 1)
        os._exit(0)
    try:
        assert os.read(from_child, 7) == b"refused"
        with pytest.raises(PortError):
            lease_port(lease.port, lease.port + 1)
        lease.release()
        assert lease_port(lease.port, lease.port + 1).held
    finally:
        for fd in (to_child, from_parent, from_child, to_parent):
            os.close(fd)
        os.waitpid(pid, 0)


def test_a_child_made_by_exec_inherits_neither_socket_nor_lock() -> None:
    """Descriptors of a lease are closed on exec, even when the child is told to keep all others."""
    lease = lease_port(LOW, HIGH)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout
        assert child.stdout.readline() == b"up\n"  # the kernel lets the parent go on a moment before it closes the child's descriptors
        lease.release()
        assert lease_port(lease.port, lease.port + 1).held
        child.communicate(b"\n")


@pytest.mark.parametrize(
    ("low", "high", "rule"),
    [
        pytest.param(1400, 1400, "must not be empty, got 1400 and 1400", id="empty"),
        pytest.param(2000, 1400, "must not be reversed, got 2000 and 1400", id="reversed"),
        pytest.param(0, 10, "must be port numbers, got 0 and 10", id="zero"),
        pytest.param(65000, 65537, "must be port numbers, got 65000 and 65537", id="beyond-the-last-port"),
    ],
)
@pytest.mark.parametrize("call", [check_port_range, lease_port], ids=["check", "lease"])
def test_a_range_that_is_no_range_is_a_config_error(call: Callable[[int, int], object], low: int, high: int, rule: str) -> None:
    """An empty or reversed range, or one outside of 1-65535, is refused with both keys and both values."""
    with pytest.raises(ConfigError) as caught:
        call(low, high)
    assert str(caught.value) == (
        f"cluster.master_port_range_low, cluster.master_port_range_high: {rule}. "
        "Fix: give 1 <= low < high <= 65536, the high one is not used itself"
    )


@pytest.mark.parametrize(
    ("low", "high", "overlaps"),
    [
        pytest.param(1400, 2000, False, id="below"),
        pytest.param(30000, 32768, False, id="ends-right-before"),
        pytest.param(30000, 32769, True, id="shares-the-first-port"),
        pytest.param(60999, 61100, True, id="shares-the-last-port"),
        pytest.param(61000, 61100, False, id="starts-right-after"),
        pytest.param(40000, 40010, True, id="inside"),
    ],
)
def test_an_overlap_with_the_ephemeral_range_is_warned_of(
    low: int, high: int, overlaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that shares a port with the kernel's for outgoing connections gives one warning that names both ranges."""
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL_RANGE", tmp_path / "range")
    warnings = check_port_range(low, high)
    assert len(warnings) == overlaps
    if overlaps:
        assert f"ports {low}-{high - 1} overlap the kernel's range for outgoing connections 32768-60999" in warnings[0]


def test_a_lease_in_this_machines_ephemeral_range_logs_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning of the range reaches the log when a port is leased from it."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with caplog.at_level(logging.WARNING, logger="rl_cluster.ports"), lease_port(first, first + 500):
        pass
    assert [f"ports {first}-{first + 499} overlap" in record.getMessage() for record in caplog.records] == [True]


def test_ports_that_need_root_are_warned_of_for_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that begins below the kernel's unprivileged ports says, to a user who is not root, which ports are skipped."""
    (tmp_path / "start").write_text("1024\n")
    monkeypatch.setattr(ports, "_UNPRIVILEGED_START", tmp_path / "start")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [warning.split(" (")[0] for warning in check_port_range(1000, 2000)] == ["ports 1000-1023 need root"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert check_port_range(1000, 2000) == ()


def test_a_planted_link_in_place_of_the_lock_folder_is_refused(tmp_path: Path) -> None:
    """A link under the name of the lock folder is not followed: nothing is written where it points."""
    target = tmp_path / "victim"
    target.mkdir()
    (tmp_path / f"rl_cluster-ports-{os.getuid()}-{socket.gethostname()}").symlink_to(target)
    with pytest.raises(PortError, match="must be a folder that only user"):
        lease_port(LOW, HIGH)
    assert list(target.iterdir()) == []


def test_a_lock_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """Locks in a folder that other users may write prove nothing, so it is refused with its mode."""
    folder = tmp_path / f"rl_cluster-ports-{os.getuid()}-{socket.gethostname()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PortError, match=r"got owner \d+ and mode 777\. Fix: remove it"):
        lease_port(LOW, HIGH)


def test_an_address_of_no_interface_is_an_error_with_a_fix() -> None:
    """An address that this host has not got is refused at once, not tried on every port."""
    with pytest.raises(
        PortError, match=r"ports 1400-1999: must be bindable on 192\.0\.2\.7, got .* Fix: give host= an address of this host"
    ):
        lease_port(LOW, HIGH, host="192.0.2.7")


def test_a_lease_of_one_address_has_that_address() -> None:
    """With host= the lease holds that address alone, and says it."""
    with lease_port(LOW, HIGH, host="127.0.0.1") as lease:
        assert (lease.host, lease.address, lease.held) == ("127.0.0.1", "127.0.0.1", True)
        assert bind(lease.port, address="127.0.0.1") == "EADDRINUSE"
    assert not lease.held
