# pyright: reportMissingImports=false
"""The same rollouts on verl's road and on the local one: rows, rewards, advantages, loss, gradient, weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mempo.cluster.agent_loop import RolloutFailed
from mempo.cluster.rollouts import dealt
from mempo.config import Resolved, resolve
from mempo.engine.model import load_policy, save_policy
from mempo.engine.optimizer import learning_rate
from mempo.engine.scorer import LocalScorer
from mempo.engine.update import Updater
from mempo.errors import UserError
from mempo.rollout.question import Question
from mempo.train.advantages import AdvantageBatch, batch_advantages
from mempo.train.batch import training_rows
from mempo.train.rl import update_policy
from mempo.train.score_batch import score_batch
from tests import tiny
from tests.cluster.with_verl.one_process import OneProcess, Reply

ROLLOUTS = 4
NOTE = "<mem>{} seen {}</mem>"
TURNS = (
    "<mem>note {} {}</mem><think>on</think><search>find {} {}</search>",
    "<mem>{} then {} and more of it</mem><think>well</think><search>next</search><eos>",
    "<think>no note {} {}</think><search>again</search>",
    "<mem>never closed {} {}<think>x</think><search>q</search>",
    "two <search>a</search><search>b {} {}</search>",
    "words {} {} " * 30,
)
"""A turn with a note, one that ends itself, one without a note, an unclosed one, a broken one, one that is cut."""
ANSWERS = ("<mem>done {} {}</mem><think>b</think><answer>{}</answer>", "<think>b {} {}</think><answer>{}</answer><eos>")


def plays(seed: str, answers: Sequence[str], fails: Callable[[str, int], int | None], force_mem: bool = False) -> Reply:
    """Rollouts that differ in everything; `fails(question, session)`: the turn in which the server breaks."""

    def reply(question: str, session: int, turn: int) -> str | Exception:
        rng = random.Random(f"{seed} {question} {session} {turn}")
        if fails(question, session) == turn:
            return ConnectionError("gone")
        if turn >= rng.choice((0, 2, 3, 6)):
            text = rng.choice(ANSWERS).format(question, turn, rng.choice(answers))
        else:
            text = rng.choice(TURNS).format(*[question, turn] * 30)
        return text.removeprefix("<mem>") if force_mem and turn else text

    return reply


@dataclass(frozen=True)
class Case:
    settings: tuple[str, ...]
    family: str = "llama"
    ranks: int = 1
    questions: int = 4
    gold: Any = "city"
    fails: Callable[[str, int], int | None] = lambda question, session: None
    force_mem: bool = False


def own_score(question: Any, trajectory: Any) -> float | None:
    """None where the answer is another's business."""
    return None if trajectory.answer == "town" else float(len(trajectory.turns)) / 8


def own_advantages(scores: Sequence[float], notes: Sequence[Any]) -> tuple[list[float], list[dict[int, float]]]:
    outcome = [score - 0.25 for score in scores]
    return outcome, [{turn: 0.5 + (r or 0.0) for turn, r in by_turn.items()} for by_turn in notes]


def own_by_step(batch: AdvantageBatch) -> tuple[list[float], list[dict[int, float]]]:
    """Weights over the batch."""
    mean = sum(batch.scores) / len(batch.scores) + 0.01 * batch.step
    return [score - mean for score in batch.scores], [dict.fromkeys(by_turn, 0.5) for by_turn in batch.notes]


def half_a_group(question: str, session: int) -> int | None:
    return session - 1 if question == "q1" and session else None


def a_group(question: str, session: int) -> int | None:
    return 0 if question == "q1" else None


def a_mini_batch(question: str, session: int) -> int | None:
    return 0 if question in ("q0", "q1") or (question == "q2" and session == 3) else None


OWN = "tests.cluster.with_verl.test_parity"
KL = ("rl.loss.kl=k3", "rl.loss.kl_coef=0.01")


