"""`mempo diagnose` on run folders: what it writes, and what is one clear line instead of a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mempo.config import resolve
from mempo.diagnose.run import DiagnoseOptions, diagnose, saved_steps
from mempo.engine.model import save_policy
from mempo.errors import UserError
from mempo.rollout.protocol import TurnGrammar
from mempo.storage.files import append_line
from mempo.storage.rollouts import save_rollouts, tokens_path
from tests.cli.test_cli import Cli, assert_one_line, cli  # noqa: F401 - a fixture
from tests.diagnose.test_control import saying
from tests.storage.test_rollouts import CASES, TOKENIZER, make
from tests.tiny import tiny_llama
from tests.train.small import run as train_small


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and one test sees to it."""
    if request.node.name not in ("test_what_it_writes", "test_a_whole_small_run"):
        monkeypatch.setattr("mempo.diagnose.run.save_figures", lambda report, folder: [])


NO_MODEL = DiagnoseOptions(use_model=False)


def scored(turn: int, r: float, **more: Any) -> dict[str, Any]:
    p = {"p_mem": r, "p_baseline": None, "p_mem_raw": r, "p_baseline_raw": None}
    return {"turn": turn, "r": r, "gold_tokens": 0, "kept_mem": 0, "kept_baseline": None, "reason": None, **p, **more}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_policy(tiny_llama(TOKENIZER), folder)
    return folder


@pytest.fixture
def run(tmp_path: Path, model: Path) -> Path:
    """A run of two saved steps, two questions, two rollouts each; the older file has no advantages."""
    folder = tmp_path / "run $x^{ [red]"
    folder.mkdir()
    config = resolve(None, ["rl.rollouts_per_question=2", "memory.min_pool=2"]).plain()
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copytree(model, folder / "final")
    trajectories = [saying(f"Paris {n}", f"Paris {n} more", question="ab"[n // 2]) for n in range(4)]
    for step in (1, 2):
        facts = []
        for n in range(4):
            notes: list[dict[str, Any]] = [scored(1, 0.1 * n), scored(2, 0.05 * n)]
            fact: dict[str, Any] = {"question": f"capital {n // 2}?", "gold": ["Paris"], "score": float(n % 2)}
            fact |= {"is_error": False, "format_ok": True, "em": 1.0, "notes": notes}
            if step == 2:
                fact["notes"] = [{**note, "advantage": 0.5} for note in notes]
                fact["advantage"] = 0.25
            facts.append(fact)
        save_rollouts(folder / "rollouts" / f"step-{step}.jsonl", trajectories, facts)
        append_line(folder / "metrics.jsonl", {"stage": "rl", "step": step, "score": 0.5, "turns": 4.0})
    return folder


@pytest.mark.slow
def test_what_it_writes(run: Path) -> None:
    report = diagnose(run)
    out = run / "diagnosis"
    assert json.loads((out / "diagnosis.json").read_text("utf-8")) == report
    assert (report["rollouts"]["file"], report["rollouts"]["notes"]) == ("step-2", 8)
    assert report["rollouts"]["advantages"] == "saved"
    assert report["advantages"]["outcome_abs"] == 0.25
    assert report["control"]["notes"] == 8
    assert report["control"]["other"] is None  # every other note holds the answer
    assert [row["step"] for row in report["note_curves"]] == [1, 2]
    page = (out / "diagnosis.md").read_text("utf-8")
    for figure in report["figures"]:
        assert (out / figure["png"]).stat().st_size > 1000
        assert (out / figure["svg"]).is_file()
        assert figure["caption"] in page
    assert any("policy after step 2" in warning for warning in report["warnings"])


def test_an_older_step_is_computed_again_and_says_so(run: Path, tmp_path: Path) -> None:
    report = diagnose(run, DiagnoseOptions(step="1", steps=1, notes=3, out=tmp_path / "out"))
    assert report["rollouts"]["advantages"] == "recomputed"
    assert report["advantages"]["outcome_abs"] == pytest.approx(0.7071, abs=1e-4)
    assert any("computed again" in warning for warning in report["warnings"])
    assert any("another policy (rl-2)" in warning and "step 1" in warning for warning in report["warnings"])
    assert report["control"]["notes"] == 3
    assert [row["step"] for row in report["note_curves"]] == [2]
    assert not (run / "diagnosis").exists()
    again = diagnose(run, DiagnoseOptions(step="1", steps=None, use_model=False))
    assert again["control"] is None
    assert any("not asked" in warning for warning in again["warnings"])


def test_advantages_of_the_users_own_are_not_computed_again(run: Path) -> None:
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text("utf-8"))
    config["advantages"]["function"] = "examples.own_advantages_by_question:leave_one_out"
    config["memory"] = {"preset": "recommended"}
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    report = diagnose(run, DiagnoseOptions(step="1", use_model=False))
    assert report["advantages"]["memory_share"] is None
    assert any("advantages.function" in warning for warning in report["warnings"])


def test_an_evaluation_can_be_diagnosed(run: Path) -> None:
    for kind in ("jsonl", "tokens"):
        (run / "rollouts" / f"step-1.{kind}").rename(run / "rollouts" / f"evaluation-final.{kind}")
    report = diagnose(run, DiagnoseOptions(step="evaluation-final", use_model=False))
    assert (report["rollouts"]["file"], report["rollouts"]["advantages"]) == ("evaluation-final", "none")
    assert report["rollouts"]["groups"] == 4  # evaluate.rollouts_per_question is 1
    assert any("evaluation" in warning for warning in report["warnings"])
    shutil.rmtree(run / "final")
    with pytest.raises(UserError, match="no checkpoint"):
        diagnose(run, NO_MODEL)


def test_errors_are_left_out_and_said(run: Path) -> None:
    rollouts = [saying("Paris"), CASES["a failing tool"]]
    save_rollouts(run / "rollouts" / "step-3.jsonl", rollouts, [{"is_error": False}, {"is_error": True}])
    report = diagnose(run, NO_MODEL)
    assert report["rollouts"]["rollouts"] == 1
    assert report["rollouts"]["errors_left_out"] == 1
    assert any("1 rollout that failed" in warning for warning in report["warnings"])
    save_rollouts(run / "rollouts" / "step-4.jsonl", rollouts[1:], [{"is_error": True}])
    told = r"no rollout of step-4 counts \(1 rollout failed for infrastructure reasons, 0 have no score\)"
    with pytest.raises(UserError, match=told):
        diagnose(run, NO_MODEL)


def test_a_run_without_the_signal_is_not_told_that_notes_earn_too_little(run: Path) -> None:
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text("utf-8"))
    config["rl"]["memory_signal"] = False
    config["memory"] = {"preset": "recommended"}
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    report = diagnose(run, NO_MODEL)
    assert not {"memory_share", "memory_only"} & {check["key"] for check in report["checks"]}
    assert any("rl.memory_signal is false" in warning for warning in report["warnings"])


def test_damaged_metrics_are_one_sentence(run: Path) -> None:
    (run / "metrics.jsonl").write_text("{broken\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
        diagnose(run, NO_MODEL)


def test_nan_in_a_file_is_not_known(run: Path) -> None:
    file = run / "rollouts" / "step-2.jsonl"
    file.write_text(file.read_text("utf-8").replace('"score": 1.0', '"score": NaN'), encoding="utf-8")
    report = diagnose(run, NO_MODEL)
    assert report["score"] == 0.0
    assert "NaN" not in (run / "diagnosis" / "diagnosis.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--step", "7"], ["saved steps: 1, 2", "last"]),
        (["--step", "evaluation-final"], ["no such rollouts"]),
        (["--step", "../../etc"], ["no such rollouts"]),
        (["--steps", "0"], ["--steps '0'"]),
        (["--steps", "some"], ["--steps 'some'"]),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    parts: list[str],
    cli: Cli,  # noqa: F811
    run: Path,
) -> None:
    assert_one_line(cli("diagnose", run, *arguments), *parts)
    assert not (run / "diagnosis").exists()


