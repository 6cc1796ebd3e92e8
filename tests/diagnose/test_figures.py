"""Figures are drawn: with ink, captions in one sentence, and outside text that cannot break them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import image

from mempo.diagnose.control import ControlNote
from mempo.diagnose.figures import FIGURES, save_figures
from tests.diagnose.build import batch, published, report, rollout, turn
from tests.diagnose.test_report import HOSTILE


def full_report(run: str = "run") -> dict[str, Any]:
    """Something to show in every figure."""
    made = published()
    names = ("score", "em", "format_ok", "turns", "note_tokens", "memory/p_mem_raw", "memory/r", "update/entropy")
    metrics = [{"stage": "rl", "step": n, **dict.fromkeys(names, 0.1 * n)} for n in range(1, 6)]
    control = ([ControlNote("q", t, 0.5, 0.1, 0.1, 0.4, 5, 5) for t in (2, 3, 4)], 0)
    return report(made, run=run, metrics=metrics, control=control, history=[(1, made), (2, made)])


def test_every_figure_is_drawn_and_none_is_blank_whatever_the_run_is_called(tmp_path: Path) -> None:
    made = save_figures(full_report(HOSTILE), tmp_path)
    assert [figure["name"] for figure in made] == list(FIGURES)
    for figure in made:
        pixels = image.imread(tmp_path / figure["png"])
        assert pixels.shape[0] > 400
        assert pixels[: int(0.8 * len(pixels))].var() > 1e-3, figure["name"]  # the axes
        assert pixels[int(0.85 * len(pixels)) :].var() > 1e-4, figure["name"]  # the caption
        root = ElementTree.fromstring((tmp_path / figure["svg"]).read_text("utf-8"))
        assert root.tag.endswith("svg")


def test_captions_are_one_sentence_and_fit_under_the_figure() -> None:
    for drawn in FIGURES.values():
        title, caption = drawn.title, drawn.caption
        assert caption.endswith(".")
        assert ". " not in caption, caption
        assert 80 < len(caption) <= 3 * 150 - 60, (title, len(caption))


def test_the_same_report_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo.diagnose.figures.FIGURES", {"by_turn": FIGURES["by_turn"]})
    for folder in ("a", "b"):
        save_figures(full_report(), tmp_path / folder)
    for name in ("by_turn.png", "by_turn.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_has_nothing_to_show_is_not_drawn(tmp_path: Path) -> None:
    assert save_figures(report(batch([rollout(turn(), turn("n"))], advantages="none")), tmp_path) == []