def steady(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Memory advantages of full weight, where the case says nothing of it: few groups are silent here."""
    own = ("memory.preset=", "memory.fade_batches=", "advantages.function=", "rl.memory_signal=false")
    return () if any(setting.startswith(own) for setting in settings) else ("memory.fade_batches=null",)


CASES = {
    "plain": Case(()),
    "kl, two updates, two ranks": Case((*KL, "rl.updates_per_step=2"), ranks=2),
    "three ranks, four updates": Case((*KL, "rl.updates_per_step=4"), ranks=3),
    "qwen2, whole history": Case(("agent.context=full", "memory.baseline=full", *KL), family="qwen2", ranks=2),
    "gpt_neox, original": Case(("memory.preset=original", "rl.updates_per_step=2"), family="gpt_neox", ranks=2),
    "qwen3, window": Case(
        ("agent.context=window(2)", "memory.reward=log_ratio", "memory.baseline=visible"), family="qwen3"
    ),
    "react": Case(("agent.context=react", "agent.notes=forbidden", "rl.memory_signal=false", *KL), ranks=2),
    "last turn, reference": Case(
        ("agent.context=last_turn", "memory.baseline=previous_note", "memory.full_policy=reference"), ranks=2
    ),
    "generations, k2": Case(("agent.context=generations", "rl.loss.kl=k2", "rl.loss.kl_coef=0.1"), family="gemma"),
    "look ahead": Case(("memory.lookahead={k: 2, gamma: 0.7}", "memory.baseline=visible"), ranks=2),
    "compression": Case(("memory.reward=compression", "memory.length_penalty=0.3", "memory.normalize_std=false")),
    "quantile, both": Case(("memory.baseline=full", "memory.threshold=both", "memory.threshold_quantile=0.3")),
    "gate": Case(("memory.gate=when_not_negative", "memory.weight=0.5", "advantages.normalize_std=false"), ranks=2),
    "objectives": Case(("memory.probe.objectives=averaged", "reward.score=mean_f1"), gold=[["city", "c"], ["town"]]),
    "forced note": Case(("prompt.force_mem=true", *KL), force_mem=True, ranks=2),
    "own score and advantages": Case(
        (f"reward.score={OWN}:own_score", f"advantages.function={OWN}:own_advantages"), ranks=2
    ),
    "own advantages of a step": Case(
        (f"reward.score={OWN}:own_score", f"advantages.function={OWN}:own_by_step"), ranks=2
    ),
    "fading": Case(("memory.fade_batches=2", "memory.min_pool=2", *KL, "rl.updates_per_step=2"), ranks=2),
    "temperature": Case(("rl.temperature=0.7", *KL, "rl.updates_per_step=2")),
    "overflow": Case(("limits.max_context_tokens=220", "reward.on_overflow=exclude", *KL), ranks=2),
    "no signal": Case(("rl.memory_signal=false",)),
    "clip": Case(("rl.loss.clip_low=0.1", "rl.loss.clip_high=0.3", "rl.updates_per_step=4", "rl.optim.lr=0.01")),
    "half a group fails": Case((*KL, "rl.updates_per_step=2"), fails=half_a_group, ranks=2),
    "a group fails": Case((*KL, "rl.updates_per_step=2"), fails=a_group, ranks=2),
    "a mini-batch fails": Case((*KL, "rl.updates_per_step=2"), fails=a_mini_batch, ranks=2),
    "plain template": Case(("prompt.template=plain", "limits.max_note_tokens=8", "limits.max_malformed_turns=3")),
}


def resolved(case: Case, folder: Path) -> Resolved:
    tokenizer = tiny.chat_tokenizer("chatml", tags="added")
    policy = tiny.tiny_model(case.family, tokenizer)
    # Some rows to spare: a tokenizer that is loaded again may bring a token of its family along.
    policy.model.resize_token_embeddings(tokenizer.size + 8, mean_resizing=False)
    save_policy(policy, folder / "model")
    return resolve(
        None,
        [
            *(f"model.path={folder}/model", f"output={folder}/run", "data.environment=atlas", "agent.tools=[]"),
            *("rl.steps=4", f"rl.questions_per_step={case.questions}", f"rl.rollouts_per_question={ROLLOUTS}"),
            *("rl.optim.lr=0.001", "rl.log_rollouts_every=0", "limits.max_context_tokens=900", "limits.max_turns=7"),
            *("limits.max_turn_tokens=64", "limits.max_obs_tokens=64", "reward.format_gate=false"),
            *("cluster.test_every=0", f"cluster.gpus_per_node={case.ranks}", "cluster.agent_workers=1"),
            *("cluster.micro_batch_tokens=2048", *steady(case.settings), *case.settings),
        ],
    )


@pytest.mark.parametrize("name", CASES)
def test_both_roads_come_to_the_same(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    made = resolved(case, tmp_path)
    config = made.config
    questions = [Question(f"q{i}", f"which place is {i}?", case.gold) for i in range(case.questions)]
    answers = ("city", "town") if isinstance(case.gold, str) else ("city; town", "c; x", "city")
    theirs = OneProcess(made, tmp_path / "run", case.ranks)
    theirs.step(questions, plays(name, answers, case.fails, case.force_mem))

    asked, trajectories = dealt(theirs.trainer._groups)
    assert [question.id for question in asked] == [q.id for q in questions for _ in range(ROLLOUTS)]
    assert len({len(t.turns) for t in trajectories}) > 2
    path = config.model.path or ""
    policy, reference = load_policy(config.model, path), load_policy(config.model, path)
    begun = {key: tensor.clone() for key, tensor in policy.model.state_dict().items()}
    scoring, size = theirs.run.scoring, config.rl.rollouts_per_question
    scored = score_batch(scoring, asked, trajectories, LocalScorer(policy), LocalScorer(reference))
    batch = scored.counted(size, theirs.trainer.global_steps)
    advantages = batch_advantages(batch, scoring.advantages, scoring.memory, scoring.own_advantages)
    updater = Updater(policy, config.rl.optim, config.rl.loss, reference)
    updates = update_policy(
        updater, training_rows(batch, advantages), config.rl, learning_rate(config.rl.optim, 0, config.rl.steps)
    )

    for key, value in {**scored.metrics, **advantages.metrics}.items():
        found = theirs.metrics.get(f"mempo/{key}")
        assert found == (None if value is None else pytest.approx(value, abs=1e-5, rel=1e-4)), key
    for ours, verls in (("loss", "loss"), ("policy", "pg_loss"), ("k3", "kl_loss"), ("grad_norm", "grad_norm")):
        if f"actor/{verls}" in theirs.metrics and (ours != "k3" or config.rl.loss.kl == "k3"):
            wanted = pytest.approx(updates[f"update/{ours}"], abs=2e-5, rel=1e-4)
            assert theirs.metrics[f"actor/{verls}"] == wanted, ours
    assert theirs.workers.optimizer_steps == updates["update/optimizer_steps"]
    found = theirs.policy.model.state_dict()
    mine = policy.model.state_dict()
    moved = sum(float((mine[key] - begun[key]).abs().sum()) for key in begun)
    apart = sum(float((mine[key] - found[key]).abs().sum()) for key in begun)
    assert moved > 0
    assert apart < 2e-3 * moved


def broken_score(question: Any, trajectory: Any) -> float:
    raise KeyError("my bug")


def sometimes_broken_score(question: Any, trajectory: Any) -> float:
    return broken_score(question, trajectory) if question.id == "q2" else 1.0


def never(question: str, session: int) -> None:
    return None


SEEN: set[tuple[str, int]] = set()


def once_score(question: Any, trajectory: Any) -> float | None:
    """A judge that does not answer a second time about the first rollout of a question."""
    asked = (question.id, trajectory.rollout)
    fails = asked in SEEN and asked == ("q1", 0)
    SEEN.add(asked)
    return None if fails else float(len(trajectory.turns))


def test_a_rollout_whose_judge_fails_in_the_trainer_teaches_nothing(tmp_path: Path) -> None:
    SEEN.clear()
    case = Case((f"reward.score={OWN}:once_score",))
    theirs = OneProcess(resolved(case, tmp_path), tmp_path / "run", case.ranks)
    questions = [Question(f"q{i}", f"which place is {i}?", case.gold) for i in range(case.questions)]
    theirs.step(questions, plays("judge", ("city",), never))
    assert ("q1", 0) in SEEN
    assert theirs.metrics["mempo/unscored"] == 1


def refused(case: Case, folder: Path, fails: Callable[[str, int], int | None] = never) -> str:
    theirs = OneProcess(resolved(case, folder), folder / "run", case.ranks)
    questions = [Question(f"q{i}", f"which place is {i}?", case.gold) for i in range(case.questions)]
    with pytest.raises(UserError) as found:
        theirs.step(questions, plays("refused", ("city",), fails))
    assert "\n" not in str(found.value)
    return str(found.value)


def test_a_step_in_which_everything_fails_ends_with_the_cause(tmp_path: Path) -> None:
    said = refused(Case(()), tmp_path, lambda question, session: 0)
    assert said == "all 16 rollouts of the step failed; the first: the rollout server failed (ConnectionError: gone)"


def test_questions_that_leave_no_room_end_the_run_with_the_numbers(tmp_path: Path) -> None:
    said = refused(Case(("limits.max_context_tokens=40", "limits.min_turn_tokens=8")), tmp_path)
    assert "no rollout of the step had room" in said


def test_agent_workers_that_fail_altogether_are_told_from_rollouts_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RolloutFailed("no tokenizer on this node")

    monkeypatch.setattr("mempo.cluster.agent_loop.question_of", broken)
    assert "no rollout reached the trainer" in refused(Case(()), tmp_path)


@pytest.mark.parametrize("name", ["broken_score", "sometimes_broken_score"])
def test_an_own_score_that_fails_ends_the_run_with_its_error(name: str, tmp_path: Path) -> None:
    said = refused(Case((f"reward.score={OWN}:{name}",)), tmp_path)
    assert "my bug" in said
