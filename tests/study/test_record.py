"""What is kept of a run, and the outcome that counts objectives at whatever place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mempo.rewards.answer_match import answers_given
from mempo.study.record import MOST_POINTS, curve_of, objectives_right


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Paris; Rome", 1.0),
        ("Rome; Paris", 1.0),
        ("Rome", 0.5),
        ("the city of light", 0.5),  # an alias
        ("Paris; Paris", 0.5),  # a part counts once, and so does an objective
        ("Oslo; Rome", 0.5),
        ("Paris; Rome; Oslo", 2 / 3),  # guesses dilute
        ("; Rome;", 0.5),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_answers_count_at_whatever_place(answer: str | None, share: float) -> None:
    assert answers_given(answer, [("Paris", "city of light"), ("Rome",)]) == pytest.approx(share)


def test_one_objective_is_not_split() -> None:
    assert answers_given("AC; DC", [("AC; DC",)]) == 1.0
    assert answers_given("AC", []) == 0.0


def test_a_curve_keeps_what_is_known_and_is_thinned_by_means() -> None:
    lines = [{"stage": "sft", "step": 1, "loss": 3.0}]
    lines += [{"stage": "rl", "step": s, "score": s / 10, "memory/p_mem": None} for s in (1, 2)]
    assert curve_of(lines) == {"step": [1, 2], "score": [0.1, 0.2]}
    long = [{"stage": "rl", "step": s, "score": float(s % 2)} for s in range(1, 2 * MOST_POINTS + 1)]
    curve = curve_of(long)
    assert curve["step"][:2] == [2, 4]
    assert curve["score"] == [0.5] * MOST_POINTS


def test_rollouts_that_do_not_count_are_in_no_share(tmp_path: Path) -> None:
    """As everywhere: an infrastructure error, an own reward that said None, an excluded overflow."""
    gold = [["Paris"], ["Rome"]]
    lines = [
        {"answer": "Rome; Paris", "gold": gold, "score": 0.0},
        {"answer": "Oslo", "gold": gold, "score": 0.0},
        {"answer": None, "gold": gold, "score": None, "is_error": True},
        {"answer": "Paris; Rome", "gold": gold, "score": None, "unscored": "reward"},
        {"answer": None, "gold": gold, "score": None, "unscored": "overflow"},
    ]
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step-3.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert objectives_right(tmp_path) == {"3": 0.5}
