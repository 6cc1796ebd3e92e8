"""What SFT learns from: episodes in both contexts, probe samples, and for the toy policy copying."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mempo.config import Config
from mempo.envs.atlas import AtlasEnvironment
from mempo.rewards.probe_check import CheckNotes
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import Row
from mempo.setup import Data, load_data, make_agent, make_tools
from mempo.train.demonstrations import notes_to_check, sft_rows, tokenizer_of_toy
from tests.train.small import quiet, small


def prepared(tmp_path: Path, *overrides: str) -> tuple[Config, Data, Tokenizer]:
    config = small(tmp_path / "run", "limits.max_turns=8", "limits.max_turn_tokens=60", *overrides).config
    data = load_data(config, tmp_path / "data")
    return config, data, tokenizer_of_toy(config, data)


def told(tmp_path: Path, *overrides: str) -> tuple[dict[str, int], list[Row], Tokenizer]:
    """The counts that are printed, the rows of the first step after the copying, and the tokenizer."""
    config, data, tokenizer = prepared(tmp_path, "toy.warmup_steps=0", "toy.copy_share=0", *overrides)
    console = Console(file=io.StringIO(), width=120)
    agent = make_agent(config, tokenizer, make_tools(config, data.retriever))
    rows = list(sft_rows(config, data, agent, console)(0))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    found = re.findall(r"(\d+) (episodes|rows|probe)", printed)
    return {name: int(number) for number, name in found}, rows, tokenizer


def test_a_share_of_the_episodes_is_told_with_the_full_history(tmp_path: Path) -> None:
    in_memory, in_full, mixed = (told(tmp_path / share, f"sft.full_share={share}")[0] for share in ("0", "1", "0.5"))
    assert in_memory["episodes"] == in_full["episodes"] == mixed["episodes"] == 10
    assert in_full["rows"] == 10  # a history is one row
    assert in_memory["rows"] >= 30  # a turn is one row, and there are two or three searches
    assert in_full["rows"] < mixed["rows"] < in_memory["rows"]


def test_probe_samples_come_from_complete_notes_whatever_the_expert_forgets(tmp_path: Path) -> None:
    always = ("sft.full_share=0", "sft.expert.loss=1", "sft.expert.lossless_share=0", "sft.probe_share=0.9")
    counts, rows, tokenizer = told(tmp_path / "complete", *always)
    _, lossy, _ = told(tmp_path / "lossy", *always, "sft.lossless_probes=false")
    none, _, _ = told(tmp_path / "none", *always, "sft.probe_share=0")
    assert counts["probe"] > 0
    assert none["probe"] == 0
    complete, forgotten = (
        [tokenizer.decode(row.ids) for row in some if is_probe(tokenizer, row)] for some in (rows, lossy)
    )
    assert len(complete) == len(forgotten) == 7
    assert not any("<answer>\nunknown" in text for text in complete)
    assert all("<answer>\nunknown" in text for text in forgotten)


def test_nothing_is_lost_before_the_lossy_steps_counted_from_the_end_of_all_steps(tmp_path: Path) -> None:
    """Of seven steps one copies, four show complete notes, and the last two the notes of an expert that forgets all."""
    how = ("toy.copy_share=0", "sft.probe_share=0", "sft.full_share=0", "sft.expert.lossless_share=0")
    config, data, tokenizer = prepared(
        tmp_path, *how, "toy.warmup_steps=1", "sft.steps=7", "sft.lossy_steps=2", "sft.expert.loss=1"
    )
    agent = make_agent(config, tokenizer, make_tools(config, data.retriever))
    rows_at = sft_rows(config, data, agent, quiet())
    facts = [notes_with_facts(texts(tokenizer, rows_at(step))) for step in range(7)]
    assert all(found == 0 for found in (facts[0], *facts[5:]))
    assert all(found > 0 for found in facts[1:5])
    assert texts(tokenizer, rows_at(4)) == texts(tokenizer, rows_at(4))
    again = sft_rows(config, data, agent, quiet())  # as a resumed run makes it
    assert [texts(tokenizer, again(step)) for step in (6, 3, 5)] == [
        texts(tokenizer, rows_at(step)) for step in (6, 3, 5)
    ]


def notes_with_facts(rows: list[str]) -> int:
    notes = [note for text in rows for note in re.findall(r"<mem>(.*?)</mem>", text, re.DOTALL)]
    return sum(bool(re.search(r"^(capital|currency) of [^\n]+: [^\n]+$", note, re.MULTILINE)) for note in notes)


def texts(tokenizer: Tokenizer, rows: Sequence[Row]) -> list[str]:
    return [tokenizer.decode(row.ids) for row in rows]


def is_probe(tokenizer: Tokenizer, row: Row) -> bool:
    return "<think>\nanswer\n</think>" in tokenizer.decode(row.ids)


def test_probe_samples_have_their_share_of_a_batch(tmp_path: Path) -> None:
    _, rows, tokenizer = told(tmp_path, "sft.batch_rows=8", "sft.probe_share=0.5")
    assert [is_probe(tokenizer, row) for row in rows] == [False] * 4 + [True] * 4


def test_an_agent_without_notes_learns_without_them(tmp_path: Path) -> None:
    without = ("agent.notes=forbidden", "agent.context=react", "limits.max_context_tokens=1000")
    counts, rows, tokenizer = told(tmp_path, *without, "rl.memory_signal=false")
    assert counts["probe"] == 0
    assert not any("<mem>" in tokenizer.decode(row.ids) for row in rows)


def test_the_tokenizer_of_the_toy_has_a_token_for_every_name_and_fixed_sentence(tmp_path: Path) -> None:
    config, data, tokenizer = prepared(tmp_path)
    assert isinstance(data.environment, AtlasEnvironment)
    for text in (
        *data.environment.names(),
        config.memory.probe.thought,
        config.sft.expert.unknown,
        "nothing was found",
    ):
        assert len(tokenizer.encode_untrusted(text)) == 1, text
    assert len(tokenizer.encode_untrusted("1 capital of France: Paris")) == 5


def checked(tmp_path: Path, *overrides: str, plans: bool = True) -> tuple[list[CheckNotes], Data]:
    config, data, tokenizer = prepared(tmp_path, "rl.probe_check_questions=6", *overrides)
    if not plans:
        bare = [dataclasses.replace(question, meta={}) for question in data.train]
        data = dataclasses.replace(data, train=bare)
    return notes_to_check(config, data, make_agent(config, tokenizer, make_tools(config, data.retriever))), data


def test_the_notes_of_the_probe_check_are_complete_whatever_the_expert_forgets(tmp_path: Path) -> None:
    notes, _ = checked(tmp_path, "sft.expert.loss=1", "sft.expert.lossless_share=0")
    assert len(notes) >= 4
    for one in notes:
        answers = one.question.probe_objectives
        assert all(answer in one.right for answer in answers)
        assert one.one_wrong is not None
        assert sum(answer in one.one_wrong for answer in answers) == len(answers) - 1
        assert not one.right.startswith("<mem>")


def test_questions_without_a_search_plan_are_checked_with_their_answers(tmp_path: Path) -> None:
    notes, _ = checked(tmp_path, plans=False)
    assert [one.right for one in notes] == ["\n".join(one.question.probe_objectives) for one in notes]
    assert len(notes) == 6
