"""One optimizer step: an independent loss agrees, and neither batching, order nor padding changes the result."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mempo.config.train import LossSettings, OptimSettings
from mempo.engine.policy import Policy
from mempo.engine.token_batch import TokenBatch, fed_tokens
from mempo.engine.update import TrainRow, Updater
from mempo.errors import UserError
from mempo.rollout.trajectory import Row, Segment
from tests.tiny import make_tokenizer, tiny_llama, tiny_model

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_id
LR = 1e-2


def make_row(seed: int, trajectory: int = 0, turns: int = 2, temperature: float = 1.0) -> TrainRow:
    """A row of several turns, with advantages and old log-probs that mean nothing."""
    rng = random.Random(seed)
    ids: list[int] = []
    segments = []
    for turn in range(turns):
        ids += [rng.randrange(TOKENIZER.size) for _ in range(rng.randint(1, 9))]
        start = len(ids)
        ids += [rng.randrange(TOKENIZER.size) for _ in range(rng.randint(1, 7))]
        segments.append(Segment(turn, start, len(ids)))
    row = Row(trajectory, tuple(ids), tuple(segments), temperature)
    advantages, logp_old = [0.0] * len(ids), [0.0] * len(ids)
    for segment in segments:
        for p in range(segment.start, segment.stop):
            advantages[p], logp_old[p] = rng.uniform(-2, 2), -rng.uniform(4, 7)
    return TrainRow(row, advantages, logp_old)


ROWS = [make_row(n, trajectory=n // 2, turns=1 + n % 3) for n in range(8)]


def optim(budget: int = 100_000, **changes: object) -> OptimSettings:
    return OptimSettings.model_validate({"lr": LR, "micro_batch_tokens": budget, "max_grad_norm": 1.0, **changes})


def stepped(
    rows: list[TrainRow], budget: int = 100_000, loss: LossSettings | None = None, reference: Policy | None = None
) -> tuple[Policy, dict[str, float]]:
    policy = tiny_llama(TOKENIZER)
    metrics = Updater(policy, optim(budget), loss, reference).rl_step(rows, LR)
    return policy, metrics


def assert_same_weights(a: Policy, b: Policy, atol: float = 1e-6) -> None:
    for (name, x), y in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


def gradient(policy: Policy) -> torch.Tensor:
    found = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return torch.cat(found)


def rl_gradient(
    rows: list[TrainRow],
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    budget: int = 100_000,
    loss: LossSettings | None = None,
    reference: Policy | None = None,
) -> torch.Tensor:
    """The gradient of a step that is not made."""
    kept: list[torch.Tensor] = []

    def keep(self: Updater, lr: float) -> dict[str, float]:
        kept.append(gradient(self.policy))
        self.optimizer.zero_grad()
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "_apply", keep)
        Updater(policy, optim(budget), loss, reference).rl_step(rows, LR)
    return kept[0]


# --- an independent implementation ---------------------------------------------------------------------------------


def naive_loss(
    policy: Policy, rows: list[TrainRow], settings: LossSettings, reference: Policy | None = None
) -> torch.Tensor:
    """Row by row, token by token, as the formulas read."""
    by_rollout: dict[int, list[torch.Tensor]] = {}
    for train_row in rows:
        row = train_row.row
        if not row.generated_tokens:
            continue
        ids = torch.tensor([row.ids])
        new = torch.log_softmax(policy.model(input_ids=ids).logits[0] / row.temperature, -1)
        ref = None
        if reference is not None:
            with torch.no_grad():
                ref = torch.log_softmax(reference.model(input_ids=ids).logits[0] / row.temperature, -1)
        for segment in row.segments:
            for p in range(segment.start, segment.stop):
                logp, advantage = new[p - 1, row.ids[p]], train_row.advantages[p]
                ratio = torch.exp(logp - train_row.logp_old[p])
                clipped = torch.clamp(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
                loss = -torch.min(ratio * advantage, clipped * advantage)
                if ref is not None and settings.kl == "k3":
                    d = ref[p - 1, row.ids[p]] - logp
                    loss = loss + settings.kl_coef * (torch.exp(d) - d - 1)
                by_rollout.setdefault(row.trajectory, []).append(loss)
    if settings.aggregate == "token_mean":
        return torch.stack([value for values in by_rollout.values() for value in values]).mean()
    return torch.stack([torch.stack(values).mean() for values in by_rollout.values()]).mean()


@pytest.mark.parametrize("aggregate", ["token_mean", "rollout_mean"])
@pytest.mark.parametrize("kl", ["none", "k3"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_loss_and_gradient_agree_with_an_independent_implementation(
    aggregate: str, kl: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LossSettings.model_validate({"aggregate": aggregate, "kl": kl, "kl_coef": 0.1 if kl == "k3" else 0.0})
    policy = tiny_model(family, TOKENIZER)
    reference = tiny_model(family, TOKENIZER, seed=1) if kl == "k3" else None
    rows = [*ROWS[:5], make_row(90, trajectory=7, temperature=0.7)]
    loss = naive_loss(policy, rows, settings, reference)
    loss.backward()
    expected = gradient(policy)
    assert expected.norm() > 1e-2
    policy.model.zero_grad(set_to_none=True)
    ours = rl_gradient(rows, policy, monkeypatch, budget=40, loss=settings, reference=reference)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    metrics = Updater(policy, optim(40), settings, reference).rl_step(rows, LR)
    assert metrics["update/loss"] == pytest.approx(float(loss.detach()), abs=1e-5)


def test_sft_is_the_mean_negative_logprob_of_generated_tokens() -> None:
    policy = tiny_llama(TOKENIZER)
    values = []
    for train_row in ROWS[:3]:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([train_row.row.ids])).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        for segment in train_row.row.segments:
            values += [-float(logprobs[p - 1, train_row.row.ids[p]]) for p in range(segment.start, segment.stop)]
    metrics = Updater(policy, optim(30)).sft_step([r.row for r in ROWS[:3]], LR)
    assert metrics["loss"] == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert metrics["tokens"] == len(values)


# --- what must not matter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["token_mean", "rollout_mean"])
def test_one_batch_of_eight_equals_eight_of_one(aggregate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LossSettings.model_validate({"aggregate": aggregate})
    policy = tiny_llama(TOKENIZER)
    eight, one = (rl_gradient(ROWS, policy, monkeypatch, budget, settings) for budget in (100_000, 1))
    torch.testing.assert_close(eight, one, rtol=0, atol=1e-6)
    whole, single = stepped(ROWS, 100_000, settings), stepped(ROWS, 1, settings)
    assert whole[1].pop("update/padding_share") > single[1].pop("update/padding_share") == 0
    assert whole[1].pop("update/prefix_share") == single[1].pop("update/prefix_share") == 0
    for name, value in whole[1].items():
        assert single[1][name] == pytest.approx(value, abs=1e-5), name


def test_one_batch_of_eight_equals_eight_of_one_in_sft() -> None:
    policies = []
    for budget in (100_000, 1):
        policy = tiny_llama(TOKENIZER)
        Updater(policy, optim(budget)).sft_step([r.row for r in ROWS], 1e-4)
        policies.append(policy)
    assert_same_weights(*policies)


def test_the_order_of_rows_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    forth = rl_gradient(ROWS, policy, monkeypatch)
    torch.testing.assert_close(rl_gradient(ROWS[::-1], policy, monkeypatch), forth, rtol=0, atol=1e-6)


def test_padding_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside a long row without anything to train, and alone.
    policy = tiny_llama(TOKENIZER)
    tail = dataclasses.replace(ROWS[0].row, ids=ROWS[0].row.ids + tuple(range(5, 45)))
    longer = TrainRow(tail, [*ROWS[0].advantages, *[9.0] * 40], [*ROWS[0].logp_old, *[math.nan] * 40])
    alone = rl_gradient([ROWS[0], ROWS[1]], policy, monkeypatch)
    padded = rl_gradient([longer, ROWS[1]], policy, monkeypatch)
    torch.testing.assert_close(alone, padded, rtol=0, atol=1e-6)


@pytest.mark.parametrize("filler", [0, EOS, 7])
def test_masks_come_from_lengths_so_any_token_may_be_sampled(filler: int) -> None:
    row = Row(0, (filler, filler, filler, EOS), (Segment(0, 2, 4),))
    batch = TokenBatch.of([row, Row(0, (5,) * 9, (Segment(0, 8, 9),))], torch.device("cpu"))
    assert batch.targets.tolist() == [filler, EOS, 5], "the end of sequence is trained"
    assert batch.positions.tolist() == [1, 2, 7]


def test_three_sampled_tokens_among_ten_read_ones_are_three_everywhere() -> None:
    row = Row(0, tuple(range(5, 18)), (Segment(0, 10, 13),))
    policy = tiny_llama(TOKENIZER)
    with torch.no_grad():
        logp, entropy = TokenBatch.of([row], policy.device).logprobs(policy, with_entropy=True)
        every = torch.log_softmax(policy.model(input_ids=torch.tensor([row.ids])).logits[0, 9:12], -1)
    assert logp.shape == (3,)
    assert entropy is not None
    assert entropy.shape == (3,)
    old = [0.0] * 10 + logp.tolist()
    metrics = Updater(policy, optim()).rl_step([TrainRow(row, [5.0] * 10 + [1.0] * 3, old)], LR)
    assert metrics["update/policy"] == pytest.approx(-1.0, abs=1e-5)
    assert metrics["update/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["update/entropy"] == pytest.approx(float(-(every.exp() * every).sum(-1).mean()), abs=1e-5)
    assert metrics["update/clip_fraction"] == 0


def test_what_lies_outside_the_segments_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    clean = ROWS[2]
    inside = {p for s in clean.row.segments for p in range(s.start, s.stop)}
    dirty = TrainRow(
        clean.row,
        [a if p in inside else math.nan for p, a in enumerate(clean.advantages)],
        [a if p in inside else math.inf for p, a in enumerate(clean.logp_old)],
    )
    torch.testing.assert_close(
        rl_gradient([clean], policy, monkeypatch), rl_gradient([dirty], policy, monkeypatch), rtol=0, atol=0
    )


def test_the_share_of_padding_is_that_of_the_rectangles() -> None:
    def row(length: int) -> TrainRow:
        return TrainRow(Row(0, tuple(range(length)), (Segment(0, 1, length),)), [1.0] * length, [-1.0] * length)

    # The last token of a row is only predicted: 9, 8, 4 and 4 go through the model, in rectangles of 2 x 9 and 2 x 4.
    rows = [row(5), row(10), row(9), row(5)]
    assert [fed_tokens(r.row) for r in rows] == [4, 9, 8, 4]
    _, metrics = stepped(rows, budget=18)
    assert metrics["update/padding_share"] == pytest.approx(1 / 26)
    assert Updater(tiny_llama(TOKENIZER), optim(18)).sft_step([r.row for r in rows], LR)["update/padding_share"] == (
        pytest.approx(1 / 26)
    )


def test_what_follows_the_last_sampled_token_is_not_computed() -> None:
    fed: list[tuple[int, ...]] = []
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim())
    policy.model.get_input_embeddings().register_forward_hook(lambda m, inputs, output: fed.append(inputs[0].shape))
    row = Row(0, tuple(range(30)), (Segment(0, 4, 6), Segment(1, 9, 12), Segment(2, 20, 20)))
    updater.sft_step([row], LR)
    assert fed == [(1, 11)]


def test_reading_from_the_device_does_not_grow_with_the_number_of_micro_batches() -> None:
    """Every read of a number makes a GPU wait; the loop over micro-batches has none."""

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    counts = []
    for budget in (100_000, 1):
        reference = tiny_llama(TOKENIZER, seed=1)
        updater = Updater(tiny_llama(TOKENIZER), optim(budget), LossSettings(kl="k3", kl_coef=0.1), reference)
        with Reads() as reads:
            updater.rl_step(ROWS, LR)
        counts.append(reads.count)
    assert counts[0] == counts[1]


# --- nothing to train ----------------------------------------------------------------------------------------------

EMPTY = TrainRow(Row(9, (5, 6, 7), (Segment(0, 3, 3),)), [0.0] * 3, [0.0] * 3)


def test_a_row_without_sampled_tokens_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)
    for aggregate in ("token_mean", "rollout_mean"):
        settings = LossSettings.model_validate({"aggregate": aggregate})
        without = rl_gradient(ROWS[:2], policy, monkeypatch, loss=settings)
        beside = rl_gradient([ROWS[0], EMPTY, ROWS[1]], policy, monkeypatch, loss=settings)
        torch.testing.assert_close(without, beside, rtol=0, atol=1e-7)
    assert all(math.isfinite(v) for v in stepped([ROWS[0], EMPTY])[1].values())


@pytest.mark.parametrize("rows", [[EMPTY], [EMPTY] * 3, []])
def test_rows_without_any_sampled_token_make_no_step(rows: list[TrainRow]) -> None:
    policy, metrics = stepped(rows)
    assert metrics == {"update/skipped": 1.0}
    assert_same_weights(policy, tiny_llama(TOKENIZER), atol=0)
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim(weight_decay=0.5))
    assert updater.sft_step([r.row for r in rows], LR) == {"tokens": 0.0, "update/skipped": 1.0}
    assert_same_weights(policy, tiny_llama(TOKENIZER), atol=0)
    assert not updater.optimizer.state_dict()["state"], "not even the moments have moved"


# --- numbers that are none -----------------------------------------------------------------------------------------


def test_nan_logits_skip_the_step_and_leave_weights_and_moments() -> None:
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim())
    updater.rl_step(ROWS, LR)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    moments = {k: {n: t.clone() for n, t in s.items()} for k, s in updater.optimizer.state_dict()["state"].items()}

    def spoil(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * math.nan

    hook = policy.model.get_submodule("model.norm").register_forward_hook(spoil)
    metrics = updater.rl_step(ROWS, LR)
    sft = updater.sft_step([r.row for r in ROWS], LR)
    hook.remove()
    assert metrics["update/skipped"] == sft["update/skipped"] == 1
    assert math.isnan(metrics["update/grad_norm"])
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for k, state in updater.optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[n], moments[k][n]) for n in moments[k])
    assert updater.rl_step(ROWS, LR)["update/skipped"] == 0, "the next step is an ordinary one"
    assert all(torch.isfinite(p).all() for p in policy.model.parameters())


def test_an_infinite_advantage_skips_the_step() -> None:
    bad = TrainRow(ROWS[0].row, [math.inf] * len(ROWS[0].advantages), ROWS[0].logp_old)
    policy, metrics = stepped([bad, ROWS[1]])
    assert metrics["update/skipped"] == 1
    assert_same_weights(policy, tiny_llama(TOKENIZER), atol=0)


def test_tokens_of_no_probability_do_not_spoil_the_entropy() -> None:
    policy = tiny_llama(TOKENIZER)
    head = policy.model.get_output_embeddings()
    assert isinstance(head, torch.nn.Linear)
    unused = next(i for i in range(TOKENIZER.size) if all(i not in r.row.ids for r in ROWS[:2]))
    never = torch.zeros(TOKENIZER.size).index_fill_(0, torch.tensor([unused]), -math.inf)
    head.bias = torch.nn.Parameter(never, requires_grad=False)
    metrics = Updater(policy, optim()).rl_step(ROWS[:2], LR)
    assert math.isfinite(metrics["update/entropy"])
    assert metrics["update/skipped"] == 0


# --- the step ------------------------------------------------------------------------------------------------------


def test_every_change_of_the_weights_has_a_version() -> None:
    policy = tiny_llama(TOKENIZER)
    updater = Updater(policy, optim())
    updater.rl_step(ROWS, LR)
    updater.sft_step([r.row for r in ROWS], LR)
    assert policy.version == 2
    updater.rl_step([EMPTY], LR)
    updater.rl_step([TrainRow(ROWS[0].row, [math.inf] * len(ROWS[0].advantages), ROWS[0].logp_old)], LR)
    assert policy.version == 2, "steps that were skipped changed nothing"


def test_out_of_memory_names_the_settings_that_help(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.27 GiB. GPU 0 has a total capacity of …")

    monkeypatch.setattr(policy.model, "base_model_prefix", "")
    monkeypatch.setattr(policy.model, "forward", fail)
    updater = Updater(policy, optim(64))
    with pytest.raises(UserError) as found:
        updater.rl_step(ROWS, LR)
    assert str(found.value) == (
        "out of memory in the update of rl, at a micro-batch of 2 rows of up to 26 tokens; lower "
        "rl.optim.micro_batch_tokens (now 64), or set model.gradient_checkpointing=true, or set "
        "model.autocast=bfloat16, or train adapters only (model.lora.rank=16), or take a smaller model, or "
        "shorter rows (limits.max_context_tokens) (CUDA out of memory. Tried to allocate 9.27 GiB)"
    )
    # What would not help, or is on already, is not named.
    policy.checkpointing, policy.autocast = True, torch.bfloat16
    with pytest.raises(UserError, match=r"sft, at a micro-batch of 1 row of up to \d+ tokens; train adapters only"):
        Updater(policy, optim(1)).sft_step([ROWS[0].row], LR)


def test_out_of_memory_for_the_moments_is_no_matter_of_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    updater = Updater(tiny_llama(TOKENIZER), optim())

    def fail() -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried …")

    monkeypatch.setattr(updater.optimizer, "step", fail)
    with pytest.raises(UserError, match=r"of sft, at the optimizer's step; train adapters only \(model"):
        updater.sft_step([ROWS[0].row], LR)


def test_other_errors_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_llama(TOKENIZER)

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(policy.model, "base_model_prefix", "")
    monkeypatch.setattr(policy.model, "forward", fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Updater(policy, optim()).rl_step(ROWS, LR)


def test_the_reference_is_never_trained() -> None:
    reference = tiny_llama(TOKENIZER, seed=1)
    stepped(ROWS, loss=LossSettings(kl="k3", kl_coef=0.1), reference=reference)
    assert_same_weights(reference, tiny_llama(TOKENIZER, seed=1), atol=0)
    assert all(p.grad is None for p in reference.model.parameters())


def test_the_gradient_is_clipped_to_its_norm() -> None:
    policy = tiny_llama(TOKENIZER)
    norms: list[float] = []
    updater = Updater(policy, optim(max_grad_norm=1e-3))
    step = updater.optimizer.step

    def spy() -> None:
        norms.append(float(gradient(policy).norm()))
        step()

    updater.optimizer.step = spy  # type: ignore[method-assign,assignment]
    metrics = updater.rl_step(ROWS, LR)
    assert metrics["update/grad_norm"] > 1e-3, "what is reported is the norm before"
    assert norms == [pytest.approx(1e-3, rel=1e-3)]


def test_the_learning_rate_is_that_of_the_call() -> None:
    policy, start = tiny_llama(TOKENIZER), tiny_llama(TOKENIZER)
    assert Updater(policy, optim()).rl_step(ROWS, 0.0)["update/lr"] == 0
    assert_same_weights(policy, start, atol=0)


def test_a_step_repeats_bit_for_bit() -> None:
    first, second = stepped(ROWS, 50), stepped(ROWS, 50)
    assert_same_weights(first[0], second[0], atol=0)
    assert first[1] == second[1]
