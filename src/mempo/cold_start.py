"""What SFT learns from: the expert's episodes as rows, probe samples, and for the toy policy copying."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from rich.console import Console

from mempo.agent import Agent, Job
from mempo.build import Data, make_agent
from mempo.config import Config
from mempo.demos import Demo, ExpertSettings, play
from mempo.question import Question
from mempo.tokens import Codec
from mempo.train.sft import RowSource, demo_rows, mixed_batches, probe_row, take
from mempo.train.toy import toy_codec, with_warmup


def sft_rows(config: Config, data: Data, agent: Agent, console: Console) -> RowSource:
    """Let the expert play the training questions through the real tools and turn its episodes into rows.

    A share of the episodes is played in the full context, so that a long history is no foreign text to the policy.
    """
    settings, codec = config.sft, agent.renderer.codec
    questions = take(data.train, 0, settings.demos, f"{config.seed} demos")
    full = make_agent(config, codec, dict(agent.tools), context="full")
    rng = random.Random(f"{config.seed} full share")
    in_full = [rng.random() < settings.full_share for _ in questions]
    demos = [
        *_episodes(agent, _where(questions, in_full, False), settings.expert, config),
        *_episodes(full, _where(questions, in_full, True), settings.expert, config),
    ]
    probed = []
    if settings.probe_share:
        probed = demos
        if settings.lossless_probes and settings.expert.loss:
            lossless = settings.expert.model_copy(update={"loss": 0.0})
            probed = _episodes(agent, questions, lossless, config)
    found = (
        probe_row(codec, demo, turn.index, config.memory.probe) for demo in probed for turn in demo.trajectory.turns
    )
    probes = [row for row in found if row is not None]
    rows = demo_rows(demos)
    counts = f"{len(demos)} episodes, {len(rows)} rows, {len(probes)} probe samples"
    console.print(f"demonstrations: {counts}", highlight=False)
    rows_at = mixed_batches(rows, probes, settings, config.seed)
    return with_warmup(rows_at, codec, config.toy, config.seed) if config.toy else rows_at


def _where(questions: Sequence[Question], flags: Sequence[bool], wanted: bool) -> list[Question]:
    return [question for question, flag in zip(questions, flags, strict=True) if flag == wanted]


def _episodes(agent: Agent, questions: Sequence[Question], expert: ExpertSettings, config: Config) -> list[Demo]:
    notes = config.agent.notes != "forbidden"
    jobs = [Job(question, i, (config.seed, "demos")) for i, question in enumerate(questions)]
    return asyncio.run(play(agent, jobs, expert, notes))


def codec_of_toy(config: Config, data: Data) -> Codec:
    """The toy's tokenizer: every name of the world and every fixed sentence is one token."""
    assert data.world is not None  # `config.check`: a toy has a world
    expert, gap = config.sft.expert, "\n"
    fixed = [expert.nothing, expert.unknown, expert.think_answer, expert.separator, expert.open_separator]
    fixed += [expert.think_search.replace("{query}", gap), expert.open.replace("{queries}", gap)]
    fixed += [expert.lost.replace("{query}", gap), config.memory.probe.thought, "nothing was found"]
    fixed += [f"{n} " for n in range(1, config.search.top_k + 1)]
    texts = [document.text for document in data.world.documents()]
    return toy_codec([*texts, *(question.text for question in (*data.train, *data.test))], fixed)
