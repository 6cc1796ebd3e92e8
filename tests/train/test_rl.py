"""The main loop: which rollouts, which rows, how many optimizer steps, and what if there is nothing to learn."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import mempo.engine.update
from mempo.config.rewards import MemorySettings
from mempo.config.tools import RetrySettings, SearchSettings
from mempo.config.train import AdvantageSettings, LossSettings, OptimSettings, RlSettings
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import TrainRow, Updater
from mempo.errors import UserError
from mempo.rollout.agent import Job, noise_seed, run_rollouts
from mempo.rollout.interfaces import ToolResult
from mempo.rollout.protocol import FORMAT_RULES
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason, Trajectory, rows_of
from mempo.storage.rollouts import load_rollouts
from mempo.tools.search import SearchTool
from mempo.train.advantages import batch_advantages, row_advantages
from mempo.train.batch import training_rows
from mempo.train.rl import SHOWN, UPDATE_MEASURES, RlSetup, rollout_jobs, step_summary, train_rl, update_policy
from tests.tiny import make_agent, tiny_llama
from tests.train.fakes import (
    ANSWER,
    TOKENIZER,
    Speaker,
    advantage_batch,
    agent,
    played,
    questions,
    run_folder,
    settings,
    setup,
    wandering,
)
from tests.train.small import quiet

# --- rollouts ------------------------------------------------------------------------------------------------------


def noise(jobs: Sequence[Job]) -> list[int]:
    return [noise_seed(*job.key, job.question.id, job.rollout, 0) for job in jobs]


def test_the_rollouts_of_a_step_are_the_same_whenever_they_are_asked_for() -> None:
    made = setup(Speaker(wandering), questions(5))
    first = [jobs_of(made, settings(), step)[0] for step in range(6)]
    assert [jobs_of(made, settings(), step)[0] for step in reversed(range(6))] == first[::-1]
    again = setup(Speaker(wandering), questions(5))
    assert jobs_of(again, settings(), 4)[0] == first[4]
    assert jobs_of(setup(Speaker(wandering), questions(5), seed=1), settings(), 4)[0] != first[4]


def test_no_two_rollouts_of_a_run_meet_the_same_noise() -> None:
    made = setup(Speaker(wandering), questions(3))
    seeds = [seed for step in range(6) for seed in noise(jobs_of(made, settings(), step)[0])]
    assert len(set(seeds)) == len(seeds) == 6 * 2 * 4


def test_a_question_twice_in_a_batch_gets_two_different_groups() -> None:
    # Three questions, two a step: the second step ends one pass over them and begins the next.
    made, twice = setup(Speaker(wandering), questions(1)), settings(questions_per_step=2)
    jobs, asked = jobs_of(made, twice, 0)
    assert {question.id for question in asked} == {"q0"}
    first, second = noise(jobs[:4]), noise(jobs[4:])
    assert not set(first) & set(second)


def test_five_questions_of_three_rollouts_need_no_divisibility(tmp_path: Path) -> None:
    made = setup(Speaker(wandering), questions(5))
    run = run_folder(tmp_path)
    train_rl(made, settings(questions_per_step=5, rollouts_per_question=3), run, quiet())
    assert run.metrics()[0]["rollouts"] == 15


def test_a_batch_larger_than_all_questions_is_refused_with_a_working_value(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only 1 training questions.*set rl\.questions_per_step=1"):
        train_rl(setup(Speaker(wandering), questions(1)), settings(), run_folder(tmp_path), quiet())


# --- the update ----------------------------------------------------------------------------------------------------


def rows_for(trajectories: Sequence[Trajectory], scores: Sequence[float | None], group_size: int) -> list[TrainRow]:
    """Training rows of rollouts with these scores; notes are not scored."""
    batch = advantage_batch(trajectories, scores, size=group_size)
    return training_rows(batch, batch_advantages(batch, AdvantageSettings(), MemorySettings()))


def one_group(*trajectories: Trajectory, scores: Sequence[float | None]) -> tuple[RlSettings, list[TrainRow]]:
    how = settings(questions_per_step=1, rollouts_per_question=len(trajectories))
    return how, rows_for(trajectories, scores, len(trajectories))


def jobs_of(made: RlSetup, how: RlSettings, step: int) -> tuple[list[Job], list[Question]]:
    return rollout_jobs(made.questions, made.seed, step, how.questions_per_step, how.rollouts_per_question)


def watched(updater: Updater, monkeypatch: pytest.MonkeyPatch) -> list[list[TrainRow]]:
    """The rows of every optimizer step, as they are given."""
    seen: list[list[TrainRow]] = []
    step = updater.rl_step

    def watching(rows: Sequence[TrainRow], lr: float, tell: object) -> dict[str, float]:
        seen.append(list(rows))
        return step(rows, lr)

    monkeypatch.setattr(updater, "rl_step", watching)
    return seen


def weights_of(policy: Policy) -> dict[str, torch.Tensor]:
    return copy.deepcopy(policy.model.state_dict())


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("updates", [1, 2, 4])
def test_optimizer_steps_follow_the_questions_and_not_the_turns(
    seed: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    asked = questions(4)
    trajectories = [played(question, rng.randint(1, 7), i) for question in asked for i in range(2)]
    updater = Updater(tiny_llama(TOKENIZER), OptimSettings(lr=1e-3, micro_batch_tokens=rng.choice([1, 200, 5000])))
    seen = watched(updater, monkeypatch)
    how = settings(questions_per_step=4, rollouts_per_question=2, updates_per_step=updates)
    metrics = update_policy(updater, rows_for(trajectories, [1.0, 0.0] * 4, 2), how, 1e-3)

    assert metrics["update/optimizer_steps"] == len(seen) == updates
    total = sum(len(trajectory.turns) for trajectory in trajectories)  # in the memory context a turn is a row
    assert metrics["rows"] == sum(len(rows) for rows in seen) == total
    step_of: dict[str, set[int]] = {}
    for n, rows in enumerate(seen):
        for row in rows:
            step_of.setdefault(trajectories[row.row.trajectory].question_id, set()).add(n)
    assert len(step_of) == 4
    assert all(len(steps) == 1 for steps in step_of.values())
    dealt = [n for steps in step_of.values() for n in steps]
    assert all(dealt.count(n) == 4 // updates for n in range(updates))


def test_the_rate_and_the_optimizer_see_one_step_per_update() -> None:
    trajectories = [played(question, turns, i) for question in questions(2) for i, turns in enumerate((1, 7))]
    updater = Updater(tiny_llama(TOKENIZER), OptimSettings(lr=1e-3))
    how = settings(rollouts_per_question=2, updates_per_step=2)
    metrics = update_policy(updater, rows_for(trajectories, [1.0, 0.0] * 2, 2), how, 0.25)
    assert metrics["update/lr"] == 0.25
    assert isinstance(updater.optimizer, torch.optim.AdamW)
    taken = {int(state["step"]) for state in updater.optimizer.state.values()}
    assert taken == {2}


def test_the_loss_sees_the_sampled_tokens_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the question, and not what a tool said, however long it is."""
    long_page = ToolResult(passages=("Paris " * 10,))
    counted: list[tuple[int, float]] = []
    loss = mempo.engine.update.policy_loss

    def counting(logp_new: torch.Tensor, *rest: Any) -> Any:
        counted.append((len(logp_new), float(rest[3].sum())))
        return loss(logp_new, *rest)

    monkeypatch.setattr(mempo.engine.update, "policy_loss", counting)
    asked = questions(1)[0]
    pair = [played(asked, 2, i, "full", answer=words, result=long_page) for i, words in enumerate(("a", "b c"))]
    how, rows = one_group(*pair, scores=[1.0, 0.0])
    update_policy(Updater(tiny_llama(TOKENIZER), OptimSettings(micro_batch_tokens=1)), rows, how, 1e-3)
    assert sorted(tokens for tokens, _ in counted) == sorted(trajectory.generated_tokens for trajectory in pair)
    assert sum(weight for _, weight in counted) == pytest.approx(1.0)


