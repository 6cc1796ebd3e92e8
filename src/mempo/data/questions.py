"""Questions from a file: jsonl, a JSON array or parquet, told apart by their first bytes, plain or gzipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mempo.data.aliases import aliases_beside, with_aliases
from mempo.data.errors import QuestionFileError
from mempo.data.rows import ANSWER_KEYS, ID_KEYS, question_of
from mempo.question import Question
from mempo.retrieval.jsonl import is_blank, json_name, open_bytes, parse_object

_PARQUET_MAGIC = b"PAR1"
_BOM = b"\xef\xbb\xbf"
_COLUMNS = frozenset(
    {*ID_KEYS, *ANSWER_KEYS, "question", "answer_aliases", "answer_id", "prompt", "reward_model", "extra_info"}
    | {"data_source", "ability", "type", "level", "answerable", "source", "probe"}
)
"""Columns read from parquet; others may hold whole pages of context."""

_Read = Callable[[], Mapping[str, Any]]
_Rows = Iterator[tuple[str, _Read]]
"""Where a row stands ("line 3"), and a call that gives it or raises ValueError with the reason."""


class Loaded(NamedTuple):
    """`skipped`: the broken rows that were left out, one line each, with file, place and reason."""

    questions: list[Question]
    skipped: list[str]


def load_questions(path: str | Path, *, limit: int | None = None) -> list[Question]:
    """All questions of a file in its order, or its first `limit` (>= 1); what follows them is then not read.

    See docs/data.md for the forms of rows. A question without an id gets its row's number, from 0.

    Raises QuestionFileError in one line: no such file, a folder, no questions, a broken row (its line or row number and
    the reason), an id that stands twice, a broken file of aliases beside it (`mempo.data.aliases`).
    """
    return read_questions(path, limit=limit).questions


def read_questions(path: str | Path, *, limit: int | None = None, skip_bad: bool = False) -> Loaded:
    """The same; `skip_bad` leaves broken rows and repeated ids out and says which. A file that breaks off (damaged gzip
    or parquet), or of which no row can be used, is an error all the same. `limit` counts rows, broken ones too."""
    path = Path(path)
    if limit is not None and limit < 1:
        raise QuestionFileError(f"limit={limit}: the number of questions to read must be at least 1")
    questions: list[Question] = []
    skipped: list[str] = []
    places: dict[str, str] = {}

    def bad(message: str) -> None:
        if not skip_bad:
            raise QuestionFileError(message)
        skipped.append(message)

    try:
        for number, (place, read) in enumerate(islice(_rows(path), limit)):
            try:
                question = question_of(read(), number)
            except (ValueError, RecursionError) as error:
                bad(f"questions {path}, {place}: {error}")
                continue
            first = places.setdefault(question.id, place)
            if first is not place:
                bad(f"questions {path}: id {question.id!r} stands in {first} and in {place}; ids must be unique")
                continue
            questions.append(question)
    except FileNotFoundError:
        raise QuestionFileError(f"questions {path}: no such file") from None
    except IsADirectoryError:
        raise QuestionFileError(f"questions {path} is a folder; name one .jsonl, .json or .parquet file") from None
    except OSError as error:
        raise QuestionFileError(f"questions {path} cannot be read: {error.strerror or error}") from error
    if not questions and skipped:
        raise QuestionFileError(f"none of the {len(skipped)} rows can be used; the first: {skipped[0]}")
    if not questions:
        raise QuestionFileError(f"questions {path} holds no questions ({path.stat().st_size} bytes)")
    if (file := aliases_beside(path)) is not None:
        questions = with_aliases(questions, file)
    return Loaded(questions, skipped)


def _rows(path: Path) -> _Rows:
    with open_bytes(path) as file:
        head = file.read(64).removeprefix(_BOM).lstrip()
    if head.startswith(_PARQUET_MAGIC):
        return _parquet_rows(path)
    # A line of jsonl begins with a brace; only a JSON array begins with a bracket.
    return _array_rows(path) if head.startswith(b"[") else _jsonl_rows(path)


def _jsonl_rows(path: Path) -> _Rows:
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if not is_blank(line):
                yield f"line {number}", lambda line=line: parse_object(line)


def _array_rows(path: Path) -> _Rows:
    with open_bytes(path) as file:
        content = file.read()
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise QuestionFileError(f"questions {path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise QuestionFileError(f"questions {path}: not usable JSON ({error})") from None
    for number, row in enumerate(rows):
        yield f"row {number}", lambda row=row: _object(row)


def _parquet_rows(path: Path) -> _Rows:
    import pyarrow as pa  # here: it takes long to load, and most files are jsonl
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in _COLUMNS]
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for row in batch.to_pylist():
                    yield f"row {number}", lambda row=row: row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise QuestionFileError(f"questions {path}: damaged parquet file ({error})") from None


def _object(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {json_name(row)}")
    return row
