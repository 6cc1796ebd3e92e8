"""The commands of `mempo cluster` that start and check runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

import mempo.cli.main
from mempo.config import recipe_names, resolve
from mempo.config.train import ToySettings

CLUSTER_RECIPES = [name for name in recipe_names() if resolve(name).config.cluster is not None]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mempo", *arguments])
    try:
        mempo.cli.main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.mark.parametrize("name", CLUSTER_RECIPES)
def test_every_cluster_recipe_goes_through_a_dry_run(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "cluster", "launch", name, "--dry-run", "cluster.nodes=2", "seed=5") == 0
    made = yaml.safe_load(capfd.readouterr().out)
    assert (made["trainer"]["nnodes"], made["data"]["seed"]) == (2, 5)
    assert made["hydra"]["searchpath"] == ["pkg://verl.trainer.config"]


def test_what_does_not_divide_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    name = "cluster-qwen2.5-7b"
    assert call(monkeypatch, "cluster", "launch", name, "--dry-run", "cluster.tensor_parallel=3") == 2
    said = capfd.readouterr().err
    assert said.startswith("mempo: ")
    assert said.endswith("set cluster.tensor_parallel=2\n")


def test_a_cluster_recipe_is_not_trained_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "train", "cluster-qwen2.5-7b") == 2
    assert "start it with mempo cluster launch, or set cluster=null" in capfd.readouterr().err
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "runs"])


def test_a_launch_of_what_is_not_there_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "cluster", "launch", "cluster-qwen2.5-7b") == 2
    said = capfd.readouterr()
    assert "checks of mempo cluster doctor failed" in said.err
    assert "no model folder './models/qwen2.5-7b-sft'" in said.out


def test_the_doctor_ends_with_1_where_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # The question to verl itself takes a process; it is another test's.
    monkeypatch.setattr("mempo.cluster.machine._ASK_VERL", "print('no verl')")
    assert call(monkeypatch, "cluster", "doctor", "cluster-qwen2.5-7b", "data.server=null", "data.index=nowhere") == 1
    lines = capfd.readouterr().out.splitlines()
    assert "fail  data: data.index nowhere does not exist" in lines
    assert any(line.startswith("ok    output: ") for line in lines)


def test_a_toy_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert resolve("quickstart").config.toy == ToySettings()
    assert call(monkeypatch, "cluster", "launch", "quickstart", "--dry-run") == 2
    assert "set toy=null and model.path" in capfd.readouterr().err
