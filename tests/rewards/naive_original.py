"""The original memory signal in plain loops and float64: one forward per context, nothing batched, nothing shared.

An independent second implementation for tests. Turns count from 0 here, so the first turn that is scored is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mempo.rollout.question import Question
from mempo.rollout.trajectory import Trajectory, Turn

# (context ids, continuation ids) -> log-prob of every continuation token
LogProbs = Callable[[Sequence[int], Sequence[int]], list[float]]


@dataclass(frozen=True)
class NaiveNote:
    """One scored note: P on either side, and how many gold tokens each side kept of how many."""

    p_mem: float
    p_baseline: float
    kept_mem: int
    kept_baseline: int
    gold_tokens: int

    @property
    def r(self) -> float:
        return self.p_mem - self.p_baseline


@dataclass(frozen=True)
class NaiveAdvantages:
    """`notes` and `memory`: `[rollouts]{turn}`; `outcome`: `[rollouts]`; `tokens`: `[rollouts][turns][generated]`."""

    notes: list[dict[int, NaiveNote]]
    outcome: list[float]
    memory: list[dict[int, float]]
    tokens: list[list[list[float]]]


def of_model(model: Any) -> LogProbs:
    """Log-probs by one forward of a float64 model over context and continuation."""

    def logprobs(context: Sequence[int], continuation: Sequence[int]) -> list[float]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*context, *continuation]]), use_cache=False).logits[0]
        assert logits.dtype == torch.float64
        found = []
        for k, token in enumerate(continuation):
            row = logits[len(context) + k - 1]
            found.append(float(row[token] - torch.logsumexp(row, 0)))
        return found

    return logprobs


def gold_of(question: Question) -> str:
    """The first alias of each objective, joined by `;`."""
    gold = question.gold
    assert gold is not None
    if isinstance(gold, str):
        return gold
    if isinstance(gold[0], str):
        return gold[0]
    return ";".join(aliases[0] for aliases in gold)


def probe_of(tokenizer: Any, thought: str, gold: str) -> tuple[list[int], list[int]]:
    """Ids of the probe, and the positions of the tokens that hold at least one character of the gold text."""
    before = "\n<think>\n" + thought + "\n</think>\n<answer>\n"
    encoded = tokenizer(before + gold + "\n</answer>", add_special_tokens=False, return_offsets_mapping=True)
    start, end = len(before), len(before) + len(gold)
    positions = []
    for k, (a, b) in enumerate(encoded["offset_mapping"]):
        if any(start <= char < end for char in range(a, b)):
            positions.append(k)
    return encoded["input_ids"], positions


def kept_mean(gold_logprobs: Sequence[float], count_eps: float) -> tuple[float, int]:
    """P and how many tokens entered it: those above log 0.5; none at all make P = 1."""
    total, count = 0.0, 0
    for value in gold_logprobs:
        if value > math.log(0.5):
            total += value
            count += 1
    return (math.exp(total / (count + count_eps)) if count else 1.0), count


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased std; fewer than two numbers have mean 0 and std 1."""
    if len(values) < 2:
        return 0.0, 1.0
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def note_tokens(tokenizer: Any, turn: Turn) -> set[int]:
    """Which own tokens hold a character of the note, or some of its bytes, tags included: by ever longer prefixes."""

    def decode(n: int) -> str:
        return tokenizer.decode(list(turn.own_ids[:n]), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    text = decode(len(turn.own_ids))

    def settled(n: int) -> int:
        """How many characters of the text the first n tokens write; a letter whose bytes are not all there is none."""
        prefix, count = decode(n), 0
        while count < len(prefix) and count < len(text) and prefix[count] == text[count]:
            count += 1
        return count

    start = text.index("<mem>")
    end = text.index("</mem>", start) + len("</mem>")
    found = set()
    for k in range(len(turn.own_ids)):
        first = settled(k)
        last = max(settled(k + 1), first + 1)  # bytes alone are part of the letter that comes
        if any(start <= char < end for char in range(first, last)):
            found.add(k)
    return found


def contexts_of(rollout: Trajectory, t: int) -> tuple[list[int], list[int]]:
    """`mem_t` and `full_t`: the question with the note alone, and with everything before turn t."""
    mem = list(rollout.question_ids) + list(rollout.turns[t].note_ids or ())
    full = list(rollout.question_ids)
    for earlier in rollout.turns[:t]:
        full += earlier.own_ids
        if earlier.observation is not None:
            full += earlier.observation.ids
    return mem, full


def score_rollout(
    question: Question, rollout: Trajectory, tokenizer: Any, logprobs: LogProbs, thought: str, count_eps: float
) -> dict[int, NaiveNote]:
    probe, positions = probe_of(tokenizer, thought, gold_of(question))
    notes = {}
    for t in range(1, len(rollout.turns)):
        if rollout.turns[t].note_ids is None:  # missing, or opened and never closed
            continue
        mem, full = contexts_of(rollout, t)
        by_mem, by_full = logprobs(mem, probe), logprobs(full, probe)
        p_mem, kept_mem = kept_mean([by_mem[k] for k in positions], count_eps)
        p_baseline, kept_baseline = kept_mean([by_full[k] for k in positions], count_eps)
        notes[t] = NaiveNote(p_mem, p_baseline, kept_mem, kept_baseline, len(positions))
    return notes


def original_advantages(
    question: Question,
    rollouts: Sequence[Trajectory],
    scores: Sequence[float],
    tokenizer: Any,
    logprobs: LogProbs,
    thought: str,
    count_eps: float = 1e-8,
) -> NaiveAdvantages:
    """The rollouts of one question. `count_eps` is added to the count of kept tokens, as the original does."""
    notes = [score_rollout(question, rollout, tokenizer, logprobs, thought, count_eps) for rollout in rollouts]

    pool = [note.r for rollout in notes for note in rollout.values()]
    mean, std = mean_and_std(pool)
    memory = [{t: (note.r - mean) / (std + 1e-6) for t, note in rollout.items()} for rollout in notes]

    assert len(scores) > 1
    mean, std = mean_and_std(scores)
    outcome = [(score - mean) / (std + 1e-6) for score in scores]

    tokens = []
    for i, rollout in enumerate(rollouts):
        by_turn = []
        for t, turn in enumerate(rollout.turns):
            inside = note_tokens(tokenizer, turn) if t in memory[i] else set()
            values = []
            for k in range(len(turn.forced_ids), len(turn.own_ids)):
                values.append(outcome[i] + (memory[i][t] if k in inside else 0.0))
            by_turn.append(values)
        tokens.append(by_turn)
    return NaiveAdvantages(notes, outcome, memory, tokens)
