"""GRPO, colocated: ``python run.py ray=simulated``, and ``mode=plan`` to see the layout only.

Each GPU is shared by one policy worker and one generation worker. Weights go from the policy to the generation workers through
Ray, completions come back the same way, gradients are summed among the policy workers over MASTER_ADDR:MASTER_PORT. At the end the
trained weights must be those that one process computes alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from rl_cluster import run_recipe

EXAMPLES = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(EXAMPLES))

import stand_ins  # noqa: E402


def train(recipe, cfg: DictConfig) -> bool:
    """All steps, then the check."""
    policy, generation = recipe.groups["policy"], recipe.groups["generation"]
    how = policy.run_all("meet")[0]
    weights = stand_ins.vector([0.0] * stand_ins.SIZE)
    rewards = []
    for step in range(cfg.steps):
        prompts = [step * cfg.prompts + number for number in range(cfg.prompts)]
        generation.run_all("load", weights)
        split = stand_ins.shares(prompts, generation.world_size)
        made = generation.run_all("generate", per_worker=[{"prompts": share} for share in split])
        scores = [{prompt: stand_ins.rewards_of(group) for prompt, group in groups.items()} for groups in made]
        batches = [
            {"groups": groups, "advantages": {prompt: stand_ins.advantages_of(score[prompt]) for prompt in groups}}
            for groups, score in zip(made, scores, strict=True)
        ]
        everyone = policy.run_all("train", per_worker=batches)
        weights = everyone[0]
        if any(other != weights for other in everyone):
            print(f"FAILED: after step {step} the ranks hold different weights")
            return False
        rewards.append(sum(sum(each) for score in scores for each in score.values()) / (cfg.prompts * stand_ins.GROUP))
    recipe.print_all_worker_groups()
    off = max(abs(a - b) for a, b in zip(weights, alone(cfg), strict=True))
    ok = off < 1e-12 and rewards[-1] > rewards[0]
    print(
        f"{'OK' if ok else 'FAILED'}: {cfg.steps} steps, {policy.world_size} policy and {generation.world_size} generation workers on "
        f"{policy.world_size} GPUs, gradients by {how}; reward {rewards[0]:.2f} to {rewards[-1]:.2f}, weights within 1e-12 of one process: "
        f"{off < 1e-12}"
    )
    return ok


def alone(cfg: DictConfig):
    """The same training in this process."""
    weights = stand_ins.vector([0.0] * stand_ins.SIZE)
    for step in range(cfg.steps):
        total = [0.0] * stand_ins.SIZE
        for prompt in range(step * cfg.prompts, (step + 1) * cfg.prompts):
            group = stand_ins.complete(weights, prompt)
            part = stand_ins.gradient(weights, group, stand_ins.advantages_of(stand_ins.rewards_of(group)))
            total = [a + b for a, b in zip(total, part, strict=True)]
        weights = stand_ins.vector([weight + cfg.lr * part / cfg.prompts for weight, part in zip(weights, total, strict=True)])
    return weights


@hydra.main(version_base="1.3", config_path="conf", config_name="grpo_colocated")
def main(cfg: DictConfig) -> None:
    """One run."""
    sys.exit(run_recipe(cfg, lambda recipe: train(recipe, cfg), modules_in=EXAMPLES))


if __name__ == "__main__":
    main()
