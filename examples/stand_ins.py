"""Stand-in workers of the example recipes: a model of a few numbers, trained for real, so that every exchange can be checked.

The "model" is a vector of weights, a completion is a vector near it, and the reward says how near a completion comes to a target.
Nothing needs a GPU. Arrays travel through Ray as arguments and results; gradients are summed over MASTER_ADDR:MASTER_PORT, by
torch.distributed (gloo) where torch is installed, else by plain sockets.
"""

from __future__ import annotations

import array
import os
import random
import socket
import struct
import time
from collections.abc import Sequence

SIZE = 16  # numbers in the model
GROUP = 8  # completions of one prompt
TIMEOUT_S = 60.0

Vector = array.array


def vector(numbers: Sequence[float]) -> Vector[float]:
    """An array of doubles."""
    return array.array("d", numbers)


# --- the arithmetic, which the examples' own checks repeat in one process ---


def complete(weights: Vector[float], prompt: int) -> list[Vector[float]]:
    """The completions of one prompt: the same for the same weights and prompt, whoever makes them."""
    numbers = random.Random(prompt)
    return [vector([weight + numbers.gauss(0, 0.1) for weight in weights]) for _ in range(GROUP)]


def rewards_of(completions: Sequence[Vector[float]]) -> list[float]:
    """Minus the squared distance to the target, which is 1, 1, 1, ..."""
    return [-sum((number - 1.0) ** 2 for number in completion) for completion in completions]


def advantages_of(rewards: Sequence[float], values: Sequence[float] | None = None) -> list[float]:
    """GRPO: rewards within their group, in standard deviations. PPO: rewards beyond what a critic expected."""
    if values is not None:
        return [reward - value for reward, value in zip(rewards, values, strict=True)]
    mean = sum(rewards) / len(rewards)
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]


def gradient(weights: Vector[float], completions: Sequence[Vector[float]], advantages: Sequence[float]) -> Vector[float]:
    """The policy gradient of one group: where completions with an advantage lie, seen from the weights."""
    total = [0.0] * len(weights)
    for completion, advantage in zip(completions, advantages, strict=True):
        for index, number in enumerate(completion):
            total[index] += advantage * (number - weights[index]) / len(completions)
    return vector(total)


# --- the exchange over MASTER_ADDR:MASTER_PORT ---


class Ring:
    """All workers of one group: ``sum`` adds their vectors, and every one gets the total."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.how = "alone" if self.size == 1 else "sockets"
        self._links: list[socket.socket] = []
        if self.size > 1:
            try:
                import torch.distributed as dist
            except ImportError:
                self._links = self._listen() if self.rank == 0 else [self._connect()]
            else:
                dist.init_process_group("gloo", rank=self.rank, world_size=self.size)  # reads MASTER_ADDR and MASTER_PORT
                self.how = "gloo"

    def sum(self, mine: Vector[float]) -> Vector[float]:
        """The sum over all ranks, in rank order, so that it is the same to the last bit every time."""
        if self.how == "alone":
            return mine
        if self.how == "gloo":
            import torch
            import torch.distributed as dist

            parts = [torch.zeros(len(mine), dtype=torch.float64) for _ in range(self.size)]
            dist.all_gather(parts, torch.tensor(mine, dtype=torch.float64))
            return vector([sum(numbers) for numbers in zip(*(part.tolist() for part in parts), strict=True)])
        if self.rank == 0:
            vectors = [mine, *(_receive(link, len(mine)) for link in self._links)]
            total = vector([sum(numbers) for numbers in zip(*vectors, strict=True)])
            for link in self._links:
                link.sendall(total.tobytes())
            return total
        self._links[0].sendall(mine.tobytes())
        return _receive(self._links[0], len(mine))

    def _listen(self) -> list[socket.socket]:
        links: dict[int, socket.socket] = {}
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            server.settimeout(TIMEOUT_S)
            while len(links) < self.size - 1:
                link, _ = server.accept()
                link.settimeout(TIMEOUT_S)
                links[struct.unpack("!i", _exactly(link, 4))[0]] = link
        return [links[rank] for rank in sorted(links)]

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                link = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timeout=TIMEOUT_S)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        link.sendall(struct.pack("!i", self.rank))
        return link


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise ConnectionError("the other end has gone")
        data += more
    return data


def _receive(link: socket.socket, count: int) -> Vector[float]:
    return array.array("d", _exactly(link, 8 * count))


# --- the workers ---


class Policy:
    """Holds the weights and trains them, each rank on its share of the prompts."""

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.weights = vector([0.0] * SIZE)
        self.ring: Ring | None = None

    def meet(self) -> str:
        """Join the other ranks. A call of its own, so that all ranks are there."""
        self.ring = Ring()
        return self.ring.how

    def train(self, groups: dict[int, list[Vector[float]]], advantages: dict[int, list[float]]) -> Vector[float]:
        """One step on the prompts of this rank (prompt -> completions, prompt -> advantages). Returns the new weights."""
        assert self.ring is not None
        mine = vector([0.0] * SIZE)
        for prompt in sorted(groups):
            step = gradient(self.weights, groups[prompt], advantages[prompt])
            mine = vector([a + b for a, b in zip(mine, step, strict=True)])
        total = self.ring.sum(vector([*mine, float(len(groups))]))
        prompts = total[-1]
        self.weights = vector([weight + self.lr * step / prompts for weight, step in zip(self.weights, total[:-1], strict=True)])
        return self.weights

    def distance(self, reference: Sequence[float]) -> float:
        """How far this rank's weights are from others (the stand-in of a KL divergence)."""
        return sum((a - b) ** 2 for a, b in zip(self.weights, reference, strict=True)) ** 0.5


