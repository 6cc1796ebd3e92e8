"""Groups: how different their rollouts are, and who pays."""

from __future__ import annotations

import zlib

import pytest

from mempo.diagnose.groups import advantage_shares, compression_ratio, variety
from mempo.diagnose.notes import notes_of
from mempo.diagnose.summary import gold_tokens
from tests.diagnose.build import batch, rollout, turn


def noted(*notes: str | None, question: str = "q", queries: tuple[str, ...] = ()) -> object:
    asked = [*queries, *[None] * 9]
    return rollout(*(turn(note, query=asked[i]) for i, note in enumerate((None, *notes))), question=question)


def test_variety_within_a_group() -> None:
    alike = [noted("x", "same", queries=("a", "b")) for _ in range(4)]
    mixed = [noted(str(i), queries=("a",) if i < 2 else ("b",)) for i in range(3)]
    lone = [noted("n")]
    found = variety(batch(alike, mixed, lone))  # type: ignore[arg-type]
    assert found["distinct_notes"] == pytest.approx((0 + 1) / 2)  # 1 of 4; 3 of 3; a group of one says nothing
    assert found["distinct_queries"] == pytest.approx((0 + 1 / 2) / 2)


def test_a_query_that_both_questions_contain_is_no_collapse() -> None:
    a = [noted("n", question="capital of Peru; capital of Chad", queries=("capital of Peru", "help"))]
    b = [noted("n", question="capital of Peru; capital of Mali", queries=("capital of Peru", "help"))]
    assert variety(batch(a, b))["shared_queries"] == 0.5  # type: ignore[arg-type]


def test_compression_against_zlib_itself_and_against_the_questions() -> None:
    texts = ["the same note again"] * 20
    data = "\n".join(texts).encode()
    assert compression_ratio(texts) == pytest.approx(len(data) / len(zlib.compress(data, 9)))
    assert compression_ratio([]) is None
    assert compression_ratio(["\ud800"]) is not None  # a lone surrogate
    questions = [f"what is the {n * 7919 % 1000}th of {n * 104729 % 997} things" for n in range(40)]
    mirrored = batch(*([noted(text, question=text)] for text in questions))  # type: ignore[list-item]
    collapsed = batch(*([noted("I know it", question=text)] for text in questions))  # type: ignore[list-item]
    assert variety(mirrored)["compression_across"] == pytest.approx(1.0)
    assert (variety(collapsed)["compression_across"] or 0) > 2
    assert variety(batch([noted("n")]))["compression_across"] is None  # type: ignore[list-item]


def test_memory_share_by_hand() -> None:
    # Outcome: |1| × 10 tokens + |-1| × 5 = 15. Notes: |-1.5| × 2 slots = 3.
    first = rollout(turn(), turn("n", r=0.1, advantage=-1.5), advantage=1.0)
    second = rollout(turn(), advantage=-1.0, question="other")
    share = advantage_shares(batch([first, rollout(turn("n", r=1.0), advantage=0.0)], [second]))
    assert share["memory_share"] == pytest.approx(3 / 18)
    assert share["outcome_abs"] == pytest.approx(2 / 3)
    assert share["memory_abs"] == pytest.approx(1.5)
    assert [share[kind] for kind in ("both", "outcome_only", "memory_only", "neither")] == [0.5, 0.5, 0, 0]


def test_a_group_in_which_only_notes_are_paid_for() -> None:
    paid = [rollout(turn(), turn("n", r=r, advantage=a), advantage=0.0) for r, a in ((0.1, -0.7), (0.3, 0.7))]
    still = [rollout(turn(), turn("n", r=0.1, advantage=0.0), advantage=0.0)]
    share = advantage_shares(batch(paid, still))
    assert (share["memory_only"], share["neither"], share["memory_share"]) == (0.5, 0.5, 1.0)


def test_without_advantages_nothing_is_known_and_with_none_given_the_share_is_not() -> None:
    unknown = advantage_shares(batch([rollout(turn(), turn("n", r=0.1))], advantages="none"))
    silent = advantage_shares(batch([rollout(turn(), turn("n", reason="nan"), advantage=0.0)]))
    assert set(unknown.values()) == {None}
    assert list(unknown) == list(silent)
    assert silent["memory_share"] is None
    assert silent["neither"] == 1.0


def test_gold_tokens_kept_on_either_side() -> None:
    known = {"p_mem_raw": 0.5, "gold_tokens": 4}
    made = batch(
        [
            rollout(turn(), turn("n", r=0.1, kept_mem=4, kept_baseline=1, **known)),
            rollout(turn(), turn("n", r=0.1, kept_mem=2, kept_baseline=2, **known)),
            rollout(turn(), turn("n", reason="empty_choice", kept_mem=0, kept_baseline=3, **known)),
            rollout(turn(), turn("n", reason="nan", gold_tokens=4)),
        ]
    )
    kept = gold_tokens(notes_of(made))
    assert (kept["gold_tokens"], kept["notes"]) == (12, 4)
    assert (kept["mem"], kept["baseline"]) == (pytest.approx(6 / 12), pytest.approx(6 / 12))
    assert kept["silent"] == {"empty_choice": 1, "nan": 1}
    assert kept["silent_share"] == 0.5
    one_sided = batch([rollout(turn(), turn("n", r=0.1, kept_mem=4, **known))])
    assert gold_tokens(notes_of(one_sided))["baseline"] is None
