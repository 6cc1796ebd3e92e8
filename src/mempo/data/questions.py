"""Questions from a file. `files.py` finds its rows, `forms.py` tells of which data set's form they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mempo.data.aliases import aliases_beside, with_aliases
from mempo.data.errors import QuestionFileError
from mempo.data.files import rows_of
from mempo.data.filters import where as kept_by
from mempo.data.forms import asks_for_unanswerable, is_unanswerable, plain_row
from mempo.data.plans import plan_meta
from mempo.data.rows import ANSWER_KEYS, question_of
from mempo.errors import counted
from mempo.rollout.question import Question


class Loaded(NamedTuple):
    """`skipped`: the broken rows that were left out, one line each, with file, place and reason. `remarks`: what is
    worth saying about the file, a line each: its form, and how many questions were left out for which reason."""

    questions: list[Question]
    skipped: list[str]
    remarks: list[str]


def load_questions(path: str | Path, *, limit: int | None = None) -> list[Question]:
    """All questions of a file in its order, or those of its first `limit` (>= 1) rows; what follows is then not read.

    See docs/data.md for the forms of rows. A question without an id gets its row's number, from 0. Questions that their
    rows call unanswerable are left out.

    Raises QuestionFileError in one line: no such file, a folder, no questions, a broken row (its line or row number and
    the reason), an id that is given twice, a broken file of aliases beside it (`mempo.data.aliases`).
    """
    return read_questions(path, limit=limit).questions


def read_questions(
    path: str | Path, *, limit: int | None = None, skip_bad: bool = False, where: Mapping[str, Any] | None = None
) -> Loaded:
    """The same; `skip_bad` leaves broken rows and repeated ids out and says which. A file that breaks off (damaged gzip
    or parquet), or of which no row can be used, is an error all the same. `limit` counts rows, broken ones too.

    `where` keeps the questions whose rows say so (`mempo.data.filters`), before ids are compared; unanswerable ones
    stay when it speaks of them (`answerable`, `is_impossible`).
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise QuestionFileError(f"limit={limit}: the number of questions to read must be at least 1")
    found: list[tuple[str, Question]] = []
    skipped: list[str] = []
    forms: Counter[str] = Counter()
    unanswerable, wanted = 0, where or {}

    def bad(message: str) -> None:
        if not skip_bad:
            raise QuestionFileError(message)
        skipped.append(message)

    try:
        for number, (place, read) in enumerate(islice(rows_of(path), limit)):
            try:
                form, row = plain_row(read())
                if is_unanswerable(row) and not asks_for_unanswerable(wanted):
                    unanswerable += 1
                    continue
                found.append((place, _question(row, number)))
                forms[form] += 1
            except (ValueError, RecursionError) as error:
                bad(f"questions {path}, {place}: {error}")
    except FileNotFoundError:
        raise QuestionFileError(f"questions {path}: no such file") from None
    except IsADirectoryError:
        raise QuestionFileError(
            f"questions {path} is a folder; name one .jsonl, .json, .csv, .tsv or .parquet file"
        ) from None
    except OSError as error:
        raise QuestionFileError(f"questions {path} cannot be read: {error.strerror or error}") from error
    if not found and skipped:
        raise QuestionFileError(f"none of the {len(skipped)} rows can be used; the first: {skipped[0]}")
    if not found:
        left = f": all {unanswerable} are unanswerable" if unanswerable else f" ({path.stat().st_size} bytes)"
        raise QuestionFileError(f"questions {path} holds no questions{left}")
    remarks = [f"{path} is read as {form}" for form in forms if form]
    if unanswerable:
        remarks.append(
            f"{counted(unanswerable, 'question')} of {path} {'is' if unanswerable == 1 else 'are'} unanswerable by "
            f"{'its' if unanswerable == 1 else 'their'} own account and left out; "
            "data.where={answerable: false} asks for them"
        )
    if wanted:
        kept = {id(question) for question in kept_by([question for _, question in found], wanted)}
        remarks.append(f"data.where keeps {len(kept)} of {counted(len(found), 'question')} of {path}")
        found = [(place, question) for place, question in found if id(question) in kept]
    questions: list[Question] = []
    places: dict[str, str] = {}
    for place, question in found:
        first = places.setdefault(question.id, place)
        if first is place:
            questions.append(question)
        else:
            bad(f"questions {path}: id {question.id!r} is in {first} and in {place}; ids must be unique")
    if skipped:
        left_out = f"{counted(len(skipped), 'broken row')} of {path} {'is' if len(skipped) == 1 else 'are'} left out"
        remarks.append(f"{left_out}; the first: {skipped[0]}")
    if (file := aliases_beside(path)) is not None:
        questions = with_aliases(questions, file)
    return Loaded(questions, skipped, remarks)


def _question(row: Mapping[str, Any], number: int) -> Question:
    if is_unanswerable(row) and all(row.get(key) is None for key in ANSWER_KEYS):
        return replace(question_of({**row, "answer": "unanswerable"}, number), gold=None)  # asked, never scored
    question = question_of(row, number)
    plan = plan_meta(row, question)
    return replace(question, meta={**question.meta, **plan}) if plan else question
