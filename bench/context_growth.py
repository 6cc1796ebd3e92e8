"""How what the policy sees, and what a turn costs, grow with the number of turns: memory context and full history.

    python bench/context_growth.py [--turns 4 8 16 32 64] [--rollouts 2] [--figure FILE.png]

Rollouts go through the agent loop; every turn has a note, a thought, a search and a passage of fixed lengths. The peak
context is the longest prompt with its turn. Seconds are of the last quarter of the turns: what one more turn costs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from scripted import Play, TurnShape, said
from shapes import describe, model
from timing import clock

from mempo.engine.batcher import BatchingSampler
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.rollout.agent import Job, run_rollouts
from mempo.rollout.interfaces import Generation, SamplingParams

SHAPE = TurnShape(question=60, note=40, thought=10, query=6, passage=100)


@dataclass(frozen=True)
class Found:
    """`turn_s`: seconds of a turn of all rollouts, late in the rollout; `tokens`: forwarded in all."""

    context: str
    turns: int
    peak_tokens: int
    turn_s: float
    tokens: int


def measure(policy: Policy, context: str, turns: int, rollouts: int, shape: TurnShape = SHAPE) -> Found:
    shape = TurnShape(turns, shape.question, shape.note, shape.thought, shape.query, shape.passage)
    play = Play(policy.tokenizer, shape, context)
    (question,) = play.questions(1)
    jobs = [Job(question, n, (0,)) for n in range(rollouts)]
    forward, seconds = SharedForward(policy), []

    def generate(prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Generation]:
        began = clock(policy.device)
        made = generate_batch(policy, prompts, sampling, forward)
        seconds.append(clock(policy.device) - began)
        return made

    with said(play.script(jobs)):
        trajectories = asyncio.run(run_rollouts(play.agent, BatchingSampler(generate), jobs))
    peak = max(len(turn.prompt_ids) + len(turn.generated_ids) for t in trajectories for turn in t.turns)
    late = seconds[-max(turns // 4, 1) :]
    return Found(context, turns, peak, sum(late) / len(late), forward.work.tokens)


def draw(found: Sequence[Found], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for context in dict.fromkeys(one.context for one in found):
        some = [one for one in found if one.context == context]
        turns = [one.turns for one in some]
        axes[0].plot(turns, [one.peak_tokens for one in some], marker="o", label=context)
        axes[1].plot(turns, [one.turn_s for one in some], marker="o", label=context)
    for axis, name in zip(axes, ("peak context, tokens", "seconds of one more turn"), strict=True):
        axis.set(xlabel="turns", ylabel=name, ylim=(0, None))
        axis.legend()
    figure.savefig(file, dpi=120)


def line(found: Found) -> str:
    return f"{found.context:8} {found.turns:>6} {found.peak_tokens:>9} {found.turn_s:>10.3f} {found.tokens:>10}"


HEADER = f"{'context':8} {'turns':>6} {'peak':>9} {'s a turn':>10} {'forwarded':>10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--figure", help="also draw it into this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = model(options.model, options.device)
    print(f"{describe(policy)}; {options.rollouts} rollouts of one question\n\n{HEADER}")
    measure(policy, "memory", 2, options.rollouts)  # libraries are loaded on first use
    found = []
    for turns in options.turns:
        for context in ("memory", "full"):
            found.append(measure(policy, context, turns, options.rollouts))
            print(line(found[-1]), flush=True)
    if options.figure:
        draw(found, options.figure)
        print(f"\ndrawn into {options.figure}")


if __name__ == "__main__":
    main()
