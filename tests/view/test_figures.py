"""Curves for papers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from mempo.view.figures import save_curves

NAMES = ["does-it-learn.png", "does-it-learn.svg", "is-training-healthy.png", "is-training-healthy.svg"]


def a_run(folder: Path, scale: float) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    run = RunFolder(folder)
    for step in (1, 2, 3):
        run.log("rl", step, {"score": scale * step, "format_ok": 0.95, "update/entropy": 1 / step, "memory/r": None})
    return folder


def test_each_question_is_a_figure_with_the_curves_of_all_runs(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "a$x_1", 0.1), a_run(tmp_path / "b", 0.2)]
    assert save_curves(runs, tmp_path / "out") == NAMES
    assert all((tmp_path / "out" / name).stat().st_size > 1000 for name in NAMES)
    drawn = (tmp_path / "out" / "does-it-learn.svg").read_text("utf-8")
    texts = re.findall(r"<!-- (.*?) -->", drawn)
    assert {"score", "format kept", "a$x_1", "b"} <= set(texts)
    assert "memory reward r" not in texts


def test_the_same_figures_are_made_again_and_others_files_stay(tmp_path: Path) -> None:
    run = a_run(tmp_path / "a", 0.1)
    save_curves([run], tmp_path / "out")
    first = (tmp_path / "out" / NAMES[1]).read_bytes()
    save_curves([run], tmp_path / "out")
    assert (tmp_path / "out" / NAMES[1]).read_bytes() == first
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / NAMES[0]).write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=NAMES[0]):
        save_curves([run], tmp_path / "mine")
    assert (tmp_path / "mine" / NAMES[0]).read_text("utf-8") == "mine"


def test_a_run_without_metrics_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    with pytest.raises(UserError, match="no metrics to draw"):
        save_curves([tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
