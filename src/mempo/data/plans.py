"""How demonstrations of a question may be made, as its row says: search plans (`steps`) and gold documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mempo.rollout.question import Question
from mempo.storage.jsonl import ID_KEYS, json_name, valid_text

PLAN_KEYS = ("queries", "finds", "says", "actions", "documents")
"""What `Question.meta` holds of it, each `[objectives][hops]` but `says`, which is `[objectives]`."""


def plan_meta(row: Mapping[str, Any], question: Question) -> dict[str, Any]:
    """The plan in a row, for the question's `meta`; empty where the row has none.

    `steps` is a list of `{"search": query, "find": evidence}`, or one such list per objective; another tag may take the
    place of `search`. `documents` are ids (or titles) of documents, or objects with an id, in the order of reading.
    Other data sets mean something else by these keys: what has no `find`, and what holds no ids, is no plan.

    Raises:
        ValueError: steps that cannot be followed, with the reason.
    """
    found: dict[str, Any] = {}
    if question.gold is None:
        return found
    objectives = len(question.objectives)
    if _has_find(row.get("steps")):
        found |= _steps(row["steps"], question)
    for key in ("documents", "gold_docs"):
        parts = [_ids(part) for part in _nested(row.get(key), list)]
        if len(parts) == objectives and all(parts):
            return {**found, "documents": parts}
    titles = _titles(row.get("supporting_facts"))
    return {**found, "documents": [titles]} if titles and objectives == 1 else found


def _has_find(value: Any) -> bool:
    """Whether any step says what it finds."""
    items = [item for part in _nested(value, list) for item in (part if isinstance(part, list) else [part])]
    return any(isinstance(item, Mapping) and "find" in item for item in items)


def _titles(facts: Any) -> list[str]:
    """Of HotpotQA's `[[title, sentence], …]`, or the hub's `{"title": […]}`."""
    named = facts.get("title") if isinstance(facts, Mapping) else facts
    named = named if isinstance(named, list) else []
    titles = [fact[0] if isinstance(fact, list) and fact else fact for fact in named]
    texts = [title for title in titles if isinstance(title, str)]
    return list(dict.fromkeys(texts)) if len(texts) == len(titles) else []


def _steps(value: Any, question: Question) -> dict[str, Any]:
    plan: dict[str, list[Any]] = {"queries": [], "finds": [], "actions": []}
    parts = _nested(value, list)
    if len(parts) != len(question.objectives):
        raise ValueError(
            f'"steps" holds {len(parts)} lists for {len(question.objectives)} objectives; give one list per objective'
        )
    for part in parts:
        steps = [_step(step) for step in part]
        if not steps:
            raise ValueError('"steps" holds an empty list; every objective needs a step')
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


def _nested(value: Any, kind: type) -> list[Any]:
    """A list for each objective; a flat one is that of the only objective."""
    if not isinstance(value, list) or not value:
        return []
    return value if all(isinstance(item, kind) for item in value) else [value]


def _ids(part: Any) -> list[str]:
    """Empty where any is no id."""
    named = [
        next((item[key] for key in ID_KEYS if key in item), None) if isinstance(item, Mapping) else item
        for item in (part if isinstance(part, list) else [])
    ]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in named):
        return []
    return [valid_text(str(name)) for name in named]
