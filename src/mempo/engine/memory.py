"""Running out of memory is the user's to fix: one message with the numbers and the settings that help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mempo.errors import UserError


def is_out_of_memory(error: BaseException) -> bool:
    """On a GPU, or on the CPU, where torch says it in words."""
    words = ("can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


@contextmanager
def memory_explained(explain: Callable[[], str]) -> Iterator[None]:
    """Turn an out-of-memory error of the block into a `UserError`: what `explain()` says, and torch's first sentences.

    `explain` is called when it happens, so it can tell what was at work.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        sentences = " ".join(str(error).split()).split(". ")
        raise UserError(f"{explain()} ({'. '.join(sentences[:2])[:200] or 'MemoryError'})") from error
