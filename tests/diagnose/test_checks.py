"""Verdicts: every check can alarm, stays calm in its range, and says what to change."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mempo.config import Config, resolve
from mempo.config.base import leaves
from mempo.diagnose.checks import CHECKS, Check
from mempo.diagnose.verdicts import LOOK, OK, UNKNOWN, advised, at, number, verdicts
from tests.diagnose.build import batch, report, rollout, turn

HEALTHY: dict[str, float] = {
    "trend.score.gain": 0.3,
    "format_ok": 0.95,
    "trend.turns.ratio": 1.0,
    "trend.note_tokens.ratio": 1.2,
    "control.beats_other": 0.95,
    "control.other_gain": 0.2,
    "control.empty_gain": 0.2,
    "control.history_gain": 0.0,
    "gold_tokens.mem": 1.0,
    "gold_tokens.baseline": 1.0,
    "gold_tokens.silent_share": 0.0,
    "drift.given": 0.0,
    "advantages.memory_share": 0.3,
    "advantages.memory_only": 0.2,
    "correlation.completeness": 0.5,
    "correlation.complete_punished": 0.1,
    "correlation.alike_share": 0.3,
    "correlation.outcome": 0.3,
    "correlation.length_alike": 0.0,
    "notes.unheld": 0.02,
    "notes.gold_kept": 0.9,
    "notes.gold_lost": 0.02,
    "notes.copies": 0.1,
    "notes.templates": 0.0,
    "variety.distinct_notes": 0.4,
    "variety.distinct_queries": 0.4,
    "variety.shared_queries": 0.0,
    "variety.compression_across": 1.0,
}


def healthy(**changes: Any) -> dict[str, Any]:
    """A report with healthy values; `changes` by dotted path, `.` written as `__`."""
    made: dict[str, Any] = report(batch([rollout(turn(), turn("n", r=0.1))]))
    made["control"] = {}
    made["settings"] = {**made["settings"], "threshold": "independent"}
    values: dict[str, Any] = {**HEALTHY, **{key.replace("__", "."): value for key, value in changes.items()}}
    for check in CHECKS:
        if check.count:
            values.setdefault(check.count, 100)
    for path, value in values.items():
        *parents, last = path.split(".")
        inner = made
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return made


def verdict_of(key: str, made: dict[str, Any]) -> str:
    return next(v["verdict"] for v in verdicts(made, {}) if v["key"] == key)


def test_a_healthy_run_is_calm() -> None:
    assert [(v["key"], v["verdict"]) for v in verdicts(healthy(), {})] == [(check.key, OK) for check in CHECKS]
    assert all(v["change"] is None for v in verdicts(healthy(), {}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.key)
def test_a_value_beyond_each_bound_is_looked_at(check: Check) -> None:
    assert check.low is not None or check.high is not None
    calm = {"variety__distinct_notes": 0.0} if check.key == "distinct_queries" else {}
    for bound, step, advice in ((check.low, -1e-6, check.below), (check.high, 1e-6, check.above)):
        assert (bound is None) == (advice is None)
        if bound is not None and advice is not None:
            path = check.path.replace(".", "__")
            at_bound = healthy(**{**calm, path: bound})
            beyond = healthy(**{**calm, path: bound + step})
            assert verdict_of(check.key, at_bound) == OK
            assert verdict_of(check.key, beyond) == LOOK
            assert next(v["change"] for v in verdicts(beyond, {}) if v["key"] == check.key) == advised(advice, {})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.key)
def test_what_is_not_known_or_rests_on_little_is_not_judged(check: Check) -> None:
    path = check.path.replace(".", "__")
    assert verdict_of(check.key, healthy(**{path: None})) == UNKNOWN
    if check.count:
        assert verdict_of(check.key, healthy(**{check.count.replace(".", "__"): 7})) == UNKNOWN


def test_what_excuses_a_value() -> None:
    assert verdict_of("score", healthy(trend__score__gain=0.0, trend__score__end=0.95)) == OK
    assert verdict_of("distinct_notes", healthy(variety__distinct_notes=0.0, trend__score__end=0.95)) == OK
    assert verdict_of("distinct_queries", healthy(variety__distinct_queries=0.0)) == OK


def test_the_threshold_rows_stand_where_there_is_a_threshold() -> None:
    made = healthy()
    made["settings"]["threshold"] = "none"
    assert not {"gold_kept_mem", "gold_kept_baseline"} & {v["key"] for v in verdicts(made, {})}


ADVICE = [advice for check in CHECKS for advice in (check.below, check.above) if advice]
REMEDIES = sorted({remedy for advice in ADVICE for remedy in advice[1:]})


def test_every_setting_that_an_advice_names_exists() -> None:
    known = set(_keys(Config().model_dump(mode="json"))) | {"sft.expert.lossless_share"}
    for remedy in REMEDIES:
        named = re.findall(r"\b((?:memory|rl|sft|data|reward|limits)\.[a-z_.]*[a-z_])", remedy)
        assert set(named) <= known, remedy


@pytest.mark.parametrize("remedy", [remedy for remedy in REMEDIES if "=" in remedy])
def test_nothing_is_advised_that_is_set(remedy: str) -> None:
    assignments = re.findall(r"[a-z_.]+=[a-z0-9_.]*[a-z0-9_]", remedy)
    key = assignments[0].split("=")[0]
    as_set = dict(leaves(resolve(None, ["memory.baseline=full", *assignments]).plain()))  # it can be set as it stands
    advice = ("why", remedy, "lower memory.weight")
    assert advised(advice, as_set) == "why: lower memory.weight."
    assert advised(advice, {key: "another"}) == f"why: {remedy}; lower memory.weight."
    assert advised(("why", remedy), as_set) == "why; everything that usually helps is set already."


def test_what_is_left_is_offered() -> None:
    made = healthy(drift__given=0.5)
    (drift,) = [
        v for v in verdicts(made, {"memory.pool": "turn", "memory.normalize_std": False}) if v["key"] == "drift"
    ]
    assert drift["change"] is not None
    assert "memory.pool" not in drift["change"]
    assert "normalize_std" not in drift["change"]
    assert "memory.gate=when_group_varies" in drift["change"]
    assert drift["change"].endswith("lower memory.weight.")


def test_paths_of_all_checks_are_in_a_report() -> None:
    made = report(batch([rollout(turn(), turn("n", r=0.1))]), control=([], 0))
    for check in CHECKS:
        *parents, last = check.path.split(".")
        assert last in at(made, ".".join(parents)) if parents else last in made, check.key
        assert check.count is None or at(made, check.count) is not None, check.key


def test_numbers() -> None:
    assert number(None, "{:.2f}") == "–"
    assert number(-0.001, "{:+.2f}") == "+0.00"
    assert number(-0.01, "{:+.2f}") == "-0.01"
    assert number(0.0, "{:.0%}") == "0%"


def _keys(data: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in data.items():
        found.append(f"{prefix}{key}")
        found += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else []
    return found
