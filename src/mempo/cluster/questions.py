"""Questions in the parquet files that verl's data loader reads, whole and exact.

verl's own columns (`prompt`, `data_source`, `reward_model`) are filled for whoever looks at the file or reuses it; what
the agent plays is `extra_info.question`, the question as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mempo.rollout.question import Question, as_gold

AGENT = "mempo"
"""The name under which the agent loop is registered with verl."""
TRAINER = "mempo"
"""The name of the trainer there."""


def question_json(question: Question) -> str:
    return json.dumps(
        {
            "id": question.id,
            "text": question.text,
            "gold": question.gold,
            "probe": question.probe,
            "meta": dict(question.meta),
        },
        ensure_ascii=False,
    )


def question_of(text: str) -> Question:
    """The question of `question_json`."""
    found = json.loads(text)
    gold = None if found["gold"] is None else as_gold(found["gold"])
    return Question(found["id"], found["text"], gold, found["probe"], found["meta"])


def write_questions(path: Path, questions: Sequence[Question], source: str) -> None:
    """One row a question, in order. `source` names the data in verl's validation metrics (`val-core/SOURCE/…`)."""
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": question.text}],
            "agent_name": AGENT,
            "reward_model": {"style": "rule", "ground_truth": json.dumps(question.gold, ensure_ascii=False)},
            "extra_info": {"index": index, "question": question_json(question)},
        }
        for index, question in enumerate(questions)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
