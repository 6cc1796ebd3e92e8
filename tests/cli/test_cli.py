"""The command line: every command does what its help says, and a mistake is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import mempo.cli.main
from mempo.engine.model import save_policy
from mempo.retrieval.index import open_index
from mempo.retrieval.server.app import create_app
from mempo.storage.files import read_lines
from tests.retrieval.serving import serving
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.small import SMALL

ROOT = Path(__file__).parents[2]
SHORT = (*SMALL, "sft.steps=2", "sft.demos=4", "rl.steps=1", "evaluate.questions=1")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Cli = Callable[..., Said]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Call the entry point as a shell would."""

    def call(*arguments: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["mempo", *map(str, arguments)])
        code = 0
        try:
            mempo.cli.main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Said(code, str(out), str(err))

    return call


def assert_one_line(said: Said, *parts: str) -> None:
    assert said.code == 2, said
    assert said.err.startswith("mempo: "), said.err
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert "Traceback" not in said.err + said.out
    for part in parts:
        assert part in said.err, said.err


def write_lines(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- what every command does ---------------------------------------------------------------------------------------


def test_help_names_every_command(cli: Cli) -> None:
    said = cli("--help")
    assert said.code == 0
    commands = ("train", "sft", "eval", "score", "compare", "diagnose", "study", "config", "search", "serve", "index")
    for command in commands:
        assert f"\n  {command} " in said.out


def test_the_version_and_short_help(cli: Cli) -> None:
    assert cli("--version").out == f"mempo {mempo.__version__}\n"
    assert cli("-h").out == cli("--help").out
    assert cli("index", "build", "-h").out == cli("index", "build", "--help").out


def test_python_m_mempo_is_mempo() -> None:
    done = subprocess.run([sys.executable, "-m", "mempo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"mempo {mempo.__version__}\n"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mempo dia", {"diagnose"}),
        ("mempo train quic", {"quickstart"}),
        ("mempo train quickstart rl.optim.l", {"rl.optim.lr="}),
        ("mempo train mine", {"mine.yaml"}),
    ],
)
def test_a_shell_completes_commands_recipes_files_and_keys(line: str, offered: set[str], tmp_path: Path) -> None:
    for name in ("mine.yaml", "mine.txt"):
        (tmp_path / name).touch()
    asked = {"_MEMPO_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    code = "import sys; sys.argv = ['mempo']; from mempo.cli.main import main; main()"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **asked}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == offered


def test_every_option_of_every_command_says_what_it_is() -> None:
    def options(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from options(child, f"{path} {name}")
        yield from ((f"{path} {option.name}", option.help) for option in command.params if hasattr(option, "help"))

    found = dict(options(typer.main.get_command(mempo.cli.main.app), "mempo"))
    assert len(found) > 60
    assert [name for name, said in found.items() if not said] == []
    assert {
        "mempo environment maze loops",
        "mempo environment atlas subset",
        "mempo environment atlas train_questions",
    } <= found.keys()


def test_a_setting_is_explained(cli: Cli) -> None:
    said = cli("config", "quickstart", "--explain", "rl.steps")
    assert (said.code, said.err) == (0, "")
    assert "here: 20  (recipe quickstart)" in said.out
    assert "default: 0" in cli("config", "--explain", "rl.steps").out
    assert_one_line(cli("config", "--explain", "rl.stps"), "did you mean 'rl.steps'?")


def test_a_dry_run_loads_what_import_paths_name(cli: Cli) -> None:
    assert_one_line(cli("train", "quickstart", "--dry-run", "reward=nowhere_at_all:score"), "cannot be imported")


def test_a_dry_run_prints_the_configuration_and_does_nothing(cli: Cli, tmp_path: Path) -> None:
    for command, steps in (("train", 7), ("sft", 0)):
        said = cli(command, "quickstart", f"output={tmp_path / 'run'}", "rl.steps=7", "--dry-run")
        assert (said.code, said.err) == (0, "")
        assert yaml.safe_load(said.out)["rl"]["steps"] == steps
        assert f"steps: {steps}  # command line" in said.out
    assert not list(tmp_path.iterdir())


def test_config_says_where_every_value_came_from(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rl: {optim: {lr: 1e-6}}\n", encoding="utf-8")
    said = cli("config", file, "seed=3")
    assert said.code == 0
    assert f"lr: 1.0e-06  # {file}" in said.out
    assert "seed: 3  # command line" in said.out
    assert "max_turns: 8  # default" in said.out
    assert yaml.safe_load(cli("config").out)["seed"] == 0


def test_an_environment_becomes_files_and_an_index_that_can_be_asked(cli: Cli, tmp_path: Path) -> None:
    small = ["--rendering", "cards", "--subset", "toy", "--objectives", "1,2", "--train", "40", "--test", "20"]
    said = cli("environment", "atlas", "--out", tmp_path, *small)
    assert said.code == 0, said.err
    assert "train.jsonl: 40 lines" in said.out
    assert len(read_lines(tmp_path / "test.jsonl")) == 20
    said = cli("index", "build", tmp_path / "corpus.jsonl", "--out", tmp_path / "index")
    assert said.code == 0
    assert f"{len(read_lines(tmp_path / 'corpus.jsonl'))} documents" in said.out
    said = cli("search", tmp_path / "index", "capital of France", "--top-k", "2")
    assert said.code == 0
    assert said.out.startswith("[1] ")
    assert "capital of France: Paris" in said.out.split("[2]")[0]
    assert "[3]" not in said.out
    assert "nothing was found" in cli("search", tmp_path / "index", "xyzzy").out
    with serving(create_app(open_index(tmp_path / "index"))) as url:
        assert cli("search", url, "capital of France", "--top-k", "2").out == said.out
    assert_one_line(cli("search", url, "capital of France"), url, "is it running?")


@pytest.mark.slow
def test_train_then_eval(cli: Cli, tmp_path: Path) -> None:
    said = cli("train", "quickstart", f"output={tmp_path / 'run'}", *SHORT)
    assert said.code == 0, said.err
    for part in (
        "demonstrations: 4 episodes",
        "sft 2/2",
        "rl 1/1",
        "test questions",
        "after RL",
        str(tmp_path / "run"),
    ):
        assert part in said.out, part
    assert [line["stage"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == ["sft", "sft", "rl"]

    said = cli("eval", tmp_path / "run", "evaluate.questions=2", "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert "mean over n questions" in said.out
    table = json.loads((tmp_path / "out" / "evaluation.json").read_text("utf-8"))
    assert {k: measures["questions"] for k, measures in table["memory"].items()} == {"2": 2, "3": 2}
    assert len(read_lines(tmp_path / "out" / "rollouts" / "memory.jsonl")) == 4

    # The same model by its path: now the questions must be named.
    assert_one_line(cli("eval", tmp_path / "run" / "final"), "--config")
    said = cli("eval", tmp_path / "run" / "final", *SHORT, "--config", "quickstart", "--out", tmp_path / "again")
    assert said.code == 0, said.err

    assert_one_line(cli("train", "quickstart", f"output={tmp_path / 'run'}", *SHORT), "--resume")
    assert_one_line(cli("train", tmp_path / "run", "--resume"), "nothing is left to do")
    assert_one_line(cli("train", tmp_path / "run", "rl.optim.lr=1", "--resume"), "rl.optim.lr: ", " → 1")
    assert_one_line(cli("train", tmp_path / "run", "rl.steps=2", "seed=1", "--resume"), "seed: 0 → 1")
    said = cli("train", tmp_path / "run", "rl.steps=2", "--resume")
    assert said.code == 0, said.err
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if line["stage"] == "rl"] == [1, 2]
    assert_one_line(cli("train", tmp_path / "run", "rl.steps=1", "--resume"), "rl.steps=1, but 2 steps are done")


@pytest.mark.slow
def test_sft_alone(cli: Cli, tmp_path: Path) -> None:
    said = cli("sft", "quickstart", f"output={tmp_path / 'run'}", *SHORT)
    assert said.code == 0, said.err
    assert {line["stage"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")} == {"sft"}
    assert "start" in said.out
    assert "after RL" not in said.out
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()


# --- what can be wrong ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_policy(tiny_llama(make_tokenizer()), folder)
    return folder


@pytest.fixture
def files(tmp_path: Path, saved: Path) -> dict[str, str]:
    """Settings of a run on plain files; each test breaks one."""
    shutil.copytree(saved, tmp_path / "model")
    questions = write_lines(tmp_path / "questions.jsonl", *({"question": f"{n}?", "answer": "a"} for n in range(9)))
    corpus = write_lines(tmp_path / "corpus.jsonl", {"title": "A", "text": "a"}, {"title": "B", "text": "b"})
    return {
        "model.path": str(tmp_path / "model"),
        "data.train": str(questions),
        "data.corpus": str(corpus),
        "output": str(tmp_path / "run"),
        "rl.steps": "1",
        "limits.max_context_tokens": "512",
        "limits.max_turns": "1",
        "limits.max_turn_tokens": "8",
    }


def start(cli: Cli, files: dict[str, str], tmp_path: Path, **changes: str) -> Said:
    empty = tmp_path / "empty.yaml"
    empty.write_text("{}\n", encoding="utf-8")
    return cli("train", empty, *(f"{key}={value}" for key, value in {**files, **changes}.items()))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model.path": "no/such/model"}, ["no/such/model"]),
        ({"model.path": "./nowhere"}, ["no model folder './nowhere'"]),
        ({"data.train": "nowhere.jsonl"}, ["questions nowhere.jsonl: no such file"]),
        ({"data.corpus": "nowhere.jsonl"}, ["corpus nowhere.jsonl does not exist"]),
        ({"data.train": "examples"}, ["examples is a folder"]),
        ({"data.corpus": "", "data.index": "examples"}, ["examples"]),
        ({"data.corpus": "", "data.server": "http://127.0.0.1:9"}, ["127.0.0.1:9", "no connection"]),
        ({"data.corpus": "", "data.server": "nonsense"}, ["'nonsense' is not an address"]),
        ({"limits.max_context_tokens": "2048"}, ["is 2048 but the model sees 1024", "limits.max_context_tokens=1024"]),
        ({"rl.questions_per_step": "10"}, ["10", "only 9 training questions", "rl.questions_per_step=9"]),
        ({"rl.questions_per_step": "5", "rl.updates_per_step": "3"}, ["not a multiple", "15 is"]),
        ({"data.objectives": "[10]"}, ["9 questions are too few for one of 10"]),
        ({"data.train_questions": "5"}, ["data.train_questions is 5", "drawn from an environment"]),
        ({"rl.optim.lrr": "1e-6"}, ["did you mean 'lr'?", "command line"]),
        ({"model.path": ""}, ["set model.path or toy"]),
        ({"reward": "examples.own_reward:scor"}, ["did you mean 'score'?"]),
        (
            {"advantages": "examples.own_tool:MoonTool"},
            ["MoonTool can be called neither with one nor with two arguments"],
        ),
        ({"agent.tools": "[search, 'examples.own_tool:MoonTool']"}, ["another tool in the list answers already"]),
        ({"agent.tools": "['examples.own_reward:score']"}, ["cannot be called with 0 arguments"]),
        ({"agent.context": "react"}, ["agent.notes=forbidden"]),
        ({"data.train": "", "rl.steps": "1"}, ["nothing to train on"]),
        ({"prompt.template": "chat"}, ["no chat template"]),
        ({"model.device": "cuda:9"}, ["model.device is 'cuda:9'"]),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(
    changes: dict[str, str], parts: list[str], cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    assert_one_line(start(cli, files, tmp_path, **changes), *parts)
    assert not (tmp_path / "run" / "config.yaml").exists()  # and nothing that would have to be resumed


def test_a_broken_line_is_named_by_its_number(cli: Cli, files: dict[str, str], tmp_path: Path) -> None:
    write_lines(tmp_path / "questions.jsonl", {"question": "a?", "answer": "a"}, "", '{"question": "b?", "answer"')
    assert_one_line(start(cli, files, tmp_path), "questions.jsonl, line 3")
    write_lines(tmp_path / "questions.jsonl", {"question": "a?", "answer": "a"}, {"question": "b?"})
    assert_one_line(start(cli, files, tmp_path), "questions.jsonl, line 2", "has no answer")


def test_a_corpus_must_hold_something(cli: Cli, files: dict[str, str], tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl")
    assert_one_line(start(cli, files, tmp_path), "corpus.jsonl")
    assert_one_line(cli("index", "build", corpus, "--out", tmp_path / "index"), "corpus.jsonl")
    write_lines(corpus, {"title": "A", "text": "a"}, {"title": "B"})
    assert_one_line(start(cli, files, tmp_path), "corpus.jsonl", "line 2")
    assert_one_line(cli("index", "build", corpus, "--out", tmp_path / "index"), "line 2")
    assert not (tmp_path / "index").exists()


def test_a_tokenizer_without_an_end_is_refused(cli: Cli, files: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "model" / "tokenizer_config.json"
    settings = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({key: value for key, value in settings.items() if key != "eos_token"}), encoding="utf-8")
    assert_one_line(start(cli, files, tmp_path), "no end-of-sequence token", "eos_token")


def test_pickled_weights_are_refused(cli: Cli, files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\x80\x04")
    assert_one_line(start(cli, files, tmp_path), "holds no *.safetensors", "pytorch_model.bin", "convert them")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "quikstart"], ["did you mean 'quickstart'?"]),
        (["config", "quickstart", "rl.steps"], ["key=value"]),
        (["config", "quickstart", "rl.stepss=3"], ["did you mean 'steps'?"]),
        (["eval", "nowhere"], ["--config"]),
        (["eval", "./nowhere", "--config", "quickstart"], ["no model folder './nowhere'"]),
        (["search", "nowhere", "query"], ["nowhere"]),
        (["serve", "nowhere"], ["nowhere is not an index"]),
        (["serve", "nowhere", "max_querys=3"], ["did you mean 'max_queries'?"]),
        (["index", "build", "nowhere.jsonl", "--out", "unused"], ["nowhere.jsonl does not exist"]),
        (["environment", "atlas", "--out", "unused", "--rendering", "crds"], ["choose prose or cards"]),
        (["environment", "atlas", "--out", "unused", "--subset", "some"], ["everything, toy"]),
        (["environment", "atlas", "--out", "unused", "--objectives", "two"], ["--objectives 'two'"]),
        (["environment", "atlas", "--out", "unused", "--objectives", "0"], ["1 to 10 objectives"]),
        (
            ["environment", "atlas", "--out", "unused", "--subset", "toy", "--train", "99999"],
            ["of 99999 train questions"],
        ),
        (["train", "quickstart", "data.environment=atlass", "output=unused"], ["did you mean 'atlas'?"]),
        (
            ["train", "quickstart", "data.environment_options.forms=[one_hpo]", "output=unused"],
            ["did you mean 'one_hop'?"],
        ),
        (["train", "quickstart", "data.environment_options.subset={max_words: x}", "output=unused"], ["subset"]),
        (["train", "quickstart", "--resume", "output=unused"], ["holds no run"]),
    ],
    ids=lambda value: " ".join(value[:5]),
)
def test_a_mistake_in_any_command_is_one_line(
    arguments: list[str], parts: list[str], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(cli(*arguments), *parts)
    assert not (tmp_path / "unused").exists()


def test_an_unknown_command_or_a_missing_argument_has_its_usage(cli: Cli) -> None:
    for arguments in (["tran"], ["train"], ["search", "index"]):
        said = cli(*arguments)
        assert said.code == 2
        assert said.err.startswith("Usage: ")
        assert said.err.count("Error: ") == 1
        assert "Traceback" not in said.err


def test_a_shell_sees_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mempo.cli.main", "search", str(tmp_path / "nowhere"), "query"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert_one_line(Said(done.returncode, done.stdout, done.stderr), "nowhere")


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, "100")  # so that what the script sets is undone
    reference = runpy.run_path(str(ROOT / "scripts" / "cli_reference.py"))["reference"]()
    assert reference == (ROOT / "docs" / "cli.md").read_text("utf-8"), "call make docs"
    for command in ("train", "sft", "eval", "score", "compare", "diagnose", "config", "search", "serve", "index build"):
        assert f"## `mempo {command}`" in reference