def test_folders_that_cannot_be_diagnosed(cli: Cli, run: Path, tmp_path: Path) -> None:  # noqa: F811
    assert_one_line(cli("diagnose", tmp_path / "nowhere"), "not a run folder")
    for file in (run / "rollouts").glob("step-2.*"):
        file.unlink()
    tokens_path(run / "rollouts" / "step-1.jsonl").write_bytes(b"12345678")
    assert_one_line(cli("diagnose", run, "--no-model"), "cannot be read", "choose another --step")
    tokens_path(run / "rollouts" / "step-1.jsonl").unlink()
    assert_one_line(cli("diagnose", run, "--no-model"), "cannot be read", "step-1.tokens")
    (run / "rollouts" / "step-1.jsonl").unlink()
    assert_one_line(cli("diagnose", run), "rl.log_rollouts_every 0")
    plain = ("<think>t</think><search>a</search>",) * 2
    save_rollouts(run / "rollouts" / "evaluation-final.jsonl", [_without_notes(plain)], [{}])
    assert_one_line(cli("diagnose", run), "--step evaluation-final looks at the evaluation")
    assert_one_line(cli("diagnose", run, "--step", "evaluation-final"), "no notes to diagnose")


def test_the_screen_and_the_json(cli: Cli, run: Path) -> None:  # noqa: F811
    said = cli("diagnose", run, "--no-model")
    assert said.code == 0, said.err
    assert "score, start → end" in said.out
    assert "run $x^{ [red], step-2: 4 rollouts of 2 questions, 8 notes" in said.out
    said = cli("diagnose", run, "--no-model", "--json")
    assert json.loads(said.out)["rollouts"]["notes"] == 8


def test_saved_steps_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    for name in ("step-10.jsonl", "step-9.jsonl", "step-9.tokens", "step-x.jsonl", "evaluation-start.jsonl"):
        (tmp_path / "rollouts" / name).touch()
    assert saved_steps(tmp_path) == [9, 10]
    assert saved_steps(tmp_path / "rollouts") == []


@pytest.mark.slow
def test_a_whole_small_run(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    # Enough SFT and rollouts for some notes to be closed.
    more = ("sft.steps=60", "toy.warmup_steps=0", "rl.steps=2", "rl.rollouts_per_question=16")
    folder = train_small(tmp_path / "run", *more, "limits.max_turn_tokens=48")
    said = cli("diagnose", folder, "--notes", "8", "--steps", "all")
    assert said.code == 0, said.err
    report = json.loads((folder / "diagnosis" / "diagnosis.json").read_text("utf-8"))
    assert report["rollouts"]["groups"] == 2
    assert report["rollouts"]["advantages"] == "saved"
    assert report["curves"]["step"] == [1, 2]
    assert len(report["note_curves"]) == 2
    assert report["rollouts"]["notes"] > 4
    last = json.loads((folder / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    assert report["advantages"]["memory_share"] == pytest.approx(last["advantages/memory_share"])
    assert report["advantages"]["memory_only"] == pytest.approx(last["advantages/memory_only_groups"])


def _without_notes(texts: tuple[str, ...]) -> Any:
    return make("full", texts, grammar=TurnGrammar(notes="optional"), max_turns=2)
