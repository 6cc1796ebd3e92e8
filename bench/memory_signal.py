"""What the memory signal costs on top of log-probs of the rollout (logp_old = 1), way by way.

    python bench/memory_signal.py [--model FOLDER] [--rollouts 4] [--questions 1] [--rounds 7] [--profile]

All ways take turns. Ours is one pass over both; what the signal adds to it is timed inside (`split.py`): all but the
forward passes and head rows of logp_old's own rows, so planning, stored keys and values and every probe count. `joint`:
the same as the difference of two passes, one over both and one over logp_old alone; both are large, so it is rough.
`floor`: tokens that no way can avoid, over those of logp_old; prefixes that requests share count once. Where the
weights have not changed since the rollout there is no logp_old pass (the sampler's log-probs serve), and the probes
ride on the keys and values that the rollout left: the last column has what is forwarded then.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from naive import floor_tokens, padded_tokens, score_padded, score_unpadded
from profiled import profile
from shapes import Shape, describe, logp_old_requests, model, rollouts
from split import SplitForward
from timing import alternate, ratio, spread

from mempo.engine.policy import Policy
from mempo.engine.prefix_cache import as_ids
from mempo.engine.prefix_forward import SharedForward, last_target
from mempo.engine.scorer import LocalScorer, wanted
from mempo.rewards.note_contexts import BASELINES, note_context
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.trajectory import Trajectory

PAIRS = (("full", "full"), ("full", "none"), ("memory", "visible"), ("memory", "none"))
TARGETS = {("full", "full"): 0.30, ("memory", "visible"): 0.18, ("memory", "none"): 0.10}
"""In units of logp_old; `full`, `none` has none of its own. And each at most 1.25 times its floor."""


def probes(trajectories: Sequence[Trajectory], baseline: str, shape: Shape) -> list[ScoreRequest]:
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


def scored(policy: Policy, requests: list[ScoreRequest]) -> SharedForward:
    """Score from nothing; returns what kept count."""
    scorer = LocalScorer(policy, forward=SharedForward(policy))
    scorer.score(requests)
    return scorer.forward


def floor(requests: Sequence[ScoreRequest]) -> int:
    """Tokens that any way must forward: each node of the requests' tree once."""
    return floor_tokens(
        [as_ids((r.prefix_ids + r.continuation_ids)[: len(r.prefix_ids) + max(wanted(r))]) for r in requests]
    )


def left_by_rollout(policy: Policy, trajectories: Sequence[Trajectory]) -> SharedForward:
    """Keys and values as the rollouts leave them: of every prompt and all that was sampled but its last token."""
    forward = SharedForward(policy)
    for index in range(max(len(trajectory.turns) for trajectory in trajectories)):
        turns = [trajectory.turns[index] for trajectory in trajectories if index < len(trajectory.turns)]
        seen = [turn.prompt_ids + turn.generated_ids[:-1] for turn in turns]
        for _ in forward.run([(ids, last_target(ids, n)) for n, ids in enumerate(seen)], keep=True):
            pass
    return forward


@dataclass(frozen=True)
class Found:
    """`signal`: seconds over those of logp_old: median, smallest, largest. `naive` the same for the plain ways;
    `joint`: as the difference of two passes."""

    context: str
    baseline: str
    signal: tuple[float, float, float]
    joint: float
    floor: float
    signal_tokens: int
    old_tokens: int
    kept_tokens: int
    naive: dict[str, tuple[float, float, float]]
    naive_tokens: int

    @property
    def met(self) -> bool:
        target = TARGETS.get((self.context, self.baseline))
        return self.signal[0] <= 1.25 * self.floor and (target is None or self.signal[0] <= target)


