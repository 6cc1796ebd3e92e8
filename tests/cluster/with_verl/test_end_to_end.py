"""Stock verl with the plug-in, whole: on one and two ranks, resumed, and against the local engine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from mempo.cluster.convert import convert
from mempo.engine.model import load_policy, load_tokenizer
from tests.cluster.with_verl.cpu_server import FAILS_FROM
from tests.cluster.with_verl.local_step import LocalStep, first_step
from tests.cluster.with_verl.run_verl import QUESTIONS, ROLLOUTS, UPDATES, VerlRun, make_inputs, run

STEPS = 2


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return make_inputs(tmp_path_factory.mktemp("verl") / "inputs")


@pytest.fixture(scope="module")
def one_rank(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> VerlRun:
    return run(inputs, tmp_path_factory.mktemp("one") / "run", ranks=1)


@pytest.fixture(scope="module")
def two_ranks(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> VerlRun:
    return run(inputs, tmp_path_factory.mktemp("two") / "run", ranks=2)


@pytest.fixture(scope="module")
def local(one_rank: VerlRun) -> LocalStep:
    return first_step(one_rank)


def weights(run: VerlRun, step: int) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(step) / "actor" / "huggingface" / "model.safetensors")


def begun_at(run: VerlRun) -> dict[str, torch.Tensor]:
    return load_policy(run.resolved.config.model).model.state_dict()


def assert_same_weights(
    ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], begun: dict[str, torch.Tensor]
) -> None:
    """Adam's first steps have the size of the rate whatever the gradient's: where that is rounding alone, which is
    never the same on busy cores, a few weights in ten thousand may go either way."""
    apart = torch.cat([(found - ours[name]).abs().flatten() for name, found in theirs.items()])
    moved = torch.cat([(found - begun[name]).abs().flatten() for name, found in theirs.items()])
    assert moved.mean() > 1e-4
    assert (apart > 1e-5).float().mean() < 1e-3
    assert apart.mean() < 1e-3 * moved.mean()


def steps_of(run: VerlRun, stage: str) -> list[int]:
    return [line["step"] for line in run.folder.metrics() if line["stage"] == stage]


# --- one run ---------------------------------------------------------------------------------------------------------


def test_a_run_makes_its_steps_validates_and_leaves_checkpoints(one_rank: VerlRun) -> None:
    assert steps_of(one_rank, "rl") == [1, 2]
    assert steps_of(one_rank, "validation") == [0, 2]
    assert [one_rank.checkpoint(step).is_dir() for step in (1, 2)] == [True, True]
    check = json.loads((one_rank.folder.path / "probe-check.json").read_text("utf-8"))
    assert check["questions"] > 0


def test_our_measures_are_in_verls_log_and_in_the_run_folder(one_rank: VerlRun) -> None:
    (logged,) = re.findall(r"step:1 - (.*)", one_rank.output)
    said = dict(item.split(":", 1) for item in logged.split(" - ") if ":" in item)
    ours = one_rank.measures("rl", 1)
    for name in ("memory/p_mem", "memory/r", "advantages/memory_share", "turns", "score"):
        assert float(said[f"mempo/{name}"].removeprefix("np.float64(").rstrip(")")) == pytest.approx(ours[name])
    assert "val-mempo/score" in one_rank.output


def test_a_rollout_whose_server_fails_is_counted_and_teaches_nothing(one_rank: VerlRun, local: LocalStep) -> None:
    rollouts = [one_rank.measures("rl", step)["rollouts"] for step in (1, 2)]
    errors = [one_rank.measures("rl", step)["errors"] for step in (1, 2)]
    assert rollouts == [QUESTIONS * ROLLOUTS] * 2
    assert sum(errors) == 1.0
    for trajectory, by_turn in zip(local.trajectories, local.saved_advantages, strict=True):
        if trajectory.is_error:
            assert not any(value for values in by_turn.values() for value in values)


def test_turn_counts_from_1_to_7_leave_optimizer_and_schedule_alone(one_rank: VerlRun, local: LocalStep) -> None:
    assert {len(trajectory.turns) for trajectory in local.trajectories} >= {1, 2, 3, 7}
    actor = one_rank.checkpoint(STEPS) / "actor"
    # Pickles, but of this very run.
    optimizer = torch.load(actor / "optim_world_size_1_rank_0.pt", weights_only=False)
    assert {float(state["step"]) for state in optimizer["state"].values()} == {STEPS * UPDATES}
    extra = torch.load(actor / "extra_state_world_size_1_rank_0.pt", weights_only=False)
    assert extra["lr_scheduler"]["last_epoch"] == STEPS


def test_memory_advantages_lie_on_notes_and_on_whole_turns_that_lost_theirs(local: LocalStep) -> None:
    on_notes = []
    each = zip(local.trajectories, local.outcome, local.saved_advantages, local.saved_facts, strict=True)
    for trajectory, outcome, advantages, saved in each:
        if outcome is None:  # the rollout does not count
            continue
        lost = {note["turn"] for note in saved["notes"] if note["reason"] == "lost"}
        for turn in trajectory.turns:
            memory = [value - outcome for value in advantages[turn.index]]
            if turn.index in lost:
                assert memory == pytest.approx([memory[0]] * len(memory), abs=1e-6)
                continue
            span = turn.note_span or (0, 0)
            inside = range(max(span[0] - len(turn.forced_ids), 0), max(span[1] - len(turn.forced_ids), 0))
            on_notes += [memory[i] for i in inside if turn.index > 0]
            assert [memory[i] for i in range(len(memory)) if i not in inside] == pytest.approx(
                [0.0] * (len(memory) - len(inside)), abs=1e-6
            )
    assert max(map(abs, on_notes)) > 0.1


# --- the contract with the local engine ------------------------------------------------------------------------------


def test_the_local_engine_makes_the_same_rewards_and_advantages(local: LocalStep) -> None:
    for fact, saved in zip(local.facts, local.saved_facts, strict=True):
        assert fact["score"] == saved["score"]
        ours, theirs = [n["r"] for n in fact["notes"]], [n["r"] for n in saved["notes"]]
        assert ours == pytest.approx(theirs, abs=1e-6)
    for ours, theirs in zip(local.advantages, local.saved_advantages, strict=True):
        assert set(ours) == set(theirs)
        for turn in ours:
            assert ours[turn] == pytest.approx(theirs[turn], abs=1e-4)


def test_the_local_engine_makes_the_same_loss_and_gradient(one_rank: VerlRun, local: LocalStep) -> None:
    theirs = one_rank.measures("rl", 1)
    assert local.updates["update/policy"] == pytest.approx(theirs["update/pg_loss"], abs=1e-5)
    assert local.updates["update/k3"] == pytest.approx(theirs["update/kl_loss"], abs=1e-5)
    assert local.updates["update/loss"] == pytest.approx(theirs["update/loss"], abs=1e-5)
    assert local.updates["update/grad_norm"] == pytest.approx(theirs["update/grad_norm"], rel=1e-4)
    assert local.updates["update/optimizer_steps"] == UPDATES


def test_the_local_engine_comes_to_the_same_weights(one_rank: VerlRun, local: LocalStep) -> None:
    assert_same_weights(local.policy.model.state_dict(), weights(one_rank, 1), begun_at(one_rank))


@pytest.fixture(scope="module")
def full_history(inputs: list[str], tmp_path_factory: pytest.TempPathFactory) -> VerlRun:
    """Another corner: rows of a whole rollout, an adapter, the reference in the signal, the server's log-probs."""
    other = [
        *("agent.context=full", "memory.baseline=full", "memory.full_policy=reference", "rl.updates_per_step=1"),
        *("model.lora={rank: 4, alpha: 8}", "cluster.recompute_logprobs=false", "rl.steps=1", "evaluate.questions=1"),
        *("limits.max_context_tokens=1000", "cluster.micro_batch_tokens=1320", "cluster.test_every=0"),
    ]
    return run([*inputs, *other], tmp_path_factory.mktemp("full") / "run", ranks=1)


