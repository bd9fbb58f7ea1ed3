"""GRPO, disaggregated: ``python run.py ray=simulated``, and ``mode=plan`` to see the layout only.

Policy and generation have GPUs of their own, so while the policy trains on one batch the next one is made, with weights that are one
step old. Weights are put into Ray's object store once and read by every generation worker. At the end the trained weights must be
those that one process computes alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
import ray
from omegaconf import DictConfig

from rl_cluster import run_recipe

EXAMPLES = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EXAMPLES))

import stand_ins  # noqa: E402


def train(recipe, cfg: DictConfig) -> bool:
    """All steps, then the check."""
    policy, generation = recipe.groups["policy"], recipe.groups["generation"]
    how = policy.run_all("meet")[0]
    made = start_batch(generation, stand_ins.vector([0.0] * stand_ins.SIZE), 0, cfg)
    weights, rewards = stand_ins.vector([0.0] * stand_ins.SIZE), []
    for step in range(cfg.steps):
        groups = {prompt: group for part in ray.get(made) for prompt, group in part.items()}
        if step + 1 < cfg.steps:
            made = start_batch(generation, weights, step + 1, cfg)  # goes on while the policy trains
        scores = {prompt: stand_ins.rewards_of(group) for prompt, group in groups.items()}
        batches = [
            {
                "groups": {prompt: groups[prompt] for prompt in share},
                "advantages": {prompt: stand_ins.advantages_of(scores[prompt]) for prompt in share},
            }
            for share in stand_ins.shares(sorted(groups), policy.world_size)
        ]
        everyone = policy.run_all("train", per_worker=batches)
        weights = everyone[0]
        if any(other != weights for other in everyone):
            print(f"FAILED: after step {step} the ranks hold different weights")
            return False
        rewards.append(sum(map(sum, scores.values())) / (cfg.prompts * stand_ins.GROUP))
    recipe.print_all_worker_groups()
    off = max(abs(a - b) for a, b in zip(weights, alone(cfg), strict=True))
    ok = off < 1e-12 and rewards[-1] > rewards[0]
    print(
        f"{'OK' if ok else 'FAILED'}: {cfg.steps} steps, {policy.world_size} policy and {generation.world_size} generation workers on "
        f"{policy.world_size + generation.world_size} GPUs, gradients by {how}; reward {rewards[0]:.2f} to {rewards[-1]:.2f}, "
        f"weights within 1e-12 of one process: {off < 1e-12}"
    )
    return ok


def start_batch(generation, weights, step: int, cfg: DictConfig) -> list[ray.ObjectRef]:
    """Ask every generation worker for its share of a batch, and wait for none."""
    stored = ray.put(weights)
    split = stand_ins.shares(range(step * cfg.prompts, (step + 1) * cfg.prompts), generation.world_size)
    for worker in generation.workers:
        worker.load.remote(stored)  # a worker's calls run in order, so these come before those below
    return [worker.generate.remote(share) for worker, share in zip(generation.workers, split, strict=True)]


def alone(cfg: DictConfig):
    """The same training in this process."""
    history = [stand_ins.vector([0.0] * stand_ins.SIZE)]
    for step in range(cfg.steps):
        total = [0.0] * stand_ins.SIZE
        for prompt in range(step * cfg.prompts, (step + 1) * cfg.prompts):
            group = stand_ins.complete(history[max(0, step - 1)], prompt)
            part = stand_ins.gradient(history[-1], group, stand_ins.advantages_of(stand_ins.rewards_of(group)))
            total = [a + b for a, b in zip(total, part, strict=True)]
        history.append(stand_ins.vector([weight + cfg.lr * part / cfg.prompts for weight, part in zip(history[-1], total, strict=True)]))
    return history[-1]


@hydra.main(version_base="1.3", config_path="conf", config_name="grpo_disaggregated")
def main(cfg: DictConfig) -> None:
    """One run."""
    sys.exit(run_recipe(cfg, lambda recipe: train(recipe, cfg), modules_in=EXAMPLES))


if __name__ == "__main__":
    main()
