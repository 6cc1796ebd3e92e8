"""The preset that copies the original signal, against an independent implementation in plain loops.

Rollouts are played by the real agent loop over scripted texts, with seven tokenizers whose token edges and the edges of
tags and answers seldom agree. The probabilities come from tiny models in float64, or from a made-up language model that
knows about half of all tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer
from transformers import PreTrainedTokenizerFast

from mempo.config.rewards import MemorySettings
from mempo.config.rollout import DecodingSettings, PromptSettings
from mempo.config.train import AdvantageSettings
from mempo.engine.policy import Policy
from mempo.engine.scorer import LocalScorer, score_naive
from mempo.rewards import NoteScore, OutcomeScore, score_notes
from mempo.rollout.agent import Job, rollout
from mempo.rollout.interfaces import Generation, Scorer, ScoreRequest, ToolResult
from mempo.rollout.question import Gold, Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Trajectory
from mempo.train.advantages import batch_advantages
from mempo.train.batch import advantages_by_turn, training_rows
from mempo.train.score_batch import ScoredBatch
from mempo.train.tiny_model import toy_tokenizer
from tests.rewards.naive_original import (
    LogProbs,
    NaiveAdvantages,
    NaiveNote,
    gold_of,
    mean_and_std,
    of_model,
    original_advantages,
    probe_of,
)
from tests.tiny import CORPUS, TAG_TOKENS, Scripted, make_agent, make_tokenizer, said, tiny_model, unigram

ORIGINAL = MemorySettings(preset="original")
THOUGHT = ORIGINAL.probe.thought
WORDS = [
    *("Paris", "Yen", "Zürich", "東京", "hello", "world", "naïve", "🎉", "capital", "of"),
    *("France", ";", "1", "23", "!", "ﬁne", "étude", "ÅB"),
]

# --- tokenizers ----------------------------------------------------------------------------------------------------


def crossing() -> Tokenizer:
    """Byte pairs without word edges: merges run across tags, line breaks and the beginning of a word."""
    t = HfTokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    lines = [f"<mem>{w}</mem><think>{w}</think>\n<answer>\n{w};{w}\n</answer>" for w in WORDS]
    t.train_from_iterator([*CORPUS, *lines * 20], trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>"))


def unknown_is_ordinary(t: HfTokenizer) -> HfTokenizer:
    """`<unk>` stays in the vocabulary and leaves the added tokens, so that unknown letters are ordinary text."""
    state = json.loads(t.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] != "<unk>"]
    return HfTokenizer.from_str(json.dumps(state))


def with_tags(t: HfTokenizer) -> Tokenizer:
    """Tokenizers that split at punctuation need the tags as added tokens to write them at all."""
    t = unknown_is_ordinary(t)
    t.add_tokens([AddedToken(tag, normalized=False) for tag in TAG_TOKENS])
    t.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>"))


def word_piece() -> Tokenizer:
    """As BERT has it: lower case, accents gone, white space dropped."""
    t = HfTokenizer(models.WordPiece(unk_token="<unk>"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=["<unk>", "<eos>"], show_progress=False)
    t.train_from_iterator([*CORPUS, *WORDS], trainer)
    return with_tags(t)


def word_level() -> Tokenizer:
    """Whole words and runs of punctuation; half of the words are unknown."""
    known = ("<unk>", "<eos>", ";", ".", "think", "answer", "The", "is", "enough", "to", "tool_response")
    vocabulary = [*known, *WORDS[::2]]
    t = HfTokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return with_tags(t)


def sentence_piece() -> Tokenizer:
    """Unigram with "▁" for spaces and one in front of the text."""
    t = unknown_is_ordinary(unigram())
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>"))


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "crossing": crossing,
    "special_tags": lambda: make_tokenizer("byte_bpe", "special"),
    "word_piece": word_piece,
    "word_level": word_level,
    "sentence_piece": sentence_piece,
    "byte_fallback": lambda: make_tokenizer("byte_fallback"),
    "toy": lambda: toy_tokenizer(["capital of France: Paris", "1 2 hello; world", *WORDS[:5]]),
}
MODELS = dict(zip(MAKERS, ("llama", "gpt_neox", "qwen2", "llama", "gpt_neox", "llama", "qwen2"), strict=True))


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return MAKERS[name]()


# --- rollouts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """The rollouts of one question and their scores."""

    question: Question
    rollouts: list[Trajectory]
    scores: list[float]


class Finder:
    """A search tool that finds random words, sometimes nothing."""

    name = "search"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def call(self, argument: str) -> ToolResult:
        found = tuple(words(self._rng, 4) for _ in range(self._rng.randrange(3)))
        return ToolResult(found, notice="" if found else "nothing was found")


def words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def random_gold(rng: random.Random) -> Gold:
    shape = rng.choice(["text", "aliases", "objectives", "objectives"])
    if shape == "text":
        return words(rng, 2)
    if shape == "aliases":
        return tuple(words(rng, 2) for _ in range(rng.randint(1, 3)))
    return tuple(tuple(words(rng, 2) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 4)))


def random_turn(rng: random.Random, gap: str, forced: bool, last: bool) -> str:
    """Text of a turn. With `forced` the opening tag of the note is already there."""
    opening = "" if forced else "<mem>"
    note = rng.choices(["closed", "none", "unclosed"], [8, 1 - forced, 1])[0]
    parts: list[str] = []
    if note != "none":
        parts += [opening, words(rng, 3)] if opening else [words(rng, 3)]
        parts += ["</mem>"] if note == "closed" else []
    if note == "unclosed" and rng.random() < 0.5:
        return gap.join(parts)  # nothing follows
    action = "answer" if last and rng.random() < 0.7 else "search"
    parts += ["<think>", words(rng, 2), "</think>", f"<{action}>", words(rng, 2), f"</{action}>"]
    return gap.join(parts) + ("<eos>" if rng.random() < 0.2 else "")


def play(tokenizer: Tokenizer, rng: random.Random, asked: Question, place: int, gap: str) -> Trajectory:
    turns = rng.randint(1, 5)
    force = rng.random() < 0.3
    texts: list[str | Generation | Exception] = []
    for t in range(turns):
        text = random_turn(rng, gap, force and t > 0, t == turns - 1)
        cut = said(tokenizer, text)
        if rng.random() < 0.1 and len(cut.ids) > 4:  # the token limit came first
            n = rng.randint(1, len(cut.ids) - 1)
            texts.append(Generation(cut.ids[:n], cut.logprobs[:n], GenerationStop.LENGTH))
        else:
            texts.append(text)
    return play_texts(tokenizer, asked, place, texts, force, rng.choice(["full", "memory"]), rng)


def play_texts(
    tokenizer: Tokenizer,
    asked: Question,
    place: int,
    texts: Sequence[str | Generation | Exception],
    force: bool = False,
    context: str = "full",
    rng: random.Random | None = None,
) -> Trajectory:
    prompt = PromptSettings(template="plain", force_mem=force)
    tools = {"search": Finder(rng or random.Random(0))}
    agent = make_agent(tokenizer, context, tools=tools, prompt=prompt, max_turns=len(texts))
    return asyncio.run(rollout(agent, Scripted(tokenizer, texts), Job(asked, place, (0,)), DecodingSettings()))


def random_group(tokenizer: Tokenizer, seed: int, id: str = "q") -> Group:
    rng = random.Random(seed)
    gap = rng.choice(["", "", " "])
    asked = Question(id, words(rng, 4), random_gold(rng))
    rollouts = [play(tokenizer, rng, asked, place, gap) for place in range(rng.randint(2, 4))]
    return Group(asked, rollouts, [float(rng.random() < 0.5) for _ in rollouts])


# --- both sides ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    notes: list[list[NoteScore]]
    tokens: list[dict[int, list[float]]]


def library(groups: Sequence[Group], tokenizer: Tokenizer, scorer: Scorer) -> Ours:
    """A batch of groups of one size through the library."""
    rollouts = [one for group in groups for one in group.rollouts]
    questions = [group.question for group in groups for _ in group.rollouts]
    notes = score_notes(questions, rollouts, tokenizer, scorer, ORIGINAL)
    outcomes = [OutcomeScore(score, None, True, {}) for group in groups for score in group.scores]
    batch = ScoredBatch(questions, rollouts, outcomes, notes, [], {}).counted(len(groups[0].rollouts))
    rows = training_rows(batch, batch_advantages(batch, AdvantageSettings(), ORIGINAL))
    return Ours(notes, advantages_by_turn(rows, len(rollouts)))


def naive(group: Group, tokenizer: Tokenizer, logprobs: LogProbs, count_eps: float = 0.0) -> NaiveAdvantages:
    return original_advantages(group.question, group.rollouts, group.scores, tokenizer.hf, logprobs, THOUGHT, count_eps)


def assert_equal(ours: Ours, expected: NaiveAdvantages, p_atol: float, advantage_atol: float) -> None:
    """Notes, kept counts and the advantage of every generated token."""
    for found, wanted in zip(ours.notes, expected.notes, strict=True):
        assert [note.turn for note in found] == list(wanted)
        for note in found:
            one = wanted[note.turn]
            assert (note.gold_tokens, note.kept_mem, note.kept_baseline) == (
                one.gold_tokens,
                one.kept_mem,
                one.kept_baseline,
            )
            assert note.reason is None
            assert (note.p_mem, note.p_baseline, note.r) == pytest.approx(
                (one.p_mem, one.p_baseline, one.r), rel=0, abs=p_atol
            )
    for found, wanted in zip(ours.tokens, expected.tokens, strict=True):
        assert list(found) == list(range(len(wanted)))
        for t, values in found.items():
            assert values == pytest.approx(wanted[t], rel=0, abs=advantage_atol)


class Believer:
    """A language model without a network: about half of all tokens are likelier than 1/2, some exactly as likely."""

    def logprob(self, before: Sequence[int], token: int) -> float:
        drawn = hashlib.blake2b(np.array([*before, token], dtype=np.int64).tobytes(), digest_size=4).digest()
        rng = random.Random(drawn)
        return math.log(0.5) if rng.random() < 0.1 else -4 * rng.random() ** 3

    def logprobs(self, context: Sequence[int], continuation: Sequence[int]) -> list[float]:
        return [self.logprob((*context, *continuation[:k]), token) for k, token in enumerate(continuation)]

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        return [
            np.array(
                [self.logprob((*r.prefix_ids, *r.continuation_ids[:k]), r.continuation_ids[k]) for k in r.which or ()]
            )
            for r in requests
        ]


# --- agreement -----------------------------------------------------------------------------------------------------


@settings(max_examples=70, deadline=None)
@given(st.sampled_from(sorted(MAKERS)), st.integers(0, 2**32))
def test_random_groups(name: str, seed: int) -> None:
    tokenizer, model = tokenizer_of(name), Believer()
    group = random_group(tokenizer, seed)
    assert_equal(library([group], tokenizer, model), naive(group, tokenizer, model.logprobs), 1e-12, 1e-9)


def most_difference(advantages: NaiveAdvantages) -> float:
    """How far `count + 1e-8` instead of `count` can move an advantage.

    P grows by P * |mean| * 1e-8 / count, at most log(2)/2 * 1e-8 since kept tokens have a mean above log 0.5. r moves
    by no more than one such step, the pool's mean and std by no more than r, and a std near 0 makes much of it.
    """
    pool = [note.r for rollout in advantages.notes for note in rollout.values()]
    largest = max((abs(a) for rollout in advantages.memory for a in rollout.values()), default=0.0)
    return 1e-9 + 0.35e-8 * (2 + 2 * largest) / (mean_and_std(pool)[1] + 1e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["crossing", "toy"])
def test_the_small_number_beside_the_count_hardly_matters(name: str, seed: int) -> None:
    """The original divides by count + 1e-8, which is there to make the empty choice 0/1e-8 = 0; we say so directly."""
    tokenizer, model = tokenizer_of(name), Believer()
    group = random_group(tokenizer, seed)
    expected = naive(group, tokenizer, model.logprobs, count_eps=1e-8)
    assert_equal(library([group], tokenizer, model), expected, 0.35e-8, most_difference(expected))


def test_groups_of_a_batch_share_nothing() -> None:
    tokenizer, model = tokenizer_of("crossing"), Believer()
    made = [random_group(tokenizer, seed, id=f"q{seed}") for seed in range(12)]
    groups = [group for group in made if len(group.rollouts) == 3]
    assert len(groups) > 2
    together = library(groups, tokenizer, model)
    for k, group in enumerate(groups):
        part = slice(3 * k, 3 * k + 3)
        alone = Ours(together.notes[part], together.tokens[part])
        assert_equal(alone, naive(group, tokenizer, model.logprobs), 1e-12, 1e-9)


def trained_policy(name: str, groups: Sequence[Group]) -> Policy:
    """A tiny float64 model that has read the answers a few times, so that it is sure of some gold tokens."""
    tokenizer = tokenizer_of(name)
    policy = tiny_model(MODELS[name], tokenizer)
    model: Any = policy.model.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with torch.enable_grad():
        for step in range(20):
            group = groups[step % len(groups)]
            probe, _ = probe_of(tokenizer.hf, THOUGHT, gold_of(group.question))
            ids = torch.tensor([[*group.rollouts[0].question_ids, *probe]])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:]).backward()
            optimizer.step()
    model.requires_grad_(False)
    return policy


class Naive:
    """The reference scorer of the engine, with the scorer's own interface."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        return score_naive(self._policy, requests, temperature)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_models(name: str) -> None:
    tokenizer = tokenizer_of(name)
    groups = [random_group(tokenizer, seed) for seed in (2, 23)]
    policy = trained_policy(name, groups)
    scored: list[NaiveNote] = []
    for group in groups:
        expected = naive(group, tokenizer, of_model(policy.model))
        notes = [note for rollout in expected.notes for note in rollout.values()]
        assert_equal(library([group], tokenizer, Naive(policy)), expected, 1e-12, 1e-9)
        # The batched scorer takes log-probs in float32, whatever the model's own type is.
        std = mean_and_std([note.r for note in notes])[1]
        assert_equal(library([group], tokenizer, LocalScorer(policy, 1500)), expected, 1e-6, 1e-5 / (std + 1e-6))
        scored += notes
    assert len(scored) > 4
    assert any(0 < note.kept_mem < note.gold_tokens for note in scored)
    assert len({note.r for note in scored}) > 2


