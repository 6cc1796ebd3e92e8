"""Rollouts that go on from another are the same as if they had written it all themselves, but for what is forced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mempo.rollout.agent import Agent, Beginning, DecodingSettings, Job, rollout
from mempo.rollout.interfaces import Generation, SamplingParams
from mempo.rollout.question import Question
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import StopReason, Trajectory, Turn
from tests.rollout.test_agent import ANSWER, NOTED, QUESTION, SEARCH, Echo
from tests.rollout.test_environment import MOVED, Counting
from tests.rollout.test_environment import agent as acting
from tests.tiny import Scripted, make_agent, make_tokenizer, said


class Replays:
    """Goes on with the own tokens of a rollout, whatever of them it is given."""

    def __init__(self, done: Trajectory) -> None:
        self._turns = done.turns

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        for turn in self._turns:
            whole = turn.prompt_ids + turn.own_ids
            if turn.prompt_ids == tuple(prompt_ids[: len(turn.prompt_ids)]) and whole[: len(prompt_ids)] == prompt_ids:
                ids = whole[len(prompt_ids) :]
                return Generation(ids, (-1.0,) * len(ids), turn.stop)
        raise AssertionError("another prompt than the rollout saw")


def searching(tokenizer: Tokenizer, context: str, **limits: Any) -> Agent:
    return make_agent(tokenizer, context, tools={"search": Echo()}, **limits)


def from_note(done: Trajectory, index: int) -> Beginning:
    turn = done.turns[index]
    assert turn.note_span is not None
    return Beginning(done.turns[:index], turn.prompt_ids, turn.own_ids[: turn.note_span[1]])


def go_on(agent: Agent, sampler: Replays, question: Question, beginning: Beginning) -> Trajectory:
    return asyncio.run(rollout(agent, sampler, Job(question, 5, ("on",), beginning), DecodingSettings()))


def alike(turn: Turn) -> tuple:
    return turn.prompt_ids, turn.own_ids, turn.parsed, turn.note_ids, turn.action_ids, turn.observation


@pytest.mark.parametrize("tags", ["none", "added"])
@pytest.mark.parametrize("context", ["memory", "full", "last_turn"])
def test_going_on_from_an_own_note_is_the_same_rollout(context: str, tags: str) -> None:
    tokenizer = make_tokenizer(tags=tags)
    agent = searching(tokenizer, context)
    texts = [SEARCH, NOTED, NOTED.replace("Paris", "Paris, Yen"), ANSWER]
    done = asyncio.run(rollout(agent, Scripted(tokenizer, texts), Job(QUESTION, 0, ("x",)), DecodingSettings()))
    assert done.stop is StopReason.ANSWERED
    for index in (1, 2, 3):
        again = go_on(agent, Replays(done), QUESTION, from_note(done, index))
        assert (again.stop, again.answer) == (done.stop, done.answer)
        assert [alike(turn) for turn in again.turns] == [alike(turn) for turn in done.turns]
        note = done.turns[index].note_span
        assert note is not None
        # What was written before is forced: no log-probs, no advantage, nothing that is counted as generated here.
        assert again.turns[index].forced_ids == done.turns[index].own_ids[: note[1]]
        assert len(again.turns[index].generated_ids) == len(done.turns[index].own_ids) - note[1]
        assert again.turns[:index] == done.turns[:index]


def test_the_note_is_spent_already() -> None:
    tokenizer = make_tokenizer(tags="added")
    agent = searching(tokenizer, "memory", max_turn_tokens=60)
    done = asyncio.run(
        rollout(agent, Scripted(tokenizer, [SEARCH, ANSWER]), Job(QUESTION, 0, ("x",)), DecodingSettings())
    )
    beginning = from_note(done, 1)
    note = len(beginning.own_ids)
    spent = len(done.turns[0].generated_ids) + note
    # A turn that runs into its own limit is cut, and the rollout goes on; one that runs into the rollout's has ended.
    for left, most, stop in ((5, 5, StopReason.TOKEN_LIMIT), (1000, 60 - note, StopReason.ANSWERED)):
        agent = searching(tokenizer, "memory", max_turn_tokens=60, max_rollout_tokens=spent + left)
        endless = Endless(tokenizer)
        found = asyncio.run(rollout(agent, endless, Job(QUESTION, 0, ("on",), beginning), DecodingSettings()))
        assert (endless.asked[0], found.stop) == (most, stop)


class Endless:
    """Fills the first turn to its limit, then answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.asked: list[int] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        self.asked.append(sampling.max_new_tokens)
        if len(self.asked) == 1:
            return said(self._tokenizer, "no " * 200, sampling.max_new_tokens)
        return said(self._tokenizer, ANSWER)


def test_an_environment_is_brought_to_where_the_beginning_left_it() -> None:
    environment = Counting()
    agent = acting(environment)
    tokenizer = agent.renderer.tokenizer
    texts = ["<think>t</think><move>east</move>", MOVED, MOVED, "<mem>n</mem><think>t</think><answer>3</answer>"]
    question = Question("q", "?", "3")
    done = asyncio.run(rollout(agent, Scripted(tokenizer, texts), Job(question, 0, ("x",)), DecodingSettings()))
    again = go_on(agent, Replays(done), question, from_note(done, 2))
    assert environment.episodes == ["q", "q"]  # an episode of its own
    # The third call says 3 again: the first two were made anew.
    assert [alike(turn) for turn in again.turns] == [alike(turn) for turn in done.turns]
    assert "east 3" in tokenizer.decode(again.turns[3].prompt_ids)
