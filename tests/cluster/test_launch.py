"""A launch writes the files of a run and starts verl on them; a second one goes on or is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

import mempo.run.prompt_date
from mempo.cluster.launch import checked_address, dry_run, launch
from mempo.cluster.process import run_process
from mempo.cluster.questions import question_of
from mempo.config import Resolved, resolve
from mempo.errors import ConfigError, UserError
from mempo.rollout.question import as_gold
from tests.tiny import chat_tokenizer, make_tokenizer, tiny_llama

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    tiny_llama(tokenizer).model.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    rows = [{"id": f"q{n}", "question": f"question {n}", "answer": [f"a{n}", "alias"]} for n in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def resolved(model: Path, questions: Path, tmp_path: Path, *overrides: str) -> Resolved:
    settings = (
        *(f"model.path={model}", f"output={tmp_path / 'run'}", f"data.train={questions}", "agent.tools=[]"),
        *("rl.steps=2", "rl.questions_per_step=4", "rl.rollouts_per_question=2", "limits.max_context_tokens=64"),
        *("cluster.gpus_per_node=2",),
    )
    return resolve(None, [*settings, *overrides])


class Runs:
    """In the place of verl's process."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.arguments: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        self.arguments.append(list(arguments))
        return self.code


def start(config: Resolved, runs: Runs, resume: bool = False, said: StringIO | None = None) -> int:
    console = Console(file=said or StringIO(), width=400)
    return launch(config, console, resume=resume, skip_checks=True, runner=runs)


def test_a_launch_writes_the_run_and_starts_verl_on_it(model: Path, questions: Path, tmp_path: Path) -> None:
    runs, config = Runs(), resolved(model, questions, tmp_path, f"data.test={questions}", "evaluate.questions=3")
    assert start(config, runs) == 0
    folder = tmp_path / "run"
    assert runs.arguments == [
        [*(sys.executable, "-m", "verl.trainer.main_ppo", "--config-path", str(folder), "--config-name", "verl")]
    ]
    assert yaml.safe_load((folder / "config.yaml").read_text("utf-8")) == config.plain()
    made = yaml.safe_load((folder / "verl.yaml").read_text("utf-8"))
    rows = pq.read_table(made["data"]["train_files"]).to_pylist()
    assert [question_of(row["extra_info"]["question"]).id for row in rows] == ["q0", "q1", "q2", "q3", "q4"]
    assert question_of(rows[1]["extra_info"]["question"]).gold == as_gold(["a1", "alias"])
    assert {row["data_source"] for row in rows} == {"questions"}
    assert pq.read_table(made["data"]["val_files"]).num_rows == 3
    assert made["trainer"]["test_freq"] == 20


def test_without_test_questions_there_is_no_validation(model: Path, questions: Path, tmp_path: Path) -> None:
    assert start(resolved(model, questions, tmp_path), Runs()) == 0
    made = yaml.safe_load((tmp_path / "run" / "verl.yaml").read_text("utf-8"))
    assert made["data"]["val_files"] == made["data"]["train_files"]
    assert made["trainer"]["test_freq"] == -1


def test_a_template_with_a_date_gets_the_day_of_the_launch(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, model, run = chat_tokenizer("dated"), tmp_path / "model", tmp_path / "run"
    tiny_llama(tokenizer).model.save_pretrained(model)
    tokenizer.hf.save_pretrained(model)
    config = resolved(model, questions, tmp_path, "limits.max_context_tokens=200")
    for day in (2, 3):
        monkeypatch.setattr(mempo.run.prompt_date, "date", SimpleNamespace(today=lambda day=day: date(2020, 1, day)))
        assert start(config, Runs(), resume=day == 3) == 0
        assert yaml.safe_load((run / "config.yaml").read_text("utf-8"))["prompt"]["date"] == "2020-01-02"
        assert yaml.safe_load((run / "verl.yaml").read_text("utf-8"))["mempo"]["prompt"]["date"] == "2020-01-02"


@pytest.mark.parametrize(("code", "ours", "named"), [(3, 3, "exit code 3"), (-9, 137, "signal SIGKILL")])
def test_the_exit_code_is_passed_on(
    code: int, ours: int, named: str, model: Path, questions: Path, tmp_path: Path
) -> None:
    said = StringIO()
    assert start(resolved(model, questions, tmp_path), Runs(code), said=said) == ours
    assert named in said.getvalue()


def test_a_folder_with_a_run_is_refused_without_resume(model: Path, questions: Path, tmp_path: Path) -> None:
    config = resolved(model, questions, tmp_path)
    start(config, Runs())
    with pytest.raises(UserError, match="already holds a run"):
        start(config, Runs())


def test_a_run_goes_on_with_what_changes_no_result(model: Path, questions: Path, tmp_path: Path) -> None:
    start(resolved(model, questions, tmp_path), Runs())
    runs = Runs()
    smaller = resolved(
        *(model, questions, tmp_path, "cluster.micro_batch_tokens=8192", "cluster.test_every=5"),
        *("model.gradient_checkpointing=true", "cluster.verl={actor_rollout_ref.rollout.max_num_seqs: 64}"),
    )
    assert start(smaller, runs, resume=True) == 0
    assert len(runs.arguments) == 1
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8")) == smaller.plain()
    assert start(resolved(model, questions, tmp_path), runs, resume=True) == 0  # and back again
    made = yaml.safe_load((tmp_path / "run" / "verl.yaml").read_text("utf-8"))
    assert made["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"] == 16384
    assert made["trainer"]["resume_mode"] == "auto"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.optim.lr=1e-5", "rl.optim.lr: 1e-06 → 1e-05"),
        ("cluster.gpus_per_node=1", "cluster.gpus_per_node: 2 → 1"),
        ("cluster.verl={actor_rollout_ref.actor.optim.lr_warmup_steps: 5}", "lr_warmup_steps: (absent) → 5"),
    ],
)
def test_a_run_does_not_go_on_as_another_one(
    override: str, said: str, model: Path, questions: Path, tmp_path: Path
) -> None:
    start(resolved(model, questions, tmp_path), Runs())
    with pytest.raises(UserError, match="changed: ") as caught:
        start(resolved(model, questions, tmp_path, override), Runs(), resume=True)
    assert said in str(caught.value)


