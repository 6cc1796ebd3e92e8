"""`mempo diagnose --true-advantage`: how well does each signal measure what a note is worth?

The policy plays groups of rollouts, as a step of RL does. For some of their notes it returns to the state they were
written in (`by_state`): other notes are sampled there, and from every note many rollouts continue to the end. Their
mean score is what the note is worth, and every signal is compared with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from mempo.config import Config, resolve
from mempo.diagnose.by_state import states_of_turns
from mempo.diagnose.numbers import finite
from mempo.diagnose.signals import signals_of
from mempo.diagnose.true_table import page
from mempo.diagnose.worth import SignalQuality, Worth, ceiling, quality, worths_in_state
from mempo.engine.model import load_policy, load_tokenizer
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.scorer import LocalScorer
from mempo.errors import UserError
from mempo.evaluate.runner import EvalSettings, play
from mempo.progress import Progress, say
from mempo.rewards.answer_match import answers_given
from mempo.rollout.agent import Agent, Beginning, DecodingSettings, Job, at_once, noise_seed, read_turn
from mempo.rollout.interfaces import CohortSampler, Generation, Sampler, SamplerError, SamplingParams, Scorer
from mempo.rollout.protocol import closing, format_violations
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory, Turn
from mempo.run.evaluate import final_model
from mempo.setup import advantage_function, custom_score, load_data, make_agent, make_sampler, make_tools
from mempo.storage.files import write_atomic
from mempo.storage.run_folder import RunFolder
from mempo.train.batch import take
from mempo.train.score_batch import Scoring
from mempo.train.start import start_model

WorthOf = Literal["score", "share"]
MOST_IN_FLIGHT = 256


@dataclass(frozen=True)
class TrueAdvantageOptions:
    """`policy`: `last`, `start` (where SFT ended), an RL step, or the name of a checkpoint. `questions`, and `rollouts`
    of each (None: as in the run's RL), are what states and signals come from. `states` are looked at; in each `others`
    notes are compared with each, and `continuations` rollouts continue from every note. `worth`: what counts at their
    end, the run's score or the share of objectives answered, at whatever place."""

    policy: str = "last"
    questions: int = 8
    rollouts: int | None = None
    states: int = 40
    others: int = 4
    continuations: int = 8
    worth: WorthOf = "score"
    seed: int = 0
    out: Path | None = None


@dataclass(frozen=True)
class Instrument:
    """A frozen policy, and how its rollouts are scored."""

    agent: Agent
    sampler: Sampler
    scorer: Scorer
    scoring: Scoring
    decoding: DecodingSettings = field(default_factory=DecodingSettings)


@dataclass(frozen=True)
class NoteAt:
    """A note by its place: rollout in the batch, turn counted from 0."""

    rollout: int
    turn: int


State = Sequence[NoteAt]
"""Notes that were written in one state, at most as many as are compared."""


@dataclass(frozen=True)
class Measured:
    """`signals`: best first. `states`, `notes`: that were measured; `found`: states in which the rollouts wrote a note;
    `siblings` and `continuations`: sampled for them. `unknown`: notes chosen that could not be measured. `ceiling`:
    about the largest correlation there could be. `differing`, `alike`: notes that made a difference, and that
    made none."""

    signals: list[SignalQuality]
    worths: list[Worth]
    rollouts: int
    score: float | None
    found: int
    states: int
    notes: int
    siblings: int
    continuations: int
    unknown: int
    ceiling: float | None
    differing: int
    alike: int


def diagnose_truth(run: Path, options: TrueAdvantageOptions, console: Console | None = None) -> dict[str, Any]:
    """Measure the signals of a run and write `true-advantage.json` and `.md`; returns the report.

    Raises:
        UserError: no run, no such policy, or rollouts that have no notes to measure.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is not a run folder (no config.yaml); give the output folder of mempo train")
    config = resolve(str(run)).config
    model = policy_of(run, options.policy)
    with tempfile.TemporaryDirectory() as work_dir:
        instrument, questions = _opened(config, model, Path(work_dir))
        screen = console or Console(quiet=True)
        say(screen, f"policy {model}")
        measured = measure(instrument, questions, options, options.rollouts or config.rl.rollouts_per_question, screen)
    asked = {**dataclasses.asdict(options), "out": None}
    report = finite({"policy": Path(model).name, **asked, **dataclasses.asdict(measured)})
    out = options.out or run / "diagnosis"
    write_atomic(out / "true-advantage.json", json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    write_atomic(out / "true-advantage.md", page(run.absolute().name, report))
    return report


def policy_of(run: Path, name: str) -> str:
    """The model folder of a policy of the run.

    Raises:
        UserError: it is not there; those that are.
    """
    if name == "last":
        return str(final_model(run))
    if name == "start":
        return start_model(str(run))
    checkpoint = f"rl-{int(name)}" if name.isascii() and name.isdigit() else name
    known = [found.path.name for found in RunFolder(run).checkpoints()]
    if checkpoint not in known:
        raise UserError(
            f"--step {name}: {run} has no checkpoint {checkpoint}; there are: {', '.join(['last', 'start', *known])}"
        )
    return str(run / "checkpoints" / checkpoint)


def _opened(config: Config, model: str, work_dir: Path) -> tuple[Instrument, list[Question]]:
    tokenizer = load_tokenizer(model)
    data = load_data(config, work_dir)
    agent = make_agent(config, tokenizer, make_tools(config, data.retriever), data.environment)
    policy = load_policy(config.model, model, tokenizer)
    forward = SharedForward(policy)
    instrument = Instrument(
        agent=agent,
        sampler=make_sampler(config, policy, forward),
        scorer=LocalScorer(policy, forward=forward),
        scoring=Scoring(
            outcome=config.reward,
            memory=config.memory.model_copy(update={"full_policy": "actor"}),  # this policy is all there is
            advantages=config.advantages,
            tokenizer=tokenizer,
            window_tokens=policy.window,
            custom_score=custom_score(config),
            own_advantages=advantage_function(config),
        ),
        decoding=DecodingSettings(temperature=config.rl.temperature),
    )
    return instrument, data.train


def measure(
    instrument: Instrument,
    questions: Sequence[Question],
    options: TrueAdvantageOptions,
    rollouts_each: int,
    console: Console | None = None,
) -> Measured:
    """Everything, for `options.questions` of the questions with `rollouts_each` rollouts; how far it is is shown on the
    console.

    Raises:
        UserError: no note can be measured.
    """
    if rollouts_each < 2:
        raise UserError(f"signals compare rollouts of one question, so at least 2 are played, not {rollouts_each}")
    seed = f"{options.seed} true advantage"
    asked = take(questions, 0, min(options.questions, len(questions)), seed)
    slots = [(slot, question) for slot, question in enumerate(asked) for _ in range(rollouts_each)]
    jobs = [Job(question, i, (seed, slot)) for i, (slot, question) in enumerate(slots)]
    screen = console or Console(quiet=True)
    trajectories = _played(instrument, jobs, "rollouts", screen)
    outcomes = instrument.scoring.outcomes([job.question for job in jobs], trajectories)
    limit = instrument.agent.limits.max_turn_tokens
    found = states_of(trajectories, rollouts_each, limit)
    states = choose(found, options.states, options.others + 1, seed)
    if not states:
        raise UserError(
            f"the {len(trajectories)} rollouts have no note to measure: no turn after the first wrote one and closed it"
        )
    histories = [history_of(state, trajectories) for state in states]
    places = [trajectories[state[0].rollout].turns[state[0].turn] for state in states]
    lacking = [options.others + 1 - len(state) for state in states]
    siblings = _siblings(instrument, places, histories, lacking, seed)
    beginnings = [
        [*(_of_note(history, trajectories[note.rollout].turns[note.turn]) for note in state), *more]
        for state, history, more in zip(states, histories, siblings, strict=True)
    ]
    notes = sum(map(len, beginnings))
    say(screen, f"{len(states)} states of {len(found)}, {notes} notes")
    scores = _continued(instrument, [slots[state[0].rollout][1] for state in states], beginnings, options, seed, screen)
    measured = [
        (note, worth)
        for number, state in enumerate(states)
        for note, worth in zip(state, worths_in_state(number, scores[number], len(state)), strict=True)
    ]
    known = [(note, worth) for note, worth in measured if worth is not None]
    if not known:
        raise UserError(
            "no rollout that continued from a note could be scored; see the errors of tools and of the score"
        )
    worths = [worth for _, worth in known]
    signals = signals_of(
        instrument.scoring, [question for _, question in slots], trajectories, rollouts_each, instrument.scorer
    )
    qualities = [
        quality(name, [values[note.rollout].get(note.turn, 0.0) for note, _ in known], worths, options.seed)
        for name, values in signals.items()
    ]
    scored = [outcome.score for outcome in outcomes if outcome.score is not None]
    return Measured(
        signals=sorted(qualities, key=lambda q: -2.0 if q.pearson.value is None else q.pearson.value, reverse=True),
        worths=worths,
        rollouts=len(trajectories),
        score=sum(scored) / len(scored) if scored else None,
        found=len(found),
        states=len({worth.state for worth in worths}),
        notes=len(known),
        siblings=sum(map(len, siblings)),
        continuations=sum(len(found) for state in scores for found in state),
        unknown=len(measured) - len(known),
        ceiling=ceiling(worths),
        differing=sum(worth.differs for worth in worths),
        alike=sum(worth.is_alike for worth in worths),
    )


def _played(instrument: Instrument, jobs: Sequence[Job], name: str, console: Console) -> list[Trajectory]:
    """The jobs rolled out, in their order; they are shown under `name`."""
    places = {id(job): i for i, job in enumerate(jobs)}
    done: dict[int, Trajectory] = {}
    decoding = instrument.decoding
    settings = EvalSettings(temperature=decoding.temperature, max_in_flight=MOST_IN_FLIGHT)
    with Progress(console, name, len(jobs), "rollout") as progress:
        asyncio.run(
            play(
                instrument.agent,
                instrument.sampler,
                jobs,
                settings,
                lambda job, trajectory, seconds: done.__setitem__(places[id(job)], trajectory),
                lambda tally: progress.step(tally.done, tally.note),
            )
        )
    return [done[i] for i in range(len(jobs))]


def states_of(trajectories: Sequence[Trajectory], group_size: int, max_turn_tokens: int) -> list[tuple[NoteAt, ...]]:
    """The notes of the second turn and later from which a rollout can continue, together those that were written in one
    state of one group. `trajectories` `[questions × rollouts]`."""
    found: dict[tuple[int, int], list[NoteAt]] = {}
    for first in range(0, len(trajectories), group_size):
        group = trajectories[first : first + group_size]
        for i, (trajectory, states) in enumerate(zip(group, states_of_turns(group), strict=True), first):
            for turn in () if trajectory.is_error else trajectory.turns[1:]:
                if can_continue(turn, max_turn_tokens):
                    found.setdefault((first, states[turn.index]), []).append(NoteAt(i, turn.index))
    return list(map(tuple, found.values()))


def can_continue(turn: Turn, max_turn_tokens: int) -> bool:
    """Whether a rollout can continue from the turn's note: it is closed and leaves room in the turn."""
    if turn.note_ids is None or turn.note_span is None:
        return False
    return turn.note_span[1] - len(turn.forced_ids) < max_turn_tokens


def choose(states: Sequence[tuple[NoteAt, ...]], count: int, notes_each: int, seed: str) -> list[tuple[NoteAt, ...]]:
    """`count` states, each as likely as it has notes, and `notes_each` of the notes of each."""
    every = [(number, note) for number, notes in enumerate(states) for note in notes]
    random.Random(seed).shuffle(every)
    chosen: dict[int, list[NoteAt]] = {}
    for number, note in every:
        if number in chosen or len(chosen) < count:
            chosen.setdefault(number, []).append(note)
    return [tuple(notes[:notes_each]) for notes in chosen.values()]


def history_of(state: State, trajectories: Sequence[Trajectory]) -> tuple[Turn, ...]:
    """The turns before the state, the same for all of its notes: of the rollouts that reached it, those of the one that
    broke the format least. A rule broken earlier would make every rollout after it score 0, whatever the note."""
    pasts = [trajectories[note.rollout].turns[: note.turn] for note in state]

    def broken(turns: Sequence[Turn]) -> int:
        found = format_violations([turn.parsed for turn in turns])
        return sum(count for rule, count in found.items() if rule != "final_answer")  # which these turns cannot keep

    return min(pasts, key=broken)


def _of_note(history: tuple[Turn, ...], turn: Turn) -> Beginning:
    """A rollout up to the end of the note of `turn`, in the state that `history` leads to."""
    assert turn.note_span is not None  # `can_continue`
    return Beginning(history, turn.prompt_ids, turn.own_ids[: turn.note_span[1]])


def _siblings(
    instrument: Instrument,
    places: Sequence[Turn],
    histories: Sequence[tuple[Turn, ...]],
    lacking: Sequence[int],
    seed: str,
) -> list[list[Beginning]]:
    """`[states][notes]`: so many notes sampled in each state as it is `lacking`. `places`: a turn that was written in
    each state. Samples that close no note are left out."""
    agent, decoding = instrument.agent, instrument.decoding
    limits = agent.limits
    wanted = [(s, n) for s, count in enumerate(lacking) for n in range(count)]

    def sampling(s: int, n: int) -> SamplingParams:
        room = limits.max_context_tokens - len(places[s].prompt_ids) - len(places[s].forced_ids)
        return SamplingParams(
            max_new_tokens=max(1, min(limits.max_turn_tokens, room)),
            temperature=decoding.temperature,
            stop=(closing("mem"),),
            seed=noise_seed(seed, "sibling", s, n),
        )

    async def one(s: int, n: int) -> Generation | None:
        try:
            return await instrument.sampler.generate(places[s].prompt_ids + places[s].forced_ids, sampling(s, n))
        except SamplerError:
            return None
        finally:
            if cohort is not None:
                cohort.leave()

    cohort = instrument.sampler if isinstance(instrument.sampler, CohortSampler) else None
    found: list[list[Beginning]] = [[] for _ in places]
    for first in range(0, len(wanted), MOST_IN_FLIGHT):
        part = wanted[first : first + MOST_IN_FLIGHT]
        if cohort is not None:
            cohort.enter(len(part))
        made = asyncio.run(at_once((one(s, n) for s, n in part), in_turn=cohort is None))
        for (s, _), generation in zip(part, made, strict=True):
            if generation is None:
                continue
            place, index = places[s], len(histories[s])
            temperature = decoding.temperature or 1.0
            turn = read_turn(agent, index, place.prompt_ids, place.forced_ids, generation, temperature)
            if can_continue(turn, limits.max_turn_tokens):
                found[s].append(_of_note(histories[s], turn))
    return found


def _continued(
    instrument: Instrument,
    questions: Sequence[Question],
    beginnings: Sequence[Sequence[Beginning]],
    options: TrueAdvantageOptions,
    seed: str,
    console: Console,
) -> list[list[list[float]]]:
    """`[states][notes][rollouts]`: scores of the rollouts that continue from each note; `questions` `[states]`. Those
    that cannot be scored are left out."""
    jobs = [
        (s, n, Job(questions[s], c, (seed, "on", s, n), beginning))
        for s, notes in enumerate(beginnings)
        for n, beginning in enumerate(notes)
        for c in range(options.continuations)
    ]
    scores: list[list[list[float]]] = [[[] for _ in notes] for notes in beginnings]
    trajectories = _played(instrument, [job for _, _, job in jobs], "continuations", console)
    outcomes = instrument.scoring.outcomes([job.question for _, _, job in jobs], trajectories)
    for (s, n, job), trajectory, outcome in zip(jobs, trajectories, outcomes, strict=True):
        value = outcome.score
        if options.worth == "share" and value is not None:
            is_kept = outcome.format_ok or not instrument.scoring.outcome.format_gate
            value = answers_given(trajectory.answer, job.question.objectives) if is_kept else 0.0
        if value is not None:
            scores[s][n].append(value)
    return scores
