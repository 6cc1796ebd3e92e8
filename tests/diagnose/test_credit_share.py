"""Who pays: shares of |credit|, kinds of groups, gold tokens past the threshold."""

from __future__ import annotations

import pytest

from mempo.diagnose.credit_share import credit_share, gold_kept
from tests.diagnose.build import batch, rollout, turn


def test_memory_share_by_hand() -> None:
    # Outcome: |1| × 10 tokens + |-1| × 5 = 15. Notes: |-1.5| × 2 slots = 3.
    first = rollout(turn(), turn("n", r=0.1, advantage=-1.5), advantage=1.0)
    second = rollout(turn(), advantage=-1.0, question="other")
    made = batch([first, rollout(turn("n", r=1.0), advantage=0.0)], [second])
    share = credit_share(made)
    assert share.memory_share == pytest.approx(3 / 18)
    assert share.outcome_abs == pytest.approx(2 / 3)
    assert share.memory_abs == pytest.approx(1.5)
    assert (share.both, share.outcome_only, share.memory_only, share.neither) == (0.5, 0.5, 0, 0)


def test_a_group_in_which_only_notes_are_paid_for() -> None:
    paid = [rollout(turn(), turn("n", r=r, advantage=a), advantage=0.0) for r, a in ((0.1, -0.7), (0.3, 0.7))]
    still = [rollout(turn(), turn("n", r=0.1, advantage=0.0), advantage=0.0)]
    share = credit_share(batch(paid, still))
    assert (share.memory_only, share.neither, share.memory_share) == (0.5, 0.5, 1.0)


def test_without_advantages_nothing_is_known_and_without_credit_the_share_is_not() -> None:
    made = batch([rollout(turn(), turn("n", r=0.1))], credit="none")
    assert set(vars(credit_share(made)).values()) == {None}
    silent = credit_share(batch([rollout(turn(), turn("n", reason="nan"), advantage=0.0)]))
    assert silent.memory_share is None
    assert silent.neither == 1.0


def test_gold_tokens_kept_on_either_side() -> None:
    known = {"p_mem_raw": 0.5, "gold_tokens": 4}
    made = batch(
        [
            rollout(turn(), turn("n", r=0.1, kept_mem=4, kept_base=1, **known)),
            rollout(turn(), turn("n", r=0.1, kept_mem=2, kept_base=2, **known)),
            rollout(turn(), turn("n", reason="empty_choice", kept_mem=0, kept_base=3, **known)),
            rollout(turn(), turn("n", reason="nan", gold_tokens=4)),
        ]
    )
    kept = gold_kept(made)
    assert (kept.gold_tokens, kept.notes) == (12, 4)
    assert kept.mem == pytest.approx(6 / 12)
    assert kept.base == pytest.approx(6 / 12)
    assert kept.silent == {"empty_choice": 1, "nan": 1}
    assert gold_kept(batch([rollout(turn(), turn("n", r=0.1, kept_mem=4, **known))])).base is None
