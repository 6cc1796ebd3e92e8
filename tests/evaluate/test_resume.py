"""An evaluation folder: killed and run again nothing is lost or doubled, and what has changed is refused."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mempo.config.evaluate import EvalSettings, agent_spec
from mempo.config.rewards import MemorySettings, OutcomeSettings
from mempo.errors import UserError
from mempo.evaluate.compare import Asked
from mempo.evaluate.folder import EvalFolder, asked_of, refuse_changed_questions, weights_mark
from mempo.evaluate.resume import play_missing, score_missing_notes
from mempo.evaluate.runner import EvalSetup
from mempo.rollout.interfaces import Generation, SamplerError, SamplingParams, ToolErrorKind, ToolResult
from mempo.rollout.question import Question
from mempo.storage.files import read_lines
from tests.evaluate.test_runner import Even
from tests.train.fakes import ANSWER, Speaker, agent, questions, wandering

SPEC = agent_spec("memory", "required", "optional")
HOW = EvalSettings(rollouts_per_question=2, max_in_flight=3)
QUIET = Console(quiet=True)


class Killed(Exception):
    """Stands for the end of the process."""


class Dying(Speaker):
    """Dies at its n-th turn."""

    def __init__(self, turns: int) -> None:
        super().__init__(wandering)
        self.turns = turns

    async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Generation:
        await asyncio.sleep(0)  # the others go on meanwhile, as they do while a model works
        self.turns -= 1
        if self.turns < 0:
            raise Killed
        return await super().generate(prompt_ids, sampling)


class Down(Speaker):
    """A server that does not answer."""

    def __init__(self) -> None:
        super().__init__(wandering)
        self.calls = 0

    async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Generation:
        self.calls += 1
        raise SamplerError("503 from http://127.0.0.1:1")


def setup(sampler: Any, **changes: Any) -> EvalSetup:
    made = EvalSetup(agent(), sampler, None, OutcomeSettings(), MemorySettings(), seed=0)
    return dataclasses.replace(made, **changes)


def play(folder: EvalFolder, sampler: Any, asked: list[Question], retry: bool = False, **changes: Any) -> int:
    return play_missing(folder, SPEC, setup(sampler, **changes), asked, HOW, retry, QUIET)


def saved(folder: EvalFolder) -> dict[Any, Any]:
    """Without the time it took, and in one order."""
    lines = folder.lines("memory")
    return {key: {k: v for k, v in lines[key].items() if k != "seconds"} for key in sorted(lines)}


def test_killed_and_run_again_it_is_as_if_never_killed(tmp_path: Path) -> None:
    asked = questions(6)
    straight, killed = EvalFolder(tmp_path / "straight"), EvalFolder(tmp_path / "killed")
    assert play(straight, Speaker(wandering), asked) == 12
    for turns in (5, 6, 7):
        with pytest.raises(Killed):
            play(killed, Dying(turns), asked)
    there = len(read_lines(killed.rollouts("memory")))
    assert 0 < there < 12
    assert play(killed, Speaker(wandering), asked) == 12 - there
    assert saved(killed) == saved(straight)
    assert len(read_lines(killed.rollouts("memory"))) == 12
    speaker = Speaker(wandering)
    assert play(killed, speaker, asked) == 0
    assert not speaker.asked


def test_more_samples_and_questions_add_to_what_is_there(tmp_path: Path) -> None:
    folder = EvalFolder(tmp_path)
    play(folder, Speaker(wandering), questions(2))
    before = saved(folder)
    more = HOW.model_copy(update={"rollouts_per_question": 3})
    assert play_missing(folder, SPEC, setup(Speaker(wandering)), questions(3), more, False, QUIET) == 5
    assert {key: line for key, line in saved(folder).items() if key in before} == before


def test_at_most_so_many_are_in_flight(tmp_path: Path) -> None:
    class Counting(Speaker):
        now = most = 0

        async def generate(self, prompt_ids: Any, sampling: SamplingParams) -> Generation:
            Counting.now += 1
            Counting.most = max(Counting.most, Counting.now)
            await asyncio.sleep(0)
            Counting.now -= 1
            return await super().generate(prompt_ids, sampling)

    play(EvalFolder(tmp_path), Counting(wandering), questions(6))
    assert Counting.most == HOW.max_in_flight


def test_spoiled_rollouts_are_played_again_only_when_asked(tmp_path: Path) -> None:
    folder, asked = EvalFolder(tmp_path), questions(2)
    assert play(folder, Down(), asked) == 4
    assert all(line["is_error"] and line["score"] is None for line in folder.lines("memory").values())
    assert play(folder, Speaker(lambda rng: ANSWER), asked) == 0
    assert play(folder, Speaker(lambda rng: ANSWER), asked, retry=True) == 4
    lines = folder.lines("memory")
    assert len(lines) == 4
    assert all(line["em"] == 1 and not line["is_error"] for line in lines.values())
    assert len(read_lines(folder.rollouts("memory"))) == 8  # the later line of a key counts


def test_a_server_that_is_down_ends_the_evaluation_with_its_message(tmp_path: Path) -> None:
    folder, down = EvalFolder(tmp_path), Down()
    few = HOW.model_copy(update={"max_errors_in_row": 5})
    with pytest.raises(UserError, match=r"5 rollouts in a row .* 503 from http://127.0.0.1:1.*--retry-errors"):
        play_missing(folder, SPEC, setup(down), questions(50), few, False, QUIET)
    assert down.calls < 50
    failing = agent(result=ToolResult(notice="no index", error=ToolErrorKind.UNAVAILABLE))
    with pytest.raises(UserError, match="no index"):
        play_missing(
            EvalFolder(tmp_path / "tool"),
            SPEC,
            setup(Speaker(wandering), agent=failing),
            questions(200),
            HOW.model_copy(update={"max_errors_in_row": 3}),
            False,
            QUIET,
        )


def test_notes_are_scored_once_and_joined(tmp_path: Path) -> None:
    folder, asked = EvalFolder(tmp_path), questions(4)
    made = setup(Speaker(wandering), scorer=Even())
    play(folder, Speaker(wandering), asked)
    assert not any(line["notes"] for line in folder.lines("memory").values())
    assert score_missing_notes(folder, SPEC, made, asked, QUIET) == 8
    noted = [note for line in folder.lines("memory").values() for note in line["notes"]]
    assert noted
    assert all(note["p_mem_raw"] == pytest.approx(0.5) for note in noted)
    assert score_missing_notes(folder, SPEC, made, asked, QUIET) == 0
    assert score_missing_notes(folder, agent_spec("react", "required", "optional"), made, asked, QUIET) == 0


def test_what_has_changed_is_refused_and_listed(tmp_path: Path) -> None:
    folder = EvalFolder(tmp_path)
    config = {"seed": 0, "evaluate": {"temperature": 0, "max_in_flight": 4, "agents": ["memory"]}, "rl": {"steps": 3}}
    identity = {"policy": "final", "weights": "ab"}
    folder.refuse_changes(config, identity)  # nothing there yet
    folder.begin(config, identity, [SPEC], Asked({1: 5, 2: 5}, 2))
    free = {"seed": 0, "evaluate": {"temperature": 0, "max_in_flight": 9, "agents": ["react"]}, "rl": {"steps": 0}}
    folder.refuse_changes(free, identity)
    with pytest.raises(UserError, match=r"seed: 0 → 1; evaluate.temperature: 0 → 1; weights: 'ab' → 'cd'"):
        folder.refuse_changes({**config, "seed": 1, "evaluate": {"temperature": 1}}, {**identity, "weights": "cd"})
    folder.begin(config, identity, [agent_spec("react", "required", "optional")], Asked({1: 7}, 1))
    assert list(folder.agents()) == ["memory", "react"]
    folder.begin(config, identity, [SPEC], Asked({1: 3, 4: 5}, 1))  # fewer of one kind, and a new kind
    assert asked_of(folder.agents()["memory"]) == Asked({1: 5, 2: 5, 4: 5}, 2)
    assert asked_of(folder.agents()["react"]) == Asked({1: 7}, 1)
    for damaged in ({"name": "made before"}, {"asked": 3}, {"asked": {"questions": [], "samples": "x"}}, {"asked": {}}):
        assert asked_of(damaged) == Asked()


def test_changed_questions_are_refused(tmp_path: Path) -> None:
    folder, asked = EvalFolder(tmp_path), questions(2)
    play(folder, Speaker(wandering), asked)
    lines, file = folder.lines("memory"), folder.rollouts("memory")
    refuse_changed_questions(lines, [asked[0], Question("new", "x", ("y",))], file)
    for other in (dataclasses.replace(asked[1], text="another?"), dataclasses.replace(asked[1], gold=("Rome",))):
        with pytest.raises(UserError, match="question 'q1' has changed"):
            refuse_changed_questions(lines, [asked[0], other], file)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = EvalFolder(tmp_path)
    with folder.locked(), pytest.raises(UserError, match="another process"), EvalFolder(tmp_path).locked():
        pass
    with folder.locked():
        pass


def test_weights_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a" * 100)
    first = weights_mark(tmp_path)
    assert weights_mark(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"a" * 99 + b"b")
    assert weights_mark(tmp_path) != first
