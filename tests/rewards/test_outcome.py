from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from mempo.config.rewards import OutcomeSettings
from mempo.errors import UserError
from mempo.rewards import outcome_score, score_answer
from mempo.rollout.protocol import FORMAT_RULES
from mempo.rollout.question import Gold, Question
from mempo.rollout.trajectory import StopReason, Trajectory
from tests.rewards.build import NOTE, THINK, answered, question, trajectory, turn

OFF = OutcomeSettings(format_gate=False)
PLAIN = OutcomeSettings()
TWO: Gold = (("Paris", "Paname"), ("Yen",))


# --- the answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold", ["Paris", ("Lutetia", "Paris"), (("Lutetia", "Paris"),)])
def test_the_three_shapes_of_gold(gold: Gold) -> None:
    assert score_answer("paris.", question(gold), PLAIN).em == 1.0
    assert score_answer("Rome", question(gold), PLAIN).em == 0.0


@pytest.mark.parametrize(
    ("answer", "em", "mean_em", "per_objective"),
    [
        ("Paname; yen", 1.0, 1.0, (1.0, 1.0)),
        ("Paris; euro", 0.0, 0.5, (1.0, 0.0)),
        ("yen; Paris", 0.0, 0.0, (0.0, 0.0)),  # positions count
        ("Paris", 0.0, 0.5, (1.0, 0.0)),  # one part missing
        ("Paris; yen; Rome", 0.0, 2 / 3, (1.0, 1.0)),  # a guess too many
        ("Paris; yen;", 0.0, 2 / 3, (1.0, 1.0)),
        ("; yen", 0.0, 0.5, (0.0, 1.0)),
        ("", 0.0, 0.0, (0.0, 0.0)),
        (None, 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_several_objectives(answer: str | None, em: float, mean_em: float, per_objective: tuple[float, ...]) -> None:
    score = score_answer(answer, question(TWO), PLAIN)
    assert (score.em, score.mean_em, score.per_objective_em) == (em, pytest.approx(mean_em), per_objective)


def test_f1_is_strict_about_the_count_and_mean_f1_is_not() -> None:
    right_count = score_answer("Paris France; yen", question(TWO), PLAIN)
    assert right_count.f1 == right_count.mean_f1 == pytest.approx((2 / 3 + 1) / 2)
    missing = score_answer("Paris France", question(TWO), PLAIN)
    assert (missing.f1, missing.mean_f1) == (0.0, pytest.approx(1 / 3))
    surplus = score_answer("Paris; yen; x; y", question(TWO), PLAIN)
    assert (surplus.f1, surplus.mean_f1, surplus.parts) == (0.0, 0.5, 4)


def test_em_and_sub_em_are_reported_apart() -> None:
    score = score_answer("It is in Paris, France", question("Paris"), PLAIN)
    assert (score.em, score.sub_em) == (0.0, 1.0)
    assert score_answer("it is Paris; the yen, I think", question(TWO), PLAIN).sub_em == 1.0
    assert score_answer("it is Paris, the yen", question(TWO), PLAIN).sub_em == 0.0


def test_one_objective_is_never_split() -> None:
    assert score_answer("a; b", question("a; b"), PLAIN).em == 1.0
    two_parts = score_answer("Paris; Rome", question("Paris"), PLAIN)
    assert (two_parts.em, two_parts.sub_em, two_parts.f1, two_parts.parts) == (0.0, 1.0, pytest.approx(2 / 3), 1)


def test_an_alias_that_holds_the_separator_can_be_answered() -> None:
    gold: Gold = (("AC; DC",), ("Live", "Live; again"))
    assert score_answer("AC; DC; Live", question(gold), PLAIN).em == 1.0
    assert score_answer("AC; DC; Live; again", question(gold), PLAIN).em == 1.0
    assert score_answer("AC; DC", question(gold), PLAIN).em == 0.0
    # The long alias takes no piece that the next objective needs.
    assert score_answer("a; b", question((("a", "a; b"), ("b",))), PLAIN).em == 1.0


def test_the_full_width_separator_splits_too() -> None:
    cities: Gold = (("巴黎",), ("东京",))
    for answer in ("巴黎；东京", "巴黎;东京", "巴黎； 东京", "巴黎 ；东京"):
        assert score_answer(answer, question(cities), PLAIN).em == 1.0
    assert score_answer("东京；巴黎", question(cities), PLAIN).em == 0.0
    assert score_answer("巴黎、东京", question(cities), PLAIN).em == 0.0  # 、 also stands within a name
    assert score_answer("巴黎；东京", question("巴黎；东京"), PLAIN).em == 1.0  # one objective is never split
    own = OutcomeSettings(separator="|")
    assert score_answer("巴黎｜东京", question(cities), own).em == 1.0
    assert score_answer("巴黎；东京", question(cities), own).em == 0.0
    published = OutcomeSettings(normalization="search-r1")  # which keeps ； where it stands in a name
    assert score_answer("甲；乙；丙", question((("甲；乙",), ("丙",))), published).em == 1.0


def test_own_separator_and_published_normalization() -> None:
    assert score_answer("Paris | yen", question(TWO), OutcomeSettings(separator="|")).em == 1.0
    assert score_answer("A", question("A"), OutcomeSettings(normalization="search-r1")).em == 0.0


def test_answer_without_gold_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="question q: no gold"):
        score_answer("x", question(None), PLAIN)


# --- the rollout ---------------------------------------------------------------------------------------------------


def test_right_answer_in_right_format() -> None:
    outcome = outcome_score(question(), answered("Paris"), PLAIN)
    assert (outcome.score, outcome.format_ok, outcome.violations, outcome.reason) == (1.0, True, {}, None)
    assert outcome_score(question(), answered("Rome"), PLAIN).score == 0.0


BROKEN = {
    "balanced": answered("Paris", extra="</think>"),
    "nesting": trajectory(turn(0, text="<think><search>x</search></think><answer>Paris</answer>"), answer="Paris"),
    "order": trajectory(turn(0, text=f"<answer>Paris</answer>{THINK}"), answer="Paris"),
    "memory_present": trajectory(turn(0), turn(1, text=f"{THINK}<answer>Paris</answer>"), answer="Paris"),
    "one_think": answered("Paris", extra=THINK),
    "one_action": trajectory(
        turn(0, text=f"{THINK}<search>a</search><search>b</search>"),
        turn(1, note=(0, 2), text=f"{NOTE}{THINK}<answer>Paris</answer>"),
        answer="Paris",
    ),
    "final_answer": trajectory(turn(0), answer="Paris", stop=StopReason.TURN_LIMIT),
    "clean": answered("Paris", extra="so"),
}


def test_there_is_a_case_for_every_rule() -> None:
    assert set(BROKEN) == set(FORMAT_RULES)


@pytest.mark.parametrize("rule", FORMAT_RULES)
def test_a_broken_rule_scores_0_and_is_counted_by_name(rule: str) -> None:
    outcome = outcome_score(question(), BROKEN[rule], PLAIN)
    assert outcome.score == 0.0
    assert not outcome.format_ok
    assert outcome.violations == {rule: 1}
    assert outcome_score(question(), BROKEN[rule], OFF).score == 1.0


@pytest.mark.parametrize(
    "text", ["<search>a</search><answer>Paris</answer>", "<answer>Paris</answer><search>a</search>"]
)
def test_answer_and_search_in_one_turn_score_0(text: str) -> None:
    last = turn(1, note=(0, 2), text=NOTE + THINK + text)
    assert last.parsed.action is None
    assert outcome_score(question(), trajectory(turn(0), last, stop=StopReason.TURN_LIMIT), OFF).score == 0.0
    assert outcome_score(question(), trajectory(turn(0), last, answer="Paris"), PLAIN).score == 0.0


def test_no_answer_scores_0_but_an_error_scores_none() -> None:
    for stop in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW):
        assert outcome_score(question(), trajectory(turn(0), stop=stop), PLAIN).score == 0.0
    for stop in (StopReason.TOOL_ERROR, StopReason.SAMPLER_ERROR):
        outcome = outcome_score(question(), trajectory(turn(0), stop=stop), PLAIN)
        assert (outcome.score, outcome.reason) == (None, "error")
    # A tool that failed on the way spoils the rollout, also when it ended with the right answer.
    spoilt = trajectory(turn(0, tool_error="503"), *answered("Paris").turns[1:], answer="Paris")
    assert outcome_score(question(), spoilt, PLAIN).score is None


def test_without_gold_there_is_no_score_never_a_silent_0() -> None:
    outcome = outcome_score(question(None), answered("Paris"), PLAIN)
    assert (outcome.score, outcome.answer, outcome.reason) == (None, None, "no_gold")
    assert outcome_score(question(None), BROKEN["clean"], PLAIN).score is None


@pytest.mark.parametrize("gold", ["?!", ("...", "—"), (("Paris",), ("?",))])
def test_gold_that_no_answer_could_match_is_named(gold: Gold) -> None:
    outcome = outcome_score(question(gold), answered("Paris"), PLAIN)
    assert (outcome.score, outcome.reason) == (None, "unmatchable_gold")


def test_the_prompt_cannot_change_the_score() -> None:
    """An `<answer>` in the instruction counts for nothing: only what the rollout answered is read."""
    with_example = Question("q", "Answer like <answer>Beijing</answer>. Capital of China?", "Beijing")
    for asked in (with_example, Question("q", "Capital of China?", "Beijing")):
        assert outcome_score(asked, answered("Beijing"), PLAIN).score == 1.0
        assert outcome_score(asked, trajectory(turn(0), stop=StopReason.TURN_LIMIT), OFF).score == 0.0


@pytest.mark.parametrize(("score", "expected"), [("em", 0.0), ("mean_em", 0.5), ("f1", 5 / 6), ("mean_f1", 5 / 6)])
def test_the_score_is_the_one_named(score: str, expected: float) -> None:
    outcome = outcome_score(question(TWO), answered("Paris France; yen"), OutcomeSettings(score=score))
    assert outcome.score == pytest.approx(expected)


def test_trajectory_of_another_question_is_refused() -> None:
    with pytest.raises(ValueError, match="'q' scored against question 'other'"):
        outcome_score(question(id="other"), answered("Paris"), PLAIN)


# --- own score -----------------------------------------------------------------------------------------------------

OWN = OutcomeSettings(score="my_module:score")


def length_of_answer(question: Question, trajectory: Trajectory) -> float | None:
    return None if trajectory.answer is None else float(len(trajectory.answer))


def test_own_score_replaces_the_match_under_the_same_gate() -> None:
    assert outcome_score(question(), answered("four"), OWN, length_of_answer).score == 4.0
    assert outcome_score(question(None), answered("four"), OWN, length_of_answer).score == 4.0
    assert outcome_score(question(), BROKEN["clean"], OWN, length_of_answer).score == 0.0
    unanswered = trajectory(turn(0), stop=StopReason.TURN_LIMIT)
    assert outcome_score(question(), unanswered, OWN, length_of_answer).score is None
    assert (
        outcome_score(question(), trajectory(turn(0), stop=StopReason.TOOL_ERROR), OWN, lambda q, t: 1.0).score is None
    )


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.bool_(True), np.array(1.0)])
def test_own_score_may_return_any_number(value: Any) -> None:
    assert outcome_score(question(), answered("x"), OWN, lambda q, t: value).score == 1.0


