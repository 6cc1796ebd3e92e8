"""The dataset class that verl's SFT trainer loads for token-exact rows (`data.custom_cls`).

verl's own dataset renders `messages` with a chat template and tokenizes the text: what is learnt is then not always
what the policy will write. Here ids go through untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset

from mempo.cluster.sft_rows_file import SCHEMA, VOCABULARY, vocabulary_mark


class TokenRows(Dataset):
    """Rows of `mempo cluster sft-data`, with the arguments that verl calls a dataset class with.

    An item has `input_ids`, `position_ids` and `loss_mask` `[tokens]`; verl puts items of different lengths into nested
    tensors (`data.pad_mode=no_padding`).

    Raises:
        ValueError: another padding mode, a file of another kind or of another tokenizer, a row longer than
            `data.max_length` (nothing is ever cut).
    """

    def __init__(
        self,
        parquet_files: str | Iterable[str],
        tokenizer: Any,
        config: Mapping[str, Any],
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        if config.get("pad_mode") != "no_padding":
            raise ValueError(f"data.pad_mode is {config.get('pad_mode')!r}; token-exact rows need no_padding")
        files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        mark = vocabulary_mark(tokenizer)
        rows = pa.concat_tables([_read(file, mark) for file in files])
        self._rows = rows.slice(0, max_samples) if max_samples > 0 else rows
        limit, longest = config.get("max_length"), self.longest
        if limit is not None and longest > limit:
            raise ValueError(f"a row has {longest} tokens, more than data.max_length {limit}; set it to {longest}")

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((len(row) for row in self._rows["input_ids"]), default=0)

    def __len__(self) -> int:
        return self._rows.num_rows

    def __getitem__(self, item: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self._rows["input_ids"][item].as_py(), dtype=torch.long)
        mask = torch.tensor(self._rows["loss_mask"][item].as_py(), dtype=torch.long)
        return {"input_ids": ids, "position_ids": torch.arange(len(ids)), "loss_mask": mask}


def _read(file: str, mark: str) -> pa.Table:
    table = pq.read_table(file)
    if not table.schema.equals(SCHEMA):
        raise ValueError(f"{file} holds {table.schema.names}, not the rows of mempo cluster sft-data")
    if (table.schema.metadata or {}).get(VOCABULARY, b"").decode() != mark:
        raise ValueError(f"{file} holds ids of another tokenizer; make it again from a configuration with this model")
    return table
