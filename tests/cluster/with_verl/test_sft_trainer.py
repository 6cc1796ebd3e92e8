"""verl's own SFT trainer, started as the printed command line says: it learns from our rows what our own SFT would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from rich.console import Console

from mempo.cluster.convert import convert
from mempo.cluster.sft import write_sft_data
from mempo.config.engine import ModelSettings
from mempo.engine.model import load_policy
from mempo.engine.optimizer import learning_rate
from mempo.engine.policy import Policy
from mempo.engine.update import Updater
from tests.cluster.sft_folder import sft_config
from tests.cluster.with_verl.run_verl import CHECKOUT
from tests.cluster.with_verl.test_sft_rows import expected_rows

RUNNER = Path(__file__).with_name("run_sft.py")
QUIET = Console(quiet=True)


def trained_by_verl(out: Path, ranks: int) -> str:
    """What it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    command += [str(RUNNER), "--config-path", str(out), "--config-name", "verl-sft"]
    command += ["trainer.device=cpu", "data.num_workers=0", "engine.use_torch_compile=False"]
    environment = {"PYTHONPATH": CHECKOUT, "VERL_ENGINE_DEVICE": "cuda", "VERL_ENGINE_VENDOR": "nvidia"}
    variables = {**os.environ, **environment}
    # In a folder of its own: Hydra writes an `outputs` folder where it is started.
    done = subprocess.run(command, env=variables, cwd=out, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=torch.arange(5, 25)[None]).logits


def test_two_steps_of_verl_are_two_steps_of_ours(tmp_path: Path) -> None:
    rows = expected_rows(tmp_path)
    # All rows in every batch, so that the order in which verl shuffles them makes no difference.
    batch = f"sft.batch_rows={len(rows)}"
    config = sft_config(tmp_path, batch, "sft.steps=2", "sft.optim={lr: 1e-3, schedule: constant}").config
    out = write_sft_data(config, tmp_path / "out", QUIET)
    printed = trained_by_verl(out, ranks=2)

    policy = load_policy(ModelSettings(device="cpu"), str(tmp_path / "model"))
    updater = Updater(policy, config.sft.optim)
    losses = [updater.sft_step(rows, learning_rate(config.sft.optim, step, 2))["loss"] for step in range(2)]
    theirs = [float(found) for found in re.findall(r"train/loss:([0-9.]+)", printed)]
    assert len(theirs) == 2
    torch.testing.assert_close(torch.tensor(theirs), torch.tensor(losses), rtol=0, atol=1e-5)

    convert(out / "checkpoints", tmp_path / "converted", None, False, QUIET)
    assert (tmp_path / "converted" / "config.yaml").read_text() == (out / "config.yaml").read_text()
    converted = load_policy(ModelSettings(device="cpu"), str(tmp_path / "converted"))
    torch.testing.assert_close(logits(converted), logits(policy), rtol=0, atol=1e-3)
    start = load_policy(ModelSettings(device="cpu"), str(tmp_path / "model"))
    assert (logits(converted) - logits(start)).abs().max() > 0.01
