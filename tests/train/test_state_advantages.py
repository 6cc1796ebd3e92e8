"""Comparison by state, lost notes, fading and the floor of the spread: by hand, and against plain loops."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mempo.train.rl
from mempo.config import resolve
from mempo.config.rewards import MemorySettings
from mempo.config.train import CreditSettings
from mempo.engine.scorer import LocalScorer
from mempo.errors import UserError
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.trajectory import Trajectory
from mempo.train.advantages import Advantages, batch_advantages, group_advantages, lowest_reward
from mempo.train.checkpoint import load_silence
from mempo.train.fading import fade, silence_logged
from mempo.train.outcomes import outcome_baseline, outcome_by_state
from mempo.train.pools import memory_advantages
from mempo.train.rl import train_rl
from mempo.train.score_batch import ScoredBatch, score_batch, with_lost_notes
from mempo.train.states import rollouts_of_states, state_keys
from tests.rewards.build import trajectory, turn
from tests.tiny import Scripted, tiny_llama
from tests.train.fakes import (
    ANSWER,
    CODEC,
    NOTED_ANSWER,
    NOTED_SEARCH,
    SEARCH,
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

MEAN_ONLY = CreditSettings(normalize_std=False, baseline="state")
STATE = MemorySettings(preset="state")
Rewards = Sequence[Mapping[int, float | None]]

# --- states --------------------------------------------------------------------------------------------------------


def test_a_state_is_what_was_seen_and_what_was_forced() -> None:
    first = trajectory(turn(0), turn(1, own=[7, 8], prompt=[1, 2]), turn(2, own=[9], prompt=[1, 2]))
    second = trajectory(turn(0), turn(1, own=[7, 5], forced=1, prompt=[1, 2]), turn(2, own=[5], prompt=[1, 2, 7]))
    third = trajectory(turn(0), turn(1, own=[4], prompt=[1, 2]))
    # The second's turn 2 (prompt 1 2 7) is the same state as its turn 1 (prompt 1 2, forced 7).
    assert state_keys([first, second, third]) == [{0: 0, 1: 1, 2: 1}, {0: 0, 1: 2, 2: 2}, {0: 0, 1: 1}]
    assert rollouts_of_states(state_keys([first, second, third])) == {0: [0, 1, 2], 1: [0, 2], 2: [1]}


def test_rollouts_in_a_context_that_forgets_share_states() -> None:
    """Two rollouts that wrote the same note and found the same, from different first turns."""
    texts = [[SEARCH, NOTED_SEARCH, NOTED_ANSWER], [SEARCH.replace(">s<", ">t<"), NOTED_SEARCH, NOTED_ANSWER]]
    played = [
        asyncio.run(rollout(agent(), Scripted(CODEC, said), Job(questions(1)[0], i, ("s",)), DecodingSettings()))
        for i, said in enumerate(texts)
    ]
    first, second = state_keys(played)
    assert first[0] == second[0]
    assert first[2] == second[2]


# --- memory by state -----------------------------------------------------------------------------------------------


def test_notes_of_one_state_are_compared_and_divided_by_the_spread_of_the_turn() -> None:
    """State 0 holds four notes of six, state 1 two: too few, so these are compared with the whole turn."""
    rewards: Rewards = [{1: r} for r in (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)]
    states = [{1: 0}] * 4 + [{1: 1}] * 2
    made = memory_advantages(rewards, pool="state", min_pool=4, states=states)
    std = math.sqrt(0.34 / 5)  # of the six, whose mean is 0.4
    expected = [-0.15, -0.05, 0.05, 0.15, 0.2, 0.4]
    assert [row[1] for row in made.by_rollout] == pytest.approx([a / (std + 1e-6) for a in expected])
    assert (made.given, made.fallbacks, made.no_signal) == (6, 2, 0)
    assert [(p.turn, p.state, p.size) for p in made.pools] == [(1, None, 6), (1, 0, 4)]
    plain = memory_advantages(rewards, pool="state", min_pool=4, states=states, normalize_std=False)
    assert [row[1] for row in plain.by_rollout] == pytest.approx(expected)
    assert memory_advantages(rewards, pool="state", min_pool=2, states=states).fallbacks == 0


def test_the_luck_of_a_state_is_not_paid() -> None:
    """Notes of a good state and of a bad one, alike within each: by turn they are paid .87, by state nothing."""
    rewards: Rewards = [{1: 0.9}] * 4 + [{1: 0.1}] * 4
    states = [{1: 0}] * 4 + [{1: 1}] * 4
    assert memory_advantages(rewards, pool="turn").by_rollout[0][1] == pytest.approx(0.935, abs=1e-3)
    assert memory_advantages(rewards, pool="state", states=states).by_rollout == [{1: 0.0}] * 8


def test_a_state_that_its_turn_is_too_small_for_falls_back_to_the_question() -> None:
    rewards: Rewards = [{1: 0.1}, {1: 0.2}, {1: 0.3}, {1: 0.4, 2: 0.9}]
    states = [{1: i, 2: 9} for i in range(4)]
    by_state = memory_advantages(rewards, pool="state", states=states)
    assert by_state.by_rollout == memory_advantages(rewards, pool="turn").by_rollout
    assert by_state.fallbacks == 5


def test_siblings_are_in_the_pool_and_earn_nothing() -> None:
    rewards: Rewards = [{1: 0.2}, {1: 0.6}]
    states = [{1: 0}, {1: 1}]
    made = memory_advantages(
        rewards, pool="state", min_pool=4, states=states, siblings={0: [0.1, 0.4, 0.5]}, normalize_std=False
    )
    assert made.by_rollout[0] == {1: pytest.approx(0.2 - 0.3)}
    assert (made.by_rollout[1], made.fallbacks) == ({1: pytest.approx(0.2)}, 1)  # no turn of two is a pool of four
    alone = memory_advantages([{1: 0.2}], pool="state", min_pool=4, states=[{1: 0}], siblings={0: [0.1, 0.4, 0.5]})
    spread = math.sqrt((0.1**2 + 0.2**2 + 0.1**2 + 0.2**2) / 3)  # the turn has none of its own
    assert alone.by_rollout == [{1: pytest.approx(-0.1 / (spread + 1e-6))}]


def test_states_are_needed_to_compare_by_state() -> None:
    with pytest.raises(ValueError, match="pool state compares notes by state"):
        memory_advantages([{1: 0.5}], pool="state")
    with pytest.raises(ValueError, match="no states were given"):
        group_advantages([1.0], [{}], MEAN_ONLY, MemorySettings())


def naive(
    rewards: Rewards, lost: Sequence[set[int]], states: Sequence[Mapping[int, int]], min_pool: int, floor: float
) -> list[dict[int, float]]:
    """Every note for itself, in plain loops; a lost one is worth 0, or the least of its pool."""

    def mates(fits: Any) -> list[tuple[int, int]]:
        keys = [(i, t) for i, by_turn in enumerate(rewards) for t, r in by_turn.items() if r is not None]
        return [key for key in [*keys, *((i, t) for i, turns in enumerate(lost) for t in turns)] if fits(*key)]

    def worth(keys: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
        found = {(i, t): rewards[i][t] for i, t in keys if t not in lost[i]}
        least = min([0.0, *(r for r in found.values() if r is not None)])
        return {key: least if (r := found.get(key)) is None else r for key in keys}

    out: list[dict[int, float]] = [{} for _ in rewards]
    for i, turn_index in mates(lambda *_: True):
        of_state = mates(lambda j, t: states[j][t] == states[i][turn_index])  # noqa: B023
        of_turn = mates(lambda j, t: t == turn_index)  # noqa: B023
        pool = worth(
            of_state if len(of_state) >= min_pool else of_turn if len(of_turn) >= min_pool else mates(lambda *_: True)
        )
        if len(pool) < 2:
            continue
        values = list(pool.values())
        mean = sum(values) / len(values)
        wide = list(worth(of_turn).values()) if len(of_state) >= min_pool else values
        if len(set(wide)) < 2:
            wide = values
        if len(set(values)) < 2:
            out[i][turn_index] = 0.0
            continue
        centre = sum(wide) / len(wide)
        std = math.sqrt(sum((v - centre) ** 2 for v in wide) / (len(wide) - 1))
        out[i][turn_index] = (pool[i, turn_index] - mean) / (max(std, floor) + 1e-6)
    return out


@st.composite
def groups(draw: st.DrawFn) -> tuple[Rewards, list[set[int]], list[dict[int, int]]]:
    value = st.none() | st.integers(-8, 8).map(lambda n: n / 8)
    rewards = draw(st.lists(st.dictionaries(st.integers(1, 3), value, max_size=3), min_size=1, max_size=8))
    lost = [draw(st.sets(st.integers(1, 3).filter(lambda t, row=row: t not in row))) for row in rewards]
    states = [{t: draw(st.integers(0, 3)) for t in range(4)} for _ in rewards]
    return rewards, lost, states


@given(groups(), st.integers(2, 5), st.sampled_from([0.0, 0.2, 3.0]))
def test_pools_of_states_agree_with_plain_loops(
    group: tuple[Rewards, list[set[int]], list[dict[int, int]]], min_pool: int, floor: float
) -> None:
    rewards, lost, states = group
    made = memory_advantages(
        rewards, pool="state", min_pool=min_pool, states=states, lost=lost, lowest=0.0, std_floor=floor
    )
    expected = naive(rewards, lost, states, min_pool, floor)
    assert made.by_rollout == [pytest.approx(row, rel=1e-6, abs=1e-8) for row in expected]
    notes = sum(len(row) for row in rewards) + sum(map(len, lost))
    assert made.given + made.small_pools + made.no_reward == notes
    assert made.lost == sum(t in made.by_rollout[i] for i, turns in enumerate(lost) for t in turns)


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
    assert (unknown.by_rollout, unknown.no_reward) == ([{}] * 4, 4)


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
    return asyncio.run(rollout(agent(**limits), Scripted(CODEC, texts), job, DecodingSettings()))


@pytest.mark.parametrize("kind", LOST)
def test_what_counts_as_lost(kind: str) -> None:
    played = with_second_turn(LOST[kind], max_note_tokens=8)
    found = with_lost_notes(played, [], TurnGrammar())
    assert [(note.turn, note.r, note.reason) for note in found] == [(1, None, "lost")]
    assert with_lost_notes(played, [], TurnGrammar(notes="optional")) == []
    assert with_lost_notes(with_second_turn(NOTED_SEARCH), [], TurnGrammar()) == []


def test_nothing_is_gained_by_losing_a_note() -> None:
    """The escape: where the outcome is silent, a turn that closes no note was paid 0, and now the least."""
    policy = tiny_llama(CODEC)
    made = setup(Speaker(wandering), questions(1), policy)
    played = [with_second_turn(text, i) for i, text in enumerate([NOTED_SEARCH] * 2 + [LOST["unclosed"], SEARCH])]
    asked = questions(1) * 4

    def result(memory: MemorySettings) -> tuple[ScoredBatch, Advantages, list[dict[int, list[float]]]]:
        scoring = dataclasses.replace(made.scoring(True), memory=memory)
        scored = score_batch(scoring, asked, played, LocalScorer(policy))
        batch = scored.counted(4)
        advantages = batch_advantages(batch, made.credit, memory)
        return scored, advantages, token_values(batch, advantages)

    _, before, _ = result(MemorySettings(min_pool=2))
    assert [1 in row for row in before.memory] == [True, True, False, False]
    scored, after, tokens = result(MemorySettings(min_pool=2, lost_notes="worst"))
    assert (after.metrics["credit/lost_notes"], after.metrics["credit/silent_notes"]) == (2, 0)
    for i in (2, 3):
        assert after.memory[i][1] < 0 < after.memory[0][1]
        assert tokens[i][1] == [after.outcome[i] + after.memory[i][1]] * len(played[i].turns[1].generated_ids)
    saved = scored.facts_with(scored.counted(4), after)[2]["notes"]
    assert [(note["turn"], note["r"], note["reason"], note["advantage"]) for note in saved if note["turn"] == 1] == [
        (1, None, "lost", after.memory[2][1])
    ]
    assert scored.metrics["note/no_signal/lost"] == 2
    assert scored.metrics["memory/p_mem"] == result(MemorySettings(min_pool=2))[0].metrics["memory/p_mem"]


# --- outcome by state ----------------------------------------------------------------------------------------------


def test_a_score_is_compared_with_those_that_passed_the_same_state() -> None:
    """All share the first state; rollouts 0 and 1 meet again at turn 1, 3 passes its own state twice."""
    scores = [1.0, 0.0, 0.0, 1.0]
    states = [{0: 0, 1: 1}, {0: 0, 1: 1, 2: 5}, {0: 0, 1: 2}, {0: 0, 1: 3, 2: 3}]
    std = math.sqrt(1 / 3)
    found = outcome_by_state([1.0, 0.0, 0.0, 0.0], [{0: 0}, {0: 0, 1: 1}, {0: 0, 1: 1, 2: 1}, {0: 0, 1: 2}], MEAN_ONLY)
    # The third passes state 1 twice and counts once: with the second alone the mean is 0.
    assert found == [{0: 0.75}, {0: -0.25, 1: 0.0}, {0: -0.25, 1: 0.0, 2: 0.0}, {0: -0.25}]
    by_std = outcome_by_state(scores, states, CreditSettings(baseline="state"))
    unit = 0.5 / (std + 1e-6)
    assert by_std == [
        pytest.approx({0: unit, 1: unit}),
        pytest.approx({0: -unit, 1: -unit}),
        pytest.approx({0: -unit}),  # turn 1 is its own: the group's advantage stays
        pytest.approx({0: unit}),
    ]


def test_each_rollout_counts_once_in_a_state() -> None:
    found = outcome_by_state([1.0, 0.0], [{0: 0, 1: 7, 2: 7, 3: 7}, {0: 0, 1: 7}], MEAN_ONLY)
    assert found == [{0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}, {0: -0.5, 1: -0.5}]


def test_it_lies_on_the_tokens_of_its_turn() -> None:
    """Rollouts 0 to 2 write the same first note and then differ; 3 is alone from turn 1 on."""
    texts = [
        [SEARCH, NOTED_SEARCH, NOTED_ANSWER],
        [SEARCH, NOTED_SEARCH, NOTED_ANSWER.replace("Paris", "Rome")],
        [SEARCH, NOTED_SEARCH, NOTED_ANSWER.replace("Paris", "Rome")],
        [ANSWER.replace("Paris", "Rome")],
    ]
    played = [
        asyncio.run(rollout(agent(), Scripted(CODEC, said), Job(questions(1)[0], i, ("s",)), DecodingSettings()))
        for i, said in enumerate(texts)
    ]
    batch = advantage_batch(played, [1.0, 0.0, 0.0, 0.0])
    made = batch_advantages(batch, MEAN_ONLY, MemorySettings())
    assert made.outcome == [0.75, -0.25, -0.25, -0.25]
    values = [[{round(v, 6) for v in found} for found in by_turn.values()] for by_turn in token_values(batch, made)]
    assert values[0] == [{0.75}, {0.666667}, {0.666667}]  # 1 against 1, 0 and 0
    assert values[1] == values[2] == [{-0.25}, {-0.333333}, {-0.333333}]
    assert values[3] == [{-0.25}]
    lengths = [[len(t.generated_ids) for t in rollout.turns] for rollout in played]
    paid = [
        sum(abs(value) * n for [value], n in zip(values[i], turns, strict=True)) / sum(turns)
        for i, turns in enumerate(lengths)
    ]
    assert made.metrics["credit/outcome_abs"] == pytest.approx(sum(paid) / 4, abs=1e-6)
    plain = token_values(batch, batch_advantages(batch, CreditSettings(normalize_std=False), MemorySettings()))
    assert [{v for found in row.values() for v in found} for row in plain] == [{0.75}, {-0.25}, {-0.25}, {-0.25}]


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
    made = batch_advantages(batch, CreditSettings(), memory, silence=(1.0, 0.0))
    assert made.silence == (0.0, 0.5)
    assert made.metrics["credit/memory_weight"] == 0.5  # 2 * (0 + 0.5) / 2
    assert made.memory == [{1: pytest.approx(-0.05)}, {1: pytest.approx(0.05)}] * 2
    constant = batch_advantages(batch, CreditSettings(), memory.model_copy(update={"fade_batches": None}))
    assert (constant.metrics["credit/memory_weight"], constant.silence) == (2.0, ())


def test_a_resumed_run_fades_on_exactly(tmp_path: Path) -> None:
    def made() -> Any:
        return setup(Speaker(wandering), questions(6), memory=MemorySettings(preset="state", min_pool=2))

    changes: dict[str, Any] = {"questions_per_step": 3, "rollouts_per_question": 3, "save_every": 1}
    unbroken, broken = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    train_rl(made(), settings(steps=5, **changes), unbroken, quiet())
    again = made()  # the policy goes on in memory; what the loop itself hands on comes from the checkpoint
    for steps in (2, 3, 5):
        train_rl(again, settings(steps=steps, **changes), broken, quiet())

    def lines(run: Any) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in run.metrics()]

    assert lines(broken) == lines(unbroken)
    weights = [line["credit/memory_weight"] for line in lines(unbroken)]
    shares = [line["credit/zero_spread_groups"] for line in lines(unbroken)]
    assert weights == [sum(shares[max(0, n - 3) : n + 1]) / min(n + 1, 4) for n in range(5)]
    assert len(set(weights)) > 2
    state = json.loads((unbroken.checkpoints()[-1].path / "state.json").read_text())
    assert state["silence"] == shares[-4:]
    assert silence_logged(unbroken.metrics(), 5, 4) == tuple(shares[-4:])
    assert silence_logged(unbroken.metrics(), 2, 4) == tuple(shares[:2])


def test_a_rescued_checkpoint_remembers_how_silent_the_batches_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved on the way out, between two checkpoints: with the steps that are whole, without the one that failed."""
    score, calls = mempo.train.rl.score_batch, 0

    def fails(*arguments: Any) -> ScoredBatch:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise UserError("the judge is gone")
        return score(*arguments)

    monkeypatch.setattr(mempo.train.rl, "score_batch", fails)
    folder = run_folder(tmp_path)
    made = setup(Speaker(wandering), questions(6), memory=MemorySettings(preset="state", min_pool=2))
    changes: dict[str, Any] = {"questions_per_step": 3, "rollouts_per_question": 3, "save_every": 9}
    with pytest.raises(UserError, match="the judge is gone"):
        train_rl(made, settings(steps=9, **changes), folder, quiet())
    (checkpoint,) = folder.checkpoints()
    shares = [line["credit/zero_spread_groups"] for line in folder.metrics()]
    assert (checkpoint.step, len(shares)) == (3, 3)
    assert load_silence(checkpoint) == tuple(shares)


