"""A resumed run goes on from what was saved, or is refused with what is missing; nothing is done again in silence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mempo.cluster.verl_checkpoint import LATEST, remove_old_checkpoints, resumable_step
from mempo.config import Config, resolve
from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder

RANKS = 2


def config(steps: int = 50, save_every: int = 10) -> Config:
    settings = (f"rl.steps={steps}", f"rl.save_every={save_every}", f"cluster.gpus_per_node={RANKS}")
    return resolve(None, ["model.path=m", "data.environment=atlas", *settings]).config


def save(run: Path, step: int) -> Path:
    """What verl leaves of a step."""
    folder = run / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    (folder / "data.pt").write_bytes(b"place")
    for kind in ("model", "optim", "extra_state"):
        for rank in range(RANKS):
            (folder / "actor" / f"{kind}_world_size_{RANKS}_rank_{rank}.pt").write_bytes(b"shard")
    return folder


def measured(run: Path, steps: int) -> RunFolder:
    folder = RunFolder(run)
    for step in range(1, steps + 1):
        folder.log("rl", step, {"score": 0.5})
    return folder


def track(run: Path, text: str) -> None:
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / LATEST).write_text(text, encoding="utf-8")


def refusal(run: RunFolder, settings: Config | None = None) -> str:
    with pytest.raises(UserError) as caught:
        resumable_step(run, settings or config())
    return str(caught.value)


def test_the_step_of_the_tracker_is_gone_on_from(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20)
    track(tmp_path, "10")  # the newest was never finished, whatever it looks like
    assert resumable_step(measured(tmp_path, 23), config()) == 10


@pytest.mark.parametrize("steps", [0, 9, 10])
def test_before_the_first_checkpoint_a_run_begins_anew(steps: int, tmp_path: Path) -> None:
    run = measured(tmp_path, steps)
    (tmp_path / "checkpoints" / "global_step_10" / "actor").mkdir(parents=True)  # killed while it was written
    assert resumable_step(run, config()) == 0


def test_a_tracker_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    track(tmp_path, "20")
    said = refusal(measured(tmp_path, 47))
    assert "names step 20, but" in said
    assert "lacks 7 of the files of 2 GPUs, the first is data.pt; put it back" in said
    assert len(RunFolder(tmp_path).metrics()) == 47


@pytest.mark.parametrize(
    "name", ["data.pt", "actor/optim_world_size_2_rank_1.pt", "actor/extra_state_world_size_2_rank_0.pt"]
)
@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_a_checkpoint_that_is_not_whole_is_refused_and_an_older_one_named(
    name: str, damage: str, tmp_path: Path
) -> None:
    save(tmp_path, 10)
    file = save(tmp_path, 20) / name
    file.unlink() if damage == "gone" else file.write_bytes(b"")
    track(tmp_path, "20")
    said = refusal(measured(tmp_path, 20))
    assert f"lacks 1 of the files of 2 GPUs, the first is {name}; to continue from step 10" in said
    track(tmp_path, _written(said))
    assert resumable_step(RunFolder(tmp_path), config()) == 10


def test_shards_of_another_number_of_gpus_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 10)
    track(tmp_path, "10")
    other = config().model_copy(update={"cluster": config().cluster.model_copy(update={"gpus_per_node": 4})})  # type: ignore[union-attr]
    assert "lacks 12 of the files of 4 GPUs" in refusal(measured(tmp_path, 10), other)


@pytest.mark.parametrize("text", ["", "ten", "-10", "1e1", "١٠"])
def test_a_tracker_that_names_no_step_is_refused_with_the_number_to_write(text: str, tmp_path: Path) -> None:
    save(tmp_path, 10)
    track(tmp_path, text)
    said = refusal(measured(tmp_path, 12))
    assert "which is not a step" in said
    assert _written(said) == "10"


def test_checkpoints_without_a_tracker_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert _written(refusal(measured(tmp_path, 10))) == "10"


@pytest.mark.parametrize(("steps", "save_every", "first"), [(50, 10, 10), (5, 10, 5)])
def test_measures_beyond_the_first_save_without_a_checkpoint_are_refused(
    steps: int, save_every: int, first: int, tmp_path: Path
) -> None:
    run = measured(tmp_path, first + 1)
    said = refusal(run, config(steps, save_every))
    assert f"reaches step {first + 1}, and steps were saved from step {first} on" in said
    assert len(run.metrics()) == first + 1


def _written(said: str) -> str:
    found = re.search(r"write (\d+) into", said)
    assert found is not None, said
    return found.group(1)


@pytest.mark.parametrize(
    ("before", "keep", "stay"), [(40, 2, [20, 30, 40]), (40, 0, [40]), (41, 1, [40]), (5, 1, [10, 20, 30, 40])]
)
def test_old_checkpoints_are_removed_whoever_made_them(before: int, keep: int, stay: list[int], tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / "global_step_best").mkdir()  # somebody's own
    remove_old_checkpoints(tmp_path / "checkpoints", before, keep)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == sorted([*(f"global_step_{step}" for step in stay), "global_step_best"])


def test_a_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(folder: Path) -> None:
        raise OSError("device busy")

    monkeypatch.setattr("mempo.cluster.verl_checkpoint.remove_atomic", refused)
    save(tmp_path, 10)
    remove_old_checkpoints(tmp_path / "checkpoints", 20, 0)
    assert "global_step_10 could not be removed (device busy)" in capsys.readouterr().out