def test_a_whole_history_with_an_adapter_learns_the_same(full_history: VerlRun) -> None:
    local, theirs = first_step(full_history), full_history.measures("rl", 1)
    assert theirs["memory/p_baseline"] is not None
    for fact, saved in zip(local.facts, local.saved_facts, strict=True):
        assert [n["r"] for n in fact["notes"]] == pytest.approx([n["r"] for n in saved["notes"]], abs=1e-6)
    for ours, found in zip(local.advantages, local.saved_advantages, strict=True):
        for turn in ours:
            assert ours[turn] == pytest.approx(found[turn], abs=1e-4)
    assert local.updates["update/loss"] == pytest.approx(theirs["update/loss"], abs=1e-5)
    assert local.updates["update/policy"] == pytest.approx(theirs["update/pg_loss"], abs=1e-5)
    assert theirs["update/kl_loss"] == pytest.approx(0.0, abs=1e-6)


# --- ranks and resuming ----------------------------------------------------------------------------------------------

SAME = ("score", "turns", "errors", "memory/p_mem", "memory/p_baseline", "memory/r", "advantages/memory_share")


@pytest.mark.parametrize("step", [1, 2])
def test_two_ranks_learn_what_one_learns(one_rank: VerlRun, two_ranks: VerlRun, step: int) -> None:
    one, two = one_rank.measures("rl", step), two_ranks.measures("rl", step)
    assert {name: two[name] for name in SAME} == pytest.approx({name: one[name] for name in SAME}, abs=1e-4)
    for name in ("loss", "pg_loss", "kl_loss"):
        assert two[f"update/{name}"] == pytest.approx(one[f"update/{name}"], abs=1e-3 if step == 2 else 1e-5)


def test_a_checkpoint_becomes_a_model_of_ours(one_rank: VerlRun, tmp_path: Path) -> None:
    convert(one_rank.checkpoint(2), tmp_path / "model", None, own_run=False, console=Console(quiet=True))
    policy = load_policy(one_rank.resolved.config.model, str(tmp_path / "model"))
    assert policy.tokenizer.size == load_tokenizer(one_rank.resolved.config.model.path or "").size
    found = policy.model.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights(one_rank, 2).items())


def test_a_run_whose_servers_die_says_so_and_its_resumption_does_what_an_unbroken_one_did(
    one_rank: VerlRun, inputs: list[str], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError) as failed:
        run(inputs, tmp_path / "run", ranks=1, variables={FAILS_FROM: "1"})
    cause = "the rollout server failed (ConnectionError: the server is gone)"
    assert f"all {QUESTIONS * ROLLOUTS} rollouts of the step failed; the first: {cause}" in str(failed.value)
    resumed = run(inputs, tmp_path / "run", ranks=1, resume=True)
    assert steps_of(resumed, "rl") == [1, 2]
    assert resumed.measures("rl", 2) == pytest.approx(one_rank.measures("rl", 2), abs=1e-4)
    assert_same_weights(weights(resumed, 2), weights(one_rank, 2), begun_at(one_rank))
