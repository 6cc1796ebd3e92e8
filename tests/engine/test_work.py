"""Counted work: tokens forwarded and rows of logits made, against the fewest that any way needs."""

from __future__ import annotations

import random
from functools import cache

import pytest
from memory_signal import PAIRS, floor, left_by_rollout, probes
from naive import floor_tokens
from shapes import Shape, logp_old_requests, rollouts

from mempo.engine.policy import Policy
from mempo.engine.prefix_cache import as_ids
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer
from mempo.rollout.interfaces import SamplingParams, ScoreRequest
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
SHAPE = Shape()  # 1 968 tokens, 5 turns
ROLLOUTS = 2


@cache
def policy() -> Policy:
    """As wide as a small real model, since what sharing costs depends on the width, and as shallow as can be."""
    return tiny_llama(TOKENIZER, hidden_size=576, intermediate_size=64, num_hidden_layers=1)


@cache
def asked(context: str, baseline: str) -> tuple[list[ScoreRequest], list[ScoreRequest]]:
    """What logp_old asks and what the memory signal asks."""
    made = rollouts(SHAPE, context, 1, ROLLOUTS, TOKENIZER.size)
    return logp_old_requests(made), probes(made, baseline, SHAPE)


def work(requests: list[ScoreRequest], forward: SharedForward | None = None) -> tuple[int, int]:
    """Tokens and head rows."""
    scorer = LocalScorer(policy(), forward=forward or SharedForward(policy()))
    scorer.forward.work.tokens = scorer.forward.work.head_rows = 0
    scorer.score(requests)
    return scorer.forward.work.tokens, scorer.forward.work.head_rows


SHARES = {("full", "full"): 0.30, ("full", "none"): 0.30, ("memory", "visible"): 0.18, ("memory", "none"): 0.10}


@pytest.mark.parametrize(("context", "baseline"), PAIRS)
def test_the_signal_forwards_little_more_than_it_must(context: str, baseline: str) -> None:
    old, extra = asked(context, baseline)
    alone, both = work(old), work([*old, *extra])
    signal = both[0] - alone[0]
    assert signal <= 1.05 * (floor([*old, *extra]) - floor(old))
    assert both[0] <= 1.05 * floor([*old, *extra])
    assert signal <= SHARES[context, baseline] * alone[0]
    # 50 words a turn and a note of 60 in all but the first; 4 gold tokens a note, for each context it is asked from.
    assert alone[1] == ROLLOUTS * (5 * 50 + 4 * 60)
    assert both[1] - alone[1] == ROLLOUTS * 4 * 4 * (1 if baseline == "none" else 2)


@pytest.mark.parametrize(
    ("context", "baseline", "each"),
    # 29 tokens of a probe are fed. In the full context a note has to be put behind the question first; in the memory
    # context it begins the next prompt, so only the last one is new there.
    [
        ("full", "none", 60 + 29),
        ("full", "full", 60 + 29 + 29),
        ("memory", "none", 29 + 60 / 4),
        ("memory", "visible", 29 + 29 + 60 / 4),
    ],
)
def test_probes_ride_on_what_the_rollout_left(context: str, baseline: str, each: float) -> None:
    made = rollouts(SHAPE, context, 1, ROLLOUTS, TOKENIZER.size)
    tokens, _ = work(probes(made, baseline, SHAPE), left_by_rollout(policy(), made))
    notes = ROLLOUTS * 4
    assert tokens <= each * notes + ROLLOUTS * 4 * 4  # and a token or so before each probe: no state is kept


@pytest.mark.parametrize("context", ["full", "memory"])
def test_a_rollout_of_three_turns_forwards_each_token_once(context: str) -> None:
    own, rng, tool, new = policy(), random.Random(0), 30, 8
    own.tokenizer.eos_ids = frozenset()  # a turn is as long as it is told to be
    forward = SharedForward(own)
    question = tuple(rng.randrange(TOKENIZER.size) for _ in range(40))
    prompts, seen, head_rows = [question] * 8, [], 0
    for turn in range(3):
        sampling = [SamplingParams(max_new_tokens=new, seed=100 * turn + n) for n in range(8)]
        made = generate_batch(own, prompts, sampling, forward)
        seen += [as_ids(prompt + g.ids[:-1]) for prompt, g in zip(prompts, made, strict=True)]
        head_rows += len(set(prompts))
        tools = [tuple(rng.randrange(TOKENIZER.size) for _ in range(tool)) for _ in prompts]
        if context == "full":
            prompts = [prompt + g.ids + t for prompt, g, t in zip(prompts, made, tools, strict=True)]
        else:
            prompts = [question + g.ids[:4] + t for g, t in zip(made, tools, strict=True)]
    assert floor_tokens(seen) <= forward.work.tokens <= 1.05 * floor_tokens(seen)
    assert forward.work.head_rows <= 3 * 8  # of prompts: one row each


def test_rows_that_end_early_are_soon_no_longer_fed() -> None:
    own, rng = policy(), random.Random(0)
    own.tokenizer.eos_ids = frozenset()
    forward = SharedForward(own)
    prompts = [tuple(rng.randrange(TOKENIZER.size) for _ in range(10)) for _ in range(32)]
    sampling = [SamplingParams(max_new_tokens=2 * (n + 1), seed=n) for n in range(32)]
    made = generate_batch(own, prompts, sampling, forward)
    seen = [as_ids(prompt + g.ids[:-1]) for prompt, g in zip(prompts, made, strict=True)]
    assert forward.work.tokens <= 1.12 * floor_tokens(seen)
