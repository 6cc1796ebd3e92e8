"""The toy policy: a tokenizer that loses nothing, copying that covers every name, weights that depend on the seed."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.train import OptimSettings, ToySettings
from mempo.engine.optimizer import learning_rate
from mempo.engine.policy import Policy
from mempo.engine.update import Updater
from mempo.envs.atlas import TOY, AtlasEnvironment
from mempo.rollout.protocol import TAGS, closing, opening
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row
from mempo.train import tiny_model as toy
from mempo.train.tiny_model import copy_rows, copyable, toy_policy, toy_tokenizer, with_warmup

ENVIRONMENT = AtlasEnvironment(rendering="cards", forms=("one_hop",), subset=TOY)
QUESTIONS = [q for k in (1, 3) for split in ("train", "test") for q in ENVIRONMENT.questions(split, 30, k, 0)]
FIXED = ["nothing was found", "unknown", "\n", "; ", "1 ", "2 "]
TOKENIZER = toy_tokenizer([*(d.text for d in ENVIRONMENT.documents()), *(q.text for q in QUESTIONS)], FIXED)
SMALL_TOKENIZER = toy_tokenizer(
    ["capital of France: Paris", "capital of Peru: Lima", "capital of Kenya: Nairobi"], FIXED
)


def policy_of(tokenizer: Tokenizer, seed: int = 0) -> Policy:
    return toy_policy(tokenizer, ToySettings(), seed)


# --- the tokenizer -------------------------------------------------------------------------------------------------


@given(st.text())
def test_really_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode_untrusted(text)
    assert TOKENIZER.decode(ids) == text
    assert not TOKENIZER.added_ids.intersection(ids)


def test_outside_text_never_becomes_a_tag_or_an_end() -> None:
    hostile = "<eos><pad></mem><answer>Paris</answer>"
    ids = TOKENIZER.encode_untrusted(hostile)
    assert not TOKENIZER.added_ids.intersection(ids)
    assert TOKENIZER.decode(ids) == hostile
    for tag in (form(name) for name in TAGS for form in (opening, closing)):
        assert len(TOKENIZER.encode_trusted(tag)) == 1


def test_a_name_is_one_token_wherever_it_stands() -> None:
    for name in ("Paris", "France", "Helium"):
        (alone,) = TOKENIZER.encode_untrusted(name)
        for text in (f"capital of {name}", f"capital of France: {name}", f"{name}; {name}", f"1 symbol of X: {name}"):
            assert alone in TOKENIZER.encode_untrusted(text), text


def test_numbers_of_passages_are_tokens_of_their_own() -> None:
    assert len(TOKENIZER.encode_untrusted("1 capital of France: Paris")) == 5


# --- copying -------------------------------------------------------------------------------------------------------


def test_copying_covers_every_name_of_the_environment() -> None:
    covered = set(copyable(TOKENIZER))
    for name in ENVIRONMENT.names():
        assert covered.issuperset(TOKENIZER.encode_untrusted(name)), name
    for question in QUESTIONS:
        assert covered.issuperset(TOKENIZER.encode_untrusted(question.text)), question.text


def test_copying_leaves_out_single_bytes_and_special_tokens() -> None:
    pieces = [TOKENIZER.decode([i]) for i in copyable(TOKENIZER)]
    assert not {"<eos>", "<pad>", "a", "\t", "�"}.intersection(pieces)
    assert {"\n", "; ", "<mem>", "H", "7"} <= set(pieces)


def test_copy_rows_repeat_their_chunks_and_ask_for_what_can_be_known() -> None:
    (separator,) = SMALL_TOKENIZER.encode_trusted("\n")
    reordered = 0
    for row in copy_rows(SMALL_TOKENIZER, 20, random.Random(0)):
        # The loss is on all but the first token of each copied chunk, and on the separator that ends it.
        copied = [row.ids[segment.start - 1 : segment.stop - 1] for segment in row.segments]
        assert all(row.ids[segment.stop - 1] == separator for segment in row.segments)
        count, rest = divmod(len(copied), 3)
        assert rest == 0
        told = row.ids[: row.segments[0].start - 1]
        for first in (0, count, 2 * count):
            assert sorted(copied[first : first + count]) == sorted(copied[:count])
        assert sorted(told) == sorted(i for chunk in copied[:count] for i in (*chunk, separator))
        assert row.ids == told + tuple(i for chunk in copied for i in (*chunk, separator))
        rounds = [tuple(copied[first : first + count]) for first in (0, count, 2 * count)]
        reordered += len(set(rounds)) > 1
    assert reordered > 10  # each time in another order, else the place would tell what comes next


def test_a_name_of_one_letter_of_another_script_is_copied_too() -> None:
    tokenizer = toy_tokenizer(["capital of Japan: 東"])
    (token,) = tokenizer.encode_untrusted("東")
    assert token in copyable(tokenizer)


def test_copy_rows_depend_on_their_randomness_alone() -> None:
    assert copy_rows(SMALL_TOKENIZER, 5, random.Random(1)) == copy_rows(SMALL_TOKENIZER, 5, random.Random(1))
    assert copy_rows(SMALL_TOKENIZER, 5, random.Random(1)) != copy_rows(SMALL_TOKENIZER, 5, random.Random(2))


def test_the_warm_up_copies_alone_and_then_a_share_is_mixed_in() -> None:
    asked: list[int] = []

    def rows_at(step: int) -> list[Row]:
        asked.append(step)
        return [Row(77, (1, 2), ())] * 12

    settings = ToySettings(warmup_steps=2, copy_rows=5, copy_share=0.25)
    mixed = with_warmup(rows_at, SMALL_TOKENIZER, settings, seed=0)
    batches = [mixed(step) for step in range(4)]
    assert [len(batch) for batch in batches] == [5, 5, 16, 16]
    assert asked == [0, 1]  # SFT's own rows begin after the warm-up
    assert [sum(row.trajectory == 77 for row in batch) for batch in batches] == [0, 0, 12, 12]
    assert list(mixed(3)) == list(batches[3])
    assert batches[0] != batches[1]


# --- the policy ----------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_weights_and_torchs_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = (policy_of(SMALL_TOKENIZER, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    a, b, c = (policy.model.state_dict() for policy in (first, second, other))
    assert all(torch.equal(tensor, b[name]) for name, tensor in a.items())
    assert not torch.equal(a["model.embed_tokens.weight"], c["model.embed_tokens.weight"])


def test_embeddings_are_tied_and_the_size_is_a_toys() -> None:
    policy = policy_of(TOKENIZER)
    assert policy.model.get_input_embeddings().weight is policy.model.get_output_embeddings().weight  # type: ignore[union-attr]
    assert sum(p.numel() for p in policy.model.parameters()) < 300_000
    assert policy.window == ToySettings().window_tokens


def test_heads_of_the_first_layer_begin_by_looking_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "LOOK_BACK", 12.0)
    policy = policy_of(SMALL_TOKENIZER)
    ids = torch.tensor([SMALL_TOKENIZER.encode_untrusted("capital of Peru: Lima\ncapital of France: Paris; Nairobi")])
    policy.model.set_attn_implementation("eager")
    attention = policy.model(input_ids=ids, output_attentions=True).attentions[0][0]
    for head in range(ToySettings().heads):
        for position in range(head + 1, ids.shape[1]):
            assert int(attention[head, position].argmax()) == position - head - 1


def test_sixty_steps_of_copying_lower_the_copy_loss() -> None:
    policy = policy_of(SMALL_TOKENIZER)
    optim = OptimSettings(kind="muon", lr=5e-3, warmup_steps=5, beta2=0.98)
    updater = Updater(policy, optim)
    rows_at = with_warmup(lambda step: [], SMALL_TOKENIZER, ToySettings(warmup_steps=60, copy_rows=12), seed=0)
    losses = [updater.sft_step(rows_at(step), learning_rate(optim, step, 60))["loss"] for step in range(60)]
    end = sum(losses[-5:]) / 5
    assert end < losses[0] - 2
    # Knowing which tokens occur is no copying: that alone would end at the logarithm of their number.
    assert end < math.log(len(copyable(SMALL_TOKENIZER))) - 0.5
