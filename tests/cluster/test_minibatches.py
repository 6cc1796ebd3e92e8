"""Questions dealt to optimizer steps, and rows laid out for ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.cluster.minibatches import MiniBatches, deal_questions, row_order


def in_turn(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    return [list(range(rank, len(lengths), ranks)) for rank in range(ranks)]


def of_rows(turns: Sequence[int]) -> list[int]:
    """`turns[q]` rows of question q."""
    return [q for q, n in enumerate(turns) for _ in range(n)]


def dealt(turns: Sequence[int], steps: int, ranks: int) -> MiniBatches:
    return deal_questions(of_rows(turns), len(turns), steps, ranks)


def as_verl_cuts(order: Sequence[int], ranks: int, minibatches: int) -> list[list[int]]:
    """The rows of every optimizer step: each rank's contiguous piece, cut into equal parts."""
    piece = len(order) // ranks
    share = piece // minibatches
    return [
        [row for rank in range(ranks) for row in order[rank * piece + n * share : rank * piece + (n + 1) * share]]
        for n in range(minibatches)
    ]


def test_two_questions_a_step_padded_to_the_larger_step() -> None:
    made = dealt([1, 2, 3, 1], steps=2, ranks=2)
    assert made.members == ((0, 1, 2), (3, 4, 5, 6))
    assert (made.rows, made.total_rows) == (4, 8)


def test_rows_divide_by_the_ranks() -> None:
    assert dealt([3], steps=1, ranks=2).rows == 4
    assert dealt([4], steps=1, ranks=2).rows == 4
    assert dealt([5], steps=1, ranks=4).rows == 8


@pytest.mark.parametrize("turns", range(1, 8))
def test_the_number_of_steps_does_not_depend_on_the_number_of_turns(turns: int) -> None:
    assert len(dealt([turns] * 6, steps=3, ranks=2).members) == 3


def test_a_step_never_is_of_padding_alone() -> None:
    made = dealt([2, 0, 0, 1], steps=4, ranks=1)
    assert made.members == ((0, 1), (2,))


def test_a_question_without_rows_keeps_its_place() -> None:
    """The local loop deals places, too: what fails in one half must not change which questions share the other."""
    assert dealt([0, 0, 2, 1], steps=2, ranks=1).members == ((0, 1, 2),)
    assert dealt([0, 1, 2, 1], steps=2, ranks=1).members == ((0,), (1, 2, 3))


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="without rows"):
        dealt([0, 0], steps=2, ranks=1)


def test_a_row_of_no_question_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 2 among 2"):
        deal_questions([0, 2], questions=2, steps=1, ranks=1)


def test_padding_of_another_number_is_refused() -> None:
    made = dealt([1, 2], steps=2, ranks=1)
    with pytest.raises(ValueError, match="0 padding rows"):
        row_order(made, [1, 1, 1], [], 1, in_turn)


@given(
    turns=st.lists(st.integers(0, 7), min_size=1, max_size=8).filter(any),
    steps=st.integers(1, 4),
    ranks=st.integers(1, 4),
    data=st.data(),
)
def test_verl_cuts_the_order_into_whole_questions(
    turns: list[int], steps: int, ranks: int, data: st.DataObject
) -> None:
    """However rows were shuffled on the way: every step holds all rows of its questions, each once, and each rank as
    many rows as the others."""
    names = data.draw(st.permutations(of_rows(turns)))
    made = deal_questions(names, len(turns), steps, ranks)
    padding = list(range(len(names), made.total_rows))
    order = row_order(made, [1] * made.total_rows, padding, ranks, in_turn)
    assert sorted(order) == list(range(made.total_rows))
    found = as_verl_cuts(order, ranks, len(made.members))
    assert [sorted(row for row in step if row < len(names)) for step in found] == [sorted(m) for m in made.members]
    of_step = [{names[row] for row in step if row < len(names)} for step in found]
    assert all(not a & b for i, a in enumerate(of_step) for b in of_step[i + 1 :])
