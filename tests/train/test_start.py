"""Runs that begin where the SFT of another ended."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

import mempo.train.sft
from mempo.config import resolve
from mempo.config.check import check
from mempo.engine.model import save_policy
from mempo.errors import ConfigError, UserError
from mempo.rollout.agent import DecodingSettings, Job, rollout
from mempo.rollout.interfaces import Tool
from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory
from mempo.run.train import train
from mempo.train.demonstrations import tokenizer_of_toy
from mempo.train.start import borrow_evaluation, refuse_other_vocabulary, start_model
from mempo.train.start_check import start_check
from tests.tiny import Scripted, make_tokenizer, tiny_llama
from tests.train.fakes import NOTED_ANSWER, SEARCH, TOKENIZER, Told, agent
from tests.train.small import assert_same_weights, metrics, run, weights
from tests.train.test_cold_start import prepared
from tests.train.test_resume import Killed, kill_after

SHORT = ("sft.steps=6", "rl.steps=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole") / "run", *SHORT, "sft.keep_every=2", "sft.save_every=1")


@pytest.mark.slow
def test_a_run_from_a_start_is_the_rest_of_the_run_that_made_it(whole: Path, tmp_path: Path) -> None:
    rest = run(tmp_path / "rest", *SHORT, f"start={whole}")
    assert_same_weights(whole / "final", rest / "final")
    assert metrics(rest, "sft") == []
    assert metrics(rest, "rl") == metrics(whole, "rl")
    name = "evaluation-start"
    for file in (f"{name}.json", f"rollouts/{name}.jsonl", f"rollouts/{name}.tokens"):
        assert (rest / file).read_bytes() == (whole / file).read_bytes()
    assert start_model(str(rest)) == start_model(str(whole))


@pytest.mark.slow
def test_another_evaluation_of_the_start_is_made_and_not_borrowed(whole: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", *SHORT, f"start={whole}", "evaluate.questions=1")
    assert (other / "evaluation-start.json").read_bytes() != (whole / "evaluation-start.json").read_bytes()


@pytest.mark.slow
def test_an_arm_with_another_memory_signal_borrows_the_evaluation(whole: Path, tmp_path: Path) -> None:
    marks = json.loads((whole / "data.json").read_text("utf-8"))
    lighter, original = "memory.weight=0.5", "memory=original"  # the original's P(mem) is another measure
    for setting, borrows in ((lighter, True), (original, False)):
        arm = resolve(str(whole), [f"start={whole}", setting])
        assert borrow_evaluation(arm, marks, tmp_path / setting) is borrows


@pytest.mark.slow
def test_a_complete_run_without_sft_of_its_own_can_be_given_rl(whole: Path, tmp_path: Path) -> None:
    begun = run(tmp_path / "begun", *SHORT, f"start={whole}", "rl.steps=0")
    with pytest.raises(UserError, match="nothing is left to do"):
        train(resolve(str(begun)), True, Console(quiet=True))
    train(resolve(str(begun), ["rl.steps=2"]), True, Console(quiet=True))
    assert metrics(begun, "rl") == metrics(whole, "rl")


@pytest.mark.slow
def test_rl_has_a_seed_of_its_own(whole: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", *SHORT, f"start={whole}", "rl.seed=5")
    assert (other / "data.json").read_bytes() == (whole / "data.json").read_bytes()
    assert (other / "evaluation-start.json").read_bytes() == (whole / "evaluation-start.json").read_bytes()
    assert metrics(other, "rl") != metrics(whole, "rl")
    first, second = weights(whole / "final"), weights(other / "final")
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_checkpoints_of_sft_that_are_kept_can_be_begun_from(whole: Path, tmp_path: Path) -> None:
    kept = sorted(folder.name for folder in (whole / "checkpoints").glob("sft-*"))
    assert kept == ["sft-2", "sft-4", "sft-5", "sft-6"]
    early = run(tmp_path / "early", *SHORT, "rl.steps=0", f"start={whole}/checkpoints/sft-2")
    assert_same_weights(early / "final", whole / "checkpoints" / "sft-2")
    assert start_model(str(early)) == str(early / "final")


@pytest.mark.slow
def test_a_start_of_another_vocabulary_is_refused(whole: Path, tmp_path: Path) -> None:
    other = "data.environment_options.subset={kinds: [element], attributes: [symbol, group], max_entities: 30}"
    with pytest.raises(ConfigError, match=r"another vocabulary: \d+ tokens .* are not in it, such as '"):
        run(tmp_path / "run", *SHORT, f"start={whole}", other)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_tags_of_own_tools_are_part_of_the_vocabulary(tmp_path: Path) -> None:
    config, data, without = prepared(tmp_path, "start=somewhere")
    tools: dict[str, Tool] = {"calculate": Told()}
    refuse_other_vocabulary(config, data, without, {})
    with pytest.raises(ConfigError, match=r"another vocabulary: \d+ tokens .* such as '</?calculate>'"):
        refuse_other_vocabulary(config, data, without, tools)
    refuse_other_vocabulary(config, data, tokenizer_of_toy(config, data, tools), tools)


@pytest.mark.slow
def test_a_start_under_way_is_refused_by_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_after(monkeypatch, mempo.train.sft, 3)
    with pytest.raises(Killed):
        run(tmp_path / "half", *SHORT)
    said = f"start={re.escape(str(tmp_path / 'half' / 'checkpoints' / 'sft-3'))}"
    with pytest.raises(ConfigError, match=rf"at step 3 of 6; .*{said}"):
        start_model(str(tmp_path / "half"))


def test_a_model_folder_is_itself(tmp_path: Path) -> None:
    save_policy(tiny_llama(make_tokenizer()), tmp_path / "model")
    assert start_model(str(tmp_path / "model")) == str(tmp_path / "model")
    assert start_model("someone/model") == "someone/model"


def test_a_start_beside_a_server_or_a_cluster_is_refused() -> None:
    check(resolve("quickstart", ["start=somewhere"]).config)
    with pytest.raises(ConfigError, match="both server and start"):
        resolve("quickstart", ["start=x", "toy=null", "server.url=http://127.0.0.1:1"])
    for key, instead in (("start=x", "model.path"), ("rl.seed=1", "seed")):
        with pytest.raises(ConfigError, match=rf"belongs to training in this process; .* set {instead}"):
            resolve("cluster-qwen2.5-7b", [key])


# --- the check of the start ----------------------------------------------------------------------------------------

ASKED = Question("q", "capitals of France and Italy?", (("Paris",), ("Rome",)))


def noted(*notes: str) -> Trajectory:
    texts = [SEARCH, *(NOTED_ANSWER.replace("<mem>n", f"<mem>{note}") for note in notes)]
    texts[1:-1] = [text.replace("answer", "search") for text in texts[1:-1]]
    return asyncio.run(rollout(agent(), Scripted(TOKENIZER, texts), Job(ASKED, 0, ("x",)), DecodingSettings()))


def test_the_start_check_counts_answers_in_last_notes_and_silent_groups() -> None:
    rollouts = [
        noted("Paris and Rome"),
        noted("Paris and Rome", "Rome"),  # the last note alone counts
        noted("Parisian"),  # a whole word, or it is none
        noted("rome, paris"),
        asyncio.run(
            rollout(agent(max_turns=1), Scripted(TOKENIZER, [SEARCH]), Job(ASKED, 0, ("x",)), DecodingSettings())
        ),
        noted("Paris"),
    ]
    scores = [1.0, 0.0, 0.0, 0.0, 0.0, None]
    found = start_check([ASKED] * 6, rollouts, scores, 2, TOKENIZER)
    assert (found.questions, found.rollouts) == (3, 6)
    assert found.gold_noted == pytest.approx((2 + 1 + 0 + 2 + 0 + 1) / 12)
    assert found.complete_notes == pytest.approx(2 / 6)
    assert found.score == pytest.approx(0.2)
    assert found.silent_groups == pytest.approx(1 / 2)  # the last group has one score: not known
    assert "hold 50% of the gold answers, 33% of them all; 50% of the groups are silent" in found.report
