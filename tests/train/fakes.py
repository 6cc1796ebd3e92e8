"""Policies with a will of their own, tools that say what they are told, and a setup of the main loop around them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.config.rollout import DecodingSettings
from mempo.config.train import AdvantageSettings, LossSettings, OptimSettings, RlSettings
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.rewards.memory import NoteScore
from mempo.rewards.outcome import OutcomeScore
from mempo.rollout.agent import Agent, Job, rollout
from mempo.rollout.interfaces import Generation, Sampler, SamplingParams, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.run_folder import RunFolder
from mempo.train.advantages import AdvantageBatch, Advantages
from mempo.train.batch import advantages_by_turn, training_rows
from mempo.train.rl import RlSetup
from mempo.train.score_batch import ScoredBatch, Scoring
from tests.tiny import Scripted, make_agent, make_tokenizer, said, tiny_llama

TOKENIZER = make_tokenizer()
SEARCH = "<think>s</think><search>q</search>"
NOTED_SEARCH = f"<mem>n</mem>{SEARCH}"
ANSWER = "<think>s</think><answer>Paris</answer>"
NOTED_ANSWER = f"<mem>n</mem>{ANSWER}"


class Told:
    """A search tool that always finds the same."""

    name = "search"

    def __init__(self, result: ToolResult | None = None) -> None:
        self.result = result or ToolResult(passages=("Paris",))

    async def call(self, argument: str) -> ToolResult:
        return self.result


class Speaker:
    """A sampler whose words are a function of the noise seed of each turn, as a policy's are."""

    def __init__(self, speak: Callable[[random.Random], str]) -> None:
        self._speak = speak
        self.seeds: list[int | None] = []
        self.asked: list[SamplingParams] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        self.seeds.append(sampling.seed)
        self.asked.append(sampling)
        return said(TOKENIZER, self._speak(random.Random(sampling.seed)), sampling.max_new_tokens)


def wandering(rng: random.Random) -> str:
    """Searches, and now and then answers, right or wrong; notes this or that."""
    words = NOTED_SEARCH if rng.random() < 0.5 else NOTED_ANSWER.replace("Paris", rng.choice(["Paris", "Rome"]))
    return words.replace("<mem>n", f"<mem>{rng.choice(['Paris', 'no', 'hello'])}")


def questions(count: int) -> list[Question]:
    return [Question(f"q{i}", f"question {i}?", "Paris") for i in range(count)]


def agent(context: str = "memory", result: ToolResult | None = None, **limits: Any) -> Agent:
    return make_agent(TOKENIZER, context, tools={"search": Told(result)}, **limits)


def played(
    question: Question, turns: int, place: int = 0, context: str = "memory", answer: str = "Paris", **keywords: Any
) -> Trajectory:
    """A rollout of so many turns, the last of which answers."""
    texts = [SEARCH, *[NOTED_SEARCH] * (turns - 2)] if turns > 1 else []
    texts.append((NOTED_ANSWER if turns > 1 else ANSWER).replace("Paris", answer))
    job = Job(question, place, ("played",))
    return asyncio.run(rollout(agent(context, **keywords), Scripted(TOKENIZER, texts), job, DecodingSettings()))


def outcome_of(score: float | None) -> OutcomeScore:
    return OutcomeScore(score, None, True, {}, None if score is not None else "error")


PLAIN_ADVANTAGES = AdvantageSettings(normalize_std=False)
PLAIN_MEMORY = MemorySettings(min_pool=2, normalize_std=False, fade_batches=None)


def note_score(turn: int, r: float | None) -> NoteScore:
    return NoteScore(turn, r, None, r, 1, 1, None, r)


def advantage_batch(
    trajectories: Sequence[Trajectory],
    scores: Sequence[float | None],
    rewards: Sequence[Mapping[int, float | None]] | None = None,
    size: int | None = None,
) -> AdvantageBatch:
    """Of rollouts with these scores and note rewards `[rollouts]{turn: r}`, in groups of `size` (all are one)."""
    notes = [[note_score(turn, r) for turn, r in by_turn.items()] for by_turn in rewards or [{} for _ in scores]]
    asked = [Question(trajectory.question_id, "?", "Paris") for trajectory in trajectories]
    scored = ScoredBatch(asked, trajectories, [outcome_of(score) for score in scores], notes, [], {})
    return scored.counted(size or len(scores), step=7)


def token_values(batch: AdvantageBatch, advantages: Advantages) -> list[dict[int, list[float]]]:
    """`[rollouts]{turn: [generated tokens]}` of the rollouts of the batch."""
    found = advantages_by_turn(training_rows(batch, advantages), max(batch.places, default=0) + 1)
    return [found[place] for place in batch.places]


def setup(
    sampler: Sampler,
    asked: Sequence[Question],
    policy: Policy | None = None,
    agent_of: Agent | None = None,
    loss: LossSettings | None = None,
    reference: Policy | None = None,
    memory: MemorySettings | None = None,
    seed: int = 0,
) -> RlSetup:
    policy, agent_of = policy or tiny_llama(TOKENIZER), agent_of or agent()
    return RlSetup(
        questions=asked,
        agent=agent_of,
        sampler=sampler,
        scorer=LocalScorer(policy),
        updater=Updater(policy, OptimSettings(lr=1e-2), loss, reference),
        scoring=Scoring(
            outcome=OutcomeSettings(format_gate=False),
            memory=memory or MemorySettings(),
            advantages=AdvantageSettings(),
            tokenizer=TOKENIZER,
            window_tokens=policy.window,
            grammar=agent_of.grammar,
        ),
        seed=seed,
    )


def settings(**changes: Any) -> RlSettings:
    return RlSettings(**{"steps": 1, "questions_per_step": 2, "rollouts_per_question": 4, **changes})


def run_folder(path: Path) -> RunFolder:
    return RunFolder(path / "run")
