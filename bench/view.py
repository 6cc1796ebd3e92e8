"""How long pages of a large rollout file take: 10 000 rollouts of 8 turns, with their token arrays beside them.

    python bench/view.py [--rollouts 10000] [--folder DIR]

Prints seconds for the first list (which reads the small part of every line once), for lists after that, for a group and
for a rollout, and the megabytes of the files. The tokenizer's libraries are loaded before: a viewer does so while its
reader looks at the first page.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mempo.storage.files import dump_line
from mempo.storage.rollouts import Sidecar, tokens_path
from mempo.view.app import create_app
from mempo.view.folder import open_folders

LETTERS = 94  # of the 256 bytes, those that are a letter by themselves
TURNS, PROMPT_TOKENS, TURN_TOKENS, FOUND_TOKENS = 8, 60, 150, 400


def made(folder: Path, rollouts: int) -> Path:
    """A run with one step; token ids are drawn, in turns of about real sizes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = HfTokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder / "final")
    (folder / "final" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "metrics.jsonl").write_text(
        "".join(dump_line({"stage": "rl", "step": n, "score": 0.5}) for n in range(1, 301))
    )
    path = folder / "rollouts" / "step-1.jsonl"
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    with path.open("w") as lines, tokens_path(path).open("wb") as arrays:
        items = 0
        for number in range(rollouts):
            sidecar = Sidecar(items)
            line = _line(number, sidecar, rng)
            lines.write(dump_line(line))
            items += arrays.write(sidecar.bytes()) // 4
    return folder


def _line(number: int, sidecar: Sidecar, rng: np.random.Generator) -> dict[str, object]:
    def ids(count: int) -> list[int]:
        return sidecar.put([int(i) for i in rng.integers(0, LETTERS, count)], "<i4")

    question = ids(PROMPT_TOKENS)
    turns = []
    for turn in range(TURNS):
        own = ids(TURN_TOKENS)
        floats = [sidecar.put([0.1] * TURN_TOKENS, "<f4") for _ in range(2)]
        prompt = [turn, PROMPT_TOKENS, *ids(FOUND_TOKENS if turn else 0)]
        found = {"observation": [[*ids(FOUND_TOKENS), 1]]} if turn < TURNS - 1 else {}
        turns.append(
            {"stop": "stop_string", "outcome": "no_action", "note": "missing", "prompt": prompt, "generated": own}
            | {"logprobs": floats[0], "advantages": floats[1], **found}
        )
    notes = [
        {"turn": t, "p_mem": 0.4, "p_baseline": 0.5, "r": 0.1 * (number % 3), "gold_tokens": 4, "kept_mem": 4}
        | {
            "p_mem_raw": 0.4 + 0.01 * (number % 40),
            "p_baseline_raw": 0.5,
            "reason": None,
            "p_ahead": [],
            "advantage": 0.1,
        }
        for t in range(1, TURNS)
    ]
    own = {"question_id": f"q{number // 8}", "rollout": number % 8, "stop": "turn_limit", "answer": None, "error": None}
    facts = {"question": "what is asked, about so long? " * 4, "gold": [["one", "two"]] * 3, "score": 0.0, "em": 0.0}
    facts |= {
        "violations": {"clean": 2},
        "is_error": False,
        "num_turns": TURNS,
        "note_tokens": [40] * 7,
        "notes": notes,
    }
    return {**own, **facts, "advantage": 0.25, "question_ids": question, "turns": turns}


def timed(ask: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    ask()
    return time.perf_counter() - began, time.process_time() - worked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="keep the run here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "config.yaml").exists():
            folder.mkdir(exist_ok=True)
            made(folder, options.rollouts)
        sizes = [f"{file.name} {file.stat().st_size / 1e6:.0f} MB" for file in (folder / "rollouts").iterdir()]
        print(f"{options.rollouts} rollouts: {', '.join(sorted(sizes))}")
        folders = open_folders([folder])
        folders[0].tokenizer()
        client = TestClient(create_app(folders), base_url="http://localhost")
        last = options.rollouts - 1
        pages = {
            "runs and curves": "/",
            "questions, the first time": "/run/0/step-1/",
            "questions, again": "/run/0/step-1/?start=1000",
            "a filter": "/run/0/step-1/?filter=wrong-good-note",
            "a question's 8 rollouts": f"/run/0/step-1/question/{last // 8 * 8}",
            "the last rollout": f"/run/0/step-1/rollout/{last}",
            "text that none holds": "/run/0/step-1/?text=nowhere%20at%20all",
        }
        for name, page in pages.items():
            clock, cpu = timed(lambda page=page: client.get(page).raise_for_status())
            print(f"{name:28} {clock:6.3f} s, {cpu:6.3f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
