"""From files of one's own to demonstrations and an agent that learned: plans, gold documents, a stronger model."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mempo.config import Config, resolve
from mempo.config.server import ServerSettings
from mempo.config.yaml_text import dump_yaml
from mempo.data.errors import QuestionFileError
from mempo.data.questions import load_questions
from mempo.engine.model import save_policy
from mempo.engine.server.connect import open_tokenizer
from mempo.errors import ConfigError, UserError
from mempo.rollout.agent import Agent
from mempo.rollout.protocol import format_violations
from mempo.rollout.tokenizer import Tokenizer
from mempo.run.evaluate import evaluate_server
from mempo.run.train import train
from mempo.setup import Data, load_data, make_agent, make_tools
from mempo.storage.read_files import read_yaml
from mempo.train.demonstrations import Demonstrations, demonstrations, tokenizer_of_toy
from mempo.train.gold_plans import planned
from mempo.train.sft import probe_row
from tests.evaluate.openai_stub import CHAT, Stub, reply, stub_server
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.small import quiet

ROOT = Path(__file__).parents[2]
TOKENIZER = make_tokenizer("byte_bpe", "added")
PLACES = {"Arboria": "Lunum", "Belmar": "Tosk", "Cadria": "Venn", "Doria": "Ulm"}
DOCUMENTS: list[dict[str, Any]] = [
    {"id": f"doc-{name}", "title": name, "text": f"{name} lies in the north.\nThe capital of {name} is {capital}."}
    for name, capital in PLACES.items()
] + [{"id": "doc-ann", "title": "Ann Lee", "text": "Ann Lee, a painter, was born in Belmar. She died in Doria."}]
STEPS = [
    {"id": name, "question": f"capital of {name}", "answer": [capital, f"{capital} City"]}
    | {"steps": [{"search": f"capital {name}", "find": f"The capital of {name} is {capital}."}]}
    for name, capital in PLACES.items()
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def configured(tmp_path: Path, rows: list[dict[str, Any]], *overrides: str) -> Config:
    questions = written(tmp_path / "questions.jsonl", rows)
    corpus = written(tmp_path / "corpus.jsonl", DOCUMENTS)
    given = [f"data.train={questions}", f"data.test={questions}", f"data.corpus={corpus}", "prompt.template=plain"]
    limits = ["limits.max_turns=6", "limits.max_context_tokens=4000", "sft.demos=8", "sft.full_share=0.5"]
    return resolve(None, [*given, *limits, "agent.tools=[search]", "search.top_k=2", *overrides]).config


def prepared(config: Config, tmp_path: Path) -> tuple[Data, Agent]:
    data = load_data(config, tmp_path / "work")
    return data, make_agent(config, TOKENIZER, make_tools(config, data.retriever), data.environment)


def demonstrated(config: Config, tmp_path: Path) -> tuple[Demonstrations, str]:
    data, agent = prepared(config, tmp_path)
    said = io.StringIO()
    return demonstrations(config, data, agent, Console(file=said, width=500)), said.getvalue()


def turns_of(found: Demonstrations, k: int = 0) -> list[str]:
    return [TOKENIZER.decode(turn.own_ids) for turn in found.demos[k].trajectory.turns]


def assert_right(found: Demonstrations) -> None:
    for demo in found.demos:
        wanted = "; ".join(aliases[0] for aliases in demo.question.objectives)
        assert demo.trajectory.answer == wanted
        assert format_violations([turn.parsed for turn in demo.trajectory.turns]) == {}


# --- search plans --------------------------------------------------------------------------------------------------


def test_steps_are_searched_noted_and_answered(tmp_path: Path) -> None:
    found, said = demonstrated(configured(tmp_path, STEPS[:1]), tmp_path)
    assert_right(found)
    first, second = turns_of(found)
    assert first == "<think>next: capital Arboria</think><search>capital Arboria</search>"
    evidence = "capital Arboria: The capital of Arboria is Lunum."
    assert second == f"<mem>{evidence}</mem><think>all done</think><answer>Lunum</answer>"
    assert "do not come to the gold answer" not in said
    assert found.demos[0].answers == (None, "Lunum")


@pytest.mark.parametrize("joined", [False, True])
def test_every_objective_has_its_steps(tmp_path: Path, joined: bool) -> None:
    both = {"question": "capital of Arboria; capital of Belmar", "answer": [["Lunum"], ["Tosk"]]}
    both["steps"] = [STEPS[0]["steps"], STEPS[1]["steps"]]
    rows, more = (STEPS[:2], ["data.objectives=[2]"]) if joined else ([both], [])
    found, _ = demonstrated(configured(tmp_path, rows, *more), tmp_path)
    assert_right(found)
    assert len(found.demos[0].trajectory.turns) == 3
    assert len(found.demos[0].question.objectives) == 2


def test_a_step_may_use_another_tool(tmp_path: Path) -> None:
    row = {"question": "3 * (2 + 4)?", "answer": 18, "steps": [{"calculate": "3 * (2 + 4)", "find": "18"}]}
    tools = "agent.tools=[search,examples.own_calculator:Calculator]"
    found, said = demonstrated(configured(tmp_path, [row], tools), tmp_path)
    assert turns_of(found)[0].endswith("<calculate>3 * (2 + 4)</calculate>")
    assert_right(found)
    assert "do not come" not in said


def test_steps_that_the_search_does_not_bear_out_are_said(tmp_path: Path) -> None:
    wrong = {**STEPS[0], "steps": [{"search": "capital Arboria", "find": "a text that stands nowhere"}]}
    found, said = demonstrated(configured(tmp_path, [wrong, *STEPS[1:]]), tmp_path)
    assert "2 of 8 demonstrations do not come to the gold answer, the first of question Arboria" in said
    assert {demo.trajectory.answer for demo in found.demos if demo.question.id == "Arboria"} == {"unknown"}


def test_questions_without_a_plan_are_left_out_and_counted(tmp_path: Path) -> None:
    bare = {"id": "bare", "question": "Who?", "answer": "Ann"}
    found, said = demonstrated(configured(tmp_path, [*STEPS, bare]), tmp_path)
    assert "4 of 5 training questions have a search plan" in said
    assert "bare" not in {demo.question.id for demo in found.demos}
    with pytest.raises(UserError, match=r"question bare has no search plan.* steps or documents.*sft\.rollouts"):
        demonstrated(configured(tmp_path, [bare]), tmp_path)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"steps": ["capital", {"find": "x"}]}, 'a step of "steps" is {"search": query, "find": what the search'),
        ({"steps": [{"find": "x"}]}, 'a step of "steps" is {"search": query'),
        ({"steps": [{"search": "x", "find": " "}]}, '"find" of a step must be a text that is not blank'),
        ({"steps": [{"search": "x", "find": 5}]}, '"find" of a step must be a text that is not blank, not a number'),
        ({"steps": [[{"search": "x", "find": "y"}]] * 2}, '"steps" holds 2 lists for 1 objectives'),
    ],
)
def test_a_plan_of_another_shape_is_one_line(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = written(tmp_path / "q.jsonl", [{"question": "Q?", "answer": "A", **more}])
    with pytest.raises(QuestionFileError) as error:
        load_questions(path)
    assert f"line 1: {said}" in str(error.value)


@pytest.mark.parametrize(
    "more",
    [
        {"steps": []},
        {"steps": 3},
        {"steps": ["first, add", "then divide"]},
        {"steps": [{"search": "x"}]},
        {"documents": []},
        {"documents": "text"},
        {"documents": [{"text": "x"}]},
        {"documents": [["a"], ["b"]]},
        {"documents": [True, 1.5]},
        {"supporting_facts": [{"title": "x"}]},
        {"supporting_facts": {"title": "x"}},
        {"supporting_facts": [["x", 0], [], 5]},
    ],
)
def test_what_other_data_sets_call_so_is_no_plan(tmp_path: Path, more: dict[str, Any]) -> None:
    path = written(tmp_path / "q.jsonl", [{"question": "Q?", "answer": "A", **more}])
    [question] = load_questions(path)
    assert not {"queries", "finds"} & question.meta.keys()
    assert not isinstance(question.meta.get("documents"), list)


# --- gold documents ------------------------------------------------------------------------------------------------

BRIDGE = {
    "id": "bridge",
    "question": "What is the capital of the place where Ann Lee was born?",
    "answer": "Tosk",
    "documents": ["doc-ann", {"docid": "doc-Belmar"}],
}


def test_gold_documents_become_a_plan(tmp_path: Path) -> None:
    found, _ = demonstrated(configured(tmp_path, [BRIDGE]), tmp_path)
    assert_right(found)
    texts = turns_of(found)
    assert texts[0].endswith("<search>Ann Lee</search>"), "the question names the document"
    assert texts[1].startswith("<mem>Ann Lee: Belmar")
    assert texts[1].endswith("<search>Belmar</search>"), "the first document names the next"
    assert texts[2].startswith("<mem>Ann Lee: Belmar; Belmar: Tosk</mem>")


def test_titles_of_supporting_facts_are_gold_documents(tmp_path: Path) -> None:
    row = {**{k: v for k, v in BRIDGE.items() if k != "documents"}, "supporting_facts": [["Ann Lee", 0], ["Belmar", 1]]}
    found, _ = demonstrated(configured(tmp_path, [row]), tmp_path)
    assert_right(found)


def test_documents_that_search_does_not_bring_are_counted(tmp_path: Path) -> None:
    lost = {"id": "lost", "question": "zzz?", "answer": "A", "documents": ["nowhere"]}
    found, said = demonstrated(configured(tmp_path, [BRIDGE, lost]), tmp_path)
    assert "1 training questions name documents that search does not bring among the first 2 results" in said
    assert {demo.question.id for demo in found.demos} == {"bridge"}
    data, _ = prepared(configured(tmp_path, [BRIDGE, lost]), tmp_path)
    assert data.retriever is not None
    made = [planned(question, data.retriever, 2) for question in data.train]
    assert made[1] is None
    assert made[0] is not None
    assert (made[0].meta["queries"], made[0].meta["finds"]) == ([["Ann Lee", "Belmar"]], [["Belmar", "Tosk"]])


# --- a stronger model ----------------------------------------------------------------------------------------------


def teacher(prompt: str) -> str:
    """A model that searches and answers; it always gets Belmar wrong, and breaks the format for Cadria."""
    named = re.findall(r"capital of (\w+)", prompt)
    if not named:  # the server is asked what it can do
        return "red, blue, nine, lamp"
    name = named[0]  # the question stands first
    results = re.findall(r"The capital of (\w+) is (\w+)", prompt)
    if not results:
        return f"<think>I look it up.</think><search>capital {name}</search>"
    capital = dict(results).get(name, "nothing") if name != "Belmar" else "Paris"
    note = "" if name == "Cadria" else f"<mem>The capital of {name} is {capital}.</mem>"
    return f"{note}<think>So it is {capital}.</think><answer>{capital}</answer>"


BARE = [{key: value for key, value in row.items() if key != "steps"} for row in STEPS]


def collected(tmp_path: Path, out: Path, config: Config, *overrides: str, **stub: Any) -> None:
    """`mempo eval --server` over the training questions."""
    family = dataclasses.replace(CHAT, counts=False)  # what the stub counts of a chat is more than its window
    with stub_server(Stub(TOKENIZER, family, say=teacher, **stub)) as server:
        given = {"url": server.url, "tokenizer": "bytes", "retry": {"tries": 1}}
        played = resolve(
            None,
            [
                f"data.test={config.data.train}",
                f"data.corpus={config.data.corpus}",
                "agent.tools=[search]",
                "search.top_k=2",
                "limits.max_turns=6",
                "limits.max_context_tokens=500",
                "limits.max_obs_tokens=200",
                "evaluate.questions=9",
                f"server={json.dumps(given)}",
                *overrides,
            ],
        )
        evaluate_server(played, out, quiet(), retry_errors=True)


def test_right_rollouts_of_a_stronger_model_are_demonstrations(tmp_path: Path) -> None:
    config = configured(tmp_path, BARE, f"sft.rollouts={tmp_path / 'teacher'}")
    collected(tmp_path, tmp_path / "teacher", config)
    found, said = demonstrated(config, tmp_path)
    assert "4 rollouts: 2 right, 1 wrong, 1 out of format; 2 kept, of 2 questions" in said
    assert {demo.question.id for demo in found.demos} == {"Arboria", "Doria"}
    assert_right(found)
    by_id = {demo.question.id: k for k, demo in enumerate(found.demos)}
    assert turns_of(found, by_id["Arboria"]) == [
        "<think>I look it up.</think><search>capital Arboria</search>",
        "<mem>The capital of Arboria is Lunum.</mem><think>So it is Lunum.</think><answer>Lunum</answer>",
    ]
    demo = found.demos[by_id["Arboria"]]
    shown = TOKENIZER.decode(demo.trajectory.turns[1].prompt_ids)
    assert "The capital of Arboria is Lunum." in shown
    assert demo.answers == (None, "Lunum"), "the last note allowed the answer"
    row = probe_row(TOKENIZER, demo, 1, config.memory.probe)
    assert row is not None
    assert len(found.probes) == 2


def test_the_tokenizer_of_the_model_that_played_is_found_by_what_the_evaluation_says_of_it(tmp_path: Path) -> None:
    """The folder was made from a run: its configuration names no model, or another one; `identity.json` has it."""
    out, model = tmp_path / "teacher", tmp_path / "model"
    config = configured(tmp_path, BARE, f"sft.rollouts={out}")
    collected(tmp_path, out, config)
    of_bytes = open_tokenizer(ServerSettings(url="http://127.0.0.1:1", tokenizer="bytes"))
    save_policy(tiny_llama(of_bytes), model)
    (out / "identity.json").write_text(json.dumps({"policy": str(model)}))
    saved: dict[str, Any] = {**read_yaml(out / "config.yaml", ""), "server": None}
    for named in (None, "somewhere/else"):
        saved["model"]["path"] = named
        (out / "config.yaml").write_text(dump_yaml(saved), "utf-8")
        found, _ = demonstrated(config, tmp_path)
        assert {demo.question.id for demo in found.demos} == {"Arboria", "Doria"}
        assert_right(found)
    (out / "identity.json").unlink()
    saved["model"]["path"] = None
    (out / "config.yaml").write_text(dump_yaml(saved), "utf-8")
    with pytest.raises(UserError, match=r"names neither a server nor a model whose tokenizer wrote it"):
        demonstrated(config, tmp_path)


def test_what_infrastructure_failed_is_kept_apart_and_made_again(tmp_path: Path) -> None:
    out = tmp_path / "teacher"
    config = configured(tmp_path, BARE, f"sft.rollouts={out}")

    def fault(number: int) -> Any:
        return reply({"error": "busy"}, 500) if number > 12 else None

    with pytest.raises(UserError):
        collected(tmp_path, out, config, "evaluate.max_in_flight=1", "evaluate.max_errors_in_row=2", fault=fault)
    collected(tmp_path, out, config, "evaluate.max_in_flight=1", "evaluate.max_errors_in_row=2")
    _, said = demonstrated(config, tmp_path)
    assert "2 right" in said


def test_rollouts_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    missing = configured(tmp_path, BARE, f"sft.rollouts={tmp_path / 'nowhere'}")
    with pytest.raises(UserError, match="is not a folder of mempo eval"):
        demonstrated(missing, tmp_path)
    config = configured(tmp_path, BARE[1:2], f"sft.rollouts={tmp_path / 'teacher'}")
    collected(tmp_path, tmp_path / "teacher", config)
    with pytest.raises(UserError, match=r"none of the 1 rollouts: 1 wrong in .* can be a demonstration"):
        demonstrated(config, tmp_path)


# --- the toy -------------------------------------------------------------------------------------------------------

FACTS = ROOT / "examples" / "own_facts.yaml"


def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Config:
    monkeypatch.chdir(ROOT)
    return resolve(str(FACTS), [f"output={tmp_path / 'run'}", *overrides]).config


def toy_tokenizer_of(config: Config, tmp_path: Path) -> tuple[Tokenizer, Data]:
    data = load_data(config, tmp_path / "data")
    return tokenizer_of_toy(config, data), data


def test_the_tokenizer_of_a_toy_is_made_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = facts(tmp_path, monkeypatch)
    tokenizer, data = toy_tokenizer_of(config, tmp_path)
    for question in (*data.train, *data.test):
        assert len(tokenizer.encode_untrusted(question.text)) == 2, "an attribute and a name"
        assert len(tokenizer.encode_untrusted(question.objectives[0][0])) == 1
    assert {q.text for q in data.train}.isdisjoint(q.text for q in data.test), "no test question was demonstrated"


def test_a_toy_is_refused_files_that_are_too_varied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = facts(tmp_path, monkeypatch)
    data = load_data(config, tmp_path / "data")
    many = [dataclasses.replace(data.train[0], id=str(n), text=f"Name{n}") for n in range(21_000)]
    with pytest.raises(UserError, match="different pieces, and a toy has a token for each"):
        tokenizer_of_toy(config, dataclasses.replace(data, train=many))


def test_a_toy_needs_an_environment_or_files() -> None:
    with pytest.raises(ConfigError, match=r"set data\.environment or data\.train"):
        resolve(None, ["toy={}"])


@pytest.mark.slow
def test_two_files_make_an_agent_that_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way that docs/data.md tells, on questions that no demonstration asked."""
    monkeypatch.chdir(ROOT)

    def exact_match(*overrides: str) -> float:
        folder = train(resolve(str(FACTS), [f"output={tmp_path / str(overrides)}", *overrides]), False, quiet())
        return json.loads((folder / "evaluation-start.json").read_text("utf-8"))["1"]["em"]

    assert exact_match("sft.steps=0") < 0.05
    assert exact_match() > 0.5
