"""`mempo push`: one folder that loads again, a card that says what was measured, and what is asked of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import mempo
from mempo.errors import UserError
from mempo.run.push import export, push
from mempo.storage import model_files
from tests.train.small import quiet, small


class Hub:
    """What a hub was asked for; it keeps what was uploaded."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[tuple[str, bool, bool]] = []
        self.files: dict[str, bytes] = {}
        self.error = error

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        if self.error:
            raise self.error
        self.made.append((repo_id, private, exist_ok))

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        assert commit_message
        self.files = {file.name: file.read_bytes() for file in folder_path.iterdir()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mempo.run.train import train

    return train(small(tmp_path_factory.mktemp("push") / "run", "rl.steps=1"), False, quiet())


@pytest.mark.slow
def test_what_is_exported_loads_and_answers_alike(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(run, tmp_path / "policy")
    assert {"README.md", "config.yaml", "model.safetensors", "evaluation-final.json"} <= set(map(str, _names(folder)))
    assert not {"optimizer.safetensors", "state.json"} & _names(folder)
    before, after = load_file(run / "final/model.safetensors"), load_file(folder / "model.safetensors")
    assert all((before[name] == tensor).all() for name, tensor in after.items())
    asked = "capital of Peru"
    with mempo.load_agent(run) as agent:
        expected = [turn.generated_ids for turn in agent.ask(asked).turns]
    with mempo.load_agent(folder) as agent:
        assert [turn.generated_ids for turn in agent.ask(asked).turns] == expected
    monkeypatch.setattr(model_files, "_fetched", lambda name, what, patterns: folder)  # the hub's copy
    with mempo.load_agent("somebody/policy") as agent:
        assert [turn.generated_ids for turn in agent.ask(asked).turns] == expected


@pytest.mark.slow
def test_the_card_has_the_numbers_of_the_evaluation(run: Path, tmp_path: Path) -> None:
    text = (export(run, tmp_path / "policy") / "README.md").read_text("utf-8")
    measured = json.loads((run / "evaluation-final.json").read_text("utf-8"))["2"]
    row = next(line for line in text[text.index("After RL") :].splitlines() if line.startswith("| 2 |"))
    assert row.split("|")[3].strip() == f"{measured['em']:.1%}"
    assert "1 steps of RL on outcome and memory signal (`memory: recommended`)" in text
    assert text.startswith("---\nlibrary_name: mempo\n")


@pytest.mark.slow
def test_what_the_hub_is_asked_for(run: Path, tmp_path: Path) -> None:
    hub = Hub()
    push(run, "somebody/policy", tmp_path, api=hub)
    assert hub.made == [("somebody/policy", True, True)]
    assert set(hub.files) == _names(tmp_path / "policy")
    with pytest.raises(UserError, match=r"the hub did not take somebody/policy \(no permission\); log in"):
        push(run, "somebody/policy", tmp_path / "again", api=Hub(RuntimeError("no permission")))


@pytest.mark.parametrize("name", ["policy", "a/b/c", "../x", "", "a b/c"])
def test_a_name_that_is_none_is_refused_before_anything(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a name on the hub; give OWNER/NAME"):
        push(tmp_path, name, tmp_path, api=Hub())


def test_no_run_and_a_folder_that_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "config.yaml").write_text("output: x\n")
    with pytest.raises(UserError, match="is there already"):
        export(tmp_path, tmp_path)


def _names(folder: Path) -> set[Any]:
    return {file.name for file in folder.iterdir()}