def test_an_end_of_sequence_that_is_also_the_padding_is_trained() -> None:
    policy = tiny_llama(TOKENIZER)
    assert policy.tokenizer.hf.pad_token_id == policy.tokenizer.eos_id
    ended = Speaker(lambda rng: f"<think>{'s' * rng.randint(1, 9)}</think><eos>")
    run: dict[str, list[TrainRow]] = {}
    made = setup(ended, questions(1), policy, agent(max_turns=1))

    def rows_at(rows: Sequence[TrainRow], lr: float, tell: object) -> dict[str, float]:
        run["rows"] = list(rows)
        return {"update/skipped": 1.0}

    made.updater.rl_step = rows_at  # type: ignore[method-assign]
    how = settings(questions_per_step=1, rollouts_per_question=3)
    trajectories = asyncio.run(run_rollouts(made.agent, made.sampler, jobs_of(made, how, 0)[0]))
    update_policy(made.updater, rows_for(trajectories, [1.0, 0.0, 0.0], 3), how, 1e-3)
    for row in run["rows"]:
        (segment,) = row.row.segments
        assert row.row.ids[segment.stop - 1] == policy.tokenizer.eos_id
        assert row.advantages[segment.stop - 1] != 0


def test_turns_without_a_sampled_token_are_no_trouble() -> None:
    question = questions(1)[0]
    empty = played(question, 1, 1, max_context_tokens=20)  # the question alone is over the limit
    assert not empty.turns
    assert empty.stop is StopReason.CONTEXT_OVERFLOW
    group = [played(question, 2, 0), empty]
    how, rows = one_group(*group, scores=[1.0, 0.0])
    metrics = update_policy(Updater(tiny_llama(TOKENIZER), OptimSettings()), rows, how, 1e-3)
    assert metrics["rows"] == 2
    assert math.isfinite(metrics["update/loss"] or 0.0)
    both = [empty, empty]
    how, rows = one_group(*both, scores=[0.0, 1.0])
    metrics = update_policy(Updater(tiny_llama(TOKENIZER), OptimSettings()), rows, how, 1e-3)
    assert (metrics["rows"], metrics["update/optimizer_steps"], metrics["update/skipped"]) == (0, 0, 1)


