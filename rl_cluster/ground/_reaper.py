"""The last one out: removes the temporary folder of a Ray that we started, or of a sweep's, even when its owner was killed.

Started as a child with one end of a pipe as standard input, the folder and the owner's process id as arguments. The owner writes
when it is done, and its end of the pipe closes when it ends, in whatever way; then what still runs out of that folder is ended and
the folder removed. Only standard library, no import of the package.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

GRACE_S = 15.0


def _users_of(folder: str) -> list[int]:
    """Processes of Ray's that run out of the folder: their command line names it, or (some overwrite theirs) a file that they hold open.

    Of the latter only those that call themselves Ray's: a user's editor may have a log of the folder open.
    """
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = _read(f"/proc/{entry}/cmdline")
                if os.fsencode(folder) in command or (command.startswith(b"ray::") and _has_open(entry, folder + os.sep)):
                    found.append(int(entry))
            except OSError:
                continue  # it ended meanwhile
    return found


def _read(path: str) -> bytes:
    # not open(): it is gone when this is called at the very end of an interpreter
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(descriptor, 65536), b""))
    finally:
        os.close(descriptor)


def _has_open(pid: str, below: str) -> bool:
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(below):
                return True
        except OSError:
            continue  # it was closed meanwhile
    return False


def reap(folder: str) -> None:
    """End what runs out of ``folder``, then remove it."""
    deadline = time.monotonic() + GRACE_S
    while os.path.isdir("/proc") and time.monotonic() < deadline:
        pids = _users_of(folder)
        if not pids:
            break
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.1)
    while os.path.isdir(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    owner = int(sys.argv[2])
    # a forked child of the owner holds a copy of its end of the pipe, so an owner that was killed is noticed by its absence, too
    while not select.select([sys.stdin], [], [], 1.0)[0] and os.getppid() == owner:
        pass
    reap(sys.argv[1])


if __name__ == "__main__":
    main()
