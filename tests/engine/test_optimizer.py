"""Learning rates by step, and the optimizer's state on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from mempo.config.train import OptimSettings
from mempo.engine.optimizer import learning_rate, load_optimizer, make_optimizer, save_optimizer
from mempo.engine.update import Updater
from tests.engine.test_update import LR, ROWS, assert_same_weights, optim
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()


def rates(total: int = 10, **changes: object) -> list[float]:
    settings = OptimSettings.model_validate({"lr": 1.0, **changes})
    return [learning_rate(settings, step, total) for step in range(total)]


def test_constant() -> None:
    assert rates(4) == [1.0] * 4
    assert rates(4, warmup_steps=2) == [0.5, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_after_the_warm_up() -> None:
    assert rates(6, warmup_steps=2, schedule="linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates(4, schedule="cosine") == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
    assert rates(4, schedule="linear", min_lr_ratio=0.5) == [1.0, 0.875, 0.75, 0.625]


def test_a_run_shorter_than_its_warm_up_is_fine() -> None:
    assert rates(2, warmup_steps=10, schedule="cosine") == [0.1, 0.2]
    assert rates(2, warmup_steps=2, schedule="linear") == [0.5, 1.0]


@pytest.mark.parametrize(
    "bad", [{"lr": 0}, {"lr": -1}, {"lr": float("inf")}, {"warmup_steps": -1}, {"beta1": 1}, {"schedule": "step"}]
)
def test_settings_that_cannot_work_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        OptimSettings.model_validate(bad)


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValidationError, match="unknown key 'lrr'; did you mean 'lr'"):
        OptimSettings.model_validate({"lrr": 1e-6})


KINDS = pytest.mark.parametrize("kind", ["adamw", "muon"])


@KINDS
def test_saving_and_loading_is_exact(tmp_path: Path, kind: str) -> None:
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim(kind=kind))
    for _ in range(3):
        updater.rl_step(ROWS, LR)
    save_optimizer(updater.optimizer, tmp_path / "o.safetensors")
    fresh = make_optimizer(tiny_llama(TOKENIZER, seed=5).model, optim(kind=kind))
    load_optimizer(fresh, tmp_path / "o.safetensors")
    before, after = updater.optimizer.state_dict()["state"], fresh.state_dict()["state"]
    assert before.keys() == after.keys()
    for index, entries in before.items():
        assert entries.keys() == after[index].keys()
        for name, value in entries.items():
            assert torch.equal(value, after[index][name]), (index, name)
            assert value.dtype == after[index][name].dtype


@KINDS
def test_three_steps_and_three_more_equal_six(tmp_path: Path, kind: str) -> None:
    straight = tiny_llama(TOKENIZER)
    updater = Updater(straight, optim(kind=kind))
    for _ in range(6):
        updater.rl_step(ROWS, LR)

    first = tiny_llama(TOKENIZER)
    updater = Updater(first, optim(kind=kind))
    for _ in range(3):
        updater.rl_step(ROWS, LR)
    save_optimizer(updater.optimizer, tmp_path / "o.safetensors")
    resumed = tiny_llama(TOKENIZER, seed=9)
    resumed.model.load_state_dict(first.model.state_dict())
    updater = Updater(resumed, optim(kind=kind))
    load_optimizer(updater.optimizer, tmp_path / "o.safetensors")
    for _ in range(3):
        updater.rl_step(ROWS, LR)
    assert_same_weights(straight, resumed, atol=0)


def test_a_state_without_steps_is_saved_too(tmp_path: Path) -> None:
    save_optimizer(make_optimizer(tiny_llama(TOKENIZER).model, optim()), tmp_path / "o.safetensors")
    fresh = make_optimizer(tiny_llama(TOKENIZER).model, optim())
    load_optimizer(fresh, tmp_path / "o.safetensors")
    assert fresh.state_dict()["state"] == {}


def test_settings_of_the_run_and_not_of_the_file_hold_after_loading(tmp_path: Path) -> None:
    updater = Updater(tiny_llama(TOKENIZER), optim())
    updater.rl_step(ROWS, LR)
    save_optimizer(updater.optimizer, tmp_path / "o.safetensors")
    fresh = make_optimizer(tiny_llama(TOKENIZER).model, optim(beta2=0.5, weight_decay=0.1))
    load_optimizer(fresh, tmp_path / "o.safetensors")
    (group,) = fresh.param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.5), 0.1)


def test_muon_steps_the_matrices_inside_the_layers_at_its_own_rate() -> None:
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim(kind="muon", muon_lr=0.05))
    updater.rl_step(ROWS, LR / 2)
    assert sorted(g["lr"] for g in updater.optimizer.param_groups) == [pytest.approx(LR / 2), pytest.approx(0.025)]
    muon = next(g for g in updater.optimizer.param_groups if g["lr"] == pytest.approx(0.025))
    assert {p.ndim for p in muon["params"]} == {2}
    covered = {id(p) for g in updater.optimizer.param_groups for p in g["params"]}
    assert covered == {id(p) for p in policy.model.parameters()}


def test_a_rate_that_does_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="muon_lr does nothing with kind adamw"):
        OptimSettings(muon_lr=0.5)
