# pyright: reportMissingImports=false
"""verl's own saving, with ours around it: which checkpoints are there while a new one is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from mempo.cluster.trainer import MempoTrainer
from mempo.cluster.verl_checkpoint import LATEST
from mempo.config import resolve


def saving(folder: Path, keep: int, during: list[list[int]]) -> Any:
    """A trainer whose workers write a file, and note what lay beside it while they did."""

    def write(path: str, *_: Any, max_ckpt_to_keep: int | None) -> None:
        assert max_ckpt_to_keep is None  # verl removes nothing
        during.append(steps(folder))
        Path(path).mkdir(parents=True)

    settings = {"default_local_dir": str(folder), "default_hdfs_dir": None, "max_actor_ckpt_to_keep": None}
    trainer: Any = object.__new__(MempoTrainer)
    config = resolve(None, ["model.path=m", "data.environment=atlas", f"cluster.keep_checkpoints={keep}"]).config
    trainer.__dict__.update(
        config=OmegaConf.create({"trainer": settings, "actor_rollout_ref": {"actor": {}}}),
        actor_rollout_wg=SimpleNamespace(save_checkpoint=write),
        train_dataloader=SimpleNamespace(state_dict=dict),
        checkpoint_callback=SimpleNamespace(on_save=lambda **_: None),
        use_critic=False,
        trainer_mode="sync",
        _run=SimpleNamespace(config=config),
    )
    return trainer


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("_")[2]) for path in folder.glob("global_step_*"))


@pytest.mark.parametrize(("keep", "beside", "after"), [(1, [10], [20]), (2, [10], [10, 20]), (3, [5, 10], [5, 10, 20])])
def test_what_the_tracker_names_stays_until_the_new_one_is_whole(
    keep: int, beside: list[int], after: list[int], tmp_path: Path
) -> None:
    """The checkpoints of steps 1, 5 and 10 are those of processes before this one."""
    folder, during = tmp_path / "checkpoints", []
    for step in (1, 5, 10):
        (folder / f"global_step_{step}").mkdir(parents=True)
    (folder / LATEST).write_text("10", encoding="utf-8")
    trainer = saving(folder, keep, during)
    trainer.global_steps = 20
    trainer._save_checkpoint()
    assert during == [beside]
    assert steps(folder) == after
    assert (folder / LATEST).read_text("utf-8") == "20"


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    trainer = saving(folder, 1, [])
    trainer.global_steps = 10
    trainer._save_checkpoint()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=full)
    trainer.global_steps = 20
    with pytest.raises(OSError, match="no space"):
        trainer._save_checkpoint()
    assert steps(folder) == [10]
    assert (folder / LATEST).read_text("utf-8") == "10"
