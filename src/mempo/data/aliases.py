"""Aliases of answers that a data set keeps in a file of its own: 2WikiMultihopQA's `id_aliases.json`.

Its rows name their answer's entity (`answer_id`); a line of the file holds the other names of one:
`{"Q_id": "Q142", "aliases": ["French Republic"], "demonyms": ["French"]}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mempo.data.errors import QuestionFileError
from mempo.data.files import rows_of
from mempo.rollout.question import Question
from mempo.storage.jsonl import valid_text

NAMES = ("id_aliases.json", "id_aliases.jsonl", "id_aliases.json.gz", "id_aliases.jsonl.gz")
_ID = "answer_id"


def aliases_beside(path: Path) -> Path | None:
    """The file of aliases in the folder of a file of questions."""
    return next((file for name in NAMES if (file := path.parent / name).is_file() and file != path), None)


def with_aliases(questions: Sequence[Question], file: Path) -> list[Question]:
    """The questions; those with one answer that name its entity accept its other names too, behind their own gold.

    Raises:
        QuestionFileError: the file cannot be read; names file, line and reason.
    """
    wanted = {id for question in questions if isinstance(id := question.meta.get(_ID), str) and id}
    if not wanted:
        return list(questions)
    known: dict[str, list[str]] = {}
    try:
        for place, read in rows_of(file):
            try:
                row = read()
                if row.get("Q_id") in wanted:
                    known.setdefault(row["Q_id"], []).extend(_names(row))
            except (ValueError, RecursionError) as error:
                raise QuestionFileError(f"aliases {file}, {place}: {error}") from None
    except OSError as error:
        raise QuestionFileError(f"aliases {file} cannot be read: {error.strerror or error}") from error
    return [_extended(question, known.get(str(question.meta.get(_ID)), [])) for question in questions]


def _extended(question: Question, names: Sequence[str]) -> Question:
    if len(question.objectives) != 1 or not names:
        return question
    return replace(question, gold=tuple(dict.fromkeys((*question.objectives[0], *names))))


def _names(row: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for key in ("aliases", "demonyms"):
        values = row.get(key) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"{key!r} must be a list of strings")
        found += [valid_text(value) for value in values if value.strip()]
    return found
