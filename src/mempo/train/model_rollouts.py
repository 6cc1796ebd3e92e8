"""Demonstrations by a stronger model: its right rollouts, kept by `mempo eval`, told again in the words of this policy.

The model behind a server plays the training questions like any agent that is evaluated, so that what is asked, tried
again, kept and counted is the business of `mempo eval`. Here its turns are read as text and played once more, with the
tool results it saw, so that prompts and turns are ids of the policy that learns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mempo.config import Config, resolve
from mempo.engine.model import load_tokenizer
from mempo.engine.server.connect import open_tokenizer
from mempo.errors import UserError
from mempo.rollout.agent import Agent, DecodingSettings, Job, rollout
from mempo.rollout.interfaces import Generation, SamplingParams, Tool, ToolResult
from mempo.rollout.protocol import TurnGrammar, format_violations, scan
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Observation, StopReason, Trajectory
from mempo.rollout.turn_text import own_text
from mempo.storage.append import latest
from mempo.storage.read_files import PUT_BACK, RECORD, read_json
from mempo.storage.rollouts import load_rollouts
from mempo.train.expert_rollouts import Demo, encode_turn

_MOST_OF_ONE = 4
"""Right rollouts of one question: easy ones have many."""


@dataclass(frozen=True)
class Told:
    """A rollout as texts: its turns as (tag, content) pairs, and what the tool said after each but the last."""

    question: Question
    turns: tuple[tuple[tuple[str, str], ...], ...]
    results: tuple[ToolResult, ...]


@dataclass(frozen=True)
class Collected:
    """`counts`: what became of all rollouts, `right` among them, in the order of their first."""

    told: list[Told]
    counts: Counter[str]

    @property
    def line(self) -> str:
        counted = ", ".join(f"{self.counts[name]} {name}" for name in _VERDICTS if self.counts[name])
        questions = len({one.question.id for one in self.told})
        return f"{self.counts.total()} rollouts: {counted}; {len(self.told)} kept, of {questions} questions"


_VERDICTS = ("right", "wrong", "out of format", "failed for infrastructure reasons", "of other questions")
"""In this order they are told, whichever rollout ended first."""


def collect(folder: Path, questions: Sequence[Question], agent: Agent) -> Collected:
    """The right rollouts of a folder of `mempo eval` that keep this agent's format, at most four of one question.

    Raises:
        UserError: no such folder, several agents in it and none of this name, questions that are not among ours, files
            that cannot be read, or no rollout that is right.
    """
    if not (folder / "agents.json").is_file():
        raise UserError(f"sft.rollouts: {folder} is not a folder of mempo eval (no agents.json)")
    file = _file_of(folder, agent.name)
    config = resolve(str(folder)).config
    tokenizer = _tokenizer_of(folder, config)
    known = {question.id: question for question in questions}
    try:
        trajectories, lines, _ = load_rollouts(file, tokenizer, agent.grammar)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"sft.rollouts: {file} cannot be read ({type(error).__name__}: {error})") from error
    pairs = latest({**line, "read": read} for line, read in zip(lines, trajectories, strict=True)).values()
    told: list[Told] = []
    counts: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for line in pairs:
        trajectory: Trajectory = line["read"]
        question = known.get(trajectory.question_id)
        verdict = _verdict(trajectory, line.get("score"), question)
        counts[verdict] += 1
        if verdict == "right" and question is not None and taken[question.id] < _MOST_OF_ONE:
            taken[question.id] += 1
            told.append(_told(trajectory, question, tokenizer, agent.grammar))
    collected = Collected(told, counts)
    if not told:
        raise UserError(
            f"sft.rollouts: none of the {collected.line.split(';')[0]} in {file} can be a demonstration; let the model "
            "play the training questions (data.test set to them) in the format and context of this agent"
        )
    return collected


def _verdict(trajectory: Trajectory, score: float | None, question: Question | None) -> str:
    if trajectory.is_error:
        return "failed for infrastructure reasons"
    if question is None:
        return "of other questions"
    if format_violations([turn.parsed for turn in trajectory.turns]):
        return "out of format"
    return "right" if score is not None and score >= 1 else "wrong"


def _file_of(folder: Path, name: str) -> Path:
    files = sorted(file for file in (folder / "rollouts").glob("*.jsonl") if file.with_suffix(".tokens").is_file())
    agents = read_json(folder / "agents.json", RECORD, PUT_BACK) if (folder / "agents.json").is_file() else {}
    stems = {stem for stem, agent in agents.items() if name in (agent.get("name"), agent.get("context"))} | {name}
    own = [file for file in files if file.stem in stems] or files
    if len(own) != 1:
        found = ", ".join(file.stem for file in files) or "none"
        raise UserError(f"sft.rollouts: {folder} holds rollouts of {found}, which are not one agent called {name}")
    return own[0]


def _tokenizer_of(folder: Path, config: Config) -> Tokenizer:
    """The tokenizer of the policy that played, which need not be the one that the configuration names."""
    if config.server is not None:
        return open_tokenizer(config.server)
    identity = folder / "identity.json"
    played = read_json(identity, RECORD, PUT_BACK).get("policy") if identity.is_file() else None
    policy = played or config.model.path
    if not policy:
        raise UserError("sft.rollouts: the evaluation names neither a server nor a model whose tokenizer wrote it")
    return load_tokenizer(str(policy))


def _told(trajectory: Trajectory, question: Question, tokenizer: Tokenizer, grammar: TurnGrammar) -> Told:
    turns, results = [], []
    for turn in trajectory.turns:
        text = own_text(tokenizer, turn.own_ids, turn.stop)
        turns.append(tuple((element.tag, element.inner(text)) for element in scan(text, grammar.actions).top))
        if turn.observation is not None:
            results.append(_result(turn.observation, tokenizer))
    return Told(question, tuple(turns), tuple(results))


def _result(observation: Observation, tokenizer: Tokenizer) -> ToolResult:
    """What the tool had said: between the wrapper's two ends, the notice and the passages."""
    inner = observation.parts[1:-1]
    notice = tokenizer.decode(inner[0].ids) if inner and not inner[0].cuttable else ""
    return ToolResult(tuple(tokenizer.decode(part.ids) for part in inner if part.cuttable), notice)


