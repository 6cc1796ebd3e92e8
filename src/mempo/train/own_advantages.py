"""A user's own advantages: the function by import path, how it wants to be called, and what it may return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from mempo.errors import ConfigError, UserError
from mempo.rollout.plugins import call_own
from mempo.train.advantages import AdvantageBatch


@dataclass(frozen=True)
class OwnAdvantages:
    """Calls `function` and checks what it returns. It is called once per step with an `AdvantageBatch`; or, with
    `per_question`, once per question with its scores `[rollouts]` and note rewards `[rollouts]{turn: r}`.

    Either way it returns the outcome advantages `[rollouts]` and the memory advantages `[rollouts]{turn: A}`.
    """

    function: Callable[..., Any]
    per_question: bool

    @property
    def name(self) -> str:
        return f"{getattr(self.function, '__module__', '?')}:{getattr(self.function, '__qualname__', self.function)}"

    def __call__(self, batch: AdvantageBatch) -> tuple[list[float], list[dict[int, float]]]:
        """Raises UserError: not a pair, wrong lengths, a value that is not a finite number, or an advantage for a turn
        without a note. The message names the function."""
        if not self.per_question:
            return self._checked(batch.notes, replace(batch, notes=[dict(notes) for notes in batch.notes]))
        outcome, memory = [0.0] * len(batch.scores), [dict[int, float]() for _ in batch.scores]
        for group in batch.members:
            notes = [batch.notes[i] for i in group]
            # It may keep or change what it is given; the caller's values stay its own.
            made = self._checked(notes, [batch.scores[i] for i in group], [dict(found) for found in notes])
            for i, value, by_turn in zip(group, *made, strict=True):
                outcome[i], memory[i] = value, by_turn
        return outcome, memory

    def _checked(
        self, notes: Sequence[Mapping[int, float | None]], *arguments: Any
    ) -> tuple[list[float], list[dict[int, float]]]:
        result = call_own(f"advantage function {self.name}", self.function, *arguments)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise self._refuse(
                f"returned {type(result).__name__}; it must return (outcome advantages, memory advantages)"
            )
        for what, part in zip(("outcome", "memory"), result, strict=True):
            is_list = hasattr(part, "__len__") and not isinstance(part, Mapping | str)
            if not is_list or len(part) != len(notes):
                size = f"{len(part)} values" if is_list else repr(part)
                raise self._refuse(
                    f"returned {size} as {what} advantages for {len(notes)} rollouts; it must return one a rollout"
                )
        outcome = [self._number(value, f"the outcome advantage of rollout {i}") for i, value in enumerate(result[0])]
        return outcome, [self._by_turn(i, *pair) for i, pair in enumerate(zip(result[1], notes, strict=True))]

    def _by_turn(self, rollout: int, given: Any, notes: Mapping[int, float | None]) -> dict[int, float]:
        if not isinstance(given, Mapping):
            raise self._refuse(
                f"returned {given!r} as the memory advantages of rollout {rollout}; it must be a mapping from turn"
            )
        strange = sorted(set(given) - set(notes), key=repr)
        if strange:
            raise self._refuse(
                f"gave rollout {rollout} memory advantages for turns {strange}; its scored notes are {sorted(notes)}"
            )
        return {turn: self._number(v, f"the advantage of rollout {rollout}, turn {turn}") for turn, v in given.items()}

    def _number(self, value: Any, what: str) -> float:
        if getattr(value, "ndim", None) == 0:  # numpy and torch scalars
            value = value.item()
        if not isinstance(value, Real) or not math.isfinite(value):
            raise self._refuse(f"returned {value!r} as {what}; it must be a finite number")
        return float(value)

    def _refuse(self, fact: str) -> UserError:
        return UserError(f"advantage function {self.name} {fact}")


def own_advantages(function: Callable[..., Any]) -> OwnAdvantages:
    """The function as `batch_advantages` takes it. One that takes one argument gets the batch of a step; one that takes
    two gets the scores and note rewards of a question.

    Raises:
        ConfigError: it can be called with both, or with neither.
    """
    whole, by_question = (_takes(function, count) for count in (1, 2))
    if whole == by_question:
        shown = getattr(function, "__qualname__", repr(function))
        which = "both with one and with two arguments" if whole else "neither with one nor with two arguments"
        raise ConfigError(
            f"advantages.function: {shown} can be called {which}; let it take exactly one, the AdvantageBatch of a "
            "step, or exactly two, the scores and note rewards of a question"
        )
    return OwnAdvantages(function, per_question=by_question)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True
