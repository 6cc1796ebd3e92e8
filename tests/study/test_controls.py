"""The controls of a study: rewards of other notes in the place of a note's own."""

from __future__ import annotations

from collections import Counter

import pytest

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.study.controls import other_question, shuffled
from mempo.train.advantages import AdvantageBatch, batch_advantages
from tests.train.fakes import played, questions

ASKED = questions(2)
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]


def batch(step: int = 1, lone: bool = False) -> AdvantageBatch:
    """Two questions, four rollouts each, with notes in turns 1 and 2 (from 0); one of them gives no signal."""
    groups = [0] * 8 if lone else GROUPS
    notes = [{1: i / 10, 2: 1 + i / 10} for i in range(8)]
    return AdvantageBatch(
        step=step,
        questions=[ASKED[group] for group in groups],
        trajectories=[played(ASKED[group], 3, i) for i, group in enumerate(groups)],
        scores=[0.0, 1.0, 0.0, 1.0, *[0.0] * 4],  # the second question's are silent, so that the signal counts half
        notes=[*notes[:3], {1: 0.3, 2: None}, *notes[4:]],
        groups=groups,
        places=list(range(8)),
    )


def recommended(of: AdvantageBatch) -> tuple[list[float], list[dict[int, float]]]:
    made = batch_advantages(of, AdvantageSettings(), MemorySettings())
    return made.outcome, made.memory


def by_pool(memory: list[dict[int, float]]) -> Counter:
    return Counter((GROUPS[i], turn, round(a, 9)) for i, by_turn in enumerate(memory) for turn, a in by_turn.items())


def test_shuffled_rewards_stay_in_their_pool() -> None:
    outcome, memory = shuffled(batch())
    right_outcome, right_memory = recommended(batch())
    assert outcome == right_outcome
    assert memory != right_memory
    assert by_pool(memory) == by_pool(right_memory)  # what is paid is the same, to other notes
    assert 2 not in memory[3]  # what had no signal has none
    assert shuffled(batch()) == (outcome, memory)
    assert shuffled(batch(step=2))[1] != memory


def test_rewards_of_another_question() -> None:
    first = {round(i / 10, 9) for i in range(4)}
    second = {round(i / 10, 9) for i in range(4, 8)}
    seen: list = []

    def spy(of: AdvantageBatch, *settings: object) -> object:
        seen.append(of.notes)
        return batch_advantages(of, AdvantageSettings(), MemorySettings())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mempo.study.controls.batch_advantages", spy)
        outcome, _ = other_question(batch())
    assert outcome == recommended(batch())[0]
    (notes,) = seen
    for i, (group, rewards) in enumerate(zip(GROUPS, notes, strict=True)):
        assert rewards[1] in (second if group == 0 else first)
        if i != 3:
            assert round(rewards[2] - 1, 9) in (second if group == 0 else first - {0.3})
    assert notes[3][2] is None


def test_a_lone_question_has_no_other() -> None:
    assert other_question(batch(lone=True))[1] == [{}] * 8