class _Again:
    """The sampler that says the turns, and the tool that gives the results, in their order."""

    name = "again"

    def __init__(self, told: Told, tokenizer: Tokenizer) -> None:
        self._turns, self._results, self._tokenizer = iter(told.turns), iter(told.results), tokenizer

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        ids = encode_turn(self._tokenizer, next(self._turns))
        return Generation(ids, (0.0,) * len(ids), GenerationStop.STOP_STRING)

    async def call(self, argument: str) -> ToolResult:
        return next(self._results)


async def play_again(agent: Agent, told: Sequence[Told], joiner: str) -> list[Demo]:
    """Every rollout once more, in this agent's ids and context. The last note allowed the answer; what the notes before
    it would have allowed was never asked, so they make no probe samples. `joiner`: of `memory.probe.joiner`."""
    demos = []
    for n, one in enumerate(told):
        again = _Again(one, agent.renderer.tokenizer)
        tools: dict[str, Tool] = dict.fromkeys(agent.grammar.actions, again)
        tools.pop("answer", None)
        alone = dataclasses.replace(agent, tools=tools, environment=None)
        trajectory = await rollout(alone, again, Job(one.question, n, ("again",)), DecodingSettings())
        last = len(trajectory.turns) - 1
        said = joiner.join(one.question.probe_objectives) if trajectory.stop is StopReason.ANSWERED else None
        answers = [said if k == last and turn.note_ids is not None else None for k, turn in enumerate(trajectory.turns)]
        demos.append(Demo(one.question, trajectory, tuple(answers)))
    return demos
