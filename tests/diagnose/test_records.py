"""From saved files to records: texts, groups, advantages saved and computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.records import batch_of, grouped, with_recomputed_advantages
from mempo.rollout.protocol import TurnGrammar
from mempo.storage.rollouts import load_rollouts, save_rollouts
from tests.diagnose.build import batch, rollout, turn
from tests.storage.test_rollouts import CASES, TOKENIZER


def test_texts_of_a_saved_rollout(tmp_path: Path) -> None:
    file = tmp_path / "step-1.jsonl"
    note = {"turn": 1, "r": 0.5, "p_mem": 0.5, "p_baseline": None, "p_mem_raw": 0.4, "gold_tokens": 2, "kept_mem": 2}
    facts = {"question": "Who?", "gold": [["Paris"], ["Tokyo"]], "score": 1.0, "notes": [{**note, "advantage": 0.7}]}
    save_rollouts(file, [CASES["memory"]], [{**facts, "advantage": -0.5, "is_error": False}])
    made = batch_of("step-1", *load_rollouts(file, TOKENIZER, TurnGrammar())[:2], TOKENIZER, 1)
    ((only,),) = made.groups
    assert (made.advantages, only.advantage, only.score) == ("saved", -0.5, 1.0)
    assert only.objectives == (("Paris",), ("Tokyo",))
    assert [t.note for t in only.turns] == [None, "Paris", "Paris; Tokyo"]
    assert [t.query for t in only.turns] == ["capital of France", "capital of Japan", None]
    assert only.turns[0].observation == "two\n</answer> Zürich\u2028東京\n" + "second " * 30
    assert [t.index for t in only.noted] == [1, 2]
    assert only.turns[1].signal is not None
    assert (only.turns[1].signal.r, only.turns[1].signal.advantage) == (0.5, 0.7)
    assert only.turns[2].signal is None
    assert only.turns[1].note_slots == only.turns[1].note_tokens > 0


def test_errors_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "step-1.jsonl"
    lines = [{"is_error": False, "score": 1.0}, {"is_error": True, "score": None}]
    save_rollouts(file, [CASES["memory"], CASES["a failing tool"]], lines)
    made = batch_of("step-1", *load_rollouts(file, TOKENIZER, TurnGrammar())[:2], TOKENIZER, 2)
    assert (len(made.rollouts), made.errors, made.advantages) == (1, 1, "none")


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_saved_rollout_has_a_record(tmp_path: Path, name: str) -> None:
    save_rollouts(tmp_path / "s.jsonl", [CASES[name]], [{}])
    made = batch_of("s", *load_rollouts(tmp_path / "s.jsonl", TOKENIZER, TurnGrammar())[:2], TOKENIZER, 1)
    assert [len(r.turns) for r in made.rollouts] == [len(CASES[name].turns)]
    closed = [t.note_ids is not None for t in CASES[name].turns]
    assert [t.note is not None for t in made.rollouts[0].turns] == closed


def test_groups_are_chunks_of_one_question_and_a_question_may_come_twice() -> None:
    assert grouped(["a", "a", "a", "a", "b", "b"], 2) == [range(2), range(2, 4), range(4, 6)]
    assert grouped(["a", "a", "a", "b"], 2) == [range(3), range(3, 4)]  # no whole chunks: runs of a question
    assert grouped(["a", "b", "b"], 1) == [range(1), range(1, 2), range(2, 3)]
    assert grouped([], 4) == []


def test_advantages_computed_again_are_those_of_the_settings() -> None:
    made = batch([rollout(turn(), turn("n", r=r), score=s) for r, s in ((0.1, 0.0), (0.3, 1.0))], advantages="none")
    memory = MemorySettings(pool="question", weight=0.5)
    again = with_recomputed_advantages(made, AdvantageSettings(), memory)
    assert again.advantages == "recomputed"
    # Two values a, b: ± 1/√2.
    assert [r.advantage for r in again.rollouts] == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    given = [t.signal.advantage for _, t in again.noted if t.signal]
    assert given == pytest.approx([-0.3535, 0.3535], abs=1e-4)


@pytest.mark.parametrize(("groups", "wanted", "kept"), [(10, 3, [0, 3, 6]), (3, 10, [0, 1, 2]), (0, 3, [])])
def test_a_thinned_batch_keeps_whole_groups_evenly(groups: int, wanted: int, kept: list[int]) -> None:
    made = batch(*([rollout(turn(), question=str(q))] * 2 for q in range(groups)))
    thin = made.thinned(wanted)
    assert [group[0].question for group in thin.groups] == list(map(str, kept))
    assert len(thin.rollouts) == 2 * len(kept)
