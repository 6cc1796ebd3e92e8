"""Costs of a rollout, worked out by hand, the same from a trajectory and from its saved line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.evaluate.costs import Step, costs, dependency, mem1_peak, steps_of, steps_of_line
from mempo.rollout.trajectory import Trajectory
from mempo.storage.files import read_lines
from mempo.storage.rollouts import save_rollouts
from tests.storage.test_rollouts import CASES


def test_by_hand() -> None:
    steps = [Step(10, 4, 6), Step(20, 2, 5), Step(12, 3, 0)]
    # (2·10 + 4)·4/2 + (2·20 + 2)·2/2 + (2·12 + 3)·3/2
    assert dependency(steps) == 48 + 42 + 40.5
    # turn 1: 4; turn 1 and its result, then turn 2: 10 + 2; turn 2 and its result, then turn 3: 7 + 3
    assert mem1_peak(steps) == 12
    assert costs(steps) == {"read_tokens": 42, "written_tokens": 9, "dependency": 130.5, "mem1_peak_tokens": 12}
    assert costs([]) == {"read_tokens": 0, "written_tokens": 0, "dependency": 0, "mem1_peak_tokens": 0}


@pytest.mark.parametrize("trajectory", CASES.values(), ids=CASES.keys())
def test_a_saved_line_costs_what_its_rollout_did(tmp_path: Path, trajectory: Trajectory) -> None:
    save_rollouts(tmp_path / "r.jsonl", [trajectory], [{}])
    (line,) = read_lines(tmp_path / "r.jsonl")
    assert steps_of_line(line) == steps_of(trajectory)
    found = costs(steps_of(trajectory))
    assert found["read_tokens"] + found["written_tokens"] == trajectory.processed_tokens
