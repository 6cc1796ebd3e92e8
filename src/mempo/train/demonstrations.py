"""What SFT learns from: the expert's episodes as rows, probe samples, and for the toy policy copying.

The notes of the probe check come from the same expert.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from mempo.config import Config
from mempo.config.train import ExpertSettings, SftSettings
from mempo.envs.data import Data
from mempo.errors import UserError
from mempo.progress import Progress, say
from mempo.retrieval.document import Document
from mempo.rewards.outcome import score_answer
from mempo.rewards.probe_check import CheckNotes, ProbeCheck, check_notes, check_probe, note_of_gold
from mempo.rollout.agent import Agent, Job
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import HasExpert, HasTexts, InteractiveEnvironment, Scorer, Tool
from mempo.rollout.protocol import closing, opening
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row, StopReason
from mempo.storage.files import write_atomic
from mempo.tools.make import told
from mempo.train.expert_rollouts import OPEN_SEPARATOR, Demo, has_plan, plan_of, play
from mempo.train.gold_plans import planned
from mempo.train.model_rollouts import collect, play_again
from mempo.train.sft import RowSource, demo_rows, mixed_batches, probe_row, take
from mempo.train.tiny_model import toy_tokenizer, with_warmup

T = TypeVar("T")


@dataclass(frozen=True)
class Demonstrations:
    """The expert's episodes, their training rows, and rows that ask a note for the answer."""

    demos: list[Demo]
    rows: list[Row]
    probes: list[Row]


def sft_rows(config: Config, data: Data, agent: Agent, console: Console) -> RowSource:
    """The rows of every step of SFT; with `sft.lossy_steps` the last of them come from notes that lose facts, those
    before from the same questions with complete notes."""
    rows_at = _batches(config, data, agent, console)
    if config.sft.lossy_steps is not None:
        warmup = config.toy.warmup_steps if config.toy else 0  # sft.steps counts it, the rows below do not
        lossless = config.sft.expert.model_copy(update={"loss": 0.0})
        complete = config.model_copy(update={"sft": config.sft.model_copy(update={"expert": lossless})})
        rows_at = switched(
            _batches(complete, data, agent, console), rows_at, config.sft.steps - config.sft.lossy_steps - warmup
        )
    return with_warmup(rows_at, agent.renderer.tokenizer, config.toy, config.seed) if config.toy else rows_at


def switched(before: RowSource, after: RowSource, step: int) -> RowSource:
    """The rows of `before` up to `step`, those of `after` from it on."""
    return lambda at: before(at) if at < step else after(at)


def _batches(config: Config, data: Data, agent: Agent, console: Console) -> RowSource:
    found = demonstrations(config, data, agent, console)
    return mixed_batches(found.rows, found.probes, config.sft, config.seed)


def demonstrations(config: Config, data: Data, agent: Agent, console: Console) -> Demonstrations:
    """Let the expert play the training questions through the real tools, or read a stronger model's rollouts of them
    (`sft.rollouts`), and turn the episodes into rows.

    A share of the episodes is played in the full context, so that a long history is no foreign text to the policy.

    Raises:
        UserError: no question can be played, or no episode comes to an answer.
    """
    settings, tokenizer = config.sft, agent.renderer.tokenizer
    full = dataclasses.replace(agent, name="full", context=make_context("full", agent.renderer))
    rng = random.Random(f"{config.seed} full share")
    questions: list[Question] = []
    if settings.rollouts:
        collected = collect(Path(settings.rollouts), data.train, agent)
        say(console, f"{settings.rollouts}: {collected.line}")
        in_full = [rng.random() < settings.full_share for _ in collected.told]
        demos = [
            demo
            for player, wanted in ((agent, False), (full, True))
            for demo in asyncio.run(
                play_again(player, _where(collected.told, in_full, wanted), config.memory.probe.joiner)
            )
        ]
    else:
        questions = take(_playable(config, data, console), 0, settings.demos, f"{config.seed} demos")
        in_full = [rng.random() < settings.full_share for _ in questions]
        demos = [
            *_episodes(agent, _where(questions, in_full, False), settings.expert, config, console),
            *_episodes(full, _where(questions, in_full, True), settings.expert, config, console),
        ]
    played, demos = len(demos), [demo for demo in demos if demo.trajectory.stop is StopReason.ANSWERED]
    if not demos:  # those that ran into a limit show nothing worth imitating
        raise UserError(
            f"none of the {played} episodes of the expert came to an answer; raise limits.max_turns "
            f"({config.limits.max_turns}) or the limits in tokens"
        )
    if not settings.expert.loss and data.environment is None:
        _say_wrong(demos, config, console)
    probed = []
    if settings.probe_share:
        probed = demos
        if settings.lossless_probes and settings.expert.loss and not settings.rollouts:
            lossless = settings.expert.model_copy(update={"loss": 0.0})
            probed = _episodes(agent, questions, lossless, config, console)
    found = (
        probe_row(tokenizer, demo, turn.index, config.memory.probe) for demo in probed for turn in demo.trajectory.turns
    )
    probes = [row for row in found if row is not None]
    rows = demo_rows(demos)
    counts = f"{len(demos)} episodes, {len(rows)} rows, {len(probes)} probe samples"
    say(console, f"demonstrations{_which(settings)}: {counts}")
    return Demonstrations(demos, rows, probes)


def _which(settings: SftSettings) -> str:
    """Which demonstrations these are, where there are two kinds."""
    if settings.lossy_steps is None:
        return ""
    return f" of the last {settings.lossy_steps} steps, facts lost" if settings.expert.loss else ", nothing lost"


