"""Generation: log-probs are those of a plain forward, a sample does not depend on its neighbours, stops are exact."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sample_token import sample
from mempo.engine.sampler import generate_batch
from mempo.engine.stop import StopWatcher
from mempo.rollout.interfaces import Generation, SamplingParams
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop
from tests.tiny import FAMILIES, make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
PROMPTS = [(5, 6, 7), (8, 9, 10, 11, 12, 13, 14), (15,), (16, 17, 18, 19)]


def params(seed: int = 1, max_new_tokens: int = 12, **changes: object) -> SamplingParams:
    return SamplingParams(max_new_tokens, seed=seed, **changes)  # type: ignore[arg-type]


def plain_logprobs(policy: Policy, prompt: tuple[int, ...], ids: tuple[int, ...], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt + ids])).logits[0].double() / temperature
    logprobs = torch.log_softmax(logits, -1)
    return [float(logprobs[len(prompt) + k - 1, token]) for k, token in enumerate(ids)]


class Puppet:
    """Rows of a model whose next token is given: the same for all rows, one list a step."""

    takes_more = True

    def __init__(self, policy: Policy, tokens: list[int]) -> None:
        self.steps = 0
        self._tokens = tokens
        self._size = policy.model.config.vocab_size

    def begin(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        return self._logits(len(prompts))

    def step(self, tokens: torch.Tensor, active: torch.Tensor, longest: int) -> torch.Tensor:
        return self._logits(len(tokens))

    def keep(self, rows: Sequence[int]) -> None: ...

    def ended(self, row: int, ids: Sequence[int], prompt_tokens: int) -> None: ...

    def _logits(self, rows: int) -> torch.Tensor:
        logits = torch.zeros(rows, self._size)
        logits[:, self._tokens[min(self.steps, len(self._tokens) - 1)]] = 50.0
        self.steps += 1
        return logits


def puppet_says(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, ids: list[int], **changes: object) -> Generation:
    policy = tiny_llama(tokenizer)
    monkeypatch.setattr("mempo.engine.sampler.live_rows", lambda *_: Puppet(policy, ids))
    return generate_batch(policy, [(5, 6)], [params(**{"max_new_tokens": 30, **changes})])[0]  # type: ignore[arg-type]


# --- log-probs and neighbours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2", "gemma2"])
def test_logprobs_are_those_of_a_plain_forward(family: str) -> None:
    policy = tiny_model(family, TOKENIZER)
    temperatures = (1.0, 0.6, 1.5, 1.0)
    sampling = [params(n, temperature=t) for n, t in enumerate(temperatures)]
    found = generate_batch(policy, PROMPTS, sampling)
    for prompt, generation, temperature in zip(PROMPTS, found, temperatures, strict=True):
        plain = plain_logprobs(policy, prompt, generation.ids, temperature)
        np.testing.assert_allclose(generation.logprobs, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_sample_is_the_same_alone_and_in_a_batch(family: str) -> None:
    policy = tiny_model(family, TOKENIZER)
    sampling = [params(n, max_new_tokens=6 + 3 * n) for n in range(4)]
    together = generate_batch(policy, PROMPTS, sampling)
    for prompt, one, generation in zip(PROMPTS, sampling, together, strict=True):
        (alone,) = generate_batch(policy, [prompt], [one])
        assert alone.ids == generation.ids
        assert alone.stop is generation.stop
        np.testing.assert_allclose(alone.logprobs, generation.logprobs, rtol=0, atol=1e-5)


def test_noise_is_the_requests_own() -> None:
    policy = tiny_llama(TOKENIZER)
    same = generate_batch(policy, [PROMPTS[0]] * 2, [params(3), params(3)])
    assert same[0].ids == same[1].ids
    different = generate_batch(policy, [PROMPTS[0]] * 8, [params(n) for n in range(8)])
    assert len({g.ids for g in different}) > 1
    fresh = [SamplingParams(12, seed=None)] * 8
    assert len({g.ids for g in generate_batch(policy, [PROMPTS[0]] * 8, fresh)}) > 1


def test_torchs_own_generator_is_not_used() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    generate_batch(tiny_llama(TOKENIZER), PROMPTS[:1], [params()])
    torch.manual_seed(0)
    assert torch.equal(before, torch.get_rng_state())


def test_rows_that_have_ended_do_not_run_out_of_the_window() -> None:
    # Learned positions end with the window: a long prompt with a short turn must not be pushed over it by a neighbour.
    policy = tiny_model("gpt2", TOKENIZER, n_positions=16)
    long, short = tuple(range(5, 18)), (5,)
    sampling = [params(1, max_new_tokens=3), params(2, max_new_tokens=15)]
    together = generate_batch(policy, [long, short], sampling)
    assert [len(g.ids) for g in together] == [3, 15]
    for prompt, one, generation in zip((long, short), sampling, together, strict=True):
        assert generate_batch(policy, [prompt], [one])[0].ids == generation.ids


# --- rows that come and go, and what is kept ------------------------------------------------------------------------

FULL_FAMILIES = ["llama", "qwen2", "gpt_neox", "gpt2"]


def many(count: int = 14, seed: int = 0) -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    """Prompts of which some share a beginning and some are equal, of all lengths."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(5, 200) for _ in range(9))
    prompts = [
        (*shared[: rng.choice([0, 5, 9])], *(rng.randrange(5, 200) for _ in range(rng.randint(1, 6))))
        for _ in range(count - 3)
    ]
    prompts += [prompts[0]] * 3
    sampling = [
        params(n, max_new_tokens=rng.randint(1, 9), temperature=rng.choice([0, 1.0, 0.7])) for n in range(count)
    ]
    return prompts, sampling


