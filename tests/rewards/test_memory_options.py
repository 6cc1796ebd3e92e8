"""The options of the memory signal, each by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mempo.config.rewards import MemorySettings, ProbeSettings
from mempo.rewards import Evidence, NoSignal, NoteScore, note_reward, score_notes
from mempo.rewards.note_contexts import (
    ahead_contexts,
    full_context,
    note_context,
    previous_note_context,
    visible_context,
)
from mempo.rewards.note_reward import threshold_bar
from mempo.rollout.trajectory import Trajectory
from tests.rewards.build import QUESTION_IDS, question, trajectory, turn
from tests.rewards.test_memory import FakeScorer, score, three_turns
from tests.rewards.test_probe import Chunks

Q1, Q2 = QUESTION_IDS


def reward(evidence: Evidence, **settings: Any) -> NoteScore:
    chosen = MemorySettings(**settings)
    return note_reward(evidence, chosen, threshold_bar([evidence], chosen))


def p(*logprobs: float) -> float:
    return math.exp(sum(logprobs) / len(logprobs))


# --- baselines -----------------------------------------------------------------------------------------------------


def rollout() -> Trajectory:
    """Four turns; the notes of turns 0, 1 and 3 were closed, and the policy saw a rewritten context."""
    return trajectory(
        turn(0, own=[1, 2, 3], note=(0, 2), seen=[10, 11]),
        turn(1, own=[4, 5, 6], note=(0, 1), seen=[12], prompt=[Q1, Q2, 1, 2, 10, 11]),
        turn(2, own=[7, 8], seen=[13, 14], prompt=[Q1, Q2, 4, 12]),
        turn(3, own=[9, 20, 21], note=(0, 2), forced=1, prompt=[Q1, Q2, 4, 13, 14]),
    )


def test_the_context_of_every_baseline() -> None:
    made = rollout()
    last = made.turns[3]
    assert note_context(made, last) == (Q1, Q2, 9, 20)
    assert full_context(made, last) == (Q1, Q2, 1, 2, 3, 10, 11, 4, 5, 6, 12, 7, 8, 13, 14)
    assert visible_context(made, last) == (Q1, Q2, 4, 13, 14)
    assert previous_note_context(made, last) == (Q1, Q2, 4)  # turn 2 closed none: the note of turn 1 is in force
    assert previous_note_context(made, made.turns[1]) == (Q1, Q2, 1, 2)  # the first note, never scored, was in force
    assert previous_note_context(trajectory(turn(0), turn(1, note=(0, 1))), turn(1, note=(0, 1))) == QUESTION_IDS


@pytest.mark.parametrize(
    ("baseline", "contexts"),
    [
        ("visible", [(Q1, Q2, 4), (Q1, Q2, 1, 2, 10, 11), (Q1, Q2, 9, 20), (Q1, Q2, 4, 13, 14)]),
        ("previous_note", [(Q1, Q2, 4), (Q1, Q2, 1, 2), (Q1, Q2, 9, 20), (Q1, Q2, 4)]),
    ],
)
def test_a_baseline_is_asked_for_and_subtracted(baseline: str, contexts: list[tuple[int, ...]]) -> None:
    values = {context: -0.1 * (n + 1) for n, context in enumerate(dict.fromkeys(contexts))}
    scorer = FakeScorer(lambda context, k: values[context])
    notes = score(rollout(), MemorySettings(baseline=baseline), scorer)  # type: ignore[arg-type]
    assert scorer.contexts == contexts
    expected = [math.exp(values[contexts[i]]) - math.exp(values[contexts[i + 1]]) for i in (0, 2)]
    assert [note.r for note in notes] == pytest.approx(expected)


def test_a_copied_note_earns_nothing_over_the_note_before() -> None:
    copied = trajectory(turn(0, own=[1, 2], note=(0, 1)), turn(1, own=[1, 3], note=(0, 1)))
    [note] = score(copied, MemorySettings(baseline="previous_note"))
    assert (note.r, note.p_mem) == (0.0, note.p_baseline)


def test_the_reference_answers_for_the_baseline_alone() -> None:
    actor, reference = FakeScorer(lambda context, k: -0.5), FakeScorer(lambda context, k: -2.0)
    settings = MemorySettings(baseline="full", full_policy="reference")
    [notes] = score_notes([question()], [three_turns()], Chunks(1), actor, settings, reference=reference)
    assert actor.contexts == [(Q1, Q2, 5, 6), (Q1, Q2, 8)]
    assert reference.contexts == [(Q1, Q2, 1, 2, 3, 10, 11), (Q1, Q2, 1, 2, 3, 10, 11, 4, 5, 6, 7, 12)]
    assert [note.r for note in notes] == pytest.approx([math.exp(-0.5) - math.exp(-2.0)] * 2)
    with pytest.raises(ValueError, match="no reference policy"):
        score_notes([question()], [three_turns()], Chunks(1), actor, settings)


# --- look ahead ----------------------------------------------------------------------------------------------------


def test_look_ahead_contexts_hold_the_note_and_the_results_that_follow() -> None:
    made = rollout()
    assert ahead_contexts(made, made.turns[1], 3) == [(Q1, Q2, 4, 12), (Q1, Q2, 4, 12, 13, 14)]  # turn 3 saw nothing
    assert ahead_contexts(made, made.turns[1], 1) == [(Q1, Q2, 4, 12)]
    assert ahead_contexts(made, made.turns[3], 2) == []


def test_look_ahead_by_hand() -> None:
    evidence = Evidence(1, np.array([-1.0]), ahead=[np.array([-0.5]), np.array([-0.2])])
    found = reward(evidence, lookahead={"k": 2, "gamma": 0.5})
    value = (math.exp(-1.0) + 0.5 * math.exp(-0.5) + 0.25 * math.exp(-0.2)) / 1.75
    assert found.p_mem == found.r == pytest.approx(value)
    assert found.p_mem_raw == pytest.approx(math.exp(-1.0))  # the note alone stands beside it
    assert found.p_ahead == pytest.approx((math.exp(-0.5), math.exp(-0.2)))


def test_look_ahead_asks_for_its_contexts_in_the_same_call() -> None:
    scorer = FakeScorer(lambda context, k: -0.1 * len(context))
    notes = score(rollout(), MemorySettings(lookahead={"k": 1, "gamma": 1.0}), scorer)  # type: ignore[arg-type]
    assert scorer.contexts == [(Q1, Q2, 4), (Q1, Q2, 4, 12), (Q1, Q2, 9, 20)]
    assert len(scorer.calls) == 1
    assert notes[0].r == pytest.approx((math.exp(-0.3) + math.exp(-0.4)) / 2)
    assert notes[1].r == pytest.approx(math.exp(-0.4))  # nothing follows: the note alone


# --- thresholds ----------------------------------------------------------------------------------------------------


def test_a_quantile_of_the_batch_is_the_threshold() -> None:
    first = Evidence(1, np.array([-4.0, -1.0]), np.array([-3.0, -2.0]))
    second = Evidence(1, np.array([-0.5]), np.array([math.nan]))
    settings = MemorySettings(baseline="full", threshold="independent", threshold_quantile=0.5)
    # Of -4 -3 -2 -1 the median is -2.5; a note that is not finite sets no bar.
    bar = threshold_bar([first, second], settings)
    assert bar == pytest.approx(-2.5)
    found = note_reward(first, settings, bar)
    assert (found.kept_mem, found.kept_baseline) == (1, 1)
    assert found.r == pytest.approx(math.exp(-1) - math.exp(-2))
    assert note_reward(second, settings, bar).reason == NoSignal.NAN


def test_the_quantile_is_taken_over_all_notes_of_the_batch() -> None:
    values = {(Q1, Q2, 5, 6): -1.0, (Q1, Q2, 8): -3.0}
    settings = MemorySettings(threshold="independent", threshold_quantile=0.5)
    notes = score(three_turns(), settings, FakeScorer(lambda context, k: values[context]))
    assert [(note.kept_mem, note.reason) for note in notes] == [(5, None), (0, "empty_choice")]


# --- rewards -------------------------------------------------------------------------------------------------------


def test_compression_by_hand() -> None:
    evidence = Evidence(1, np.array([-0.5]), np.array([-1.0]), note_tokens=20, history_tokens=100)
    found = reward(evidence, baseline="full", reward="compression", ratio_eps=0.1)
    assert found.r == pytest.approx(math.exp(-0.5) / (math.exp(-1.0) + 0.1) * 5)
    alone = Evidence(1, np.array([-0.5]), note_tokens=20, history_tokens=100)
    assert reward(alone, reward="compression").r == pytest.approx(math.exp(-0.5) * 5)


def test_compression_counts_the_whole_history() -> None:
    scorer = FakeScorer(lambda context, k: -1.0)
    notes = score(three_turns(), MemorySettings(reward="compression"), scorer)
    assert [note.r for note in notes] == pytest.approx([math.exp(-1) * 7 / 2, math.exp(-1) * 12 / 1])


@pytest.mark.parametrize("kind", ["difference", "log_ratio", "compression"])
def test_the_length_penalty_comes_off_every_reward(kind: str) -> None:
    evidence = Evidence(1, np.array([-0.5]), note_tokens=30, history_tokens=100)
    free = reward(evidence, reward=kind).r
    paid = reward(evidence, reward=kind, length_penalty=0.2, length_limit_tokens=60).r
    assert free is not None
    assert paid == pytest.approx(free - 0.2 * 30 / 60)


def test_a_length_penalty_without_a_limit_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs length_limit_tokens"):
        reward(Evidence(1, np.array([-0.5]), note_tokens=30), length_penalty=0.2)


# --- objectives ----------------------------------------------------------------------------------------------------


def test_objectives_averaged_weigh_each_objective_once() -> None:
    evidence = Evidence(1, np.array([-0.1, -2.0, -2.2, -2.4]), objectives=(0, 1, 1, 1))
    assert reward(evidence).r == pytest.approx(p(-0.1, -2.0, -2.2, -2.4))
    assert reward(evidence, probe={"objectives": "averaged"}).r == pytest.approx((p(-0.1) + p(-2.0, -2.2, -2.4)) / 2)


def test_every_gold_token_knows_its_objective() -> None:
    scorer = FakeScorer(lambda context, k: -0.1 if k % 2 else -0.9)
    asked = question((("ab",), ("cde", "alias")))
    made = trajectory(turn(0), turn(1, own=[5, 6], note=(0, 1)))
    settings = MemorySettings(probe={"objectives": "averaged"})  # type: ignore[arg-type]
    [note] = score(made, settings, scorer, asked)
    start = scorer.calls[0][0].which[0]  # type: ignore[index]
    values = {k: -0.1 if k % 2 else -0.9 for k in range(start, start + 6)}
    ab, cde = [values[start], values[start + 1]], [values[start + 3], values[start + 4], values[start + 5]]
    assert note.r == pytest.approx((p(*ab) + p(*cde)) / 2)
    assert note.gold_tokens == 5  # the joiner between them belongs to none


# --- presets -------------------------------------------------------------------------------------------------------


def test_the_preset_of_the_original_is_its_list_of_choices() -> None:
    s = MemorySettings(preset="original")
    assert (s.baseline, s.full_policy, s.reward) == ("full", "actor", "difference")
    assert (s.threshold, s.threshold_value, s.threshold_quantile, s.empty_is_one) == ("independent", 0.5, None, True)
    assert (s.pool, s.small_pool, s.normalize_std, s.weight, s.gate) == ("question", "original", True, 1.0, "always")
    assert (s.probe.joiner, s.probe.separators_are_gold, s.probe.objectives) == (";", True, "joined")
    assert (s.length_penalty, s.lookahead.k) == (0, 0)
    assert MemorySettings(**s.model_dump()) == s


def test_the_recommended_preset_is_the_default() -> None:
    assert MemorySettings() == MemorySettings(preset="recommended")
    s = MemorySettings()
    assert (s.baseline, s.pool, s.threshold, s.probe.separators_are_gold) == ("none", "turn", "none", False)


def test_keys_beside_a_preset_win() -> None:
    s = MemorySettings(preset="original", pool="turn", probe={"thought": "enough"})  # type: ignore[arg-type]
    assert (s.pool, s.baseline, s.probe.thought, s.probe.separators_are_gold) == ("turn", "full", "enough", True)
    assert MemorySettings(**s.model_dump()) == s
    assert MemorySettings(preset="original", pool="turn", probe=ProbeSettings(thought="enough")) == s
    assert [name for name in ("pool", "weight", "gate") if s.beside_preset(name)] == ["pool"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"preset": ["original"]}, "unknown preset"),
        ({"preset": "orginal"}, "did you mean 'original'"),
        ({"baselin": "full"}, "did you mean 'baseline'"),
        ({"probe": {"thougt": ""}}, "did you mean 'thought'"),
        ({"threshold": "independent", "threshold_value": 1.0}, "less than 1"),
        ({"weight": -1.0}, "greater than or equal to 0"),
        ({"weight": math.inf}, "finite"),
        ({"min_pool": 1}, "greater than or equal to 2"),
        ({"threshold": "both"}, "threshold both compares two sides"),
        ({"threshold": "either"}, "threshold either compares two sides"),
        ({"threshold_value": 0.3}, "threshold_value does nothing"),
        ({"empty_is_one": True}, "empty_is_one belongs to threshold independent"),
        ({"empty_is_one": True, "threshold": "both", "baseline": "full"}, "not both"),
        ({"ratio_eps": 0.1}, "ratio_eps does nothing"),
        ({"pool": "question", "min_pool": 5}, "min_pool does nothing"),
        ({"small_pool": "original", "min_pool": 5}, "min_pool does nothing"),
        ({"threshold_quantile": 0.3}, "threshold_quantile does nothing with threshold none"),
        ({"threshold": "independent", "threshold_quantile": 0.3, "threshold_value": 0.4}, "beside threshold_quantile"),
        ({"full_policy": "reference"}, "full_policy reference does nothing with baseline none"),
        ({"reward": "compression", "ratio_eps": 0.1}, "nothing is divided by P"),
        ({"length_limit_tokens": 20}, "length_limit_tokens does nothing with length_penalty 0"),
        ({"lookahead": {"gamma": 0.5}}, "gamma does nothing with k 0"),
        ({"lookahead": {"k": 1}, "threshold": "independent"}, "averages over several"),
        ({"probe": {"objectives": "averaged"}, "threshold": "independent"}, "takes them apart"),
        ({"probe": {"objectives": "averaged", "separators_are_gold": True}}, "a joiner belongs to none"),
        ({"weight": 0, "gate": "when_group_varies"}, "gate when_group_varies does nothing with weight 0"),
    ],
)
def test_options_that_cannot_be_or_would_do_nothing_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MemorySettings(**bad)


# --- the hole ------------------------------------------------------------------------------------------------------


def test_the_original_pays_the_clueless_note_most_and_the_default_least() -> None:
    """Three notes, better and better; the last hides its wrong tokens below the threshold."""
    clueless, half, good = np.array([-4.0, -5.0]), np.array([-0.6, -3.0]), np.array([-0.5, -0.4])
    history = np.array([-0.3, -0.3])
    original = [reward(Evidence(1, mem, history), preset="original").r for mem in (clueless, half, good)]
    recommended = [reward(Evidence(1, mem), preset="recommended").r for mem in (clueless, half, good)]
    assert original[0] == max(original)  # type: ignore[type-var]
    assert recommended == sorted(recommended)  # type: ignore[type-var]
