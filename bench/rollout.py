"""Generating the turns of rollouts: our loop, and `model.generate` that begins every turn anew.

    python bench/rollout.py [--model FOLDER] [--questions 2] [--rollouts 16] [--turns 3] [--rounds 3] [--profile]

Both ways sample the same tokens from the same prompts, watch for stop strings and return log-probs. A tool answers with
`--tool` tokens between turns. `even`: all turns have equally many tokens; `uneven`: from an eighth of that to twice as
much, rows leaving when they have ended. `by tokens`: the ratio if a token cost the same in both ways. `floor`: tokens
that no way can avoid.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from naive import floor_tokens, generate
from profiled import profile
from shapes import Ids, describe, model
from timing import alternate, ratio, spread

from mempo.engine.policy import Policy
from mempo.engine.prefix_cache import as_ids
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.rollout.interfaces import SamplingParams

STOP = ("</search>", "</access>", "</answer>")
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """Tokens of the question, of a turn (on average) and of a tool's answer; the note is the first half of a turn."""

    questions: int = 2
    rollouts: int = 16
    turns: int = 3
    question: int = 90
    words: int = 64
    tool: int = 100


@dataclass(frozen=True)
class Turn:
    """Of all rollouts: what they saw, and how many tokens they wrote."""

    prompts: list[Prompt]
    words: list[Prompt]


def lengths(shape: Shape, uneven: bool, seed: int = 0) -> list[list[int]]:
    """`[turns][rollouts]`, the mean of a turn being `shape.words`, or close to it."""
    rng, count = random.Random(seed), shape.questions * shape.rollouts
    low, high = (shape.words // 8, shape.words * 2 - shape.words // 8) if uneven else (shape.words,) * 2
    return [[rng.randint(max(low, 1), high) for _ in range(count)] for _ in range(shape.turns)]


def prompts_of(shape: Shape, context: str, ids: Ids) -> Iterator[list[Prompt]]:
    """Prompts turn by turn; what was written is sent back in."""
    questions = [ids.take(shape.question) for _ in range(shape.questions)]
    heads = [question for question in questions for _ in range(shape.rollouts)]
    prompts = heads
    while True:
        words: Sequence[Prompt] = yield prompts
        tools = [ids.take(shape.tool) for _ in prompts]
        if context == "full":
            prompts = [p + w + t for p, w, t in zip(prompts, words, tools, strict=True)]
        else:
            notes = [(*w[: len(w) // 2], *w[-8:]) for w in words]
            prompts = [head + note + t for head, note, t in zip(heads, notes, tools, strict=True)]


def ours(policy: Policy, shape: Shape, context: str, lengths: list[list[int]]) -> tuple[list[Turn], SharedForward]:
    """The turns as sampled, from nothing kept."""
    forward, turns = SharedForward(policy), []
    prompting = prompts_of(shape, context, Ids(policy.model.config.vocab_size))
    prompts = next(prompting)
    for number, counts in enumerate(lengths):
        sampling = [
            SamplingParams(max_new_tokens=count, stop=STOP, seed=1000 * number + row)
            for row, count in enumerate(counts)
        ]
        made = generate_batch(policy, prompts, sampling, forward)
        turns.append(Turn(prompts, [generation.ids for generation in made]))
        prompts = prompting.send(turns[-1].words)  # type: ignore[attr-defined]
    return turns, forward


def theirs(policy: Policy, turns: Sequence[Turn]) -> int:
    """The same turns by `model.generate`; tokens forwarded."""
    return sum(generate(policy, turn.prompts, turn.words, STOP)[1] for turn in turns)


@dataclass(frozen=True)
class Found:
    """`times`: their seconds over ours: median, smallest, largest of the rounds."""

    times: tuple[float, float, float]
    our_tokens: int
    their_tokens: int
    floor: int
    new_tokens: int
    our_s: float

    @property
    def by_tokens(self) -> float:
        """The ratio if every token cost the same in both ways."""
        return self.their_tokens / self.our_tokens


def measure(policy: Policy, shape: Shape, context: str, uneven: bool, rounds: int) -> Found:
    policy.tokenizer.eos_ids = frozenset()  # a rollout is as long as it is told to be
    counts = lengths(shape, uneven)
    turns, forward = ours(policy, shape, context, counts)
    their_tokens = [0]

    def way() -> None:
        their_tokens[0] = theirs(policy, turns)

    ways = {"ours": lambda: ours(policy, shape, context, counts), "theirs": way}
    seconds = alternate(ways, rounds, policy.device)  # type: ignore[arg-type]
    seen = [as_ids(p + w[:-1]) for turn in turns for p, w in zip(turn.prompts, turn.words, strict=True)]
    return Found(
        ratio(seconds["theirs"], seconds["ours"]),
        forward.work.tokens,
        their_tokens[0],
        floor_tokens(seen),
        sum(len(w) for turn in turns for w in turn.words),
        sorted(seconds["ours"])[rounds // 2],
    )


HEADER = (
    f"{'context':8} {'lengths':8} {'generate / ours':>20}   {'by tokens':>9} {'ours':>8} {'generate':>9} {'floor':>8} "
    f"{'/ floor':>7} {'new':>7} {'new/s':>7}"
)


def line(context: str, uneven: bool, found: Found) -> str:
    return (
        f"{context:8} {'uneven' if uneven else 'even':8} {spread(found.times, ' ×'):>20} "
        f"{'' if found.times[0] >= 3 else '!':1} {found.by_tokens:7.2f} × "
        f"{found.our_tokens:>8} {found.their_tokens:>9} {found.floor:>8} "
        f"{found.our_tokens / found.floor:7.2f} {found.new_tokens:>7} {found.new_tokens / found.our_s:7.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--words", type=int, default=64, help="tokens of a turn")
    parser.add_argument("--tool", type=int, default=100, help="tokens of a tool's answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="context:lengths, such as full:uneven")
    parser.add_argument("--profile", action="store_true", help="also show where our time goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = model(options.model, options.device)
    shape = Shape(options.questions, options.rollouts, options.turns, 90, options.words, options.tool)
    print(f"{describe(policy)}; {shape.questions} × {shape.rollouts} rollouts of {shape.turns} turns of {shape.words},")
    print(f"tool answers of {shape.tool}; {options.rounds} rounds; target ≥ 3 ×\n\n{HEADER}")
    for context in ("full", "memory"):
        for uneven in (False, True):
            if options.only not in (None, f"{context}:{'uneven' if uneven else 'even'}"):
                continue
            print(line(context, uneven, measure(policy, shape, context, uneven, options.rounds)), flush=True)
            if options.profile:
                counts = lengths(shape, uneven)
                print(profile(lambda counts=counts, context=context: ours(policy, shape, context, counts)))


if __name__ == "__main__":
    main()
