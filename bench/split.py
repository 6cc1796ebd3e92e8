"""Seconds of one scoring pass, told apart: those that the log-probs of the rollout take, and all the rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from timing import clock

from mempo.engine.kv_cache import Behind
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.prefix_plan import PlannedRow
from mempo.engine.scorer import LocalScorer, wanted
from mempo.rollout.interfaces import ScoreRequest


class SplitForward(SharedForward):
    """Counts the seconds that are owed to targets numbered below `_first_slots`.

    A batch that also answers others is split by tokens, its head rows by number. Storing keys and values is not
    counted: without the others nobody would need them.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.first_s = 0.0
        self._first_slots = 0
        self._leaving_s = 0.0
        self._share = 0.0

    def _forward(self, batch: Sequence[PlannedRow], keep: bool = False) -> tuple[list[int], torch.Tensor]:
        began, self._leaving_s = clock(self.policy.device), 0.0
        slots, states = super()._forward(batch, keep)
        took = clock(self.policy.device) - began - self._leaving_s
        first = [row for row in batch if any(t.slot < self._first_slots for t in row.targets)]
        self.first_s += took * sum(row.new_tokens for row in first) / sum(row.new_tokens for row in batch)
        self._share = sum(slot < self._first_slots for slot in slots) / len(slots)
        return slots, states

    def _leave(self, batch: Sequence[PlannedRow], made: Behind, keep: bool) -> None:
        began = clock(self.policy.device)
        super()._leave(batch, made, keep)
        self._leaving_s += clock(self.policy.device) - began

    def logprobs(self, states: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
        began = clock(self.policy.device)
        found = super().logprobs(states, targets, temperature)
        self.first_s += (clock(self.policy.device) - began) * self._share
        return found

    def seconds(self, first: Sequence[ScoreRequest], others: Sequence[ScoreRequest]) -> tuple[float, float]:
        """Of one pass over both with no prefix kept, as after an update: of `first`, and of what `others` add to it."""
        assert self.can_keep  # tried beforehand, once for a policy
        self.kept.clear()
        self.first_s, self._first_slots = 0.0, sum(len(wanted(request)) for request in first)
        began = clock(self.policy.device)
        LocalScorer(self.policy, forward=self).score([*first, *others])
        return self.first_s, clock(self.policy.device) - began - self.first_s
