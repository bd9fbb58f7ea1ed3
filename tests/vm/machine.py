"""Boots a Linux guest with several NUMA nodes under QEMU, without KVM, and runs a Python file of this folder in it.

The guest's root is this machine's file system, read-only through 9p, so its Python and packages are there; /run is writable.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODULES = ("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "netfs", "fscache", "9pnet")
MODULES += ("9pnet_virtio", "9p")
TIMEOUT_S = 300

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for m in {modules}; do $b insmod /mods/$m; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /mnt
for d in proc sys dev; do $b mount -o bind /$d /mnt/$d; done
$b mount -t tmpfs tmpfs /mnt/run; $b ifconfig lo 127.0.0.1 up
$b chroot /mnt {command}; echo "guest exit $?"
$b poweroff -f
"""


class VmUnavailableError(Exception):
    """What this machine lacks to boot a guest."""


def boot(arguments: list[str], *qemu: str) -> str:
    """Run ``python -S arguments`` in a guest.

    Args:
        arguments: A file of this machine and its arguments, without blanks.
        qemu: Arguments that describe the guest's CPUs, memory, NUMA nodes and devices.

    Returns:
        What the guest wrote to its console.
    """
    program = shutil.which("qemu-system-x86_64")
    busybox, cpio = shutil.which("busybox"), shutil.which("cpio")
    if program is None or busybox is None or cpio is None:
        raise VmUnavailableError("QEMU, busybox or cpio is missing: apt-get install qemu-system-x86 busybox-static cpio")
    kernel, modules = _kernel()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        for name in ("bin", "mods", "mnt", "proc", "sys", "dev"):
            (root / name).mkdir(parents=True)
        shutil.copy(busybox, root / "bin/busybox")
        names = [name for name in (_module(modules, each, root / "mods") for each in MODULES) if name]
        command = " ".join((sys.executable, "-S", "-B", *arguments))
        (root / "init").write_text(INIT.format(modules=" ".join(names), command=command))
        (root / "init").chmod(0o755)
        listing = "\n".join(str(path.relative_to(root)) for path in [root, *sorted(root.rglob("*"))])
        archive = subprocess.run(
            [cpio, "-o", "-H", "newc", "--quiet"], input=listing.encode(), cwd=root, stdout=subprocess.PIPE, check=True
        ).stdout
        Path(folder, "initrd").write_bytes(gzip.compress(archive, 1))
        command_line = [program, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-accel", "tcg,thread=multi"]
        command_line += ["-kernel", str(kernel), "-initrd", f"{folder}/initrd", "-serial", "stdio"]
        command_line += ["-append", "console=ttyS0 quiet panic=-1 no_timer_check cgroup_no_v1=all"]
        command_line += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        command_line += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host", *qemu]
        result = subprocess.run(command_line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
    return result.stdout.decode(errors="replace")


def _kernel() -> tuple[Path, Path]:
    """Kernel image and module folder, downloaded and unpacked once, never installed. (Debian's cloud kernel has no 9p.)"""
    cache = Path(os.environ.get("RL_CLUSTER_VM_DIR", Path.home() / ".cache/rl_cluster/vm"))
    if not list(cache.glob("k/boot/vmlinuz-*")):
        _download(cache)
    return max(cache.glob("k/boot/vmlinuz-*")), max(path for path in cache.glob("k/**/lib/modules/*/kernel"))


def _download(cache: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise VmUnavailableError("no guest kernel: needs apt-get and dpkg, or an unpacked linux-image package in $RL_CLUSTER_VM_DIR/k")
    with tempfile.TemporaryDirectory() as folder:
        depends = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True).stdout
        package = next((line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line), None)
        if package is None or subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, timeout=TIMEOUT_S).returncode:
            raise VmUnavailableError("no guest kernel: apt-get can't download linux-image-amd64")
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg", "-x", str(next(Path(folder).glob("*.deb"))), str(cache / "k")], check=True)


def _module(modules: Path, name: str, target: Path) -> str | None:
    found = next((path for path in modules.rglob(f"{name}.ko*")), None)
    if found is None:  # built in, or of another kernel version
        return None
    data = found.read_bytes()
    (target / f"{name}.ko").write_bytes(lzma.decompress(data) if found.suffix == ".xz" else data)
    return f"{name}.ko"
