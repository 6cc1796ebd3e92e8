"""Joining questions into questions of several objectives."""

from __future__ import annotations

import pytest

from mempo.data.objectives import compose_objectives
from mempo.errors import UserError
from mempo.rollout.question import Question


def make(n: int, source: str | None = None) -> list[Question]:
    meta = {"data_source": source} if source else {}
    return [Question(f"{source or ''}{i}", f"Q{i}?", (f"A{i}", f"a{i}"), meta=meta) for i in range(n)]


def test_in_order() -> None:
    composed, left_over = compose_objectives(make(7), 3, seed=None)
    assert composed[0] == Question(
        "0+1+2",
        "Q0?; Q1?; Q2?",
        (("A0", "a0"), ("A1", "a1"), ("A2", "a2")),
        meta={"parts": ["0", "1", "2"], "objectives": 3},
    )
    assert [question.id for question in composed] == ["0+1+2", "3+4+5"]
    assert [question.id for question in left_over] == ["6"]


def test_every_shape_of_one_answer() -> None:
    questions = [Question("a", "Q ", "A"), Question("b", "R?", ("B", "b")), Question("c", "S?", (("C",),))]
    [question] = compose_objectives(questions, 3, seed=None).questions
    assert (question.text, question.gold) == ("Q; R?; S?", (("A",), ("B", "b"), ("C",)))
    [one, *_] = compose_objectives(questions, 1, seed=None).questions
    assert (one.text, one.gold) == ("Q", (("A",),))


def test_seeded() -> None:
    questions = make(20)
    first, again = (compose_objectives(questions, 2, seed=1).questions for _ in range(2))
    assert first == again != compose_objectives(questions, 2, seed=2).questions
    assert sorted(part for question in first for part in question.meta["parts"]) == sorted(q.id for q in questions)
    assert questions == make(20), "what was given is not shuffled"


@pytest.mark.parametrize("seed", [None, 3])
def test_sources_are_not_mixed(seed: int | None) -> None:
    mixed = [question for pair in zip(make(5, "nq"), make(5, "hotpot"), strict=True) for question in pair]
    composed, left_over = compose_objectives(mixed, 2, seed)
    assert [question.meta["data_source"] for question in composed] == ["nq", "nq", "hotpot", "hotpot"]
    for question in composed:
        assert all(part.startswith(question.meta["data_source"]) for part in question.meta["parts"])
    assert len(left_over) == 2


def test_probes_are_joined() -> None:
    questions = [Question("a", "Q?", ("A", "x"), probe="the A"), Question("b", "R?", ("B", "y"))]
    assert compose_objectives(questions, 2, None).questions[0].probe == "the A; B"


def test_refused() -> None:
    with pytest.raises(UserError, match="k=0"):
        compose_objectives(make(3), 0, None)
    with pytest.raises(UserError, match="3 questions are too few for one of 4 objectives"):
        compose_objectives(make(3), 4, None)
    with pytest.raises(UserError, match="'m' has 2 objectives"):
        compose_objectives([Question("m", "Q?; R?", (("A",), ("B",)))], 1, None)
    with pytest.raises(UserError, match="'n' has 0 objectives"):
        compose_objectives([Question("n", "Q?", None)], 1, None)


def test_search_plans_are_joined_when_every_part_has_one() -> None:
    parts = [
        Question(name, f"{name}?", name, meta={"queries": [[f"find {name}"]], "finds": [[name]]}) for name in ("a", "b")
    ]
    joined = compose_objectives(parts, 2, None).questions[0]
    assert joined.meta["queries"] == [["find a"], ["find b"]]
    assert joined.meta["finds"] == [["a"], ["b"]]
    bare = compose_objectives([parts[0], Question("c", "c?", "c")], 2, None).questions[0]
    assert "queries" not in bare.meta


def test_augmented_answers_stay_with_their_objectives() -> None:
    parts = [Question("a", "A?", "x", meta={"aug_answer": ["X"]}), Question("b", "B?", "y")]
    (joined,) = compose_objectives(parts, 2, None).questions
    assert joined.meta["aug_answer"] == [["X"], []]
    (plain,) = compose_objectives([Question("a", "A?", "x"), Question("b", "B?", "y")], 2, None).questions
    assert "aug_answer" not in plain.meta
