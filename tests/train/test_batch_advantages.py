"""Advantages of a batch: each rollout once, then on the tokens of its rows, and what is reported about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.rollout.interfaces import ToolErrorKind, ToolResult
from mempo.rollout.trajectory import Trajectory, rows_of
from mempo.train.advantages import AdvantageFunction, batch_advantages, note_slots
from mempo.train.own_advantages import own_advantages
from tests.train.fakes import PLAIN_ADVANTAGES, PLAIN_MEMORY, advantage_batch, played, questions, token_values

ASKED = questions(1)[0]


def group(*turns: int, place: int = 0) -> list[Trajectory]:
    return [played(questions(place + 1)[place], count, i) for i, count in enumerate(turns)]


@dataclass
class Made:
    """Of the rollouts that count, `[rollouts]`."""

    tokens: list[dict[int, list[float]]]
    outcome: list[float]
    memory: list[dict[int, float]]
    metrics: dict[str, float | None]


CONSTANT: dict[str, Any] = {"fade_batches": None}


def assigned(
    trajectories: Sequence[Trajectory],
    scores: Sequence[float | None],
    rewards: Sequence[Mapping[int, float | None]] | None = None,
    size: int | None = None,
    advantages: AdvantageSettings = PLAIN_ADVANTAGES,
    memory: MemorySettings = PLAIN_MEMORY,
    own: AdvantageFunction | None = None,
) -> Made:
    """`rewards` `[rollouts]{turn: r}`, 0-based turns."""
    batch = advantage_batch(trajectories, scores, rewards, size)
    made = batch_advantages(batch, advantages, memory, own)
    return Made(token_values(batch, made), made.outcome, made.memory, made.metrics)


def values(made: Made, rollout: int) -> set[float]:
    return {round(value, 6) for by_turn in made.tokens[rollout].values() for value in by_turn}


def test_the_baseline_counts_rollouts_and_not_rows() -> None:
    trajectories = group(2, 1, 2, 1)
    assert sum(len(rows_of(trajectory)) for trajectory in trajectories) == 6  # their mean score would be 4/6
    made = assigned(trajectories, [1.0, 0.0, 1.0, 0.0])
    assert [values(made, i) for i in range(4)] == [{0.5}, {-0.5}, {0.5}, {-0.5}]


def test_groups_do_not_mix() -> None:
    trajectories = group(1, 1) + group(1, 1, place=1)
    made = assigned(trajectories, [1.0, 0.0, 5.0, 3.0], size=2)
    assert [values(made, i) for i in range(4)] == [{0.5}, {-0.5}, {1.0}, {-1.0}]


def test_half_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="3 rollouts are not whole groups of 2"):
        assigned(group(1, 1, 1), [1.0, 0.0, 1.0], size=2)


def test_a_rollout_without_a_score_is_neither_right_nor_wrong() -> None:
    """Did nothing must not beat tried and failed."""
    made = assigned(group(1, 1, 1, 1), [None, -1.0, 0.0, None])
    assert [values(made, i) for i in range(2)] == [{-0.5}, {0.5}]


def test_a_whole_group_without_scores_is_silent() -> None:
    failing = ToolResult(notice="503", error=ToolErrorKind.UNAVAILABLE)
    made = assigned([played(ASKED, 3, i, result=failing) for i in range(2)], [None, None])
    assert made.tokens == []
    assert made.metrics["advantages/zero_spread_groups"] is None  # there was no group to look at


def test_a_good_note_in_a_group_that_all_failed_still_earns_its_own() -> None:
    made = assigned(group(2, 2), [0.0, 0.0], [{1: 0.9}, {1: 0.1}])
    assert values(made, 0) == {0.0, 0.4}
    assert made.metrics["advantages/zero_spread_groups"] == 1


def test_settings_reach_the_formulas() -> None:
    trajectories, scores = group(3, 3, 3, 3), [1.0, 0.0, 1.0, 0.0]
    rewards: list[dict[int, float | None]] = [{1: 0.9, 2: 0.2}, {1: 0.1, 2: 0.0}] * 2
    by_turn = assigned(trajectories, scores, rewards)
    pooled = assigned(
        trajectories, scores, rewards, memory=MemorySettings(**CONSTANT, pool="question", normalize_std=False)
    )
    half = assigned(trajectories, scores, rewards, memory=MemorySettings(**CONSTANT, normalize_std=False, weight=0.5))
    fallen_back = assigned(
        trajectories, scores, rewards, memory=MemorySettings(**CONSTANT, min_pool=5, normalize_std=False)
    )
    assert values(by_turn, 0) == {0.5, 0.9, 0.6}
    assert values(pooled, 0) == values(fallen_back, 0) == {0.5, 1.1, 0.4}
    assert fallen_back.metrics["advantages/pool_fallbacks"] == 8
    assert values(half, 0) == {0.5, 0.7, 0.55}
    divided = assigned(group(1, 1), [1.0, 0.0], advantages=AdvantageSettings())
    assert values(divided, 0) == {0.707106}


@pytest.mark.filterwarnings("ignore:a group has a single scored rollout")
def test_an_own_function_is_asked_once_per_question_and_used_as_it_is() -> None:
    """Of the rollouts that count: one without a score is not shown to it."""
    asked: list[tuple[list[float | None], list[dict[int, float | None]]]] = []

    def own(scores: Any, notes: Any) -> tuple[list[float], list[dict[int, float]]]:
        asked.append((list(scores), [dict(found) for found in notes]))
        return [0.75, 0.0][: len(scores)], [{1: 1.2}, {}][: len(scores)]

    trajectories = group(2, 2) + group(2, 2, place=1)
    rewards: list[dict[int, float | None]] = [{1: 0.9}, {1: None}] * 2
    made = assigned(trajectories, [1.0, None, 0.0, 1.0], rewards, size=2, own=own_advantages(own))
    assert asked == [([1.0], [{1: 0.9}]), ([0.0, 1.0], [{1: 0.9}, {1: None}])]
    assert [values(made, i) for i in range(3)] == [{0.75, 1.95}, {0.75, 1.95}, {0.0}]
    assert made.metrics["advantages/pool_fallbacks"] is None


def test_what_is_reported() -> None:
    trajectories = group(2, 2) + group(2, 2, place=1)
    rewards: list[dict[int, float | None]] = [{1: 0.9}, {1: 0.1}, {1: 0.5}, {1: None}]
    metrics = assigned(trajectories, [1.0, 0.0, 1.0, 1.0], rewards, size=2).metrics
    assert metrics["advantages/outcome_abs"] == pytest.approx(0.25)
    assert metrics["advantages/memory_abs"] == pytest.approx(0.4)
    assert metrics["advantages/zero_spread_groups"] == 0.5
    assert metrics["advantages/lone_groups"] == 0
    assert metrics["advantages/silent_notes"] == 2  # one without a reward, and the one that is alone without it


def test_a_lone_rollout_is_counted_and_warned_of() -> None:
    with pytest.warns(UserWarning, match="single scored rollout"):
        made = assigned(group(1, 1), [1.0, None])
    assert made.metrics["advantages/lone_groups"] == 1
    assert values(made, 0) == {0.0}


# --- gates ---------------------------------------------------------------------------------------------------------

NOTES: list[Mapping[int, float | None]] = [{1: 0.1}, {1: 0.3}, {1: 0.5}, {1: 0.9}]


@pytest.mark.parametrize(
    ("gate", "scores", "credited"),
    [
        ("always", [1.0, 0.0, 0.0, 1.0], [0, 1, 2, 3]),
        ("always", [0.0] * 4, [0, 1, 2, 3]),
        ("when_group_varies", [1.0, 0.0, 0.0, 1.0], [0, 1, 2, 3]),
        ("when_group_varies", [0.0] * 4, []),
        ("when_group_varies", [1.0, None, None, None], []),  # one score does not vary; nor is its note in a pool
        ("when_not_negative", [1.0, 0.0, 0.0, 1.0], [0, 3]),
        ("when_not_negative", [0.0] * 4, [0, 1, 2, 3]),  # all are at the mean
        ("when_not_negative", [1.0, 0.0, None, 1.0], [0, 3]),
    ],
)
@pytest.mark.filterwarnings("ignore:a group has a single scored rollout")
def test_a_gate_keeps_advantages_back_and_leaves_the_pool_alone(
    gate: Any, scores: list[float | None], credited: list[int]
) -> None:
    free = assigned(group(2, 2, 2, 2), scores, NOTES)
    gated = assigned(
        group(2, 2, 2, 2),
        scores,
        NOTES,
        memory=MemorySettings(**CONSTANT, min_pool=2, normalize_std=False, gate=gate),
    )
    there = [i for i, score in enumerate(scores) if score is not None]
    assert [i for i, by_turn in zip(there, gated.memory, strict=True) if by_turn] == credited
    assert all(mine in ({}, its) for mine, its in zip(gated.memory, free.memory, strict=True))
    earned = sum(map(len, free.memory))
    assert gated.metrics["advantages/gated_notes"] == earned - len(credited)
    assert gated.outcome == free.outcome


def test_what_memory_and_outcome_paid_is_reported_apart() -> None:
    trajectories = group(2, 2)
    made = assigned(trajectories, [1.0, 0.0], [{1: 0.0}, {1: 0.4}])
    assert made.outcome == [0.5, -0.5]
    assert made.memory == [{1: pytest.approx(-0.2)}, {1: pytest.approx(0.2)}]
    slots = [len(note_slots(trajectory.turns[1])) for trajectory in trajectories]
    of_memory = 0.2 * sum(slots)
    of_outcome = 0.5 * sum(trajectory.generated_tokens for trajectory in trajectories)
    assert made.metrics["advantages/memory_share"] == pytest.approx(of_memory / (of_memory + of_outcome))
    assert made.metrics["advantages/memory_only_groups"] == 0.0


def test_groups_that_only_notes_pay_are_counted() -> None:
    trajectories = [*group(2, 2), *group(2, 2, place=1), *group(2, 2, place=2)]
    paid: list[Mapping[int, float | None]] = [{1: 0.0}, {1: 0.4}]
    equal: list[Mapping[int, float | None]] = [{1: 0.3}, {1: 0.3}]  # pays nothing at all
    made = assigned(trajectories, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [*paid, *paid, *equal], size=2)
    assert made.metrics["advantages/memory_only_groups"] == pytest.approx(1 / 3)
