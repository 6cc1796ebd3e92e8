"""CPU-seconds of an update whose rows share prompts: every row whole, and each prompt once.

    python bench/update_prefix.py --prompt 256 --new 192

Rows as a rebuilt context makes them: a question's rollouts and their turns all begin with the question's prompt. The
model is a Llama of the width of SmolLM2-135M with random weights. Both ways make the same step and take turns.
"""

from __future__ import annotations

import argparse
import os
import random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch

import torch
from timing import alternate, ratio
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mempo.engine.update
from mempo.config.train import OptimSettings
from mempo.engine.model import wrap_policy
from mempo.engine.policy import Policy
from mempo.engine.training_cache import shares_exactly
from mempo.engine.update import TrainRow, Updater
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row, Segment

VOCABULARY = 1000


def make_policy(layers: int) -> Policy:
    torch.manual_seed(0)
    words = {f"w{n}": n for n in range(VOCABULARY - 1)} | {"<eos>": VOCABULARY - 1}
    tokenizer = HfTokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))
    shape: dict[str, Any] = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, max_position_embeddings=4096, **shape)
    return wrap_policy(LlamaForCausalLM(config), tokenizer)


def make_rows(questions: int, rows: int, prompt: int, new: int) -> list[TrainRow]:
    """Lengths behind the prompt are spread evenly between half and one and a half of `new`."""
    rng, made = random.Random(0), []
    for question in range(questions):
        start = tuple(rng.randrange(VOCABULARY) for _ in range(prompt))
        for n in range(rows):
            own = tuple(rng.randrange(VOCABULARY) for _ in range(new // 2 + new * n // max(rows - 1, 1)))
            row = Row(question, start + own, (Segment(0, prompt + len(own) // 2, prompt + len(own)),))
            made.append(TrainRow(row, [1.0] * len(row.ids), [-7.0] * len(row.ids)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2)
    parser.add_argument("--rows", type=int, default=12, help="rows of a question: rollouts x turns")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a question's prompt")
    parser.add_argument("--new", type=int, default=192, help="tokens of a row behind it, on average")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    shape = parser.parse_args()
    rows = make_rows(shape.questions, shape.rows, shape.prompt, shape.new)
    optim = OptimSettings(micro_batch_tokens=shape.micro_batch_tokens)
    updaters: dict[str, Updater] = {}
    for name, check in (("whole rows", lambda model: False), ("prompt once", shares_exactly)):
        mempo.engine.update.shares_exactly = check
        updaters[name] = Updater(make_policy(shape.layers), optim)
    first = {name: updater.rl_step(rows, 1e-9) for name, updater in updaters.items()}
    seconds = alternate({name: lambda u=u: u.rl_step(rows, 1e-9) for name, u in updaters.items()}, shape.rounds)
    losses = [metrics["update/loss"] for metrics in first.values()]
    assert abs(losses[0] - losses[1]) < 1e-5, f"the two ways disagree: {losses}"
    tokens = sum(len(row.row.ids) - 1 for row in rows)
    for name, metrics in first.items():
        padding, spared = metrics["update/padding_share"], metrics["update/prefix_share"]
        fed = tokens * (1 - spared) / (1 - padding)
        print(f"{name:12} {fed:7.0f} tokens, padding {padding:5.1%}   {min(seconds[name]):7.2f} CPU-s")
    middle, low, high = ratio(seconds["whole rows"], seconds["prompt once"])
    print(f"ratio {middle:.2f} x ({low:.2f} to {high:.2f} over {shape.rounds} rounds)")


if __name__ == "__main__":
    main()
