"""Made-up rollouts of a given shape, and a made-up model: what the benches run on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mempo.config.engine import ModelSettings
from mempo.engine.model import load_policy, wrap_policy
from mempo.engine.policy import Policy
from mempo.envs.registry import make_environment
from mempo.rollout.interfaces import ScoreRequest
from mempo.rollout.protocol import TurnGrammar, parse_turn
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop, Observation, ObservationPart, StopReason, Trajectory, Turn, rows_of

_SEARCH = "<mem>n</mem><think>t</think><search>s</search>"
_ANSWER = "<mem>n</mem><think>t</think><answer>a</answer>"


@dataclass(frozen=True)
class Shape:
    """Tokens of a rollout. The default has 1 970: a question of 90, five turns, notes of 60, probes of 30."""

    question: int = 90
    turns: int = 5
    note: int = 60
    words: int = 50
    observation: int = 347
    probe: int = 30
    gold: int = 4

    @property
    def total(self) -> int:
        own = self.turns * self.words + (self.turns - 1) * self.note
        return self.question + own + (self.turns - 1) * self.observation


class Ids:
    """Random ids that never share a beginning by chance."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._vocabulary = vocabulary

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(range(3, self._vocabulary), k=count))


def rollout(shape: Shape, question: tuple[int, ...], ids: Ids, context: str, number: int) -> Trajectory:
    """A rollout as `context` (`full` or `memory`) shows it to the policy."""
    turns: list[Turn] = []
    history = question
    for index in range(shape.turns):
        note = ids.take(shape.note) if index else ()
        words = ids.take(shape.words)
        last = index + 1 == shape.turns
        observation = None if last else Observation((ObservationPart(ids.take(shape.observation), True),))
        text = (_ANSWER if last else _SEARCH)[0 if index else len("<mem>n</mem>") :]
        if context == "memory" and turns:
            before = turns[-1]
            prompt = question + (before.note_ids or ()) + (before.action_ids or ())
            prompt += before.observation.ids if before.observation else ()
        else:
            prompt = history
        turn = Turn(
            index=index,
            prompt_ids=prompt,
            generated_ids=note + words,
            logprobs=(-1.0,) * len(note + words),
            stop=GenerationStop.STOP_STRING,
            parsed=parse_turn(text, index, TurnGrammar()),
            note_span=(0, len(note)) if note else None,
            note_ids=note or None,
            action_ids=words[-20:],
            observation=observation,
        )
        history += note + words + (observation.ids if observation else ())
        turns.append(turn)
    return Trajectory("q", number, question, tuple(turns), StopReason.ANSWERED, "a")


def rollouts(shape: Shape, context: str, questions: int, per_question: int, vocabulary: int) -> list[Trajectory]:
    """`[questions × rollouts]`."""
    ids = Ids(vocabulary)
    prompts = [ids.take(shape.question) for _ in range(questions)]
    return [rollout(shape, prompt, ids, context, n) for prompt in prompts for n in range(per_question)]


def logp_old_requests(trajectories: list[Trajectory]) -> list[ScoreRequest]:
    """The log-probs of all generated tokens, row by row."""
    requests = []
    for trajectory in trajectories:
        for row in rows_of(trajectory):
            start = row.segments[0].start
            which = [p - start for segment in row.segments for p in range(segment.start, segment.stop)]
            requests.append(ScoreRequest(row.ids[:start], row.ids[start:], tuple(which)))
    return requests


@cache
def texts() -> tuple[str, ...]:
    """The documents of the built-in environment."""
    return tuple(document.text for document in make_environment("atlas", {}).documents())


@cache
def tokenizer(vocabulary: int) -> Tokenizer:
    """Byte pairs learned from those documents."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>"))


def model(
    path: str | None,
    device: str = "cpu",
    vocabulary: int = 4096,
    width: int = 256,
    layers: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Policy:
    """The policy of a folder, or a random Llama (5 million parameters by default)."""
    if path:
        return load_policy(ModelSettings(device=device, dtype=str(dtype).removeprefix("torch.")), path)  # type: ignore[arg-type]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    made: Any = LlamaForCausalLM(config)
    return wrap_policy(made.to(device=device, dtype=dtype), tokenizer(vocabulary))


def describe(policy: Policy) -> str:
    millions = policy.model.num_parameters() / 1e6
    dtype = str(policy.model.dtype).removeprefix("torch.")
    return f"{type(policy.model).__name__}, {millions:.0f} M parameters, {dtype}, {policy.device.type}"
