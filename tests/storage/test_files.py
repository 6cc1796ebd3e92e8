"""Files that are whole or absent, and jsonl that survives a kill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mempo.storage.atomic
from mempo.storage.atomic import atomic_folder, remove_atomic
from mempo.storage.files import append_line, dump_line, read_lines, write_atomic


class Killed(BaseException):
    """Like a kill: nothing catches it by accident."""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def die_while_filling(final: Path, name: str) -> None:
    try:
        with atomic_folder(final) as folder:
            (folder / name).write_text(name)
            raise Killed
    except Killed:
        return


# --- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_gets_its_name_when_it_is_whole_and_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with atomic_folder(tmp_path / "made") as folder:
            (folder / name).write_text(name)
            assert (tmp_path / "made").exists() == (name == "new")
    assert names(tmp_path) == {"made"}
    assert names(tmp_path / "made") == {"new"}


def test_a_writer_that_dies_leaves_what_was_there_before(tmp_path: Path) -> None:
    die_while_filling(tmp_path / "made", "a")
    assert names(tmp_path) == set()
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "old").write_text("old")
    die_while_filling(tmp_path / "made", "new")
    assert names(tmp_path / "made") == {"old"}


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_second_folder_replaces_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    """In one step, where the system can: no kill finds the name gone."""
    if not can_exchange:
        monkeypatch.setattr(mempo.storage.atomic, "_exchanged", lambda one, other: False)
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "old").write_text("old")
    with monkeypatch.context() as patch:
        if can_exchange:
            patch.setattr(os, "rename", lambda source, target: pytest.fail("the name was free for a moment"))
        with atomic_folder(tmp_path / "made") as folder:
            (folder / "new").write_text("new")
    assert names(tmp_path / "made") == {"new"}
    assert names(tmp_path) == {"made"}


def test_what_an_earlier_kill_left_is_swept_away(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = tmp_path / f".made.tmp-{int(ended.stdout)}-ab12"
    left.mkdir()
    (left / "rubbish").write_text("x")
    with atomic_folder(tmp_path / "made") as folder:
        assert names(folder) == set()
    assert names(tmp_path) == {"made"}


def test_a_kill_while_a_folder_is_removed_leaves_no_half_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").mkdir()
    for name in ("a", "b"):
        (tmp_path / "old" / name).write_text(name)

    def dies(path: Path, *args: object, **keywords: object) -> None:
        (Path(path) / "a").unlink(missing_ok=True)
        if not keywords.get("ignore_errors"):
            raise Killed

    monkeypatch.setattr(shutil, "rmtree", dies)
    with pytest.raises(Killed):
        remove_atomic(tmp_path / "old")
    assert "old" not in names(tmp_path)


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["Zürich\r\n東京\n", b"\x00\xff"])
def test_a_file_is_written_as_given(tmp_path: Path, data: str | bytes) -> None:
    write_atomic(tmp_path / "deep" / "file", data)
    assert (tmp_path / "deep" / "file").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names(tmp_path / "deep") == {"file"}


def test_a_kill_before_the_last_step_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", "old")

    def dies(*args: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(Killed):
        write_atomic(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


# --- jsonl ---------------------------------------------------------------------------------------------------------


def test_lines_come_back_as_they_were(tmp_path: Path) -> None:
    records = [{"a": 1, "b": None, "c": [1.5, "x"], "d": {"e": True}}, {"text": 'Zürich\n\t\0"\\'}]
    for record in records:
        append_line(tmp_path / "m.jsonl", record)
    assert read_lines(tmp_path / "m.jsonl") == records


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r", "\r\n"])
def test_other_ends_of_lines_do_not_end_a_record(tmp_path: Path, end: str) -> None:
    records = [{"text": f"before{end}after"}, {"text": "next"}]
    for record in records:
        append_line(tmp_path / "m.jsonl", record)
    assert read_lines(tmp_path / "m.jsonl") == records


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    record = {"nan": float("nan"), "deep": [{"inf": float("inf")}, (1.0, float("-inf"))]}
    assert json.loads(dump_line(record)) == {"nan": None, "deep": [{"inf": None}, [1.0, None]]}


@pytest.mark.parametrize("key", [True, None, 1, 1.5, "a"])
def test_a_key_is_spelt_the_same_beside_any_number(key: object) -> None:
    (with_it,) = json.loads(dump_line({"a": {key: float("nan")}}))["a"]  # type: ignore[dict-item]
    (without,) = json.loads(dump_line({"a": {key: 1.0}}))["a"]  # type: ignore[dict-item]
    assert with_it == without


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_lines(file) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("torn", ['{"st', '{"step": 2}', "ü"])
def test_what_is_appended_is_not_glued_to_a_line_cut_short(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text('{"step": 1}\n' + torn, encoding="utf-8")
    append_line(file, {"step": 3})
    assert read_lines(file) == [{"step": 1}, {"step": 3}]
    file.write_text(torn, encoding="utf-8")
    append_line(file, {"step": 3})
    assert read_lines(file) == [{"step": 3}]


def test_a_missing_or_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "m.jsonl") == []
    (tmp_path / "m.jsonl").write_text("")
    assert read_lines(tmp_path / "m.jsonl") == []
    append_line(tmp_path / "m.jsonl", {"step": 1})
    assert read_lines(tmp_path / "m.jsonl") == [{"step": 1}]
