"""Chunked log-probs: equal to the plain way in values and gradients, and never more than a chunk of logits at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mempo.engine.logprobs import CHUNK_LOGITS, chunk_rows_for, logprobs_of_logits, selected_logprobs
from mempo.engine.model import logprobs_at
from tests.tiny import make_tokenizer, tiny_model

TOKENIZER = make_tokenizer()
PICKED, WIDTH, VOCABULARY = 23, 16, 101


def inputs(
    bias: bool = True, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden, weight, more = (
        torch.randn(shape, generator=g) for shape in ((PICKED, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    targets = torch.randint(VOCABULARY, (PICKED,), generator=g)
    temperature = torch.rand(PICKED, generator=g) + 0.5
    given = [t.to(dtype).requires_grad_() for t in (hidden, weight, more)]
    return given[0], given[1], given[2] if bias else None, targets, temperature


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """As the formulas read, all logits at once."""
    logits = hidden @ weight.T + (0 if bias is None else bias)
    every = torch.log_softmax(logits.float() / temperature[:, None], -1)
    return every[torch.arange(len(targets)), targets], -(every.exp() * every).sum(-1)


def gradients(logprobs: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Under a gradient that differs from token to token and is zero for one."""
    outer = torch.linspace(-1, 1, len(logprobs))
    return list(torch.autograd.grad((logprobs * outer).sum(), tensors))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk", [0, 1, 5, PICKED, 1000])
def test_values_and_gradients_are_those_of_the_plain_way(bias: bool, chunk: int) -> None:
    given = inputs(bias)
    tensors = [t for t in given[:3] if t is not None]
    expected, expected_entropy = plain(*given)
    ours, entropy = selected_logprobs(*given, chunk_rows=chunk)
    assert entropy is not None
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-5)
    for a, b in zip(gradients(ours, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5])
def test_logits_that_are_there_already_give_the_same(chunk: int) -> None:
    hidden, weight, bias, targets, temperature = inputs()
    assert bias is not None
    expected, expected_entropy = plain(hidden, weight, bias, targets, temperature)
    ours, entropy = logprobs_of_logits(hidden @ weight.T + bias, targets, temperature, chunk)
    assert entropy is not None
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-5)
    for a, b in zip(gradients(ours, [hidden, weight]), gradients(expected, [hidden, weight]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_distribution_worked_out_by_hand() -> None:
    # Logits 0 and ln 3 at temperature 1: probabilities 1/4 and 3/4. At temperature ln 3: logits 0 and 1.
    weight = torch.tensor([[0.0], [math.log(3)]])
    hidden, targets = torch.ones(2, 1), torch.tensor([0, 1])
    logprobs, entropy = selected_logprobs(hidden, weight, None, targets, torch.tensor([1.0, math.log(3)]))
    assert entropy is not None
    assert logprobs.tolist() == pytest.approx([math.log(1 / 4), 1 - math.log(1 + math.e)], abs=1e-6)
    assert float(entropy[0]) == pytest.approx(math.log(4) - 3 / 4 * math.log(3), abs=1e-6)


def test_a_frozen_head_has_no_gradient_and_the_hidden_states_have() -> None:
    hidden, weight, _, targets, temperature = inputs(bias=False)
    frozen = weight.detach()
    selected_logprobs(hidden, frozen, None, targets, temperature)[0].sum().backward()
    assert hidden.grad is not None
    assert frozen.grad is None
    assert weight.grad is None


def test_half_precision_weights_sum_their_gradient_in_single_precision() -> None:
    # 1 024 equal tokens: summed in bfloat16 one by one, the gradient would stop growing after 256 of them.
    hidden = torch.ones(1024, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    targets, ones = torch.zeros(1024, dtype=torch.long), torch.ones(1024)
    logprobs, _ = selected_logprobs(hidden, weight, None, targets, ones, chunk_rows=1)
    assert logprobs.dtype == torch.float32
    logprobs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == [512, -512]


def test_an_impossible_token_leaves_the_entropy_finite() -> None:
    hidden, weight, _, _, temperature = inputs(bias=False)
    never = torch.zeros(VOCABULARY).index_fill_(0, torch.tensor([3]), -math.inf)
    targets = torch.full((PICKED,), 4)
    logprobs, entropy = selected_logprobs(hidden, weight, never, targets, temperature)
    assert entropy is not None
    assert bool(entropy.isfinite().all())
    assert all(bool(g.isfinite().all()) for g in gradients(logprobs, [hidden, weight]))


def test_the_entropy_is_left_out_when_nobody_asks() -> None:
    assert selected_logprobs(*inputs(), with_entropy=False)[1] is None


# --- how much is held ----------------------------------------------------------------------------------------------


class LargestTensor(TorchDispatchMode):
    """The most numbers that any tensor made inside has."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return made


def test_no_tensor_is_larger_than_a_chunk_of_logits() -> None:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 4, generator=g).requires_grad_()
    weight = torch.randn(300, 4, generator=g).requires_grad_()
    targets, ones = torch.randint(300, (400,), generator=g), torch.ones(400)
    with LargestTensor() as ours:
        selected_logprobs(hidden, weight, None, targets, ones, chunk_rows=20)[0].sum().backward()
    assert ours.size == 20 * 300
    with LargestTensor() as whole:
        plain(hidden, weight, None, targets, ones)[0].sum().backward()
    assert whole.size == 400 * 300


def test_what_waits_for_the_backward_pass_is_a_number_a_token() -> None:
    kept: list[Tensor] = []
    given = inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        selected_logprobs(*given)
    assert max(t.numel() for t in kept) == VOCABULARY * WIDTH, "the weights, which are there anyway"
    own = [t for t in kept if all(t is not g and t.data_ptr() != g.data_ptr() for g in given if g is not None)]
    assert [tuple(t.shape) for t in own] == [(PICKED,)]


def test_a_chunk_is_a_fixed_number_of_logits() -> None:
    assert chunk_rows_for(151_936) * 151_936 <= CHUNK_LOGITS
    assert chunk_rows_for(CHUNK_LOGITS + 1) == 1
    assert chunk_rows_for(1000) == CHUNK_LOGITS // 1000


# --- of whole policies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2", "gemma2"])
def test_every_family_gives_what_a_plain_forward_gives(family: str) -> None:
    policy = tiny_model(family, TOKENIZER)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]])
    rows, positions, targets = torch.tensor([0, 0, 1]), torch.tensor([2, 4, 1]), torch.tensor([8, 10, 13])
    temperature = torch.tensor([1.0, 0.5, 2.0])
    logprobs, entropy = logprobs_at(policy, ids, rows, positions, targets, temperature, with_entropy=True)
    assert entropy is not None
    every = torch.log_softmax(policy.model(input_ids=ids).logits[rows, positions] / temperature[:, None], -1)
    torch.testing.assert_close(logprobs, every[torch.arange(3), targets], rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, -(every.exp() * every).sum(-1), rtol=0, atol=1e-5)
    parameters = list(policy.model.parameters())
    ours = torch.autograd.grad(logprobs.sum(), parameters, allow_unused=True)
    naive = torch.autograd.grad(every[torch.arange(3), targets].sum(), parameters, allow_unused=True)
    for a, b in zip(ours, naive, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