def alone(policy: Policy, prompts: list[tuple[int, ...]], sampling: list[SamplingParams]) -> list[Generation]:
    return [generate_batch(policy, [p], [s])[0] for p, s in zip(prompts, sampling, strict=True)]


def assert_same(found: list[Generation], expected: list[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.ids, one.stop) == (other.ids, other.stop)
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", [*FULL_FAMILIES, "gemma2"])
@pytest.mark.parametrize("max_tokens", [1, 50, 100, 100_000])
@pytest.mark.parametrize("looks_late", [False, True])
def test_waiting_prompts_take_the_place_of_ended_rows(family: str, max_tokens: int, looks_late: bool) -> None:
    policy = tiny_model(family, TOKENIZER)
    prompts, sampling = many()
    found = generate_batch(policy, prompts, sampling, max_tokens=max_tokens, looks_late=looks_late)
    assert_same(found, alone(policy, prompts, sampling))


@pytest.mark.parametrize("family", [*FULL_FAMILIES, "gemma2"])
@pytest.mark.parametrize("steps", [1, 3])
def test_rows_behind_fill_the_gaps_of_those_that_ended_in_front(family: str, steps: int) -> None:
    policy = tiny_model(family, TOKENIZER)
    prompts = [tuple(range(5 + n, 14 + 2 * n)) for n in range(8)]
    sampling = [params(n, max_new_tokens=steps if n in (0, 1, 3, 6) else 9) for n in range(8)]
    assert_same(generate_batch(policy, prompts, sampling), alone(policy, prompts, sampling))


@pytest.mark.parametrize("family", FULL_FAMILIES)
def test_a_context_that_grows_is_not_forwarded_again(family: str) -> None:
    policy = tiny_model(family, TOKENIZER)
    forward = SharedForward(policy)
    prompts, sampling = many(6)
    found, before = [], 0
    for _ in range(3):
        before = forward.work.tokens
        found = generate_batch(policy, prompts, sampling, forward)
        assert_same(found, alone(policy, prompts, sampling))
        prompts = [(*prompt, *generation.ids, 9, 8) for prompt, generation in zip(prompts, found, strict=True)]
    # In the last turn a row read its last sampled token, which nobody had fed, and the two that followed.
    decoded = 6 * max(len(generation.ids) for generation in found)
    assert forward.work.tokens - before <= 3 * 6 + decoded


def test_equal_prompts_are_forwarded_once() -> None:
    policy = tiny_llama(TOKENIZER)
    forward = SharedForward(policy)
    assert forward.can_keep
    generate_batch(policy, [tuple(range(5, 45))] * 16, [params(n, max_new_tokens=1) for n in range(16)], forward)
    assert forward.work.tokens == 40


def test_other_weights_start_from_nothing() -> None:
    policy = tiny_llama(TOKENIZER)
    forward = SharedForward(policy)
    prompts, sampling = many(5)
    generate_batch(policy, prompts, sampling, forward)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.version += 1
    assert_same(generate_batch(policy, prompts, sampling, forward), alone(policy, prompts, sampling))


def test_a_small_budget_forgets_and_stays_right() -> None:
    policy = tiny_llama(TOKENIZER)
    forward = SharedForward(policy, kept_bytes=5_000)
    for seed in range(3):
        prompts, sampling = many(8, seed)
        assert_same(generate_batch(policy, prompts, sampling, forward), alone(policy, prompts, sampling))
    forward.kept.trim()
    assert forward.kept.bytes <= 5_000


# --- the distribution ----------------------------------------------------------------------------------------------


def sampled_tokens(count: int, **changes: object) -> tuple[Counter[int], torch.Tensor]:
    """First tokens of many samples of one prompt, and the distribution they come from."""
    policy = tiny_llama(TOKENIZER, initializer_range=0.5)
    prompt = (5, 6, 7)
    sampling = [params(n, max_new_tokens=1, **changes) for n in range(count)]
    found = Counter(g.ids[0] for g in generate_batch(policy, [prompt] * count, sampling))
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt])).logits[0, -1].double()
    temperature = changes.get("temperature", 1.0)
    assert isinstance(temperature, float)
    return found, torch.softmax(logits / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_distribution(temperature: float) -> None:
    count = 4000
    found, probs = sampled_tokens(count, temperature=temperature)
    for token in probs.topk(5).indices.tolist():
        expected = count * float(probs[token])
        assert abs(found[token] - expected) < 5 * math.sqrt(expected), token


def test_top_k_samples_the_likeliest_alone() -> None:
    found, probs = sampled_tokens(500, top_k=3)
    assert set(found) == set(probs.topk(3).indices.tolist())


def test_top_p_samples_the_smallest_set_that_reaches_it() -> None:
    found, probs = sampled_tokens(2000, top_p=0.5)
    ordered, order = probs.sort(descending=True)
    size = int((ordered.cumsum(0) < 0.5).sum()) + 1
    assert set(found) <= set(order[:size].tolist())
    assert order[size - 1].item() in found or ordered[size - 1] < 0.005
    found, probs = sampled_tokens(50, top_p=1e-9)
    assert set(found) == {int(probs.argmax())}, "the likeliest token always stays"


def test_filters_do_not_change_the_logprobs() -> None:
    policy = tiny_llama(TOKENIZER)
    (generation,) = generate_batch(policy, [PROMPTS[0]], [params(top_k=2, top_p=0.9)])
    plain = plain_logprobs(policy, PROMPTS[0], generation.ids, 1.0)
    np.testing.assert_allclose(generation.logprobs, plain, rtol=0, atol=1e-5)


def test_filters_are_the_requests_own() -> None:
    policy = tiny_llama(TOKENIZER)
    sampling = [params(4), params(4, top_k=1), params(4, temperature=0)]
    free, top_one, greedy = generate_batch(policy, [PROMPTS[0]] * 3, sampling)
    assert top_one.ids == greedy.ids
    assert free.ids == generate_batch(policy, [PROMPTS[0]], [params(4)])[0].ids
    assert free.ids != greedy.ids


def test_greedy_takes_the_likeliest_and_reports_logprobs_at_one() -> None:
    policy = tiny_llama(TOKENIZER)
    (generation,) = generate_batch(policy, [PROMPTS[1]], [params(temperature=0)])
    ids = list(PROMPTS[1])
    for token in generation.ids:
        with torch.no_grad():
            assert token == int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    np.testing.assert_allclose(
        generation.logprobs, plain_logprobs(policy, PROMPTS[1], generation.ids, 1.0), rtol=0, atol=1e-5
    )


# --- stops ---------------------------------------------------------------------------------------------------------


def test_length_stops_each_row_at_its_own_limit() -> None:
    sampling = [params(n, max_new_tokens=n + 1) for n in range(4)]
    found = generate_batch(tiny_llama(TOKENIZER), PROMPTS, sampling)
    for n, generation in enumerate(found):
        assert len(generation.ids) == n + 1 or generation.stop is GenerationStop.EOS


def test_end_of_sequence_is_kept_with_its_logprob(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = puppet_says(monkeypatch, TOKENIZER, [5, 6, TOKENIZER.eos_id, 7])
    assert generation.ids == (5, 6, TOKENIZER.eos_id)
    assert len(generation.logprobs) == 3
    assert generation.stop is GenerationStop.EOS


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "word_level"])
@pytest.mark.parametrize("tags", ["none", "added", "special"])
def test_a_stop_string_is_found_across_token_boundaries(
    family: str, tags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer(family, tags)
    wanted = list(tokenizer.encode_trusted("<search>Paris</search>"))
    generation = puppet_says(monkeypatch, tokenizer, [*wanted, *tokenizer.encode_trusted(" and")], stop=("</search>",))
    assert generation.stop is GenerationStop.STOP_STRING
    assert list(generation.ids) == wanted
    assert len(generation.logprobs) == len(wanted)


def test_a_stop_string_sampled_letter_by_letter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [i for letter in "q</answer>" for i in TOKENIZER.encode_trusted(letter)]
    generation = puppet_says(monkeypatch, TOKENIZER, [*ids, 5, 6], stop=("</search>", "</answer>"))
    assert (list(generation.ids), generation.stop) == (ids, GenerationStop.STOP_STRING)


def test_a_token_that_straddles_the_end_of_the_stop_string_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    straddling = TOKENIZER.encode_trusted("</mem><think>")
    assert TOKENIZER.decode(straddling[2:3]) == "><"
    generation = puppet_says(monkeypatch, TOKENIZER, list(straddling), stop=("</mem>",))
    assert generation.ids == straddling[:3]
    assert TOKENIZER.decode(generation.ids) == "</mem><"


def test_tokens_that_begin_after_the_stop_string_lose_ids_and_logprobs_alike() -> None:
    watcher = StopWatcher(TOKENIZER, params(stop=("</search>",)))
    ids = TOKENIZER.encode_trusted("<search>q</search>")
    for k, token in enumerate(ids[:-1]):
        watcher.add(token, -0.1 * k)
    assert watcher.stop is None
    # The end is noticed late: nobody asked while two more tokens came.
    watcher._ids += [ids[-1], 5, 6]
    watcher._logprobs += [-1.0, -2.0, -3.0]
    watcher._drop_beyond()
    generation = watcher.generation()
    assert generation.ids == ids
    assert len(generation.logprobs) == len(ids)


@pytest.mark.parametrize("stop", ["é", "東京", "🙂"])
def test_a_stop_string_that_ends_inside_a_letter_of_several_tokens_is_found(
    stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = list(TOKENIZER.encode_untrusted("x" + stop))
    generation = puppet_says(monkeypatch, TOKENIZER, [*ids, 5, 6], stop=(stop,))
    assert (list(generation.ids), generation.stop) == (ids, GenerationStop.STOP_STRING)


def test_a_stop_string_in_the_prompt_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    monkeypatch.setattr("mempo.engine.sampler.live_rows", lambda *_: Puppet(policy, [5]))
    prompt = TOKENIZER.encode_trusted("<search>q</search>")
    (generation,) = generate_batch(policy, [prompt], [params(max_new_tokens=4, stop=("</search>",))])
    assert (len(generation.ids), generation.stop) == (4, GenerationStop.LENGTH)


def test_a_stop_string_at_the_limit_is_a_stop_string(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(TOKENIZER.encode_trusted("q</search>"))
    generation = puppet_says(monkeypatch, TOKENIZER, ids, max_new_tokens=len(ids), stop=("</search>",))
    assert generation.stop is GenerationStop.STOP_STRING


def test_generation_ends_when_every_row_has(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    puppet = Puppet(policy, [5, TOKENIZER.eos_id])
    monkeypatch.setattr("mempo.engine.sampler.live_rows", lambda *_: puppet)
    generate_batch(policy, PROMPTS, [params(max_new_tokens=1000)] * 4)
    assert puppet.steps == 2


# --- choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [3, 256, 257, 1500])
def test_a_sample_is_where_the_running_sum_passes_the_noise(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = 4 * torch.randn(64, vocabulary, generator=generator)
    logits[:, ::3] = -math.inf
    logits[0, 1:] = -math.inf
    logits[0, 0] = 0.0
    logprobs = torch.log_softmax(logits, -1)
    uniform = torch.rand(64, dtype=torch.float64, generator=generator)
    uniform[1], uniform[2] = 0.0, math.nextafter(1.0, 0.0)
    found = sample(logprobs, uniform, [params()] * 64).tolist()
    for row in range(64):
        total, at = math.fsum(logprobs[row].exp().tolist()), 0.0
        probs = logprobs[row].exp().tolist()
        token = p = 0
        for token, p in enumerate(probs):  # noqa: B007
            if p and at + p > uniform[row] * total - 1e-12:
                break
            at += p
        at_most_one_on = [token, *(n for n in range(token + 1, vocabulary) if probs[n])][:2]
        assert found[row] in at_most_one_on[: 1 + (abs(at + p - uniform[row] * total) < 1e-12)]


def test_memory_that_was_never_written_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of very different lengths, so that the short ones have columns behind their end."""
    policy, empty = tiny_llama(TOKENIZER), torch.empty
    prompts = [(5, 6), tuple(range(5, 95)), (7,)]
    expected = generate_batch(policy, prompts, [params(n, 70 + n) for n in range(3)])

    def spoiled(*size: object, **keywords: object) -> torch.Tensor:
        made = empty(*size, **keywords)  # type: ignore[call-overload]
        return made.fill_(math.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", spoiled)
    assert generate_batch(policy, prompts, [params(n, 70 + n) for n in range(3)]) == expected
