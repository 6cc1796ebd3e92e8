"""Log-probs of given continuations: the fast way equals the naive one, whatever the order, batch and model."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from naive import floor_tokens

from mempo.engine.padding import micro_batches
from mempo.engine.prefix_cache import as_ids
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer, score_naive, wanted
from mempo.rollout.interfaces import SamplingParams, ScoreRequest
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()


def requests(count: int = 9, seed: int = 0) -> list[ScoreRequest]:
    rng = random.Random(seed)
    made = []
    for n in range(count):
        prefix = tuple(rng.randrange(TOKENIZER.size) for _ in range(rng.randint(1, 12)))
        continuation = tuple(rng.randrange(TOKENIZER.size) for _ in range(rng.randint(1, 9)))
        which = None if n % 2 else tuple(sorted(rng.sample(range(len(continuation)), k=(len(continuation) + 1) // 2)))
        made.append(ScoreRequest(prefix, continuation, which))
    return made


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2", "gemma2"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_the_naive_ones(family: str, temperature: float) -> None:
    policy, asked = tiny_model(family, TOKENIZER), requests()
    fast = LocalScorer(policy).score(asked, temperature)
    for ours, naive, request in zip(fast, score_naive(policy, asked, temperature), asked, strict=True):
        assert ours.dtype == np.float64
        assert len(ours) == len(request.continuation_ids if request.which is None else request.which)
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-4)


def test_the_naive_scores_are_those_of_the_definition() -> None:
    policy = tiny_llama(TOKENIZER)
    (scored,) = score_naive(policy, [ScoreRequest((5, 6), (7, 8), None)])
    with torch.no_grad():
        first = torch.log_softmax(policy.model(input_ids=torch.tensor([[5, 6]])).logits[0, -1], -1)[7]
        second = torch.log_softmax(policy.model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1], -1)[8]
    np.testing.assert_allclose(scored, [float(first), float(second)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("budget", [1, 20, 40, 100_000])
def test_neither_order_nor_budget_changes_a_score(budget: int) -> None:
    policy, asked = tiny_llama(TOKENIZER), requests()
    expected = LocalScorer(policy).score(asked)
    order = list(range(len(asked)))
    random.Random(1).shuffle(order)
    found = LocalScorer(policy, budget).score([asked[i] for i in order])
    for place, i in enumerate(order):
        np.testing.assert_allclose(found[place], expected[i], rtol=0, atol=1e-5)


def test_equal_requests_are_computed_once_and_answered_each() -> None:
    request, other = ScoreRequest((5,), (6, 7)), ScoreRequest((5,), (6, 8))
    scorer = LocalScorer(tiny_llama(TOKENIZER))
    found = scorer.score([request, other, request])
    assert scorer.forward.work.tokens == 2  # (5, 6) predicts all that is asked
    np.testing.assert_array_equal(found[0], found[2])
    assert found[0][1] != found[1][1]


def test_nothing_asked_nothing_scored() -> None:
    scorer = LocalScorer(tiny_llama(TOKENIZER))
    assert scorer.score([]) == []
    empty, none, some = scorer.score([ScoreRequest((5,), ()), ScoreRequest((5,), (6,), ()), ScoreRequest((5,), (6,))])
    assert (len(empty), len(none), len(some)) == (0, 0, 1)


def test_a_request_without_a_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one prefix token"):
        ScoreRequest((), (5,))


def test_padding_like_tokens_are_scored_like_any_other() -> None:
    policy = tiny_llama(TOKENIZER)
    eos = TOKENIZER.eos_id
    asked = [ScoreRequest((eos, eos), (eos, 5, eos)), ScoreRequest((5,) * 9, (0,) * 6)]
    for ours, naive in zip(LocalScorer(policy).score(asked), score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-5)


def test_scoring_leaves_no_gradient() -> None:
    policy = tiny_llama(TOKENIZER)
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


# --- shared prefixes -----------------------------------------------------------------------------------------------

SHAPES = {
    "full": ("full", "none"),
    "full_visible": ("full", "full"),
    "memory": ("memory", "none"),
    "memory_visible": ("memory", "visible"),
    "memory_full": ("memory", "full"),
}
FAMILIES = ["llama", "qwen2", "qwen3", "gpt_neox", "gpt2", "gemma2", "gemma", "mistral_sliding"]


def ids(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(rng.randrange(5, TOKENIZER.size) for _ in range(rng.randint(low, high)))


def signal_requests(context: str, baseline: str, seed: int = 0) -> list[ScoreRequest]:
    """What logp_old and the memory signal ask about three rollouts of each of two questions."""
    rng = random.Random(seed)
    probe, made = ids(rng, 6, 6), []
    for _ in range(2):
        question = ids(rng, 5, 20)
        for _ in range(3):
            history, prompt = question, question
            for turn in range(rng.randint(1, 4)):
                note = ids(rng, 2, 8) if turn else ()
                own = note + ids(rng, 2, 9)
                made.append(ScoreRequest(prompt, own))
                if turn:
                    made.append(ScoreRequest(question + note, probe, (4, 5)))
                    if baseline != "none":
                        made.append(ScoreRequest(history if baseline == "full" else prompt, probe, (4, 5)))
                seen = ids(rng, 3, 30)
                history = history + own + seen
                prompt = history if context == "full" else question + note + own[-2:] + seen
    return made


@pytest.mark.filterwarnings("ignore:.*sliding windows")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_signal_equals_the_naive_one(family: str, shape: str) -> None:
    policy = tiny_model(family, TOKENIZER)
    asked = signal_requests(*SHAPES[shape])
    found = LocalScorer(policy, budget_tokens=200).score(asked)
    for ours, naive in zip(found, score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-4)


def counted(context: str, baseline: str, kept: bool = False) -> tuple[int, int]:
    """Tokens forwarded for the signal, and the fewest that any way must forward."""
    policy = tiny_llama(TOKENIZER, hidden_size=256)  # wide enough that sharing pays
    asked = signal_requests(context, baseline)
    scorer = LocalScorer(policy)
    scorer.score(asked)
    sequences = [as_ids((r.prefix_ids + r.continuation_ids)[: len(r.prefix_ids) + max(wanted(r))]) for r in asked]
    return scorer.forward.work.tokens, floor_tokens(sequences)


def test_scores_are_the_same_from_a_buffer_that_was_used_before_whoever_used_it() -> None:
    policy = tiny_llama(make_tokenizer())
    scorer, asked = LocalScorer(policy), [signal_requests("memory", "visible", seed) for seed in range(3)]
    with torch.inference_mode():
        scorer.score(asked[0])
    for some in (asked[1], asked[2], asked[0]):
        for ours, naive in zip(scorer.score(some), score_naive(policy, some), strict=True):
            np.testing.assert_allclose(ours, naive, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_little_more_is_forwarded_than_must_be(shape: str) -> None:
    tokens, floor = counted(*SHAPES[shape])
    assert floor <= tokens <= 1.1 * floor


def test_only_wanted_rows_go_through_the_head() -> None:
    policy = tiny_llama(TOKENIZER)
    asked = [ScoreRequest(tuple(range(5, 45)), (6, 7, 8, 9), (2, 3)), ScoreRequest(tuple(range(5, 45)), (6, 7), (0,))]
    scorer = LocalScorer(policy)
    scorer.score(asked)
    assert scorer.forward.work.head_rows == 3


def test_probes_ride_on_what_the_rollout_left() -> None:
    """In the memory context a note is the beginning of the next prompt, so its keys and values are there already."""
    policy = tiny_llama(TOKENIZER)
    forward = SharedForward(policy)
    question, note, rest, probe = (tuple(range(a, a + 20)) for a in (5, 40, 80, 120))
    prompts = [question, question + note + rest]
    generate_batch(policy, prompts, [SamplingParams(4, seed=n) for n in range(2)], forward)
    before = forward.work.tokens
    asked = [ScoreRequest(question + note, probe, (19,)), ScoreRequest(question + note + rest, probe, (19,))]
    found = LocalScorer(policy, forward=forward).score(asked)
    assert forward.work.tokens - before == 2 * 19  # the probes alone, less the token that is only predicted
    for ours, naive in zip(found, score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-4)


def test_scores_follow_the_weights() -> None:
    policy = tiny_llama(TOKENIZER)
    scorer, asked = LocalScorer(policy), signal_requests("memory", "full")
    scorer.score(asked)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.2)
    policy.version += 1
    for ours, naive in zip(scorer.score(asked), score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(ours, naive, rtol=0, atol=1e-4)


def test_a_model_whose_cache_cannot_be_cut_is_scored_the_plain_way_and_says_so_once() -> None:
    policy = tiny_model("gemma2", TOKENIZER)
    forward = SharedForward(policy)
    with pytest.warns(UserWarning, match="Gemma2ForCausalLM has sliding windows"):
        assert not forward.can_keep
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not forward.can_keep


def test_a_model_that_answers_otherwise_from_kept_keys_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo.engine.prefix_cache.Views.copy_into", lambda self, out: out.normal_())
    forward = SharedForward(tiny_llama(TOKENIZER))
    with pytest.warns(UserWarning, match="cannot be cut"):
        assert not forward.can_keep
