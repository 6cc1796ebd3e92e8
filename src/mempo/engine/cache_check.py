"""What a model's cache is good for, tried once on a few tokens with the weights that were loaded.

A cache that a model ignores, or reads in another way than expected, raises nothing: the log-probs of what is sampled
are simply not those of a whole pass. No list of names foresees that, so it is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from mempo.engine.kv_cache import (
    Behind,
    CacheShape,
    Slots,
    behind_mask,
    cache_shape,
    keeps_everything,
    states_cached,
)
from mempo.engine.padded_rows import PaddedRows
from mempo.errors import UserError

_SHARED_TOLERANCE, _WHOLE_TOLERANCE = (1e-4, 3e-2), (1e-3, 1e-1)
"""Of the largest logit, in float32 and in half precision. Kept prefixes have to agree more closely than a model has to
in order to be taken at all."""
_HALF_SHARE = 0.7
"""In half precision an expert may be chosen otherwise now and then: this share of a row's positions has to agree."""


@dataclass(frozen=True)
class CacheUse:
    """`prefix`: what is kept of a token where rows may share prefixes, else None. `drops_rows`: whether rows may be
    taken out of the model's own cache."""

    prefix: CacheShape | None
    drops_rows: bool = True


def cache_use(model: PreTrainedModel, plain_head: bool) -> CacheUse:
    """How rows of this model may be fed token by token; tried at the first call, and anew after a change of its
    precision or its device.

    Raises:
        UserError: token by token the model does not compute what it computes in a whole pass.
    """
    key = (model.dtype, model.device, plain_head, model.config._attn_implementation)
    known = _known.get(model)
    if known is None or known[0] != key:
        known = _known[model] = (key, _try(model, plain_head))
    return known[1]


_known: WeakKeyDictionary[PreTrainedModel, tuple[Any, CacheUse]] = WeakKeyDictionary()


def _shares(trial: _Trial, shape: CacheShape, plain_head: bool) -> bool:
    """Whether prefixes that are kept and gone on from give what whole passes give."""
    return all(
        trial.differs(lambda fed=fed: fed(trial, shape, plain_head), _SHARED_TOLERANCE) is None
        for fed in (_behind, _slots)
    )


@torch.no_grad()
def _try(model: PreTrainedModel, plain_head: bool) -> CacheUse:
    trial = _Trial(model)
    if not all(logits.isfinite().all() for logits in trial.whole):
        # Damaged weights say nothing about the cache; whoever samples from them says so.
        return CacheUse(cache_shape(model) if keeps_everything(model) else None)
    shape = _shape(model)
    if shape is not None and _shares(trial, shape, plain_head):
        return CacheUse(shape)
    reason = trial.differs(lambda: _padded(trial, drops_rows=True), _WHOLE_TOLERANCE)
    if reason is None:
        return CacheUse(None)
    if trial.differs(lambda: _padded(trial, drops_rows=False), _WHOLE_TOLERANCE) is None:
        return CacheUse(None, drops_rows=False)
    raise UserError(
        f"{type(model).__name__} (model_type {model.config.model_type}) cannot be sampled from in this process: "
        f"{reason}; take a model of another family (docs/models.md lists what was tried)"
    )


_LENGTHS = (15, 12)
_PASTS = (8, 5)
"""Of two sequences, and how much of each the cache holds before the rest is fed."""
_STEPS = min(length - past for length, past in zip(_LENGTHS, _PASTS, strict=True))

Compared = list[tuple[int, int, torch.Tensor]]
"""Logits `[tokens, vocabulary]` of a sequence, by its number, from a position on."""


