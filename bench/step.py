"""A whole RL step: rollouts, memory signal and update; ours, the plain way, and TRL's GRPOTrainer.

    python bench/step.py [--model FOLDER] [--questions 2] [--rollouts 8] [--turns 4] [--rounds 3]
    python bench/step.py --trl [--model FOLDER] [--completion 128] [--rounds 3]

Ours goes through the functions of the training loop. The plain way gets the same tokens: `generate` that begins every
turn anew, a pass for the old log-probs, every context of the memory signal in one padded batch per rollout, and an
update of padded rows, all of them with all logits. `--trl` compares one turn without notes, which is what GRPOTrainer
does, in an environment of its own (`bench/.venv-trl`, made at the first call): equal prompts, group and completion
lengths, and float32 on one thread for both. `by tokens`: the ratio if a token cost the same in both ways, a trained one
as much as three that are only forwarded.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import naive
import torch
from scripted import Play, TurnShape, said
from shapes import describe, model
from timing import alternate, clock, ratio, spread
from trl_side import TrlProcess

from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.train import AdvantageSettings, OptimSettings, RlSettings
from mempo.engine.batcher import BatchingSampler
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.engine.scorer import LocalScorer
from mempo.engine.token_batch import fed_tokens
from mempo.engine.update import TrainRow, Updater
from mempo.rollout.agent import Agent, Job, run_rollouts
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import batch_advantages
from mempo.train.batch import training_rows
from mempo.train.rl import RlSetup, rollout_jobs, update_policy
from mempo.train.score_batch import Scoring, score_batch

LR = 1e-6
BACKWARD = 3
"""A forward and a backward pass cost as much as three forward passes."""
PARTS = ("rollouts", "signal", "update")


class Recorder:
    """A scorer that remembers what it was asked."""

    def __init__(self, scorer: LocalScorer) -> None:
        self._scorer = scorer
        self.requests: list[ScoreRequest] = []

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list:
        self.requests += requests
        return self._scorer.score(requests, temperature)


@dataclass
class Step:
    """What one step made, and its seconds part by part."""

    trajectories: list[Trajectory]
    requests: list[ScoreRequest]
    rows: list[TrainRow]
    seconds: dict[str, float]
    tokens: dict[str, int]


class Ours:
    """The functions of the training loop on one policy; `step()` is a step from nothing kept."""

    def __init__(
        self, policy: Policy, play: Play, questions: int, rollouts: int, baseline: str = "none", one_turn: bool = False
    ) -> None:
        self._play, self._device, self._one_turn = play, policy.device, one_turn
        self._forward = forward = SharedForward(policy)
        sampler = BatchingSampler(lambda prompts, sampling: generate_batch(policy, prompts, sampling, forward))
        self.recorder = Recorder(LocalScorer(policy, forward=forward))
        self._settings = RlSettings(
            steps=1, questions_per_step=questions, rollouts_per_question=rollouts, memory_signal=not one_turn
        )
        self._setup = RlSetup(
            play.questions(questions),
            play.agent,
            sampler,
            self.recorder,
            Updater(policy, OptimSettings(lr=LR)),
            Scoring(
                OutcomeSettings(format_gate=not one_turn),
                MemorySettings(baseline=baseline),  # type: ignore[arg-type]
                AdvantageSettings(),
                play.tokenizer,
                policy.window,
                memory_signal=not one_turn,
                custom_score=every_other if one_turn else None,
                grammar=play.agent.grammar,
            ),
            seed=0,
        )
        self.tokenizer, self.script = play.tokenizer, play.script(self._jobs()[0])
        self.questions, self.rollouts = questions, rollouts
        self.last: Step | None = None

    def _jobs(self) -> tuple[list[Job], list[Question]]:
        setup, settings = self._setup, self._settings
        return rollout_jobs(setup.questions, setup.seed, 0, settings.questions_per_step, settings.rollouts_per_question)

    @property
    def agent(self) -> Agent:
        return self._setup.agent

    def step(self) -> Step:
        setup, settings, times = self._setup, self._settings, [clock(self._device)]
        forwarded, self.recorder.requests = [self._forward.work.tokens], []
        jobs, questions = self._jobs()
        with said(self.script):
            trajectories = asyncio.run(run_rollouts(setup.agent, setup.sampler, jobs))
        times.append(clock(self._device))
        forwarded.append(self._forward.work.tokens)
        scored = score_batch(setup.scoring, questions, trajectories, setup.scorer)
        batch = scored.counted(settings.rollouts_per_question)
        rows = training_rows(batch, batch_advantages(batch, setup.scoring.advantages, setup.scoring.memory))
        times.append(clock(self._device))
        forwarded.append(self._forward.work.tokens)
        update = update_policy(setup.updater, rows, settings, LR)
        times.append(clock(self._device))
        seconds = {name: b - a for name, a, b in zip(PARTS, times, times[1:], strict=False)}
        tokens = {name: b - a for name, a, b in zip(PARTS, forwarded, forwarded[1:], strict=False)}
        self.last = Step(trajectories, self.recorder.requests, rows, seconds, tokens)
        fed = sum(fed_tokens(row.row) for row in rows)
        spared, padding = (update[f"update/{name}"] or 0.0 for name in ("prefix_share", "padding_share"))
        tokens["update"] = round(fed * (1 - spared) / (1 - padding))
        return self.last


def every_other(question: Question, trajectory: Trajectory) -> float:
    """A score with something to learn from."""
    return float(trajectory.rollout % 2)


class Plain:
    """The plain way of the same step."""

    def __init__(self, policy: Policy, batch_rows: int) -> None:
        self._policy, self._batch_rows = policy, batch_rows
        self._optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LR, weight_decay=0.0)
        self.seconds: dict[str, float] = {}
        self.tokens: dict[str, int] = {}

    def step(self, made: Step, stop: Sequence[str]) -> None:
        policy, device = self._policy, self._policy.device
        times = [clock(device)]
        self.tokens = dict.fromkeys([*PARTS], 0)
        for index in range(max(len(trajectory.turns) for trajectory in made.trajectories)):
            turns = [trajectory.turns[index] for trajectory in made.trajectories if index < len(trajectory.turns)]
            prompts, words = [turn.prompt_ids for turn in turns], [turn.generated_ids for turn in turns]
            self.tokens["rollouts"] += naive.generate(policy, prompts, words, stop)[1]
        times.append(clock(device))
        rows = made.rows
        old = naive.old_logprobs(policy, rows, self._batch_rows)
        per_rollout = max(len(made.requests) // len(made.trajectories), 1)
        for first in range(0, len(made.requests), per_rollout):
            group = made.requests[first : first + per_rollout]
            naive.score_padded(policy, group)
            self.tokens["signal"] += naive.padded_tokens(group)
        times.append(clock(device))
        self.tokens["update"] = naive.update(policy, self._optimizer, rows, old, self._batch_rows)
        self.tokens["signal"] += self.tokens["update"]  # the old log-probs go over the same rows
        times.append(clock(device))
        self.seconds = {name: b - a for name, a, b in zip(PARTS, times, times[1:], strict=False)}


@dataclass(frozen=True)
class Found:
    """`times`: their seconds over ours, whole and by part; a triple is median, smallest, largest of the rounds."""

    times: tuple[float, float, float]
    parts: dict[str, tuple[float, float]]
    our_tokens: dict[str, int]
    plain_tokens: dict[str, int]
    trained_tokens: int

    @property
    def by_tokens(self) -> float:
        """The ratio if every token cost the same in both ways, a trained one three times as much."""
        return work(self.plain_tokens) / work(self.our_tokens)


def work(tokens: Mapping[str, int]) -> int:
    """Of a step, in tokens of a forward pass."""
    return tokens["rollouts"] + tokens["signal"] + BACKWARD * tokens["update"]


def measure(policy: Policy, shape: TurnShape, context: str, questions: int, rollouts: int, rounds: int) -> Found:
    plain = Plain(copy.copy(policy), batch_rows=8)
    plain._policy.model = copy.deepcopy(policy.model)  # each way trains weights of its own
    plain._optimizer = torch.optim.AdamW(plain._policy.model.parameters(), lr=LR, weight_decay=0.0)
    baseline = "full" if context == "full" else "visible"
    mine = Ours(policy, Play(policy.tokenizer, shape, context), questions, rollouts, baseline)
    stop = mine.agent.grammar.stop_strings
    kept: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}

    def ours() -> None:
        kept["ours"].append(mine.step().seconds)

    def theirs() -> None:
        assert mine.last is not None
        plain.step(mine.last, stop)
        kept["plain"].append(plain.seconds)

    seconds = alternate({"ours": ours, "plain": theirs}, rounds, policy.device)
    assert mine.last is not None
    medians = {
        part: (
            statistics.median(found[part] for found in kept["ours"][1:]),
            statistics.median(found[part] for found in kept["plain"][1:]),
        )
        for part in PARTS
    }
    trained = sum(row.row.generated_tokens for row in mine.last.rows)
    return Found(ratio(seconds["plain"], seconds["ours"]), medians, mine.last.tokens, plain.tokens, trained)


HEADER = (
    f"{'context':8} {'plain / ours':>22}   {'by tokens':>9} {'rollouts':>17} {'signal':>17} {'update':>17}   tokens"
)


def line(context: str, found: Found) -> str:
    parts = " ".join(f"{f'{plain:.2f} / {ours:.2f} s':>17}" for ours, plain in found.parts.values())
    tokens = ", ".join(f"{found.plain_tokens[name]} / {found.our_tokens[name]}" for name in PARTS)
    return (
        f"{context:8} {spread(found.times, ' ×'):>22} {'' if found.times[0] >= 3 else '!':1} {found.by_tokens:7.2f} × "
        f"{parts}   {tokens}"
    )


def against_trl(
    policy: Policy, questions: int, rollouts: int, prompt: int, completion: int, rounds: int
) -> tuple[list[float], list[float], str, float]:
    """Seconds of a step of one turn, ours and GRPOTrainer's, `[rounds]`, the versions of the other side, and their work
    over ours by tokens."""
    shape = TurnShape(turns=1, question=prompt, thought=2 * completion, limit=completion)
    play = Play(policy.tokenizer, shape, "full")
    mine = Ours(policy, play, questions, rollouts, one_turn=True)
    texts = [policy.tokenizer.decode(play.agent.renderer.question(q.text)) for q in play.questions(questions)]
    with TrlProcess(policy, texts, rollouts, completion, rounds + 1, LR) as trl:
        seconds: dict[str, list[float]] = {"ours": [], "trl": []}
        for number in range(rounds + 1):
            began = clock(policy.device)
            step = mine.step()
            took = clock(policy.device) - began
            theirs = trl.step()
            wrote = sum(len(turn.generated_ids) for t in step.trajectories for turn in t.turns)
            if wrote != theirs["tokens"]:
                raise SystemExit(f"unequal work: ours wrote {wrote} tokens, TRL {theirs['tokens']}")
            if number:
                seconds["ours"].append(took)
                seconds["trl"].append(theirs["seconds"])
        return seconds["ours"], seconds["trl"], trl.versions, by_tokens(mine.last)


def by_tokens(made: Step | None) -> float:
    """What GRPOTrainer forwards for the same step, every prompt by itself, over what we do."""
    assert made is not None
    turns = [turn for trajectory in made.trajectories for turn in trajectory.turns]
    forwarded = sum(len(turn.prompt_ids) + len(turn.generated_ids) - 1 for turn in turns)
    return work({"rollouts": forwarded, "signal": 0, "update": forwarded + len(turns)}) / work(made.tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; without it a random Llama of 5 million parameters")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", choices=("memory", "full"), help="one of the two alone")
    parser.add_argument("--trl", action="store_true", help="against GRPOTrainer instead")
    parser.add_argument("--completion", type=int, default=128, help="tokens of a completion, with --trl")
    parser.add_argument("--prompt", type=int, default=90, help="tokens of a question, with --trl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    policy = model(options.model, options.device)
    size = f"{describe(policy)}; {options.questions} × {options.rollouts} rollouts"
    if options.trl:
        how = (options.questions, options.rollouts, options.prompt, options.completion, options.rounds)
        ours, trl, versions, tokens_ratio = against_trl(policy, *how)
        tokens = options.questions * options.rollouts * options.completion
        print(f"{size} of one turn, questions of {options.prompt} tokens, completions of {options.completion}")
        print(f"{versions}; {options.rounds} rounds; target ≥ 2 ×\n")
        for name, seconds in (("ours", ours), ("GRPOTrainer", trl)):
            middle = statistics.median(seconds)
            print(f"{name:12} {middle:6.2f} s a step, {middle / tokens * 1e3:6.2f} ms a token generated and trained")
        print(f"{'ratio':12} {spread(ratio(trl, ours), ' ×')}, by tokens {tokens_ratio:.2f} ×")
        return
    shape = TurnShape(turns=options.turns)
    print(f"{size} of {shape.turns} turns; {options.rounds} rounds; target ≥ 3 ×; plain / ours\n")
    print(HEADER)
    for context in (options.context,) if options.context else ("memory", "full"):
        found = measure(policy, shape, context, options.questions, options.rollouts, options.rounds)
        print(line(context, found), flush=True)


if __name__ == "__main__":
    main()
