"""Which tokens to forward, so that no shared prefix is forwarded twice. Pure planning; nothing is computed here.

Sequences that share a beginning hang together as a tree. Its longest path is forwarded as one row; what branches off it
becomes rows of a later wave, which start from the keys and values that the path has left. A prefix is shared where that
is cheaper than forwarding it again: a row that starts from a kept prefix needs an attention mask, and masked attention
skips no block, which costs a long row more than a short prefix saves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mempo.engine.prefix_cache import Ids, common_length


@dataclass(frozen=True)
class Target:
    """The hidden state at `position` of a sequence is wanted, as number `slot` of all that is asked."""

    position: int
    slot: int


@dataclass
class PlannedRow:
    """`ids[past:]` are forwarded behind the kept keys and values of `ids[:past]`.

    `keep`: keys and values of `ids[:keep]` are needed by rows of later waves.
    """

    ids: Ids
    past: int
    wave: int
    targets: list[Target] = field(default_factory=list)
    keep: int = 0

    @property
    def new_tokens(self) -> int:
        return len(self.ids) - self.past


@dataclass
class _Sequence:
    ids: Ids
    targets: list[Target]
    stored: int  # kept before this plan
    shared: int = 0  # kept once the row `owner` is done
    owner: PlannedRow | None = None


Cost = Callable[[int, int], float]
"""`(past, new)` → what a row costs, in tokens of a plain row."""


def masked_cost(width: int) -> Cost:
    """A row behind a kept prefix pays for attention blocks that a plain causal row skips: about new² / (12 · width)
    tokens' worth, a layer having about 12 · width² weights; and it reads the prefix."""

    def cost(past: int, new: int) -> float:
        return new + (new * new / (12 * width) + 0.02 * past + 1 if past else 0)

    return cost


def plan_rows(
    sequences: Sequence[tuple[Ids, Sequence[Target]]], stored: Callable[[Ids], int], cost: Cost
) -> list[PlannedRow]:
    """Rows that answer every target, waves in order. `stored(ids)`: how much of a sequence is kept already.

    What lies behind the last target of a sequence must be cut off by the caller.
    """
    merged: dict[bytes, _Sequence] = {}
    for ids, targets in sequences:
        key = ids.tobytes()
        if key not in merged:
            merged[key] = _Sequence(ids, [], stored(ids))
        merged[key].targets += targets
    rows: list[PlannedRow] = []
    waiting = [list(merged.values())] if merged else []
    while waiting:
        group = waiting.pop()
        group.sort(key=lambda s: (-len(s.ids), s.ids.tobytes()))
        first, others = group[0], group[1:]
        row = _row(first, cost)
        rows.append(row)
        branches: dict[tuple[int, int], list[_Sequence]] = defaultdict(list)
        for other in others:
            shared = common_length(row.ids, other.ids)
            # A position that lies in the shared part behind what is kept is answered by the row itself.
            row.targets += [t for t in other.targets if row.past <= t.position < shared]
            other.targets = [t for t in other.targets if not row.past <= t.position < shared]
            if not other.targets:
                continue
            if shared > max(other.shared, other.stored):
                other.shared, other.owner = shared, row
            branches[shared, int(other.ids[shared]) if shared < len(other.ids) else -1].append(other)
        waiting += branches.values()
    return sorted(rows, key=lambda row: row.wave)


def _row(sequence: _Sequence, cost: Cost) -> PlannedRow:
    """The cheapest way to forward a sequence: from nothing, from what was stored, or from what another row leaves."""
    length = len(sequence.ids)
    limit = min(t.position for t in sequence.targets)  # a hidden state is not kept: its token is forwarded
    options = [(cost(0, length), 0, 0)]
    if sequence.stored:
        past = min(sequence.stored, limit)
        options.append((cost(past, length - past), past, 0))
    if sequence.owner is not None:
        past = min(sequence.shared, limit)
        options.append((cost(past, length - past), past, sequence.owner.wave + 1))
    _, past, wave = min(options)
    if wave and sequence.owner is not None:
        sequence.owner.keep = max(sequence.owner.keep, past)
    return PlannedRow(sequence.ids, past, wave, list(sequence.targets))


PASS_TOKENS = 32
"""What one more pass costs besides its tokens, in tokens: a guess that only speed depends on."""
PAST_TOKENS = 0.03
"""What one kept token costs that is put before a row, padding included, in tokens that are forwarded."""


def batches(rows: Sequence[PlannedRow], budget_tokens: int) -> list[list[PlannedRow]]:
    """Rows of one wave in rectangles: rows × longest new part within the budget, and kept prefixes at most four budgets
    wide. Plain rows and rows with a prefix go apart.

    Of the ways to cut the rows, in order of their new tokens or of their prefixes, the cheapest, padding and passes
    counted.
    """
    out: list[list[PlannedRow]] = []
    for behind in (False, True):
        some = [row for row in rows if (row.past > 0) == behind]
        orders = [sorted(some, key=lambda r: (-r.new_tokens, -r.past))]
        if behind:
            orders.append(sorted(some, key=lambda r: (-r.past, -r.new_tokens)))
        _, cut = min((_cheapest_cut(order, budget_tokens) for order in orders), key=lambda found: found[0])
        out += cut
    return out


def _cheapest_cut(order: Sequence[PlannedRow], budget_tokens: int) -> tuple[float, list[list[PlannedRow]]]:
    """The cost of all batches and the batches, each a run of neighbours; found from the first row to the last."""
    width, deepest = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    cost, began, earliest = np.zeros(len(order) + 1), [0] * len(order), 0
    for last, row in enumerate(order):
        # Where the batch that ends with this row may begin. One too large with it stays too large with more rows.
        earliest = max(earliest, last + 1 - max(budget_tokens // row.new_tokens, 1))
        first = slice(earliest, last + 1)
        np.maximum(width[first], row.new_tokens, out=width[first])
        np.maximum(deepest[first], row.past, out=deepest[first])
        count = np.arange(last + 1 - earliest, 0, -1)
        new, past = count * width[first], count * deepest[first]
        fits = (new <= budget_tokens) & (new + past <= 4 * budget_tokens)
        fits[-1] = True  # a row that is too long goes alone
        whole = np.where(fits, cost[first] + PASS_TOKENS + new + PAST_TOKENS * past, np.inf)
        began[last] = earliest + int(whole.argmin())
        cost[last + 1] = whole.min()
    cut, stop = [], len(order)
    while stop:
        cut.append(list(order[began[stop - 1] : stop]))
        stop = began[stop - 1]
    return float(cost[-1]), cut[::-1]
