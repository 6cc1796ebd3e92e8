"""Supervised fine-tuning: every row in its turn, loss on what was generated, probe rows that ask what a note allows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from mempo.config.rewards import ProbeSettings
from mempo.config.train import ExpertSettings, OptimSettings, SftSettings
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.errors import ConfigError
from mempo.rollout.agent import Job
from mempo.rollout.interfaces import ScoreRequest, ToolResult
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Row, Segment
from mempo.train.expert_rollouts import Demo, play
from mempo.train.sft import demo_rows, mixed_batches, probe_row, take, train_sft
from tests.tiny import make_agent, tiny_llama
from tests.train.fakes import TOKENIZER, Told, run_folder
from tests.train.small import quiet

QUESTION = Question(
    "q",
    "capital of France; capital of Peru",
    (("Paris",), ("Lima",)),
    meta={"queries": [["capital of France"], ["capital of Peru"]], "finds": [["Paris"], ["Lima"]]},
)


def demos(loss: float = 0.0, context: str = "memory", notes: bool = True, count: int = 1) -> list[Demo]:
    tools = {"search": Told(ToolResult(passages=("Paris", "Lima")))}
    jobs = [Job(QUESTION, i, ("demos",)) for i in range(count)]
    settings = ExpertSettings(loss=loss, omit_unknown=True)
    return asyncio.run(play(make_agent(TOKENIZER, context, tools=tools), jobs, settings, notes))


# --- which rows ----------------------------------------------------------------------------------------------------


def test_every_item_comes_once_before_any_comes_again() -> None:
    items = list(range(7))
    found = take(items, 0, 21, "seed")
    for first in (0, 7, 14):
        assert sorted(found[first : first + 7]) == items
    assert found[:7] != found[7:14]  # in another order


def test_what_is_taken_does_not_depend_on_how_it_is_cut() -> None:
    items = list(range(7))
    whole = take(items, 0, 40, "seed")
    for size in (1, 3, 7, 9):
        assert [item for start in range(0, 36, size) for item in take(items, start, size, "seed")][:36] == whole[:36]
    assert take(items, 13, 3, "seed") == whole[13:16]
    assert take(items, 0, 7, "other") != whole[:7]


def rows(count: int, first: int = 0) -> list[Row]:
    return [Row(first + i, (1, 2), (Segment(0, 1, 2),)) for i in range(count)]


def test_batches_mix_episodes_and_probes_in_a_fixed_share() -> None:
    rows_at = mixed_batches(rows(9), rows(4, 100), SftSettings(batch_rows=8, probe_share=0.25), 0)
    batches = [[row.trajectory for row in rows_at(step)] for step in range(12)]
    assert [row.trajectory for row in rows_at(5)] == batches[5]
    for batch in batches:
        assert len(batch) == 8
        assert sum(place >= 100 for place in batch) == 2
    told = [place for batch in batches for place in batch if place < 100]
    assert sorted(told[:9]) == sorted(told[9:18]) == list(range(9))
    probed = [place for batch in batches for place in batch if place >= 100]
    assert sorted(probed[:4]) == sorted(probed[4:8]) == [100, 101, 102, 103]


def test_batches_without_probes_are_whole() -> None:
    assert len(mixed_batches(rows(3), [], SftSettings(batch_rows=8, probe_share=0.5), 0)(0)) == 8
    assert len(mixed_batches(rows(3), rows(3), SftSettings(batch_rows=8, probe_share=0), 0)(0)) == 8


def test_however_small_a_batch_it_tells_an_episode() -> None:
    for size in (1, 2, 3):
        batch = mixed_batches(rows(3), rows(3, 100), SftSettings(batch_rows=size, probe_share=0.9), 0)(0)
        assert len(batch) == size
        assert any(row.trajectory < 100 for row in batch)


def test_no_demonstrations_are_an_error() -> None:
    with pytest.raises(ConfigError, match="no rows to learn from"):
        mixed_batches([], rows(3), SftSettings(), 0)


def test_a_demonstration_is_a_row_per_turn_or_one_as_the_context_has_it() -> None:
    assert len(demo_rows(demos())) == 3
    assert len(demo_rows(demos(context="full"))) == 1
    assert [row.trajectory for row in demo_rows(demos(count=2))] == [0, 0, 0, 1, 1, 1]


# --- probe rows ----------------------------------------------------------------------------------------------------


def test_a_probe_row_asks_for_what_its_note_allows() -> None:
    (demo,) = demos()
    settings = ProbeSettings(thought="enough", joiner="; ")
    assert probe_row(TOKENIZER, demo, 0, settings) is None  # no note yet
    for index, answer in ((1, "Paris"), (2, "Paris; Lima")):
        row = probe_row(TOKENIZER, demo, index, settings)
        assert row is not None
        turn = demo.trajectory.turns[index]
        assert turn.note_ids is not None
        (segment,) = row.segments
        assert row.ids[: segment.start] == demo.trajectory.question_ids + turn.note_ids
        assert segment.stop == len(row.ids)
        target = TOKENIZER.decode(row.ids[segment.start :])
        assert target == f"\n<think>\nenough\n</think>\n<answer>\n{answer}\n</answer>"


def test_a_note_that_lost_everything_allows_no_answer() -> None:
    (demo,) = demos(loss=1.0)
    row = probe_row(TOKENIZER, demo, 2, ProbeSettings())
    assert row is not None
    assert "unknown" in TOKENIZER.decode(row.ids)
    assert "Paris" not in TOKENIZER.decode(row.ids[row.segments[0].start :])


def test_an_agent_without_notes_has_no_probe_rows() -> None:
    (demo,) = demos(context="full", notes=False)
    assert [probe_row(TOKENIZER, demo, turn.index, ProbeSettings()) for turn in demo.trajectory.turns] == [None] * 3


# --- the loss ------------------------------------------------------------------------------------------------------


def mean_loss(policy: Policy, some: Sequence[Row]) -> float:
    """Minus the mean log-prob of the generated tokens, asked of the scorer one segment at a time."""
    requests = [
        ScoreRequest(row.ids[: segment.start], row.ids[segment.start : segment.stop])
        for row in some
        for segment in row.segments
    ]
    found = [float(value) for values in LocalScorer(policy).score(requests) for value in values]
    return -sum(found) / len(found)


@pytest.mark.parametrize("context", ["memory", "full"])
@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_loss_is_on_generated_tokens_alone(context: str, budget: int) -> None:
    policy = tiny_llama(TOKENIZER)
    some = demo_rows(demos(context=context))
    expected = mean_loss(policy, some)
    metrics = Updater(policy, OptimSettings(micro_batch_tokens=budget)).sft_step(some, 1e-3)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    (demo,) = demos(context=context)
    assert metrics["tokens"] == demo.trajectory.generated_tokens


def test_training_lowers_the_loss_and_logs_every_step(tmp_path: Path) -> None:
    policy = tiny_llama(TOKENIZER)
    some = demo_rows(demos())
    run = run_folder(tmp_path)
    settings = SftSettings(steps=12, optim=OptimSettings(lr=1e-2), save_every=5)
    before = mean_loss(policy, some)
    train_sft(policy, lambda step: some, settings, run, quiet())
    lines = run.metrics()
    assert [(line["stage"], line["step"]) for line in lines] == [("sft", n) for n in range(1, 13)]
    assert lines[0]["loss"] == pytest.approx(before, rel=1e-5)
    assert mean_loss(policy, some) < before - 1
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [10, 12]


def test_rows_of_a_step_are_asked_for_by_its_number(tmp_path: Path) -> None:
    asked: list[int] = []

    def rows_at(step: int) -> list[Row]:
        asked.append(step)
        return demo_rows(demos())[: random.Random(step).randint(1, 3)]

    run = run_folder(tmp_path)
    settings = SftSettings(steps=3, save_every=2)
    train_sft(tiny_llama(TOKENIZER), rows_at, settings, run, quiet())
    train_sft(tiny_llama(TOKENIZER), rows_at, settings.model_copy(update={"steps": 5}), run, quiet())
    assert asked == [0, 1, 2, 3, 4]  # the second call went on after the checkpoint of the first