def measure(
    policy: Policy,
    shape: Shape,
    context: str,
    baseline: str,
    questions: int = 1,
    per_question: int = 4,
    rounds: int = 5,
    naive: bool = True,
) -> Found:
    trajectories = rollouts(shape, context, questions, per_question, policy.model.config.vocab_size)
    old, extra = logp_old_requests(trajectories), probes(trajectories, baseline, shape)
    per_rollout = len(extra) // len(trajectories)
    groups = [extra[i : i + per_rollout] for i in range(0, len(extra), per_rollout)]
    parts: list[tuple[float, float]] = []
    forward = SplitForward(policy)  # one for all rounds, as a run has one for all steps
    ways = {
        "old": lambda: forward.seconds(old, ()),
        "both": lambda: parts.append(forward.seconds(old, extra)),
    }
    if naive:
        ways["unpadded"] = lambda: score_unpadded(policy, extra)  # type: ignore[assignment,return-value]
        ways["padded"] = lambda: [score_padded(policy, group) for group in groups]  # type: ignore[assignment,return-value]
    seconds = alternate(ways, rounds, policy.device)  # type: ignore[arg-type]
    of_old, added = zip(*parts[1:], strict=True)  # the first warmed up
    old_tokens = scored(policy, old).work.tokens
    left = left_by_rollout(policy, trajectories)
    before = left.work.tokens
    LocalScorer(policy, forward=left).score(extra)
    return Found(
        context,
        baseline,
        ratio(added, of_old),
        statistics.median(seconds["both"]) / statistics.median(seconds["old"]) - 1,
        (floor([*old, *extra]) - floor(old)) / floor(old),
        scored(policy, [*old, *extra]).work.tokens - old_tokens,
        old_tokens,
        left.work.tokens - before,
        {name: ratio(seconds[name], seconds["old"]) for name in ("unpadded", "padded") if name in seconds},
        sum(map(padded_tokens, groups)),
    )


def line(found: Found) -> str:
    numbers, times = spread(found.signal), found.signal[0] / found.floor
    target = TARGETS.get((found.context, found.baseline))
    wanted = f"≤ {min(target or 9, 1.25 * found.floor):.2f}"
    return (
        f"{found.context:8} {found.baseline:9} {numbers:>18} {wanted:>7} {'' if found.met else '!':1} "
        f"{found.joint:6.2f} {found.floor:6.3f} {times:7.2f} "
        f"{found.signal_tokens:>7} {found.old_tokens:>7} {found.kept_tokens:>7}"
    )


HEADER = (
    f"{'context':8} {'baseline':9} {'signal / logp_old':>18} {'target':>7}   {'joint':>6} {'floor':>6} {'/ floor':>7} "
    f"{'tokens':>7} {'of old':>7} {'kept':>7}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="context:baseline, such as memory:none")
    parser.add_argument("--without-naive", action="store_true", help="leave out the plain ways, which are slow")
    parser.add_argument("--profile", action="store_true", help="also show where the time of both passes goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy, shape = model(options.model, options.device), Shape()
    print(f"{describe(policy)}; {options.questions} × {options.rollouts} rollouts of {shape.total} tokens,")
    print(f"{shape.turns} turns, notes of {shape.note}, probes of {shape.probe}; {options.rounds} rounds\n\n{HEADER}")
    for context, baseline in PAIRS:
        if options.only not in (None, f"{context}:{baseline}"):
            continue
        how = (options.questions, options.rollouts, options.rounds, not options.without_naive)
        found = measure(policy, shape, context, baseline, *how)
        print(line(found), flush=True)
        for name, numbers in found.naive.items():
            tokens = found.naive_tokens if name == "padded" else ""
            print(f"{'':8} {'naive, ' + name:16} {spread(numbers):>20} {'':31} {tokens:>7}", flush=True)
        if options.profile:
            made = rollouts(shape, context, options.questions, options.rollouts, policy.model.config.vocab_size)
            both = [*logp_old_requests(made), *probes(made, baseline, shape)]
            print(profile(lambda both=both: scored(policy, both)))


if __name__ == "__main__":
    main()
