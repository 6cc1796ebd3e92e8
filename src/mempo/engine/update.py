"""One optimizer step over training rows: micro-batches by token budget, the result independent of how they are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mempo.engine.model import Policy, logits_at
from mempo.engine.optimizer import OptimSettings, make_optimizer
from mempo.engine.padding import micro_batches, right_padded
from mempo.loss import LossSettings, policy_loss, token_weights
from mempo.trajectory import Row


@dataclass(frozen=True)
class TrainRow:
    """A row with its constants: advantages and old log-probs `[tokens]`, read inside the segments only."""

    row: Row
    advantages: Sequence[float]
    logp_old: Sequence[float]


@dataclass
class TokenBatch:
    """The generated tokens of some rows, flattened to `[picked]`, and where their logits are."""

    input_ids: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    temperature: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> TokenBatch:
        """The token at position p is predicted from position p - 1; segments never start at 0."""
        picks = [
            (k, p - 1, row.ids[p], row.temperature)
            for k, row in enumerate(rows)
            for seg in row.segments
            for p in range(seg.start, seg.stop)
        ]
        where, positions, targets, temperature = zip(*picks, strict=True)
        return cls(
            right_padded([row.ids for row in rows], device),
            torch.tensor(where, device=device),
            torch.tensor(positions, device=device),
            torch.tensor(targets, device=device),
            torch.tensor(temperature, device=device),
        )

    def logprobs(self, policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the targets `[picked]` and of the whole vocabulary `[picked, vocabulary]`, at the sampling
        temperature."""
        logits = logits_at(policy, self.input_ids, self.rows, self.positions) / self.temperature[:, None]
        logprobs = torch.log_softmax(logits, dim=-1)
        return logprobs.gather(1, self.targets[:, None])[:, 0], logprobs


class Updater:
    """The optimizer of one policy. Advantages, old log-probs and the reference are constants; the gradient flows
    through the new log-probs alone."""

    def __init__(
        self,
        policy: Policy,
        optim: OptimSettings,
        loss: LossSettings | None = None,
        reference: Policy | None = None,
    ) -> None:
        self.policy = policy
        self.optimizer = make_optimizer(policy.model, optim)
        self._optim = optim
        self._loss = loss or LossSettings()
        self._reference = reference

    def rl_step(self, rows: Sequence[TrainRow], lr: float) -> dict[str, float]:
        """One clipped policy-gradient step over `rows` together.

        Without a generated token there is nothing to do: no step, and the metrics say so.
        """
        tokens = [r.row.generated_tokens for r in rows]
        if not sum(tokens):
            return {"update/skipped": 1.0}
        weights = token_weights(tokens, [r.row.trajectory for r in rows], self._loss.aggregate)
        totals: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for part in self._parts([r.row for r in rows]):
            batch = TokenBatch.of([rows[i].row for i in part], self.policy.device)
            logp_new, every = batch.logprobs(self.policy)
            with torch.no_grad():
                entropy = torch.special.entr(every.exp()).sum(-1)  # 0 where the probability is
            logp_ref = None
            if self._reference is not None:
                with torch.no_grad():
                    logp_ref, _ = batch.logprobs(self._reference)
            loss, stats = policy_loss(
                logp_new,
                self._inside(rows, part, "logp_old"),
                self._inside(rows, part, "advantages"),
                torch.ones_like(logp_new),
                self._tensor([w for i in part for w in [weights[i]] * tokens[i]]),
                self._loss,
                logp_ref,
                entropy,
            )
            loss.backward()
            for name, value in {**stats, "loss": loss.detach()}.items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return {**{f"update/{name}": value for name, value in totals.items()}, **self._apply(lr)}

    def sft_step(self, rows: Sequence[Row], lr: float) -> dict[str, float]:
        """One step of maximum likelihood on the generated tokens of `rows`, every token counting the same.

        Without a generated token there is nothing to do: no step, and the metrics say so.
        """
        total = sum(row.generated_tokens for row in rows)
        if not total:
            return {"tokens": 0.0, "update/skipped": 1.0}
        loss_sum = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for part in self._parts(rows):
            logp, _ = TokenBatch.of([rows[i] for i in part], self.policy.device).logprobs(self.policy)
            loss = -logp.sum() / total
            loss.backward()
            loss_sum += float(loss.detach())
        return {"loss": loss_sum, "tokens": float(total), **self._apply(lr)}

    def _parts(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of rows with something to train, in micro-batches."""
        useful = [i for i, row in enumerate(rows) if row.generated_tokens]
        parts = micro_batches([len(rows[i].ids) for i in useful], self._optim.micro_batch_tokens)
        return [[useful[k] for k in part] for part in parts]

    def _inside(self, rows: Sequence[TrainRow], part: Sequence[int], name: str) -> torch.Tensor:
        values = [getattr(rows[i], name)[seg.start : seg.stop] for i in part for seg in rows[i].row.segments]
        return self._tensor([v for segment in values for v in segment])

    def _tensor(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.policy.device)

    def _apply(self, lr: float) -> dict[str, float]:
        """Clip and step; a gradient that is not finite is thrown away and counted, and the weights stay as they are."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._optim.max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"update/grad_norm": norm, "update/lr": lr, "update/skipped": float(not finite)}
