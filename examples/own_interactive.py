"""An own environment to act in: a number is to be guessed, each guess is told to be too high or too low.
`data.environment=examples.own_interactive:GuessEnvironment data.environment_options={} agent.tools=[] sft.steps=0`."""

from __future__ import annotations

import random
from collections.abc import Mapping

from mempo.rollout.interfaces import Tool, ToolErrorKind, ToolResult
from mempo.rollout.question import Question


class Guess:
    name = "guess"  # the tag it answers

    def __init__(self, number: int) -> None:
        self._number, self._guesses = number, 0

    async def call(self, argument: str) -> ToolResult:
        if not argument.isdecimal():
            return ToolResult(notice="error: guess a whole number", error=ToolErrorKind.BAD_CALL)
        self._guesses += 1
        off = int(argument) - self._number
        return ToolResult(notice=f"guess {self._guesses}: {'too low' if off < 0 else 'too high' if off else 'right'}")


class GuessEnvironment:
    name, actions = "guess", ("guess",)

    def documents(self) -> tuple[()]:
        return ()

    def questions(self, split: str, count: int, objectives: int, seed: int) -> list[Question]:
        rng = random.Random(seed)  # odd numbers for training, even ones for testing
        numbers = [str(2 * rng.randint(1, 50) - (split == "train")) for _ in range(count)]
        return [Question(f"{split}-{i}", "a number from 1 to 100", n, probe=n) for i, n in enumerate(numbers)]

    def episode(self, question: Question) -> Mapping[str, Tool]:
        return {"guess": Guess(int(str(question.gold)))}  # called once a rollout: nobody shares this state
