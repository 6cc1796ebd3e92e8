"""Play what an evaluation folder does not hold yet, and score the notes that have no score yet."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from mempo.config.evaluate import AgentSpec, EvalSettings
from mempo.evaluate.folder import EvalFolder
from mempo.evaluate.loops import run_loop
from mempo.evaluate.runner import EvalSetup, facts_of, jobs_of, play, scored_notes
from mempo.evaluate.saved import read_beside
from mempo.progress import Progress
from mempo.rewards.rollout_metrics import counts
from mempo.rollout.agent import Job, Tally
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.storage.append import REMEDY, Key, RolloutAppender, read_facts
from mempo.storage.files import append_line
from mempo.storage.read_files import reading
from mempo.storage.rollouts import open_tokens, trajectory_of

_NOTES_AT_ONCE = 64


def missing_jobs(
    lines: Mapping[Key, Mapping[str, Any]],
    questions: Sequence[Question],
    settings: EvalSettings,
    seed: int,
    retry: bool,
) -> list[Job]:
    """The rollouts that are asked for and not there; with `retry` also those that failed for infrastructure reasons."""
    jobs = jobs_of(questions, settings, seed)
    found = ((job, lines.get((job.question.id, job.rollout))) for job in jobs)
    return [job for job, line in found if line is None or (retry and line["is_error"])]


def play_missing(
    folder: EvalFolder,
    spec: AgentSpec,
    setup: EvalSetup,
    questions: Sequence[Question],
    settings: EvalSettings,
    retry_errors: bool,
    console: Console,
) -> int:
    """Append every rollout that is missing as it ends; how many were played.

    A rollout that is played in a part has the noise that it has in one go. What a local policy samples can differ from
    the whole in the last bits of its floating-point sums, because other rollouts share its batches.
    """
    with RolloutAppender(folder.rollouts(spec.file_name)) as appender:
        jobs = missing_jobs(folder.lines(spec.file_name), questions, settings, setup.seed, retry_errors)
        if not jobs:
            return 0
        so_far = _SoFar()
        with Progress(console, spec.name, len(jobs), "rollout", history=True) as progress:

            def on_done(job: Job, trajectory: Trajectory, seconds: float) -> None:
                facts = facts_of(setup, job.question, trajectory, seconds=seconds)
                appender.append(trajectory, facts)
                so_far.add(facts)

            def tell(tally: Tally) -> None:
                progress.step(tally.done, f"{so_far}{tally.note}")

            run_loop(play(setup.agent, setup.sampler, jobs, settings, on_done, tell))
        return len(jobs)


@dataclasses.dataclass
class _SoFar:
    """Exact match of the rollouts that ended, and how many failed."""

    right: float = 0.0
    scored: int = 0
    errors: int = 0

    def add(self, facts: Mapping[str, Any]) -> None:
        self.errors += bool(facts["is_error"])
        if facts["em"] is not None and counts(facts):
            self.right, self.scored = self.right + facts["em"], self.scored + 1

    def __str__(self) -> str:
        em = f"em {self.right / self.scored:.3f}  " if self.scored else ""
        return f"{em}errors {self.errors}  "


def score_missing_notes(
    folder: EvalFolder, spec: AgentSpec, setup: EvalSetup, questions: Sequence[Question], console: Console
) -> int:
    """Ask the policy what each note is worth; how many rollouts' notes were scored. Rewards are appended group by
    group, so a kill loses one group. A threshold by quantile (`memory.threshold_quantile`) is that of the group."""
    if setup.scorer is None or spec.notes == "forbidden":
        return 0
    asked = {question.id: question for question in questions}
    scored = {
        (record["question_id"], record["rollout"]): record["answer"]
        for record in read_beside(folder.rollouts(spec.file_name), "notes")
    }
    wanted = {
        key
        for key, line in folder.lines(spec.file_name).items()
        if counts(line) and key[0] in asked and (key not in scored or scored[key] != line["answer"])
    }
    if not wanted:
        return 0
    file = folder.rollouts(spec.file_name)
    ints, floats = open_tokens(file)
    agent = setup.agent
    lines = _whole_lines(file, wanted)
    with Progress(console, f"{spec.name}, scoring notes", len(wanted), "rollout") as progress:
        for done in range(0, len(wanted), _NOTES_AT_ONCE):
            progress.step(done)
            with reading(file, REMEDY):
                group = [
                    trajectory_of(line, ints, floats, agent.renderer.tokenizer, agent.grammar)
                    for line in islice(lines, _NOTES_AT_ONCE)
                ]
            _score(folder, spec, setup, asked, group)
        progress.step(len(wanted))
    return len(wanted)


def _score(
    folder: EvalFolder,
    spec: AgentSpec,
    setup: EvalSetup,
    asked: Mapping[str, Question],
    group: Sequence[Trajectory],
) -> None:
    notes = scored_notes(setup, [asked[trajectory.question_id] for trajectory in group], group)
    for trajectory, scored in zip(group, notes, strict=True):
        record = {
            "question_id": trajectory.question_id,
            "rollout": trajectory.rollout,
            "answer": trajectory.answer,
            "notes": [dataclasses.asdict(note) for note in scored],
        }
        append_line(folder.notes(spec.file_name), record)


def _whole_lines(file: Path, wanted: set[Key]) -> Iterator[dict[str, Any]]:
    """The last line of every wanted key, tokens and all, one at a time."""
    last = {(line["question_id"], line["rollout"]): number for number, line in enumerate(read_facts(file))}
    numbers = {last[key] for key in wanted}
    with file.open("rb") as opened:
        for number, raw in enumerate(opened):
            if number in numbers:
                yield json.loads(raw)
