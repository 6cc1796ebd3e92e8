"""Every family gives log-probs of a whole pass, token by token too, or is refused; `docs/models.md` says so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mempo.engine.model import logprobs_at, wrap_policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer, score_naive
from mempo.errors import UserError
from mempo.rollout.interfaces import SamplingParams, ScoreRequest
from tests.engine.families import FAMILIES, family_model
from tests.tiny import make_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*cache that cannot be cut")

TOKENIZER = make_tokenizer()
PAGE = Path(__file__).parents[2] / "docs" / "models.md"
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [14, 15, 16], [20, 21, 22, 23, 24]]
LENGTHS = (12, 3, 7)
"""Rows end at different steps, so that rows leave the batch twice; longer than the windows of 8."""
LOOSE = {"nemotron_h": 1e-3, "zamba2": 5e-3}
"""transformers bounds the step size of their recurrence in whole passes and not in single steps."""


def documented() -> dict[str, tuple[str, str]]:
    """Families: the heading that they are listed under, and what stands beside them."""
    found = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        for family, said in re.findall(r"^\| `([^`]+)` \| (.+) \|$", part, re.MULTILINE):
            found[family] = part.splitlines()[0], said
    return found


def test_the_page_lists_the_families_that_are_tried() -> None:
    assert sorted(documented()) == sorted(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_agrees_with_whole_passes_or_is_refused(family: str) -> None:
    model, (heading, said) = family_model(family), documented()[family]
    if heading == "Refused":
        with pytest.raises(UserError, match=rf"\(model_type {family}\) cannot be sampled from in this process: fed"):
            wrap_policy(model, TOKENIZER)
        return
    policy = wrap_policy(model, TOKENIZER)
    forward = SharedForward(policy)
    assert said == model.config._attn_implementation
    assert heading == ("With shared prefixes" if forward.can_keep else "Without shared prefixes")
    sampling = [SamplingParams(n, temperature=1.0, seed=n) for n in LENGTHS]
    generations = generate_batch(policy, PROMPTS, sampling, forward)
    asked = [ScoreRequest(tuple(a), tuple(g.ids)) for a, g in zip(PROMPTS, generations, strict=True)]
    naive, tolerance = score_naive(policy, asked), LOOSE.get(family, 1e-5)
    for sampled, scored, wanted in zip(
        generations, LocalScorer(policy, forward=forward).score(asked), naive, strict=True
    ):
        np.testing.assert_allclose(sampled.logprobs, wanted, rtol=0, atol=tolerance)
        np.testing.assert_allclose(scored, wanted, rtol=0, atol=1e-5)
    # What the update computes, of right-padded rows.
    rows = [[*a, *g.ids] for a, g in zip(PROMPTS, generations, strict=True)]
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = torch.tensor(row)
    where = [(n, len(PROMPTS[n]) + k - 1, token) for n, g in enumerate(generations) for k, token in enumerate(g.ids)]
    picked, positions, targets = torch.tensor(where).unbind(1)
    ours, _ = logprobs_at(policy, padded, picked, positions, targets, torch.ones(len(where)))
    np.testing.assert_allclose(ours.detach(), np.concatenate(naive), rtol=0, atol=1e-5)


def test_a_cache_that_is_ignored_is_noticed_in_a_model_just_made() -> None:
    """Small weights make small logits, and the check must see through that."""
    model = family_model("llama", initializer_range=0.02)
    forward = type(model).forward

    def forgetful(self: object, *args: object, past_key_values: object = None, **keywords: object) -> object:
        return forward(self, *args, **keywords)  # type: ignore[arg-type]

    model.__class__ = type("Forgetful", (type(model),), {"forward": forgetful})
    with pytest.raises(UserError, match=r"Forgetful \(model_type llama\) .* fed token by token its logits are off by"):
        wrap_policy(model, TOKENIZER)


def test_a_change_of_precision_after_the_first_scoring_is_followed() -> None:
    policy = wrap_policy(family_model("llama"), TOKENIZER)
    scorer, asked = LocalScorer(policy), [ScoreRequest((5, 6, 7), (8, 9)), ScoreRequest((5, 6, 7, 11), (9,))]
    single = scorer.score(asked)
    policy.model.double()
    for before, after, wanted in zip(single, scorer.score(asked), score_naive(policy, asked), strict=True):
        np.testing.assert_allclose(after, wanted, rtol=0, atol=1e-6)
        np.testing.assert_allclose(before, wanted, rtol=0, atol=1e-4)
