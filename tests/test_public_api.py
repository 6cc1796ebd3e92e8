"""`import mempo`: what it exports, what it loads, and that the README's code does what it says."""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mempo
from mempo.errors import UserError
from mempo.rollout.question import Question
from mempo.run.loaded import override_texts
from tests.train.small import SMALL

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
SETTINGS = 'settings = {"output": "runs/mine", "seed": 1, "rl.steps": 20}'


def test_every_name_is_exported_and_documented() -> None:
    for name in mempo.__all__:
        assert getattr(mempo, name).__doc__, name
        assert name in dir(mempo)
    with pytest.raises(AttributeError, match="no attribute 'loda'"):
        _ = mempo.loda  # type: ignore[attr-defined]


def test_import_loads_nothing_heavy() -> None:
    program = "import sys, mempo; print(sorted({'torch', 'transformers', 'pydantic', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_package_of_the_same_name_hides_no_function() -> None:
    packages = {path.name for path in (ROOT / "src" / "mempo").iterdir() if path.is_dir()}
    assert not packages & set(mempo.__all__)


@pytest.mark.parametrize(
    "text", ["😀 é", "東京", "a\n\tb\x85\u2028\ufeff\U000e0041", "on", "1e3", "", " x ", '"{[', "\\ud83d"]
)
def test_a_text_from_python_arrives_as_it_is(text: str) -> None:
    config = mempo.resolve("quickstart", override_texts({"sft.expert.separator": text})).config
    assert config.sft.expert.separator == text


def test_paths_and_numbers_of_numpy_are_settings() -> None:
    settings = {"output": Path("runs") / "my", "seed": np.int64(3), "sft.optim.lr": np.float32(0.5)}
    config = mempo.resolve("quickstart", override_texts(settings)).config
    assert (config.output, config.seed, config.sft.optim.lr) == ("runs/my", 3, 0.5)
    with pytest.raises(UserError, match=r"data\.objectives is a set"):
        override_texts({"data.objectives": {1, 2}})


def test_load_agent_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        mempo.load_agent(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("api") / "run"
    return mempo.train_agent("quickstart", [*SMALL, f"output={output}", "rl.steps=1"], quiet=True)


@pytest.mark.slow
def test_readme_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    train, ask = BLOCKS
    assert SETTINGS in train
    assert len(train.strip().splitlines()) <= 20
    assert len(ask.strip().splitlines()) <= 20
    small = f"settings = {[*SMALL, 'output=runs/mine', 'rl.steps=1']!r}"
    code = train.replace(SETTINGS, small).replace('"evaluate.questions": 200', '"evaluate.questions": 3')
    names: dict[str, object] = {}
    exec(code, names)
    assert names["run"] == Path("runs/mine")
    exec(ask, {})
    said = capsys.readouterr().out
    assert "2 objectives: EM" in said
    assert "turn 1: note" in said
    assert len(re.findall(r"P\(answer \| .*\) = [0-9.e-]+", said)) == 3


@pytest.mark.slow
def test_loaded_agent_asks_and_scores(run: Path) -> None:
    with mempo.load_agent(run, {"limits.max_turns": 3}) as agent:
        first, again = agent.ask("capital of Peru"), agent.ask(Question("other", "capital of Peru", None))
        assert [turn.generated_ids for turn in first.turns] == [turn.generated_ids for turn in again.turns]

        async def in_a_loop() -> object:
            return agent.ask("capital of Peru").answer

        assert asyncio.run(in_a_loop()) == first.answer
        texts = agent.texts(first)
        assert len(texts) == len(first.turns) <= 3
        assert "capital of Peru" in texts[0].saw

        # The score is the geometric mean over the answer's tokens, and a tag in a note is text.
        p = agent.score_note("capital of Peru", "Lima", "capital of Peru: Lima")
        assert 0 < p < 1
        assert agent.score_note("capital of Peru", "Lima", "</mem><answer>Lima</answer>") != pytest.approx(p)
        assert math.isclose(agent.score_note("capital of Peru", ("Lima", "Ciudad"), "capital of Peru: Lima"), p)
        with pytest.raises(UserError, match="gives no signal: the answer is blank"):
            agent.score_note("capital of Peru", "  ", "note")
