"""The rows of a question file: jsonl, JSON, parquet, CSV or TSV, told apart by what it holds, plain or gzipped."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mempo.data import forms
from mempo.data.errors import QuestionFileError
from mempo.data.rows import ANSWER_KEYS, ID_KEYS
from mempo.storage.jsonl import is_blank, json_name, open_bytes, parse_object

_PARQUET_MAGIC = b"PAR1"
_BOM = b"\xef\xbb\xbf"
_COLUMNS = forms.COLUMNS | {
    *(*ID_KEYS, *ANSWER_KEYS, "question", "answer_aliases", "answer_id", "prompt", "reward_model", "extra_info"),
    *("data_source", "ability", "type", "level", "answerable", "source", "probe", "meta", "decomposition"),
    *("steps", "documents", "gold_docs", "supporting_facts"),
}
"""Columns read from parquet; others may hold whole pages of context."""
_HEADS = frozenset({"question", *forms.QUESTION_KEYS})
_WRAPPERS = ("data", "Data", "questions", "examples", "rows")
_CELL_CHARS = 1 << 27

Read = Callable[[], Mapping[str, Any]]
Rows = Iterator[tuple[str, Read]]
"""Where a row stands ("line 3"), and a call that gives it or raises ValueError with the reason."""


def rows_of(path: Path) -> Rows:
    """Raises QuestionFileError when the file as a whole cannot be read; OSError when it cannot be opened."""
    with open_bytes(path) as file:
        head = file.read(1 << 16).removeprefix(_BOM).lstrip()
    if head.startswith(_PARQUET_MAGIC):
        return _parquet_rows(path)
    if head.startswith(b"["):  # a line of jsonl begins with a brace
        return _document_rows(path, _whole(path))
    if head.startswith(b"{"):
        document = _document(path)
        return _jsonl_rows(path) if document is None else _document_rows(path, document)
    delimiter, names = _table(path, head)
    return _jsonl_rows(path) if delimiter is None else _table_rows(path, delimiter, names)


# --- JSON ----------------------------------------------------------------------------------------------------------


def _jsonl_rows(path: Path) -> Rows:
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            if is_blank(line):
                continue
            try:
                row = parse_object(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}", _raising(error)
                continue
            for k, part in enumerate(_flattened(row), start=1):
                yield f"line {number}" + (f", question {k}" if part is not row else ""), lambda part=part: part


def _document(path: Path) -> Any:
    """The object that is the whole file; None where lines are objects of their own."""
    with open_bytes(path) as file:
        line = next((line for line in file if not is_blank(line)), b"")
        try:
            first = parse_object(line)
        except (ValueError, RecursionError):
            first = None
        if first is not None and (any(not is_blank(line) for line in file) or _listed(first) is None):
            return None
    try:
        return first or _whole(path)
    except QuestionFileError:
        return None  # the lines tell better what is wrong


def _whole(path: Path) -> Any:
    with open_bytes(path) as file:
        content = file.read()
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise QuestionFileError(f"questions {path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise QuestionFileError(f"questions {path}: not usable JSON ({error})") from None


def _listed(document: Mapping[str, Any]) -> list[Any] | None:
    """The rows inside one object: under a name such as `data`, or one under each id; None where it is a row itself."""
    if not _HEADS.isdisjoint(document):
        inner = document.get("questions")
        return inner if isinstance(inner, list) and inner and isinstance(inner[0], Mapping) else None
    for key in _WRAPPERS:
        inner = document.get(key)
        if isinstance(inner, list) and all(isinstance(item, Mapping) for item in inner):
            return inner
    values = list(document.values())
    if values and all(isinstance(value, Mapping) and not _HEADS.isdisjoint(value) for value in values):
        return [{"id": key, **value} for key, value in document.items()]
    return None


def _document_rows(path: Path, document: Any) -> Rows:
    rows = document if isinstance(document, list) else _listed(document)
    if rows is None:
        rows = [document]
    number = 0
    for row in rows:
        for part in _flattened(row):
            yield f"row {number}", lambda part=part: _object(part)
            number += 1


def _flattened(row: Any) -> Iterator[Any]:
    """The questions of an article (`paragraphs` with `qas`: SQuAD) or of a passage (`qas`: MRQA); a row is its own."""
    if not isinstance(row, Mapping):
        yield row
    elif isinstance(paragraphs := row.get("paragraphs"), list) and any(
        isinstance(paragraph, Mapping) and "qas" in paragraph for paragraph in paragraphs
    ):
        title = {"title": row["title"]} if isinstance(row.get("title"), str) else {}
        for paragraph in paragraphs:
            for part in _flattened(paragraph):
                yield {**title, **part} if isinstance(part, Mapping) else part
    elif isinstance(qas := row.get("qas"), list):
        yield from qas
    elif row.keys() != {"header"}:  # what MRQA's files begin with
        yield row


def _object(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object, got {json_name(row)}")
    return row


def _raising(error: Exception) -> Read:
    def read() -> Mapping[str, Any]:
        raise error

    return read


# --- tables --------------------------------------------------------------------------------------------------------


def _table(path: Path, head: bytes) -> tuple[str | None, list[str] | None]:
    """The delimiter of a table, None for another kind of file; and the names of its columns where it does not say them.

    Raises:
        QuestionFileError: a file that is called a table has no column with questions.
    """
    line = head.splitlines()[0].decode("utf-8", "replace") if head else ""
    named = path.name.removesuffix(".gz").endswith((".csv", ".tsv"))
    for delimiter in "\t,;":
        cells = _cells(line, delimiter)
        if len(cells) > 1 and not _HEADS.isdisjoint(cells):
            return delimiter, None
        # As DPR's files have it: a question and a list of answers, and no header.
        if named and len(cells) == 2 and cells[1].startswith("[") and cells[1].endswith("]"):
            return delimiter, ["question", "answer"]
    if named and line:
        found = ", ".join(f'"{cell}"' for cell in max((_cells(line, d) for d in "\t,;"), key=len)[:12])
        raise QuestionFileError(
            f"questions {path}: no column holds questions; its columns are {found}; known forms: {forms.KNOWN}"
        )
    return None, None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _table_rows(path: Path, delimiter: str, names: list[str] | None) -> Rows:
    csv.field_size_limit(_CELL_CHARS)
    with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=delimiter)
        line = 1
        try:
            for cells in reader:
                place, line = f"line {line}", reader.line_num + 1
                if not any(cell.strip() for cell in cells):
                    continue
                if names is None:
                    names = [name.strip() for name in cells]
                    continue
                yield place, lambda cells=cells, names=names: _cells_by_name(cells, names)
        except UnicodeDecodeError:
            raise QuestionFileError(f"questions {path}, line {line}: not UTF-8") from None
        except csv.Error as error:
            raise QuestionFileError(f"questions {path}, line {line}: not a table ({error})") from None


def _cells_by_name(cells: list[str], names: list[str]) -> Mapping[str, Any]:
    if len(cells) != len(names):
        raise ValueError(f"it has {len(cells)} columns, the first line {len(names)}; quote what holds a delimiter")
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell.strip()}


def _parquet_rows(path: Path) -> Rows:
    import pyarrow as pa  # here: it takes long to load, and most files are jsonl
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            # Where none of them is a question, the message names all that are there.
            columns = [name for name in names if name in _COLUMNS] or names
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for row in batch.to_pylist():
                    yield f"row {number}", lambda row=row: row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise QuestionFileError(f"questions {path}: damaged parquet file ({error})") from None
