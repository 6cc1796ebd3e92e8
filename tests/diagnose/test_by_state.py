"""Signals by state: by hand, and against plain loops on random groups."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.diagnose.by_state import memory_by_state, outcome_by_state, states_of_turns
from mempo.rollout.agent import DecodingSettings, Job, rollout
from tests.rewards.build import trajectory, turn
from tests.tiny import Scripted
from tests.train.fakes import NOTED_ANSWER, NOTED_SEARCH, SEARCH, TOKENIZER, agent, questions


def test_a_state_is_what_was_seen_and_what_was_forced() -> None:
    first = trajectory(turn(0), turn(1, own=[7, 8], prompt=[1, 2]), turn(2, own=[9], prompt=[1, 2]))
    second = trajectory(turn(0), turn(1, own=[7, 5], forced=1, prompt=[1, 2]), turn(2, own=[5], prompt=[1, 2, 7]))
    third = trajectory(turn(0), turn(1, own=[4], prompt=[1, 2]))
    # The second's turn 2 (prompt 1 2 7) is the same state as its turn 1 (prompt 1 2, forced 7).
    assert states_of_turns([first, second, third]) == [{0: 0, 1: 1, 2: 1}, {0: 0, 1: 2, 2: 2}, {0: 0, 1: 1}]


def test_rollouts_in_a_context_that_forgets_share_states() -> None:
    """Two rollouts that wrote the same note and found the same, from different first turns."""
    texts = [[SEARCH, NOTED_SEARCH, NOTED_ANSWER], [SEARCH.replace(">s<", ">t<"), NOTED_SEARCH, NOTED_ANSWER]]
    played = [
        asyncio.run(rollout(agent(), Scripted(TOKENIZER, said), Job(questions(1)[0], i, ("s",)), DecodingSettings()))
        for i, said in enumerate(texts)
    ]
    first, second = states_of_turns(played)
    assert first[0] == second[0]
    assert first[2] == second[2]


def test_notes_of_one_state_are_compared_and_divided_by_the_spread_of_the_turn() -> None:
    """State 0 holds four notes of six, state 1 two: too few, so these are compared with the whole turn."""
    rewards = [{1: r} for r in (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)]
    made = memory_by_state(rewards, [()] * 6, [{1: 0}] * 4 + [{1: 1}] * 2)
    std = math.sqrt(0.34 / 5)  # of the six, whose mean is 0.4
    assert [row[1] for row in made] == pytest.approx([a / (std + 1e-6) for a in (-0.15, -0.05, 0.05, 0.15, 0.2, 0.4)])


def test_the_luck_of_a_state_is_not_paid() -> None:
    made = memory_by_state([{1: 0.9}] * 4 + [{1: 0.1}] * 4, [()] * 8, [{1: 0}] * 4 + [{1: 1}] * 4)
    assert made == [{1: pytest.approx(0.0)}] * 8


def test_a_lost_note_is_the_worst_of_its_state() -> None:
    made = memory_by_state([{1: 0.4}, {1: 0.4}, {1: 0.4}, {}], [(), (), (), (1,)], [{1: 0}] * 4)
    assert [row[1] for row in made] == pytest.approx([0.1 / (0.2 + 1e-6)] * 3 + [-0.3 / (0.2 + 1e-6)])


def test_a_score_is_compared_with_those_that_passed_the_same_state() -> None:
    """All share the first state; the third passes state 1 twice and counts once, so with the second its mean is 0."""
    states = [{0: 0}, {0: 0, 1: 1}, {0: 0, 1: 1, 2: 1}, {0: 0, 1: 2}]
    found = outcome_by_state([1.0, 0.0, 0.0, 0.0], states)
    std = 0.5 + 1e-6
    assert found == [
        pytest.approx({0: 0.75 / std}),
        pytest.approx({0: -0.25 / std, 1: 0.0}),
        pytest.approx({0: -0.25 / std, 1: 0.0, 2: 0.0}),
        pytest.approx({0: -0.25 / std, 1: -0.25 / std}),  # nobody else was there: the group's mean
    ]
    assert outcome_by_state([1.0], [{0: 0}]) == [{0: 0.0}]


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-8, 8)), min_size=1, max_size=9))
def test_it_agrees_with_plain_loops(rows: Sequence[tuple[int, int | None]]) -> None:
    """One turn; a reward of None is a lost note."""
    notes: list[Mapping[int, float | None]] = [{} if r is None else {1: r / 8} for _, r in rows]
    lost = [(1,) if r is None else () for _, r in rows]
    made = memory_by_state(notes, lost, [{1: state} for state, _ in rows])
    worst = min([0.0, *(r / 8 for _, r in rows if r is not None)])
    values = [worst if r is None else r / 8 for _, r in rows]
    if len(rows) < 2:
        assert made == [{}]
        return
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    for i, (state, _) in enumerate(rows):
        mates = [v for v, (other, _) in zip(values, rows, strict=True) if other == state]
        centre = sum(mates) / len(mates) if len(mates) >= 4 else mean
        assert made[i] == {1: pytest.approx((values[i] - centre) / (std + 1e-6) if std else 0.0, abs=1e-9)}
