"""`mempo doctor`: what it looks at, and that what is missing is a line with a remedy and not an exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mempo.cli.main import app
from mempo.config import resolve
from mempo.run import doctor
from mempo.run.doctor import Check, checks
from tests.train.small import small


def found(*overrides: str, output: Path) -> dict[str, Check]:
    return {check.name: check for check in checks(small(output, *overrides))}


def test_a_whole_recipe_is_fine(tmp_path: Path) -> None:
    every = found(output=tmp_path / "run")
    assert {name for name, check in every.items() if check.status == "fail"} == set()
    assert "24 training questions, 4 test questions" in every["data"].fact
    assert not (tmp_path / "run").exists()


def test_without_a_configuration_it_looks_at_the_machine() -> None:
    assert [check.name for check in checks()] == ["system", "libraries", "threads", "GPU", "disk"]


def test_what_is_missing_is_a_line(tmp_path: Path) -> None:
    missing = tmp_path / "no-model"
    every = found("toy=null", f"model.path={missing}", output=tmp_path / "run")
    assert every["model"].status == every["data"].status == "fail"
    assert str(missing) in every["model"].fact
    files = resolve(
        None, ["toy={}", "data.train=nothing.jsonl", "data.corpus=nothing.jsonl", f"output={tmp_path / 'run'}"]
    )
    [data] = [check for check in checks(files) if check.name == "data"]
    assert data.status == "fail"
    assert "nothing.jsonl" in data.fact


def test_an_own_object_that_is_not_there_is_named(tmp_path: Path) -> None:
    own = found("reward=no_such_module:score", output=tmp_path / "run")["own code"]
    assert own.status == "fail"
    assert "no_such_module" in own.fact


def test_a_library_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    really = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "1.0" if name == "torch" else really(name))
    [library] = [check for check in checks() if check.name == "libraries"]
    assert library.line.startswith("fail  libraries: torch is 1.0, and mempo needs ")


def test_more_threads_than_cores_and_a_small_disk_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LITTLE_DISK_GIB", 1 << 40)
    every = found("model.threads=1024", output=tmp_path / "run")
    assert every["threads"].status == every["disk"].status == "warn"
    assert "model.threads=" in every["threads"].remedy


def test_an_output_below_a_file_is_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    disk = found(output=tmp_path / "notes.txt" / "run")["disk"]
    assert (disk.status, "notes.txt is a file" in disk.fact) == ("fail", True)


def test_the_command_ends_with_1_when_something_is_missing(tmp_path: Path) -> None:
    assert resolve("quickstart").config.toy is not None
    run = CliRunner()
    assert run.invoke(app, ["doctor"]).exit_code == 0
    ended = run.invoke(app, ["doctor", "quickstart", "toy=null", f"model.path={tmp_path / 'none'}"])
    assert ended.exit_code == 1
    assert "fail  model: " in ended.output
