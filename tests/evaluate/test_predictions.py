"""Files of other programs: what cannot be scored is named by its line, and nothing is dropped in silence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mempo.errors import UserError
from mempo.evaluate.predictions import read_predictions
from mempo.evaluate.saved import read_rollouts

GOOD: dict[str, Any] = {"id": "a", "answer": "x", "gold": ["x"]}


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_what_other_programs_write(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines(GOOD) + b"\r\n\n" + lines({**GOOD, "id": 7, "answer": None}).rstrip())
    assert list(read_rollouts(file)) == [("a", 0), ("7", 0)], "also the last line, which nothing ends"
    file.write_bytes(lines({**GOOD, "gold": "['x', 'y']"}))
    assert read_rollouts(file)["a", 0]["gold"] == ["x", "y"]
    samples = [{**GOOD, "rollout": k} for k in range(3)]
    file.write_bytes(lines(*samples))
    assert len(read_rollouts(file)) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines(GOOD) + b'{"id": "b", "ans', "line 2: not JSON"),
        (lines(GOOD, GOOD), "'a' is in line 1 and in line 2; give each of its samples a number"),
        (b"[1]\n", "line 1: expected an object, got a list"),
        (b'{"id": "a", "answer": "\xff"}\n', "line 1: not UTF-8"),
        (gzip.compress(lines(GOOD), mtime=0), "line 1: not UTF-8"),
        (b"\0" * 99, "line 1: not JSON"),
        (b'{"id": "a", "answer": "x", "gold": ' + b"[" * 90_000, "line 1: "),
        (lines({"answer": "x"}), "line 1: a rollout has no question_id; it has answer"),
        (lines({**GOOD, "id": ["a"]}), '"id" must be a string or an integer, not a list'),
        (lines({**GOOD, "id": True}), '"id" must be a string or an integer, not a boolean'),
        (lines({**GOOD, "answer": 5}), "\"answer\" of question 'a' must be a string or null, not a number"),
        (lines({**GOOD, "rollout": "0"}), "must be a whole number from 0, not a string"),
        (lines({**GOOD, "objectives": -1}), "must be a whole number from 0"),
        (lines({**GOOD, "is_error": "no"}), "must be true or false, not a string"),
        (lines({**GOOD, "total_tokens": "many"}), "must be a number or null, not a string"),
        (lines({**GOOD, "stop": "bored"}), "must be one of answered, turn_limit"),
        (lines({**GOOD, "actions": ["search"]}), "must be an object of counts, not a list"),
        (lines({**GOOD, "note_tokens": 3}), "must be a list of counts"),
        (lines({**GOOD, "notes": "n"}), "must be a list of objects"),
        (lines({**GOOD, "gold": "['x'"}), "line 1: the answer looks like a list written as text and cannot be read"),
        (lines({**GOOD, "aug_answer": 5}), "must be a string or a list"),
    ],
)
def test_what_cannot_be_scored_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_predictions(file))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
