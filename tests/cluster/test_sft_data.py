"""Demonstrations for verl's SFT trainer: the ids our own SFT would train on, unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

import mempo.cli.main
from mempo.cluster.sft import command_line, mixed_rows, write_sft_data
from mempo.cluster.sft_dataset import TokenRows
from mempo.cluster.sft_rows_file import loss_mask, vocabulary_mark, write_rows
from mempo.config import Config, resolve
from mempo.errors import UserError
from mempo.rollout.trajectory import Row, Segment
from mempo.setup import load_data, make_agent, make_tools
from mempo.train.demonstrations import Demonstrations, demonstrations
from tests.cluster.sft_folder import TOKENIZER, sft_config
from tests.tiny import make_tokenizer

QUIET = Console(quiet=True)
OPTIONS = {"pad_mode": "no_padding", "max_length": 2048}
ROWS = [Row(0, (5, 6, 7, 8, 9), (Segment(0, 1, 3), Segment(1, 4, 5))), Row(1, (5, 6, 7), (Segment(0, 2, 3),))]


def played(config: Config, folder: Path) -> Demonstrations:
    data = load_data(config, folder)
    return demonstrations(config, data, make_agent(config, TOKENIZER, make_tools(config, data.retriever)), QUIET)


def written(folder: Path, *overrides: str) -> Path:
    return write_sft_data(sft_config(folder, *overrides).config, folder / "out", QUIET)


def dataset(folder: Path, **changes: Any) -> TokenRows:
    return TokenRows(str(folder / "train.parquet"), TOKENIZER.hf, {**OPTIONS, **changes})


def test_the_mask_is_one_on_what_the_expert_wrote() -> None:
    assert [loss_mask(row) for row in ROWS] == [[0, 1, 1, 0, 1], [0, 0, 1]]


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.parquet", ROWS, TOKENIZER.hf)
    rows = dataset(tmp_path)
    assert len(rows) == 2
    assert {name: tensor.tolist() for name, tensor in rows[0].items()} == {
        "input_ids": [5, 6, 7, 8, 9],
        "position_ids": [0, 1, 2, 3, 4],
        "loss_mask": [0, 1, 1, 0, 1],
    }
    assert all(tensor.dtype == torch.long for tensor in rows[1].values())
    assert len(TokenRows([str(tmp_path / "train.parquet")] * 2, TOKENIZER.hf, OPTIONS)) == 4
    assert len(TokenRows(str(tmp_path / "train.parquet"), TOKENIZER.hf, OPTIONS, max_samples=1)) == 1


def test_rows_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.parquet", ROWS, make_tokenizer().hf)
    with pytest.raises(ValueError, match="another tokenizer"):
        dataset(tmp_path)


def test_a_row_is_never_cut(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.parquet", ROWS, TOKENIZER.hf)
    with pytest.raises(ValueError, match=r"5 tokens, more than data\.max_length 4; set it to 5"):
        dataset(tmp_path, max_length=4)
    with pytest.raises(ValueError, match="no_padding"):
        dataset(tmp_path, pad_mode="right")


def test_the_mark_tells_vocabularies_apart() -> None:
    assert vocabulary_mark(TOKENIZER.hf) == vocabulary_mark(TOKENIZER.hf)
    assert vocabulary_mark(TOKENIZER.hf) != vocabulary_mark(make_tokenizer().hf)


def test_every_demonstration_row_is_there_once_and_probes_have_their_share(tmp_path: Path) -> None:
    config = sft_config(tmp_path, "sft.probe_share=0.25").config
    found = played(config, tmp_path / "data")
    rows = mixed_rows(found.rows, found.probes, config)
    assert rows[: len(found.rows)] == found.rows
    assert len(rows) - len(found.rows) == round(len(found.rows) / 3)  # a quarter of the whole
    assert all(row in found.probes for row in rows[len(found.rows) :])


def test_the_file_holds_what_our_own_sft_trains_on(tmp_path: Path) -> None:
    config = sft_config(tmp_path).config
    rows = dataset(written(tmp_path))
    found = played(config, tmp_path / "data")
    wanted = mixed_rows(found.rows, found.probes, config)
    assert [tuple(rows[i]["input_ids"].tolist()) for i in range(len(rows))] == [row.ids for row in wanted]
    for i, row in enumerate(wanted):
        learnt = rows[i]["input_ids"][rows[i]["loss_mask"].bool()].tolist()
        assert learnt == [id_ for segment in row.segments for id_ in row.ids[segment.start : segment.stop]]


def test_chat_messages_tell_the_episode(tmp_path: Path) -> None:
    out = written(tmp_path)
    lines = [json.loads(line) for line in (out / "demonstrations.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 6
    for line in lines:
        roles = [message["role"] for message in line["messages"]]
        texts = [message["content"] for message in line["messages"]]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2)]
        assert texts[-1].endswith("</answer>")
        assert all(text.startswith("<tool_response>") for text in texts[3::2])
        assert all(text.endswith("</tool_response>") for text in texts[3::2])
        assert not any("<|im_" in text for text in texts)
        assert texts[4].startswith("<mem>")


def test_verls_settings_name_the_dataset_and_keep_safetensors(tmp_path: Path) -> None:
    out = written(tmp_path)
    found = yaml.safe_load((out / "verl-sft.yaml").read_text("utf-8"))
    assert found["data"]["custom_cls"] == {"path": "pkg://mempo.cluster.sft_dataset", "name": "TokenRows"}
    assert found["data"]["train_batch_size"] == 4
    assert found["data"]["max_length"] == dataset(out).longest <= found["data"]["max_token_len_per_gpu"]
    assert found["optim"]["lr"] == 1e-3
    assert found["trainer"]["total_training_steps"] == 3
    assert "hf_model" in found["checkpoint"]["save_contents"]
    assert found["model"]["path"] == str(tmp_path / "model")
    assert str(out.resolve()) in command_line(out)


def test_our_own_configuration_lies_beside_it_for_what_is_converted(tmp_path: Path) -> None:
    out = written(tmp_path)
    assert resolve(str(out)).config == sft_config(tmp_path).config


def test_rows_are_packed_for_flash_attention_alone(tmp_path: Path) -> None:
    packed = "model.attention=flash_attention_2"
    found = [
        yaml.safe_load((written(tmp_path / name, *more) / "verl-sft.yaml").read_text("utf-8"))
        for name, more in (("plain", ()), ("packed", (packed, "model.autocast=bfloat16")))
    ]
    assert [one["model"]["use_remove_padding"] for one in found] == [False, True]
    assert [one["engine"]["mixed_precision"]["param_dtype"] for one in found] == ["float32", "bfloat16"]


def test_epochs_are_enough_for_the_steps(tmp_path: Path) -> None:
    out = written(tmp_path, "sft.steps=40")
    rows = len(dataset(out))
    epochs = yaml.safe_load((out / "verl-sft.yaml").read_text("utf-8"))["trainer"]["total_epochs"]
    assert (epochs - 1) * (rows // 4) < 40 <= epochs * (rows // 4)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sft.batch_rows=4000", "fewer than a batch"),
        ("sft.optim.kind=muon", "set it to adamw"),
        ("sft.optim.schedule=linear", "constant and cosine"),
        ("sft={lossy_steps: 2, expert: {loss: 0.5}}", "set sft.lossy_steps=null"),
    ],
)
def test_what_verl_cannot_do_is_refused(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        written(tmp_path, override)
    assert not (tmp_path / "out").exists()


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    resolved = sft_config(tmp_path)
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(resolved.plain()), encoding="utf-8")
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["mempo", "cluster", "sft-data", str(tmp_path / "my.yaml"), "--out", str(out)])
    with pytest.raises(SystemExit) as stop:
        mempo.cli.main.main()
    assert stop.value.code == 0
    assert command_line(out) in capsys.readouterr().out
    assert sorted(file.name for file in out.glob("[!.]*")) == [
        "config.yaml",
        "demonstrations.jsonl",
        "train.parquet",
        "verl-sft.yaml",
    ]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "sft.demos=7"])
    with pytest.raises(SystemExit) as again:
        mempo.cli.main.main()
    assert again.value.code == 2
    assert "holds what was made by mempo cluster sft-data" in capsys.readouterr().err
