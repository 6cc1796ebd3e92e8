"""Trackers get what metrics.jsonl gets, know no secret, and never stand in the way of a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mempo.run.trackers as trackers
from mempo.config import Config, resolve
from mempo.config.yaml_text import dump_yaml
from mempo.errors import ConfigError
from mempo.run.own_objects import load_own_objects
from mempo.run.trackers import Tracker, Wandb, check_trackers, redacted, tracked
from mempo.storage.run_folder import RunFolder
from tests.train.small import run as run_training


class Fake:
    """Remembers everything; `told` of all that were opened."""

    def __init__(self, folder: Path, name: str, mark: str, config: Mapping[str, Any]) -> None:
        self.name, self.mark, self.config = name, mark, config
        self.lines: list[tuple[str, int, dict[str, float]]] = []
        self.closed = False

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((stage, step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Fakes in the place of wandb, in the order in which they were opened."""
    found: list[Fake] = []

    def make(*given: Any) -> Tracker:
        found.append(Fake(*given))
        return found[-1]

    use(monkeypatch, "wandb", make)
    return found


def use(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[..., Tracker]) -> None:
    monkeypatch.setitem(trackers.TRACKERS, name, make)
    monkeypatch.setattr(trackers, "find_spec", lambda module: SimpleNamespace(origin=f"{module}/__init__.py"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.yaml").write_text(dump_yaml({"seed": 3, "rl": {"steps": 2}}), encoding="utf-8")
    return RunFolder(tmp_path)


def test_what_is_logged_is_tracked_under_its_name(run: RunFolder, opened: list[Fake]) -> None:
    with tracked(run, ["wandb"]):
        run.log("sft", 1, {"loss": 2.5, "update/lr": 0.5, "bad": float("nan")})
        run.log("rl", 1, {"score": 0.25, "memory/p_mem": None, "update/lr": 0.5, "turns": 4})
        run.log("validation", 1, {"score": 0.5})
    (tracker,) = opened
    assert tracker.lines == [
        ("sft", 1, {"sft/loss": 2.5, "sft/update/lr": 0.5}),
        ("rl", 1, {"score": 0.25, "update/lr": 0.5, "turns": 4.0}),
        ("validation", 1, {"validation/score": 0.5}),
    ]
    assert tracker.closed
    assert tracker.config == {"seed": 3, "rl": {"steps": 2}}
    assert run.listeners == []


def test_a_resumed_run_is_the_same_to_its_tracker(run: RunFolder, opened: list[Fake]) -> None:
    for step in (1, 2):
        with tracked(run, ["wandb"]):
            run.log("rl", step, {"score": 0.5})
    assert opened[0].mark == opened[1].mark
    other = RunFolder(run.path / "other")
    other.path.mkdir()
    (other.path / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    with tracked(other, ["wandb"]):
        other.log("rl", 1, {})
    assert opened[2].mark != opened[0].mark


def test_a_run_that_logs_nothing_opens_nothing(run: RunFolder, opened: list[Fake]) -> None:
    with tracked(run, ["wandb"]):
        pass
    assert opened == []
    assert not (run.path / "tracking.json").exists()


class Failing(Fake):
    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if step == 2:
            raise ConnectionError("no route to http://me:hunter22@host/?token=abc")
        super().log(stage, step, metrics)


@pytest.mark.parametrize("error", [OSError("disk"), SystemExit(1), KeyboardInterrupt()])
def test_a_tracker_that_cannot_be_opened_is_one_warning(
    run: RunFolder, error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(*given: Any) -> Tracker:
        raise error

    use(monkeypatch, "wandb", make)
    with tracked(run, ["wandb"]):
        for step in range(1, 5):
            run.log("rl", step, {"score": 0.5})
    assert len(run.metrics()) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mempo: warning: wandb is given up ({type(error).__name__}:")


def test_a_tracker_that_fails_later_is_one_warning_and_others_go_on(
    run: RunFolder, opened: list[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, "mlflow", Failing)
    with tracked(run, ["mlflow", "wandb"]):
        for step in range(1, 5):
            run.log("rl", step, {"score": 0.5})
    assert [step for _, step, _ in opened[0].lines] == [1, 2, 3, 4]
    (line,) = capsys.readouterr().err.splitlines()
    assert "mlflow is given up (ConnectionError: no route to http://" in line
    assert "hunter22" not in line
    assert "abc" not in line


def test_a_tracker_that_hangs_costs_the_run_a_moment_at_its_end(
    run: RunFolder, opened: list[Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = threading.Event()

    class Hanging(Fake):
        def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
            go_on.wait()

    use(monkeypatch, "mlflow", Hanging)
    monkeypatch.setattr(trackers, "CLOSING_S", 0.05)
    try:
        with tracked(run, ["mlflow", "wandb"]):
            for step in range(1, 5):
                run.log("rl", step, {"score": 0.5})
            while not (opened and len(opened[0].lines) == 4):
                pass  # the other tracker is not behind it
        assert "mlflow is given up (it was not done 0.05 s after the run)" in capsys.readouterr().err
    finally:
        go_on.set()


def test_lines_do_not_pile_up_before_a_tracker_that_is_too_slow(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go_on = threading.Event()

    class Slow(Fake):
        def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
            go_on.wait()

    use(monkeypatch, "wandb", Slow)
    monkeypatch.setattr(trackers, "_MOST_WAITING", 3)
    with tracked(run, ["wandb"]):
        for step in range(1, 9):
            run.log("rl", step, {"score": 0.5})
        go_on.set()
    assert len(run.metrics()) == 8
    (line,) = capsys.readouterr().err.splitlines()
    assert "wandb is given up (3 steps wait for it)" in line


def test_a_folder_that_cannot_be_read_is_one_warning(
    run: RunFolder, opened: list[Fake], capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "tracking.json").write_text("[]", encoding="utf-8")
    with tracked(run, ["wandb"]):
        run.log("rl", 1, {})
        run.log("rl", 2, {})
    assert opened == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "tracking.json" in line


# --- a whole run -----------------------------------------------------------------------------------------------------


def test_a_training_run_and_its_resumption(tmp_path: Path, opened: list[Fake]) -> None:
    folder = tmp_path / "run"
    run_training(folder, "track=wandb", "rl.steps=2", "evaluate.questions=1")
    run_training(folder, "track=[wandb]", "rl.steps=3", "evaluate.questions=1", resume=True)
    first, second = opened
    assert first.mark == second.mark
    assert first.config == {**RunFolder(folder).config(), "rl": {**RunFolder(folder).config()["rl"], "steps": 2}}
    lines = RunFolder(folder).metrics()
    assert [(stage, step) for stage, step, _ in first.lines + second.lines] == [
        (line["stage"], line["step"]) for line in lines
    ]
    for (_, _, found), line in zip(first.lines + second.lines, lines, strict=True):
        names = {f"sft/{name}" if line["stage"] == "sft" else name: value for name, value in line.items()}
        assert found
        assert all(names[name] == value for name, value in found.items())
        missing = {name for name in names if name not in found} - {"stage", "step", "sft/stage", "sft/step"}
        assert all(names[name] is None for name in missing)


def test_trackers_may_be_changed_by_a_resumption(tmp_path: Path, opened: list[Fake]) -> None:
    folder = tmp_path / "run"
    run_training(folder, "rl.steps=1", "evaluate.questions=1")
    run_training(folder, "rl.steps=2", "evaluate.questions=1", "track=wandb", resume=True)
    assert [(stage, step) for stage, step, _ in opened[0].lines] == [("rl", 2)]


# --- refusals --------------------------------------------------------------------------------------------------------


def of(*settings: str) -> Config:
    return resolve("quickstart", settings).config


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"track names mlflow, .* pip install 'mempo\[mlflow\]'"):
        run_training(tmp_path / "run", "track=mlflow")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="mlflow"):  # what a dry run asks
        load_own_objects(of("track=mlflow"))


def test_a_folder_of_that_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(ConfigError, match="trackio, which is not installed"):
        check_trackers(of("track=trackio"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["track=wanb"], "wandb"),
        (["track=[wandb, wandb]"], "is given twice"),
    ],
)
def test_what_is_no_tracker_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        of(*settings)


def test_one_tracker_is_not_named_for_verl_too() -> None:
    with pytest.raises(ConfigError, match=r"track and cluster\.loggers both name wandb"):
        resolve("cluster-qwen2.5-7b", ["track=wandb", "cluster.loggers=[console, wandb]"])
    assert resolve("cluster-qwen2.5-7b", ["track=wandb,trackio", "cluster.loggers=[console, mlflow]"])


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_secret_is_in_what_a_tracker_is_told_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "zq8-zq8-zq8")
    monkeypatch.setenv("SOME_API", "harmless-value")
    plain = {
        "data": {"environment_options": {"api_key": "abc", "note": "use zq8-zq8-zq8", "list": ["zq8-zq8-zq8"]}},
        "server": {"url": "http://me:hunter22@host:1", "tokenizer": "bytes"},
        "limits": {"max_turn_tokens": 24},
        "plain": "harmless-value",
        "web": {"key_variable": "SOME_API"},
        "none": None,
    }
    told = redacted(plain)
    assert told["data"]["environment_options"] == {
        "api_key": "[redacted]",
        "note": "use [redacted]",
        "list": ["[redacted]"],
    }
    assert "hunter22" not in told["server"]["url"]
    assert told["server"]["tokenizer"] == "bytes"
    assert (told["limits"], told["plain"], told["none"]) == ({"max_turn_tokens": 24}, "harmless-value", None)


def test_nothing_of_a_shipped_configuration_is_taken_for_a_secret() -> None:
    plain = resolve("quickstart", []).plain()
    assert redacted(plain) == plain


# --- no network unasked ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "mode"), [(None, "offline"), ("online", "online")])
def test_wandb_is_offline_unless_its_variable_says_otherwise(
    asked: str | None, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def init(**keywords: Any) -> Any:
        given.update(keywords)
        return SimpleNamespace(define_metric=lambda *a, **k: None, log=lines.append, finish=lambda: None)

    lines: list[dict[str, float]] = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **k: k))  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if asked:
        monkeypatch.setenv("WANDB_MODE", asked)
    made = Wandb(tmp_path, "run", "a1b2", {"seed": 0})
    made.log("rl", 7, {"score": 0.5})
    made.log("sft", 9, {"sft/loss": 0.25})
    made.close()
    assert given["mode"] == mode
    assert (given["id"], given["resume"], given["dir"]) == ("a1b2", "allow", str(tmp_path))
    assert given["settings"]["console"] == "off"
    assert lines == [{"step": 7, "score": 0.5}, {"sft/step": 9, "sft/loss": 0.25}]
