"""The protocols between the stages. Anything that has these methods can take the place of ours."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mempo.config.train import ExpertSettings
from mempo.rollout.expert import Expert
from mempo.rollout.question import Question
from mempo.rollout.trajectory import GenerationStop, Turn

if TYPE_CHECKING:
    import numpy as np


# --- policy --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one generation. `seed` keys the noise of this generation alone; None draws a fresh one.

    `temperature` 0 is greedy decoding. `top_p` 1 and `top_k` 0 are off.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Generation:
    """Sampled ids, byte for byte, with their log-probs at the sampling temperature (at 1 for greedy decoding).

    An end-of-sequence token that was sampled is among the ids. Tokens that begin after a stop string are not. Without
    log-probs (`()`, a server that tells none) a generation can be evaluated, never trained on.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: GenerationStop

    def __post_init__(self) -> None:
        if self.logprobs and len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} sampled ids but {len(self.logprobs)} log-probs")


class SamplerError(Exception):
    """The policy server failed for good; the rollout ends as an infrastructure error."""


class Sampler(Protocol):
    """The policy as the agent loop sees it. Raises `SamplerError` when generation failed for good."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation: ...


@runtime_checkable
class CohortSampler(Protocol):
    """A sampler that batches in lockstep must know how many rollouts are still under way."""

    def enter(self, rollouts: int) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True)
class ScoreRequest:
    """Log-probs wanted of `continuation_ids` after `prefix_ids`. Requests may share prefixes; scorers may use that.

    `which` picks continuation positions (None: all of them).
    """

    prefix_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    which: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.prefix_ids:
            raise ValueError("a score request needs at least one prefix token to predict from")


class Scorer(Protocol):
    """Log-probs under the current policy. `score(requests)[i]` is float64 `[positions]`, in request order."""

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]: ...


# --- tools ---------------------------------------------------------------------------------------------------------


class ToolErrorKind(StrEnum):
    """`bad_call` is the policy's doing and an ordinary observation; `unavailable` is infrastructure."""

    BAD_CALL = "bad_call"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class ToolResult:
    """What a tool found, as text. Passages may be cut to fit a budget; the notice never is."""

    passages: tuple[str, ...] = ()
    notice: str = ""
    error: ToolErrorKind | None = None


@runtime_checkable
class Tool(Protocol):
    """`name` is the action tag it answers. `call` never raises for bad arguments or a failing server: it returns
    a `ToolResult` that says so.

    A tool with a tag of its own, beside `search` and `access`, also has a `description`: what goes between its tags and
    what comes back, in a sentence. The system prompt tells it to the policy.
    """

    name: str

    async def call(self, argument: str) -> ToolResult: ...


@runtime_checkable
class DescribedTool(Tool, Protocol):
    """A tool that is told to the policy."""

    description: str


# --- contexts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuiltContext:
    """The next prompt. `overflow` is True when the question and what must stay exceed `limit_tokens`."""

    ids: tuple[int, ...]
    overflow: bool = False
    cut_tokens: int = 0


@runtime_checkable
class Context(Protocol):
    """What the policy sees next.

    `build(question_ids, turns, limit_tokens)`: `question_ids` is the prompt of turn 1, `turns` are all turns so far,
    each with its observation. The result has at most `limit_tokens` ids unless `overflow`.
    """

    name: str

    def build(self, question_ids: Sequence[int], turns: Sequence[Turn], limit_tokens: int) -> BuiltContext: ...


# --- environments --------------------------------------------------------------------------------------------------


class DocumentLike(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def url(self) -> str | None: ...


@runtime_checkable
class Environment(Protocol):
    """A source of documents and questions. `split` is "train" or "test"; the same arguments give the same questions."""

    name: str

    def documents(self) -> Sequence[DocumentLike]: ...

    def questions(self, split: str, count: int, objectives: int, seed: int) -> list[Question]: ...


@runtime_checkable
class InteractiveEnvironment(Environment, Protocol):
    """An environment to act in: every rollout gets tools with a state of its own. Its documents may be none at all.

    `actions` are tags of its own that a turn may end with, such as `("move",)`. `episode(question)` is called once at
    the beginning of each rollout and returns the tools of this rollout alone, by the tag they answer; what it needs to
    know is in `question.meta`. An exception it raises is a rollout that failed for infrastructure reasons.
    """

    actions: tuple[str, ...]

    def episode(self, question: Question) -> Mapping[str, Tool]: ...


@runtime_checkable
class HasExpert(Protocol):
    """An environment that can play its own questions. `notes` False: the agent's grammar has none."""

    def expert(
        self, question: Question, settings: ExpertSettings, rng: random.Random, notes: bool = True
    ) -> Expert: ...


@runtime_checkable
class HasTexts(Protocol):
    """An environment that shows more than its documents and questions say; the toy's tokenizer learns these
    texts too."""

    def texts(self) -> Sequence[str]: ...
