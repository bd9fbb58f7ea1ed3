"""Workers of the recipe tests, importable in worker processes."""

from __future__ import annotations

import os


class Told:
    """Says where it is and what it was given."""

    def __init__(self, bind: object = None, word: str = "") -> None:
        self.binding = bind() if callable(bind) else None
        self.word = word

    def where(self) -> tuple[str, list[str], str]:
        """Ray's node id, GPU ids, placement group."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), [str(gpu) for gpu in ray.get_gpu_ids()], str(context.get_placement_group_id())

    def status(self) -> str:
        """Of the CPU binding, "" where there is none."""
        return "" if self.binding is None else self.binding.cpu_status

    def say(self) -> str:
        """The word, and the rank where there is one."""
        return f"{self.word} {os.environ.get('RANK', '-')} of {os.environ.get('WORLD_SIZE', '-')}"


class Broken:
    """Can't start."""

    def __init__(self) -> None:
        raise ValueError("no weights")
