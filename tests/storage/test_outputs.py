"""Files of somebody else are never written over or deleted, whatever command writes beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mempo.errors import UserError
from mempo.storage.outputs import RECORD, output_files, output_folder, refuse_others, refuse_taken
from tests.cli.test_cli import Cli, Said, cli  # noqa: F401  # pytest finds the fixture here

Run = Callable[..., Said]


@pytest.fixture
def mempo(cli: Cli) -> Run:  # noqa: F811
    """A command with the exit code that it ends with."""

    def run(*arguments: str | Path, code: int = 0) -> Said:
        said = cli(*arguments)
        assert said.code == code, said.err
        return said

    return run


def files(folder: Path) -> dict[str, str]:
    found = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
    return {name: text for name, text in found.items() if name != RECORD}


def put(
    folder: Path, made: dict[str, str], made_by: str = "seed 0", force: bool = False, replaces: bool = False
) -> None:
    with output_files(folder, "product", made_by, force, replaces=replaces) as temporary:
        for name, text in made.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text)


def put_folder(folder: Path, made: dict[str, str], made_by: str = "seed 0", force: bool = False) -> None:
    with output_folder(folder, "product", made_by, force) as temporary:
        for name, text in made.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text)


# --- files among others --------------------------------------------------------------------------------------------


def test_new_files_go_among_others(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("mine")
    put(tmp_path, {"a": "1", "deep/b": "2"})
    assert files(tmp_path) == {"notes.md": "mine", "a": "1", "deep/b": "2"}


def test_what_is_there_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(UserError, match=r"holds a, which this command did not make; nothing was written.*--force"):
        put(tmp_path, {"a": "1", "b": "2"})
    with pytest.raises(UserError, match="holds a"):
        refuse_taken(tmp_path, ["a", "b"], "product", "seed 0")
    assert files(tmp_path) == {"a": "mine"}
    assert {p.name for p in tmp_path.iterdir()} == {"a"}


def test_the_same_made_in_the_same_way_is_made_again(tmp_path: Path) -> None:
    put(tmp_path, {"a": "1"})
    put(tmp_path, {"a": "22"})
    assert files(tmp_path) == {"a": "22"}


def test_the_same_made_otherwise_takes_force(tmp_path: Path) -> None:
    put(tmp_path, {"a": "1"}, "seed 0")
    with pytest.raises(UserError, match="holds what was made by seed 0; nothing was written"):
        put(tmp_path, {"a": "22"}, "seed 1")
    assert files(tmp_path) == {"a": "1"}
    put(tmp_path, {"a": "22"}, "seed 1", force=True)
    assert files(tmp_path) == {"a": "22"}


def test_force_keeps_what_somebody_else_wrote(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    put(tmp_path, {"a": "1"}, force=True)
    assert files(tmp_path) == {"a": "1", "a.kept": "mine"}
    (tmp_path / "a").write_text("mine again")  # over a file that mempo made
    with pytest.raises(UserError, match="holds a, which"):
        put(tmp_path, {"a": "1"})
    put(tmp_path, {"a": "1"}, force=True)
    assert files(tmp_path) == {"a": "1", "a.kept": "mine", "a.kept-2": "mine again"}


def test_a_folder_or_a_dead_link_in_the_place_of_a_file_is_kept_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "deep").write_text("mine")
    (tmp_path / "b").symlink_to("nowhere")
    with pytest.raises(UserError, match="holds a, b, which"):
        put(tmp_path, {"a": "1", "b": "2"})
    put(tmp_path, {"a": "1", "b": "2"}, force=True)
    assert files(tmp_path) == {"a": "1", "b": "2", "a.kept/deep": "mine"}
    assert (tmp_path / "b.kept").is_symlink()


def test_files_that_are_no_longer_made_go_only_where_they_are_replaced(tmp_path: Path) -> None:
    for replaces, left in ((False, {"a": "1", "b": "2"}), (True, {"a": "1"})):
        folder = tmp_path / str(replaces)
        put(folder, {"a": "1", "b": "2"})
        put(folder, {"a": "1"}, replaces=replaces)
        assert files(folder) == left
    put(tmp_path / "False", {"b": "33"})
    assert files(tmp_path / "False") == {"a": "1", "b": "33"}


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        put(tmp_path / "new" / "deep", {"a": "1", "b": None})  # type: ignore[dict-item]
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for write in (put, put_folder):
        with pytest.raises(UserError, match="file is a file; name a folder"):
            write(tmp_path / "file", {"a": "1"})


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside"])
def test_a_record_cannot_reach_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "outside").write_text("mine")
    (folder / RECORD).write_text(json.dumps({"product": {"made_by": "seed 0", "files": {name: 4}}}))
    with pytest.raises(UserError, match="leaves the folder"):
        put(folder, {"a": "1"}, replaces=True)
    assert (tmp_path / "outside").read_text() == "mine"


# --- folders -------------------------------------------------------------------------------------------------------


def test_a_folder_of_ours_is_replaced_and_what_others_put_there_stays(tmp_path: Path) -> None:
    put_folder(tmp_path / "x", {"a": "1", "deep/b": "2"})
    put_folder(tmp_path / "x", {"a": "1"})
    assert files(tmp_path / "x") == {"a": "1"}
    (tmp_path / "x" / "notes").mkdir()
    (tmp_path / "x" / "notes" / "n.md").write_text("mine")
    (tmp_path / "x" / "c").write_text("mine too")
    with pytest.raises(UserError, match=r"holds c, notes/n\.md, which this command did not make"):
        put_folder(tmp_path / "x", {"c": "3"})
    with pytest.raises(UserError, match=r"holds c, notes/n\.md"):
        refuse_others(tmp_path / "x", "product", "seed 0")
    put_folder(tmp_path / "x", {"c": "3"}, force=True)
    assert files(tmp_path / "x") == {"c": "3", "c.kept": "mine too", "notes/n.md": "mine"}


def test_a_folder_made_otherwise_takes_force(tmp_path: Path) -> None:
    put_folder(tmp_path / "x", {"a": "1"})
    with pytest.raises(UserError, match="what was made by seed 0"):
        put_folder(tmp_path / "x", {"a": "2"}, "seed 1")
    put_folder(tmp_path / "x", {"a": "2"}, "seed 1", force=True)
    assert files(tmp_path / "x") == {"a": "2"}


# --- the commands --------------------------------------------------------------------------------------------------

ENVIRONMENTS = (
    ["environment", "atlas", "--subset", "toy", "--train", "3", "--test", "2"],
    ["environment", "maze", "--train", "3"],
)


@pytest.mark.parametrize("command", ENVIRONMENTS, ids=["atlas", "maze"])
def test_an_environment_spares_a_file_of_the_users(mempo: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "train.jsonl").write_text("mine")
    (tmp_path / "README.md").write_text("mine too")
    said = mempo(*command, "--out", tmp_path, code=2)
    assert "holds train.jsonl, which this command did not make" in said.err
    assert files(tmp_path) == {"train.jsonl": "mine", "README.md": "mine too"}
    mempo(*command, "--out", tmp_path, "--force")
    assert files(tmp_path).items() >= {"train.jsonl.kept": "mine", "README.md": "mine too"}.items()
    made = files(tmp_path)
    mempo(*command, "--out", tmp_path)  # the same again
    assert files(tmp_path) == made
    said = mempo(*command, "--seed", "1", "--out", tmp_path, code=2)
    assert "seed 0" in said.err
    assert files(tmp_path) == made


def index_corpus(folder: Path, *words: str) -> Path:
    path = folder / f"{words[0]}.jsonl"
    path.write_text("".join(json.dumps({"id": w, "title": w, "text": w}) + "\n" for w in words))
    return path


def test_an_index_spares_notes_and_indexes_of_another_kind_or_corpus(mempo: Run, tmp_path: Path) -> None:
    one, other, out = index_corpus(tmp_path, "paris"), index_corpus(tmp_path, "rome", "oslo"), tmp_path / "index"

    def build(corpus: Path, *options: str, code: int = 0) -> str:
        said = mempo("index", "build", corpus, "--out", out, *options, code=code)
        return said.err + said.out

    build(one)
    build(one)  # the same again
    assert "holds an index of kind bm25, not tantivy" in build(one, "kind=tantivy", code=2)
    assert "index of another corpus (1 documents" in build(other, code=2)
    (out / "NOTES.md").write_text("mine")
    (out / "bm25" / "notes.txt").write_text("mine too")
    assert "holds NOTES.md, bm25/notes.txt, which this command did not make" in build(one, code=2)
    build(other, "kind=tantivy", "--force")
    assert (out / "NOTES.md").read_text() == "mine"
    assert {p.name for p in (out / "bm25").iterdir()} == {"notes.txt"}
    assert "oslo" in mempo("search", out, "oslo").out


def test_an_index_of_an_earlier_release_has_no_record(mempo: Run, tmp_path: Path) -> None:
    corpus, out = index_corpus(tmp_path, "paris"), tmp_path / "index"
    mempo("index", "build", corpus, "--out", out)
    (out / RECORD).unlink()
    mempo("index", "build", corpus, "--out", out)
    (out / RECORD).unlink()
    (out / "NOTES.md").write_text("mine")
    mempo("index", "build", corpus, "--out", out, code=2)
    mempo("index", "build", corpus, "--out", out, "--force")
    assert (out / "NOTES.md").read_text() == "mine"


def test_a_damaged_index_is_replaced_when_forced(mempo: Run, tmp_path: Path) -> None:
    corpus, out = index_corpus(tmp_path, "paris"), tmp_path / "index"
    mempo("index", "build", corpus, "--out", out)
    (out / "index.json").write_text("[]")
    said = mempo("index", "build", corpus, "--out", out, code=2)
    assert "index.json is damaged" in said.err
    assert "--force" in said.err
    mempo("index", "build", corpus, "--out", out, "--force")
    assert "paris" in mempo("search", out, "paris").out


def predictions(folder: Path) -> Path:
    file = folder / "answers.jsonl"
    file.write_text(json.dumps({"id": "q", "answer": "Paris", "gold": ["Paris"]}) + "\n")
    return file


def test_scores_and_tables_spare_files_of_the_users(mempo: Run, tmp_path: Path) -> None:
    answers, out = predictions(tmp_path), tmp_path / "out"
    (tmp_path / "scores.json").write_text("mine")
    said = mempo("score", answers, code=2)
    assert "holds scores.json, which this command did not make" in said.err
    out.mkdir()
    (out / "table.md").write_text("mine")
    said = mempo("compare", answers, "--out", out, code=2)
    assert "holds table.md, which this command did not make" in said.err
    mempo("score", answers, "--force")
    mempo("score", answers, "--scores", "mem1")  # our own may be made again
    mempo("compare", answers, "--out", out, "--force")
    mempo("compare", answers, "--out", out, "--format", "csv")
    assert (tmp_path / "scores.json.kept").read_text() == (out / "table.md.kept").read_text() == "mine"
    assert "| objectives" in (out / "table.md").read_text()
