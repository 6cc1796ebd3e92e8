"""`mempo eval`, `score` and `compare` as a shell would call them: small models, files, a stub of a model server."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mempo.cli.main
from mempo.config import resolve
from mempo.config.yaml_text import dump_yaml
from mempo.engine.model import save_policy
from mempo.storage.files import read_lines
from mempo.storage.read_files import read_yaml
from tests.evaluate.openai_stub import VLLM, Stub, reply, stub_server
from tests.tiny import make_tokenizer, tiny_llama

TOKENIZER = make_tokenizer()
RIGHT = "<think>t</think><answer>Paris</answer>"
Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The exit status, and all that was printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mempo", *map(str, arguments)])
        code = 0
        try:
            mempo.cli.main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capfd.readouterr()
        assert "Traceback" not in said.err + said.out
        return code, said.out + said.err

    return call


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_policy(tiny_llama(TOKENIZER), folder)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of an evaluation on plain files; the third row is broken."""
    rows: list[Any] = [{"id": f"q{i}", "question": f"question {i}?", "answer": ["Paris"]} for i in range(4)]
    lines = [json.dumps(row) for row in rows]
    lines.insert(2, "{broken")
    (tmp_path / "test.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"title": "A", "text": "a"}\n{"title": "B", "text": "b"}\n', "utf-8")
    file = tmp_path / "mine.yaml"
    limits = "{max_context_tokens: 400, max_turns: 2, max_turn_tokens: 24, min_turn_tokens: 8}"
    file.write_text(
        "data: {test: test.jsonl, corpus: corpus.jsonl, skip_bad: true}\n"
        f"prompt: {{template: plain}}\nlimits: {limits}\nevaluate: {{temperature: 0}}\n",
        "utf-8",
    )
    return file


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(Stub(TOKENIZER, VLLM, say=lambda prompt: RIGHT)) as stub:
        yield stub


def test_a_local_model_as_several_agents_then_score_and_compare(
    cli: Cli, model: Path, config: Path, tmp_path: Path
) -> None:
    command = ("eval", model, "--config", config, "--agents", "memory,react", "--samples", "2", "--out", "out")
    code, said = cli(*command)
    assert code == 0, said
    assert "1 broken row of test.jsonl is left out; the first: questions test.jsonl, line 3" in said
    assert "memory 8/8" in said
    assert said.count("decoding is greedy (evaluate.temperature 0): the 2 samples") == 2, "before and beside the table"
    table = json.loads(Path("out/evaluation.json").read_text("utf-8"))
    assert {name: by_k["1"]["rollouts"] for name, by_k in table.items()} == {"memory": 8, "react": 8}
    assert {file.name for file in Path("out/tables").iterdir()} == {"table.md", "table.csv", "table.tex"}
    before = Path("out/rollouts/memory.jsonl").read_bytes()

    code, said = cli(*command)
    assert code == 0, said
    assert "memory: 8 rollouts are there; 0 to play" in said
    assert json.loads(Path("out/agents.json").read_text())["memory"]["asked"] == {"samples": 2, "questions": {"1": 4}}
    assert Path("out/rollouts/memory.jsonl").read_bytes() == before

    code, said = cli(*command, "evaluate.temperature=1", "limits.max_turns=1")
    assert code == 2
    assert "limits.max_turns: 2 → 1; evaluate.temperature: 0.0 → 1.0" in said

    code, said = cli("score", "out", "--scores", "default,mem1", "--per-rollout")
    assert code == 0, said
    scored = json.loads(Path("out/scores.json").read_text("utf-8"))
    assert scored["measures"]["react"]["1"]["mem1/f1"] is not None
    assert len(read_lines(tmp_path / "out" / "scores" / "memory.jsonl")) == 8

    agents = json.loads(Path("out/agents.json").read_text())
    agents["react"]["asked"]["questions"]["1"] = 9  # five were never played
    Path("out/agents.json").write_text(json.dumps(agents))
    Path("out/server.json").write_text(json.dumps({"capabilities": {"notes": ["its samples are alike"]}}))
    for again in ("score", "compare"):
        code, said = cli(again, "out")
        assert code == 0, said
        assert "4 of 9" in said
        assert "its samples are alike" in said

    code, said = cli("compare", "out", "--format", "latex,csv", "--out", "cmp")
    assert code == 0, said
    assert r"\begin{tabular}" in said
    assert "objectives,agent,questions" in said
    assert {file.suffix for file in Path("cmp").glob("[!.]*")} == {".tex", ".csv", ".png", ".svg"}
    assert "hold no noise of training" not in said
    code, said = cli("compare", "out", "out/rollouts/memory.jsonl", "--agents", "react")
    assert code == 0, said
    assert "hold no noise of training" in " ".join(said.split())


def test_a_served_model(cli: Cli, model: Path, config: Path, served: Stub, tmp_path: Path) -> None:
    command = ("eval", "--server", served.url, "--tokenizer", model, "--config", config, "--agents", "react,no_tools")
    code, said = cli(*command, "--out", "out")
    assert code == 0, said
    table = json.loads(Path("out/evaluation.json").read_text("utf-8"))
    assert {name: (by_k["1"]["em"], by_k["1"]["errors"]) for name, by_k in table.items()} == {
        "react": (1.0, 0.0),
        "no_tools": (1.0, 0.0),
    }
    assert "P(mem)" not in said  # a server does not say how well it predicts
    record = json.loads(Path("out/server.json").read_text("utf-8"))
    assert record["counts"]["requests"] >= 8
    assert record["counts"]["retries"] == record["counts"]["failed"] == 0
    told = record["capabilities"]
    assert (told["api"], told["model"], told["stop_field"]) == ("completions", "the-model", "stop_reason")
    assert told["token_prompts"] is told["returns_ids"] is told["can_force"] is True
    assert "seed" in told["accepts"]
    asked, served.seeds_matter = len(served.bodies), False
    code, again = cli(*command, "--out", "out")
    assert code == 0, again
    assert "several rollouts of a question are one and the same" in again, "beside the table"
    assert "did not differ with the seed" not in said
    assert len(served.bodies) - asked < 12  # the probes of the server alone

    served.say = lambda prompt: '{"verdict": "correct"}'
    code, said = cli("score", "out", "--judge", served.url)
    assert code == 0, said
    assert len(read_lines(tmp_path / "out" / "rollouts" / "react.judge.jsonl")) == 4
    assert json.loads(Path("out/scores.json").read_text("utf-8"))["measures"]["react"]["1"]["judge"] == 1.0


def test_a_run_with_a_start_is_asked_behind_a_server(cli: Cli, model: Path, config: Path, served: Stub) -> None:
    """The run's own start plays no part: the policy is the server's, and only the tokenizer comes from the run."""
    resolved = resolve(str(config), ["start=gone/run", "server=null"])
    Path("run").mkdir()
    Path("run/config.yaml").write_text(dump_yaml(resolved.plain()), "utf-8")
    shutil.copytree(model, "run/final")
    code, said = cli("eval", "run", "--server", served.url, "--out", "out")
    assert code == 0, said
    assert json.loads(Path("out/evaluation.json").read_text("utf-8"))["memory"]["1"]["em"] == 1.0
    assert read_yaml(Path("out/config.yaml"), "")["start"] is None
    assert read_yaml(Path("run/config.yaml"), "")["start"] == "gone/run"


def test_a_server_that_fails_is_no_wrong_answer(cli: Cli, model: Path, config: Path, served: Stub) -> None:
    command = ("eval", "--server", served.url, "--tokenizer", model, "--config", config, "--agents", "react")
    patient = ("--out", "out", "server.retry.tries=1", "evaluate.max_in_flight=1")
    assert cli(*command, *patient, "--questions", "2")[0] == 0
    served.say = lambda prompt: RIGHT
    original, served.fault = served.fault, lambda number: reply({"error": "busy"}, 503) if number > 16 else None
    code, said = cli(*command, *patient)
    served.fault = original
    rows = read_lines(Path("out/rollouts/react.jsonl"))
    errors = [row for row in rows if row["is_error"]]
    assert code in (0, 2), said
    assert len(rows) >= 2
    assert all(row["score"] is None for row in errors)
    code, said = cli(*command, *patient, "--retry-errors")
    assert code == 0, said
    table = json.loads(Path("out/evaluation.json").read_text("utf-8"))
    assert (table["react"]["1"]["em"], table["react"]["1"]["errors"], table["react"]["1"]["rollouts"]) == (1.0, 0.0, 4)


def test_a_table_of_a_few_that_did_not_fail_is_no_success(cli: Cli, model: Path, config: Path, served: Stub) -> None:
    served.say = lambda prompt: RIGHT
    served.fault = lambda number: reply({"error": "the index is rebuilt"}, 503) if number > 7 and number % 10 else None
    command = ("eval", "--server", served.url, "--tokenizer", model, "--config", config, "--agents", "react")
    options = ("--out", "out", "server.retry.tries=1", "evaluate.max_in_flight=1", "--samples", "5")
    code, said = cli(*command, *options)
    assert code == 2, said
    assert "18 of 20 rollouts failed for infrastructure reasons, the last with: model server" in said
    assert "the index is rebuilt" in said
    [table] = json.loads(Path("out/evaluation.json").read_text("utf-8"))["react"].values()
    assert (table["em"], table["errors"]) == (1.0, 18), "they are no wrong answers"
    served.fault = lambda number: None
    code, said = cli(*command, *options, "--retry-errors")
    assert code == 0, said


def test_a_server_that_is_given_up_leaves_its_counts(cli: Cli, model: Path, config: Path, served: Stub) -> None:
    probes = 12
    served.fault = lambda number: reply({"error": "busy"}, 429) if number > probes else None
    command = ("eval", "--server", served.url, "--tokenizer", model, "--config", config, "--out", "out")
    quick = ("server.retry.tries=2", "server.retry.backoff_s=0", "evaluate.max_in_flight=1", "--samples", "20")
    code, said = cli(*command, *quick, "evaluate.max_errors_in_row=3")
    assert code == 2
    assert "3 rollouts in a row failed by infrastructure, the last with: model server" in said
    assert "429" in said
    counts = json.loads(Path("out/server.json").read_text("utf-8"))["counts"]
    assert (counts["failed"], counts["retries"]) == (3, 3)


def test_several_sources_get_a_table_each(cli: Cli, model: Path, config: Path, served: Stub, tmp_path: Path) -> None:
    rows = [{"id": f"q{i}", "question": f"{i}?", "answer": "Paris", "data_source": f"s{i % 2}"} for i in range(4)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    command = ("eval", "--server", served.url, "--tokenizer", model, "--config", config, "--agents", "react")
    code, said = cli(*command, "--out", "out")
    assert code == 0, said
    assert "by data_source" in said
    assert "react [s1]" in said
    by = json.loads(Path("out/evaluation.json").read_text("utf-8"))["react"]["1"]["by"]["data_source"]
    assert {name: (found["questions"], found["em"]) for name, found in by.items()} == {"s0": (2, 1.0), "s1": (2, 1.0)}
    assert "s0" in Path("out/tables/by-data_source.csv").read_text("utf-8")
    code, said = cli("compare", "out", "--out", "cmp", "--format", "markdown")
    assert code == 0, said
    assert "s1" in Path("cmp/by-data_source.md").read_text("utf-8")
    assert "by data_source" in cli("score", "out")[1]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["eval"], "nothing to evaluate is named"),
        (["eval", "--server", "http://127.0.0.1:9"], "name them with --config"),
        (["eval", "m", "--config", "quickstart", "--agents", "memry"], "did you mean 'memory'?"),
        (["eval", "m", "--config", "quickstart", "--objectives", "two"], "--objectives 'two'"),
        (["eval", "m", "--config", "quickstart", "--tokenizer", "x"], "belong to --server"),
        (["eval", "rl.steps=1"], "nothing to evaluate is named"),
        (["score", "nowhere"], "nowhere does not exist"),
        (["score", ".", "--scores", "mem2"], "did you mean 'mem1'?"),
        (["score", "p.jsonl", "--judge-model", "x"], "belongs to --judge"),
        (["score", "p.jsonl", "--judge", "nonsense"], "not an address of a server"),
        (["score", "p.jsonl"], "has no answer"),
        (["compare", "."], "holds no rollouts of an evaluation"),
        (["compare", "good.jsonl", "--format", "latx"], "did you mean 'latex'?"),
        (["compare", "good.jsonl", "--agents", "x"], "there are: good"),
        (["compare", "torn.jsonl"], "line 1: not JSON"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(arguments: list[str], part: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": "a"}\n', "utf-8")
    (tmp_path / "good.jsonl").write_text('{"id": "a", "answer": "x", "gold": "x"}\n', "utf-8")
    (tmp_path / "torn.jsonl").write_text("nonsense\n", "utf-8")
    code, said = cli(*arguments)
    assert code == 2
    assert part in said
    assert said.startswith("mempo: ")
    assert len(said.strip().splitlines()) == 1


def test_predictions_of_another_program_are_scored(cli: Cli, tmp_path: Path) -> None:
    rows = [{"id": "a", "answer": "Paris", "gold": ["Paris"]}, {"id": "b", "answer": "Rome", "gold": ["Paris"]}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    code, said = cli("score", "p.jsonl", "--scores", "default,search-r1,mem1,asearcher")
    assert code == 0, said
    metrics = json.loads((tmp_path / "scores.json").read_text("utf-8"))["measures"]["p"]["1"]
    assert [metrics[name] for name in ("em", "search-r1/em", "mem1/f1", "asearcher/reward")] == [0.5] * 4
    (tmp_path / "p.jsonl").write_text('{"id": "a", "answer": "Paris"}\n', "utf-8")
    code, said = cli("score", "p.jsonl")
    assert code == 0, said
    assert "p: no question has a gold answer, so EM and F1 are not known" in said
