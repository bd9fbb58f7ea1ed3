"""Several hosts on one machine: each with its own network, name, process tree, /tmp and /dev/shm. Needs root, iproute2, util-linux.

A host is a set of Linux namespaces whose first process lives until it is killed; with it every process of the host ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

NETWORK = "10.78.0"
READY_S = 20.0


@frozen
class Host:
    """One of them."""

    name: str
    address: str
    pid: int  # its first process, in our process tree

    def popen(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a command in this host, in the current folder."""
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-i", "-p", "-m", f"--wd={os.getcwd()}", "--"]
        return subprocess.Popen([*enter, *command], text=True, **options)  # type: ignore[call-overload,no-any-return]

    def run(self, command: Sequence[str], *, timeout_s: float, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command in this host to its end."""
        process = self.popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out)

    def kill(self) -> None:
        """The machine is gone, with everything that ran on it."""
        os.kill(self.pid, 9)


def why_not() -> str | None:
    """Why hosts can't be made here, or None."""
    missing = [tool for tool in ("ip", "nsenter", "unshare", "mount") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "needs root"
    probe = subprocess.run(["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, text=True)
    return None if probe.returncode == 0 else f"namespaces are refused: {probe.stderr.strip()}"


@contextlib.contextmanager
def hosts(count: int, folder: Path) -> Iterator[list[Host]]:
    """Make hosts that are connected by one switch, and take everything away again."""
    prefix = f"rl{os.getpid()}"
    names = [f"{prefix}h{number}" for number in range(count)]
    switch = f"{prefix}sw"
    outer: list[subprocess.Popen[bytes]] = []
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        names_file = folder / "hosts"
        names_file.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{10 + i} {name}\n" for i, name in enumerate(names)))
        made = []
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("link", "add", f"{prefix}v{number}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"{prefix}v{number}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{NETWORK}.{10 + number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            outer.append(_start(name, names_file, folder / name))
        for number, (name, process) in enumerate(zip(names, outer, strict=True)):
            made.append(Host(name, f"{NETWORK}.{10 + number}", _first_process(process, folder / name)))
        yield made
    finally:
        for process in outer:
            process.kill()
            process.wait()
        for namespace in (*names, switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _start(name: str, names_file: Path, home: Path) -> subprocess.Popen[bytes]:
    (home / "tmp").mkdir(parents=True)
    (home / "tmp").chmod(0o1777)
    # the host's own /tmp hides ours: what the tests run from must stay visible in it
    shared = sorted({Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2]})
    below = [path for path in shared if path.is_relative_to("/tmp")]
    shares = "\n".join(f"mkdir -p {home}{path}; mount --bind {path} {home}{path}" for path in below)
    script = f"""
set -e
hostname {name}
mount --make-rprivate /
mount --bind {names_file} /etc/hosts
mount -t tmpfs -o size=1g tmpfs /dev/shm
{shares}
echo ready >{home}/ready
mount --rbind {home}/tmp /tmp
while :; do sleep 3600 & wait $!; done
"""
    command = ["ip", "netns", "exec", name, "unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.Popen([*command, "bash", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)


def _first_process(outer: subprocess.Popen[bytes], home: Path) -> int:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        if children and (home / "ready").exists():
            return int(children[0])
        time.sleep(0.05)
    raise TimeoutError(f"host {home.name} did not come up within {READY_S:g} s")
