"""Log-probs of given continuations: the fast way equals the naive one, whatever the order, batch and model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mempo.engine.padding import micro_batches
from mempo.engine.scoring import LocalScorer, score_naive
from mempo.interfaces import ScoreRequest
from tests.tiny import make_codec, tiny_llama, tiny_model

CODEC = make_codec()


def requests(count: int = 9, seed: int = 0) -> list[ScoreRequest]:
    rng = random.Random(seed)
    made = []
    for n in range(count):
        prefix = tuple(rng.randrange(CODEC.size) for _ in range(rng.randint(1, 12)))
        continuation = tuple(rng.randrange(CODEC.size) for _ in range(rng.randint(1, 9)))
        which = None if n % 2 else tuple(sorted(rng.sample(range(len(continuation)), k=(len(continuation) + 1) // 2)))
        made.append(ScoreRequest(prefix, continuation, which))
    return made


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2", "gemma2"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_the_naive_ones(family: str, temperature: float) -> None:
    policy, asked = tiny_model(family, CODEC), requests()
    fast = LocalScorer(policy).score(asked, temperature)
    for ours, naive, request in zip(fast, score_naive(policy, asked, temperature), asked, strict=True):
        assert ours.dtype == np.float64
        assert len(ours) == len(request.continuation_ids if request.which is None else request.which)
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-4)


def test_the_naive_scores_are_those_of_the_definition() -> None:
    policy = tiny_llama(CODEC)
    (scored,) = score_naive(policy, [ScoreRequest((5, 6), (7, 8), None)])
    with torch.no_grad():
        first = torch.log_softmax(policy.model(input_ids=torch.tensor([[5, 6]])).logits[0, -1], -1)[7]
        second = torch.log_softmax(policy.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1], -1)[8]
    np.testing.assert_allclose(scored, [float(first), float(second)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 20, 40, 100_000])
def test_neither_order_nor_budget_changes_a_score(budget: int) -> None:
    policy, asked = tiny_llama(CODEC), requests()
    expected = LocalScorer(policy).score(asked)
    order = list(range(len(asked)))
    random.Random(1).shuffle(order)
    found = LocalScorer(policy, budget).score([asked[i] for i in order])
    for place, i in enumerate(order):
        np.testing.assert_allclose(found[place], expected[i], rtol=0, atol=1e-5)


def test_equal_requests_are_computed_once_and_answered_each(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(CODEC)
    request, other = ScoreRequest((5,), (6, 7)), ScoreRequest((5,), (6, 8))
    widths: list[int] = []

    def spy(lengths: list[int], budget: int) -> list[list[int]]:
        widths.extend(lengths)
        return micro_batches(lengths, budget)

    monkeypatch.setattr("mempo.engine.scoring.micro_batches", spy)
    found = LocalScorer(policy).score([request, other, request])
    assert len(widths) == 2
    np.testing.assert_array_equal(found[0], found[2])
    assert found[0][1] != found[1][1]


def test_nothing_asked_nothing_scored() -> None:
    scorer = LocalScorer(tiny_llama(CODEC))
    assert scorer.score([]) == []
    empty, none, some = scorer.score([ScoreRequest((5,), ()), ScoreRequest((5,), (6,), ()), ScoreRequest((5,), (6,))])
    assert (len(empty), len(none), len(some)) == (0, 0, 1)


def test_a_request_without_a_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one prefix token"):
        ScoreRequest((), (5,))


def test_padding_like_tokens_are_scored_like_any_other() -> None:
    policy = tiny_llama(CODEC)
    eos = CODEC.eos_id
    asked = [ScoreRequest((eos, eos), (eos, 5, eos)), ScoreRequest((5,) * 9, (0,) * 6)]
    for ours, naive in zip(LocalScorer(policy).score(asked), score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-5)


def test_scoring_leaves_no_gradient() -> None:
    policy = tiny_llama(CODEC)
    LocalScorer(policy).score(requests(2))
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_micro_batches_keep_to_their_budget_and_lose_nothing() -> None:
    lengths = [3, 9, 1, 9, 4, 0, 30, 2]
    for budget in (1, 9, 18, 40, 1000):
        parts = micro_batches(lengths, budget)
        assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
        for part in parts:
            assert len(part) == 1 or len(part) * max(lengths[i] for i in part) <= budget
    assert micro_batches([], 5) == []
