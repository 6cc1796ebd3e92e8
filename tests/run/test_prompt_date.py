"""What is resumed on another day, or with another template, asks the same prompts or is refused."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import mempo.run.prompt_date
import mempo.train.sft
from mempo.config import resolve
from mempo.config.rollout import PromptSettings
from mempo.engine.model import save_policy
from mempo.errors import ConfigError, UserError
from mempo.rollout.render import Renderer, prompt_probe
from mempo.run.prompt_date import with_saved_date, with_todays_date
from mempo.storage.read_files import DamagedFile
from tests.evaluate.test_commands import Cli, cli, config  # noqa: F401
from tests.tiny import chat_tokenizer, make_tokenizer, tiny_llama
from tests.train.small import quiet
from tests.train.test_resume import Killed, kill_after

DATED = chat_tokenizer("dated")


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the day."""

    def set_day(day: str) -> None:
        class Today(datetime.date):
            @classmethod
            def today(cls) -> datetime.date:  # type: ignore[override]
                return datetime.date.fromisoformat(day)

        monkeypatch.setattr(mempo.run.prompt_date, "date", Today)

    return set_day


def prompt(**settings: Any) -> str:
    renderer = Renderer(DATED, PromptSettings(**settings))
    return renderer.tokenizer.decode(renderer.question("Who?"))


def test_templates_are_given_the_date_that_is_set() -> None:
    assert "Today is 02 Jan 2020<|im_end|>" in prompt(date="2020-01-02")
    assert f"Today is {datetime.date.today():%d %b %Y}" in prompt()


@pytest.mark.parametrize("given", ["2020-01-02", datetime.date(2020, 1, 2), "20200102"])
def test_dates_are_kept_in_one_form(given: Any) -> None:
    assert PromptSettings(date=given).date == "2020-01-02"


@pytest.mark.parametrize("given", ["yesterday", 20200102, "2020-13-01", datetime.datetime(2020, 1, 2, 3)])
def test_what_is_no_date_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a date; write it as 2026-03-01"):
        PromptSettings(date=given)
    with pytest.raises(ConfigError, match=r"prompt\.date"):
        resolve("quickstart", ["prompt.date=tomorrow"])


def test_the_probe_tells_prompts_apart() -> None:
    of = lambda tokenizer, **settings: prompt_probe(Renderer(tokenizer, PromptSettings(**settings)))  # noqa: E731
    assert of(DATED, date="2020-01-02") == of(DATED, date="2020-01-02")
    others = [
        of(DATED, date="2020-01-03"),
        of(chat_tokenizer()),
        of(chat_tokenizer("opens_think")),
        of(DATED, force_mem=True),
    ]
    assert len({json.dumps(other) for other in (of(DATED, date="2020-01-02"), *others)}) == 5
    one, other = (
        of(make_tokenizer("byte_bpe"), template="plain"),
        of(make_tokenizer("byte_bpe", "added"), template="plain"),
    )
    assert one["text"] == other["text"]
    assert one["ids"] != other["ids"]


def test_only_work_whose_template_asks_gets_a_date(on: Any, tmp_path: Path) -> None:
    on("2020-01-02")
    plain = resolve("quickstart")
    assert with_todays_date(plain, DATED).config.prompt.date is None  # the recipe's template is plain
    chat = resolve("quickstart", ["prompt.template=auto"])
    assert with_todays_date(chat, chat_tokenizer()).config.prompt.date is None
    begun = with_todays_date(chat, DATED)
    assert (begun.config.prompt.date, begun.origins["prompt.date"]) == ("2020-01-02", "the day on which this began")
    assert chat.config.prompt.date is None
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(begun.plain()))
    on("2020-01-03")
    assert with_saved_date(chat, tmp_path).config.prompt.date == "2020-01-02"
    named = resolve("quickstart", ["prompt.template=auto", "prompt.date=2021-01-01"])
    assert with_todays_date(with_saved_date(named, tmp_path), DATED).config.prompt.date == "2021-01-01"


