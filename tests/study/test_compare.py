"""The arithmetic of a study's tables, with numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from mempo.evaluate.stats import student_interval
from mempo.study.compare import compare_runs, first_part, last_part, sections
from mempo.study.plan import Task
from mempo.study.record import Record
from mempo.study.table import differences, in_words, levels, markdown, remarks
from tests.study.small import a_record, a_task


def three_seeds() -> list:
    """EM@2 of outcome .50 .60 .40, of both .60 .80 .70; starts .10 .20 .30."""
    done = []
    for seed, (start, outcome, both) in enumerate([(0.1, 0.5, 0.6), (0.2, 0.6, 0.8), (0.3, 0.4, 0.7)]):
        done.append((a_task(None, seed), a_record({"2": start}, arm=None)))
        done.append((a_task("outcome", seed), a_record({"2": outcome}, cpu_s=20)))
        done.append((a_task("both", seed), a_record({"2": both}, cpu_s=30)))
    return done


def test_student_s_interval() -> None:
    assert student_interval([0.1]) == (None, None)
    # mean .2, std .1, t(2) = 4.303: half = 4.303 · .1 / √3
    low, high = student_interval([0.1, 0.2, 0.3])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert (low, high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))
    low, high = student_interval([0.0, 1.0] * 50)  # the normal's 1.96 where there are many
    assert high is not None
    assert high - 0.5 == pytest.approx(1.96 * math.sqrt(25 / 99) / 10, rel=1e-3)


def test_arms_are_compared_in_pairs_of_one_seed() -> None:
    (section,) = sections(three_seeds(), "outcome")
    assert section.unit == "seeds"
    rows = {row.arm: row for row in section.rows}
    assert list(rows) == ["(start)", "outcome", "both"]
    assert rows["both"].by_metric["em@2"].mean == pytest.approx(0.7)
    assert (rows["both"].by_metric["em@2"].low, rows["both"].by_metric["em@2"].high) == (0.6, 0.8)
    assert rows["outcome"].against == {}
    found = rows["both"].against["em@2"]
    # differences .1, .2, .3
    assert found.difference == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2 - 4.303 * 0.1 / math.sqrt(3))
    assert found.p_value == pytest.approx(2 / 8)  # all three alike: of 8 patterns of signs, two are as far out
    assert (found.questions, found.better, found.worse) == (3, 3, 0)
    assert (rows["outcome"].cpu_s, rows["both"].cpu_s) == (20, 30)


def test_a_missing_run_leaves_its_pair_out() -> None:
    done = [pair for pair in three_seeds() if (pair[0].arm, pair[0].seed) != ("outcome", 1)]
    (section,) = sections(done, "outcome")
    both = next(row for row in section.rows if row.arm == "both")
    assert both.runs == 3
    assert both.against["em@2"].questions == 2
    assert both.against["em@2"].difference == pytest.approx(0.2)  # .1 and .3


def test_rl_seeds_of_one_start_are_averaged_before_seeds_are_compared() -> None:
    done = []
    for seed, outcome, both in [(0, (0.2, 0.4), (0.4, 0.6)), (1, (0.5, 0.5), (0.5, 0.9))]:
        for rl_seed in (0, 1):
            done.append((a_task("outcome", seed, rl_seed=rl_seed), a_record({"2": outcome[rl_seed]})))
            done.append((a_task("both", seed, rl_seed=rl_seed), a_record({"2": both[rl_seed]})))
    (section,) = sections(done, "outcome")
    both_row = next(row for row in section.rows if row.arm == "both")
    assert section.unit == "seeds"
    assert both_row.by_metric["em@2"].units == 2
    assert both_row.against["em@2"].questions == 2  # .5 − .3 and .7 − .5
    assert both_row.against["em@2"].low == pytest.approx(0.2)


def test_rl_seeds_are_the_unit_where_there_is_one_start() -> None:
    done = [
        (a_task(arm, 0, rl_seed=rl_seed), a_record({"2": em}))
        for arm, ems in (("outcome", (0.2, 0.4)), ("both", (0.3, 0.7)))
        for rl_seed, em in enumerate(ems)
    ]
    (section,) = sections(done, "outcome")
    assert section.unit == "RL seeds"
    assert any("none of that of data and start" in text for text in remarks([section]))
    assert section.rows[-1].against["em@2"].difference == pytest.approx(0.2)


def test_several_numbers_of_objectives_have_their_mean_beside_them() -> None:
    done = [
        (a_task(arm, seed), a_record({"10": ten, "2": 0.6}))
        for seed in (0, 1)
        for arm, ten in (("outcome", 0.2), ("both", None))
    ]
    (section,) = sections(done, "outcome")
    assert [measure.name for measure in section.compared] == ["em@2", "em@10", "em"]
    outcome, both = section.rows
    assert outcome.by_metric["em"].mean == pytest.approx(0.4)
    assert both.by_metric["em"].mean is None  # not known is not 0
    assert both.against["em@10"].questions == 0


def test_the_first_and_the_last_fifth_of_a_curve() -> None:
    curve = [float(i) for i in range(10)]
    assert (first_part(curve), last_part(curve)) == (0.5, 8.5)
    assert (first_part([1.0, 2.0]), last_part([1.0, None])) == (1.0, None)


def test_tables_show_means_ranges_and_what_an_interval_holds() -> None:
    (section,) = sections(three_seeds(), "outcome")
    table = levels(section)
    assert table[0][:3] == ["arm", "n", "EM@2"]
    assert [row[:3] for row in table[1:]] == [
        ["(start)", "3", "20.0 (10–30)"],
        ["outcome", "3", "50.0 (40–60)"],
        ["both", "3", "70.0 (60–80)"],
    ]
    assert differences(section, "outcome") == [
        ["against outcome", "n", "EM@2"],
        ["both", "3", "+20.0 [-4.8, +44.8] p 0.25"],
    ]
    page = markdown("mine", [section], "outcome", ["curves.png", "curves.svg"])
    assert "| both | 3 | +20.0 [-4.8, +44.8] p 0.25 |" in page
    assert "holds none of it" in page
    assert "Fewer than 5 pairs claim nothing" in page
    assert page.rstrip().endswith("![curves.png](curves.png)")


def one_seed() -> list[tuple[Task, Record]]:
    evaluation = {"4": {"em": 0.0, "questions": 100, "scored_questions": 98}}
    curves = {"outcome": [0.0] * 9 + [0.4], "memory": [0.0, 0.1, 0.5, 0.4, 0.6, 0.9, 0.9, 0.9, 0.9, 1.0]}
    found: list[tuple[Task, Record]] = [(a_task(None, 0), {**a_record({}), "arm": None, "evaluation": evaluation})]
    for arm, em in (("outcome", 0.05), ("memory", 0.875)):
        curve = {"step": list(range(1, 11)), "em": curves[arm], "format_ok": [1.0] * 10}
        found.append((a_task(arm, 0), a_record({"4": em}, curve=curve)))
    return found


def test_one_seed_is_told_in_words_and_tested_for_nothing() -> None:
    (section,) = sections(one_seed(), "outcome")
    assert levels(section) == [
        ["arm", "EM@4", "first fifth", "last fifth", "half right at step", "format kept", "CPU s"],
        ["(start)", "0.0", "–", "–", "–", "–", "10"],
        ["outcome", "5.0", "0.0", "20.0", "–", "100.0", "10"],
        ["memory", "87.5", "5.0", "95.0", "3", "100.0", "10"],
    ]
    assert differences(section, "outcome") == []
    section = dataclasses.replace(section, trained=(4,))
    assert in_words(section, "outcome") == (
        "Questions of 4 objectives, which RL was trained on, are answered right: (start) 0 %, outcome 5 %, "
        "memory 88 %. Half of the rollouts of a training step were right: outcome never, memory first at step 3."
    )
    page = markdown("mine", [section], "outcome")
    assert "on 98 held-out questions" in page
    assert "one seed" in page
    assert "p of a sign-flip test" not in page


def test_an_unfinished_study_has_no_words_for_what_is_missing() -> None:
    (section,) = sections([one_seed()[2]], "outcome")
    assert in_words(section, "outcome") == ""
    assert "of the rollouts sampled" in markdown("mine", [section], "outcome")


def test_a_study_without_results_says_so() -> None:
    assert "No run is finished yet." in markdown("mine", [], "outcome")


def test_a_comparison_with_nothing_in_common() -> None:
    found = compare_runs({"0": 0.1}, {"1": 0.2})
    assert (found.difference, found.low, found.high, found.questions) == (None, None, None, 0)
