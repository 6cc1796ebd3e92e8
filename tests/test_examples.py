"""Every example extension: what it says it does, and that a run takes it by the line that its docstring gives."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path

import pytest
from examples.own_advantages_by_question import leave_one_out
from examples.own_calculator import Calculator
from examples.own_context import all_notes
from examples.own_environment import LETTERS, GreekEnvironment
from examples.own_interactive import GuessEnvironment
from examples.own_reward import PRICE, score
from examples.own_tool import MoonTool

from mempo.config import Config, resolve
from mempo.config.train import ExpertSettings
from mempo.diagnose.run import _grammar as grammar_of_run
from mempo.engine.model import load_tokenizer, save_policy
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.index import Bm25Index
from mempo.rollout.agent import Job
from mempo.rollout.interfaces import Context, Environment, InteractiveEnvironment, Tool, ToolErrorKind
from mempo.rollout.plugins import load_object
from mempo.rollout.question import Question
from mempo.run.train import train
from mempo.setup import advantage_function, custom_score, load_data, make_agent, make_tools
from mempo.storage.files import read_lines
from mempo.storage.rollouts import load_rollouts
from mempo.train.expert_rollouts import plan_of, play
from mempo.train.gold_plans import planned
from mempo.train.own_advantages import OwnAdvantages
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.fakes import TOKENIZER, advantage_batch, played, questions
from tests.train.small import metrics, quiet, run

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.stem for path in (ROOT / "examples").glob("own_*.py"))
OWN_DATA = str(ROOT / "examples" / "own_data.yaml")


def line_of(module: str) -> list[str]:
    """The settings that the docstring of an example tells to give."""
    found = importlib.import_module(f"examples.{module}").__doc__ or ""
    match = re.search(r"`([^`]+=[^`]+)`", found)
    assert match, f"{module}: no configuration line in its docstring"
    return match.group(1).split()


def configured(module: str) -> Config:
    return resolve("quickstart", line_of(module)).config


@pytest.mark.parametrize("module", MODULES)
def test_an_example_is_short_and_its_line_resolves(module: str) -> None:
    assert len((ROOT / "examples" / f"{module}.py").read_text("utf-8").splitlines()) < 40
    configured(module)


# --- one by one ----------------------------------------------------------------------------------------------------


def test_the_reward_takes_a_price_for_every_search() -> None:
    question = questions(1)[0]
    assert score(question, played(question, 1)) == 1
    assert score(question, played(question, 3)) == pytest.approx(1 - 2 * PRICE)
    assert score(question, played(question, 2, answer="Rome")) == pytest.approx(-PRICE)
    assert score(question, played(question, 3, max_turns=2)) == pytest.approx(-2 * PRICE)  # no answer
    assert score(Question("q0", "?", None), played(question, 1)) is None
    two = Question("q0", "?", (("Paris",), ("Rome",)))
    assert score(two, played(question, 1, answer="Paris; Rome")) == 1
    assert score(two, played(question, 1)) == 0
    assert custom_score(configured("own_reward")) is score


def test_the_advantages_compare_with_the_others() -> None:
    outcome, memory = leave_one_out([1.0, 0.0, 0.0], [{1: 0.5}, {1: 0.25, 2: 0.0}, {1: None}])
    assert outcome == [1.0, -0.5, -0.5]
    assert memory == [{1: 0.375}, {1: 0.0, 2: -0.375}, {}]
    assert leave_one_out([1.0], [{}])[0] == [0.0]
    made = advantage_function(configured("own_advantages_by_question"))
    assert isinstance(made, OwnAdvantages)
    assert (made.function, made.per_question) == (leave_one_out, True)


def test_the_advantages_of_a_step_are_of_one_scale_and_notes_earn_by_silence() -> None:
    """Two groups, one of them silent: notes earn half of what they would."""
    rollouts = [played(questions(2)[i // 2], 2, i) for i in range(4)]
    batch = advantage_batch(rollouts, [1.0, 0.0, 0.0, 0.0], [{1: 0.5}, {1: 0.1}, {1: 0.4}, {1: None}], 2)
    made = advantage_function(configured("own_advantages"))
    assert isinstance(made, OwnAdvantages)
    assert not made.per_question
    outcome, memory = made(batch)
    spread = (0.5 / 4) ** 0.5  # of 0.5, -0.5, 0, 0
    assert outcome == pytest.approx([0.5 / spread, -0.5 / spread, 0.0, 0.0], rel=1e-5)
    assert memory == [{1: pytest.approx(0.1)}, {1: pytest.approx(-0.1)}, {1: 0.0}, {}]


def test_the_tool_answers_and_never_raises() -> None:
    tools = make_tools(configured("own_tool"), None)
    assert isinstance(tools["search"], MoonTool)
    assert isinstance(tools["search"], Tool)
    found = asyncio.run(tools["search"].call(" mars\n"))
    assert (found.passages, found.error) == (("moons of Mars: 2",), None)
    assert asyncio.run(tools["search"].call("Pluto")).error is ToolErrorKind.BAD_CALL


def test_the_calculator_has_a_tag_of_its_own() -> None:
    config = resolve(None, ["agent.tools=[examples.own_calculator:Calculator]"]).config
    tools = make_tools(config, None)
    assert isinstance(tools["calculate"], Calculator)
    assert asyncio.run(tools["calculate"].call("3 * (2 + 4)")).passages == ("3 * (2 + 4) = 18",)
    assert make_agent(config, TOKENIZER, tools).grammar.stop_strings == ("</calculate>", "</answer>")


def test_the_context_shows_every_note() -> None:
    agent = make_agent(configured("own_context"), TOKENIZER, {})
    assert agent.name == "all_notes"
    assert isinstance(agent.context, Context)
    turns = played(questions(1)[0], 4).turns
    text = TOKENIZER.decode(all_notes(agent.renderer).build((), turns[:3], 1000).ids)
    assert text.startswith("<mem>n</mem><mem>n</mem><search>q</search>")
    assert text.count("Paris") == 1  # the last result alone
    assert agent.context.build((5,), turns[:3], 20).overflow


def test_the_environment_has_questions_that_its_corpus_answers(tmp_path: Path) -> None:
    config = configured("own_environment")
    data = load_data(config, tmp_path)
    assert isinstance(data.environment, GreekEnvironment)
    assert isinstance(data.environment, Environment)
    assert data.environment.questions("train", 5, 2, 0) == data.environment.questions("train", 5, 2, 0)
    asked = {
        query for q in data.environment.questions("train", 99, 2, 0) for hops in plan_of(q).queries for query in hops
    }
    held_out = {
        query for q in data.environment.questions("test", 99, 2, 0) for hops in plan_of(q).queries for query in hops
    }
    assert not asked & held_out
    assert len(asked | held_out) == len(LETTERS) - 1
    assert data.retriever is not None
    for question in [*data.train[:20], *data.test[:20]]:
        plan = plan_of(question)
        for (query,), (find,) in zip(plan.queries, plan.finds, strict=True):
            (hits,) = data.retriever.retrieve([query], 3)
            assert any(find in hit.document.text for hit in hits)


def test_the_environment_has_a_number_for_every_rollout(tmp_path: Path) -> None:
    config = configured("own_interactive")
    data = load_data(config, tmp_path)
    assert isinstance(data.environment, GuessEnvironment)
    assert isinstance(data.environment, InteractiveEnvironment)
    assert not {question.gold for question in data.train} & {question.gold for question in data.test}
    agent = make_agent(config, TOKENIZER, make_tools(config, data.retriever), data.environment)
    assert agent.grammar.actions == ("guess", "answer")
    question = Question("q", "?", "37", probe="37")
    first, second = (data.environment.episode(question)["guess"] for _ in range(2))
    said = [asyncio.run(first.call(number)).notice for number in ("5", "50", "37")]
    assert said == ["guess 1: too low", "guess 2: too high", "guess 3: right"]
    assert asyncio.run(second.call("38")).notice == "guess 1: too high"
    assert asyncio.run(second.call("many")).error is ToolErrorKind.BAD_CALL


def test_the_own_questions_stand_in_the_own_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = resolve(OWN_DATA).config
    corpus = Corpus.open(ROOT / "examples" / "own_data" / "corpus.jsonl")
    assert len(corpus) == 12
    Bm25Index.build(corpus, tmp_path / "index")
    text = "\n".join(f"{document.title}\n{document.text}" for document in corpus)
    found = load_data(config, tmp_path / "data")
    assert len(found.train) == 6
    for question in found.train:
        for aliases in question.objectives:
            assert any(alias in text for alias in aliases), question.id
    assert found.retriever is not None
    agent = make_agent(config, TOKENIZER, make_tools(config, found.retriever))
    plans = [planned(question, found.retriever, config.search.top_k) for question in found.train]
    jobs = [Job(question, 0, ()) for question in plans if question is not None]
    demos = asyncio.run(play(agent, jobs, config.sft.expert))
    assert len(demos) == 6, "the documents that they name are found"
    for demo in demos:
        assert demo.trajectory.answer == "; ".join(aliases[0] for aliases in demo.question.objectives)


# --- in a run ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_takes_reward_advantages_context_and_environment_of_ones_own(tmp_path: Path) -> None:
    lines = [
        setting for name in ("reward", "advantages", "context", "environment") for setting in line_of(f"own_{name}")
    ]
    short = ["sft.steps=3", "sft.demos=6", "rl.steps=2", "data.objectives=[1, 2]", "data.train_questions=12"]
    folder = run(tmp_path / "run", *short, *lines)
    assert len(metrics(folder, "rl")) == 2
    saved = [record for step in (1, 2) for record in read_lines(folder / "rollouts" / f"step-{step}.jsonl")]
    assert all(record["question"].startswith("successor of ") for record in saved)
    assert all(record["score"] <= 1 - PRICE * record["actions"].get("search", 0) for record in saved)
    assert (folder / "final" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_run_takes_an_environment_of_ones_own(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *line_of("own_interactive"), "rl.steps=1", "data.objectives=[1]")
    (line,) = metrics(folder, "rl")
    assert line["rollouts"] == 8
    assert (folder / "final" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_run_takes_a_tool_with_a_tag_of_its_own(tmp_path: Path) -> None:
    """Its tag is one token of the toy's vocabulary, and rollouts are read again with it."""
    folder = run(tmp_path / "run", *line_of("own_calculator"), "sft.steps=3", "sft.demos=6", "rl.steps=1")
    records = read_lines(folder / "rollouts" / "step-1.jsonl")
    assert len(records) == 8
    tokenizer = load_tokenizer(str(folder / "final"))
    assert len(tokenizer.encode_trusted("<calculate>")) == 1
    grammar = grammar_of_run(resolve(str(folder)).config)
    assert grammar.actions == ("calculate", "search", "access", "answer")
    trajectories, _, _ = load_rollouts(folder / "rollouts" / "step-1.jsonl", tokenizer, grammar)
    assert "<calculate>…</calculate>" in tokenizer.decode(trajectories[0].question_ids)


