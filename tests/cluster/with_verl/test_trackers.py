# pyright: reportMissingImports=false
"""What a run of verl logs into its folder goes to the trackers that the configuration names."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from mempo.cluster.trainer import MempoTrainer
from mempo.storage.run_folder import RunFolder


def test_a_tracker_gets_what_the_run_folder_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    folder = RunFolder(tmp_path)
    trainer: Any = object.__new__(MempoTrainer)
    trainer._run = SimpleNamespace(folder=folder, config=SimpleNamespace(track=("tensorboard",)))

    def fit(self: Any, manager: str) -> str:
        for step in (1, 2):
            self._run.folder.log("rl", step, {"score": step / 4})
        self._run.folder.log("validation", 2, {"score": 1.0})
        return manager

    monkeypatch.setattr(PPOTrainerSync, "fit", fit)
    assert trainer.fit("the agent loops") == "the agent loops"
    found = {}
    for stage in ("rl", "validation"):
        events = EventAccumulator(str(tmp_path / "tensorboard" / stage))
        events.Reload()
        found |= {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert found == {"score": [(1, 0.25), (2, 0.5)], "validation/score": [(2, 1.0)]}
