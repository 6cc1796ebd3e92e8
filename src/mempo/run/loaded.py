"""A trained agent in this process: ask it questions, score its notes."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from mempo.config import Config, resolve
from mempo.config.rollout import DecodingSettings
from mempo.engine.model import load_policy, load_tokenizer, model_window
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.scorer import LocalScorer
from mempo.envs.registry import make_environment
from mempo.errors import UserError
from mempo.rewards.memory import probe_request
from mempo.rewards.probe import NoSignal, probe_or_reason
from mempo.rollout.agent import Agent, Job, run_rollouts
from mempo.rollout.interfaces import Sampler, Scorer
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Gold, Question, as_gold
from mempo.rollout.trajectory import Trajectory
from mempo.rollout.turn_text import note_text
from mempo.run.evaluate import final_model
from mempo.setup import check_window, make_agent, make_sampler, make_tools, open_retriever
from mempo.storage.model_files import may_be_hub_name, model_folder

Overrides = Mapping[str, Any] | Sequence[str]
"""`{"rl.steps": 2}`, or `["rl.steps=2"]` as on the command line."""


def override_texts(overrides: Overrides) -> list[str]:
    """As on the command line."""
    if isinstance(overrides, Mapping):
        return [f"{key}={_as_yaml(key, value)}" for key, value in overrides.items()]
    return [overrides] if isinstance(overrides, str) else list(overrides)


def _as_yaml(key: str, value: Any) -> str:
    """One line that is read back as `value`. JSON writes a character beyond U+FFFF as two surrogates, which in YAML are
    no text, so characters stand for themselves; those that YAML would refuse or fold are escaped as YAML does."""

    def plain(other: Any) -> Any:
        if isinstance(other, PurePath):
            return str(other)
        if isinstance(other, np.generic):
            return other.item()
        raise UserError(f"{key} is a {type(other).__name__}; give a number, a text, a path, a list or a mapping")

    text = json.dumps(value, ensure_ascii=False, default=plain)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


@dataclass(frozen=True)
class TurnText:
    """A turn as text. `saw`: the whole prompt. `wrote`: what the policy generated. `note`: the text between its tags,
    None if no note is closed. `action`: such as `search: capital of Peru`. `result`: what the tool answered, empty
    after the last turn."""

    saw: str
    wrote: str
    note: str | None
    action: str | None
    result: str


class LoadedAgent:
    """A trained agent with its policy, tools and retriever, made by `load_agent`.

    Use it in a `with` block: if it had to build an index of a corpus file, the index is removed at the end. For loops
    of your own, `agent`, `sampler` and `scorer` are what `mempo.rollout.agent.run_rollouts` and
    `mempo.rewards.memory.score_notes` take.
    """

    def __init__(self, config: Config, agent: Agent, sampler: Sampler, scorer: Scorer, work: Any) -> None:
        self.config, self.agent, self.sampler, self.scorer, self._work = config, agent, sampler, scorer, work

    def __enter__(self) -> LoadedAgent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._work.cleanup()

    def ask(self, question: str | Question, temperature: float = 0.0, seed: int = 0) -> Trajectory:
        """Let the agent answer one question. The result's `answer` is None if the agent gave none, and `turns` hold
        what it saw and wrote. If a tool or server fails, the trajectory has a stop reason that says so; no exception
        is raised.

        Raises:
            UserError: the environment cannot play this question.
        """
        asked = question if isinstance(question, Question) else Question("asked", question, None)
        decoding = DecodingSettings(temperature=temperature)
        return _run(lambda: run_rollouts(self.agent, self.sampler, [Job(asked, 0, (seed,))], decoding))[0]

    def texts(self, rollout: Trajectory) -> list[TurnText]:
        """What the policy saw and wrote, turn by turn, decoded from the ids in `rollout.turns`. A turn has `saw`,
        `wrote`, `note`, `action` and `result`."""
        tokenizer = self.agent.renderer.tokenizer
        return [
            TurnText(
                saw=tokenizer.decode(turn.prompt_ids),
                wrote=tokenizer.decode(turn.own_ids),
                note=note_text(turn, tokenizer),
                action=f"{turn.parsed.action.kind}: {turn.parsed.action.text}" if turn.parsed.action else None,
                result=tokenizer.decode(turn.observation.ids).strip() if turn.observation else "",
            )
            for turn in rollout.turns
        ]

    def score_note(self, question: str, answer: Gold | Sequence[Any], note: str) -> float:
        """How probable the answer is for the policy, given the question and this note alone: the geometric mean of the
        probabilities of the answer's tokens, in [0, 1], as in the memory signal.

        `note` is the text between the tags; tags inside it are text. `answer` is a string, a list of aliases, or a list
        of aliases for each objective; the first alias counts.

        Raises:
            UserError: the answer cannot be scored: it is blank, or longer than memory.probe.max_gold_tokens.
        """
        tokenizer, settings = self.agent.renderer.tokenizer, self.config.memory.probe
        try:
            probe = probe_or_reason(tokenizer, Question("scored", question, as_gold(answer)), settings)
        except ValueError as error:
            raise UserError(f"the answer {answer!r} gives no signal: {error}") from None
        if isinstance(probe, NoSignal):
            raise UserError(f"the answer {answer!r} gives no signal: {probe}")
        ids = tokenizer.encode_mixed([(opening("mem"), True), (note, False), (closing("mem"), True)]).ids
        request = probe_request((*self.agent.renderer.question(question), *ids), probe)
        return math.exp(float(self.scorer.score([request])[0].mean()))


def load_agent(source: str | Path, overrides: Overrides = (), config: str | None = None) -> LoadedAgent:
    """Load a trained agent to ask it questions and to score notes.

    `source` is a run folder (its final policy, or its newest checkpoint), something that `mempo push` made (a folder,
    or a name on the hub), or a model folder or hub name together with a recipe or file `config`. `overrides` win over
    the configuration, as in `train_agent`.

    Raises:
        UserError: there is no policy, a setting is wrong, or the corpus or the server cannot be read.
    """
    path = Path(source)
    if config is None and not path.exists() and may_be_hub_name(str(source)):
        path = model_folder(str(source), settings=True)
    is_run = (path / "config.yaml").is_file()
    if config is None and not is_run:
        raise UserError(f"{source} is not a run folder (it has no config.yaml); name the configuration with config=…")
    settings = resolve(config or str(path), override_texts(overrides)).config
    model = str(final_model(path)) if is_run else str(source)
    tokenizer = load_tokenizer(model)
    check_window(settings, model_window(model))
    work = tempfile.TemporaryDirectory(prefix="mempo-")
    environment = (
        make_environment(settings.data.environment, settings.data.environment_options)
        if settings.data.environment
        else None
    )
    retriever = open_retriever(settings, environment, Path(work.name))
    agent = make_agent(settings, tokenizer, make_tools(settings, retriever), environment)
    policy = load_policy(settings.model, model, tokenizer)
    forward = SharedForward(policy)
    return LoadedAgent(
        settings, agent, make_sampler(settings, policy, forward), LocalScorer(policy, forward=forward), work
    )


def _run(make: Any) -> Any:
    """The result of a coroutine, also from inside a running event loop, such as a notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(make())).result()
