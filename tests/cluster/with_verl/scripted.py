"""What the policy of the test runs says: rollout `k` of a question searches a number of times and then answers.

Turns carry their own place (`r2t1`), so that the server, which sees nothing but token ids, knows what comes next.
"""

from __future__ import annotations

import re

_PLACE = re.compile(r"r(\d+)t(\d+)")
SEARCHES = (0, 2, 6, 1)
"""By rollout, so turn counts go from 1 to 7."""
FAILS = ("land 3?", "r2t1")
"""The server fails where a prompt of this question holds this note: one rollout of the eight questions' 32."""


def next_turn(seen: str, fresh: int) -> str:
    """The turn after `seen`, the prompt as text; `fresh`: the rollout's number where nothing was said yet."""
    if all(text in seen for text in FAILS):
        raise ConnectionError("the scripted failure")
    places = _PLACE.findall(seen)
    k, turn = (int(places[-1][0]), int(places[-1][1]) + 1) if places else (fresh % len(SEARCHES), 0)
    note = f"<mem>r{k}t{turn} " + "seen it. " * (1 + (k + turn) % 3) + "</mem>"
    if seen.endswith("<mem>"):  # written for the policy already
        note = note.removeprefix("<mem>")
    thought = f"<think>step {turn}</think>"
    if turn >= SEARCHES[k]:
        return f"{note}{thought}<answer>answer {k % 2}</answer>"
    return f"{note}{thought}<search>capital {k} {turn}</search>"


def score(question: object, trajectory: object) -> float:
    """Every other rollout is right, so that there is something to learn."""
    return 1.0 if getattr(trajectory, "answer", None) == "answer 1" else 0.0