# --- nothing to learn ----------------------------------------------------------------------------------------------


def right(rng: random.Random) -> str:
    return ANSWER


def trained(made: RlSetup, path: Path, **changes: Any) -> dict[str, Any]:
    run = run_folder(path)
    train_rl(made, settings(**changes), run, quiet())
    return run.metrics()[-1]


def test_groups_without_spread_and_no_kl_make_no_step(tmp_path: Path) -> None:
    policy = tiny_llama(TOKENIZER)
    before = weights_of(policy)
    metrics = trained(setup(Speaker(right), questions(2), policy), tmp_path, updates_per_step=2)
    assert (metrics["update/optimizer_steps"], metrics["update/skipped"]) == (0, 1)
    assert metrics["advantages/zero_spread_groups"] == 1
    assert metrics["score"] == 1
    assert metrics["rows"] == 8
    assert same(before, policy.model.state_dict())
    # Said to be unknown, and not left out: a reader of the file finds the same keys in every line.
    assert all(metrics[f"update/{name}"] is None for name in UPDATE_MEASURES)


def test_groups_without_spread_still_feel_the_kl(tmp_path: Path) -> None:
    policy, reference = tiny_llama(TOKENIZER, seed=1), tiny_llama(TOKENIZER, seed=2)
    before = weights_of(policy)
    loss = LossSettings(kl="k3", kl_coef=0.1)
    made = setup(Speaker(right), questions(2), policy, loss=loss, reference=reference)
    metrics = trained(made, tmp_path, loss=loss)
    assert metrics["advantages/zero_spread_groups"] == 1
    assert metrics["update/optimizer_steps"] == 1
    assert metrics["update/k3"] > 0
    assert not same(before, policy.model.state_dict())


def test_a_step_counts_groups_with_spread_beside_those_without(tmp_path: Path) -> None:
    def speak(rng: random.Random) -> str:
        return ANSWER if rng.random() < 0.8 else ANSWER.replace("Paris", "Rome")

    metrics = trained(setup(Speaker(speak), questions(8)), tmp_path, questions_per_step=8, rollouts_per_question=2)
    assert 0 < metrics["advantages/zero_spread_groups"] < 1
    assert metrics["update/optimizer_steps"] == 1


# --- infrastructure ------------------------------------------------------------------------------------------------


class Dying:
    """A retriever that answers so many times, and then no more."""

    def __init__(self, answers: int) -> None:
        self._left = answers

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Any]]:
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("http://10.0.0.1:8013/retrieve: 503 out of memory")
        return [[] for _ in queries]

    def access(self, urls: Sequence[str]) -> list[Any]:
        raise AssertionError


