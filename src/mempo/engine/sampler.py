"""Batched generation with the log-probs of what was sampled.

Noise is keyed by the request, not by the batch: token k of a generation uses the k-th uniform number of its own stream,
so a sample does not depend on its neighbours (beyond the last bits of floating-point sums).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mempo.engine.compat import forward_cached, keep_rows, new_cache
from mempo.engine.model import Policy
from mempo.errors import UserError
from mempo.interfaces import Generation, SamplingParams
from mempo.tokens import Codec
from mempo.trajectory import GenerationStop

_COMPACT_AT = 0.75  # the share of live rows at which the others leave the batch


@torch.no_grad()
def generate_batch(
    policy: Policy, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]
) -> list[Generation]:
    """Continue every prompt; rows are left-padded, padding is masked by length, rows that have ended leave the batch.

    Log-probs are those of the temperature-scaled distribution before top-k and top-p, at temperature 1 for greedy
    decoding. A sampled end-of-sequence token is part of the result; tokens that begin after a stop string are not.
    """
    device = policy.device
    width, steps = max(len(prompt) for prompt in prompts), max(s.max_new_tokens for s in sampling)
    pads = torch.tensor([width - len(prompt) for prompt in prompts], device=device)[:, None]
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], dtype=torch.long, device=device)
    columns = torch.arange(width, device=device)[None]
    mask = torch.ones(len(prompts), width + steps, dtype=torch.long, device=device)
    mask[:, :width] = columns >= pads
    positions = (columns - pads).clamp(min=0)
    watchers = [StopWatcher(policy.codec, s) for s in sampling]
    live = _LiveRows.of(watchers, sampling, mask, positions[:, -1:], steps)

    cache = new_cache(policy.model)
    logits = forward_cached(policy.model, cache, ids, mask[:, :width], positions)
    for step in range(steps):
        logprobs = torch.log_softmax(logits.float() / live.scale, dim=-1)
        tokens = torch.where(live.greedy, logprobs.argmax(-1), _sample(logprobs, live.noise[:, step], live.sampling))
        picked = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        if not all(map(math.isfinite, picked)):
            raise UserError(
                "the model gives log-probs that are not finite numbers: its weights are damaged, or training diverged; "
                "go back to an earlier checkpoint, and lower rl.optim.lr if it was training"
            )
        for watcher, token, logprob in zip(live.watchers, tokens.tolist(), picked, strict=True):
            watcher.add(token, logprob)
        going = [k for k, watcher in enumerate(live.watchers) if watcher.stop is None]
        if not going:
            break
        if len(going) <= _COMPACT_AT * len(live.watchers):
            rows = torch.tensor(going, device=device)
            keep_rows(cache, rows)
            live, tokens = live.keep(rows), tokens[rows]
        logits = forward_cached(
            policy.model, cache, tokens[:, None], live.mask[:, : width + step + 1], live.next_positions()
        )
    return [watcher.generation() for watcher in watchers]


@dataclass
class _LiveRows:
    """What belongs to the rows still in the batch, row by row."""

    watchers: list[StopWatcher]
    sampling: list[SamplingParams]
    mask: torch.Tensor
    noise: torch.Tensor
    scale: torch.Tensor
    greedy: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(
        cls,
        watchers: Sequence[StopWatcher],
        sampling: Sequence[SamplingParams],
        mask: torch.Tensor,
        positions: torch.Tensor,
        steps: int,
    ) -> _LiveRows:
        return cls(
            list(watchers),
            list(sampling),
            mask,
            torch.from_numpy(_uniforms(sampling, steps)).to(mask.device),
            torch.tensor([s.temperature or 1.0 for s in sampling], device=mask.device)[:, None],
            torch.tensor([s.temperature == 0 for s in sampling], device=mask.device),
            positions,
        )

    def keep(self, rows: torch.Tensor) -> _LiveRows:
        kept = rows.tolist()
        tensors = (self.mask, self.noise, self.scale, self.greedy, self.positions)
        return _LiveRows(
            [self.watchers[k] for k in kept], [self.sampling[k] for k in kept], *(t[rows] for t in tensors)
        )

    def next_positions(self) -> torch.Tensor:
        """One further, `[rows, 1]`. Rows that have ended are fed along but stay: they must not leave the window."""
        going = [[int(watcher.stop is None)] for watcher in self.watchers]
        self.positions = self.positions + torch.tensor(going, device=self.positions.device)
        return self.positions


def _uniforms(sampling: Sequence[SamplingParams], steps: int) -> np.ndarray:
    """`[rows, steps]` numbers in [0, 1): one counter-based stream per row."""
    return np.stack([np.random.Generator(np.random.Philox(s.seed)).random(steps) for s in sampling])


def _sample(logprobs: torch.Tensor, uniform: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """The token at which the cumulative probability passes `uniform` `[rows]`, in float64."""
    probs = logprobs.double().exp()
    if any(s.top_k > 0 or s.top_p < 1 for s in sampling):
        probs = _filtered(probs, sampling)
    cumulative = probs.cumsum(-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    # The first position whose cumulative sum exceeds the threshold always has probability above 0.
    return (cumulative <= threshold).sum(-1).clamp(max=probs.shape[-1] - 1)


def _filtered(probs: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
    """Zero what top-k and top-p exclude; the most likely token always stays."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[-1], device=probs.device)[None]
    top_k = torch.tensor([s.top_k or probs.shape[-1] for s in sampling], device=probs.device)[:, None]
    top_p = torch.tensor([s.top_p for s in sampling], device=probs.device)[:, None]
    before = ordered.cumsum(-1) - ordered
    keep = (ranks < top_k) & ((before < top_p) | (ranks == 0))
    return torch.zeros_like(probs).scatter(1, order, ordered * keep)


