"""Files of earlier releases are read under the names of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.config import resolve
from mempo.errors import ConfigError
from mempo.storage.former_names import note_today
from mempo.storage.run_folder import RunFolder


def test_metrics_of_an_earlier_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.log("rl", 1, {"credit/memory_share": 0.1, "memory/p_full/turn_2": 0.4, "score": 1.0, "memory/p_mem": None})
    run.log("rl", 2, {"advantages/memory_share": 0.2})
    assert [{k: v for k, v in line.items() if k not in ("stage", "step")} for line in run.metrics()] == [
        {"advantages/memory_share": 0.1, "memory/p_baseline/turn_2": 0.4, "score": 1.0, "memory/p_mem": None},
        {"advantages/memory_share": 0.2},
    ]


def test_a_note_of_an_earlier_rollout_file() -> None:
    old = {"turn": 1, "r": 0.2, "p_mem": 0.7, "p_full": 0.5, "p_full_raw": 0.5, "kept_full": None}
    new = {"turn": 1, "r": 0.2, "p_mem": 0.7, "p_baseline": 0.5, "p_baseline_raw": 0.5, "kept_baseline": None}
    assert note_today(old) == note_today(new) == new


def test_settings_by_their_former_names() -> None:
    was = ["data.world=atlas", "data.world_options={rendering: cards}", "credit.normalize_std=false"]
    now = ["data.environment=atlas", "data.environment_options={rendering: cards}", "advantages.normalize_std=false"]
    old = resolve("quickstart", was)
    assert old.config == resolve("quickstart", now).config
    assert old.origins["advantages.normalize_std"] == "command line"
    assert resolve(None, ["data.world=atlas", "credit=m:f"]).config.advantages.function == "m:f"


def test_a_setting_under_both_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("data: {world: atlas, environment: maze}\n", "utf-8")
    with pytest.raises(ConfigError, match=r"data\.world is called data\.environment now, and both are set"):
        resolve(str(file))
