"""The plain ways that the benches compare with: what one writes first with transformers and torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from mempo.config.train import LossSettings
from mempo.engine.loss import policy_loss, token_weights
from mempo.engine.policy import Policy
from mempo.engine.prefix_cache import Ids as IdArray
from mempo.engine.prefix_cache import common_length
from mempo.engine.update import TrainRow
from mempo.rollout.interfaces import ScoreRequest

Ids = Sequence[int]


def left_padded(rows: Sequence[Ids], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, `[rows, longest]`."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


class _Says(LogitsProcessor):
    """Sampling goes on as ever, but its outcome is given: so two ways of generating do equal work."""

    def __init__(self, words: torch.Tensor, prompt_tokens: int) -> None:
        self._words, self._prompt_tokens = words, prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = min(input_ids.shape[1] - self._prompt_tokens, self._words.shape[1] - 1)
        return scores.scatter(1, self._words[:, at, None], 1e4)


class _Lengths(StoppingCriteria):
    """Every row ends after as many tokens as it is given."""

    def __init__(self, lengths: torch.Tensor, prompt_tokens: int) -> None:
        self._lengths, self._prompt_tokens = lengths, prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids.shape[1] - self._prompt_tokens >= self._lengths


@torch.no_grad()
def generate(policy: Policy, prompts: Sequence[Ids], words: Sequence[Ids], stop: Sequence[str]) -> tuple[Any, int]:
    """`model.generate` on left-padded prompts, sampling `words`; their log-probs `[rows][tokens]`, gathered from the
    logits afterwards, and the tokens forwarded, padding included."""
    device, model = policy.device, policy.model
    ids, mask = left_padded(prompts, device)
    longest = max(map(len, words))
    said = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in words], device=device)
    lengths = torch.tensor([len(row) for row in words], device=device)
    width = ids.shape[1]
    out: Any = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=longest,
        pad_token_id=0,
        eos_token_id=None,
        stop_strings=list(stop),
        tokenizer=policy.tokenizer.hf,
        logits_processor=LogitsProcessorList([_Says(said, width)]),
        stopping_criteria=StoppingCriteriaList([_Lengths(lengths, width)]),
        return_dict_in_generate=True,
        output_logits=True,
    )
    steps = len(out.logits)
    logprobs = torch.log_softmax(torch.stack(out.logits, 1).float(), -1).gather(2, said[:, :steps, None])[..., 0]
    return [row[: len(w)] for row, w in zip(logprobs.tolist(), words, strict=True)], len(prompts) * (width + steps - 1)


@torch.no_grad()
def score_padded(policy: Policy, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
    """All requests in one left-padded batch, all logits."""
    ids, mask = left_padded([request.prefix_ids + request.continuation_ids for request in requests], policy.device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logprobs = torch.log_softmax(logits.float(), -1)
    found = []
    for row, request in enumerate(requests):
        ends = range(-len(request.continuation_ids), 0)
        which = [ends[k] for k in (request.which if request.which is not None else range(len(ends)))]
        found.append(torch.stack([logprobs[row, k - 1, ids[row, k]] for k in which]))
    return found


@torch.no_grad()
def score_unpadded(policy: Policy, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
    """One context at a time, logits of the wanted tokens only."""
    head: Any = policy.model.get_output_embeddings()
    base: Any = policy.model.base_model
    found = []
    for request in requests:
        ids = torch.tensor([request.prefix_ids + request.continuation_ids], device=policy.device)
        hidden = base(input_ids=ids, use_cache=False).last_hidden_state
        which = range(len(request.continuation_ids)) if request.which is None else request.which
        ends = [len(request.prefix_ids) + k for k in which]
        logprobs = torch.log_softmax(head(hidden[0, [k - 1 for k in ends]]).float(), -1)
        found.append(logprobs.gather(1, ids[0, ends][:, None])[:, 0])
    return found


def padded_tokens(requests: Sequence[ScoreRequest]) -> int:
    """What `score_padded` forwards."""
    return len(requests) * max(len(request.prefix_ids) + len(request.continuation_ids) for request in requests)


def _row_logprobs(policy: Policy, rows: Sequence[TrainRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of right-padded rows, from all logits: log-probs and entropies `[rows, longest - 1]`, and which are generated."""
    width = max(len(row.row.ids) for row in rows)
    ids = torch.tensor([[*row.row.ids, *[0] * (width - len(row.row.ids))] for row in rows], device=policy.device)
    generated = torch.zeros(len(rows), width, device=policy.device)
    for number, row in enumerate(rows):
        for segment in row.row.segments:
            generated[number, segment.start : segment.stop] = 1
    mask = (
        torch.arange(width, device=policy.device)[None]
        < torch.tensor([[len(row.row.ids)] for row in rows], device=policy.device)
    ).long()
    logits = policy.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
    every = torch.log_softmax(logits, -1)
    with torch.no_grad():
        entropy = -(every.exp() * every).sum(-1)
    return every.gather(2, ids[:, 1:, None])[..., 0], entropy, generated[:, 1:]


def micro_batches(rows: Sequence[TrainRow], count: int) -> list[list[TrainRow]]:
    return [list(rows[i : i + count]) for i in range(0, len(rows), count)]


@torch.no_grad()
def old_logprobs(policy: Policy, rows: Sequence[TrainRow], batch_rows: int) -> list[torch.Tensor]:
    """The log-probs of all rows under the policy before its update, `[micro-batches][rows, longest - 1]`."""
    return [_row_logprobs(policy, part)[0] for part in micro_batches(rows, batch_rows)]


def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[TrainRow],
    old: Sequence[torch.Tensor],
    batch_rows: int,
) -> int:
    """One clipped policy-gradient step, `batch_rows` padded rows at a time; the tokens forwarded, padding included."""
    weights = token_weights([r.row.generated_tokens for r in rows], [r.row.trajectory for r in rows], "rollout_mean")
    parts, tokens = micro_batches(rows, batch_rows), 0
    optimizer.zero_grad(set_to_none=True)
    for number, (part, logp_old) in enumerate(zip(parts, old, strict=True)):
        new, entropy, generated = _row_logprobs(policy, part)
        width = new.shape[1]
        advantages = torch.zeros_like(new)
        for k, row in enumerate(part):
            advantages[k, : len(row.advantages) - 1] = torch.tensor(row.advantages[1:], device=new.device)
        weight = torch.tensor(weights[number * batch_rows :][: len(part)], device=new.device)[:, None].expand(-1, width)
        loss, _ = policy_loss(new, logp_old, advantages, generated, weight, LossSettings(), None, entropy)
        loss.backward()
        tokens += len(part) * (width + 1)
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
    return tokens


def floor_tokens(sequences: Sequence[IdArray]) -> int:
    """Tokens that must be forwarded whatever the way: the nodes of the sequences' tree, each once."""
    ordered = sorted(sequences, key=lambda ids: ids.tolist())
    shared = sum(common_length(last, ids) for last, ids in pairwise(ordered))
    return sum(map(len, ordered)) - shared
