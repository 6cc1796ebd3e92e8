"""Checkpoints of verl become model folders: the same numbers, whole or not at all, nothing unpickled unasked."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import mempo.cli.main
from mempo.cluster.convert import convert
from mempo.cluster.verl_checkpoint import find_checkpoint
from mempo.config import resolve
from mempo.config.engine import ModelSettings
from mempo.engine.model import load_policy
from mempo.errors import ConfigError, UserError
from mempo.run.evaluate import final_model
from tests.cluster.verl_tree import ALPHA, RANK, TOKENIZER, adapted_policy, adapted_step_folder, logits, step_folder
from tests.tiny import tiny_llama

CPU = ModelSettings(device="cpu")
POLICY = tiny_llama(TOKENIZER)


def run(path: Path, out: Path, config: Path | None = None, own_run: bool = False) -> str:
    console = Console(record=True, width=400, file=io.StringIO())
    convert(path, out, config, own_run, console)
    return console.export_text()


def assert_refused(path: Path, out: Path, *parts: str) -> None:
    with pytest.raises(UserError) as refused:
        run(path, out)
    for part in parts:
        assert part in str(refused.value)
    assert not out.exists()
    assert not list(out.parent.glob(f".{out.name}.*"))


@pytest.mark.parametrize("path", [".", "global_step_3", "global_step_3/actor"])
def test_the_converted_policy_is_the_saved_one(tmp_path: Path, path: str) -> None:
    step_folder(tmp_path / "c", POLICY)
    run(tmp_path / "c" / path, tmp_path / "out")
    torch.testing.assert_close(logits(load_policy(CPU, str(tmp_path / "out"))), logits(POLICY), rtol=0, atol=1e-6)


def test_the_folder_of_all_steps_means_the_last_whole_one(tmp_path: Path) -> None:
    step_folder(tmp_path, tiny_llama(TOKENIZER, seed=5), step=9)
    step_folder(tmp_path, POLICY, step=3)  # verl writes the number last, so step 9 was not saved whole
    run(tmp_path, tmp_path / "out")
    torch.testing.assert_close(logits(load_policy(CPU, str(tmp_path / "out"))), logits(POLICY), rtol=0, atol=1e-6)
    assert json.loads((tmp_path / "out" / "source.json").read_text()) == {
        "checkpoint": str(tmp_path / "global_step_3" / "actor"),
        "step": 3,
        "read": "safetensors",
        "lora": None,
    }


def test_the_layout_of_the_sft_trainer_has_no_actor_folder(tmp_path: Path) -> None:
    folder = step_folder(tmp_path, POLICY)
    shutil.move(folder / "actor", tmp_path / "sft" / "global_step_7")
    assert find_checkpoint(tmp_path / "sft" / "global_step_7").step == 7


@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_is_added_to_its_weights(tmp_path: Path, tied: bool) -> None:
    policy = adapted_policy(tied=tied)
    assert policy.adapter is not None
    adapted_step_folder(tmp_path, policy)
    run(tmp_path, tmp_path / "out")
    converted = logits(load_policy(CPU, str(tmp_path / "out")))
    torch.testing.assert_close(converted, logits(policy), rtol=0, atol=1e-5)
    assert (converted - logits(policy.adapter.base)).abs().max() > 0.1
    assert json.loads((tmp_path / "out" / "source.json").read_text())["lora"] == {"r": RANK, "lora_alpha": ALPHA}


def test_an_adapter_over_several_files_keeps_an_index(tmp_path: Path) -> None:
    policy = adapted_policy()
    huggingface = adapted_step_folder(tmp_path, policy) / "actor" / "huggingface"
    tensors = load_file(huggingface / "model.safetensors")
    (huggingface / "model.safetensors").unlink()
    names = sorted(tensors)  # A and B of a weight often lie in another file than the weight
    for part in range(3):
        some = {name: tensors[name] for name in names[part::3]}
        save_file(some, huggingface / f"model-{part + 1:05}-of-00003.safetensors", metadata={"format": "pt"})
    run(tmp_path, tmp_path / "out")
    torch.testing.assert_close(logits(load_policy(CPU, str(tmp_path / "out"))), logits(policy), rtol=0, atol=1e-5)


def test_an_adapter_without_its_alpha_is_refused(tmp_path: Path) -> None:
    folder = adapted_step_folder(tmp_path / "c", adapted_policy())
    (folder / "actor" / "lora_train_meta.json").unlink()
    assert_refused(folder, tmp_path / "out", "lora_train_meta.json is not there")


def test_the_adapter_of_another_rank_is_refused(tmp_path: Path) -> None:
    folder = adapted_step_folder(tmp_path / "c", adapted_policy())
    (folder / "actor" / "lora_train_meta.json").write_text('{"r": 8, "lora_alpha": 8}')
    assert_refused(folder, tmp_path / "out", "rank 4", "says 8")


def test_weights_that_were_not_all_saved_are_refused(tmp_path: Path) -> None:
    file = step_folder(tmp_path / "c", POLICY) / "actor" / "huggingface" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    assert_refused(tmp_path / "c", tmp_path / "out", "lacks 1 of", "model.layers.1.mlp.up_proj.weight")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = step_folder(tmp_path / "c", POLICY) / "actor" / "huggingface" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert_refused(tmp_path / "c", tmp_path / "out", "model.safetensors is not whole")


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = step_folder(tmp_path / "c", POLICY) / "actor" / "huggingface" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"intermediate_size": 128}))
    assert_refused(tmp_path / "c", tmp_path / "out", "[64, 32]", "[128, 32]")


def test_shards_are_not_loaded_unasked(tmp_path: Path) -> None:
    folder = step_folder(tmp_path / "c", POLICY, weights=False)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"a pickle")
    assert_refused(tmp_path / "c", tmp_path / "out", "pickles", "--own-run")


def test_shards_need_verl(tmp_path: Path) -> None:
    folder = step_folder(tmp_path / "c", POLICY, weights=False)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"a pickle")
    with pytest.raises(UserError, match=r"verl is not installed; pip install 'mempo\[cluster\]'"):
        run(tmp_path / "c", tmp_path / "out", own_run=True)
    assert not (tmp_path / "out").exists()


def test_shards_of_other_nodes_that_are_missing_are_counted(tmp_path: Path) -> None:
    folder = step_folder(tmp_path / "c", POLICY, weights=False)
    (folder / "actor" / "fsdp_config.json").write_text('{"world_size": 4}')
    (folder / "actor" / "model_world_size_4_rank_0.pt").write_bytes(b"a pickle")
    assert_refused(tmp_path / "c", tmp_path / "out", "lacks 3 of 4 shards", "model_world_size_4_rank_1.pt")


def test_pickles_and_code_are_left_behind(tmp_path: Path) -> None:
    huggingface = step_folder(tmp_path / "c", POLICY) / "actor" / "huggingface"
    (huggingface / "modeling_own.py").write_text("raise SystemExit")
    (huggingface / "pytorch_model.bin").write_bytes(b"a pickle")
    run(tmp_path / "c", tmp_path / "out")
    assert {file.suffix for file in (tmp_path / "out").iterdir()} <= {".json", ".safetensors", ".jinja", ".txt"}


def test_a_folder_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    step_folder(tmp_path / "c", POLICY)
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.md").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.md, which this command did not make"):
        run(tmp_path / "c", out)
    assert [path.name for path in out.iterdir()] == ["notes.md"]


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    assert_refused(tmp_path / "c", tmp_path / "out", "not a verl checkpoint")
    assert_refused(tmp_path / "nowhere", tmp_path / "out", "no checkpoint folder")


def test_a_step_that_the_tracker_names_and_that_is_gone(tmp_path: Path) -> None:
    step_folder(tmp_path / "c", POLICY)
    (tmp_path / "c" / "latest_checkpointed_iteration.txt").write_text("12")
    assert_refused(tmp_path / "c", tmp_path / "out", "names step 12")


# --- the configuration beside it -----------------------------------------------------------------------------------


def test_the_runs_configuration_comes_along_so_eval_needs_none(tmp_path: Path) -> None:
    step_folder(tmp_path / "run" / "checkpoints", POLICY)
    (tmp_path / "run" / "config.yaml").write_text("{model: {path: somewhere}, data: {environment: atlas}}")
    said = run(tmp_path / "run" / "checkpoints", tmp_path / "out")
    assert f"mempo eval {tmp_path / 'out'}\n" in said
    assert resolve(str(tmp_path / "out")).config.data.environment == "atlas"
    assert final_model(tmp_path / "out") == tmp_path / "out"


def test_a_configuration_of_something_else_is_left_out(tmp_path: Path) -> None:
    step_folder(tmp_path / "run" / "checkpoints", POLICY)
    (tmp_path / "run" / "config.yaml").write_text("{trainer: {nnodes: 1}}")
    said = run(tmp_path / "run" / "checkpoints", tmp_path / "out")
    assert "is left out" in said
    assert "--config YOUR.yaml" in said
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_a_named_configuration_must_be_ours(tmp_path: Path) -> None:
    step_folder(tmp_path / "c", POLICY)
    (tmp_path / "other.yaml").write_text("{trainer: {nnodes: 1}}")
    with pytest.raises(ConfigError, match="trainer"):
        run(tmp_path / "c", tmp_path / "out", config=tmp_path / "other.yaml")
    assert not (tmp_path / "out").exists()


# --- from the command line -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eval_takes_the_converted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step_folder(tmp_path / "run" / "checkpoints", POLICY)
    config = (
        "{model: {path: gone, device: cpu, threads: 1}, data: {environment: atlas, "
        "environment_options: {subset: toy}}, "
        "limits: {max_turns: 1, max_turn_tokens: 8, max_context_tokens: 512}, evaluate: {questions: 1}}"
    )
    (tmp_path / "run" / "config.yaml").write_text(config)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["mempo", *arguments])
        try:
            mempo.cli.main.main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    out = str(tmp_path / "out")
    assert call("cluster", "convert", str(tmp_path / "run" / "checkpoints"), out) == 0
    (tmp_path / "out" / "notes.md").write_text("mine")
    assert call("cluster", "convert", str(tmp_path / "run" / "checkpoints"), out) == 2
    assert call("cluster", "convert", str(tmp_path / "run" / "checkpoints"), out, "--force") == 0
    assert (tmp_path / "out" / "notes.md").read_text() == "mine"
    assert call("eval", out, "--out", str(tmp_path / "evaluation")) == 0
    assert (tmp_path / "evaluation" / "evaluation.json").is_file()
