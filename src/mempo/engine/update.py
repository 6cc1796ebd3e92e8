"""One optimizer step over training rows: micro-batches by token budget, the result independent of how they are cut.

Nothing in the loop over micro-batches waits for the device: measures add up there and are read once a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from mempo.config.train import LossSettings, OptimSettings
from mempo.engine.checkpointing import checkpointed
from mempo.engine.loss import policy_loss, token_weights
from mempo.engine.memory import memory_explained
from mempo.engine.micro_batches import PASS_TOKENS, SharedBatch, shared_batches
from mempo.engine.optimizer import make_optimizer
from mempo.engine.policy import Policy
from mempo.engine.token_batch import TokenBatch, fed_tokens, on_device, prompt_tokens
from mempo.engine.training_cache import shares_exactly
from mempo.rollout.trajectory import Row

Tell = Callable[[int, int], None]
"""Hears which micro-batch of how many is under way."""


@dataclass(frozen=True)
class TrainRow:
    """A row with its constants: advantages and old log-probs `[tokens]`, read inside the segments only."""

    row: Row
    advantages: Sequence[float]
    logp_old: Sequence[float]


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
        models = [p.model for p in (policy, reference) if p is not None]
        self._pass_tokens = PASS_TOKENS.get(policy.device.type, PASS_TOKENS["cuda"])
        self._shares = policy.plain_head and all(shares_exactly(model) for model in models)
        self._at_work: tuple[int, int] | None = None  # rows and tokens of the micro-batch

    def rl_step(self, rows: Sequence[TrainRow], lr: float, tell: Tell = lambda done, of: None) -> dict[str, float]:
        """One clipped policy-gradient step over `rows` together.

        Without a generated token there is nothing to do: no step, and the metrics say so.

        Raises:
            UserError: out of memory; it names the settings that help.
        """
        tokens = [r.row.generated_tokens for r in rows]
        if not sum(tokens):
            return {"update/skipped": 1.0}
        weights = token_weights(tokens, [r.row.trajectory for r in rows], self._loss.aggregate)
        totals: dict[str, torch.Tensor] = {}
        parts = self._parts([r.row for r in rows])
        with self._step("rl"):
            for place, part in enumerate(parts, start=1):
                tell(place, len(parts))
                batch = self._batch([rows[i].row for i in part.rows], part)
                with self._precision():
                    logp_new, entropy = batch.logprobs(self.policy, with_entropy=True)
                    logp_ref = None
                    if self._reference is not None:
                        with torch.no_grad():
                            logp_ref, _ = batch.logprobs(self._reference)
                loss, stats = policy_loss(
                    logp_new,
                    self._inside(rows, part.rows, "logp_old"),
                    self._inside(rows, part.rows, "advantages"),
                    torch.ones_like(logp_new),
                    self._tensor([w for i in part.rows for w in [weights[i]] * tokens[i]]),
                    self._loss,
                    logp_ref,
                    entropy,
                )
                loss.backward()
                for name, value in {**stats, "loss": loss.detach()}.items():
                    totals[name] = totals[name] + value if name in totals else value
            applied = self._apply(lr)
        return {**_read(totals, "update/"), **shares([r.row for r in rows], parts), **applied}

    def sft_step(self, rows: Sequence[Row], lr: float, tell: Tell = lambda done, of: None) -> dict[str, float]:
        """One step of maximum likelihood on the generated tokens of `rows`, every token counting the same.

        Without a generated token there is nothing to do: no step, and the metrics say so.

        Raises:
            UserError: out of memory; it names the settings that help.
        """
        total = sum(row.generated_tokens for row in rows)
        if not total:
            return {"tokens": 0.0, "update/skipped": 1.0}
        sums: dict[str, torch.Tensor] = {}
        parts = self._parts(rows)
        with self._step("sft"):
            for place, part in enumerate(parts, start=1):
                tell(place, len(parts))
                batch = self._batch([rows[i] for i in part.rows], part)
                with self._precision():
                    logp, _ = batch.logprobs(self.policy)
                loss = -logp.sum() / total
                loss.backward()
                sums["loss"] = sums["loss"] + loss.detach() if sums else loss.detach()
            applied = self._apply(lr)
        return {**_read(sums), "tokens": float(total), **shares(rows, parts), **applied}

    @contextmanager
    def _step(self, stage: str) -> Iterator[None]:
        """Fresh gradients, gradient checkpointing where it is on, and a word when memory runs out."""
        self.optimizer.zero_grad(set_to_none=True)
        again = checkpointed(self.policy.model) if self.policy.checkpointing else nullcontext()
        try:
            with memory_explained(lambda: self._what_helps(stage)), again:
                yield
        except BaseException:
            self.optimizer.zero_grad(set_to_none=True)  # memory for those who save what was done before
            raise

    def _precision(self) -> AbstractContextManager:
        """Of forward passes; the backward pass follows them by itself."""
        if self.policy.autocast is None:
            return nullcontext()
        return torch.autocast(self.policy.device.type, self.policy.autocast)

    def _batch(self, rows: Sequence[Row], part: SharedBatch) -> TokenBatch:
        self._at_work = (len(rows), part.longest)
        return TokenBatch.of(rows, self.policy.device, part.prefix)

    def _what_helps(self, stage: str) -> str:
        where, settings = "the optimizer's step", []
        if self._at_work is not None:
            rows, tokens = self._at_work
            where = f"a micro-batch of {rows} row{'s' * (rows > 1)} of up to {tokens} tokens"
            if rows > 1:
                settings.append(f"lower {stage}.optim.micro_batch_tokens (now {self._optim.micro_batch_tokens})")
            if not self.policy.checkpointing:
                settings.append("set model.gradient_checkpointing=true")
            if self.policy.autocast is None and self.policy.model.dtype == torch.float32:
                settings.append("set model.autocast=bfloat16")
        if self.policy.adapter is None:
            settings.append("train adapters only (model.lora.rank=16)")
        settings.append("take a smaller model, or shorter rows (limits.max_context_tokens)")
        return f"out of memory in the update of {stage}, at {where}; {', or '.join(settings)}"

    def _parts(self, rows: Sequence[Row]) -> list[SharedBatch]:
        """Rows with something to train, in micro-batches."""
        useful = [i for i, row in enumerate(rows) if row.generated_tokens]
        ids = [rows[i].ids[: fed_tokens(rows[i])] for i in useful]
        prompts = [prompt_tokens(rows[i]) for i in useful]
        parts = shared_batches(ids, prompts, self._optim.micro_batch_tokens, self._shares, self._pass_tokens)
        return [replace(part, rows=tuple(useful[k] for k in part.rows)) for part in parts]

    def _inside(self, rows: Sequence[TrainRow], part: Sequence[int], name: str) -> torch.Tensor:
        values = [getattr(rows[i], name)[seg.start : seg.stop] for i in part for seg in rows[i].row.segments]
        return self._tensor([v for segment in values for v in segment])

    def _tensor(self, values: Sequence[float]) -> torch.Tensor:
        return on_device(torch.tensor(values, dtype=torch.float32), self.policy.device)

    def _apply(self, lr: float) -> dict[str, float]:
        """Clip and step; a gradient that is not finite is thrown away and counted, and the weights stay as they are."""
        self._at_work = None
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._optim.max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_scale", 1.0)
            self.policy.version += 1  # first: a step that fails half-way leaves weights of no version before
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        thrown_away = float(not finite)
        return {
            "update/grad_norm": norm,
            "update/lr": lr,
            "update/skipped": thrown_away,
            "update/not_finite": thrown_away,
        }


def shares(rows: Sequence[Row], parts: Sequence[SharedBatch]) -> dict[str, float]:
    """`padding_share`: of the tokens that go through the model, those that are padding. `prefix_share`: of the tokens
    that the rows have, those that need not go through it, since another row has brought the same prefix."""
    whole = sum(fed_tokens(rows[i]) for part in parts for i in part.rows)
    spared = sum(part.prefix * (len(part.rows) - 1) for part in parts)
    fed = sum(part.tokens for part in parts)
    return {"update/padding_share": 1 - (whole - spared) / fed, "update/prefix_share": spared / whole}


def _read(totals: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, float]:
    """Scalars of the device, in one read."""
    values = torch.stack([value.float() for value in totals.values()]).tolist()
    return {f"{prefix}{name}": value for name, value in zip(totals, values, strict=True)}
