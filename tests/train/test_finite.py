"""Losses and gradients that are no numbers: the step is thrown away and counted, and many in a row end the run."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from mempo.config import resolve
from mempo.config.train import SftSettings
from mempo.engine.policy import Policy
from mempo.errors import UserError
from mempo.rollout.trajectory import rows_of
from mempo.storage.run_folder import RunFolder
from mempo.train.finite import MOST_IN_ROW, FiniteSteps
from mempo.train.rl import train_rl
from mempo.train.sft import train_sft
from tests.tiny import tiny_llama
from tests.train.fakes import TOKENIZER, Speaker, played, questions, run_folder, settings, setup, wandering
from tests.train.small import assert_same_weights, quiet

GOOD, BAD = {"update/not_finite": 0.0}, {"update/not_finite": 1.0}


def spoil_from(policy: Policy, step: int, run: RunFolder) -> None:
    """From that step on, what the policy says is not a number."""

    def spoil(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * math.nan if len(run.metrics()) >= step - 1 else output

    policy.model.get_submodule("model.norm").register_forward_hook(spoil)


def test_rl_stops_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    run, policy = run_folder(tmp_path), tiny_llama(TOKENIZER)
    spoil_from(policy, 6, run)
    how = settings(steps=40, save_every=2, memory_signal=False)
    told = (
        rf"not finite in {MOST_IN_ROW} steps of rl in a row.* step 1[56]; .*of step 5, .*checkpoint is .*/rl-4\. Begin"
    )
    with pytest.raises(UserError, match=told) as stopped:
        train_rl(setup(Speaker(wandering), questions(3), policy), how, run, quiet())
    advised = re.findall(r"model\.\w+=\w+", str(stopped.value))
    assert advised == ["model.autocast=none", "model.dtype=float32"]
    resolve("quickstart", advised)  # what is advised can be set
    found = [value for line in run.metrics() if (value := line["update/not_finite"]) is not None]
    assert found == [0.0] * 5 + [1.0] * MOST_IN_ROW
    assert run.metrics()[-1]["update/grad_norm"] is None, "JSON has no NaN"
    good, newest = (checkpoint.path for checkpoint in run.checkpoints())
    assert good.name == "rl-4"
    with pytest.raises(AssertionError):  # the fifth step, whose weights the thrown away ones left alone
        assert_same_weights(good, newest)
    assert all(torch.isfinite(value).all() for value in policy.model.state_dict().values())


def test_sft_stops_too(tmp_path: Path) -> None:
    run, policy = run_folder(tmp_path), tiny_llama(TOKENIZER)
    rows = [row for i, asked in enumerate(questions(3)) for row in rows_of(played(asked, 2), i)]
    spoil_from(policy, 4, run)
    with pytest.raises(UserError, match=r"steps of sft in a row.* step 13; .*of step 3, .*/sft-3\. Begin another run"):
        train_sft(policy, lambda step: rows, SftSettings(steps=40, save_every=3, keep_every=3), run, quiet())
    assert [line["update/skipped"] for line in run.metrics()] == [0.0] * 3 + [1.0] * MOST_IN_ROW


def test_only_an_unbroken_row_of_them_ends_a_run(tmp_path: Path) -> None:
    finite = FiniteSteps(run_folder(tmp_path), "rl", done=0)
    for step in range(1, 10 * MOST_IN_ROW):
        finite.step(step, GOOD if step % MOST_IN_ROW == 0 else BAD)
        finite.step(step, {"update/not_finite": None})  # a step without an update says nothing
    finite.step(10 * MOST_IN_ROW, {"update/not_finite": 0.5})  # one of two updates was made
    last = 10 * MOST_IN_ROW
    assert not any(finite.step(last + n, BAD) for n in range(1, MOST_IN_ROW)), "none of them is saved"
    with pytest.raises(UserError, match=rf"of step {last}\. Begin another run"):
        finite.step(last + MOST_IN_ROW, BAD)
