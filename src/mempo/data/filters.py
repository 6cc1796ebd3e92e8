"""Some of the questions of a file, by what their rows say: `type`, `level`, `answerable`, `data_source` …"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mempo.errors import UserError, nearest
from mempo.rollout.question import Question


def where(questions: Sequence[Question], wanted: Mapping[str, Any]) -> list[Question]:
    """The questions whose `meta` has the wanted value for every key, or one of several where a list is given.

    Numbers and booleans are compared as such, texts exactly. Where a file holds texts alone (CSV), a number or boolean
    is the text that says it.

    Raises:
        UserError: a key that no question has, with the nearest known one; nothing is left, with the values there are.
    """
    kept = list(questions)
    for key, value in wanted.items():
        if not any(key in question.meta for question in questions):
            known = sorted({name for question in questions for name in question.meta})
            raise UserError(
                f"data.where: no question has {key!r}{nearest(key, known)}; known: {', '.join(known) or 'nothing'}"
            )
        values = value if isinstance(value, list | tuple) else [value]
        kept = [q for q in kept if key in q.meta and any(_same(q.meta[key], v) for v in values)]
        if not kept:
            there = sorted({str(question.meta[key]) for question in questions if key in question.meta})
            shown = ", ".join(there[:8]) + (" …" if len(there) > 8 else "")
            raise UserError(f"data.where: no question is left with {key}={value!r}; values of {key}: {shown}")
    return kept


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, str) and isinstance(wanted, int | float):
        return found.strip().lower() == str(wanted).lower()
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
