"""A driver of its own process, for tests of what is left when it ends: ``python ray_driver.py MOMENT ADDRESS``.

It says on standard output where it is (one word a line), so that a test can end it at that moment.
"""

from __future__ import annotations

import os
import sys
import time

from ray_users import Seen

from rl_cluster.builders import build_cluster, build_worker_group
from rl_cluster.connection.session import open_ray
from rl_cluster.inventory import Inventory, PhysicalNode
from rl_cluster.recipes.recipe import build_recipe
from rl_cluster.schema import RaySpec


class Slow(Seen):
    """Says where it is by files in a folder, and stays there."""

    def __init__(self, folder: str, stay: bool) -> None:
        self.folder = folder
        self._note("init")
        if stay:
            time.sleep(600)

    def _note(self, what: str) -> None:
        with open(os.path.join(self.folder, f"{what}-{os.getpid()}"), "w"):
            pass

    def work(self) -> None:
        self._note("work")
        time.sleep(600)

    def last_words(self) -> None:
        self._note("last")
        time.sleep(600)


def say(word: str) -> None:
    print(word, flush=True)


def embed_a_recipe(folder: str) -> None:
    """A script of a user's, with nothing around the block."""
    roles = {
        "policy": {"cluster": {"bundle_ct_per_node_list": [2]}, "worker": {"target": "ray_driver.Slow"}},
        "reward": {"cluster": {"bundle_ct_per_node_list": [1]}, "worker": {"target": "ray_driver.Slow"}},
    }
    for role in roles.values():
        role["worker"]["kwargs"] = {"folder": folder, "stay": False}
    with build_recipe({**roles, "ray": {"kind": "simulated"}}) as recipe:
        say("up")
        recipe.groups["policy"].run_all("work")
    say("ended")


def main(moment: str, address: str, folder: str) -> None:
    if moment == "recipe":
        return embed_a_recipe(folder)
    simulated = None
    if address == "simulated":
        amounts = {"CPU": 4.0, "GPU": 2.0}
        simulated = Inventory((PhysicalNode("made-up", "", amounts, amounts),), simulated=True)
        spec = RaySpec(kind="simulated")
    else:
        spec = RaySpec(address=address)
    say("starting")
    with open_ray(spec, simulated=simulated):
        say("connected")
        placed = {"name": "driver", "bundle_ct_per_node_list": [2]}
        if moment == "waiting":
            placed = {**placed, "bundle_ct_per_node_list": [99], "timeout_s": 600}
        with build_cluster(placed, on_progress=say) as cluster:
            say("placed")
            kwargs = {"folder": folder, "stay": moment == "init"}
            with build_worker_group(cluster, Slow, kwargs=kwargs) as group:
                say("up")
                if moment == "running":
                    group.run_all("work")
                if moment == "ending":
                    group.shutdown(cleanup_method="last_words", timeout_s=600)
        say("given back")
    say("ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