@pytest.mark.parametrize("value", ["1", math.nan, math.inf, [1.0], np.array([1.0]), 1j])
def test_own_score_that_is_no_number_is_refused_by_name(value: Any) -> None:
    def my_score(question: Question, trajectory: Trajectory) -> Any:
        return value

    with pytest.raises(UserError, match=r"test_outcome:.*my_score returned .*finite number, or None"):
        outcome_score(question(), answered("x"), OWN, my_score)


def test_import_path_must_have_been_resolved() -> None:
    with pytest.raises(ValueError, match="my_module:score"):
        outcome_score(question(), answered("x"), OWN)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"score": "mean_e"}, "did you mean 'mean_em'"),
        ({"separator": " "}, "blank"),
        ({"normalization": "serch-r1"}, "'default' or 'search-r1'"),
        ({"format_gat": True}, "did you mean 'format_gate'"),
    ],
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutcomeSettings(**bad)


def test_a_rollout_that_overflowed_its_context_is_scored_or_excluded_by_choice() -> None:
    cut_short = dataclasses.replace(answered("Paris"), stop=StopReason.CONTEXT_OVERFLOW, answer=None)
    assert outcome_score(question(), cut_short, OutcomeSettings()).score == 0
    excluded = outcome_score(question(), cut_short, OutcomeSettings(on_overflow="exclude"))
    assert (excluded.score, excluded.reason) == (None, "overflow")
