"""Plans: every target is answered once, from a prefix that is there, and shared prefixes are forwarded once."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
from naive import floor_tokens

from mempo.engine.prefix_cache import Ids, as_ids
from mempo.engine.prefix_plan import (
    PASS_TOKENS,
    PAST_TOKENS,
    PlannedRow,
    Target,
    batches,
    masked_cost,
    plan_rows,
)


def free(past: int, new: int) -> float:
    """Sharing costs nothing."""
    return new


def nothing_stored(ids: Ids) -> int:
    return 0


def random_sequences(seed: int, count: int = 25) -> list[tuple[Ids, list[Target]]]:
    rng = random.Random(seed)
    made: list[tuple[int, ...]] = []
    for _ in range(count):
        beginning = rng.choice(made)[: rng.randint(0, 12)] if made and rng.random() < 0.8 else ()
        made.append((*beginning, *(rng.randrange(5) for _ in range(rng.randint(1, 9)))))
    slots = iter(range(10_000))
    out = []
    for ids in made:
        positions = sorted(rng.sample(range(len(ids)), k=rng.randint(1, len(ids))))
        out.append((as_ids(ids[: positions[-1] + 1]), [Target(p, next(slots)) for p in positions]))
    return out


def check(rows: list[PlannedRow], sequences: list[tuple[Ids, list[Target]]], stored: int = 0) -> None:
    """Play the plan: a row may begin only from what earlier waves have left."""
    wanted = {t.slot: (*ids[: t.position + 1].tolist(),) for ids, targets in sequences for t in targets}
    answered: dict[int, tuple[int, ...]] = {}
    kept: set[tuple[int, ...]] = set()
    for wave in sorted({row.wave for row in rows}):
        left = set()
        for row in (row for row in rows if row.wave == wave):
            ids = tuple(row.ids.tolist())
            assert row.past <= stored or ids[: row.past] in kept
            for target in row.targets:
                assert row.past <= target.position < len(ids)
                assert target.slot not in answered
                answered[target.slot] = ids[: target.position + 1]
            left |= {ids[:n] for n in range(1, row.keep + 1)}
        kept |= left
    assert answered == wanted


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("cost", [free, masked_cost(4), masked_cost(64)])
def test_every_target_is_answered_once_from_a_prefix_that_is_there(seed: int, cost: object) -> None:
    sequences = random_sequences(seed)
    copied = [(ids, list(targets)) for ids, targets in sequences]
    rows = plan_rows(copied, nothing_stored, cost)  # type: ignore[arg-type]
    check(rows, sequences)


@pytest.mark.parametrize("seed", range(10))
def test_stored_prefixes_are_begun_from(seed: int) -> None:
    sequences = random_sequences(seed)
    rows = plan_rows([(i, list(t)) for i, t in sequences], lambda ids: min(3, len(ids)), free)
    check(rows, sequences, stored=3)


def test_a_question_and_its_rollouts_by_hand() -> None:
    """One history, probes that branch off it at two depths, and notes that branch off the question."""
    question, history = list(range(10)), list(range(100, 140))
    asked = [
        ([*question, *history], [Target(49, 0)]),
        ([*question, *history[:10], 7, 8], [Target(21, 1)]),  # a probe after a quarter
        ([*question, *history[:30], 7, 8], [Target(41, 2)]),
        ([*question, 50, 51, 7, 8], [Target(13, 3)]),  # a note and its probe
        ([*question, 60, 61, 7, 8], [Target(13, 4)]),
    ]
    rows = plan_rows([(as_ids(ids), targets) for ids, targets in asked], nothing_stored, free)
    assert [(row.wave, row.past, row.new_tokens) for row in rows[:1]] == [(0, 0, 50)]
    assert sorted((row.past, row.new_tokens) for row in rows[1:]) == [(10, 4), (10, 4), (20, 2), (40, 2)]
    assert rows[0].keep == 40
    assert sum(row.new_tokens for row in rows) == floor_tokens([as_ids(ids) for ids, _ in asked]) == 62


def test_a_position_inside_the_shared_part_needs_no_row_of_its_own() -> None:
    rows = plan_rows(
        [(as_ids([1, 2, 3, 4]), [Target(3, 0)]), (as_ids([1, 2, 3]), [Target(1, 1), Target(2, 2)])],
        nothing_stored,
        free,
    )
    assert len(rows) == 1
    assert {t.slot for t in rows[0].targets} == {0, 1, 2}


def test_a_short_prefix_is_not_worth_a_mask_to_a_long_row() -> None:
    shared, long, short = list(range(20)), list(range(100, 500)), [7, 8]
    asked = [([*shared, *long], [Target(419, 0)]), ([*shared, *long[::-1]], [Target(419, 1)])]
    asked.append(([*shared, *short], [Target(21, 2)]))
    rows = plan_rows([(as_ids(ids), t) for ids, t in asked], nothing_stored, masked_cost(64))
    assert sorted((row.past, row.new_tokens) for row in rows) == [(0, 420), (0, 420), (20, 2)]


def test_nothing_asked_nothing_planned() -> None:
    assert plan_rows([], nothing_stored, free) == []
    assert batches([], 100) == []


@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
def test_batches_lose_nothing_and_keep_to_their_budget(budget: int) -> None:
    rng = random.Random(budget)
    rows = []
    for _ in range(40):
        past, new = rng.choice([0, 0, 5, 40]), rng.randint(1, 30)
        rows.append(PlannedRow(as_ids(range(past + new)), past, 0, [Target(past, 0)]))
    found = batches(rows, budget)
    assert sorted(id(row) for batch in found for row in batch) == sorted(map(id, rows))
    for batch in found:
        width, deepest = max(row.new_tokens for row in batch), max(row.past for row in batch)
        assert len(batch) == 1 or len(batch) * width <= budget
        assert len(batch) == 1 or len(batch) * (width + deepest) <= 4 * budget
        assert len({row.past > 0 for row in batch}) == 1  # plain rows keep the fast attention


def row_behind(past: int, new: int = 29) -> PlannedRow:
    return PlannedRow(as_ids(range(past + new)), past, 1, [Target(past, 0)])


def test_prefixes_of_very_different_lengths_go_apart() -> None:
    rows = [row_behind(past, 29 + n % 3) for n in range(4) for past in (480, 1850, 940)]
    found = batches(rows, 16_384)
    assert [sorted({row.past for row in batch}) for batch in found] == [[1850], [940], [480]]
    assert [len(batch) for batch in found] == [4, 4, 4]


def test_prefixes_of_much_the_same_length_stay_together() -> None:
    (batch,) = batches([row_behind(past) for past in (400, 420, 410, 405)], 16_384)
    assert len(batch) == 4


def test_no_other_cut_into_neighbours_is_cheaper() -> None:
    rng = random.Random(3)
    rows = [row_behind(rng.choice([5, 300, 2000]), rng.choice([2, 40, 300])) for _ in range(9)]

    def cost(cut: list[list[PlannedRow]]) -> float:
        return sum(
            PASS_TOKENS + len(batch) * (max(r.new_tokens for r in batch) + PAST_TOKENS * max(r.past for r in batch))
            for batch in cut
        )

    ways = []
    for order in (
        sorted(rows, key=lambda r: (-r.new_tokens, -r.past)),
        sorted(rows, key=lambda r: (-r.past, -r.new_tokens)),
    ):
        for bits in product((False, True), repeat=len(rows) - 1):
            cuts = [0, *(n + 1 for n, bit in enumerate(bits) if bit), len(rows)]
            ways.append(cost([order[a:b] for a, b in pairwise(cuts)]))
    assert cost(batches(rows, 100_000)) == pytest.approx(min(ways))


def test_the_floor_counts_every_node_of_the_tree_once() -> None:
    assert floor_tokens([as_ids(ids) for ids in ([1, 2, 3], [1, 2, 4], [1, 2], [5])]) == 5
    assert floor_tokens([]) == 0
