"""Batched generation with the log-probs of what was sampled.

Rows leave the batch when they end and waiting prompts take their place. A prompt begins from whatever prefix of it was
forwarded before: the question of a group once, and in a context that only grows, all earlier turns (`decode_slots.py`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch

from mempo.engine.decode_slots import LiveRows, live_rows
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sample_token import sample, uniforms
from mempo.engine.stop import StopWatcher
from mempo.errors import UserError
from mempo.rollout.interfaces import Generation, SamplingParams

LEAVE_AT = 0.9
"""The share of live rows at which the others leave."""
REFILL_AT = 0.75
"""The share of live rows at which waiting prompts take the place of the others: many at once are forwarded together."""


@torch.no_grad()
def generate_batch(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams],
    forward: SharedForward | None = None,
    max_tokens: int = 65_536,
    looks_late: bool | None = None,
) -> list[Generation]:
    """Continue every prompt. `forward` keeps prefixes from call to call; `max_tokens`: rows × longest sequence at once;
    `looks_late` (see `_Batch`): None means on every device but the CPU.

    Log-probs are those of the temperature-scaled distribution before top-k and top-p, at temperature 1 for greedy
    decoding. A sampled end-of-sequence token is part of the result; tokens that begin after a stop string are not.

    Raises:
        UserError: the model's log-probs are not finite numbers.
    """
    forward = forward or SharedForward(policy)
    columns = max(len(prompt) + one.max_new_tokens for prompt, one in zip(prompts, sampling, strict=True))
    rows = min(len(prompts), max(1, max_tokens // columns))
    return _Batch(policy, live_rows(forward, rows, columns + 1), prompts, sampling, rows, looks_late).run()


class _Batch:
    """Which request is in which row, and how far each has come.

    On a device that works by itself the next step is launched before the tokens of this one are looked at, so that it
    never waits for the host; a row that ends is then fed one token more.
    """

    def __init__(
        self,
        policy: Policy,
        live: LiveRows,
        prompts: Sequence[Sequence[int]],
        sampling: Sequence[SamplingParams],
        capacity: int,
        looks_late: bool | None = None,
    ) -> None:
        self._live, self._prompts, self._sampling, self._capacity = live, prompts, sampling, capacity
        self._device = policy.device
        self._looks_late = policy.device.type != "cpu" if looks_late is None else looks_late
        self._watchers = [StopWatcher(policy.tokenizer, one) for one in sampling]
        self._noise = torch.from_numpy(uniforms(sampling, max(one.max_new_tokens for one in sampling)))
        self._waiting = deque(range(len(prompts)))
        self._rows: list[int] = []  # the request in each row; it may have ended
        self._fed: list[int] = []  # tokens of each row that the model has seen
        self._logits = torch.zeros(0)

    def run(self) -> list[Generation]:
        self._refill()
        while True:
            tokens, logprobs = self._choose()
            if self._looks_late:
                self._step(tokens)
            self._look(tokens.tolist(), logprobs.tolist())
            if not self._going and not self._waiting:
                return [watcher.generation() for watcher in self._watchers]
            tokens = self._make_room(tokens)
            if not self._looks_late and self._going:
                self._step(tokens)
            self._refill()

    @property
    def _going(self) -> list[int]:
        """Rows that have not ended."""
        return [row for row, request in enumerate(self._rows) if self._watchers[request].stop is None]

    def _choose(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next token of every row and its log-prob, `[rows]` each."""
        logprobs = torch.log_softmax(self._logits.float() / self._scale, dim=-1)
        uniform = self._row_noise.gather(1, self._count)[:, 0]
        sampled = sample(logprobs, uniform, [self._sampling[request] for request in self._rows])
        tokens = sampled if self._greedy is None else torch.where(self._greedy, logprobs.argmax(-1), sampled)
        self._count = (self._count + 1).clamp(max=self._row_noise.shape[1] - 1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    def _step(self, tokens: torch.Tensor) -> None:
        going = self._going
        active = torch.zeros(len(self._rows), dtype=torch.long)
        active[going] = 1
        self._logits = self._live.step(tokens, active.to(self._device, non_blocking=True), max(self._fed))
        for row in going:
            self._fed[row] += 1

    def _look(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        if not all(map(math.isfinite, logprobs)):
            raise UserError(
                "the model gives log-probs that are not finite numbers: its weights are damaged, or training diverged; "
                "go back to an earlier checkpoint, and lower rl.optim.lr if it was training"
            )
        for row in self._going:
            request = self._rows[row]
            watcher = self._watchers[request]
            watcher.add(tokens[row], logprobs[row])
            if watcher.stop is not None:
                prompt = self._prompts[request]
                self._live.ended(row, [*prompt, *watcher.generation().ids][: self._fed[row]], len(prompt))

    def _make_room(self, tokens: torch.Tensor) -> torch.Tensor:
        """Once enough rows have ended and nobody waits for their place, they leave; the tokens of those that stay."""
        going = self._going
        if self._waiting or not going or len(going) > LEAVE_AT * len(self._rows):
            return tokens
        # Rows in front stay where they are, and those behind fill the gaps: little is moved.
        behind = [row for row in going if row >= len(going)]
        ended = set(range(len(going))).difference(going)
        order = [behind.pop() if row in ended else row for row in range(len(going))]
        self._live.keep(order)
        self._rows, self._fed = [self._rows[row] for row in order], [self._fed[row] for row in order]
        rows = torch.tensor(order, device=self._device)
        self._logits = self._logits[rows]
        self._lay_out()
        return tokens[rows]

    def _refill(self) -> None:
        """Waiting prompts take the place of rows that have ended, many at a time, since they are forwarded together."""
        going = self._going
        if not self._waiting or (going and not self._live.takes_more):
            return
        if going and len(going) > REFILL_AT * self._capacity:
            return
        free = [row for row in range(self._capacity) if row not in set(going)]
        entering = [self._waiting.popleft() for _ in free[: len(self._waiting)]]
        rows = free[: len(entering)]
        logits = self._live.begin(rows, [self._prompts[request] for request in entering])
        size = max(len(self._rows) if going else 0, max(rows) + 1)
        grown = logits.new_zeros(size, logits.shape[-1])
        if going:
            grown[: len(self._rows)] = self._logits
        grown[torch.tensor(rows, device=logits.device)] = logits
        self._logits = grown
        self._rows = (self._rows + [0] * size)[:size]
        self._fed = (self._fed + [0] * size)[:size]
        for row, request in zip(rows, entering, strict=True):
            self._rows[row], self._fed[row] = request, len(self._prompts[request])
        self._lay_out()

    def _lay_out(self) -> None:
        """What belongs to the rows, on the device."""
        sampling = [self._sampling[request] for request in self._rows]
        count = [len(self._watchers[request].generation().ids) for request in self._rows]
        last = self._noise.shape[1] - 1
        self._row_noise = self._noise[torch.tensor(self._rows)].to(self._device)
        self._count = torch.tensor([[min(n, last)] for n in count], device=self._device)
        self._scale = torch.tensor([one.temperature or 1.0 for one in sampling], device=self._device)[:, None]
        greedy = [one.temperature == 0 for one in sampling]
        self._greedy = torch.tensor(greedy, device=self._device) if any(greedy) else None