@pytest.mark.parametrize("dateless", ["seed: 3", "prompt: 3", "prompt: {date: null}", "prompt: {}"])
def test_a_folder_without_a_date_gives_none(dateless: str, tmp_path: Path) -> None:
    given = resolve("quickstart")
    assert with_saved_date(given, tmp_path) is given
    (tmp_path / "config.yaml").write_text(dateless)
    assert with_saved_date(given, tmp_path) is given


@pytest.mark.parametrize("damaged", ["", "[]", "a: [", "\x00"])
def test_a_damaged_configuration_is_said(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(damaged)
    with pytest.raises(DamagedFile):
        with_saved_date(resolve("quickstart"), tmp_path)


def test_an_evaluation_resumed_a_day_later_asks_the_same(
    cli: Cli,  # noqa: F811
    config: Path,  # noqa: F811
    on: Any,
    tmp_path: Path,
) -> None:
    config.write_text(config.read_text().replace("template: plain", "template: auto"))
    save_policy(tiny_llama(DATED), tmp_path / "model")
    command = ("eval", "model", "--config", config, "--out", "out", "--agents", "full")
    on("2020-01-02")
    code, said = cli(*command, "--questions", "2")
    assert code == 0, said
    on("2020-01-03")
    code, said = cli(*command, "--questions", "4")
    assert code == 0, said
    assert "full: 2 rollouts are there; 2 to play" in said
    assert "Today is 02 Jan 2020" in json.loads(Path("out/identity.json").read_text())["prompt"]["text"]
    assert yaml.safe_load(Path("out/config.yaml").read_text())["prompt"]["date"] == "2020-01-02"

    code, said = cli(*command, "prompt.date=2020-01-03")
    assert code == 2
    assert "prompt.date: '2020-01-02' → '2020-01-03'" in said

    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace("Today is", "It is"))
    code, said = cli(*command)
    assert code == 2
    assert "prompts (chat template or date) had …" in said
    assert "Today is 02" in said
    assert "It is 02" in said

    old = json.loads(Path("out/identity.json").read_text())  # as an earlier release wrote it
    Path("out/identity.json").write_text(json.dumps({key: old[key] for key in old if key != "prompt"}))
    assert cli(*command)[0] == 0


@pytest.mark.slow
def test_a_run_resumed_a_day_later_asks_the_same(monkeypatch: pytest.MonkeyPatch, on: Any, tmp_path: Path) -> None:
    from mempo.run.train import train
    from tests.train.small import SMALL

    save_policy(tiny_llama(DATED), tmp_path / "model")
    folder = tmp_path / "run"
    settings = [setting for setting in SMALL if not setting.startswith("toy.")]
    how = [*settings, "toy=null", f"model.path={tmp_path / 'model'}", f"output={folder}", "prompt.template=chat"]
    how += ["rl.steps=0", "sft.steps=2", "sft.save_every=1", "limits.max_context_tokens=1000"]
    on("2020-01-02")
    with monkeypatch.context() as patch:
        kill_after(patch, mempo.train.sft, 1)
        with pytest.raises(Killed):
            train(resolve("quickstart", how), False, quiet())
    on("2020-01-03")
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["prompt"]["date"] == "2020-01-02"
    with pytest.raises(UserError, match=r"prompt\.date: '2020-01-02' → '2020-01-03'"):
        train(resolve("quickstart", [*how, "prompt.date=2020-01-03"]), True, quiet())
    template = folder / "checkpoints" / "sft-1" / "chat_template.jinja"
    whole = template.read_text()
    template.write_text(whole.replace("Today is", "It is"))
    with pytest.raises(UserError, match=r"the prompt around questions .* changed since the run"):
        train(resolve("quickstart", how), True, quiet())
    template.write_text(whole)
    train(resolve("quickstart", how), True, quiet())
    assert yaml.safe_load((folder / "config.yaml").read_text()) == saved

    on("2020-01-04")
    again = [*how, f"output={tmp_path / 'again'}", f"start={folder}", "toy=null"]
    train(resolve("quickstart", again), False, quiet())
    begun = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    assert begun["prompt"]["date"] == "2020-01-02", "the policy of a start is asked as it was taught"
