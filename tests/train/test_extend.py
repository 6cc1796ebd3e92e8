"""A run folder goes on where it is found, can be made longer, and is refused when that would not be the same run."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import mempo.run.train
from mempo.config import resolve
from mempo.config.extending import remarks
from mempo.errors import UserError
from mempo.run.train import train
from mempo.storage.run_folder import RunFolder
from tests.train.small import SMALL, assert_same_weights, metrics, quiet, run

pytestmark = pytest.mark.slow

TINY = (
    *("sft.steps=2", "sft.save_every=2", "sft.optim.schedule=constant", "rl.steps=2", "rl.save_every=1"),
    *("rl.optim.schedule=constant", "evaluate.questions=1", "rl.probe_check_questions=0"),
)


def again(folder: Path, *overrides: str, resume: bool = True) -> str:
    """`mempo train FOLDER [--resume] …`; what it says."""
    said = StringIO()
    train(resolve(str(folder), overrides), resume, Console(file=said, width=400))
    return said.getvalue()


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of two steps, and one of KL."""
    return run(tmp_path_factory.mktemp("runs") / "short", *TINY, "rl.loss={kl: k3, kl_coef: 0.03}")


@pytest.fixture
def copied(short: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short, tmp_path / "copied"))


def newest(folder: Path) -> str:
    return RunFolder(folder).checkpoints()[-1].path.name


def test_a_longer_run_is_the_one_that_would_have_been_so_long_from_the_start(copied: Path, tmp_path: Path) -> None:
    again(copied, "rl.steps=4")
    whole = run(tmp_path / "whole", *TINY, "rl.loss={kl: k3, kl_coef: 0.03}", "rl.steps=4")
    assert_same_weights(copied / "final", whole / "final")
    assert metrics(copied, "rl") == metrics(whole, "rl")
    assert (copied / "evaluation-final.json").read_bytes() == (whole / "evaluation-final.json").read_bytes()
    assert RunFolder(copied).config()["rl"]["steps"] == 4


def test_a_copy_goes_on_by_itself_and_the_original_stays(copied: Path, short: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in short.rglob("*")}
    again(copied, "rl.steps=3")
    assert newest(copied) == "rl-3"
    assert {path: path.stat().st_mtime_ns for path in short.rglob("*")} == before


def test_a_run_that_was_moved_goes_on(copied: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(copied, tmp_path / "moved"))
    again(moved, "rl.steps=3", "rl.save_every=9", "model.threads=1")
    assert newest(moved) == "rl-3"
    assert not copied.exists()


def test_only_sft_may_be_followed_by_rl_of_any_kind(tmp_path: Path) -> None:
    start = run(tmp_path / "start", *TINY, "rl.steps=0")
    again(start, "rl.steps=1", "rl.optim.lr=1e-4")
    whole = run(tmp_path / "whole", *TINY, "rl.steps=1", "rl.optim.lr=1e-4")
    assert_same_weights(start / "final", whole / "final")


def test_sft_too_can_be_longer_until_rl_begins(tmp_path: Path) -> None:
    start = run(tmp_path / "start", *TINY, "rl.steps=0")
    again(start, "sft.steps=3")
    whole = run(tmp_path / "whole", *TINY, "rl.steps=0", "sft.steps=3")
    assert_same_weights(start / "final", whole / "final")


