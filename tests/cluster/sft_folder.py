"""A small configuration of demonstrations for a tiny model in a folder."""

from __future__ import annotations

from pathlib import Path

from mempo.config import Resolved, resolve
from mempo.engine.model import save_policy
from mempo.engine.policy import Policy
from tests.tiny import chat_tokenizer, tiny_llama

TOKENIZER = chat_tokenizer()


def tiny_policy() -> Policy:
    return tiny_llama(TOKENIZER, max_position_embeddings=2048)


def sft_config(folder: Path, *overrides: str) -> Resolved:
    """Questions of an environment of a few names, demonstrations in the memory context, a model of two layers."""
    if not (folder / "model").is_dir():
        save_policy(tiny_policy(), folder / "model")
    settings = [
        f"model.path={folder / 'model'}",
        "model.device=cpu",
        "data.environment=atlas",
        "data.environment_options={rendering: cards, subset: toy, forms: [one_hop]}",
        "data.objectives=[2]",
        "data.train_questions=8",
        "agent.context=memory",
        "agent.tools=[search]",
        "limits.max_context_tokens=2048",
        "limits.max_turn_tokens=400",
        "sft.demos=6",
        "sft.batch_rows=4",
        "sft.steps=3",
        "sft.optim={lr: 1e-3, schedule: cosine, warmup_steps: 1}",
    ]
    return resolve(None, [*settings, *overrides])
