"""Rows that begin alike: grouped so that their prefix is computed once, and the gradient is that of whole rows."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mempo.engine.update
from mempo.config.engine import LoraSettings
from mempo.config.train import LossSettings
from mempo.engine.lora import add_lora
from mempo.engine.micro_batches import SharedBatch, shared_batches
from mempo.engine.policy import Policy
from mempo.engine.training_cache import backbone_hidden, hidden_behind, shares_exactly
from mempo.engine.update import TrainRow, Updater
from mempo.rollout.trajectory import Row, Segment
from tests.engine.test_update import LR, assert_same_weights, optim, rl_gradient
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
SHARING = ["llama", "qwen2", "gpt_neox", "gpt2"]


def rows_of_questions(questions: int = 2, rows: int = 4, prompt: int = 40) -> list[TrainRow]:
    """Each question has its own prompt; the rows of one differ behind it."""
    made = []
    for question in range(questions):
        rng = random.Random(question)
        start = tuple(rng.randrange(TOKENIZER.size) for _ in range(prompt))
        for n in range(rows):
            new = tuple(rng.randrange(TOKENIZER.size) for _ in range(4 + n))
            row = Row(question * rows + n, start + new, (Segment(0, prompt, prompt + len(new)),))
            values = [rng.uniform(-2, 2) for _ in row.ids]
            made.append(TrainRow(row, values, [-rng.uniform(4, 7) for _ in row.ids]))
    return made


# --- the plan ------------------------------------------------------------------------------------------------------


def test_rows_of_one_question_bring_their_prompt_once() -> None:
    ids = [(*range(30), n, n) for n in range(100, 105)]
    assert shared_batches(ids, [29] * 5, 1000, share=True) == [SharedBatch((0, 1, 2, 3, 4), 29, 32)]
    assert shared_batches(ids, [29] * 5, 1000, share=True)[0].tokens == 29 + 5 * 3
    assert shared_batches(ids, [29] * 5, 1000, share=False)[0].tokens == 5 * 32


def test_questions_go_apart_where_that_is_cheaper() -> None:
    long, other = tuple(range(200)), tuple(range(300, 500))
    ids = [(*prompt, n) for n in range(4) for prompt in (long, other)]
    batches = shared_batches(ids, [200] * 8, 10_000, share=True)
    assert sorted((sorted(b.rows), b.prefix) for b in batches) == [([0, 2, 4, 6], 200), ([1, 3, 5, 7], 200)]
    # With little to share, one more pass is not worth it: all eight in one rectangle.
    few = [(*prompt[:6], n) for n in range(4) for prompt in (long, other)]
    assert [(len(b.rows), b.prefix) for b in shared_batches(few, [6] * 8, 10_000, share=True)] == [(8, 0)]


def test_a_later_turn_belongs_to_the_question_it_begins_with() -> None:
    question, other = tuple(range(100)), tuple(range(200, 300))
    ids = [(*question, 7), (*question, 1, 2, 3, 8), (*question, 1, 9, 9, 9, 9), (*other, 7), (*other, 5, 5)]
    batches = shared_batches(ids, [100, 103, 104, 100, 101], 10_000, share=True)
    assert sorted((sorted(b.rows), b.prefix) for b in batches) == [([0, 1, 2], 100), ([3, 4], 100)]


def test_rows_share_what_they_have_in_common_though_none_is_all_of_it() -> None:
    # Turns of two questions under one system prompt of 40 tokens; what tells the questions apart is 60 more.
    system, questions = tuple(range(40)), [tuple(range(100, 160)), tuple(range(200, 260))]
    ids = [(*system, *question, 300 + n, 7, 7) for question in questions for n in range(6)]
    batches = shared_batches(ids, [102] * 12, 10_000, share=True)
    assert sorted((sorted(b.rows), b.prefix) for b in batches) == [(list(range(6)), 100), (list(range(6, 12)), 100)]
    # Where a pass is dear, all go together and share the system prompt.
    dear = shared_batches(ids, [102] * 12, 10_000, share=True, pass_tokens=400)
    assert [(sorted(b.rows), b.prefix) for b in dear] == [(list(range(12)), 40)]
    # One row of each: the system prompt is all there is to share.
    assert [(sorted(b.rows), b.prefix) for b in shared_batches(ids[::6], [102] * 2, 10_000, share=True)] == [
        ([0, 1], 0)
    ]
    many = [(*system, 300 + n, 7, 7) for n in range(8)]
    assert [(len(b.rows), b.prefix) for b in shared_batches(many, [41] * 8, 10_000, share=True)] == [(8, 40)]


def test_a_long_chain_of_extensions_ends() -> None:
    ids = [tuple(range(n)) for n in range(1, 400)]
    batches = shared_batches(ids, [len(row) - 1 for row in ids], 100_000, share=True)
    assert sum(len(b.rows) for b in batches) == 399


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(1, 150),
    st.booleans(),
)
def test_whatever_the_rows(shapes: list[tuple[int, int, int]], budget: int, share: bool) -> None:
    ids = [(*([question] * prompt), *range(50, 50 + new)) for question, prompt, new in shapes]
    prompts = [prompt for _, prompt, _ in shapes]
    batches = shared_batches(ids, prompts, budget, share)
    assert sorted(i for b in batches for i in b.rows) == list(range(len(ids)))
    for batch in batches:
        assert len({ids[i][: batch.prefix] for i in batch.rows}) == 1
        assert batch.prefix <= min(prompts[i] for i in batch.rows)
        assert batch.longest == max(len(ids[i]) for i in batch.rows)
        assert batch.tokens <= budget or len(batch.rows) == 1
        assert len(batch.rows) > 1 or batch.prefix == 0


# --- the same result -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SHARING)
def test_hidden_states_behind_a_prefix_are_those_of_whole_rows(family: str) -> None:
    model = tiny_model(family, TOKENIZER).model
    assert shares_exactly(model)
    prefix, tails = torch.arange(5, 17)[None], torch.randint(TOKENIZER.size, (3, 6))
    whole = backbone_hidden(model, torch.cat([prefix.expand(3, -1), tails], 1))[:, 12:]
    torch.testing.assert_close(hidden_behind(model, prefix, tails), whole, rtol=0, atol=1e-5)


def test_a_model_with_sliding_windows_does_not_share() -> None:
    policy = tiny_model("gemma2", TOKENIZER)
    assert not shares_exactly(policy.model)
    metrics = Updater(policy, optim()).rl_step(rows_of_questions(), LR)
    assert metrics["update/prefix_share"] == 0


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize("budget", [100_000, 60, 1])
def test_the_gradient_is_that_of_whole_rows(family: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, loss = rows_of_questions(), LossSettings(kl="k3", kl_coef=0.1)
    policy, reference = tiny_model(family, TOKENIZER), tiny_model(family, TOKENIZER, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(mempo.engine.update, "shares_exactly", lambda model: False)
        expected = rl_gradient(rows, policy, monkeypatch, 1, loss, reference)
    ours = rl_gradient(rows, policy, monkeypatch, budget, loss, reference)
    assert float(expected.norm()) > 1e-2
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-6 * float(expected.abs().max().clamp(min=1)))


def step(policy: Policy) -> dict[str, float]:
    return Updater(policy, optim()).rl_step(rows_of_questions(questions=1), LR)


def test_it_goes_together_with_checkpointing_adapters_and_autocast() -> None:
    def adapted() -> Policy:
        return add_lora(tiny_llama(TOKENIZER), LoraSettings(rank=4), 0, "../base")

    for make in (lambda: tiny_llama(TOKENIZER), adapted):
        kept, again = make(), make()
        again.checkpointing = True
        assert step(kept) == pytest.approx(step(again), abs=1e-6)
        assert_same_weights(kept, again)
    rounded = tiny_llama(TOKENIZER)
    rounded.autocast = torch.bfloat16
    assert step(rounded)["update/loss"] == pytest.approx(step(tiny_llama(TOKENIZER))["update/loss"], rel=0.05)


def test_the_prefix_goes_through_the_model_once() -> None:
    fed: list[tuple[int, ...]] = []
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim())
    policy.model.get_input_embeddings().register_forward_hook(lambda m, inputs, output: fed.append(inputs[0].shape))
    metrics = updater.rl_step(rows_of_questions(questions=1), LR)
    # Prompts of 40, of which the last predicts; rows of 44 to 47, of which the last is only predicted.
    assert fed == [(1, 39), (4, 7)]
    assert metrics["update/prefix_share"] == pytest.approx(3 * 39 / (43 + 44 + 45 + 46))
    assert metrics["update/padding_share"] == pytest.approx((1 + 2 + 3) / (39 + 4 * 7))