class _Trial:
    """Two sequences of different lengths, and what the model says of each alone, without a cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        size = model.config.get_text_config().vocab_size
        self.ids = [[(7 * i + n) % size for i in range(length)] for n, length in enumerate(_LENGTHS)]
        self.rows = [torch.tensor([ids], device=model.device) for ids in self.ids]
        self.whole = [model(input_ids=row, use_cache=False).logits[0].float() for row in self.rows]

    def differs(self, made: Callable[[], Compared], tolerance: tuple[float, float]) -> str | None:
        """Why what is made is not what the model says in a whole pass; None where it is."""
        try:
            compared = made()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # each family fails in its own way when it is given a cache that it does not know
            said = (str(error).splitlines() or [""])[0][:200]
            return f"fed token by token it fails ({type(error).__name__}: {said})"
        apart: list[list[float]] = [[] for _ in self.ids]
        for n, at, logits in compared:
            difference = self.whole[n][at : at + len(logits)] - logits.float()
            apart[n] += difference.abs().amax(-1).nan_to_num(torch.inf).tolist()
        scale = max(float(logits.abs().max()) for logits in self.whole)
        if self.model.dtype in (torch.bfloat16, torch.float16):
            far = any(sorted(row)[int(_HALF_SHARE * len(row))] > tolerance[1] * scale for row in apart)
        else:
            far = any(max(row) > tolerance[0] * scale for row in apart)
        return f"fed token by token its logits are off by {max(map(max, apart)):.2g}" if far else None


def _shape(model: PreTrainedModel) -> CacheShape | None:
    try:
        return cache_shape(model) if keeps_everything(model) else None
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        return None


def _alone(trial: _Trial, shape: CacheShape, plain_head: bool) -> list[Behind]:
    """The keys and values of each sequence, forwarded alone into a cache of ours."""
    firsts = []
    for row in trial.rows:
        firsts.append(Behind(shape, 1, 0, row.shape[1]))
        states_cached(trial.model, plain_head, firsts[-1].cache, row, None, None)
    return firsts


def _behind(trial: _Trial, shape: CacheShape, plain_head: bool) -> Compared:
    """Rows behind kept prefixes of different lengths."""
    model, width = trial.model, max(length - past for length, past in zip(_LENGTHS, _PASTS, strict=True))
    behind = Behind(shape, len(_PASTS), max(_PASTS), width)
    new = torch.zeros(len(_PASTS), width, dtype=torch.long, device=model.device)
    for n, (past, first) in enumerate(zip(_PASTS, _alone(trial, shape, plain_head), strict=True)):
        first.taken(0, past).copy_into(behind.prefix(n, past))
        new[n, : _LENGTHS[n] - past] = trial.rows[n][0, past:]
    mask, positions = behind_mask(_PASTS, width, model.device)
    logits = states_cached(model, plain_head, behind.cache, new, mask, positions)
    if plain_head:
        head: Any = model.get_output_embeddings()
        logits = head(logits)
    return [(n, past, logits[n, : _LENGTHS[n] - past]) for n, past in enumerate(_PASTS)]


def _slots(trial: _Trial, shape: CacheShape, plain_head: bool) -> Compared:
    """Rows of different lengths in slots, that grow by a token each."""
    slots, compared = Slots(shape, len(_PASTS), max(_LENGTHS) + 1), []
    for n, (past, first) in enumerate(zip(_PASTS, _alone(trial, shape, plain_head), strict=True)):
        first.taken(0, past).copy_into(slots.begin(n, past))
    for step in range(_STEPS):
        tokens = torch.tensor([trial.ids[n][past + step] for n, past in enumerate(_PASTS)], device=trial.model.device)
        made = slots.step(trial.model, tokens, torch.ones_like(tokens), max(_PASTS) + step)
        compared += [(n, past + step, made[n : n + 1]) for n, past in enumerate(_PASTS)]
    return compared


def _padded(trial: _Trial, drops_rows: bool) -> Compared:
    """Rows over the model's own cache; after some steps the first one leaves."""
    rows, going = PaddedRows(trial.model, drops_rows), [0, 1]
    made = rows.begin(going, [trial.ids[n][:past] for n, past in enumerate(_PASTS)])
    compared: Compared = [(n, past - 1, made[n : n + 1]) for n, past in enumerate(_PASTS)]
    for step in range(_STEPS):
        if step == 3:
            rows.keep([1])
            going = [1]
        tokens = torch.tensor([trial.ids[n][_PASTS[n] + step] for n in going], device=trial.model.device)
        made = rows.step(tokens, torch.ones_like(tokens), max(_PASTS) + step)
        compared += [(n, _PASTS[n] + step, made[k : k + 1]) for k, n in enumerate(going)]
    return compared