def test_token_edges_of_the_tests_do_cross_those_of_answers_and_notes() -> None:
    tokenizer = tokenizer_of("crossing")
    ids, positions = probe_of(tokenizer.hf, THOUGHT, "Zürich;hello")
    assert [tokenizer.decode([ids[k]]) for k in positions] == ["Zürich", ";hello\n</answer>"]
    note = [tokenizer.decode([i]) for i in tokenizer.encode_trusted("<mem>Paris</mem><think>")]
    assert note == ["<mem>Paris", "</mem><think>"]


# --- by hand -------------------------------------------------------------------------------------------------------


class Told:
    """Answers every request for gold tokens with the next of the given lists."""

    def __init__(self, *answers: Sequence[float]) -> None:
        self._answers = answers

    def score(self, requests: Sequence[ScoreRequest], temperature: float = 1.0) -> list[np.ndarray]:
        return [np.array(answer) for answer, _ in zip(self._answers, requests, strict=True)]


def test_an_only_note_by_hand() -> None:
    """Log-probs -0.2, -3.5, -0.1, -2.8: the first and third are kept. The history knows nothing, which counts as 1."""
    tokenizer = tokenizer_of("toy")
    asked = Question("q", "?", (("Paris", "Paname"), ("xy",)))
    noted = "<mem>Paris</mem><think>t</think><answer>Paris;xy</answer>"
    rollouts = [
        play_texts(tokenizer, asked, 0, ["<think>t</think><search>s</search>", noted]),
        play_texts(tokenizer, asked, 1, ["<mem>first</mem><think>t</think><search>s</search>", "<mem>never closed"]),
    ]
    group = Group(asked, rollouts, [1.0, 0.0])
    ours = library([group], tokenizer, Told([-0.2, -3.5, -0.1, -2.8], [math.log(0.5)] * 4))
    [[note], none] = ours.notes
    assert none == []
    assert (note.turn, note.gold_tokens, note.kept_mem, note.kept_baseline) == (1, 4, 2, 0)  # Paris ; x y
    assert (note.p_mem, note.p_baseline) == (pytest.approx(math.exp(-0.15)), 1.0)
    outcome, r = 0.5 / (math.sqrt(0.5) + 1e-6), math.exp(-0.15) - 1
    on_note = len(tokenizer.encode_trusted("<mem>Paris</mem>"))
    rest = len(rollouts[0].turns[1].generated_ids) - on_note
    assert ours.tokens[0][1] == pytest.approx([outcome + r / (1 + 1e-6)] * on_note + [outcome] * rest)
    assert {a for by_turn in ours.tokens[1].values() for a in by_turn} == {-outcome}


def test_two_clueless_sides_are_worth_nothing() -> None:
    tokenizer = tokenizer_of("toy")
    asked = Question("q", "?", "Paris")
    noted = "<mem>Paris</mem><think>t</think><answer>Paris</answer>"
    rollouts = [play_texts(tokenizer, asked, i, ["<think>t</think><search>s</search>", noted]) for i in range(2)]
    ours = library([Group(asked, rollouts, [0.0, 0.0])], tokenizer, Told([-3.0], [-4.0], [-5.0], [-1.0]))
    assert [(note.p_mem, note.p_baseline, note.r) for [note] in ours.notes] == [(1.0, 1.0, 0.0)] * 2
    assert {a for rollout in ours.tokens for by_turn in rollout.values() for a in by_turn} == {0.0}
