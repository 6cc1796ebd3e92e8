"""The instrument in a world where the true advantage is known: what a rollout comes to depends on its note alone."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mempo.diagnose.true_advantage
from mempo.cli.main import app
from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.true_advantage import (
    Instrument,
    Measured,
    NoteAt,
    TrueAdvantageOptions,
    choose,
    history_of,
    measure,
    states_of,
)
from mempo.errors import UserError
from mempo.rewards.outcome import OutcomeSettings
from mempo.rollout.interfaces import Generation, SamplingParams, ScoreRequest
from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.question import Question
from mempo.train.score_batch import Scoring
from tests.tiny import said
from tests.train.fakes import NOTED_ANSWER, SEARCH, TOKENIZER, agent, played, questions
from tests.train.small import run

ASKED = [Question(f"q{i}", f"question {i}?", "Paris") for i in range(4)]
GOOD, BAD = "good", "bad"


class World:
    """Searches, then notes `good` or `bad`, each half of the time, and answers rightly with a chance that depends on
    the note. Asked to go on from a note, it goes on from that."""

    def __init__(self, right: dict[str, float]) -> None:
        self.right = right
        self.limits: list[int] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        rng, prompt = random.Random(sampling.seed), TOKENIZER.decode(prompt_ids)
        if "<tool_response>" not in prompt:
            return said(TOKENIZER, SEARCH)
        given = prompt[prompt.find("<mem>") :] if "<mem>" in prompt else ""
        note = given.removeprefix("<mem>").partition("</mem>")[0] or rng.choice([GOOD, BAD])
        if given:
            self.limits.append(sampling.max_new_tokens)
        answer = "Paris" if rng.random() < self.right[note] else "Rome"
        turn = f"<mem>{note}</mem>"
        if sampling.stop != ("</mem>",):
            turn += f"<think>s</think><answer>{answer}</answer>"
        # The last token of a note may hold the beginning of what follows it.
        return said(TOKENIZER, turn.removeprefix(given), sampling.max_new_tokens)


class Believes:
    """P(answer | context) is .9 where the note is one of `words`, else .1."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        def p(request: ScoreRequest) -> float:
            note = TOKENIZER.decode(request.prefix_ids).rpartition("<mem>")[2].removesuffix("</mem>")
            return 0.9 if note in self.words else 0.1

        return [np.full(len(request.which or ()), math.log(p(request))) for request in requests]


def instrument(right: dict[str, float], scorer: Believes | None = None, sampler: World | None = None) -> Instrument:
    return Instrument(
        agent=agent(max_turn_tokens=100),
        sampler=sampler or World(right),
        scorer=scorer or Believes(GOOD),
        scoring=Scoring(OutcomeSettings(), MemorySettings(), AdvantageSettings(), TOKENIZER),
    )


def measured(right: dict[str, float], scorer: Believes | None = None, rollouts: int = 8, **options: int) -> Measured:
    given = {"questions": 4, "states": 9, "continuations": 3, **options}
    return measure(instrument(right, scorer), ASKED, TrueAdvantageOptions(**given), rollouts)  # type: ignore[arg-type]


def test_where_the_note_decides_worths_and_signals_are_exact() -> None:
    found = measured({GOOD: 1.0, BAD: 0.0})
    assert (found.found, found.states, found.notes, found.siblings) == (4, 4, 20, 0)
    assert found.continuations == 60
    for state in range(4):
        here = [worth for worth in found.worths if worth.state == state]
        good = round(here[0].value * 5)
        assert here[0].value == pytest.approx(good / 5)
        # A good one has 4 others, of which good - 1 are good too; a bad one has good others that are.
        expected = [1 - (good - 1) / 4] * good + [-good / 4] * (5 - good)
        assert sorted(worth.worth for worth in here) == pytest.approx(sorted(expected))
        assert all(worth.error == 0 for worth in here)
    assert found.ceiling == 1
    signals = {signal.name: signal for signal in found.signals}
    for name in ("outcome", "recommended", "no std", "outcome + recommended"):
        signal = signals[name]
        assert signal.pearson.value is not None
        assert signal.pearson.value > 0.8, name
        assert (signal.right_signs.value, signal.wrong_signs.value) == (1.0, 0.0), name
    order = [signal.pearson.value or -2 for signal in found.signals]
    assert order == sorted(order, reverse=True)


def test_a_signal_that_is_upside_down_is_seen() -> None:
    found = measured({GOOD: 1.0, BAD: 0.0}, Believes(BAD))
    signals = {signal.name: signal for signal in found.signals}
    assert signals["recommended"].wrong_signs.value == 1.0
    assert (signals["recommended"].pearson.value or 0) < -0.8
    assert signals["outcome"].right_signs.value == 1.0
    assert found.signals[-1].name in ("recommended", "no std", "log ratio", "against what was seen", "original")


def test_chances_are_measured_to_within_their_error() -> None:
    right = {GOOD: 0.75, BAD: 0.25}
    found = measured(right, questions=1, continuations=400)
    (state,) = {worth.state for worth in found.worths}
    assert state == 0
    good = [worth for worth in found.worths if worth.worth > 0]
    bad = [worth for worth in found.worths if worth.worth < 0]
    assert len(good) + len(bad) == 5
    for some, own, sign in ((good, 0.75, 1), (bad, 0.25, -1)):
        for worth in some:
            others = (sum(right[GOOD] for _ in good) + sum(right[BAD] for _ in bad) - own) / 4
            assert worth.error == pytest.approx(math.sqrt(0.1875 / 400 * (1 + 1 / 4)), rel=0.1)
            assert abs(worth.worth - (own - others)) < 4 * worth.error
            assert sign * worth.worth > 0