def searching(retriever: Any, speak: Callable[[random.Random], str], count: int = 2) -> RlSetup:
    tool = SearchTool(retriever, SearchSettings(retry=RetrySettings(tries=2, backoff_s=0)))
    return setup(Speaker(speak), questions(count), agent_of=make_agent(TOKENIZER, tools={"search": tool}))


def always_new(rng: random.Random) -> str:
    return f"<mem>n</mem><think>s</think><search>{rng.random()}</search>"


def test_a_run_of_nothing_but_errors_stops_with_what_the_server_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 8 rollouts of the step failed.*503 out of memory") as caught:
        trained(searching(Dying(0), always_new), tmp_path)
    assert "\n" not in str(caught.value)


def test_the_last_checkpoint_survives_a_server_that_dies(tmp_path: Path) -> None:
    made = searching(Dying(0), right)
    run = run_folder(tmp_path)
    train_rl(made, settings(steps=2, save_every=1), run, quiet())
    with pytest.raises(UserError, match="503"):
        train_rl(searching(Dying(0), always_new), settings(steps=3, save_every=1), run, quiet())
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2]


@pytest.mark.filterwarnings("ignore:a group has a single scored rollout")
def test_a_server_that_dies_in_the_middle_spoils_some_rollouts_and_no_more(tmp_path: Path) -> None:
    def speak(rng: random.Random) -> str:
        return always_new(rng) if rng.random() < 0.3 else wandering(rng).replace(">q<", ">q1<")

    metrics = trained(searching(Dying(1), speak, count=4), tmp_path, questions_per_step=4)
    assert 0 < metrics["errors"] < metrics["rollouts"] == 16
    assert metrics["tool_errors"] >= metrics["errors"]
    # Both answers of the policy occur among the others; a failure is neither.
    assert 0 < metrics["score"] < 1


# --- what is written -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["memory", "full"])
def test_rows_saved_are_rows_trained(context: str, tmp_path: Path) -> None:
    made = setup(Speaker(wandering), questions(4), agent_of=agent(context, max_turns=5))
    run = run_folder(tmp_path)
    train_rl(made, settings(questions_per_step=4), run, quiet())
    (line,) = run.metrics()
    trajectories, records, advantages = load_rollouts(run.rollouts(1), TOKENIZER, made.agent.grammar)
    rows = [row for i, trajectory in enumerate(trajectories) for row in rows_of(trajectory, i)]
    assert len(rows) == line["rows"]
    assert len(trajectories) == line["rollouts"] == 16
    assert {len(trajectory.turns) for trajectory in trajectories} > {1, 2}  # rows and rollouts are different numbers
    for trajectory, record, by_turn in zip(trajectories, records, advantages, strict=True):
        assert {t: len(values) for t, values in by_turn.items()} == {
            turn.index: len(turn.generated_ids) for turn in trajectory.turns
        }
        assert record["generated_tokens"] == trajectory.generated_tokens


def test_rollouts_are_saved_as_often_as_asked(tmp_path: Path) -> None:
    for every, files in ((2, {"step-2.jsonl", "step-2.tokens"}), (0, set())):
        run = run_folder(tmp_path / str(every))
        made = setup(Speaker(right), questions(2))
        train_rl(made, settings(steps=3, log_rollouts_every=every), run, quiet())
        assert {path.name for path in (run.path / "rollouts").glob("*")} == files


def test_saved_rollouts_tell_the_advantages_of_outcome_and_notes(tmp_path: Path) -> None:
    trained(setup(Speaker(wandering), questions(4)), tmp_path, steps=1, questions_per_step=4)
    [file] = sorted((tmp_path / "run" / "rollouts").glob("step-*.jsonl"))
    trajectories, lines, saved = load_rollouts(file, TOKENIZER, agent().grammar)
    credited = 0
    for trajectory, line, values in zip(trajectories, lines, saved, strict=True):
        notes = {note["turn"]: note["advantage"] for note in line["notes"] if note["advantage"] is not None}
        told = {
            segment.turn: row_advantages(trajectory, row, line["advantage"], notes)[segment.start : segment.stop]
            for row in rows_of(trajectory)
            for segment in row.segments
        }
        assert {turn: pytest.approx(found) for turn, found in told.items()} == values
        credited += any(notes.values())
    assert credited > 0