class Generator:
    """Makes completions with the weights that it was given last."""

    def __init__(self) -> None:
        self.weights = vector([0.0] * SIZE)

    def load(self, weights: Vector[float]) -> int:
        """Take new weights. Returns their number of bytes."""
        self.weights = weights
        return len(weights) * weights.itemsize

    def generate(self, prompts: Sequence[int]) -> dict[int, list[Vector[float]]]:
        """Completions by prompt."""
        return {prompt: complete(self.weights, prompt) for prompt in prompts}


class Reward:
    """Scores completions."""

    def score(self, groups: dict[int, list[Vector[float]]]) -> dict[int, list[float]]:
        """Rewards by prompt, one for each completion."""
        return {prompt: rewards_of(completions) for prompt, completions in groups.items()}


class Reference:
    """The frozen model: knows how far a completion is from what the untrained weights would say."""

    def __init__(self) -> None:
        self.weights = vector([0.0] * SIZE)

    def penalty(self, groups: dict[int, list[Vector[float]]], scale: float) -> dict[int, list[float]]:
        """What is taken off each reward, by prompt."""
        return {prompt: [penalty_of(completion, self.weights, scale) for completion in group] for prompt, group in groups.items()}


class Critic:
    """Expects a reward for each prompt: one number, learnt from what came; all ranks agree on it."""

    def __init__(self, lr: float) -> None:
        self.lr, self.value = lr, 0.0
        self.ring: Ring | None = None

    def meet(self) -> str:
        """Join the other ranks."""
        self.ring = Ring()
        return self.ring.how

    def values(self, prompts: Sequence[int]) -> dict[int, list[float]]:
        """The expectation by prompt, one for each completion."""
        return {prompt: [self.value] * GROUP for prompt in prompts}

    def learn(self, rewards: dict[int, list[float]]) -> float:
        """One step towards the mean reward over all ranks. Returns the new expectation."""
        assert self.ring is not None
        mine = [sum(rewards[prompt]) for prompt in sorted(rewards)]
        total = self.ring.sum(vector([sum(mine), float(len(rewards) * GROUP)]))
        self.value += self.lr * (total[0] / total[1] - self.value)
        return self.value


def penalty_of(completion: Sequence[float], reference: Sequence[float], scale: float) -> float:
    """What is taken off the reward of one completion."""
    return scale * sum((a - b) ** 2 for a, b in zip(completion, reference, strict=True))


# --- sharing work out ---


def shares(prompts: Sequence[int], count: int) -> list[list[int]]:
    """The prompts of each of ``count`` ranks."""
    return [list(prompts[rank::count]) for rank in range(count)]


def merged(parts: Sequence[dict[int, list[float]]]) -> dict[int, list[float]]:
    """What the ranks returned, by prompt."""
    return {prompt: values for part in parts for prompt, values in part.items()}
