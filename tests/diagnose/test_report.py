"""The report: plain JSON, nothing that is not a number, and the verdicts of collapses made on purpose."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from rich.console import Console

from mempo.config.rewards import MemorySettings
from mempo.config.train import AdvantageSettings
from mempo.diagnose.control import ControlNote
from mempo.diagnose.numbers import finite
from mempo.diagnose.records import with_recomputed_advantages
from mempo.diagnose.render import fenced, page, screen
from mempo.diagnose.report import curves, trend
from mempo.evaluate.grid import markdown_text
from tests.diagnose.build import batch, published, report, rollout, turn

HOSTILE = "$x^{$ <b>|[red]``` \x1b[31m \u202e\n# head \\frac a_b"


def strict(made: dict[str, Any]) -> str:
    return json.dumps(made, allow_nan=False)


def verdict(made: dict[str, Any], key: str) -> str:
    return next(check["verdict"] for check in made["checks"] if check["key"] == key)


def printed(made: dict[str, Any], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(screen(made))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_drift_is_seen_where_it_is_given() -> None:
    made = published()
    for pool, expected in (("question", "look"), ("turn", "ok")):
        settings = MemorySettings(pool=pool)  # type: ignore[arg-type]
        found = report(with_recomputed_advantages(made, AdvantageSettings(), settings), memory=settings)
        assert verdict(found, "drift") == expected
        assert found["drift"]["question"] == pytest.approx(1.77, abs=0.01)


def test_a_collapsed_run_alarms() -> None:
    groups = [
        [
            rollout(
                turn(said=f"Oslo{q} is it", query="help"),
                turn("I know enough", said="more", query="help", r=0.5, advantage=0.0),
                turn("I know enough", r=0.5, advantage=0.0),
                question=f"{q * 7919} and then {q * 104729}?",
                gold=((f"Oslo{q}",),),
                score=0.0,
                advantage=0.0,
            )
            for _ in range(8)
        ]
        for q in range(12)
    ]
    metrics = [{"stage": "rl", "step": n, "score": 0.0, "note_tokens": 30 - 2 * n, "turns": 3.0} for n in range(1, 13)]
    made = report(batch(*groups), metrics=metrics)
    look = {check["key"] for check in made["checks"] if check["verdict"] == "look"}
    assert {"copies", "templates", "distinct_notes", "distinct_queries", "shared_queries", "compression"} <= look
    assert {"score", "note_tokens", "gold_kept_notes"} <= look
    text = printed(made)
    assert "look: copies of the last note: copying is rewarded" in text.replace("\n ", " ")


def test_not_a_number_becomes_null() -> None:
    assert finite({"a": math.nan, 1: (math.inf, 2.0)}) == {"a": None, "1": [None, 2.0]}
    metrics = [{"stage": "rl", "step": 1, "score": None}, {"stage": "sft", "step": 1, "loss": 1.0}]
    made = report(batch([rollout(turn(), turn("n", p_mem=math.nan, r=0.1))]), metrics=metrics)
    assert "NaN" not in strict(made)


def test_an_old_or_sparse_batch_still_reports() -> None:
    made = report(batch([rollout(turn(), turn("note"))], advantages="none"))
    assert "NaN" not in strict(made)
    assert made["control"] is None
    assert made["advantages"]["memory_share"] is None
    assert made["curves"] == {"step": []}
    assert "not known here" in printed(made)


def test_counts_and_control_are_in_the_report() -> None:
    notes = [ControlNote("q", 2, 0.5, 0.1, 0.1, 0.4, 5, 5)] * 9
    made = report(batch([rollout(turn(), turn("n", r=0.1)), rollout(turn())]), control=(notes, 3))
    assert made["rollouts"]["rollouts"] == 2
    assert made["turns"]["rollouts_by_turns"] == {"1": 1, "2": 1}
    assert (made["control"]["notes"], made["control"]["left_out"]) == (9, 3)
    assert verdict(made, "beats_other") == "ok"
    assert "P(history) now" in printed(made)


def test_curves_and_trends() -> None:
    lines = [{"stage": "rl", "step": n, "score": float(n), "em": None, "turns": True} for n in range(1, 21)]
    found = curves([{"stage": "sft", "step": 1, "score": 9.0}, *lines])
    assert set(found) == {"step", "score"}
    assert trend(found["score"]) == {"start": 1.5, "end": 19.5, "ratio": 13.0, "gain": 18.0}
    assert trend([0.0, 1.0])["ratio"] is None
    assert set(trend([]).values()) == {None}
    assert trend([None, 2.0, None])["ratio"] is None


def test_hostile_text_stays_text() -> None:
    made = report(
        batch([rollout(turn(said="x"), turn(HOSTILE, r=0.1, advantage=1.0), question=HOSTILE)]),
        run=HOSTILE,
        warnings=[HOSTILE],
    )
    made["figures"] = []
    text = printed(made)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]" in text
    written = page(made)
    assert "\x1b" not in written
    outside = [part for i, part in enumerate(written.split("````")) if i % 2 == 0]
    assert all("# head" not in part.replace(r"\# head", "") for part in outside)
    assert "````text" in written
    assert r"\[red\]" in written


def test_a_code_block_cannot_be_closed_from_inside() -> None:
    assert fenced(["a ````` b\n```"]) == ["``````text", "a ````` b", "```", "``````"]
    assert fenced([]) == ["```text", "```"]
    assert markdown_text("a|b\n<i>") == r"a\|b \<i\>"


def test_the_table_fits_a_terminal() -> None:
    made = report(published(), control=([ControlNote("q", 2, 0.5, 0.1, 0.1, 0.4, 5, 5)] * 9, 0))
    lines = printed(made, width=120).splitlines()
    assert max(map(len, lines)) <= 120
    rows = [line for line in lines if re_row(line)]
    assert len(rows) == sum(check["verdict"] != "unknown" for check in made["checks"])


def re_row(line: str) -> bool:
    return " ok " in line or (" look " in line and not line.startswith(" look:"))


def test_what_the_threshold_hides_is_shown_beside_it() -> None:
    known: dict[str, Any] = {"p_mem": 0.98, "p_mem_raw": 0.05, "r": 0.4}
    assert "P(mem) in r" in printed(report(batch([rollout(turn(), turn("n", **known))])))
    assert "P(mem) in r" not in printed(report(batch([rollout(turn(), turn("n", **{**known, "p_mem_raw": 0.98}))])))
    unscored = report(batch([rollout(turn(), turn("n"))]), control=([ControlNote("q", 2, 0.5, 0, 0, 0.4, 5, 5)], 0))
    assert "P(mem) now" in printed(unscored)
