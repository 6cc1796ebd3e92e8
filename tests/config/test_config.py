"""Configuration: sources and origins, refusals with a remedy, and every shipped recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.config import Resolved, completed, dump_with_origins, recipe_names, resolve
from mempo.config.yaml_text import dump_yaml
from mempo.errors import ConfigError, UserError
from mempo.storage.run_folder import RunFolder


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(source: str | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(source, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_resolves_and_reads_back_the_same(name: str, tmp_path: Path) -> None:
    resolved = resolve(name)
    again = resolve(write(tmp_path / "config.yaml", dump_with_origins(resolved)))
    assert again.config == resolved.config
    assert resolved.origins["output"] == f"recipe {name}"


@pytest.mark.parametrize("path", sorted(Path("examples").rglob("*.yaml")), ids=str)
def test_every_example_configuration_resolves(path: Path) -> None:
    assert isinstance(resolve(str(path)), Resolved)


def test_later_sources_win_and_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "rl: {steps: 3, optim: {lr: 1e-6}}\ndata: {environment: atlas}\n")
    resolved = resolve(file, ["rl.steps=5"])
    assert resolved.config.rl.steps == 5
    assert resolved.config.rl.optim.lr == 1e-6
    assert resolved.origins["rl.steps"] == "command line"
    assert resolved.origins["rl.optim.lr"] == file
    assert resolved.origins["rl.rollouts_per_question"] == "default"
    assert f"lr: 1.0e-06  # {file}" in dump_with_origins(resolved)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.optim.lrr=1e-6", "did you mean 'lr'?"),
        ("memory.pol=turn", "did you mean 'pool'?"),
        ("sft.expert.joinr=x", "did you mean 'joiner'?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(override: str, said: str) -> None:
    message = refusal("quickstart", override)
    assert said in message
    assert "command line" in message


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rl.steps=many"], "rl.steps"),
        (["rl.steps"], "key=value"),
        (["rl.top_p=0.9"], "leave top_p=1"),
        (["rl.questions_per_step=5", "rl.updates_per_step=2"], "10 is"),
        (["model.path=x"], "toy=null"),
        (["agent.context=memry"], "did you mean 'memory'?"),
        (["agent.context=window(0)"], "window(k)"),
        (["agent.tools=[serch]"], "did you mean 'search'?"),
        (["memory.probe.joiner=,"], "make them agree"),
        (["limits.min_turn_tokens=512"], "no room for a prompt"),
        (["data.objectives=[0]"], "whole numbers from 1"),
        (["data.index=a", "data.server=http://b"], "one of them"),
        (["agent.context=react"], "agent.notes=forbidden"),
        (["memory=orginal"], "did you mean 'original'?"),
        (["memory.pool=qestion"], "memory.pool"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_remedy(overrides: list[str], said: str) -> None:
    assert said in refusal("quickstart", *overrides)


def test_a_missing_source_names_the_recipes() -> None:
    assert "did you mean 'quickstart'?" in refusal("quikstart")


def test_own_reward_and_advantages_have_a_short_form() -> None:
    config = resolve("quickstart", ["reward=my_module:score", "advantages=my_module:advantages"]).config
    assert config.reward.score == "my_module:score"
    assert config.advantages.function == "my_module:advantages"


def test_the_short_form_leaves_the_other_keys_of_its_room_alone(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", "reward: my_module:score\n")
    for resolved in (
        resolve(file, ["reward.format_gate=false"]),
        resolve(None, ["reward.format_gate=false", "reward=my_module:score"]),
    ):
        assert resolved.config.reward.score == "my_module:score"
        assert resolved.config.reward.format_gate is False
    assert resolve(file).origins["reward.score"] == file
    assert resolve(file).origins["reward.format_gate"] == "default"


def test_one_switch_makes_a_run_on_the_outcome_alone() -> None:
    for recipe in recipe_names():
        assert resolve(recipe, ["rl.memory_signal=false"]).config.rl.memory_signal is False


def test_an_empty_mapping_clears_a_key() -> None:
    assert resolve("quickstart", ["data.environment_options={}"]).config.data.environment_options == {}
    added = resolve("quickstart", ["data.environment_options={rendering: prose}"])
    assert added.config.data.environment_options["subset"] == "toy"  # any other is merged
    assert added.config.data.environment_options["rendering"] == "prose"


def test_there_must_be_something_to_train_on() -> None:
    assert "data.train or data.environment" in refusal(None, "rl.steps=1", "agent.tools=[]")
    assert "nothing to search" in refusal(None, "rl.steps=1", "data.train=q.jsonl")
    assert issubclass(ConfigError, UserError)


def test_a_preset_of_the_memory_signal_has_a_short_form_and_an_origin(tmp_path: Path) -> None:
    resolved = resolve("quickstart", ["memory=original", "memory.pool=turn"])
    memory = resolved.config.memory
    assert (memory.preset, memory.baseline, memory.pool) == ("original", "full", "turn")
    assert (memory.probe.separators_are_gold, memory.probe.thought) == (True, "answer")
    origins = resolved.origins
    assert origins["memory.baseline"] == origins["memory.probe.separators_are_gold"] == "preset original"
    assert (origins["memory.pool"], origins["memory.probe.thought"]) == ("command line", "recipe quickstart")
    assert origins["memory.weight"] == "default"
    file = write(tmp_path / "again.yaml", dump_with_origins(resolved))
    assert resolve(file).config == resolved.config


@pytest.mark.parametrize(
    ("limits", "expected"),
    [([], 72), (["limits.max_note_tokens=30"], 30), (["memory.length_limit_tokens=9"], 9)],
)
def test_the_length_a_penalty_is_measured_by_comes_from_the_limits(limits: list[str], expected: int) -> None:
    config = resolve("quickstart", ["memory.length_penalty=0.1", *limits]).config
    assert config.memory.length_limit_tokens == expected
    assert resolve("quickstart").config.memory.length_limit_tokens is None


def test_one_key_of_a_group_leaves_the_defaults_of_its_owner() -> None:
    optim = resolve(None, ["sft.optim.lr=1e-3"]).config.sft.optim
    assert (optim.lr, optim.warmup_steps, optim.schedule) == (1e-3, 10, "cosine")
    assert resolve(None, ["rl.optim.lr=1e-3"]).config.rl.optim.schedule == "constant"
    found = resolve(None, ["server.url=http://localhost:1", "server.retry.tries=2"]).config.server
    assert found is not None
    assert (found.retry.tries, found.retry.backoff_s) == (2, 0.5)


# --- settings of later releases --------------------------------------------------------------------------------------


def test_a_configuration_of_an_earlier_release_is_completed_with_defaults(tmp_path: Path) -> None:
    plain = resolve("quickstart").plain()
    assert completed(plain) == plain
    older = {**plain, "limits": {k: v for k, v in plain["limits"].items() if k != "max_tool_s"}}
    del older["access"]  # settings and whole sections that it did not have
    run = RunFolder(tmp_path / "run")
    run.begin(older, resume=False)
    run.log("sft", 1, {"loss": 1.0})
    with pytest.raises(UserError, match=r"limits\.max_tool_s: \(absent\) → 600"):
        run.check(plain, resume=True)
    run.check(plain, resume=True, completed=completed)
    other = resolve("quickstart", ["limits.max_tool_s=7", "access.max_page_chars=99"]).plain()
    with pytest.raises(UserError, match=r"limits\.max_tool_s: 600\.0 → 7\.0; access\.max_page_chars: .* → 99"):
        run.check(other, resume=True, completed=completed)


def test_a_configuration_that_cannot_be_read_stays_as_it_is() -> None:
    saved = {"seed": 0, "gone": {"in": 1}}
    assert completed(saved) is saved
    assert completed({}) == {}, "no release has written this"
    odd = {**resolve("quickstart").plain(), "gone": 1}
    assert completed(odd) is odd


def saved_run(folder: Path, *overrides: str) -> str:
    """A run folder as far as its configuration goes."""
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    (folder / "config.yaml").write_text(dump_yaml(resolve("quickstart", overrides).plain()), encoding="utf-8")
    return str(folder)


def test_what_follows_a_preset_follows_the_new_one_of_a_saved_run(tmp_path: Path) -> None:
    """A run folder holds every setting, as if each had been asked for."""
    recommended, original = saved_run(tmp_path / "a"), saved_run(tmp_path / "b", "memory=original")
    assert resolve(recommended, ["memory=original"]).config.memory == resolve(original).config.memory
    assert resolve(original, ["memory=recommended"]).config.memory == resolve("quickstart").config.memory
    kept = resolve(saved_run(tmp_path / "c", "memory.fade_batches=9"), ["memory=original"]).config
    assert (kept.memory.pool, kept.memory.fade_batches) == ("question", 9), "what was asked for stays"
