"""Lost notes in their pools, and fading, by hand; `test_pools.py` has them against plain loops."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mempo.config import completed, resolve
from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.engine.scorer import LocalScorer
from mempo.errors import UserError
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import Advantages, batch_advantages, lowest_reward
from mempo.train.fading import fade, silence_logged
from mempo.train.pools import memory_advantages
from mempo.train.rl import train_rl
from mempo.train.score_batch import ScoredBatch, score_batch, with_lost_notes
from tests.rewards.build import trajectory, turn
from tests.tiny import Scripted, tiny_llama
from tests.train.fakes import (
    NOTED_ANSWER,
    NOTED_SEARCH,
    SEARCH,
    TOKENIZER,
    Speaker,
    advantage_batch,
    agent,
    questions,
    run_folder,
    settings,
    setup,
    token_values,
    wandering,
)
from tests.train.small import quiet

Rewards = Sequence[Mapping[int, float | None]]

# --- lost notes ----------------------------------------------------------------------------------------------------


def test_a_lost_note_is_worth_nothing_in_its_pool() -> None:
    rewards: Rewards = [{1: 0.2}, {1: 0.4}, {1: 0.6}, {}]
    made = memory_advantages(rewards, lost=[(), (), (), (1,)], lowest=0.0)
    std = math.sqrt((0.01 + 0.01 + 0.09 + 0.09) / 3)  # of 0.2, 0.4, 0.6 and 0
    assert [row[1] for row in made.by_rollout] == pytest.approx([a / (std + 1e-6) for a in (-0.1, 0.1, 0.3, -0.3)])
    assert (made.given, made.lost) == (4, 1)


@pytest.mark.parametrize(
    ("rewards", "lowest", "value"),
    [
        ([-5.0, -3.0, -1.0], math.inf, -5.0),  # log_ratio: the least of the pool
        ([-0.2, 0.3, 0.5], 0.0, -0.2),  # a price for length can put a note below 0
        ([0.2, 0.3, 0.5], 0.0, 0.0),
    ],
)
def test_the_lowest_value_there_is(rewards: list[float], lowest: float, value: float) -> None:
    group: Rewards = [*({1: r} for r in rewards), {}]
    made = memory_advantages(group, lost=[(), (), (), (1,)], lowest=lowest, normalize_std=False)
    assert made.by_rollout[3] == {1: pytest.approx(value - (sum(rewards) + value) / 4)}


def test_notes_that_are_all_lost_tell_nothing_apart() -> None:
    assert memory_advantages([{}] * 4, lost=[(1,)] * 4, lowest=0.0).by_rollout == [{1: 0.0}] * 4
    unknown = memory_advantages([{}] * 4, lost=[(1,)] * 4)
    assert (unknown.by_rollout, unknown.no_signal) == ([{}] * 4, 4)


@pytest.mark.parametrize(
    ("options", "lowest"),
    [
        ({}, 0.0),
        ({"reward": "compression"}, 0.0),
        ({"reward": "log_ratio"}, math.inf),
        ({"baseline": "full"}, math.inf),
    ],
)
def test_which_rewards_know_their_lowest(options: dict[str, Any], lowest: float) -> None:
    assert lowest_reward(MemorySettings(**options)) == lowest


LOST = {
    "missing": SEARCH,
    "unclosed": "<mem>n<think>s</think><search>q</search>",
    "empty": f"<mem> </mem>{SEARCH}",
    "too long": f"<mem>{'hello ' * 9}</mem>{SEARCH}",
    "no action": "<mem>n</mem><think>s</think>",
    "two actions": f"<mem>n</mem>{SEARCH}<answer>a</answer>",
}


def with_second_turn(text: str, place: int = 0, **limits: Any) -> Trajectory:
    texts = [SEARCH, text, NOTED_ANSWER]
    job = Job(questions(1)[0], place, ("lost",))
    return asyncio.run(rollout(agent(**limits), Scripted(TOKENIZER, texts), job, DecodingSettings()))


@pytest.mark.parametrize("kind", LOST)
def test_what_counts_as_lost(kind: str) -> None:
    played = with_second_turn(LOST[kind], max_note_tokens=8)
    found = with_lost_notes(played, [], TurnGrammar())
    assert [(note.turn, note.r, note.reason) for note in found] == [(1, None, "lost")]
    assert with_lost_notes(played, [], TurnGrammar(notes="optional")) == []
    assert with_lost_notes(with_second_turn(NOTED_SEARCH), [], TurnGrammar()) == []


def test_nothing_is_gained_by_losing_a_note() -> None:
    """The escape: where the outcome is silent, a turn that closes no note was paid 0, and now the least."""
    policy = tiny_llama(TOKENIZER)
    made = setup(Speaker(wandering), questions(1), policy)
    played = [with_second_turn(text, i) for i, text in enumerate([NOTED_SEARCH] * 2 + [LOST["unclosed"], SEARCH])]
    asked = questions(1) * 4

    def result(memory: MemorySettings) -> tuple[ScoredBatch, Advantages, list[dict[int, list[float]]]]:
        scoring = dataclasses.replace(made.scoring, memory=memory)
        scored = score_batch(scoring, asked, played, LocalScorer(policy))
        batch = scored.counted(4)
        advantages = batch_advantages(batch, made.scoring.advantages, memory)
        return scored, advantages, token_values(batch, advantages)

    _, before, _ = result(MemorySettings(min_pool=2, lost_notes="ignored", fade_batches=None))
    assert [1 in row for row in before.memory] == [True, True, False, False]
    scored, after, tokens = result(MemorySettings(min_pool=2))
    assert (after.metrics["advantages/lost_notes"], after.metrics["advantages/silent_notes"]) == (2, 0)
    for i in (2, 3):
        assert after.memory[i][1] < 0 < after.memory[0][1]
        assert tokens[i][1] == [after.outcome[i] + after.memory[i][1]] * len(played[i].turns[1].generated_ids)
    saved = scored.records_with(scored.counted(4), after)[2]["notes"]
    assert [(note["turn"], note["r"], note["reason"], note["advantage"]) for note in saved if note["turn"] == 1] == [
        (1, None, "lost", after.memory[2][1])
    ]
    assert scored.metrics["note/no_signal/lost"] == 2
    assert scored.metrics["memory/p_mem"] == result(MemorySettings(min_pool=2))[0].metrics["memory/p_mem"]


# --- fading --------------------------------------------------------------------------------------------------------


def test_the_weight_follows_the_share_of_silent_groups() -> None:
    assert fade((), [True, True], 3) == (1.0, (1.0,))
    assert fade((1.0,), [False, False], 3) == (0.5, (1.0, 0.0))
    assert fade((1.0, 0.0), [True, False], 3) == (0.5, (1.0, 0.0, 0.5))
    assert fade((1.0, 0.0, 0.5), [False, False], 3) == (0.5 / 3, (0.0, 0.5, 0.0))
    assert fade((0.0,), [False], 1) == (0.0, (0.0,))
    assert fade((0.25,), [True], None) == (1.0, ())
    assert fade((0.25,), [], 2) == (0.25, (0.25,))


def test_memory_advantages_are_weighted_by_it() -> None:
    trajectories = [trajectory(turn(0), turn(1, note=(0, 2)), answer="x", id=f"q{i // 2}", rollout=i) for i in range(4)]
    batch = advantage_batch(trajectories, [1.0, 0.0, 0.0, 0.0], [{1: 0.1}, {1: 0.3}] * 2, 2)
    memory = MemorySettings(min_pool=2, normalize_std=False, weight=2.0, fade_batches=2)
    made = batch_advantages(batch, AdvantageSettings(), memory, silence=(1.0, 0.0))
    assert made.silence == (0.0, 0.5)
    assert made.metrics["advantages/memory_weight"] == 0.5  # 2 * (0 + 0.5) / 2
    assert made.memory == [{1: pytest.approx(-0.05)}, {1: pytest.approx(0.05)}] * 2
    constant = batch_advantages(batch, AdvantageSettings(), memory.model_copy(update={"fade_batches": None}))
    assert (constant.metrics["advantages/memory_weight"], constant.silence) == (2.0, ())


def test_a_resumed_run_fades_on_exactly(tmp_path: Path) -> None:
    def made() -> Any:
        return setup(Speaker(wandering), questions(6), memory=MemorySettings(min_pool=2))

    changes: dict[str, Any] = {"questions_per_step": 3, "rollouts_per_question": 3, "save_every": 1}
    unbroken, broken = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    train_rl(made(), settings(steps=5, **changes), unbroken, quiet())
    again = made()  # the policy goes on in memory; what the loop itself hands on comes from the checkpoint
    for steps in (2, 3, 5):
        train_rl(again, settings(steps=steps, **changes), broken, quiet())

    def lines(run: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in run.metrics()]

    assert lines(broken) == lines(unbroken)
    weights = [line["advantages/memory_weight"] for line in lines(unbroken)]
    shares = [line["advantages/zero_spread_groups"] for line in lines(unbroken)]
    assert weights == [sum(shares[max(0, n - 3) : n + 1]) / min(n + 1, 4) for n in range(5)]
    assert len(set(weights)) > 2
    state = json.loads((unbroken.checkpoints()[-1].path / "state.json").read_text())
    assert state["silence"] == shares[-4:]
    assert silence_logged(unbroken.metrics(), 5, 4) == tuple(shares[-4:])
    assert silence_logged(unbroken.metrics(), 2, 4) == tuple(shares[:2])


def test_measures_that_are_gone_are_not_guessed() -> None:
    lines = [{"stage": "rl", "step": 1, "advantages/zero_spread_groups": 0.5}, {"stage": "sft", "step": 2}]
    assert silence_logged(lines, 1, 4) == (0.5,)
    assert silence_logged([], 0, 4) == ()
    assert silence_logged([], 9, None) == ()
    with pytest.raises(UserError, match="no line of step 2"):
        silence_logged(lines, 2, 4)


# --- settings ------------------------------------------------------------------------------------------------------


def test_recommended_punishes_lost_notes_and_fades_and_the_original_does_not() -> None:
    recommended = resolve("quickstart").config.memory
    assert (recommended.lost_notes, recommended.fade_batches) == ("worst", 4)
    original = resolve("quickstart", ["memory=original"]).config.memory
    assert (original.lost_notes, original.fade_batches) == ("ignored", None)


def test_a_run_that_was_begun_without_these_keys_goes_on_without_them(tmp_path: Path) -> None:
    plain = resolve("quickstart").plain()
    del plain["memory"]["lost_notes"], plain["memory"]["fade_batches"]
    (tmp_path / "config.yaml").write_text(json.dumps(plain) + "\n", encoding="utf-8")
    (tmp_path / "data.json").write_text("{}", encoding="utf-8")
    memory = resolve(str(tmp_path)).config.memory
    assert (memory.lost_notes, memory.fade_batches) == ("ignored", None)
    assert completed(plain)["memory"]["lost_notes"] == "ignored"


@pytest.mark.parametrize(
    ("options", "message"), [({"weight": 0.0, "fade_batches": 3}, "fade_batches does nothing with weight 0")]
)
def test_what_would_do_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemorySettings(**options)