def test_a_world_in_which_notes_do_not_matter() -> None:
    found = measured({GOOD: 1.0, BAD: 1.0})
    assert {worth.worth for worth in found.worths} == {0.0}
    assert (found.ceiling, found.differing, found.alike) == (None, 0, 20)
    recommended = next(signal for signal in found.signals if signal.name == "recommended")
    assert recommended.pearson.value is None
    assert recommended.paid_differs is None
    assert (recommended.paid_alike or 0) > 0.5  # pays for wording all the same


def test_siblings_fill_a_state_up() -> None:
    found = measured({GOOD: 1.0, BAD: 0.0}, rollouts=2, others=4)
    assert (found.states, found.notes, found.siblings) == (4, 8, 12)
    assert found.continuations == 4 * 5 * 3


def test_the_same_seed_measures_the_same() -> None:
    right = {GOOD: 0.75, BAD: 0.25}
    assert measured(right) == measured(right)
    assert measured(right).worths != measured(right, seed=1).worths


def test_a_note_is_paid_for_out_of_its_turn() -> None:
    world = World({GOOD: 1.0, BAD: 0.0})
    measure(instrument({}, sampler=world), ASKED, TrueAdvantageOptions(questions=1, continuations=1), 4)
    expected = set()
    for note in (f"<mem>{GOOD}</mem>", f"<mem>{BAD}</mem>"):
        span = TOKENIZER.decode_spans(TOKENIZER.encode_trusted(f"{note}<think>s</think>")).tokens_of(0, len(note))
        assert span is not None
        expected.add(100 - span[1])
    assert set(world.limits) == expected


def test_states_are_prompts_of_one_group() -> None:
    asked = questions(2)
    rollouts = [played(asked[0], 3, 0), played(asked[0], 2, 1), played(asked[1], 3, 0), played(asked[1], 3, 0)]
    found = states_of(rollouts, 2, 100)
    # Turn 2 of both rollouts of the first group has one prompt; turn 3 is reached once; the other group is apart.
    assert sorted(map(len, found)) == [1, 2, 2, 2]
    assert {note.turn for notes in found for note in notes} == {1, 2}
    assert states_of(rollouts, 2, 2) == []  # a note as long as a turn may be leaves no room to continue
    chosen = choose(found, 2, 1, "seed")
    assert len(chosen) == 2
    assert all(len(notes) == 1 for notes in chosen)
    assert chosen == choose(found, 2, 1, "seed")


def test_a_state_is_taken_up_from_a_past_that_kept_the_format() -> None:
    asked = questions(1)[0]
    good, broken = played(asked, 3, 0), played(asked, 3, 1)
    past = dataclasses.replace(broken.turns[0], parsed=parse_turn("<search>q</search>", 0, TurnGrammar()))
    broken = dataclasses.replace(broken, turns=(past, *broken.turns[1:]))
    state = (NoteAt(0, 1), NoteAt(1, 1))
    assert history_of(state, [broken, good]) == good.turns[:1]
    assert history_of(state, [good, broken]) == good.turns[:1]


def test_nothing_to_judge_is_said() -> None:
    class Silent(World):
        async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
            return said(TOKENIZER, NOTED_ANSWER.partition("</mem>")[2])

    with pytest.raises(UserError, match="have no note to measure"):
        measure(instrument({}, sampler=Silent({})), ASKED, TrueAdvantageOptions(), 2)
    with pytest.raises(UserError, match="at least 2 are played, not 1"):
        measure(instrument({}), ASKED, TrueAdvantageOptions(), 1)


def test_options_of_the_instrument_need_it(tmp_path: Path) -> None:
    said_ = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--states", "3"])
    assert "--states belongs to --true-advantage" in str(said_.exception)
    said_ = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--true-advantage", "--worth", "gold"])
    assert "neither score nor share" in str(said_.exception)
    said_ = CliRunner().invoke(app, ["diagnose", str(tmp_path), "--true-advantage"])
    assert "is not a run folder" in str(said_.exception)


@pytest.mark.slow
def test_a_run_is_measured_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path / "run", "sft.steps=2", "sft.demos=4", "rl.steps=1")
    with pytest.raises(UserError, match=r"no checkpoint rl-7; there are: last, start, sft-2, rl-1"):
        mempo.diagnose.true_advantage.policy_of(folder, "7")
    assert mempo.diagnose.true_advantage.policy_of(folder, "1") == str(folder / "checkpoints" / "rl-1")
    # A policy that has learnt nothing writes no notes: the words are ours, everything else is the run's.
    right = {GOOD: 1.0, BAD: 0.0}
    monkeypatch.setattr(mempo.diagnose.true_advantage, "_opened", lambda *rest: (instrument(right), ASKED))
    result = CliRunner().invoke(
        app, ["diagnose", str(folder), "--true-advantage", "--questions", "2", "--states", "2", "--worth", "share"]
    )
    assert result.exit_code == 0, result.output
    assert "share of objectives answered" in result.output
    report = json.loads((folder / "diagnosis" / "true-advantage.json").read_text("utf-8"))
    assert report["states"] == 2
    assert {signal["name"] for signal in report["signals"]} >= {"outcome", "recommended", "original"}
    assert "| signal | Pearson |" in (folder / "diagnosis" / "true-advantage.md").read_text("utf-8")