class StopWatcher:
    """Collects one generation and says when it ends: end of sequence, stop string, or length."""

    def __init__(self, codec: Codec, sampling: SamplingParams) -> None:
        self._codec = codec
        self._sampling = sampling
        self._last_chars = {stop[-1] for stop in sampling.stop}
        self._reach = max((len(stop) for stop in sampling.stop), default=0) + 1
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self.stop: GenerationStop | None = None

    def add(self, token: int, logprob: float) -> None:
        """One more sampled token; ignored once the generation has ended."""
        if self.stop is not None:
            return
        self._ids.append(token)
        self._logprobs.append(logprob)
        if token in self._codec.eos_ids:
            self.stop = GenerationStop.EOS
        elif self._ends_stop_string(token):
            self.stop = GenerationStop.STOP_STRING
        elif len(self._ids) >= self._sampling.max_new_tokens:
            self.stop = GenerationStop.LENGTH

    def generation(self) -> Generation:
        return Generation(tuple(self._ids), tuple(self._logprobs), self.stop or GenerationStop.LENGTH)

    def _ends_stop_string(self, token: int) -> bool:
        """A stop string may straddle tokens: its last character must be in this one, its first at most `reach` back.

        Every token but one inside a character adds a character at least, so the last `4 * reach` tokens hold it.
        """
        piece = self._codec.piece(token)
        if "\ufffd" not in piece and not self._last_chars.intersection(piece):
            return False
        tail = self._codec.decode(self._ids[-4 * self._reach :])
        if not any(stop in tail for stop in self._sampling.stop):
            return False
        self._drop_beyond()
        return True

    def _drop_beyond(self) -> None:
        """Cut tokens that begin after the first stop string; the one that straddles its end stays whole."""
        decoded = self._codec.decode_spans(self._ids)
        ends = [decoded.text.find(s) + len(s) for s in self._sampling.stop if s in decoded.text]
        if ends:
            kept = decoded.tokens_of(0, min(ends))
            length = kept[1] if kept else len(self._ids)
            del self._ids[length:], self._logprobs[length:]
