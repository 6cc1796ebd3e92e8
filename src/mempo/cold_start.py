"""What SFT learns from: the expert's episodes as rows, probe samples, and for the toy policy copying.

The notes of the probe check come from the same expert.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mempo.agent import Agent, Job
from mempo.build import Data, make_agent
from mempo.config import Config
from mempo.demos import Demo, play
from mempo.errors import UserError
from mempo.expert import ExpertSettings
from mempo.interfaces import Environment, HasTexts, Scorer
from mempo.protocol import closing, opening
from mempo.question import Question
from mempo.rewards.outcome import score_answer
from mempo.rewards.probe_check import CheckNotes, ProbeCheck, check_notes, check_probe, note_of_gold
from mempo.runs.files import write_whole
from mempo.tokens import Codec
from mempo.train.batch import take
from mempo.train.sft import RowSource, demo_rows, mixed_batches, probe_row
from mempo.train.toy import toy_codec, with_warmup
from mempo.trajectory import Row, StopReason


@dataclass(frozen=True)
class Demonstrations:
    """The expert's episodes, their training rows, and rows that ask a note for the answer."""

    demos: list[Demo]
    rows: list[Row]
    probes: list[Row]


def sft_rows(config: Config, data: Data, agent: Agent, console: Console) -> RowSource:
    """The rows of every step of SFT."""
    found = demonstrations(config, data, agent, console)
    rows_at = mixed_batches(found.rows, found.probes, config.sft, config.seed)
    return with_warmup(rows_at, agent.renderer.codec, config.toy, config.seed) if config.toy else rows_at


def demonstrations(config: Config, data: Data, agent: Agent, console: Console) -> Demonstrations:
    """Let the expert play the training questions through the real tools and turn its episodes into rows.

    A share of the episodes is played in the full context, so that a long history is no foreign text to the policy.
    """
    settings, codec = config.sft, agent.renderer.codec
    questions = take(data.train, 0, settings.demos, f"{config.seed} demos")
    full = make_agent(config, codec, dict(agent.tools), agent.environment, context="full")
    rng = random.Random(f"{config.seed} full share")
    in_full = [rng.random() < settings.full_share for _ in questions]
    demos = [
        *_episodes(agent, _where(questions, in_full, False), settings.expert, config),
        *_episodes(full, _where(questions, in_full, True), settings.expert, config),
    ]
    played, demos = len(demos), [demo for demo in demos if demo.trajectory.stop is StopReason.ANSWERED]
    if not demos:  # those that ran into a limit show nothing worth imitating
        raise UserError(
            f"none of the {played} episodes of the expert came to an answer; raise limits.max_turns "
            f"({config.limits.max_turns}) or the limits in tokens"
        )
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
    return Demonstrations(demos, rows, probes)


def checked_probe(config: Config, data: Data, agent: Agent, scorer: Scorer, folder: Path) -> ProbeCheck:
    """Before RL: can the probe tell a right note from a wrong one? (docs/memory-signal.md) What was found is kept in
    `probe-check.json` of the run folder."""
    notes = notes_to_check(config, data, agent)
    check = check_probe(notes, agent.renderer.codec, scorer, config.memory.probe)
    write_whole(folder / "probe-check.json", json.dumps(dataclasses.asdict(check), indent=1) + "\n")
    return check


def notes_to_check(config: Config, data: Data, agent: Agent) -> list[CheckNotes]:
    """Notes for the probe check: the last note of an expert that loses nothing, or where it cannot play the questions
    a note that states their answers."""
    questions = take(data.train, 0, config.rl.probe_check_questions, f"{config.seed} probe check")
    questions = list({question.id: question for question in questions}.values())
    prompts = [agent.renderer.question(question.text) for question in questions]
    lossless = config.sft.expert.model_copy(update={"loss": 0.0})
    try:
        demos = _episodes(agent, questions, lossless, config)
    except UserError:  # no search plan
        return check_notes(questions, prompts, [note_of_gold(question) for question in questions])
    right = [(demo, note) for demo in demos if (note := _right_note(demo, config, agent.renderer.codec)) is not None]
    return check_notes(
        [demo.question for demo, _ in right],
        [demo.trajectory.question_ids for demo, _ in right],
        [note for _, note in right],
    )


def _right_note(demo: Demo, config: Config, codec: Codec) -> str | None:
    """What the last note of an episode says, when all of the answer can be told from it."""
    for turn, answer in reversed(list(zip(demo.trajectory.turns, demo.answers, strict=True))):
        if turn.note_ids is None or answer is None:
            continue
        wanted = demo.question.probe
        right = answer == wanted if wanted is not None else score_answer(answer, demo.question, config.reward).em == 1
        text = codec.decode(turn.note_ids)
        return text.removeprefix(opening("mem")).removesuffix(closing("mem")) if right else None
    return None


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
    fixed += [re.sub(r"\{\w+\}", gap, expert.think_search), expert.open.replace("{queries}", gap)]
    fixed += [expert.lost.replace("{query}", gap), config.memory.probe.thought, "nothing was found"]
    fixed += [f"{n} " for n in range(1, config.search.top_k + 1)]
    texts = [document.text for document in data.world.documents()]
    texts += data.world.texts() if isinstance(data.world, HasTexts) else ()
    actions = data.world.actions if isinstance(data.world, Environment) else ()
    return toy_codec([*texts, *(question.text for question in (*data.train, *data.test))], fixed, actions)
