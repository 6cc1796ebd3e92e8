"""Demonstrations: a scripted expert, played as a `Sampler` through the agent loop and the real tools.

An environment may bring an expert of its own (`HasExpert`). The one here follows the search plan that an environment
or a row of a file puts into `Question.meta` (`queries` and `finds`, `[objectives][hops]`). What it knows it
takes from the prompt it is given, like the policy: its last note and the tool results that the context still shows. So
an expert without notes in a context that forgets cannot answer, and a note that dropped a fact costs the answer. `loss`
drops newly found facts from the notes at random: demonstrations of good searching and of bad notes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mempo.config.rollout import DecodingSettings
from mempo.config.train import ExpertSettings
from mempo.errors import UserError
from mempo.rollout.agent import Agent, Job, rollout
from mempo.rollout.expert import Expert
from mempo.rollout.interfaces import Generation, HasExpert, SamplingParams
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Trajectory

OPEN_SEPARATOR = "; "
"""Between open queries in a note."""

Fact = tuple[int, int]  # objective, hop


@dataclass(frozen=True)
class Plan:
    """What to search for and what each search finds, `[objectives][hops]`. `says` `[objectives]`: the answer once the
    last hop is known, where that is not what it finds; `actions`: tags in place of `search`, shaped as `queries`."""

    queries: tuple[tuple[str, ...], ...]
    finds: tuple[tuple[str, ...], ...]
    says: tuple[str, ...] = ()
    actions: tuple[tuple[str, ...], ...] = ()

    @property
    def facts(self) -> list[Fact]:
        return [(i, h) for i, hops in enumerate(self.queries) for h in range(len(hops))]


def plan_of(question: Question) -> Plan:
    """The search plan of a question.

    Raises:
        UserError: the question brings none.
    """
    meta = question.meta
    if not has_plan(question):
        raise UserError(
            f"question {question.id} has no search plan, so the expert cannot play it; give its row steps or documents,"
            " name rollouts of a stronger model (sft.rollouts), use an environment that gives plans (docs/data.md), or "
            "start from a model that was fine-tuned already (sft.steps=0)"
        )
    nested = (tuple(map(tuple, meta.get(key, ()))) for key in ("queries", "finds", "actions"))
    queries, finds, actions = nested
    return Plan(queries, finds, tuple(meta.get("says", ())), actions)


def has_plan(question: Question) -> bool:
    return {"queries", "finds"} <= question.meta.keys()


class SearchExpert:
    """The expert of search plans on one rollout. It remembers where in the plan it is, and nothing that it read."""

    def __init__(self, question: Question, settings: ExpertSettings, rng: random.Random, notes: bool = True) -> None:
        self._plan = plan_of(question)
        self._settings = settings
        self._rng = rng
        self._notes = notes
        self._loss = 0.0 if rng.random() < settings.lossless_share else settings.loss
        self._asked: list[Fact] = []
        self._dropped: set[Fact] = set()
        self._noted: set[Fact] = set()  # what the last note states

    def turn(self, seen: str) -> list[tuple[str, str]]:
        known = self._known(seen)
        pairs: list[tuple[str, str]] = []
        if self._notes and self._asked:
            for fact in sorted(known - self._noted):
                if self._rng.random() < self._loss:
                    self._dropped.add(fact)
            known -= self._dropped
            pairs.append(("mem", self._note(known)))
        self._noted = known
        todo = self._todo()
        if todo:
            self._asked.append(todo[0])
            query = self._query(todo[0])
            return [*pairs, ("think", self._settings.think_search.format(query=query)), (self._action(todo[0]), query)]
        return [*pairs, ("think", self._settings.think_answer), ("answer", self._answer(known))]

    def allows(self) -> str:
        return self._answer(self._noted)

    def _known(self, seen: str) -> set[Fact]:
        """Facts that the visible part of the past holds: the last note, and tool results, newest = last asked."""
        opened, closed = opening("mem"), closing("mem")
        note = seen.rpartition(opened)[2].partition(closed)[0] if opened in seen else ""
        known = {fact for fact in self._asked if self._statement(fact) in note}
        results = [part.partition(closing("tool_response"))[0] for part in seen.split(opening("tool_response"))[1:]]
        for fact, result in zip(reversed(self._asked), reversed(results), strict=False):
            if self._plan.finds[fact[0]][fact[1]] in result:
                known.add(fact)
        return known - self._dropped if self._notes else known

    def _todo(self) -> list[Fact]:
        return [fact for fact in self._plan.facts if fact not in self._asked]

    def _query(self, fact: Fact) -> str:
        return self._plan.queries[fact[0]][fact[1]]

    def _action(self, fact: Fact) -> str:
        return self._plan.actions[fact[0]][fact[1]] if self._plan.actions else "search"

    def _statement(self, fact: Fact) -> str:
        found = self._plan.finds[fact[0]][fact[1]]
        return self._settings.known.format(query=self._query(fact), found=found)

    def _lost(self, fact: Fact) -> str:
        return self._settings.lost.format(query=self._query(fact))

    def _note(self, facts: set[Fact]) -> str:
        s = self._settings
        told = [self._statement(f) if f in facts else self._lost(f) for f in sorted(facts | self._dropped)]
        text = s.separator.join(statement for statement in told if statement) or s.nothing
        todo = self._todo()
        if todo and s.open:
            # The query of a later hop names what an earlier one found, so only an objective's next hop is told.
            nexts = [fact for fact in todo if fact[1] == 0 or (fact[0], fact[1] - 1) in self._asked]
            text += s.open.format(queries=OPEN_SEPARATOR.join(self._query(fact) for fact in nexts))
        return text

    def _answer(self, facts: set[Fact]) -> str:
        """The answer that `facts` allow: the last hop of each objective, or `unknown`."""
        s = self._settings
        lasts = [(i, len(hops) - 1) for i, hops in enumerate(self._plan.finds)]
        if s.omit_unknown and not any(last in facts for last in lasts):
            return s.unknown
        says = self._plan.says or [hops[-1] for hops in self._plan.finds]
        parts = [says[i] if (i, h) in facts else s.unknown for i, h in lasts]
        return s.joiner.join(
            part for part, last in zip(parts, lasts, strict=True) if last in facts or not s.omit_unknown
        )


def encode_turn(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Ids of a turn given as (tag, content): tags are ours, contents may quote what a tool said."""
    pieces = [piece for tag, text in pairs for piece in ((opening(tag), True), (text, False), (closing(tag), True))]
    return tokenizer.encode_mixed(pieces).ids


