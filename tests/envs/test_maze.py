"""The maze: what is told is true and no more than it should be, and an agent that remembers finds the goal."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mempo.config import Config, resolve
from mempo.config.rewards import OutcomeSettings
from mempo.config.train import ExpertSettings
from mempo.data.questions import load_questions
from mempo.envs.maze import DIRECTIONS, OPPOSITE, MazeEnvironment, Seen, maze_of, write
from mempo.envs.maze.layout import grow, split_of
from mempo.envs.maze.telling import question_text, read, told, wall
from mempo.errors import UserError
from mempo.rewards.outcome import outcome_score
from mempo.rollout.agent import Agent, Job
from mempo.rollout.interfaces import HasExpert, HasTexts, InteractiveEnvironment, ToolErrorKind
from mempo.rollout.protocol import format_violations
from mempo.rollout.question import Question
from mempo.rollout.trajectory import StopReason
from mempo.setup import load_data, make_agent, make_tools
from mempo.storage.files import read_lines
from mempo.train.demonstrations import sft_rows, tokenizer_of_toy
from mempo.train.expert_rollouts import Demo, play
from tests.train.small import metrics, quiet

DX = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
SHAPES = [(2, 1, None, 0), (3, 3, 7, 0), (4, 3, 9, 0), (4, 3, None, 2), (4, 4, 10, 1)]


def environment(**options: Any) -> MazeEnvironment:
    return MazeEnvironment(**{"width": 4, "height": 3, "cells": 9, "loops": 0, "rendering": "cards", **options})


def far(doors: dict[str, dict[str, str]], origin: str) -> dict[str, int]:
    """Steps from `origin` to every cell, counted by spreading from it."""
    found, edge = {origin: 0}, {origin}
    for steps in itertools.count(1):
        edge = {other for cell in edge for other in doors[cell].values()} - set(found)
        if not edge:
            return found
        found |= dict.fromkeys(edge, steps)
    raise AssertionError


# --- layouts and mazes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junctions", [0, 1, 2])
def test_a_layout_has_no_more_junctions_than_asked(junctions: int) -> None:
    counts = []
    for seed in range(40):
        layout = grow(4, 3, 9, 0, random.Random(seed), junctions)
        assert len(layout) == 9
        counts.append(sum(len(doors) > 2 for doors in layout.values()))
    assert max(counts) == junctions


def test_a_layout_that_always_gets_stuck_is_an_error() -> None:
    with pytest.raises(ValueError, match="no maze of 81 cells with 0 junctions grew in 9 x 9"):
        grow(9, 9, 81, 0, random.Random(0), 0)


@pytest.mark.parametrize(("width", "height", "cells", "loops"), SHAPES)
def test_a_layout_is_whole_and_has_so_many_loops(width: int, height: int, cells: int | None, loops: int) -> None:
    size = cells or width * height
    for seed in range(30):
        layout = grow(width, height, size, loops, random.Random(seed))
        assert len(layout) == size
        assert all(0 <= x < width and 0 <= y < height for x, y in layout)
        sides = [(cell, d) for cell, doors in layout.items() for d in doors]
        for (x, y), d in sides:
            assert OPPOSITE[d] in layout[x + DX[d][0], y + DX[d][1]]
        assert len(sides) / 2 <= size - 1 + loops
        if (width, height, cells) == (4, 3, None):  # the whole grid has 17 walls to open
            assert len(sides) / 2 == size - 1 + loops


@pytest.mark.parametrize(("width", "height", "cells", "loops"), SHAPES[1:])
@pytest.mark.parametrize("probe", ["start_direction", "path"])
def test_the_goal_can_be_reached_and_the_probe_is_a_shortest_way(
    width: int, height: int, cells: int | None, loops: int, probe: Any
) -> None:
    made = MazeEnvironment(width, height, cells, loops, probe=probe)
    for question in made.questions("train", 40, seed=4):
        maze = question.meta["maze"]
        doors, here = maze["doors"], maze["start"]
        to_goal = far(doors, maze["goal"])
        assert set(to_goal) == set(doors)
        assert (question.gold, here == maze["goal"]) == (maze["word"], False)
        assert len(doors[here]) == max(map(len, doors.values())), "the start is a junction"
        way = str(question.probe).split()
        assert len(way) == (1 if probe == "start_direction" else to_goal[here])
        for direction in way:
            assert to_goal[doors[here][direction]] == to_goal[here] - 1
            here = doors[here][direction]


def test_the_map_is_never_told() -> None:
    for rendering in ("prose", "cards"):
        for question in environment(rendering=rendering).questions("train", 30):
            maze = question.meta["maze"]
            others = [name for name in (*maze["doors"], maze["word"]) if name != maze["start"]]
            assert maze["start"] in question.text
            assert not any(name in question.text for name in others)
            assert sorted(d for d in DIRECTIONS if d in question.text.split(". ")[0]) == sorted(
                maze["doors"][maze["start"]]
            )


def test_questions_repeat_and_splits_share_no_layout() -> None:
    def shapes(split: str, seed: int) -> set[str]:
        found = set()
        for question in environment().questions(split, 150, seed=seed):
            doors = maze_of(question.meta["maze"]).doors
            places, queue = {question.meta["maze"]["start"]: (0, 0)}, [question.meta["maze"]["start"]]
            for cell in queue:
                for d, other in doors[cell].items():
                    if other not in places:
                        places[other] = (places[cell][0] + DX[d][0], places[cell][1] + DX[d][1])
                        queue.append(other)
            left, top = (min(place[axis] for place in places.values()) for axis in (0, 1))
            found.add(str(sorted((x - left, y - top, *doors[cell]) for cell, (x, y) in places.items())))
        return found

    assert environment().questions("train", 9, seed=2) == environment().questions("train", 9, seed=2)
    assert environment().questions("train", 9, seed=2) != environment().questions("train", 9, seed=3)
    assert environment().questions("train", 9, seed=2)[:4] == environment().questions("train", 4, seed=2)
    assert not (shapes("train", 0) | shapes("train", 1)) & (shapes("test", 0) | shapes("test", 1))


def test_a_layout_keeps_its_split_wherever_it_lies() -> None:
    layout = grow(3, 3, 6, 0, random.Random(1))
    moved = {(x + 2, y + 5): doors for (x, y), doors in layout.items()}
    assert split_of(layout, 0.5) == split_of(moved, 0.5)
    splits = [split_of(grow(4, 4, 10, 1, random.Random(n)), 0.2) for n in range(400)]
    assert 40 < splits.count("test") < 120


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"width": 0}, "width is 0"),
        ({"height": 2.5}, "height is 2.5"),
        ({"loops": -1}, "loops is -1"),
        ({"cells": True}, "cells is True"),
        ({"cells": 13}, "13 cells in a grid of 4 x 3; give 2 to 12"),
        ({"width": 9, "height": 9, "cells": None}, "give 2 to 50 cells"),
        ({"rendering": "card"}, "choose prose or cards"),
        ({"probe": "goal"}, "choose start_direction or path"),
        ({"test_fraction": 1}, "a number between 0 and 1"),
    ],
)
def test_options_that_no_maze_can_have_are_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        environment(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UserError, match=r"1 objective, not 2; set data\.objectives=\[1\]"):
        environment().questions("train", 1, 2)
    with pytest.raises(UserError, match="no split 'dev'"):
        environment().questions("dev", 1)
    (lone,) = {split_of(grow(2, 1, 2, 0, random.Random(n)), 0.2) for n in range(9)}
    other = "test" if lone == "train" else "train"
    with pytest.raises(UserError, match=r"none of 1000 layouts .* is in the split"):
        MazeEnvironment(2, 1, loops=0).questions(other, 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.clear(), "no maze with doors"),
        (lambda m: m.update(goal="Moon"), "no way from"),
        (lambda m: m.update(start="Moon"), "no way from Moon"),
        (lambda m: m["doors"].update({"Moon": {"up": "Hall"}}), "a door to 'up'"),
        (lambda m: m["doors"].update({"Moon": {"east": m["start"]}}), "has no other side"),
    ],
)
def test_a_damaged_maze_is_one_line(change: Any, said: str) -> None:
    (question,) = environment().questions("train", 1)
    maze = json.loads(json.dumps(question.meta["maze"]))
    change(maze)
    with pytest.raises(UserError, match=rf"question q7: meta\.maze holds .*{said}"):
        environment().episode(Question("q7", "?", "x", meta={"maze": maze}))
    with pytest.raises(UserError, match=r"question q8: meta\.maze holds no maze"):
        environment().episode(Question("q8", "?", "x"))


# --- telling and walking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rendering", ["prose", "cards"])
def test_what_is_told_can_be_read_again(rendering: Any) -> None:
    for doors in (("north",), ("east", "west"), DIRECTIONS):
        for word in (None, "amber"):
            seen = Seen("Hall", doors, word)
            assert read(told(seen, rendering)) == seen
            assert read(wall("south", seen, rendering)) == seen
        assert read(question_text(Seen("Hall", doors), rendering)) == Seen("Hall", doors)
    assert read("error: 'up' is no direction; move one of: north, east, south, west") is None


def test_a_walk_tells_where_it_leads() -> None:
    doors = {"Hall": {"east": "Attic"}, "Attic": {"south": "Den", "west": "Hall"}, "Den": {"north": "Attic"}}
    question = Question(
        "q", "?", "fern", meta={"maze": {"doors": doors, "start": "Hall", "goal": "Den", "word": "fern"}}
    )
    move = environment().episode(question)["move"]

    def moved(argument: str) -> tuple[str, Any]:
        result = asyncio.run(move.call(argument))
        assert result.passages == (), "what is seen must never be cut"
        return result.notice, result.error

    assert moved("north") == ("wall\nHall: east", None)
    assert moved(" East\n") == ("Attic: south west", None)
    said, error = moved("up the <stairs>\n")
    assert (error, "north, east, south, west" in said) == (ToolErrorKind.BAD_CALL, True)
    assert moved("south") == ("Den: north\nword: fern", None)
    assert moved("north") == ("Attic: south west", None)
    other = environment(rendering="prose").episode(question)["move"]
    assert asyncio.run(other.call("south")).notice == "There is no door south. You are in the Hall; a door leads east."


# --- the expert ----------------------------------------------------------------------------------------------------


def config(*overrides: str) -> Config:
    return resolve("maze", ["evaluate.questions=50", "data.train_questions=60", *overrides]).config


def agent_and_questions(tmp_path: Path, *overrides: str) -> tuple[Agent, list[Question], Config]:
    made = config(*overrides)
    data = load_data(made, tmp_path)
    assert data.retriever is None
    agent = make_agent(made, tokenizer_of_toy(made, data), make_tools(made, None), data.environment)
    return agent, data.test, made


def played(
    agent: Agent, questions: list[Question], settings: ExpertSettings, notes: bool = True, **changes: Any
) -> list[Demo]:
    jobs = [Job(question, 0, ("t",)) for question in questions]
    return asyncio.run(play(agent, jobs, settings.model_copy(update=changes), notes))


def score(demos: list[Demo]) -> float:
    scores = [outcome_score(demo.question, demo.trajectory, OutcomeSettings()).score for demo in demos]
    return sum(score or 0 for score in scores) / len(scores)


LOOPS = (
    "data.environment_options={width: 4, height: 3, cells: 10, loops: 2, rendering: cards}",
    "limits.max_turns=30",
    "limits.max_turn_tokens=200",
)
PROSE = ("data.environment_options.rendering=prose", "limits.max_turn_tokens=2000", "limits.max_context_tokens=5000")
PROSE += ("limits.max_obs_tokens=500",)


@pytest.mark.parametrize("overrides", [(), LOOPS, PROSE, ("agent.context=full", "limits.max_context_tokens=5000")])
def test_with_its_notes_the_expert_finds_every_goal_in_perfect_format(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    agent, questions, made = agent_and_questions(tmp_path, *overrides)
    demos = played(agent, questions, made.sft.expert, loss=0.0)
    assert len(demos) == 50
    for demo in demos:
        assert demo.trajectory.stop is StopReason.ANSWERED
        assert demo.trajectory.answer == demo.question.gold
        assert format_violations([turn.parsed for turn in demo.trajectory.turns]) == {}
        assert demo.answers[0] is None
        assert set(demo.answers[1:]) <= {demo.question.probe, None}
        assert demo.answers[-1] == demo.question.probe, "the last note holds the way"


def test_without_notes_it_needs_the_history(tmp_path: Path) -> None:
    without = ("agent.notes=forbidden", "rl.memory_signal=false", "limits.max_context_tokens=5000")
    agent, questions, made = agent_and_questions(tmp_path, *without, "agent.context=react")
    assert score(played(agent, questions, made.sft.expert, notes=False)) == 1
    agent, questions, made = agent_and_questions(tmp_path, *without)
    assert score(played(agent, questions, made.sft.expert, notes=False)) < 0.8


def test_forgetting_costs_the_goal(tmp_path: Path) -> None:
    agent, questions, made = agent_and_questions(tmp_path)
    lost = played(agent, questions, made.sft.expert, loss=1.0, lossless_share=0.0)
    assert score(lost) < 0.8
    notes = {
        agent.renderer.tokenizer.decode(turn.note_ids)
        for demo in lost
        for turn in demo.trajectory.turns[1:]
        if turn.note_ids
    }
    assert notes == {"<mem>none</mem>"}
    assert score(played(agent, questions, made.sft.expert, loss=1.0, lossless_share=1.0)) == 1


def test_the_last_note_names_the_way_that_was_gone(tmp_path: Path) -> None:
    agent, questions, made = agent_and_questions(tmp_path)
    for demo in played(agent, questions, made.sft.expert, loss=0.0):
        maze, turns = demo.question.meta["maze"], demo.trajectory.turns
        here = maze["start"]
        for turn in turns[:-1]:
            assert turn.parsed.action is not None
            here = maze["doors"][here][turn.parsed.action.text]
        assert here == maze["goal"]
        note = agent.renderer.tokenizer.decode(turns[-1].note_ids or ())
        first, *_, last = note.removeprefix("<mem>").removesuffix("</mem>").split("\n")
        assert first.startswith(f"{maze['start']}: {demo.question.probe}")
        assert last == f"word: {maze['word']}"


def test_a_note_is_one_token_a_word_for_the_toy(tmp_path: Path) -> None:
    agent, _, _ = agent_and_questions(tmp_path)
    tokenizer = agent.renderer.tokenizer
    assert len(tokenizer.encode_trusted("<move>north</move>")) == 3
    assert len(tokenizer.encode_untrusted("Hall: north east west\nAttic: south")) == 7
    assert len(tokenizer.encode_untrusted("wall\nHall: north")) == 5


# --- in a configuration --------------------------------------------------------------------------------------------


def test_it_is_an_environment() -> None:
    made = environment()
    assert isinstance(made, InteractiveEnvironment)
    assert isinstance(made, HasExpert)
    assert isinstance(made, HasTexts)
    assert list(made.documents()) == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["agent.tools=[search]"], r"the maze has no documents to search.*agent\.tools=\[\]"),
        (["data.corpus=x.jsonl"], r"data\.corpus would be ignored"),
        (["data.environment=atlas", "data.environment_options={}", "data.train=x"], r"data\.train would be ignored"),
        (["agent.context=react"], "agent.context react is a history without notes"),
    ],
)
def test_what_does_not_fit_a_maze_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        config(*overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("data.objectives=[2]",), "1 objective, not 2"),
        (("data.test_objectives=[1, 3]",), "1 objective, not 3"),
        (("data.environment_options={widht: 3}",), "did you mean 'width'"),
        (("data.environment_options.cells=99",), "99 cells"),
    ],
)
def test_what_a_maze_cannot_be_is_refused_with_the_data(overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        load_data(config(*overrides), tmp_path)


def test_mazes_of_a_file_are_played_like_drawn_ones(tmp_path: Path) -> None:
    counts = write(tmp_path, environment(), train=12, test=60, seed=5)
    assert counts == {"train.jsonl": 12, "test.jsonl": 60}
    saved, drawn = load_questions(tmp_path / "train.jsonl"), environment().questions("train", 12, seed=5)
    assert [(q.id, q.text, q.gold, q.probe) for q in saved] == [(q.id, q.text, q.gold, q.probe) for q in drawn]
    assert [q.meta["maze"] for q in saved] == [q.meta["maze"] for q in drawn]
    files = (f"data.train={tmp_path / 'train.jsonl'}", f"data.test={tmp_path / 'test.jsonl'}")
    agent, questions, made = agent_and_questions(tmp_path / "work", *files)
    assert [question.id for question in questions] == [f"maze-test-5-{n}" for n in range(50)]
    assert score(played(agent, questions[:10], made.sft.expert, loss=0.0)) == 1
    lines = (tmp_path / "train.jsonl").read_text("utf-8").replace('"goal"', '"gaol"', 1)
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"question maze-train-5-0: meta\.maze holds no maze"):
        load_data(config(*files), tmp_path / "work")


def test_probe_samples_ask_for_the_start_direction(tmp_path: Path) -> None:
    made = config("sft.demos=12", "toy.warmup_steps=0", "toy.copy_share=0", "sft.probe_share=0.9", "sft.batch_rows=20")
    data = load_data(made, tmp_path)
    tokenizer = tokenizer_of_toy(made, data)
    agent = make_agent(made, tokenizer, make_tools(made, None), data.environment)
    rows = [tokenizer.decode(row.ids) for row in sft_rows(made, data, agent, quiet())(0)]
    probes = [text for text in rows if f"<think>\n{made.memory.probe.thought}\n" in text]
    assert len(probes) == 18
    right = {(question.text, question.probe) for question in data.train}
    for text in probes:
        question, _, rest = text.partition("\n<mem>")
        assert (question, rest.partition("<answer>\n")[2].removesuffix("\n</answer>")) in right


def test_episodes_that_lost_their_way_are_not_imitated(tmp_path: Path) -> None:
    plain = ("sft.demos=40", "toy.warmup_steps=0", "toy.copy_share=0", "sft.probe_share=0", "sft.expert.loss=1")

    def told(*overrides: str) -> int:
        made = config(*plain, *overrides)
        data = load_data(made, tmp_path)
        agent = make_agent(made, tokenizer_of_toy(made, data), make_tools(made, None), data.environment)
        console = Console(file=io.StringIO(), width=120)
        sft_rows(made, data, agent, console)
        found = re.search(r"demonstrations: (\d+) episodes", console.file.getvalue())  # type: ignore[attr-defined]
        assert found is not None
        return int(found.group(1))

    assert told("sft.expert.lossless_share=1") == 40
    assert 0 < told("sft.expert.lossless_share=0") < 35
    with pytest.raises(UserError, match=r"none of the 40 episodes .* limits\.max_turns"):
        told("limits.max_turns=1")


# --- in a run ------------------------------------------------------------------------------------------------------

SMALL = (
    "model.threads=1",
    "data.environment_options={width: 2, height: 2, cells: 4, loops: 0, rendering: cards, test_fraction: 0.5}",
    "data.train_questions=12",
    "evaluate.questions=2",
    "limits.max_turns=6",
    "toy.warmup_steps=2",
    "toy.copy_rows=4",
    "sft.steps=4",
    "sft.demos=6",
    "sft.batch_rows=8",
    "rl.steps=2",
    "rl.questions_per_step=2",
    "rl.rollouts_per_question=4",
    "rl.log_rollouts_every=1",
)


@pytest.mark.slow
def test_the_maze_trains_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import mempo.cli.main

    def call(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["mempo", *arguments])
        with pytest.raises(SystemExit) as stop:
            mempo.cli.main.main()
        out, err = capfd.readouterr()
        assert not stop.value.code, err
        return str(out)

    run = tmp_path / "run"
    said = call("train", "maze", f"output={run}", *SMALL)
    assert "demonstrations: 6 episodes" in said
    assert "after RL" in said
    assert len(metrics(run, "rl")) == 2
    saved = [record for step in (1, 2) for record in read_lines(run / "rollouts" / f"step-{step}.jsonl")]
    assert len(saved) == 16
    assert all(record["objectives"] == 1 for record in saved)
    assert "over n questions" in call("eval", str(run), "evaluate.questions=1")
    out = tmp_path / "mazes"
    said = call("environment", "maze", "--out", str(out), "--train", "3", "--test", "2", "--rendering", "cards")
    assert "train.jsonl: 3 lines" in said
    assert len(read_lines(out / "test.jsonl")) == 2
