"""Configurations that an earlier release wrote into its run folders are still read, and such runs are resumed.

`saved/*-0.1.0.yaml` were printed by 0.1.0's `mempo config`, which is what its run folders hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mempo.config import completed, resolve
from mempo.config.base import leaves
from mempo.config.retired import RETIRED, with_names_of_today, without_retired
from mempo.errors import ConfigError, UserError
from mempo.storage.run_folder import RunFolder

SAVED = Path(__file__).parent / "saved"
OLD_START = [  # what the recipe said then
    *("data.objectives=[2, 3, 4]", "limits.max_turns=7", "limits.max_turn_tokens=56", "sft.lossy_steps=null"),
    *("sft.expert.loss=0.9", "sft.expert.lossless_share=0.3", "rl.steps=50", "rl.log_rollouts_every=10"),
]
COMMANDS = {
    "quickstart-0.1.0.yaml": ("quickstart", ["memory=original", "output=runs/x", *OLD_START]),
    "cluster-lora-0.1.0.yaml": ("cluster-qwen2.5-1.5b-lora", []),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_saved_configuration_means_what_its_command_means_today(name: str) -> None:
    source, overrides = COMMANDS[name]
    assert resolve(str(SAVED / name)).config == resolve(source, overrides).config


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_an_earlier_release_is_resumed(name: str, tmp_path: Path) -> None:
    old = yaml.safe_load((SAVED / name).read_text("utf-8"))
    run = RunFolder(tmp_path / "run")
    run.begin(old, resume=False)
    run.log("sft", 1, {"loss": 1.0})
    source, overrides = COMMANDS[name]
    if "memory=original" not in overrides:  # what `recommended` meant then
        with pytest.raises(UserError, match=r"changed: memory\.lost_notes: 'ignored' → 'worst'; memory\.fade_batches"):
            run.begin(resolve(source, overrides).plain(), resume=True, completed=completed)
        overrides = [*overrides, "memory.lost_notes=ignored", "memory.fade_batches=null"]
    run.begin(resolve(source, overrides).plain(), resume=True, completed=completed)
    with pytest.raises(UserError, match=r"changed: rl\.steps: \d+ → 7"):
        run.begin(resolve(source, [*overrides, "rl.steps=7"]).plain(), resume=True, completed=completed)


def test_every_retired_key_is_in_one_of_the_saved_configurations() -> None:
    def keys(data: Any, prefix: str = "") -> set[str]:
        if not isinstance(data, dict):
            return set()
        return {f"{prefix}{k}" for k in data}.union(*(keys(v, f"{prefix}{k}.") for k, v in data.items()))

    found = [with_names_of_today(yaml.safe_load((SAVED / name).read_text("utf-8"))) for name in COMMANDS]
    saved = set().union(*map(keys, found))
    development = {"advantages.baseline", "memory.std_floor"}  # these were in development versions alone
    served = {key for key in RETIRED if key.startswith("server.")}  # runs had none; the evaluations of a server have
    assert set(RETIRED) - development - served <= saved


@pytest.mark.parametrize("key", RETIRED)
def test_a_retired_key_is_accepted_at_its_constant_alone(key: str) -> None:
    def layer(value: object) -> dict[str, Any]:
        for part in reversed(key.split(".")):
            value = {part: value}
        assert isinstance(value, dict)
        return value

    assert key not in dict(leaves(without_retired(layer(RETIRED[key].constant))))
    with pytest.raises(ConfigError, match=rf"{key.replace('.', '[.]')} is not a setting any more.*\[my file\]"):
        without_retired(layer("another"), {key: "my file"})


def test_a_retired_key_on_the_command_line_leaves_its_section_alone() -> None:
    assert resolve("quickstart", ["rl.top_p=1", "toy.look_back=3"]).config == resolve("quickstart").config
    with pytest.raises(ConfigError, match=r"leave top_k=0 \[command line\]"):
        resolve("quickstart", ["rl.top_k=5"])


def test_a_retired_key_does_not_take_its_section_with_it() -> None:
    assert without_retired({"rl": {"top_p": 1, "steps": 3}, "data": {}}) == {"rl": {"steps": 3}, "data": {}}
    assert without_retired({"toy": {"look_back": 3.0}}) == {"toy": {}}, "toy: {} means a toy, nothing does not"


@pytest.mark.parametrize(
    ("section", "key", "value"), [("model", "compile", True), ("search", "short_passage_chars", 9)]
)
def test_retired_settings_that_change_no_number_are_read_over(
    section: str, key: str, value: object, tmp_path: Path
) -> None:
    name = "quickstart-0.1.0.yaml"
    old = yaml.safe_load((SAVED / name).read_text("utf-8"))
    old[section][key] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old), "utf-8")
    (tmp_path / "metrics.jsonl").touch()
    assert resolve(str(tmp_path)).config.model == resolve(str(SAVED / name)).config.model
