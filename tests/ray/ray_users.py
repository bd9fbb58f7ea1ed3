"""Classes of a user, as the tests run them in workers. Imports little: every worker imports it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray

# What was in force when a worker imported this module.
ENVIRONMENT_AT_IMPORT = dict(os.environ)
MASK_AT_IMPORT = sorted(os.sched_getaffinity(0))
_THREAD_MASK: list[int] = []
_thread = threading.Thread(target=lambda: _THREAD_MASK.extend(sorted(os.sched_getaffinity(0))))
_thread.start()
_thread.join()


class Seen:
    """Tells what a worker sees."""

    def ranks(self) -> tuple[str, ...]:
        return tuple(os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "WORLD_SIZE"))

    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    def env_at_import(self, name: str) -> str | None:
        return ENVIRONMENT_AT_IMPORT.get(name)

    def masks(self) -> tuple[list[int], list[int], list[int]]:
        """At import, of a thread that was started at import, and now."""
        return MASK_AT_IMPORT, _THREAD_MASK, sorted(os.sched_getaffinity(0))

    def gpus(self) -> tuple[list[str], str]:
        return [str(gpu) for gpu in ray.get_gpu_ids()], os.environ.get("CUDA_VISIBLE_DEVICES", "")

    def listen(self) -> tuple[str, int]:
        """Serve on MASTER_PORT as torch's store does (with SO_REUSEADDR), and say what came in."""
        port = int(os.environ["MASTER_PORT"])
        with socket.create_server(("", port)) as server, socket.create_connection((os.environ["MASTER_ADDR"], port)) as client:
            connection, _ = server.accept()
            with connection:
                client.sendall(b"hello")
                return connection.recv(5).decode(), port

    def who(self) -> tuple[str, int]:
        return type(self).__name__, os.getpid()


class Base:
    def __init__(self, first: int) -> None:
        self.first = first


class Given(Base):
    """Has an ``__init__`` that calls its base's, and sees its rank there."""

    def __init__(self, first: int, *, second: str = "", own: Any = None) -> None:
        super().__init__(first)
        self.rank = os.environ["RANK"]
        self.second, self.own = second, own

    def given(self, **more: Any) -> tuple[Any, ...]:
        return self.rank, self.first, self.second, self.own, more


class Fails:
    """Goes wrong in ``__init__``, on one rank."""

    def __init__(self, how: str, rank: int) -> None:
        if int(os.environ["RANK"]) != rank:
            return
        if how == "raise":
            raise ValueError("the weights\nare missing")
        if how == "die":
            print("the weights are", "x" * 10_000, "https://me:planted-secret@index.invalid", file=sys.stderr, flush=True)
            os._exit(7)
        if how == "exit":
            sys.exit("bye")
        time.sleep(600)


class Group:
    """Works together with the others, as a process group does."""

    def die(self, rank: int) -> None:
        """One rank's process ends; the others wait for ever."""
        if int(os.environ["RANK"]) == rank:
            print("I have had enough", file=sys.stderr, flush=True)
            os._exit(9)
        time.sleep(600)

    def fail(self, rank: int) -> None:
        """One rank raises; the others wait for ever."""
        if int(os.environ["RANK"]) == rank:
            raise RuntimeError(f"loss is nan on {rank}")
        time.sleep(600)

    def echo(self, value: Any = None) -> Any:
        return value

    def wait(self) -> None:
        time.sleep(600)


class Async:
    """An async actor: its methods run on one event loop, beside each other."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def open(self) -> str:
        self.opened.set()
        return os.environ["RANK"]

    async def wait_until_open(self) -> str:
        await self.opened.wait()
        return os.environ["RANK"]

    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number


class Streams:
    def count(self, upto: int) -> Iterator[int]:
        for number in range(upto):  # noqa: UP028 - Ray sends to the generator, which a range takes no
            yield number


@ray.remote(max_concurrency=2, num_gpus=7)
class Threaded:
    """Decorated: two calls run at once."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def meet(self) -> int:
        return self.barrier.wait(30)


@ray.remote(concurrency_groups={"io": 1, "compute": 1})
class Grouped:
    """Decorated: a call in one concurrency group does not hold up one in another."""

    def __init__(self) -> None:
        self.event = threading.Event()

    @ray.method(concurrency_group="io")
    def wait(self) -> bool:
        return self.event.wait(30)

    @ray.method(concurrency_group="compute")
    def go(self) -> None:
        self.event.set()


@ray.remote(max_restarts=3, name="one of a kind", scheduling_strategy="SPREAD", runtime_env={"env_vars": {"LC_MINE": "decorated"}})
class Opinionated:
    """Decorated with options that a worker group has its own of."""

    def env(self, name: str) -> str | None:
        return os.environ.get(name)


@ray.remote
class OwnActor:
    """The actor of another framework, which binds itself first."""

    def __init__(self, bind: Any) -> None:
        self.report = bind()

    def seen(self) -> tuple[Any, list[int]]:
        return self.report, sorted(os.sched_getaffinity(0))
