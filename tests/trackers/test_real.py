"""Every tracker as it is installed: a run, and the same run resumed, read back from where the tracker keeps it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from mempo.config.yaml_text import dump_yaml
from mempo.run.trackers import tracked
from mempo.storage.run_folder import RunFolder

SECRET = "zq8-zq8-zq8-zq8"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunFolder:
    """After two steps of SFT, four of RL, and a resumption that does the last two and two more; none said a word."""
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    config = {"seed": 0, "rl": {"steps": 6}, "data": {"environment_options": {"name": SECRET}}}
    (run.path / "config.yaml").write_text(dump_yaml(config), encoding="utf-8")
    every = ("tensorboard", "wandb", "trackio", "mlflow")
    with tracked(run, every):
        for step in (1, 2):
            run.log("sft", step, {"loss": 1 / step, "update/lr": 0.5})
        for step in (1, 2, 3, 4):
            run.log("rl", step, {"score": step / 8, "memory/p_mem": None})
    again = RunFolder(run.path)
    with tracked(again, every):
        for step in (3, 4, 5, 6):
            again.log("rl", step, {"score": step / 8})
    out, err = capfd.readouterr()
    assert "given up" not in err
    assert out == ""
    return run


@pytest.fixture(autouse=True)
def _own_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):  # read from TRACKIO_DIR when the library is imported
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")


def test_all_of_them(run: RunFolder, tmp_path: Path) -> None:
    _tensorboard(run.path / "tensorboard")
    _mlflow(run.path / "mlflow" / "mlflow.db")
    _trackio(tmp_path / "trackio" / "mempo.db", run)
    offline = list((run.path / "wandb").glob("offline-run-*/run-*.wandb"))
    mark = json.loads((run.path / "tracking.json").read_text("utf-8"))["id"]
    assert len(offline) == 2
    assert {file.name for file in offline} == {f"run-{mark}.wandb"}
    assert any(b"sft/loss" in file.read_bytes() for file in offline)
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != "config.yaml":
            assert SECRET.encode() not in file.read_bytes(), file


def _tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for stage in ("sft", "rl"):
        events = EventAccumulator(str(folder / stage))
        events.Reload()
        for name in events.Tags()["scalars"]:
            found[name] = [(event.step, event.value) for event in events.Scalars(name)]
    assert found == {
        "sft/loss": [(1, 1.0), (2, 0.5)],
        "sft/update/lr": [(1, 0.5), (2, 0.5)],
        "score": [(step, step / 8) for step in range(1, 7)],
    }


def _mlflow(file: Path) -> None:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{file}")
    experiment = client.get_experiment_by_name("mempo")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["rl.steps"] == "6"
    assert set(found.data.metrics) == {"sft/loss", "sft/update/lr", "score"}
    history = client.get_metric_history(found.info.run_id, "score")
    assert sorted({(metric.step, metric.value) for metric in history}) == [(step, step / 8) for step in range(1, 7)]


def _trackio(file: Path, run: RunFolder) -> None:
    with sqlite3.connect(file) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    scores = {step: json.loads(metrics)["score"] for _, step, metrics in rows if b"score" in bytes(metrics)}
    assert scores == {step: step / 8 for step in range(1, 7)}
