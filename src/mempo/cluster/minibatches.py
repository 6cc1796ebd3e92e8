"""Which rows belong to which optimizer step, and where they lie in the batch that verl cuts up.

verl counts rows: left alone, a rollout of T turns means T times the optimizer steps. Here a step is a set of questions.
All rows of a question are in one mini-batch, all mini-batches are padded to the same number of rows, and that number
divides by the data-parallel ranks. verl gives every rank a contiguous piece of the batch and cuts it into mini-batches
in order, so rank r's piece is its share of mini-batch 1, then of mini-batch 2, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Partition = Callable[[Sequence[int], int], Sequence[Sequence[int]]]
"""`partition(lengths, ranks)`: indices of rows for every rank, equally many each."""


@dataclass(frozen=True)
class MiniBatches:
    """`members` `[mini-batches][rows]`: indices of real rows. `rows` of each mini-batch, padding included."""

    members: tuple[tuple[int, ...], ...]
    rows: int

    @property
    def total_rows(self) -> int:
        return self.rows * len(self.members)

    def moved(self, where: Sequence[int]) -> MiniBatches:
        """The same, where row i now is row `where[i]`."""
        return MiniBatches(tuple(tuple(where[row] for row in rows) for rows in self.members), self.rows)


def deal_questions(question_of_row: Sequence[int], questions: int, steps: int, ranks: int) -> MiniBatches:
    """Deal `questions` out evenly, in order, to `steps` mini-batches, each with all rows of its questions.
    `question_of_row`: the place of a row's question among them. A question whose rollouts all failed has no rows but
    keeps its place, so that the others are dealt as they always are; a mini-batch without rows is left out, since a
    step of padding alone has no loss.

    Raises:
        ValueError: no rows, or a row of none of the questions.
    """
    if not question_of_row:
        raise ValueError("a batch without rows")
    if min(question_of_row) < 0 or max(question_of_row) >= questions:
        raise ValueError(f"rows of questions {min(question_of_row)} to {max(question_of_row)} among {questions}")
    made = min(steps, questions)
    bounds = [questions * i // made for i in range(made + 1)]
    members = [
        tuple(row for row, question in enumerate(question_of_row) if first <= question < last)
        for first, last in pairwise(bounds)
    ]
    members = [rows for rows in members if rows]
    longest = max(map(len, members))
    return MiniBatches(tuple(members), -(-longest // ranks) * ranks)


def row_order(
    batches: MiniBatches, lengths: Sequence[int], padding: Sequence[int], ranks: int, partition: Partition
) -> list[int]:
    """The order of all rows, padding included, such that every rank's contiguous piece holds its share of mini-batch 1,
    2, … `lengths` in tokens, of real and padding rows; `padding`: the indices of padding rows.

    Raises:
        ValueError: there are more or fewer padding rows than places for them.
    """
    spare = list(padding)
    if len(spare) != batches.total_rows - sum(map(len, batches.members)):
        raise ValueError(
            f"{len(spare)} padding rows for mini-batches {list(map(len, batches.members))} of {batches.rows}"
        )
    pieces: list[list[int]] = [[] for _ in range(ranks)]
    for members in batches.members:
        short = batches.rows - len(members)
        rows = [*members, *spare[:short]]
        spare = spare[short:]
        for piece, chosen in zip(pieces, partition([lengths[row] for row in rows], ranks), strict=True):
            piece += [rows[i] for i in chosen]
    return [row for piece in pieces for row in piece]
