"""Several questions asked as one, as multi-objective sets are made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from mempo.data.plans import PLAN_KEYS
from mempo.errors import UserError
from mempo.rollout.question import Question

SEPARATOR = "; "


class Composed(NamedTuple):
    """`questions`: the joined ones; `left_over`: what was too few for another one, of each source."""

    questions: list[Question]
    left_over: list[Question]


def compose_objectives(questions: Sequence[Question], k: int, seed: int | None) -> Composed:
    """Joins k questions of one source (`meta["data_source"]`, where there is one) into one of k objectives.

    The questions are shuffled by `seed` within their source; with None they stay in order, so that k consecutive ones
    are joined. Texts are joined by "; ", gold is k tuples of aliases, ids are joined by "+", and `meta` holds `parts`
    (the ids) and `objectives` (k).

    Raises UserError: k < 1, fewer than k questions in every source, a question that has no gold or several objectives.
    """
    if k < 1:
        raise UserError(f"k={k}: a question has at least 1 objective")
    sources: dict[str, list[Question]] = {}
    for question in questions:
        if len(question.objectives) != 1:
            raise UserError(
                f"question {question.id!r} has {len(question.objectives)} objectives; only one can be joined"
            )
        sources.setdefault(str(question.meta.get("data_source", "")), []).append(question)
    composed, left_over = [], []
    for source, members in sources.items():
        if seed is not None:
            # by name as well: adding a source does not change the order of the others
            random.Random(f"{seed}/{source}").shuffle(members)
        whole = len(members) - len(members) % k
        composed += [_joined(members[i : i + k], source) for i in range(0, whole, k)]
        left_over += members[whole:]
    if not composed:
        raise UserError(f"{len(questions)} questions are too few for one of {k} objectives; ask for fewer objectives")
    return Composed(composed, left_over)


def _joined(parts: Sequence[Question], source: str) -> Question:
    probes = [part.probe or part.objectives[0][0] for part in parts]
    return Question(
        id="+".join(part.id for part in parts),
        text=SEPARATOR.join(part.text.strip() for part in parts),
        gold=tuple(part.objectives[0] for part in parts),
        probe=SEPARATOR.join(probes) if any(part.probe for part in parts) else None,
        meta={"parts": [part.id for part in parts], "objectives": len(parts), **_plan(parts), **_augmented(parts)}
        | ({"data_source": source} if source else {}),
    )


def _plan(parts: Sequence[Question]) -> dict[str, list[Any]]:
    """The search plans and gold documents of the parts, one after another, when every part has them."""
    shared = [key for key in PLAN_KEYS if all(key in part.meta for part in parts)]
    return {key: [hops for part in parts for hops in part.meta[key]] for key in shared}


def _augmented(parts: Sequence[Question]) -> dict[str, list[Any]]:
    """`aug_answer` of the parts `[objectives][aliases]`, where any has one."""
    found = [part.meta.get("aug_answer") or [] for part in parts]
    return {"aug_answer": [[a] if isinstance(a, str) else list(a) for a in found]} if any(found) else {}
