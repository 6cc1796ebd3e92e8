"""What it costs to score saved rollouts again: 100 000 of them, against the time of parsing their file.

    python bench/rescore.py [--rollouts 100000] [--objectives 2] [--turns 4] [--rounds 3] [--scores default]

`parsing`: `json.loads` of every line into a list, what any reader of the file does at least. `re-scoring`: read the
lines, score every answer again, all measures with their intervals, the table. The sidecar of tokens is empty, so it is
not read. Half of the parts of answers are wrong, no two of those alike, so that nothing can be remembered.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from timing import alternate, ratio, spread

from mempo.config.rewards import OutcomeSettings
from mempo.evaluate.compare import Entry, compare
from mempo.evaluate.rescore import metric_names, scorers_of
from mempo.evaluate.saved import collector_at_rest, scored_lines
from mempo.rewards.answer_match import normalize
from mempo.storage.files import dump_line
from mempo.storage.rollouts import tokens_path

WORDS = [
    "north",
    "river",
    "old",
    "stone",
    "battle",
    "of",
    "the",
    "great",
    "lake",
    "saint",
    "upper",
    "valley",
    "king",
    "queen",
    "island",
    "port",
    "new",
    "red",
    "high",
]

TARGET = 1.5


def line(number: int, objectives: int, turns: int, rng: random.Random) -> str:
    """A rollout as `mempo eval` writes it: its facts, then where its tokens would be."""
    of_question = random.Random(number // 4)
    gold = [
        [f"{of_question.choice(WORDS)} {of_question.choice(WORDS)} {of_question.randrange(10**6)}".title()]
        for _ in range(objectives)
    ]
    said = [aliases[0] if rng.random() < 0.5 else f"the {rng.choice(WORDS)} {rng.randrange(10**9)}" for aliases in gold]
    right = [float(a[0] == b) for a, b in zip(gold, said, strict=True)]
    record = {
        "question_id": f"bench/{number // 4}",
        "rollout": number % 4,
        "stop": "answered",
        "answer": "; ".join(said),
        "error": None,
        "question": "; ".join(f"what is the place of {a[0]}" for a in gold),
        "gold": gold,
        "objectives": objectives,
        "score": float(all(right)),
        "em": float(all(right)),
        "f1": sum(right) / objectives,
        "sub_em": float(all(right)),
        "mean_em": sum(right) / objectives,
        "mean_f1": sum(right) / objectives,
        "objective_em": right,
        "objective_f1": right,
        "objective_sub_em": right,
        "format_ok": True,
        "violations": {},
        "is_error": False,
        "tool_errors": 0,
        "num_turns": turns,
        "actions": {"search": turns - 1, "answer": 1},
        "outcomes": {"ok": turns},
        "note_statuses": {"ok": turns - 1},
        "note_tokens": [rng.randrange(10, 60) for _ in range(turns - 1)],
        "notes": [],
        **{
            name: rng.randrange(500, 900)
            for name in ("generated_tokens", "peak_context_tokens", "total_tokens", "processed_tokens")
        },
        **{name: rng.randrange(500, 900) for name in ("read_tokens", "written_tokens", "mem1_peak_tokens")},
        "dependency": rng.randrange(10**5, 10**6) / 2,
        "seconds": round(rng.uniform(1, 9), 3),
        "question_ids": [number, 60],
        "turns": [
            {
                "stop": "stop_string",
                "outcome": "ok",
                "note": "ok",
                "prompt": [n, 60, number + n, 380],
                "generated": [number + n, 90],
                "logprobs": [number + n, 90],
                "note_span": [0, 40],
                "note_ids": [number + n, 40],
                "action_ids": [number + n, 12],
                "observation": [[number + n + i, 60, i % 2] for i in range(7)],
            }
            for n in range(turns)
        ],
    }
    return dump_line(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--objectives", type=int, default=2)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scores", default="default")
    given = parser.parse_args()
    scorers, rng = scorers_of(given.scores), random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.jsonl"
        with file.open("w", encoding="utf-8") as opened:
            opened.writelines(line(n, given.objectives, given.turns, rng) for n in range(given.rollouts))
        tokens_path(file).touch()  # what tells our own files
        megabytes = file.stat().st_size / 1e6

        def parse() -> int:
            with collector_at_rest(), file.open("rb") as opened:
                return len([json.loads(text) for text in opened])

        def again() -> float | None:
            normalize.cache_clear()  # as in a new process
            with collector_at_rest():
                lines = scored_lines(file, scorers, OutcomeSettings())
                return compare([Entry("memory", lines)], metric_names(scorers)).rows[0].estimates["em"].mean

        seconds = alternate({"parsing": parse, "re-scoring": again}, given.rounds)
    print(f"{given.rollouts} rollouts, {given.objectives} objectives, {given.turns} turns, {megabytes:.0f} MB")
    for name, values in seconds.items():
        print(f"{name}: {min(values):.1f} s of CPU time ({1e6 * min(values) / given.rollouts:.0f} µs a rollout)")
    found = ratio(seconds["re-scoring"], seconds["parsing"])
    met = "met" if found[0] <= TARGET else "missed"
    print(f"re-scoring / parsing: {spread(found)} with {given.scores}; target {TARGET}: {met}")


if __name__ == "__main__":
    main()
