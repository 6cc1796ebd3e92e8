"""A compiled step of decoding says what the plain one says, and where nothing can be compiled, the plain one serves."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mempo.config.engine import ModelSettings
from mempo.engine import compiled
from mempo.engine.model import load_policy, save_policy
from mempo.engine.policy import Policy
from mempo.engine.prefix_forward import SharedForward
from mempo.engine.sampler import generate_batch
from mempo.rollout.interfaces import SamplingParams
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
PROMPTS = [(5, 6, 7), (5, 6, 8, 9, 10, 11), (12,), (13, 14, 15, 16)]
SAMPLING = [SamplingParams(4 + 5 * n, seed=n) for n in range(4)]  # they leave one by one


def two_turns(policy: Policy) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    forward = SharedForward(policy)
    first = generate_batch(policy, PROMPTS, SAMPLING, forward)
    grown = [prompt + made.ids + (17, 18) for prompt, made in zip(PROMPTS, first, strict=True)]
    return [(made.ids, made.logprobs) for made in first + generate_batch(policy, grown, SAMPLING, forward)]


def assert_same(policy: Policy) -> None:
    policy.compiled = False
    plain = two_turns(policy)
    policy.compiled = True
    for (ids, logprobs), (others, their_logprobs) in zip(plain, two_turns(policy), strict=True):
        assert ids == others
        np.testing.assert_allclose(logprobs, their_logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt_neox", "gpt2"])
def test_what_is_compiled_is_the_plain_step(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, calls = tiny_model(family, TOKENIZER), 0

    def counted(*arguments: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return compiled.plain_step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "compile", lambda function, **_: counted)
    assert_same(policy)
    assert calls > 20


@pytest.mark.slow
def test_a_compiled_step_says_what_the_plain_one_says() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as: cannot be compiled here
        warnings.filterwarnings("ignore", module="torch")
        assert_same(tiny_llama(TOKENIZER, num_hidden_layers=1))


def test_without_a_compiler_decoding_goes_on_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> torch.Tensor:
        raise RuntimeError("no working C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    with pytest.warns(UserWarning, match=r"cannot be compiled here \(RuntimeError: no working C\+\+") as said:
        assert_same(tiny_llama(TOKENIZER))
    assert len([w for w in said if "compiled" in str(w.message)]) == 1


def test_the_setting_reaches_the_policy_and_wants_sdpa(tmp_path: Path) -> None:
    save_policy(tiny_llama(TOKENIZER), tmp_path / "model")
    assert load_policy(ModelSettings(compile=True), str(tmp_path / "model")).compiled
    assert not load_policy(ModelSettings(), str(tmp_path / "model")).compiled
    with pytest.raises(ValueError, match="compile is for attention sdpa, and attention is eager"):
        ModelSettings(compile=True, attention="eager")
