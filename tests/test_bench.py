"""The benches run, at a minute size, and compare things that give the same answers. No timing is asserted."""

from __future__ import annotations

import copy
import importlib
import re
from pathlib import Path

import context_growth
import gpu_check
import memory_signal
import naive
import numpy as np
import profiled
import pytest
import scaling
import step
import torch
from scripted import TurnShape
from shapes import Shape, logp_old_requests, model, rollouts

import rollout
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer

BENCH = Path(__file__).parent.parent / "bench"
NEEDS_TRL = {"trl_grpo"}
SMALL = Shape(question=9, turns=3, note=5, words=8, observation=12, probe=6, gold=2)
TURNS = TurnShape(turns=3, question=12, note=6, thought=5, query=3, passage=40)


def tiny() -> Policy:
    return model(None, vocabulary=512, width=64, layers=2)


@pytest.mark.parametrize("name", sorted(file.stem for file in BENCH.glob("*.py") if file.stem not in NEEDS_TRL))
def test_every_bench_can_be_imported_and_says_what_it_is(name: str) -> None:
    assert (importlib.import_module(name).__doc__ or "").strip()


def test_every_bench_stands_in_the_readme() -> None:
    runnable = {f.name for f in BENCH.glob("*.py") if "ArgumentParser" in f.read_text("utf-8")}
    listed = set(re.findall(r"bench/(\w+\.py)", (BENCH / "README.md").read_text("utf-8")))
    assert runnable <= listed <= {f.name for f in BENCH.glob("*.py")}


# --- the plain ways give what ours give ------------------------------------------------------------------------------


def test_the_plain_scores_are_ours() -> None:
    policy = tiny()
    made = rollouts(SMALL, "memory", 1, 2, 512)
    asked = [*logp_old_requests(made), *memory_signal.probes(made, "visible", SMALL)]
    ours = LocalScorer(policy).score(asked)
    for way in (naive.score_padded, naive.score_unpadded):
        for one, other in zip(way(policy, asked), ours, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("context", ["full", "memory"])
@pytest.mark.parametrize("uneven", [False, True])
def test_generate_says_the_same_with_the_same_logprobs(context: str, uneven: bool) -> None:
    policy, shape = tiny(), rollout.Shape(2, 3, 2, question=9, words=8, tool=7)
    policy.tokenizer.eos_ids = frozenset()
    counts = rollout.lengths(shape, uneven)
    turns, forward = rollout.ours(policy, shape, context, counts)
    assert [[len(words) for words in turn.words] for turn in turns] == counts
    for turn in turns:
        logprobs, tokens = naive.generate(policy, turn.prompts, turn.words, rollout.STOP)
        width = max(map(len, turn.prompts))
        assert tokens == len(turn.prompts) * (width + max(map(len, turn.words)) - 1)
        asked = [
            memory_signal.ScoreRequest(prompt, words) for prompt, words in zip(turn.prompts, turn.words, strict=True)
        ]
        for one, other in zip(logprobs, LocalScorer(policy).score(asked), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)
    assert forward.work.tokens > 0


def test_the_plain_step_makes_the_update_of_ours() -> None:
    policy = tiny()
    before = torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])
    other = copy.copy(policy)
    other.model = copy.deepcopy(policy.model)
    mine = step.Ours(policy, step.Play(policy.tokenizer, TURNS, "memory"), 1, 4, "visible")
    made = mine.step()
    assert [len(t.turns) for t in made.trajectories] == [3] * 4
    assert [t.answer is not None for t in made.trajectories] == [True] * 4
    assert len(made.requests) == 4 * 2 * 2  # notes of two turns, with and without
    rows = made.rows
    for part, old in zip(naive.micro_batches(rows, 5), naive.old_logprobs(other, rows, 5), strict=True):
        for row, found in zip(part, old, strict=True):
            (segment,) = row.row.segments
            sampled = row.logp_old[segment.start : segment.stop]
            np.testing.assert_allclose(found[segment.start - 1 : segment.stop - 1], sampled, rtol=0, atol=1e-4)
    plain = step.Plain(other, batch_rows=5)
    plain.step(made, mine.agent.grammar.stop_strings)
    ours, theirs = (torch.cat([p.detach().flatten() for p in one.model.parameters()]) for one in (policy, other))
    assert float((ours - before).abs().median()) > 0.5 * step.LR
    assert float((ours - theirs).abs().median()) < 0.1 * step.LR


# --- each at a minute size -------------------------------------------------------------------------------------------


def test_memory_signal() -> None:
    found = memory_signal.measure(tiny(), SMALL, "memory", "none", rounds=1)
    assert set(found.naive) == {"padded", "unpadded"}
    assert 0 < found.floor < 1
    assert found.signal[1] <= found.signal[0] <= found.signal[2]
    assert found.signal[0] > 0
    assert found.naive_tokens > found.signal_tokens
    assert len(memory_signal.line(found).split()) >= 8


def test_rollout() -> None:
    found = rollout.measure(tiny(), rollout.Shape(1, 2, 2, 9, 6, 5), "full", uneven=True, rounds=1)
    assert found.floor <= found.our_tokens < found.their_tokens
    assert "uneven" in rollout.line("full", True, found)


def test_step() -> None:
    found = step.measure(tiny(), TURNS, "full", questions=1, rollouts=2, rounds=1)
    assert sum(found.our_tokens.values()) < sum(found.plain_tokens.values())
    assert found.by_tokens > 1
    assert set(found.parts) == {"rollouts", "signal", "update"}
    assert "full" in step.line("full", found)


def test_context_growth(tmp_path: Path) -> None:
    policy = tiny()
    found = {
        (context, turns): context_growth.measure(policy, context, turns, 2, TURNS)
        for context in ("memory", "full")
        for turns in (3, 6)
    }
    assert found["memory", 6].peak_tokens <= 1.1 * found["memory", 3].peak_tokens
    assert found["full", 6].peak_tokens >= 1.7 * found["full", 3].peak_tokens
    context_growth.draw(list(found.values()), str(tmp_path / "growth.png"))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_scaling() -> None:
    sizes = scaling.sizes((1, 2, 1), 2)
    assert sizes == [(1, 2, 1), (1, 2, 2), (1, 2, 4)]
    generate, score = scaling.measure(tiny(), sizes, "memory", rounds=1, words=4)
    assert [len(rounds) for rounds in (*generate, *score)] == [1] * 6


def test_gpu_check_is_right_on_the_cpu_too(capsys: pytest.CaptureFixture[str]) -> None:
    half = model(None, vocabulary=512, width=64, layers=2, dtype=torch.bfloat16)
    assert [result for result in gpu_check.checks(tiny(), half, SMALL) if not result.right] == []


def test_gpu_check_refuses_politely(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check.py"])
    with pytest.raises(SystemExit) as refused:
        gpu_check.main()
    assert refused.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_profile_names_operations_and_functions() -> None:
    table = profiled.profile(lambda: torch.ones(50, 50) @ torch.ones(50, 50), rows=4)
    assert "aten::mm" in table
    assert "tottime" in table
