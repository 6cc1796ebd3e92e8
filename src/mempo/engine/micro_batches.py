"""Micro-batches of rows that begin alike: what they share goes through the model once.

The rollouts of a question begin with the same prompt, and in a rebuilt context all of their turns do. A micro-batch
whose rows share their first P tokens costs P + rows x (longest - P) tokens instead of rows x longest. Rows are grouped
by what they begin with as far as that makes the whole cheaper, padding included, and by length inside a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mempo.engine.padding import micro_batches

PASS_TOKENS = {"cpu": 64, "cuda": 1024}
"""What one more pass through the model costs besides its tokens, in tokens: a guess that only speed depends on. A GPU
is idle while a small pass is being launched."""
_DEEPEST = 50

Ids = tuple[int, ...]


@dataclass(frozen=True)
class SharedBatch:
    """`rows` by index, longest first; their first `prefix` tokens are the same and go through the model once."""

    rows: tuple[int, ...]
    prefix: int
    longest: int

    @property
    def tokens(self) -> int:
        """Through the model, padding included."""
        return self.prefix + len(self.rows) * (self.longest - self.prefix)


def shared_batches(
    ids: Sequence[Ids],
    prompts: Sequence[int],
    budget_tokens: int,
    share: bool,
    pass_tokens: int = PASS_TOKENS["cpu"],
) -> list[SharedBatch]:
    """Group rows `ids` so that each micro-batch has at most `budget_tokens` tokens (a longer row goes alone).

    `prompts`: how many tokens of each row may be shared: those from which nothing is predicted. Without `share`, none.
    """
    lengths = [len(row) for row in ids]
    if not share:
        return [SharedBatch(tuple(part), 0, lengths[part[0]]) for part in micro_batches(lengths, budget_tokens)]
    # In lexicographic order rows that begin alike are neighbours. A run of rows either shares what all of it has in
    # common, or falls apart where neighbours have no more than that in common; each piece decides again.
    shareable = [row[:count] for row, count in zip(ids, prompts, strict=True)]
    order = sorted(range(len(ids)), key=lambda i: shareable[i])
    common = [_common(shareable[a], shareable[b]) for a, b in pairwise(order)]

    def cost(batches: list[SharedBatch]) -> int:
        return sum(batch.tokens + pass_tokens * (2 if batch.prefix else 1) for batch in batches)

    def best(start: int, stop: int, depth: int) -> list[SharedBatch]:
        """The cheaper way for the rows `order[start:stop]`."""
        together = _cut(order[start:stop], ids, prompts, budget_tokens, pass_tokens)
        if stop - start == 1 or depth == _DEEPEST:
            return together
        least = min(common[start : stop - 1])
        cuts = [k + 1 for k in range(start, stop - 1) if common[k] == least]
        apart = [batch for a, b in pairwise([start, *cuts, stop]) for batch in best(a, b, depth + 1)]
        return min(together, apart, key=cost)

    return best(0, len(order), 0) if order else []


def _common(a: Ids, b: Ids) -> int:
    """How many tokens two rows begin with alike."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cut(
    group: Sequence[int], ids: Sequence[Ids], prompts: Sequence[int], budget_tokens: int, pass_tokens: int
) -> list[SharedBatch]:
    """A group in micro-batches, longest rows first; what the whole group shares does not count for each row."""
    shared = _with_prefix(sorted(group, key=lambda i: (-len(ids[i]), i)), ids, prompts, pass_tokens).prefix
    parts = micro_batches([len(ids[i]) - shared for i in group], max(budget_tokens - shared, 1))
    # Parts of a group that shares do so at any price: their budget counts on it.
    return [_with_prefix([group[k] for k in part], ids, prompts, 0 if shared else pass_tokens) for part in parts]


def _with_prefix(part: Sequence[int], ids: Sequence[Ids], prompts: Sequence[int], pass_tokens: int) -> SharedBatch:
    """What all rows have in common is what the first and the last of them in lexicographic order have."""
    longest, count = len(ids[part[0]]), len(part)
    most = min(prompts[i] for i in part)
    prefix = min(_common(min(ids[i] for i in part), max(ids[i] for i in part)), most)
    worth = prefix * (count - 1) > pass_tokens
    return SharedBatch(tuple(part), prefix if worth else 0, longest)
