"""Whole runs in seconds: contexts, several updates a step, a reference, epoch boundaries, own questions and corpus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mempo.train.rl
import mempo.train.sft
from mempo.config import resolve
from mempo.engine.model import save_policy
from mempo.errors import UserError
from mempo.run.evaluate import evaluate_model, final_model
from mempo.run.train import train
from mempo.storage.files import read_lines
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.small import assert_same_weights, metrics, quiet, run, weights
from tests.train.test_resume import Killed, kill_after
from tests.train.test_rl import KEYS

pytestmark = pytest.mark.slow

SHORT = ("sft.steps=3", "sft.demos=6", "rl.steps=2")


def changed(folder: Path) -> bool:
    """Whether RL moved the weights that SFT ended with."""
    before, after = weights(folder / "checkpoints" / "sft-3"), weights(folder / "final")
    return any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_the_memory_context_trains_a_row_per_turn(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *SHORT, "agent.context=memory", "memory.baseline=full", "rl.updates_per_step=2")
    lines = metrics(folder, "rl")
    rollouts = [read_lines(folder / "rollouts" / f"step-{step}.jsonl") for step in (1, 2)]
    for line, saved in zip(lines, rollouts, strict=True):
        assert line["rows"] == sum(record["num_turns"] for record in saved) > len(saved)
        assert line["update/optimizer_steps"] == 2
    assert changed(folder)
    missing = [
        key for line in read_lines(folder / "metrics.jsonl") if line["stage"] == "rl" for key in KEYS if key not in line
    ]
    assert missing == []


def test_a_reference_and_the_order_of_questions_survive_a_kill_between_two_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three questions, three a step: every step is a whole pass over them, and the run is killed after the second."""
    how = [*SHORT, "data.train_questions=3", "rl.questions_per_step=3", "rl.rollouts_per_question=2", "rl.steps=4"]
    how += ["rl.save_every=2", "rl.loss.kl=k3", "rl.loss.kl_coef=0.05", "data.objectives=[2]", "evaluate.questions=1"]
    unbroken = run(tmp_path / "unbroken", *how)
    with monkeypatch.context() as patch:
        kill_after(patch, mempo.train.rl, 2)
        with pytest.raises(Killed):
            run(tmp_path / "broken", *how)
    resumed = run(tmp_path / "broken", *how, resume=True)
    assert_same_weights(unbroken / "final", resumed / "final")
    assert metrics(unbroken, "rl") == metrics(resumed, "rl")
    lines = metrics(resumed, "rl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["update/k3"] == pytest.approx(0, abs=1e-6)  # the reference is what RL started from
    assert lines[-1]["update/k3"] > 0
    asked = [
        [record["question_id"] for record in read_lines(resumed / "rollouts" / f"step-{n}.jsonl")] for n in range(1, 5)
    ]
    assert len({tuple(sorted(ids)) for ids in asked}) == 1
    assert len({tuple(ids) for ids in asked}) > 1

    # Everything is done: to go on is refused, and does not pass for training.
    with pytest.raises(UserError, match="nothing is left to do"):
        run(tmp_path / "broken", *how, resume=True)


def test_steps_before_the_first_checkpoint_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        kill_after(patch, mempo.train.sft, 3, before_saving=True)
        with pytest.raises(Killed):
            run(tmp_path / "run", *SHORT, "rl.steps=0")
    folder = run(tmp_path / "run", *SHORT, "rl.steps=0", resume=True)
    assert [line["step"] for line in metrics(folder, "sft")] == [1, 2, 3]


# --- own questions and corpus --------------------------------------------------------------------------------------

CAPITALS = {"France": "Paris", "Peru": "Lima", "Kenya": "Nairobi", "Japan": "Tokyo", "Egypt": "Cairo"}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """Settings of a run on plain files, with a random model of the Hugging Face kind."""
    save_policy(tiny_llama(make_tokenizer()), tmp_path / "model")
    rows = [{"question": f"capital of {land}?", "answer": [city, f"{city} city"]} for land, city in CAPITALS.items()]
    questions = write_lines(tmp_path / "questions.jsonl", rows)
    corpus = write_lines(
        tmp_path / "corpus.jsonl",
        [{"title": land, "text": f"The capital is {city}."} for land, city in CAPITALS.items()],
    )
    return [
        f"output={tmp_path / 'run'}",
        f"model.path={tmp_path / 'model'}",
        "model.threads=1",
        f"data.train={questions}",
        f"data.test={questions}",
        f"data.corpus={corpus}",
        "sft.steps=0",
        "rl.steps=2",
        "rl.questions_per_step=3",
        "rl.rollouts_per_question=2",
        "rl.optim.lr=1e-3",
        "reward.score=f1",
        "reward.format_gate=false",
        "limits.max_turn_tokens=16",
        "limits.max_turns=2",
        "limits.max_context_tokens=512",
        "limits.max_obs_tokens=128",
        "evaluate.questions=2",
    ]


def test_plain_files_and_any_model_are_enough(own: list[str], tmp_path: Path) -> None:
    folder = train(resolve(None, own), False, quiet())
    assert [line["rollouts"] for line in metrics(folder, "rl")] == [6, 6]
    saved = [record for step in (1, 2) for record in read_lines(folder / "rollouts" / f"step-{step}.jsonl")]
    assert {record["question"] for record in saved} <= {f"capital of {land}?" for land in CAPITALS}
    assert saved[0]["gold"] == [CAPITALS[saved[0]["question"][11:-1]], f"{CAPITALS[saved[0]['question'][11:-1]]} city"]
    assert json.loads((folder / "evaluation-final.json").read_text())["1"]["questions"] == 2
    assert final_model(folder) == folder / "final"
    measures = evaluate_model(resolve(str(folder)), str(final_model(folder)), tmp_path / "out", quiet())
    assert measures[1]["rollouts"] == 2
    assert (tmp_path / "out" / "rollouts" / "memory.jsonl").is_file()


def test_questions_of_a_file_are_joined_to_several_objectives(own: list[str]) -> None:
    folder = train(resolve(None, [*own, "data.objectives=[1, 2]", "rl.steps=1"]), False, quiet())
    assert sorted(json.loads((folder / "evaluation-final.json").read_text())) == ["1", "2"]


def test_a_start_that_fails_leaves_nothing_to_resume(own: list[str], tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"no \*\.safetensors"):
        train(resolve(None, own), False, quiet())
    (tmp_path / "elsewhere").rename(tmp_path / "model" / "model.safetensors")
    train(resolve(None, [*own, "rl.steps=1", "evaluate.questions=1"]), False, quiet())


def test_the_expert_needs_a_plan_that_plain_files_do_not_have(own: list[str]) -> None:
    with pytest.raises(UserError, match=r"sft\.steps=0"):
        train(resolve(None, [*own, "sft.steps=1"]), False, quiet())


def test_a_run_without_test_questions_is_not_evaluated(own: list[str]) -> None:
    folder = train(resolve(None, [*own, "data.test=null", "rl.steps=1"]), False, quiet())
    assert not list(folder.glob("evaluation-*"))
    with pytest.raises(UserError, match="no test questions"):
        evaluate_model(resolve(str(folder)), str(folder / "final"), None, quiet())