@pytest.mark.slow
def test_a_run_takes_a_tool_of_ones_own_and_questions_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    save_policy(tiny_llama(make_tokenizer(), max_position_embeddings=2048), tmp_path / "model")
    given = [f"model.path={tmp_path / 'model'}", f"output={tmp_path / 'run'}", "model.threads=1"]
    tiny = ["limits.max_turn_tokens=12", "limits.max_turns=2", "rl.rollouts_per_question=2", "evaluate.questions=1"]
    folder = train(resolve("examples/own_data.yaml", [*given, *tiny, "sft.steps=2"]), False, quiet())
    assert len(metrics(folder, "sft")) == 2
    assert [line["rollouts"] for line in metrics(folder, "rl")] == [6, 6]
    given[1] = f"output={tmp_path / 'with tool'}"
    without_corpus = ["data.corpus=null", "rl.steps=1", *line_of("own_tool")]
    folder = train(resolve("examples/own_data.yaml", [*given, *tiny, *without_corpus]), False, quiet())
    assert len(metrics(folder, "rl")) == 1


def test_the_expert_plays_the_own_environment(tmp_path: Path) -> None:
    settings = [
        *line_of("own_environment"),
        "data.objectives=[2]",
        "data.train_questions=3",
        "limits.max_context_tokens=2000",
    ]
    config = resolve("quickstart", settings).config
    data = load_data(config, tmp_path)
    agent = make_agent(config, TOKENIZER, make_tools(config, data.retriever))
    demos = asyncio.run(play(agent, [Job(question, 0, ()) for question in data.train], ExpertSettings()))
    assert len(demos) == 3
    for demo in demos:
        assert demo.trajectory.answer == "; ".join(aliases[0] for aliases in demo.question.objectives)


# --- the page that tells of them -----------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")


def test_the_page_names_every_example_and_nothing_else() -> None:
    named = set(re.findall(r"examples[.](own_\w+):\w+", PAGE))
    assert named == set(MODULES)
    for path in re.findall(r"examples[.]\w+:\w+", PAGE):
        load_object(path, "docs/extending.md")
    for module in MODULES:
        assert " ".join(line_of(module)) in PAGE, module


def test_settings_that_the_page_names_exist() -> None:
    for name in re.findall(r"`((?:data|agent|limits|reward|sft)[.]\w+)", PAGE):
        room, field = name.split(".")
        assert field in type(getattr(resolve("quickstart").config, room)).model_fields, name
