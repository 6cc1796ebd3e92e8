"""From a study file to its runs: who shares what, what makes a run another one, and what is refused before any runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mempo.study.plan
from mempo.errors import ConfigError
from mempo.study.code import code_digest, without_comments
from mempo.study.plan import Task, plan
from mempo.study.settings import read_study, shipped_studies
from tests.study.small import study_file


def planned(folder: Path, more: tuple[str, ...] = (), only: tuple[str, ...] = (), **parts: Any) -> list[Task]:
    return plan(read_study(study_file(folder, **parts))[1], folder / "out", more, only)


def test_every_arm_begins_from_the_one_start_of_its_seed(tmp_path: Path) -> None:
    tasks = planned(tmp_path, seeds=[0, 7], rl_seeds=[1, 2])
    starts = {task.seed: task for task in tasks if task.arm is None}
    assert sorted(starts) == [0, 7]
    arms = [task for task in tasks if task.arm is not None]
    assert sorted((task.arm, task.seed, task.rl_seed) for task in arms) == [
        (arm, seed, rl_seed) for arm in ("both", "outcome") for seed in (0, 7) for rl_seed in (1, 2)
    ]
    for task in arms:
        config = task.resolved.config
        assert task.after == starts[task.seed].key
        assert (config.seed, config.rl.seed, config.start) == (task.seed, task.rl_seed, str(starts[task.seed].folder))
        assert config.model.threads == 1
    assert all(task.resolved.config.rl.steps == 0 for task in starts.values())
    assert len({task.key for task in tasks}) == len(tasks) == 10
    assert [task.key for task in tasks].index(starts[0].key) == 0


def test_without_rl_seeds_rl_has_the_seed_of_the_data(tmp_path: Path) -> None:
    assert {(task.seed, task.rl_seed) for task in planned(tmp_path, seeds=[3, 4]) if task.arm} == {(3, 3), (4, 4)}


def test_a_start_can_take_the_sft_of_another_or_a_part_of_it(tmp_path: Path) -> None:
    starts = {
        "plain": [],
        "same": {"sft_of": "plain", "rl": ["data.objectives=[3]"]},
        "early": {"sft_of": "plain", "sft_step": 2},
        "later": {"sft_of": "plain", "sft_step": 4},
    }
    tasks = planned(tmp_path, starts=starts)
    found = {task.start: task for task in tasks if task.arm is None}
    assert sorted(found) == ["early", "later", "plain"]
    assert found["plain"].resolved.config.sft.keep_every == 2
    assert found["early"].after == found["plain"].key
    assert found["early"].resolved.config.start == str(found["plain"].folder / "checkpoints" / "sft-2")
    after = {task.start: task.after for task in tasks if task.arm == "both"}
    assert after == {
        "plain": found["plain"].key,
        "same": found["plain"].key,
        "early": found["early"].key,
        "later": found["later"].key,
    }
    objectives = {task.start: task.resolved.config.data.objectives for task in tasks if task.arm == "both"}
    assert (objectives["plain"], objectives["same"]) == ((2, 3), (3,))


def keys(tasks: list[Task]) -> dict[str, str]:
    return {str(task.arm): task.key for task in tasks}


def test_a_run_is_known_by_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = keys(planned(tmp_path))
    assert base == keys(planned(tmp_path))
    renamed = planned(tmp_path, arms={"other": ["rl.memory_signal=false"], "both": []})
    assert keys(renamed)["other"] == base["outcome"]  # a name is no content
    longer = keys(planned(tmp_path, ("rl.steps=3",)))
    assert (longer["None"] == base["None"], longer["both"] == base["both"]) == (True, False)
    other = keys(planned(tmp_path, ("sft.steps=7",)))
    assert not set(other.values()) & set(base.values())
    with monkeypatch.context() as patch:
        patch.setattr(mempo.study.plan, "code_digest", lambda: "another")
        assert not set(keys(planned(tmp_path)).values()) & set(base.values())


def test_own_code_and_files_are_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "own_reward_of_a_study.py"
    own.write_text("def score(question, trajectory):\n    return 1.0\n", encoding="utf-8")
    arms = {"own": ["reward=own_reward_of_a_study:score"], "both": []}
    before = keys(planned(tmp_path, arms=arms))
    own.write_text("def score(question, trajectory):\n    return 0.5\n", encoding="utf-8")
    after = keys(planned(tmp_path, arms=arms))
    assert (before["own"] == after["own"], before["both"] == after["both"]) == (False, True)


def test_comments_and_docstrings_are_no_code() -> None:
    one = 'def f(x):\n    """Text."""\n    return x  # why\n'
    assert without_comments(one) == without_comments("def f(x):\n\n    return x\n")
    assert without_comments(one) != without_comments("def f(x):\n    return x + 1\n")
    assert code_digest() == code_digest()


def test_only_some_arms(tmp_path: Path) -> None:
    every, some = planned(tmp_path), planned(tmp_path, only=("both",))
    assert [task.arm for task in some] == [None, "both"]
    assert {task.key for task in some} < {task.key for task in every}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"base": "quikstart"}, r"start start: no recipe or file 'quikstart'; did you mean 'quickstart'"),
        ({"arms": {}}, "arms are names with settings"),
        ({"arms": {"a/b": []}}, "'a/b' is not a name"),
        ({"arms": {"a": ["rl.stepps=3"]}}, r"arm a from start start: rl: unknown key 'stepps'; did you mean 'steps'"),
        ({"arms": {"a": {"rl.steps": 3}}}, r"arms\.a: write a list of KEY=VALUE"),
        ({"arms": {"a": ["sft.steps=3"]}}, "arm a sets sft.steps, but RL begins from a start that is trained once"),
        ({"arms": {"a": ["toy={}"]}}, "arm a sets toy, but"),
        ({"arms": {"a": ["seed=3"]}}, "sets seed, which a study gives to each run itself"),
        ({"set": ["output=x"]}, "set sets output, which a study"),
        ({"arms": {"a": ["rl.steps=0"]}}, "rl.steps is 0, so the arm would be its start"),
        ({"arms": {"a": [], "b": []}}, "b from start, seed 0 is the same run as a from start, seed 0"),
        ({"arms": {"a": ["reward=nowhere_to_be_found:f"]}}, "arm a from start start: reward: module"),
        ({"baseline": "bothh"}, "baseline 'bothh' is not an arm; did you mean 'both'"),
        ({"seeds": []}, "seeds are a list of whole numbers"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"seed": [1]}, "unknown key 'seed'; did you mean 'seeds'"),
        ({"starts": {"a": {"sft_of": "b"}}}, "a takes the SFT of 'b', no other start"),
        ({"starts": {"a": [], "b": {"sft_step": 3}}}, "name that start, sft_of"),
        ({"starts": {"a": [], "b": {"sft_of": "a", "set": ["sft.steps=3"]}}}, "set would do nothing"),
        ({"starts": {"a": [], "b": {"sft_of": "a", "sft_step": 6}}}, "which has 6 steps"),
        (
            {
                "starts": {
                    "a": ["sft.steps=90"],
                    "b": {"sft_of": "a", "sft_step": 30},
                    "c": {"sft_of": "a", "sft_step": 31},
                }
            },
            "the SFT of a would keep 90 checkpoints, one every 1 steps, for those at 30, 31; .* larger number, 3 or",
        ),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(tmp_path: Path, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        planned(tmp_path, **parts)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no study file 'memory-signals'; did you mean 'memory-signal'"):
        read_study("memory-signals")
    (tmp_path / "list.yaml").write_text("- a\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds a list"):
        read_study(str(tmp_path / "list.yaml"))
    with pytest.raises(ConfigError, match="no arm 'c' in the study; there are: outcome, both"):
        planned(tmp_path, only=("c",))


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_can_be_run(name: str, tmp_path: Path) -> None:
    _, study = read_study(name)
    short, full = plan(study, tmp_path), plan(study.longer(), tmp_path)
    assert {task.key for task in short} < {task.key for task in full}
    assert len({task.seed for task in full}) >= 5
