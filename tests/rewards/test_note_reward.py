"""The arithmetic of one note, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo.config.rewards import MemorySettings
from mempo.rewards import NoteScore
from mempo.rewards.note_reward import Evidence, note_reward, threshold_bar

MEM = [-0.2, -3.5, -0.1, -2.8]  # log-probs of four gold tokens given the note
FULL = [-0.3, -0.4, -2.0, -1.5]  # and given the history


def note(mem: list[float], full: list[float] | None = None, **settings: Any) -> NoteScore:
    settings.setdefault("baseline", "none" if full is None else "full")
    chosen = MemorySettings(**settings)
    evidence = Evidence(1, np.array(mem), None if full is None else np.array(full))
    return note_reward(evidence, chosen, threshold_bar([evidence], chosen))


@pytest.mark.parametrize(
    ("threshold", "mem_kept", "full_kept"),
    [
        ("none", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("independent", [0, 2], [0, 1]),
        ("both", [0], [0]),
        ("either", [0, 1, 2], [0, 1, 2]),
    ],
)
def test_thresholds(threshold: str, mem_kept: list[int], full_kept: list[int]) -> None:
    found = note(MEM, FULL, threshold=threshold)
    p_mem = math.exp(sum(MEM[k] for k in mem_kept) / len(mem_kept))
    p_baseline = math.exp(sum(FULL[k] for k in full_kept) / len(full_kept))
    assert (found.p_mem, found.p_baseline, found.r) == (
        pytest.approx(p_mem),
        pytest.approx(p_baseline),
        pytest.approx(p_mem - p_baseline),
    )
    assert (found.gold_tokens, found.kept_mem, found.kept_baseline) == (4, len(mem_kept), len(full_kept))
    # Whatever the filter shows, the honest numbers stand beside it.
    assert found.p_mem_raw == pytest.approx(math.exp(-6.6 / 4))
    assert found.p_baseline_raw == pytest.approx(math.exp(-4.2 / 4))


def test_threshold_of_the_original_in_numbers() -> None:
    found = note(MEM, threshold="independent")
    assert found.p_mem == found.r == pytest.approx(math.exp(-0.15))
    assert (found.kept_mem, found.p_baseline, found.kept_baseline) == (2, None, None)


def test_the_threshold_is_strict() -> None:
    exactly = math.log(0.5)
    assert note([exactly, -0.1], threshold="independent").kept_mem == 1
    assert note([exactly, -0.1], threshold="independent", threshold_value=0.49).kept_mem == 2
    assert note([exactly], threshold="independent").reason == "empty_choice"


CLUELESS, SURE = [-3.0, -4.0], [-0.1, -0.1]


@pytest.mark.parametrize(
    ("threshold", "mem", "full"),
    [
        ("independent", CLUELESS, CLUELESS),
        ("independent", CLUELESS, SURE),
        ("independent", SURE, CLUELESS),
        ("both", CLUELESS, SURE),
        ("both", SURE, CLUELESS),
        ("both", [-0.1, -3.0], [-3.0, -0.1]),
        ("either", CLUELESS, CLUELESS),
    ],
)
def test_an_empty_choice_is_no_signal(threshold: str, mem: list[float], full: list[float]) -> None:
    found = note(mem, full, threshold=threshold)
    assert (found.r, found.reason) == (None, "empty_choice")
    assert found.p_mem_raw == pytest.approx(math.exp(sum(mem) / 2))


def test_an_empty_choice_on_one_side_keeps_what_is_known_of_the_other() -> None:
    found = note(CLUELESS, SURE, threshold="independent")
    assert (found.p_mem, found.p_baseline, found.kept_mem, found.kept_baseline) == (
        None,
        pytest.approx(math.exp(-0.1)),
        0,
        2,
    )
    assert note(CLUELESS, threshold="independent").r is None


def test_the_empty_rule_of_the_original_pays_a_clueless_note() -> None:
    found = note(CLUELESS, SURE, threshold="independent", empty_is_one=True)
    assert (found.p_mem, found.r, found.reason) == (1.0, pytest.approx(1 - math.exp(-0.1)), None)
    assert note(CLUELESS, CLUELESS, threshold="independent", empty_is_one=True).r == 0.0
    assert note(SURE, CLUELESS, threshold="independent", empty_is_one=True).p_baseline == 1.0


def test_log_ratio() -> None:
    p_mem, p_baseline = math.exp(-6.6 / 4), math.exp(-4.2 / 4)
    found = note(MEM, FULL, reward="log_ratio", ratio_eps=0.01)
    assert found.r == pytest.approx(math.log(p_mem + 0.01) - math.log(p_baseline + 0.01))
    assert note(MEM, reward="log_ratio").r == pytest.approx(math.log(p_mem + 1e-4))
    # eps bounds it, however hopeless the note.
    assert note([-500.0], reward="log_ratio").r == pytest.approx(math.log(1e-4))


LOGPROBS = st.lists(st.floats(-8, 0), min_size=1, max_size=8)


@given(LOGPROBS, LOGPROBS, st.sampled_from(["none", "independent", "both", "either"]), st.floats(0.1, 0.9))
def test_what_holds_for_every_note(mem: list[float], full: list[float], threshold: str, value: float) -> None:
    n = min(len(mem), len(full))
    changes = {} if threshold == "none" else {"threshold_value": value}
    found = note(mem[:n], full[:n], threshold=threshold, **changes)
    swapped = note(full[:n], mem[:n], threshold=threshold, **changes)
    assert (found.r is None) == (found.reason is not None) == (swapped.r is None)
    if found.r is not None and swapped.r is not None:
        assert -1 <= found.r <= 1
        assert found.r == pytest.approx(-swapped.r)
    if threshold == "independent" and found.r is not None:
        assert found.p_mem is not None
        assert found.p_mem > value * (1 - 1e-9)  # the filter hides every smaller value
