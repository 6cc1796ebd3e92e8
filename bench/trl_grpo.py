"""Runs in the environment of TRL, started by `trl_side.py`: a step for every line on its standard input."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def tell(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


class Steps(TrainerCallback):
    """Waits for a line before every step and tells what the step took."""

    def __init__(self) -> None:
        self.began = 0.0
        self.tokens = 0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        if not sys.stdin.readline():
            sys.exit()
        self.tokens = 0
        self.began = now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        tell({"seconds": now() - self.began, "tokens": self.tokens})


def main() -> None:
    order = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    steps = Steps()

    def score(completion_ids: list[list[int]], **_: Any) -> list[float]:
        steps.tokens += sum(map(len, completion_ids))
        return [float(n % 2) for n in range(len(completion_ids))]

    count = len(order["prompts"]) * order["group"]
    settings = GRPOConfig(
        output_dir=order["work"],
        use_cpu=order["device"] == "cpu",
        bf16=False,
        per_device_train_batch_size=count,
        gradient_accumulation_steps=1,
        num_generations=order["group"],
        max_completion_length=order["completion"],
        generation_kwargs={"min_new_tokens": order["completion"]},
        temperature=1.0,
        top_k=0,
        beta=0.0,
        learning_rate=order["lr"],
        lr_scheduler_type="constant",
        max_steps=order["steps"],
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(order["model"]),
        reward_funcs=score,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": order["prompts"] * order["steps"]}),
        callbacks=[steps],
    )
    names = ("trl", "transformers", "torch")
    tell({"versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)})
    trainer.train()


if __name__ == "__main__":
    main()
