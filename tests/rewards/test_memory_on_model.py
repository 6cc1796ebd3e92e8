"""The memory reward of a real (tiny, random) model, against one plain forward per context."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mempo.config.rewards import MemorySettings, ProbeSettings
from mempo.engine.scorer import LocalScorer
from mempo.rewards import score_notes
from tests.rewards.build import question, trajectory, turn
from tests.tiny import FAMILIES, make_tokenizer, tiny_llama

THOUGHT = "so"
HEAD = f"\n<think>\n{THOUGHT}\n</think>\n<answer>\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_reward_of_a_model(family: str) -> None:
    tokenizer = make_tokenizer(family)
    policy = tiny_llama(tokenizer)
    words = tokenizer.encode_untrusted("the capital of France is Paris hello world Japan")
    rollout = trajectory(
        turn(0, own=words[:4], seen=words[2:9]),
        turn(1, own=words[1:8], note=(1, 4), forced=2, seen=words[:3]),
        turn(2, own=words[3:9], note=(0, 5)),
        answer="x",
    )
    settings = MemorySettings(baseline="full", probe=ProbeSettings(thought=THOUGHT))
    asked = question((("Paris",), ("Yen", "yen")))
    # The question's prompt, made up in other tests, must be ids of this tokenizer.
    rollout = replace(rollout, question_ids=words[:3])
    [notes] = score_notes([asked], [rollout], tokenizer, LocalScorer(policy), settings)

    encoded = tokenizer.encode_mixed([(HEAD + "Paris;Yen\n</answer>", True)])
    labels = "." * len(HEAD) + "ggggg.ggg" + "." * len("\n</answer>")

    def p(context: list[int]) -> float:
        ids = torch.tensor([context + list(encoded.ids)])
        with torch.no_grad():
            logp = torch.log_softmax(policy.model(input_ids=ids).logits[0].double(), -1)
        found = [
            logp[len(context) + k - 1, encoded.ids[k]].item()
            for k, (start, end) in enumerate(encoded.offsets)
            if "g" in labels[start:end]
        ]
        return math.exp(sum(found) / len(found))

    head = list(words[:3])
    before_1 = head + list(words[:4]) + list(words[2:9])
    before_2 = before_1 + list(words[1:8]) + list(words[:3])
    expected = [
        (1, p(head + list(words[2:5])), p(before_1)),
        (2, p(head + list(words[3:8])), p(before_2)),
    ]
    assert [(note.turn, note.p_mem, note.p_baseline) for note in notes] == [
        (t, pytest.approx(mem, rel=1e-4), pytest.approx(full, rel=1e-4)) for t, mem, full in expected
    ]
    assert [note.r for note in notes] == pytest.approx([mem - full for _, mem, full in expected], rel=1e-3, abs=1e-6)
    assert len({note.p_mem for note in notes} | {note.p_baseline for note in notes}) == 4
