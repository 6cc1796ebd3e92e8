"""Rollouts appended one by one: the same form as those saved at once, and whole after a kill at any byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.rollout.protocol import TurnGrammar
from mempo.storage.append import RolloutAppender, items_end, latest, read_rollout_lines, repair
from mempo.storage.files import read_lines
from mempo.storage.read_files import DamagedFile
from mempo.storage.rollouts import load_rollouts, save_rollouts, tokens_path
from tests.storage.test_rollouts import CASES, TOKENIZER

ROLLOUTS = list(CASES.values())


def append(file: Path, *numbers: int) -> None:
    with RolloutAppender(file) as appender:
        for n in numbers:
            appender.append(ROLLOUTS[n], {"score": n / 2, "em": None})


def test_appending_and_saving_make_the_same_file(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    save_rollouts(one, ROLLOUTS, [{"score": n / 2, "em": None} for n in range(len(ROLLOUTS))])
    append(other, *range(5))
    append(other, *range(5, len(ROLLOUTS)))
    assert other.read_bytes() == one.read_bytes()
    assert tokens_path(other).read_bytes() == tokens_path(one).read_bytes()


def test_a_kill_at_any_byte_loses_only_the_rollout_being_written(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    append(whole, 0, 1, 2)
    lines, arrays = whole.read_bytes(), tokens_path(whole).read_bytes()
    second_end = lines.index(b"\n", lines.index(b"\n") + 1) + 1
    used = items_end(read_lines(whole)[1]) * 4
    file = tmp_path / "killed.jsonl"
    # arrays first: cut in the middle of them, at odd bytes, or in the middle of the line that follows
    cuts = [(second_end, used + extra) for extra in (0, 1, 3, 40)]
    cuts += [(end, len(arrays)) for end in (second_end + 1, second_end + 200, len(lines) - 1)]
    for line_bytes, array_bytes in cuts:
        file.write_bytes(lines[:line_bytes])
        tokens_path(file).write_bytes(arrays[:array_bytes])
        append(file, 3)
        loaded, _, _ = load_rollouts(file, TOKENIZER, TurnGrammar())
        assert loaded == [ROLLOUTS[0], ROLLOUTS[1], ROLLOUTS[3]], (line_bytes, array_bytes)


def test_lines_whose_arrays_never_reached_the_disk_go(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    append(file, 0, 1, 2)
    first_end = items_end(read_lines(file)[0]) * 4
    tokens_path(file).write_bytes(tokens_path(file).read_bytes()[: first_end + 8])
    assert repair(file) == 2
    loaded, _, _ = load_rollouts(file, TOKENIZER, TurnGrammar())
    assert loaded == [ROLLOUTS[0]]
    assert repair(file) == 0
    assert repair(tmp_path / "nowhere.jsonl") == 0


def test_lines_come_without_tokens_and_without_the_sidecar(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    append(file, 0, 1)
    tokens_path(file).unlink()
    lines = list(read_rollout_lines(file))
    assert [line["score"] for line in lines] == [0.0, 0.5]
    assert all("turns" not in line and "question_ids" not in line for line in lines)
    assert lines == [{k: v for k, v in line.items() if k not in ("turns", "question_ids")} for line in read_lines(file)]
    assert list(read_rollout_lines(file, whole=True)) == read_lines(file)


def test_text_that_looks_like_the_place_to_cut_is_text(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    said = 'x, "question_ids": [1, 2], "turns": ['
    with RolloutAppender(file) as appender:
        appender.append(ROLLOUTS[0], {"question": said, "meta2": {"question_ids": [1]}})
    (line,) = read_rollout_lines(file)
    assert line["question"] == said
    assert line["meta2"] == {"question_ids": [1]}


def test_foreign_and_torn_lines(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text('{"question_id": "a", "rollout": 0, "question_ids": 3}\n{"question_id": "b", "roll', "utf-8")
    assert list(read_rollout_lines(file)) == [{"question_id": "a", "rollout": 0, "question_ids": 3}]
    file.write_text('{"question_id": "a"}\nno json\n', "utf-8")
    with pytest.raises(DamagedFile, match="line 2"):
        list(read_rollout_lines(file))


def test_the_last_line_of_a_key_counts() -> None:
    lines = [{"question_id": q, "rollout": r, "n": n} for n, (q, r) in enumerate([("a", 0), ("b", 0), ("a", 0)])]
    assert [line["n"] for line in latest(iter(lines)).values()] == [2, 1]
