# pyright: reportMissingImports=false
"""verl's transfer queue as a dictionary, for runs in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu


class Queue:
    """verl's transfer queue, as far as a step uses it."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.tags: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)

    def put(self, keys: Sequence[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        for i, key in enumerate(keys):
            row = self.rows[partition_id].setdefault(key, {})
            if fields is not None:
                row.update({name: _plain(column[i]) for name, column in _columns(fields)})
            self.tags[partition_id].setdefault(key, {}).update(tags[i] if tags else {})
        return KVBatchMeta(keys=list(keys), tags=[self.tags[partition_id][k] for k in keys], partition_id=partition_id)

    async def async_put(self, **arguments: Any) -> KVBatchMeta:
        return self.put(**arguments)

    async def async_put_one(self, key: str, partition_id: str, fields: Any = None, tag: Any = None) -> None:
        row = None if fields is None else {name: [value] for name, value in fields.items()}
        self.put([key], partition_id, row, [tag or {}])

    def get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None) -> TensorDict:
        rows = [self.rows[partition_id][key] for key in keys]
        shared = [name for name in rows[0] if all(name in row for row in rows)]
        names = shared if select_fields is None else [name for name in select_fields if name in shared]
        return _together([{name: row[name] for name in names} for row in rows])

    def listed(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        return {name: dict(self.tags[name]) for name in ([partition_id] if partition_id else list(self.tags))}

    def clear(self, keys: Sequence[str], partition_id: str) -> None:
        for key in keys:
            self.rows[partition_id].pop(key, None)
            self.tags[partition_id].pop(key, None)

    @contextmanager
    def installed(self) -> Iterator[None]:
        names = {
            "kv_batch_put": self.put,
            "async_kv_batch_put": self.async_put,
            "async_kv_put": self.async_put_one,
            "kv_batch_get": self.get,
            "kv_list": self.listed,
            "kv_clear": self.clear,
        }
        with mock.patch.multiple(tq, **names):
            yield


def _columns(fields: Any) -> Iterator[tuple[str, Any]]:
    for name, column in fields.items():
        nested = isinstance(column, torch.Tensor) and column.is_nested
        yield name, list(column.unbind()) if nested else column


def _plain(value: Any) -> Any:
    return getattr(value, "data", value) if not isinstance(value, torch.Tensor) else value


def _together(rows: list[dict[str, Any]]) -> TensorDict:
    """Tensors of one or more places are always jagged here, as they are when lengths differ."""
    made = TensorDict({}, batch_size=[len(rows)])
    for name in rows[0]:
        column = [row[name] for row in rows]
        if not isinstance(column[0], torch.Tensor):
            tu.assign_non_tensor_stack(made, name, column)
        elif column[0].dim():
            made[name] = torch.nested.as_nested_tensor(column, layout=torch.jagged)
        else:
            made[name] = torch.stack(column)
    return made