def _playable(config: Config, data: Data, console: Console) -> list[Question]:
    """The training questions that an expert can play; plans are made from gold documents where rows name these.

    Raises:
        UserError: there is none.
    """
    if isinstance(data.environment, HasExpert):
        return data.train
    questions, lost = [], 0
    for question in data.train:
        if not has_plan(question) and "documents" in question.meta and data.retriever is not None:
            made = planned(question, data.retriever, config.search.top_k)
            lost += made is None
            question = made or question
        questions.append(question)
    if lost:
        say(
            console,
            f"{lost} training questions name documents that search does not bring among the first "
            f"{config.search.top_k} results: no demonstrations of these",
        )
    found = [question for question in questions if has_plan(question)]
    if not found:
        plan_of(questions[0])  # raises, and says what would be a plan
    if 0 < len(found) < len(questions) - lost:
        say(console, f"{len(found)} of {len(questions)} training questions have a search plan")
    return found


def _say_wrong(demos: Sequence[Demo], config: Config, console: Console) -> None:
    """An expert that loses nothing and answers wrong has a plan that the search does not bear out."""
    wrong = [demo for demo in demos if score_answer(demo.trajectory.answer or "", demo.question, config.reward).em < 1]
    if wrong:
        say(
            console,
            f"{len(wrong)} of {len(demos)} demonstrations do not come to the gold answer, the first of question "
            f"{wrong[0].question.id}: its searches do not bring what its steps say they find",
            style="yellow",
        )


def checked_probe(config: Config, data: Data, agent: Agent, scorer: Scorer, folder: Path) -> ProbeCheck:
    """Before RL: can the probe tell a right note from a wrong one? (docs/memory-signal.md) What was found is kept in
    `probe-check.json` of the run folder."""
    notes = notes_to_check(config, data, agent)
    check = check_probe(notes, agent.renderer.tokenizer, scorer, config.memory.probe)
    write_atomic(folder / "probe-check.json", json.dumps(dataclasses.asdict(check), indent=1) + "\n")
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
    right = [
        (demo, note) for demo in demos if (note := _right_note(demo, config, agent.renderer.tokenizer)) is not None
    ]
    return check_notes(
        [demo.question for demo, _ in right],
        [demo.trajectory.question_ids for demo, _ in right],
        [note for _, note in right],
    )


def _right_note(demo: Demo, config: Config, tokenizer: Tokenizer) -> str | None:
    """What the last note of an episode says, when all of the answer can be told from it."""
    for turn, answer in reversed(list(zip(demo.trajectory.turns, demo.answers, strict=True))):
        if turn.note_ids is None or answer is None:
            continue
        wanted = demo.question.probe
        right = answer == wanted if wanted is not None else score_answer(answer, demo.question, config.reward).em == 1
        text = tokenizer.decode(turn.note_ids)
        return text.removeprefix(opening("mem")).removesuffix(closing("mem")) if right else None
    return None


def _where(items: Sequence[T], flags: Sequence[bool], wanted: bool) -> list[T]:
    return [item for item, flag in zip(items, flags, strict=True) if flag == wanted]


def _episodes(
    agent: Agent, questions: Sequence[Question], expert: ExpertSettings, config: Config, console: Console | None = None
) -> list[Demo]:
    notes = config.agent.notes != "forbidden"
    jobs = [Job(question, i, (config.seed, "demos")) for i, question in enumerate(questions)]
    with Progress(console or Console(quiet=True), "demonstrations", len(jobs), "episode") as progress:
        return asyncio.run(play(agent, jobs, expert, notes, progress.step))


def tokenizer_of_toy(config: Config, data: Data, tools: Mapping[str, Tool] | None = None) -> Tokenizer:
    """The toy's tokenizer: every name of the environment, or of the files, and every fixed sentence is one token.

    Raises:
        UserError: files with too many different pieces for a toy.
    """
    expert, gap = config.sft.expert, "\n"
    fixed = [expert.nothing, expert.unknown, expert.think_answer, expert.separator, OPEN_SEPARATOR]
    fixed += [re.sub(r"\{\w+\}", gap, expert.think_search), expert.open.replace("{queries}", gap)]
    fixed += [expert.lost.replace("{query}", gap), config.memory.probe.thought, "nothing was found"]
    fixed += [f"{n} " for n in range(1, config.search.top_k + 1)]
    texts = (
        [document.text for document in data.environment.documents()] if data.environment is not None else _texts(data)
    )
    texts += data.environment.texts() if isinstance(data.environment, HasTexts) else ()
    texts += [told((tools or {}).values())]
    actions = (
        *(data.environment.actions if isinstance(data.environment, InteractiveEnvironment) else ()),
        *(tools or {}),
    )
    tokenizer = toy_tokenizer([*texts, *(question.text for question in (*data.train, *data.test))], fixed, actions)
    if data.environment is None and tokenizer.size > _MOST_PIECES:
        raise UserError(
            f"the files have {tokenizer.size} different pieces, and a toy has a token for each; a toy is for files of "
            f"at most {_MOST_PIECES}, such as lines `attribute of name: value` (docs/data.md); set toy=null "
            "and model.path"
        )
    return tokenizer


_MOST_PIECES = 20_000


def _texts(data: Data) -> list[str]:
    """What the user's own files say: documents, answers and search plans."""
    corpus: Iterable[Document] = getattr(data.retriever, "corpus", None) or ()
    texts = [text for document in islice(corpus, _MOST_PIECES) for text in (document.title, document.text)]
    for question in (*data.train, *data.test):
        texts += [alias for aliases in question.objectives for alias in aliases]
        texts += [hop for key in ("queries", "finds") for hops in question.meta.get(key, ()) for hop in hops]
    return texts
