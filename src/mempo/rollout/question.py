"""A question and its gold answer, in the three shapes that public data sets use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# `str`: one answer. `(alias, ...)`: one answer with aliases. `((alias, ...), ...)`: one alias list per objective.
Gold = str | tuple[str, ...] | tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Question:
    """One task for the agent.

    `gold` is the right answer: a string, a tuple of aliases, or a tuple of aliases for each objective; None if the
    question is only asked and never scored. `probe` is the text that the memory signal tries to predict; None means the
    first alias of each objective, joined. `meta` is plain data, such as a search plan.
    """

    id: str
    text: str
    gold: Gold | None
    probe: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def objectives(self) -> tuple[tuple[str, ...], ...]:
        """`[objectives][aliases]`, whatever the shape of `gold`; empty without gold."""
        return objectives_of(self.gold)

    @property
    def probe_objectives(self) -> tuple[str, ...]:
        """The texts that the memory signal asks a note to predict, one for each objective."""
        if self.probe is not None:
            return (self.probe,)
        return tuple(aliases[0] for aliases in self.objectives)


def objectives_of(gold: Gold | None) -> tuple[tuple[str, ...], ...]:
    """`[objectives][aliases]` of a gold answer in any of its three shapes."""
    if gold is None:
        return ()
    if isinstance(gold, str):
        return ((gold,),)
    if gold and isinstance(gold[0], str):
        return (tuple(str(alias) for alias in gold),)
    return tuple(tuple(aliases) for aliases in gold)


def as_gold(value: object) -> Gold:
    """Gold from decoded JSON: `str`, `[alias, ...]` or `[[alias, ...], ...]`.

    Raises:
        ValueError: anything else: numbers, empty lists, blank strings, strings and lists mixed.
    """
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("the answer is blank")
        return value
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise ValueError(f"an answer is a string or a list, not {type(value).__name__}")
    if len(value) == 0:
        raise ValueError("the list of answers is empty")
    if all(isinstance(item, str) for item in value):
        blank = [i for i, item in enumerate(value) if not item.strip()]
        if blank:
            raise ValueError(f"alias {blank[0]} is blank")
        return tuple(value)
    if all(isinstance(item, Sequence) and not isinstance(item, str | bytes) for item in value):
        objectives = []
        for i, item in enumerate(value):
            aliases = as_gold(item)
            if isinstance(aliases, str) or not all(isinstance(alias, str) for alias in aliases):
                raise ValueError(f"objective {i} is nested deeper than a list of aliases")
            objectives.append(aliases)
        return tuple(objectives)
    kinds = sorted({type(item).__name__ for item in value})
    raise ValueError(f"a list of answers holds only strings or only lists, not {' and '.join(kinds)}")