def test_a_start_made_longer_does_not_keep_the_evaluation_of_the_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between SFT and its evaluation, it would stand beside a policy that it is not of."""
    start = run(tmp_path / "start", *TINY, "rl.steps=0")
    assert (start / "evaluation-start.json").is_file()

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mempo.run.train, "train_sft", killed)
        with pytest.raises(KeyboardInterrupt):
            again(start, "sft.steps=3")
    assert not (start / "evaluation-start.json").exists()
    again(start)
    whole = run(tmp_path / "whole", *TINY, "rl.steps=0", "sft.steps=3")
    name = "evaluation-start.json"
    assert (start / name).read_bytes() == (whole / name).read_bytes()


def test_a_schedule_that_ends_elsewhere_now_is_said(tmp_path: Path) -> None:
    start = run(tmp_path / "start", *TINY, "rl.optim.schedule=linear", "rl.steps=1")
    said = again(start, "rl.steps=2")
    assert "rl.steps 1 → 2: the linear learning rate now ends at step 2" in said
    assert newest(start) == "rl-2"


def test_where_forgetting_begins_now_is_said() -> None:
    how = [*SMALL, "sft.lossy_steps=2", "sft.optim.schedule=constant"]
    old, longer = resolve("quickstart", how).plain(), resolve("quickstart", [*how, "sft.steps=9"]).config
    (said,) = remarks(old, longer, "sft", 3)
    assert said.startswith(
        "sft.steps 6 → 9: the 2 steps whose notes lose facts (sft.lossy_steps) now begin after step 7"
    )
    assert not remarks(old, longer, "sft", 0)


def test_more_questions_at_the_end_leave_the_start_as_it_was(copied: Path) -> None:
    before = (copied / "evaluation-start.json").read_bytes()
    said = again(copied, "evaluate.questions=2")
    assert "evaluate.questions 1 → 2: the start keeps its evaluation on 1" in said
    assert (copied / "evaluation-start.json").read_bytes() == before
    final = json.loads((copied / "evaluation-final.json").read_text())
    assert {k: v["questions"] for k, v in final.items()} == {"2": 2.0, "3": 2.0}
    with pytest.raises(UserError, match="nothing is left to do"):
        again(copied)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.optim.lr=0.1", r"rl\.optim\.lr: 0\.0005 → 0\.1"),
        ("sft.steps=4", r"sft\.steps: 2 → 4"),
        ("seed=1", "seed: 0 → 1"),
        ("evaluate.temperature=0.5", r"evaluate\.temperature"),
        ("rl.steps=1", "2 steps are done; set rl.steps to 2 or more"),
        ("rl.save_every=7", "nothing is left to do.*rl.steps=4"),
    ],
)
def test_what_would_be_another_run_is_refused(short: Path, override: str, said: str) -> None:
    before = (short / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=said):
        again(short, override)
    assert (short / "config.yaml").read_bytes() == before


def test_a_resume_on_other_data_leaves_the_configuration_as_it_was(copied: Path) -> None:
    """The keys may change, the questions may not: nothing is written before that is known."""
    marks = json.loads((copied / "data.json").read_text())
    (copied / "data.json").write_text(json.dumps({**marks, "training questions": "others"}))
    before = (copied / "config.yaml").read_bytes()
    with pytest.raises(UserError, match="training questions changed since the run"):
        again(copied, "rl.steps=4")
    assert (copied / "config.yaml").read_bytes() == before


def test_what_rl_started_from_cannot_be_made_up(copied: Path) -> None:
    shutil.rmtree(copied / "start")
    with pytest.raises(UserError, match=r"start, the policy that RL started from, is gone"):
        again(copied, "rl.steps=3")
    assert not (copied / "start").exists()


def test_a_complete_run_without_checkpoints_is_not_begun_anew(copied: Path) -> None:
    shutil.rmtree(copied / "checkpoints")
    before = (copied / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"its last checkpoint is gone"):
        again(copied, "rl.steps=2")
    with pytest.raises(UserError, match=r"its last checkpoint is gone"):
        again(copied, "rl.steps=3")
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_a_start_that_failed_is_begun_again_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise UserError("no memory left")

    with monkeypatch.context() as patch:
        patch.setattr(mempo.run.train, "train_sft", fails)
        with pytest.raises(UserError, match="no memory left"):
            run(tmp_path / "run", *TINY)
    assert (tmp_path / "run" / "config.yaml").is_file()
    run(tmp_path / "run", *TINY, "sft.steps=1", "rl.steps=0")
    assert newest(tmp_path / "run") == "sft-1"


def test_an_evaluation_of_the_start_that_is_gone_is_not_made_of_the_end(copied: Path) -> None:
    (copied / "evaluation-start.json").unlink()
    again(copied, "rl.steps=3")
    assert not (copied / "evaluation-start.json").exists()
    train(resolve(str(copied), ("rl.steps=4",)), True, quiet())
