"""Corpus files that are no lines of JSON yet: compressed ones, and tables (TSV, CSV, parquet). They are unpacked into
such lines, because documents are read one at a time from the middle of a file.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mempo.retrieval.errors import CorpusError
from mempo.retrieval.rows import COLUMNS, TEXT_KEYS
from mempo.storage.jsonl import ID_KEYS, is_compressed, open_bytes, valid_text

_PARQUET_MAGIC = b"PAR1"
_BOM = b"\xef\xbb\xbf"
_CELL_CHARS = 1 << 27


@dataclass(frozen=True)
class _Table:
    """`names` is None where the first line says them; such tables quote their cells, others (MS MARCO) do not."""

    delimiter: str
    names: tuple[str, ...] | None = None


def is_unpacked(path: Path) -> bool:
    """Whether the file is lines of JSON as it lies. OSError when it cannot be read."""
    if is_compressed(path):
        return False
    with path.open("rb") as file:
        head = _head(file)
    return not head.startswith(_PARQUET_MAGIC) and _table(head) is None


def unpack(path: Path, text: Path) -> None:
    """Writes the documents of `path` into `text`, one JSON object a line, on the line where each stands in a table.

    Raises CorpusError when the file is no table after all; OSError when it cannot be read.
    """
    with open_bytes(path) as file:
        head = _head(file)
    table = _table(head)
    with open_bytes(path) as file, text.open("wb") as out:
        if head.startswith(_PARQUET_MAGIC):
            for row in _parquet_rows(path):
                out.write(_line(row))
        elif table is not None:
            _write_table(path, file, table, out)
        else:
            shutil.copyfileobj(file, out, 1 << 20)


def _head(file: BinaryIO) -> bytes:
    return file.read(1 << 16).removeprefix(_BOM)


def _table(head: bytes) -> _Table | None:
    """A table has a column of texts by name; or, without names, an integer and a text on its first line."""
    line = (head.splitlines() or [b""])[0].decode("utf-8", "replace")
    if line.lstrip().startswith(("{", "[")):
        return None
    for delimiter in "\t,;":
        names = {name.strip().strip('"') for name in line.split(delimiter)}
        if len(names) > 1 and not names.isdisjoint(TEXT_KEYS):
            return _Table(delimiter)
    number, _, text = line.partition("\t")
    return _Table("\t", ("id", "text")) if number.isascii() and number.isdigit() and text else None


def _write_table(path: Path, file: BinaryIO, table: _Table, out: BinaryIO) -> None:
    csv.field_size_limit(_CELL_CHARS)
    names, quoting = table.names, csv.QUOTE_MINIMAL if table.names is None else csv.QUOTE_NONE
    line = 1
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=table.delimiter, quoting=quoting)
            for cells in reader:
                first, line = line, reader.line_num + 1
                if names is None:
                    names = tuple(cell.strip() for cell in cells)
                    row = b"\n"
                elif not cells:
                    row = b"\n"
                elif len(cells) != len(names):
                    raise CorpusError(
                        f"corpus {path}, line {first}: it has {len(cells)} columns, the table {len(names)}; "
                        "quote what holds a delimiter"
                    )
                else:
                    row = _line({k: v for k, v in zip(names, cells, strict=True) if v or k not in ID_KEYS})
                out.write(row + b"\n" * (line - first - 1))  # so that messages name the table's own lines
    except UnicodeDecodeError:
        raise CorpusError(f"corpus {path}, line {line}: not UTF-8") from None
    except csv.Error as error:
        raise CorpusError(f"corpus {path}, line {line}: not a table ({error})") from None


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa  # here: it takes long to load, and most files are jsonl
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for batch in file.iter_batches(batch_size=1024, columns=[n for n in names if n in COLUMNS] or names[:1]):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"corpus {path}: damaged parquet file ({error})") from None


def _line(row: Mapping[str, Any]) -> bytes:
    return valid_text(json.dumps(row, ensure_ascii=False, default=str)).encode() + b"\n"
