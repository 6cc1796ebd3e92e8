"""Answers of another program, a line each: `{"id": "q1", "answer": "Paris", "gold": ["Paris"]}`, checked key by key.

Our own rollout files, which have arrays of tokens beside them, are not checked again: they are long, and we wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mempo.data.written import read_written
from mempo.errors import UserError
from mempo.evaluate.metrics import AVERAGED, KEYS
from mempo.rollout.trajectory import StopReason
from mempo.storage.jsonl import is_blank, json_name

_NUMBERS = frozenset({"tool_errors", *(KEYS.get(name, name) for name in AVERAGED)} - {"note_tokens"})
_COUNTS = ("actions", "outcomes", "note_statuses", "violations")


def read_predictions(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; blank lines are skipped. Ids become strings.

    Raises:
        UserError: a row that cannot be used, named by its line; two rows of one question and one `rollout`.
    """
    places: dict[tuple[str, int], int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if is_blank(line):
                continue
            try:
                row = _checked(json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
            except UnicodeDecodeError:
                raise UserError(f"line {number}: not UTF-8") from None
            except json.JSONDecodeError as error:
                raise UserError(f"line {number}: not JSON ({error.msg})") from None
            except (ValueError, RecursionError) as error:
                raise UserError(f"line {number}: {error}") from None
            key = (row["question_id"], row.get("rollout", 0))
            first = places.setdefault(key, number)
            if first != number and "turns" not in row:
                raise UserError(
                    f"question {key[0]!r} is in line {first} and in line {number}; give each of its samples a "
                    f'number of its own ("rollout": 0, 1, …)'
                )
            yield row


def _checked(row: Any) -> dict[str, Any]:
    """Raises ValueError with the reason."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {json_name(row)}")
    name = next((key for key in ("question_id", "id") if key in row), None)
    if name is None:
        raise ValueError(f"a rollout has no question_id; it has {', '.join(list(row)[:6]) or 'nothing'}")
    if not isinstance(row[name], str | int) or isinstance(row[name], bool):
        raise ValueError(f'"{name}" must be a string or an integer, not {json_name(row[name])}')
    row["question_id"] = str(row[name])
    if "answer" not in row:
        raise ValueError(f"rollout of question {row['question_id']!r} has no answer (null: none was given)")
    if "gold" in row:
        row["gold"] = read_written(row["gold"])
    for key, value in row.items():
        if reason := _wrong(key, value):
            raise ValueError(f'"{key}" of question {row["question_id"]!r} {reason}, not {json_name(value)}')
    return row


def _wrong(key: str, value: Any) -> str | None:
    if key in ("answer", "question", "error") and not isinstance(value, str | None):
        return "must be a string or null"
    if key in ("rollout", "objectives") and (type(value) is not int or value < 0):
        return "must be a whole number from 0"
    if key == "is_error" and not isinstance(value, bool):
        return "must be true or false"
    if key == "stop" and value not in list(StopReason):
        return f"must be one of {', '.join(StopReason)}"
    if key in _NUMBERS and not isinstance(value, int | float | None):
        return "must be a number or null"
    if key in _COUNTS and not (isinstance(value, Mapping) and all(type(n) is int for n in value.values())):
        return "must be an object of counts"
    if key == "note_tokens" and not (isinstance(value, list) and all(type(n) is int for n in value)):
        return "must be a list of counts"
    if key in ("notes", "turns") and not (isinstance(value, list) and all(isinstance(item, dict) for item in value)):
        return "must be a list of objects"
    if key == "aug_answer" and not isinstance(value, str | list | None):
        return "must be a string or a list"
    return None