class Player:
    """An expert as a `Sampler`. `allowed[t]` is what the note of turn t allows to say to the probe."""

    def __init__(self, expert: Expert, agent: Agent, question: Question) -> None:
        self._expert = expert
        self._tokenizer = agent.renderer.tokenizer
        self._question_text = self._tokenizer.decode(agent.renderer.question(question.text))
        self.allowed: list[str | None] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        prompt = self._tokenizer.decode(prompt_ids)
        ids = encode_turn(self._tokenizer, self._expert.turn(prompt[len(self._question_text) :]))
        self.allowed.append(self._expert.allows())
        return Generation(ids, (0.0,) * len(ids), GenerationStop.STOP_STRING)


@dataclass(frozen=True)
class Demo:
    """An episode of the expert. `answers[t]` is what the note of turn t allows to answer (None: no note)."""

    question: Question
    trajectory: Trajectory
    answers: tuple[str | None, ...]


async def play(
    agent: Agent,
    jobs: Sequence[Job],
    settings: ExpertSettings,
    notes: bool = True,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Demo]:
    """Let the expert play every job; the noise of its notes is keyed like that of a policy. `tell` hears how many are
    done."""
    demos = []
    for job in jobs:
        rng = random.Random("\x1f".join(map(str, (*job.key, job.question.id, job.rollout))))
        environment = agent.environment
        make = environment.expert if isinstance(environment, HasExpert) else SearchExpert
        player = Player(make(job.question, settings, rng, notes), agent, job.question)
        trajectory = await rollout(agent, player, job, DecodingSettings())
        answers = tuple(
            allowed if turn.note_ids is not None else None
            for turn, allowed in zip(trajectory.turns, player.allowed, strict=True)
        )
        demos.append(Demo(job.question, trajectory, answers))
        tell(len(demos))
    return demos