def test_the_baseline_of_a_reference_policy_is_computed_by_it(tmp_path: Path) -> None:
    memory = MemorySettings(baseline="full", full_policy="reference")
    policy, other = tiny_llama(TOKENIZER), tiny_llama(TOKENIZER, seed=3)
    lines = []
    for name, reference in (("same", policy), ("other", other)):
        made = setup(Speaker(wandering), questions(2), policy=tiny_llama(TOKENIZER), memory=memory)
        made = dataclasses.replace(made, reference=LocalScorer(reference))
        lines.append(trained(made, tmp_path / name))
    same, different = lines
    assert same["memory/p_mem"] == different["memory/p_mem"]  # the note is always judged by the policy itself
    assert same["memory/p_baseline"] != different["memory/p_baseline"]
    actor = trained(setup(Speaker(wandering), questions(2), memory=MemorySettings(baseline="full")), tmp_path / "actor")
    assert actor["memory/p_baseline"] == pytest.approx(same["memory/p_baseline"], abs=1e-6)


def test_without_the_memory_signal_no_note_is_scored(tmp_path: Path) -> None:
    on = trained(setup(Speaker(wandering), questions(4)), tmp_path / "on", questions_per_step=4)
    off = trained(setup(Speaker(wandering), questions(4)), tmp_path / "off", questions_per_step=4, memory_signal=False)
    assert on["note/scored"] > 0
    assert on["memory/p_mem"] is not None
    assert on["advantages/memory_abs"] > 0
    assert (off["note/scored"], off["memory/p_mem"], off["advantages/memory_abs"]) == (0, None, None)


# What every run reports, in every line.
MEASURES = {
    "answers": ("score", "em", "f1", "sub_em", "mean_em", "mean_f1", "format_ok"),
    "format rules by name": tuple(f"format/{rule}" for rule in FORMAT_RULES),
    "shape": ("turns", "searches", "no_search", "generated_tokens"),
    "notes": ("note_tokens", "note/scored", "note/missing", "note/unclosed", "note/truncated", "note/empty"),
    "the memory signal": ("memory/p_mem", "memory/p_baseline", "memory/r", "memory/gold_kept"),
    "advantages": ("advantages/outcome_abs", "advantages/memory_abs", "advantages/zero_spread_groups"),
    "the update": tuple(f"update/{name}" for name in ("entropy", "ratio", "clip_fraction", "k3", "grad_norm", "lr")),
    "cost": ("peak_context_tokens", "total_tokens", "rows", "rollouts", "update/optimizer_steps"),
    "stop reasons": tuple(f"stop/{reason}" for reason in StopReason),
    "infrastructure": ("errors", "tool_errors"),
    "time": ("seconds/rollout", "seconds/memory_reward", "seconds/update"),
}
KEYS = [key for keys in MEASURES.values() for key in keys]


def test_every_measure_is_in_the_line_of_a_step(tmp_path: Path) -> None:
    loss = LossSettings(kl="k3", kl_coef=0.1)
    made = setup(
        Speaker(wandering),
        questions(4),
        loss=loss,
        reference=tiny_llama(TOKENIZER, seed=3),
        memory=MemorySettings(baseline="full"),
    )
    line = trained(made, tmp_path, questions_per_step=4, loss=loss)
    assert {key: line.get(key) for key in KEYS if line.get(key) is None} == {}
    for name in ("p_mem", "p_baseline", "r"):  # by turn, counted from 1
        assert line[f"memory/{name}/turn_2"] is not None
        assert f"memory/{name}/turn_1" not in line  # a first note is never scored
    assert line["memory/r"] == pytest.approx(line["memory/p_mem"] - line["memory/p_baseline"])
    assert (line["stage"], line["step"]) == ("rl", 1)


def test_searches_are_among_what_a_person_sees() -> None:
    """A policy that stops searching is the commonest way to go wrong."""
    assert {"searches", "turns"} <= set(SHOWN)
    assert set(SHOWN) <= set(KEYS)


def test_a_step_is_summed_up_in_what_is_known_of_it() -> None:
    known = {"score": 0.25, "em": 0.0, "memory/p_mem": None, "note_tokens": 35.125, "turns": 4.0, "errors": 0.0}
    assert step_summary(known) == "score 0.25  em 0  note 35.1  turns 4"
    assert step_summary({**known, "errors": 3.0}).endswith("turns 4  failed 3")
