"""What the memory signal costs on top of log-probs of the rollout (logp_old = 1), way by way.

    python bench/memory_signal.py [--model FOLDER] [--rollouts 4] [--questions 1] [--rounds 5]

One thread, CPU-seconds, all ways in turns. The floor is the number of tokens that no way can avoid.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from shapes import Shape, logp_old_requests, model, rollouts
from timing import alternate, ratio

from mempo.engine.model import Policy
from mempo.engine.plan import floor_tokens
from mempo.engine.radix import as_ids
from mempo.engine.scoring import LocalScorer
from mempo.engine.shared_prefix import SharedForward
from mempo.interfaces import ScoreRequest
from mempo.rewards.note_contexts import BASELINES, note_context
from mempo.trajectory import Trajectory


def probes(trajectories: list[Trajectory], baseline: str, shape: Shape, vocabulary: int) -> list[ScoreRequest]:
    """The requests of the memory signal, with a probe of made-up ids whose last `gold` tokens are the answer."""
    ids = tuple(range(7, 7 + shape.probe))
    which = tuple(range(shape.probe - shape.gold, shape.probe))
    requests = []
    for trajectory in trajectories:
        for turn in trajectory.turns[1:]:
            requests.append(ScoreRequest(note_context(trajectory, turn), ids, which))
            if baseline != "none":
                requests.append(ScoreRequest(BASELINES[baseline](trajectory, turn), ids, which))
    return requests


@torch.no_grad()
def naive_unpadded(policy: Policy, requests: list[ScoreRequest]) -> None:
    """One context at a time, logits of the gold tokens only."""
    head: Any = policy.model.get_output_embeddings()
    for request in requests:
        ids = torch.tensor([request.prefix_ids + request.continuation_ids])
        hidden = policy.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        positions = [len(request.prefix_ids) + k - 1 for k in request.which or ()]
        torch.log_softmax(head(hidden[0, positions]).float(), -1)


@torch.no_grad()
def naive_padded(policy: Policy, requests: list[ScoreRequest]) -> None:
    """All contexts of a rollout in one left-padded batch, all logits."""
    rows = [request.prefix_ids + request.continuation_ids for request in requests]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    torch.log_softmax(logits.float(), -1)


def scored(policy: Policy, requests: list[ScoreRequest]) -> LocalScorer:
    scorer = LocalScorer(policy, forward=SharedForward(policy))  # nothing kept from before
    scorer.score(requests)
    return scorer


def floor(requests: list[ScoreRequest]) -> int:
    ends = [len(r.prefix_ids) + max(r.which or ()) for r in requests]
    return floor_tokens(
        [as_ids((r.prefix_ids + r.continuation_ids)[:end]) for r, end in zip(requests, ends, strict=True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--naive", action="store_true", help="time the two naive ways too (slow)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy, shape = model(options.model), Shape()
    vocabulary = policy.model.config.vocab_size
    print(
        f"{shape.total} tokens a rollout, {shape.turns} turns, notes of {shape.note}, probes of {shape.probe}; ", end=""
    )
    print(f"{options.questions} × {options.rollouts} rollouts; {policy.model.num_parameters() / 1e6:.0f} M parameters")
    print(f"{'context':8} {'baseline':14} {'signal / logp_old':>22} {'floor':>7} {'/ floor':>8}  {'tokens':>14}")
    for context, baseline in (("full", "full"), ("full", "none"), ("memory", "visible"), ("memory", "none")):
        trajectories = rollouts(shape, context, options.questions, options.rollouts, vocabulary)
        old, extra = logp_old_requests(trajectories), probes(trajectories, baseline, shape, vocabulary)
        ways = {
            "logp_old": lambda old=old: scored(policy, old),
            "both": lambda both=[*old, *extra]: scored(policy, both),
        }
        if options.naive:
            per_rollout = len(extra) // len(trajectories)
            groups = [extra[i : i + per_rollout] for i in range(0, len(extra), per_rollout)]
            ways["unpadded"] = lambda extra=extra: naive_unpadded(policy, extra)
            ways["padded"] = lambda groups=groups: [naive_padded(policy, group) for group in groups]
        seconds = alternate(ways, options.rounds)
        signal = [both - alone for both, alone in zip(seconds["both"], seconds["logp_old"], strict=True)]
        middle, low, high = ratio(signal, seconds["logp_old"])
        least = (floor([*old, *extra]) - floor(old)) / floor(old)
        tokens = scored(policy, [*old, *extra]).forward.work.tokens, scored(policy, old).forward.work.tokens
        numbers = f"{middle:.2f} ({low:.2f}–{high:.2f})"
        print(
            f"{context:8} {baseline:14} {numbers:>22} {least:7.3f} {middle / least:8.2f}  {tokens[0]:>6} -{tokens[1]:>6}"
        )
        for name in ("unpadded", "padded"):
            if name in seconds:
                middle, low, high = ratio(seconds[name], seconds["logp_old"])
                print(f"{'':8} {'naive ' + name:14} {f'{middle:.2f} ({low:.2f}–{high:.2f})':>22}")


if __name__ == "__main__":
    main()
