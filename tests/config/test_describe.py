"""`mempo config --explain` and docs/settings.md say what every setting is."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from mempo.config import Config, resolve
from mempo.config.base import leaves
from mempo.config.describe import ROOTS, described, explain_key
from mempo.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ROOTS)
def test_every_setting_says_what_it_is(name: str) -> None:
    assert [one.key for one in described(ROOTS[name]) if not one.doc] == []


def test_every_leaf_of_a_configuration_is_described_with_its_default() -> None:
    told = {one.key: one.default for one in described(Config) if one.group is None}
    assert set(dict(leaves(Config().model_dump(mode="json")))) - set(told) == {"toy", "server", "cluster", "model.lora"}
    assert (told["rl.optim.lr"], told["sft.optim.lr"]) == ("1.0e-06", "1.0e-05"), "each stage has its own"
    assert (told["server.retry.max_backoff_s"], told["search.retry.max_backoff_s"]) == ("60.0", "8.0")


def test_a_setting_is_explained() -> None:
    lines = explain_key("memory.min_pool").splitlines()
    assert lines[0] == "memory.min_pool  (a configuration)"
    assert lines[1] == "  A turn's pool with fewer rewards falls back to the question's."
    assert "  type: whole number, at least 2" in lines
    assert "  default: 4" in lines
    assert any("does nothing with pool question" in line for line in lines)
    assert any("advantages.function is …, so memory.min_pool would do nothing" in line for line in lines)


def test_who_sets_it_and_what_it_is_here() -> None:
    text = explain_key("rl.steps", resolve("quickstart", ["rl.steps=7"]))
    assert "  recipe maze: 40" in text
    assert "  recipe quickstart: 20" in text
    assert "  here: 7  (command line)" in text
    assert "  checked together with data.train, data.environment" in text
    assert "here:" not in explain_key("rl.steps")


def test_a_group_lists_its_keys_and_other_commands_have_settings_too() -> None:
    assert "\n  search.retry.tries = 5\n" in explain_key("search.retry")
    assert explain_key("dense.factory").startswith("dense.factory  (mempo index build)")
    assert "2039" in explain_key("gpu_bandwidth_gb_s")
    with pytest.raises(ConfigError, match=r"no setting is called 'rl.stps'; did you mean 'rl.steps'"):
        explain_key("rl.stps")


def test_the_page_of_all_settings_is_current() -> None:
    reference = runpy.run_path(str(ROOT / "scripts" / "settings_reference.py"))["reference"]()
    assert reference == (ROOT / "docs" / "settings.md").read_text("utf-8"), "call make docs"
