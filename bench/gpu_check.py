"""Is everything right, and how fast, on one CUDA GPU? In under five minutes; one table.

    python bench/gpu_check.py [--model FOLDER] [--device cuda]

Without a model folder, random Llamas of 5 and of 130 million parameters are made. Ends with status 1 when something is
wrong, and with 2 when there is no GPU. A ratio below its target is shown and is no fault.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import memory_signal
import numpy as np
import step
import torch
from scripted import TurnShape
from shapes import Ids, Shape, describe, logp_old_requests, model, rollouts

import rollout
from mempo.config.train import OptimSettings
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer, score_naive
from mempo.engine.update import TrainRow, Updater
from mempo.rollout.interfaces import SamplingParams, ScoreRequest
from mempo.rollout.trajectory import rows_of


@dataclass(frozen=True)
class Result:
    """One line of the table; `right` False: something computes wrong numbers."""

    name: str
    value: str
    wanted: str
    right: bool = True


def _close(name: str, difference: float, limit: float) -> Result:
    return Result(name, f"{difference:.1e}", f"≤ {limit:.0e}", difference <= limit)


def scorer_difference(policy: Policy, shape: Shape, context: str, baseline: str) -> float:
    made = rollouts(shape, context, 2, 2, policy.model.config.vocab_size)
    asked = [*logp_old_requests(made), *memory_signal.probes(made, baseline, shape)]
    found, naive = LocalScorer(policy).score(asked), score_naive(policy, asked)
    return max(float(np.abs(a - b).max()) for a, b in zip(found, naive, strict=True))


def sampler_difference(policy: Policy, rows: int = 16, new: int = 48) -> float:
    """Two turns over one `SharedForward`; the log-probs of both against those of plain forward passes."""
    forward, ids, worst = SharedForward(policy), Ids(policy.model.config.vocab_size), 0.0
    prompts = [ids.take(60)] * (rows // 2) + [ids.take(40 + n) for n in range(rows // 2)]
    for turn in range(2):
        sampling = [SamplingParams(max_new_tokens=new - n, seed=100 * turn + n) for n in range(rows)]
        made = generate_batch(policy, prompts, sampling, forward)
        asked = [ScoreRequest(prompt, g.ids) for prompt, g in zip(prompts, made, strict=True)]
        for generation, plain in zip(made, score_naive(policy, asked), strict=True):
            worst = max(worst, float(np.abs(np.array(generation.logprobs) - plain).max()))
        prompts = [prompt + g.ids + ids.take(20) for prompt, g in zip(prompts, made, strict=True)]
    return worst


def update_difference(policy: Policy, shape: Shape) -> float:
    """Weights after a step with one micro-batch and with many, by the largest weight that changed."""
    made = rollouts(shape, "memory", 2, 2, policy.model.config.vocab_size)
    rows = []
    for number, trajectory in enumerate(made):
        for row in rows_of(trajectory, number):
            rows.append(TrainRow(row, [1.0 - 2 * (number % 2)] * len(row.ids), [-8.0] * len(row.ids)))
    weights = []
    for tokens in (1, 1 << 20):
        own = copy.copy(policy)
        own.model = copy.deepcopy(policy.model)
        Updater(own, OptimSettings(lr=1e-3, micro_batch_tokens=tokens)).rl_step(rows, 1e-3)
        weights.append(torch.cat([p.detach().flatten() for p in own.model.parameters()]))
    # The first step of AdamW is the sign of the gradient: compare where both are sure of it.
    return float((weights[0] - weights[1]).abs().median())


def checks(policy: Policy, half: Policy, shape: Shape) -> Iterator[Result]:
    for context, baseline in memory_signal.PAIRS:
        name = f"scorer against naive, {context}, baseline {baseline}"
        yield _close(name, scorer_difference(policy, shape, context, baseline), 1e-3)
    yield _close("sampler against plain log-probs", sampler_difference(policy), 1e-3)
    yield _close("scorer in bfloat16", scorer_difference(half, shape, "memory", "visible"), 2e-1)
    yield _close("sampler in bfloat16", sampler_difference(half), 2e-1)
    yield _close("weights after an update, micro-batches of 1 row and of all", update_difference(policy, shape), 1e-5)


def speeds(policy: Policy, questions: int, per_question: int, rounds: int) -> Iterator[Result]:
    for context, baseline in (("full", "full"), ("memory", "visible"), ("memory", "none")):
        found = memory_signal.measure(policy, Shape(), context, baseline, questions, per_question, rounds, naive=False)
        value = f"{found.signal[0]:.2f} (floor {found.floor:.2f})"
        wanted = f"≤ {memory_signal.TARGETS[context, baseline]:.2f}"
        yield Result(f"signal / logp_old, {context}, baseline {baseline}", value, wanted)
    for context in ("full", "memory"):
        for uneven in (False, True):
            shape = rollout.Shape(questions, per_question)
            generated = rollout.measure(policy, shape, context, uneven, rounds)
            name = f"generate / ours, {context}, {'uneven' if uneven else 'even'} turns"
            yield Result(
                name, f"{generated.times[0]:.2f}, {generated.new_tokens / generated.our_s:.0f} tokens/s", "≥ 3"
            )
    for context in ("full", "memory"):
        whole = step.measure(policy, TurnShape(), context, questions, per_question // 2, rounds)
        yield Result(f"plain RL step / ours, {context}", f"{whole.times[0]:.2f}", "≥ 3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder, instead of the made-up ones")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA GPU, and torch sees none", file=sys.stderr)
        sys.exit(2)
    began, wrong = time.monotonic(), 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    small, half = (model(options.model, options.device, dtype=d) for d in (torch.float32, torch.bfloat16))
    large = (
        half
        if options.model
        else model(None, options.device, vocabulary=16_384, width=768, layers=16, dtype=torch.bfloat16)
    )
    for policy, results in ((small, checks(small, half, Shape())), (large, speeds(large, 2, 16, options.rounds))):
        print(f"\n{describe(policy)}")
        for result in results:
            wrong += not result.right
            print(
                f"{'ok' if result.right else 'WRONG':6} {result.name:62} {result.value:>26} {result.wanted:>9}",
                flush=True,
            )
    print(f"\n{time.monotonic() - began:.0f} s; {f'{wrong} wrong' if wrong else 'all right'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
