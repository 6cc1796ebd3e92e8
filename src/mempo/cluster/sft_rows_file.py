"""Token-exact training rows in a parquet file: ids and which of them are learnt, for one tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mempo.rollout.trajectory import Row
from mempo.storage.atomic import atomic_file

SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
"""A row's ids, and 1 where the id was written by the expert: what comes before it predicts it."""
VOCABULARY = b"mempo.vocabulary"


def vocabulary_mark(tokenizer: Any) -> str:
    """A digest of which id means which token."""
    pairs = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode("utf-8", "surrogatepass")).hexdigest()


def loss_mask(row: Row) -> list[int]:
    """`[tokens]` of 0 and 1."""
    mask = [0] * len(row.ids)
    for segment in row.segments:
        mask[segment.start : segment.stop] = [1] * (segment.stop - segment.start)
    return mask


def write_rows(path: Path, rows: Sequence[Row], tokenizer: Any) -> None:
    """Write `rows` in order; the file says which tokenizer's ids they are."""
    columns = {"input_ids": [list(row.ids) for row in rows], "loss_mask": [loss_mask(row) for row in rows]}
    table = pa.table(columns, schema=SCHEMA.with_metadata({VOCABULARY: vocabulary_mark(tokenizer).encode()}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary)
