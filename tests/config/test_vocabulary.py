"""The names that settings allow are those that their stages know."""

from __future__ import annotations

from typing import get_args

from mempo.config.retrieval import Metric
from mempo.config.rewards import Normalization
from mempo.config.rollout import CONTEXTS, is_known_context, window_of
from mempo.retrieval.faiss import METRICS
from mempo.rewards.answer_match import NORMALIZERS
from mempo.rollout.context import make_context
from mempo.rollout.render import Renderer
from tests.tiny import make_tokenizer


def test_every_name_is_known_on_both_sides() -> None:
    assert set(get_args(Normalization)) == set(NORMALIZERS)
    assert set(get_args(Metric)) == set(METRICS)


def test_every_context_can_be_made() -> None:
    renderer = Renderer(make_tokenizer())
    for name in (*CONTEXTS[:-1], "window(3)"):
        assert is_known_context(name)
        assert make_context(name, renderer).name == name
    assert (window_of("window(3)"), window_of("window(0)"), window_of("window")) == (3, None, None)
