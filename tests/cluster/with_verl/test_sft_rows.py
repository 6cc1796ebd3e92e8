# pyright: reportMissingImports=false
"""verl's own SFT path over our rows: its configuration, its way to a dataset, its collator, its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from verl.trainer.sft_trainer import create_sft_dataset
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.dataset_utils import SFTTensorCollator
from verl.workers.utils.losses import sft_loss

from mempo.cluster.sft import mixed_rows, write_sft_data
from mempo.engine.update import Updater
from mempo.rollout.trajectory import Row
from mempo.setup import load_data, make_agent, make_tools
from mempo.train.demonstrations import demonstrations
from tests.cluster.sft_folder import TOKENIZER, sft_config, tiny_policy

QUIET = Console(quiet=True)


def composed(out: Path) -> DictConfig:
    with initialize_config_dir(str(out.resolve()), version_base=None):
        return compose("verl-sft")


def expected_rows(tmp_path: Path) -> list[Row]:
    config = sft_config(tmp_path).config
    data = load_data(config, tmp_path / "data")
    found = demonstrations(config, data, make_agent(config, TOKENIZER, make_tools(config, data.retriever)), QUIET)
    return mixed_rows(found.rows, found.probes, config)


def test_verl_reads_the_configuration(tmp_path: Path) -> None:
    out = write_sft_data(sft_config(tmp_path).config, tmp_path / "out", QUIET)
    found = composed(out)
    assert found.data.train_files == str(out / "train.parquet")
    assert found.data.truncation == "error"  # a key of verl's own, so its defaults lie below ours
    assert found.optim.lr_scheduler_type == "cosine"
    assert not OmegaConf.missing_keys(found)


def test_the_loss_is_that_of_our_own_sft(tmp_path: Path) -> None:
    out = write_sft_data(sft_config(tmp_path).config, tmp_path / "out", QUIET)
    options = composed(out).data
    dataset = create_sft_dataset([options.train_files], options, TOKENIZER.hf, None)
    batch = SFTTensorCollator(options.pad_mode)([dataset[i] for i in range(len(dataset))])
    rows, policy = expected_rows(tmp_path), tiny_policy()
    assert [tuple(ids.tolist()) for ids in batch["input_ids"].unbind()] == [row.ids for row in rows]

    data = tu.get_tensordict(batch, {"dp_size": 1, "batch_num_tokens": batch["loss_mask"].values().sum().item()})
    input_ids: Any = data["input_ids"]
    position_ids: Any = data["position_ids"]
    following: Any = torch.nested.nested_tensor_from_jagged(torch.roll(input_ids.values(), -1), input_ids.offsets())
    per_row = []
    with torch.no_grad():
        for ids, targets, positions in zip(input_ids.unbind(), following.unbind(), position_ids.unbind(), strict=True):
            logits = policy.model(input_ids=ids[None], position_ids=positions[None]).logits[0]
            per_row.append(logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0])
    log_probs = torch.nested.as_nested_tensor(per_row, layout=torch.jagged)
    no_config: Any = None
    theirs, _ = sft_loss(no_config, {"log_probs": log_probs}, data)

    config = sft_config(tmp_path).config
    ours = Updater(policy, config.sft.optim).sft_step(rows, lr=0.0)["loss"]
    assert abs(theirs.item() - ours) < 1e-5
    assert ours > 1  # a random model: there is something to learn
