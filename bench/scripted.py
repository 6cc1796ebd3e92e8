"""Rollouts whose words are given: the policy computes and samples as ever, and what it sampled is replaced.

A random model writes no notes and no searches, and a trained one writes as much as it likes. Here every turn has the
tags and the length it should have, at the full cost of generating it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from shapes import texts

import mempo.engine.sampler as engine
from mempo.config.rollout import LimitSettings, PromptSettings
from mempo.rollout.agent import Agent, Job, noise_seed
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import SamplingParams, ToolResult
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.question import Question
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Tokenizer


@contextmanager
def said(script: Mapping[int, Sequence[int]]) -> Iterator[None]:
    """Within the block, a request with seed s says `script[s]`, token by token."""
    sample, at = engine.sample, Counter[int]()

    def scripted(logprobs: torch.Tensor, uniform: torch.Tensor, sampling: Sequence[SamplingParams]) -> torch.Tensor:
        sample(logprobs, uniform, sampling)
        tokens = []
        for one in sampling:
            words = script[one.seed or 0]
            tokens.append(words[min(at[one.seed or 0], len(words) - 1)])
            at[one.seed or 0] += 1  # a row that has ended is fed along
        return torch.tensor(tokens, device=logprobs.device)

    engine.sample = scripted
    try:
        yield
    finally:
        engine.sample = sample


class Words:
    """Token ids of lower-case words of the built-in environment."""

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        found = tokenizer.encode_untrusted(" ".join(texts()[:200]))
        plain = {i for i in set(found) if tokenizer.piece(i).strip().isalpha() and tokenizer.piece(i).islower()}
        self._ids = sorted(plain - tokenizer.added_ids)
        self._rng = random.Random(seed)

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(self._ids, k=count))


@dataclass(frozen=True)
class TurnShape:
    """Tokens of a turn, tags not counted, and how many turns. `passage` is one tool result with its wrapper; a turn is
    cut off at `limit` tokens, where that is given."""

    turns: int = 4
    question: int = 60
    note: int = 40
    thought: int = 30
    query: int = 10
    passage: int = 120
    limit: int | None = None


class Passages:
    """A tool that finds a passage of words, another one for every query."""

    name = "search"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._words = tokenizer, Words(tokenizer, 1)

    async def call(self, argument: str) -> ToolResult:
        return ToolResult((self._tokenizer.decode(self._words.take(1500)),))  # cut to its budget by the agent loop


@dataclass(frozen=True)
class Play:
    """An agent, questions, and what the policy will say in every turn of every rollout of them."""

    tokenizer: Tokenizer
    shape: TurnShape
    context: str
    window_tokens: int = 32_768

    @cached_property
    def agent(self) -> Agent:
        renderer, shape = Renderer(self.tokenizer, PromptSettings(template="plain")), self.shape
        turn = shape.note + shape.thought + shape.query + 60  # and the tags
        limits = LimitSettings(
            max_turns=shape.turns,
            max_turn_tokens=shape.limit or turn,
            max_context_tokens=self.window_tokens,
            max_obs_tokens=shape.passage,
        )
        tools = {"search": Passages(self.tokenizer)}
        return Agent(self.context, make_context(self.context, renderer), TurnGrammar(), renderer, tools, limits)

    def questions(self, count: int) -> list[Question]:
        words = Words(self.tokenizer, 2)
        return [
            Question(
                f"q{n}",
                self.tokenizer.decode(words.take(self.shape.question)),
                self.tokenizer.decode(words.take(4)).strip(),
            )
            for n in range(count)
        ]

    def script(self, jobs: Sequence[Job]) -> dict[int, tuple[int, ...]]:
        """Half of the rollouts answer right, so that there is something to learn."""
        words, shape, encode = Words(self.tokenizer, 3), self.shape, self.tokenizer.encode_trusted
        script = {}
        for job in jobs:
            for turn in range(shape.turns):
                ids = (*encode("<mem>"), *words.take(shape.note), *encode("</mem>")) if turn else ()
                ids += (*encode("<think>"), *words.take(shape.thought), *encode("</think>"))
                if turn + 1 < shape.turns:
                    ids += (*encode("<search>"), *words.take(shape.query), *encode("</search>"))
                else:
                    answer = job.question.gold if job.rollout % 2 else "none of these"
                    ids += encode(f"<answer>{answer}</answer>")
                script[noise_seed(*job.key, job.question.id, job.rollout, turn)] = ids
        return script
