"""Advantages of the user's own: what the function is given, which way it is called, and what it may return."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mempo.errors import ConfigError, UserError
from mempo.train.advantages import AdvantageBatch, batch_advantages
from mempo.train.own_advantages import own_advantages
from tests.train.fakes import PLAIN_ADVANTAGES, PLAIN_MEMORY, advantage_batch, played, questions, token_values

NOTES: list[dict[int, float | None]] = [{1: 0.5}, {1: None, 2: 0.2}, {1: 0.1}, {}]


def batch() -> AdvantageBatch:
    """Two questions with two rollouts each."""
    rollouts = [played(questions(2)[i // 2], turns, i) for i, turns in enumerate((2, 3, 2, 1))]
    return advantage_batch(rollouts, [1.0, 0.0, 0.5, 0.25], NOTES, 2)


def nothing(count: int) -> tuple[list[float], list[dict[int, float]]]:
    return [0.0] * count, [{} for _ in range(count)]


def test_a_function_of_one_argument_sees_the_whole_step() -> None:
    seen: list[AdvantageBatch] = []

    def whole(batch: AdvantageBatch) -> Any:
        seen.append(batch)
        return np.array([2.0, 0.0, 1.0, -1.0]), [{1: np.float32(0.5)}, {}, {1: -0.25}, {}]

    given = batch()
    found = batch_advantages(given, PLAIN_ADVANTAGES, PLAIN_MEMORY, own_advantages(whole))
    [told] = seen
    assert (told.step, list(told.scores), told.notes) == (7, [1.0, 0.0, 0.5, 0.25], NOTES)
    assert [question.id for question in told.questions] == ["q0", "q0", "q1", "q1"]
    assert (told.members, list(told.places)) == ([[0, 1], [2, 3]], [0, 1, 2, 3])
    prompts = [[turn.prompt_ids for turn in trajectory.turns] for trajectory in told.trajectories]
    assert [len(turns) for turns in prompts] == [2, 3, 2, 1]
    assert prompts[0][0] == prompts[1][0] != prompts[2][0]
    assert (found.outcome, found.memory) == ([2.0, 0.0, 1.0, -1.0], [{1: 0.5}, {}, {1: -0.25}, {}])
    values = token_values(given, found)
    assert set(values[0][0]) == {2.0}
    assert set(values[0][1]) == {2.0, 2.5}


def test_a_function_of_two_arguments_is_called_question_by_question() -> None:
    asked: list[tuple[Any, Any]] = []

    def by_question(scores: Sequence[float], notes: Any) -> Any:
        asked.append((list(scores), copy.deepcopy(notes)))
        return [10.0 * score for score in scores], [dict.fromkeys(found, 1.0) for found in notes]

    outcome, memory = own_advantages(by_question)(batch())
    assert asked == [([1.0, 0.0], NOTES[:2]), ([0.5, 0.25], NOTES[2:])]
    assert outcome == [10.0, 0.0, 5.0, 2.5]
    assert memory == [{1: 1.0}, {1: 1.0, 2: 1.0}, {1: 1.0}, {}]


def test_what_it_is_given_stays_as_it_was() -> None:
    given = batch()

    def greedy(batch: Any) -> Any:
        batch.notes[0].clear()
        return nothing(4)

    def greedy_by_question(scores: Any, notes: Any) -> Any:
        count = len(scores)
        scores.clear()
        notes[0].clear()
        return nothing(count)

    for function in (greedy, greedy_by_question):
        own_advantages(function)(given)
        assert (list(given.scores), list(given.notes)) == ([1.0, 0.0, 0.5, 0.25], NOTES)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch, scale=1.0: nothing(4), "both with one and with two arguments"),
        (lambda *arguments: nothing(4), "both with one and with two arguments"),
        (lambda: nothing(4), "neither with one nor with two arguments"),
        (lambda a, b, c: nothing(4), "neither with one nor with two arguments"),
        (lambda a, *, scale: nothing(4), "neither with one nor with two arguments"),
    ],
)
def test_a_function_that_does_not_say_how_it_is_called_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        own_advantages(function)
    assert "\n" not in str(caught.value)


def test_keywords_that_need_not_be_given_are_no_arguments() -> None:
    def whole(batch: AdvantageBatch, *, scale: float = 2.0) -> Any:
        return nothing(4)

    assert not own_advantages(whole).per_question


BAD = [
    (None, "returned NoneType; it must return"),
    ([1.0], "returned list; it must return"),
    (([1.0], [{}, {}]), "returned 1 values as outcome advantages for 2 rollouts"),
    (([1.0, 0.0], [{}]), "returned 1 values as memory advantages for 2 rollouts"),
    ((1.0, [{}, {}]), "returned 1.0 as outcome advantages"),
    (([1.0, 0.0], {0: {}, 1: {}}), r"returned \{0: \{\}, 1: \{\}\} as memory advantages"),
    (([math.nan, 0.0], [{}, {}]), "returned nan as the outcome advantage of rollout 0"),
    ((["1", 0.0], [{}, {}]), "returned '1' as the outcome advantage of rollout 0"),
    (([None, 0.0], [{}, {}]), "returned None as the outcome advantage of rollout 0"),
    (([1.0, 0.0], [{1: math.inf}, {}]), "returned inf as the advantage of rollout 0, turn 1"),
    (([1.0, 0.0], [{2: 1.0}, {}]), r"gave rollout 0 memory advantages for turns \[2\]; its scored notes are \[1\]"),
    (([1.0, 0.0], [[0.5], {}]), r"returned \[0.5\] as the memory advantages of rollout 0"),
]


@pytest.mark.parametrize(("result", "message"), BAD)
@pytest.mark.parametrize("whole", [True, False])
def test_what_makes_no_sense_is_refused_by_name(result: Any, message: str, whole: bool) -> None:
    def mine(scores: Any, notes: Any) -> Any:
        return result

    def mine_of_all(batch: Any) -> Any:
        return result

    one_question = advantage_batch([played(questions(1)[0], 2, i) for i in range(2)], [1.0, 0.0], NOTES[:2])
    with pytest.raises(UserError, match=rf"advantage function .*mine\S* {message}"):
        own_advantages(mine_of_all if whole else mine)(one_question)


def test_what_it_raises_is_one_line_that_says_where() -> None:
    def broken(batch: AdvantageBatch) -> Any:
        raise KeyError("x")

    with pytest.raises(UserError, match=r"advantage function .*broken raised KeyError: 'x' \(.*line \d+\)$"):
        own_advantages(broken)(batch())