def test_measures_that_are_gone_are_not_guessed() -> None:
    lines = [{"stage": "rl", "step": 1, "credit/zero_spread_groups": 0.5}, {"stage": "sft", "step": 2}]
    assert silence_logged(lines, 1, 4) == (0.5,)
    assert silence_logged([], 0, 4) == ()
    assert silence_logged([], 9, None) == ()
    with pytest.raises(UserError, match="no line of step 2"):
        silence_logged(lines, 2, 4)


# --- the floor of the spread ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("floor", "std"), [(0.0, 0.01), (0.1, 0.1), (0.005, 0.01)])
def test_no_spread_below_the_floor_is_divided_by(floor: float, std: float) -> None:
    made = memory_advantages([{1: 0.01}, {1: 0.02}, {1: 0.03}], min_pool=2, std_floor=floor)
    assert [row[1] for row in made.by_rollout] == pytest.approx([a / (std + 1e-6) for a in (-0.01, 0.0, 0.01)])


# --- settings ------------------------------------------------------------------------------------------------------


def test_the_preset_is_one_word() -> None:
    assert (STATE.pool, STATE.lost_notes, STATE.fade_batches, STATE.std_floor) == ("state", "worst", 4, 0.0)
    assert outcome_baseline(CreditSettings(), STATE) == "state"
    assert outcome_baseline(CreditSettings(), MemorySettings()) == "group"
    assert outcome_baseline(CreditSettings(baseline="group"), STATE) == "group"
    for settings_, baseline in (
        (["memory=state"], "state"),
        (["memory=state", "credit.baseline=group"], "group"),
        (["memory=state", "rl.memory_signal=false"], "group"),
        (["credit.baseline=state"], "state"),
        ([], "group"),
    ):
        assert resolve("quickstart", settings_).config.credit.baseline == baseline
    assert resolve("quickstart", ["memory=original"]).config.memory.lost_notes == "ignored"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "state", "small_pool": "original"}, "small_pool original never falls back"),
        ({"normalize_std": False, "std_floor": 0.1}, "std_floor does nothing"),
        ({"weight": 0.0, "fade_batches": 3}, "fade_batches does nothing with weight 0"),
    ],
)
def test_what_would_do_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MemorySettings(**options)
