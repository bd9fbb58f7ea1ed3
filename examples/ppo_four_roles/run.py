"""PPO with four roles: ``python run.py ray=simulated``, and ``mode=plan`` to see the layout only.

The actor makes completions and learns, the critic expects, the reward scores, the reference penalises. Reference and reward sit on
chosen GPUs of the other two (a device map). At the end the trained weights must be those that one process computes alone.
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
    actor, critic, reference, reward = (recipe.groups[name] for name in ("actor", "critic", "reference", "reward"))
    how = actor.run_all("meet")[0]
    critic.run_all("meet")
    weights = stand_ins.vector([0.0] * stand_ins.SIZE)
    for step in range(cfg.steps):
        prompts = [step * cfg.prompts + number for number in range(cfg.prompts)]
        groups = {prompt: stand_ins.complete(weights, prompt) for prompt in prompts}
        penalties = scatter(reference, "penalty", groups, scale=cfg.penalty)
        scores = scatter(reward, "score", groups)
        values = {prompt: expected for part in critic.run_all("values", prompts) for prompt, expected in part.items()}
        rewards = {prompt: [a - b for a, b in zip(scores[prompt], penalties[prompt], strict=True)] for prompt in prompts}
        learnt = critic.run_all("learn", per_worker=[{"rewards": pick(rewards, s)} for s in stand_ins.shares(prompts, critic.world_size)])
        advantages = {prompt: stand_ins.advantages_of(rewards[prompt], values[prompt]) for prompt in prompts}
        everyone = actor.run_all(
            "train",
            per_worker=[
                {"groups": pick(groups, s), "advantages": pick(advantages, s)} for s in stand_ins.shares(prompts, actor.world_size)
            ],
        )
        weights = everyone[0]
        if any(other != weights for other in everyone) or len(set(learnt)) > 1:
            print(f"FAILED: after step {step} the ranks hold different weights")
            return False
    recipe.print_all_worker_groups()
    off = max(abs(a - b) for a, b in zip(weights, alone(cfg), strict=True))
    drift = max(actor.run_all("distance", stand_ins.vector([0.0] * stand_ins.SIZE)))
    ok = off < 1e-12 and drift > 0
    sizes = ", ".join(f"{group.world_size} {name}" for name, group in recipe.groups.items())
    print(
        f"{'OK' if ok else 'FAILED'}: {cfg.steps} steps, workers: {sizes}; gradients by {how}; distance from the reference {drift:.3f}, "
        f"weights within 1e-12 of one process: {off < 1e-12}"
    )
    return ok


def pick(values: dict, prompts) -> dict:
    """The part of some prompts."""
    return {prompt: values[prompt] for prompt in prompts}


def scatter(group, method: str, values: dict, **more) -> dict[int, list[float]]:
    """Call a method on every rank with its share of the prompts, and put the answers together."""
    split = stand_ins.shares(sorted(values), group.world_size)
    return stand_ins.merged(group.run_all(method, per_worker=[{"groups": pick(values, share)} for share in split], **more))


def alone(cfg: DictConfig):
    """The same training in this process."""
    start = stand_ins.vector([0.0] * stand_ins.SIZE)
    weights, value = start, 0.0
    for step in range(cfg.steps):
        total, everything = [0.0] * stand_ins.SIZE, []
        for prompt in range(step * cfg.prompts, (step + 1) * cfg.prompts):
            group = stand_ins.complete(weights, prompt)
            penalties = [stand_ins.penalty_of(completion, start, cfg.penalty) for completion in group]
            rewards = [a - b for a, b in zip(stand_ins.rewards_of(group), penalties, strict=True)]
            part = stand_ins.gradient(weights, group, stand_ins.advantages_of(rewards, [value] * len(rewards)))
            total = [a + b for a, b in zip(total, part, strict=True)]
            everything += rewards
        weights = stand_ins.vector([weight + cfg.lr * part / cfg.prompts for weight, part in zip(weights, total, strict=True)])
        value += 0.5 * (sum(everything) / len(everything) - value)
    return weights


@hydra.main(version_base="1.3", config_path="conf", config_name="ppo_four_roles")
def main(cfg: DictConfig) -> None:
    """One run."""
    sys.exit(run_recipe(cfg, lambda recipe: train(recipe, cfg), modules_in=EXAMPLES))


if __name__ == "__main__":
    main()
