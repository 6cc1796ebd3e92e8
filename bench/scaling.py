"""Whether a token costs the same however many questions, rollouts and turns there are.

    python bench/scaling.py [--rounds 3] [--context memory]

One of the three is doubled twice, the others stay. Generating and scoring (log-probs of all rows and the memory signal)
are timed apart, all sizes in turns, per token forwarded; 1 is the first size of a row. The target is 10 %: smaller
batches may cost more a token, never less, or the larger ones waste something.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from memory_signal import probes, scored
from shapes import Shape, describe, logp_old_requests, model, rollouts
from timing import alternate, ratio, spread

import rollout as generation
from mempo.engine.policy import Policy
from rollout import lengths, ours

Size = tuple[int, int, int]
BASE: Size = (2, 16, 2)
AXES = ("questions", "rollouts", "turns")


def sizes(base: Size, axis: int) -> list[Size]:
    return [tuple(n * factor if k == axis else n for k, n in enumerate(base)) for factor in (1, 2, 4)]  # type: ignore[misc]


def measure(
    policy: Policy, asked: Sequence[Size], context: str, rounds: int, words: int = 32
) -> tuple[list[list[float]], list[list[float]]]:
    """Seconds per forwarded token of generating and of scoring, `[sizes][rounds]` each."""
    policy.tokenizer.eos_ids = frozenset()
    ways, tokens = {}, {}
    for questions, per_question, turns in asked:
        size = f"{questions}-{per_question}-{turns}"
        shape = generation.Shape(questions, per_question, turns, 90, words, 60)
        counts = lengths(shape, uneven=False)
        ways[f"generate-{size}"] = lambda shape=shape, counts=counts: ours(policy, shape, context, counts)
        tokens[f"generate-{size}"] = ours(policy, shape, context, counts)[1].work.tokens
        scoring = replace(Shape(), turns=turns + 1, observation=60, note=30, words=30)
        made = rollouts(scoring, context, questions, per_question, policy.model.config.vocab_size)
        both = [*logp_old_requests(made), *probes(made, "none", scoring)]
        ways[f"score-{size}"] = lambda both=both: scored(policy, both)
        tokens[f"score-{size}"] = scored(policy, both).work.tokens
    seconds = alternate(ways, rounds, policy.device)
    each = {name: [s / tokens[name] for s in found] for name, found in seconds.items()}
    return tuple([found for name, found in each.items() if name.startswith(kind)] for kind in ("gen", "sc"))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", choices=("memory", "full"), default="memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", type=int, nargs=3, default=BASE, metavar=("QUESTIONS", "ROLLOUTS", "TURNS"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = model(options.model, options.device)
    print(f"{describe(policy)}; {options.context} context; {options.rounds} rounds; target ≤ 1.10\n")
    print(f"{'growing':10} {'questions × rollouts × turns':>30} {'generate':>20} {'score':>20}")
    for axis, name in enumerate(AXES):
        asked = sizes(tuple(options.base), axis)
        found = measure(policy, asked, options.context, options.rounds)
        for number, size in enumerate(asked):
            numbers = [spread(ratio(kind[number], kind[0])) for kind in found]
            print(f"{name:10} {' × '.join(map(str, size)):>30} {numbers[0]:>20} {numbers[1]:>20}", flush=True)


if __name__ == "__main__":
    main()