def test_a_run_whose_checkpoint_is_gone_is_not_begun_anew(model: Path, questions: Path, tmp_path: Path) -> None:
    start(resolved(model, questions, tmp_path), Runs())
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1", encoding="utf-8")
    runs = Runs()
    with pytest.raises(UserError, match=r"names step 1, but .* lacks 7 of the files of 2 GPUs"):
        start(resolved(model, questions, tmp_path), runs, resume=True)
    assert runs.arguments == []


def test_a_run_does_not_go_on_with_other_questions(model: Path, questions: Path, tmp_path: Path) -> None:
    config = resolved(model, questions, tmp_path)
    start(config, Runs())
    questions.write_text(questions.read_text("utf-8").replace("question 2", "another"), encoding="utf-8")
    with pytest.raises(UserError, match="training questions changed"):
        start(config, Runs(), resume=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rl.questions_per_step=6"], "5 < 6"),
        (["limits.max_context_tokens=2048"], "limits.max_context_tokens=1024"),
        (["sft.steps=1"], "set sft.steps=0"),
        (["reward=no_such_module:score"], "no_such_module"),
    ],
)
def test_what_cannot_run_leaves_no_run_behind(
    overrides: list[str], said: str, model: Path, questions: Path, tmp_path: Path
) -> None:
    runs = Runs()
    with pytest.raises(UserError) as caught:
        start(resolved(model, questions, tmp_path, *overrides), runs)
    assert said in str(caught.value)
    assert runs.arguments == []
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_machine_without_verl_is_refused_check_by_check(model: Path, questions: Path, tmp_path: Path) -> None:
    said = StringIO()
    with pytest.raises(UserError, match="versions"):
        launch(resolved(model, questions, tmp_path), Console(file=said, width=400), runner=Runs())
    assert "fail  GPUs: 0 of 2" in said.getvalue()
    assert not (tmp_path / "run").exists()


def test_a_dry_run_writes_nothing_and_needs_no_model(tmp_path: Path) -> None:
    config = resolve("cluster-qwen2.5-7b", [f"output={tmp_path / 'run'}"])
    text = dry_run(config, "auto")
    assert yaml.safe_load(text)["ray_kwargs"]["ray_init"] == {"address": "auto"}
    assert list(tmp_path.iterdir()) == []


def test_own_code_is_found_by_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    config = resolve("cluster-qwen2.5-7b", ["reward=mine:score", "cluster.loggers=[console, tensorboard]"])
    variables = yaml.safe_load(dry_run(config))["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "/elsewhere"]
    assert variables["TENSORBOARD_DIR"] == str(tmp_path / "runs/cluster-qwen2.5-7b/tensorboard")


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "ray://head.local:10001", "[::1]:6379", None])
def test_addresses_of_ray(address: str | None) -> None:
    assert checked_address(address) == address


@pytest.mark.parametrize("address", ["10.0.0.1", "http://x:1", "x:1; rm", ""])
def test_what_is_no_address_of_ray_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="not a Ray cluster"):
        checked_address(address)


def test_a_configuration_of_this_process_is_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match="set toy=null"):
        dry_run(resolve("quickstart"))


def test_a_signal_to_the_launcher_reaches_the_process(tmp_path: Path) -> None:
    ready, code = tmp_path / "ready", tmp_path / "code.py"
    code.write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n",
        encoding="utf-8",
    )
    ours = "import os, sys; from mempo.cluster.process import run_process; "
    ours += f"sys.exit(run_process([sys.executable, {str(code)!r}], os.environ))"
    process = subprocess.Popen([sys.executable, "-c", ours], cwd=ROOT)
    while not ready.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 7


def test_the_code_of_a_process_comes_back() -> None:
    assert run_process([sys.executable, "-c", "import sys; sys.exit(5)"], os.environ) == 5
