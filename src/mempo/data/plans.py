"""How demonstrations of a question may be made, as its row says: search plans (`steps`) and gold documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.question import Question
from mempo.retrieval.jsonl import json_name, valid_text
from mempo.retrieval.rows import ID_KEYS

PLAN_KEYS = ("queries", "finds", "says", "actions", "documents")
"""What `Question.meta` holds of it, each `[objectives][hops]` but `says`, which is `[objectives]`."""

_DOCUMENTS = ("documents", "gold_docs")


def plan_meta(row: Mapping[str, Any], question: Question) -> dict[str, Any]:
    """The plan in a row, for the question's `meta`; empty where the row has none.

    `steps` is a list of `{"search": query, "find": evidence}`, or one such list per objective; another tag may take the
    place of `search`. `documents` are ids (or titles) of documents, or objects with an id, in the order of reading.

    Raises:
        ValueError: a plan of another shape, with the reason.
    """
    found: dict[str, Any] = {}
    if row.get("steps") is not None and question.gold is not None:
        found |= _steps(row["steps"], question)
    key = next((key for key in _DOCUMENTS if row.get(key) is not None), None)
    if key is not None:
        found["documents"] = [[_named(item, key) for item in part] for part in _nested(row[key], key, question, list)]
    elif (facts := row.get("supporting_facts")) and len(question.objectives) == 1:
        titles = facts.get("title") if isinstance(facts, Mapping) else [fact[0] for fact in facts if fact]
        if titles and all(isinstance(title, str) for title in titles):
            found["documents"] = [list(dict.fromkeys(titles))]
    return found


def _steps(value: Any, question: Question) -> dict[str, Any]:
    plan: dict[str, list[Any]] = {"queries": [], "finds": [], "actions": []}
    for part in _nested(value, "steps", question, list):
        steps = [_step(step) for step in part]
        for key, values in zip(("actions", "queries", "finds"), zip(*steps, strict=True), strict=True):
            plan[key].append(list(values))
    return {**plan, "says": [aliases[0] for aliases in question.objectives]}


def _step(value: Any) -> tuple[str, str, str]:
    if not isinstance(value, Mapping) or len(value) != 2 or "find" not in value:
        shown = ", ".join(map(str, value)) if isinstance(value, Mapping) else json_name(value)
        raise ValueError(f'a step of "steps" is {{"search": query, "find": what the search brings}}, not {shown}')
    action = next(key for key in value if key != "find")
    for key in (action, "find"):
        if not isinstance(value[key], str) or not value[key].strip():
            raise ValueError(f'"{key}" of a step must be a text that is not blank, not {json_name(value[key])}')
    return action, valid_text(value[action]).strip(), valid_text(value["find"]).strip()


def _nested(value: Any, key: str, question: Question, kind: type) -> list[list[Any]]:
    """A list for each objective; a flat one is that of the only objective."""
    parts = value if isinstance(value, list) and value and all(isinstance(item, kind) for item in value) else [value]
    if not all(isinstance(part, list) and part for part in parts):
        raise ValueError(f'"{key}" must be a list that is not empty, or one per objective')
    if len(parts) != len(question.objectives):
        raise ValueError(
            f'"{key}" holds {len(parts)} lists for {len(question.objectives)} objectives; give one list per objective'
        )
    return parts


def _named(item: Any, key: str) -> str:
    value = next((item[k] for k in ID_KEYS if k in item), None) if isinstance(item, Mapping) else item
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'"{key}" must hold ids of documents, not {json_name(item)}')
    return valid_text(str(value))
