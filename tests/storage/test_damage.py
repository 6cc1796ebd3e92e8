"""Every file of ours × every kind of damage × the commands that read it: one clear line, no trace, nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import mempo.cli.main
from mempo.errors import UserError
from mempo.storage.run_folder import RunFolder
from tests.train.small import SMALL

pytestmark = pytest.mark.slow  # each of them is a command from its start to its refusal

TINY = (
    *("sft.steps=2", "sft.save_every=2", "sft.demos=6", "rl.steps=2", "rl.save_every=1", "rl.questions_per_step=1"),
    *("rl.probe_check_questions=2", "evaluate.questions=1", "rl.loss={kl: k3, kl_coef: 0.03}"),
)

DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) * 2 // 3],
    "a list": lambda content: b"[]\n",
    "an object": lambda content: b"{}\n",
    "null": lambda content: b"null\n",
    "a string": lambda content: b'"text"\n',
    "a huge number": lambda content: b"1" + b"0" * 5000 + b"\n",
    "out of range": lambda content: b'{"step": 1e999, "question_id": 1e999}\n',
    "nested": lambda content: b"[" * 200_000 + b"\n",
    "binary": lambda content: bytes(range(256)) * 8,
    "latin-1": lambda content: b'{"caf\xe9": 1}\n',
    "yaml that holds itself": lambda content: b"sft: &s {steps: *s}\n",
    "values of other kinds": lambda content: _other_kinds(content),
    "a folder": lambda content: None,
    "a link to itself": lambda content: None,
}


def _other_kinds(content: bytes) -> bytes:
    """The same keys with lists for values."""
    lines = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        lines.append(json.dumps({key: [["x"]] for key in record}).encode() if isinstance(record, dict) else line)
    try:
        whole = json.loads(content)
        return json.dumps({key: [["x"]] for key in whole}).encode() if isinstance(whole, dict) else b"[[]]"
    except ValueError:
        return b"\n".join(lines) + b"\n"


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    made = DAMAGES[kind](content)
    path.unlink()
    if kind == "a folder":
        path.mkdir()
    elif kind == "a link to itself":
        path.symlink_to(path.name)
    else:
        assert made is not None
        path.write_bytes(made)


def command(*arguments: str | Path) -> str | None:
    """What a command says when it refuses; None when it ends well. Anything but a refusal is raised."""
    try:
        typer.main.get_command(mempo.cli.main.app).main([str(a) for a in arguments], "mempo", standalone_mode=False)
    except UserError as error:
        return str(error)
    except OSError as error:  # the boundary of the command line says these too
        return str(error)
    return None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the same without its end, an evaluation, an index."""
    folder = tmp_path_factory.mktemp("damage")
    assert command("train", "quickstart", *SMALL, *TINY, f"output={folder / 'run'}") is None
    assert command("eval", folder / "run", "--agents", "memory,react", "--out", folder / "evaluation") is None
    rows = [{"id": str(n), "title": "Paris", "text": f"city number {n}"} for n in range(3)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("index", "build", folder / "corpus.jsonl", "--out", folder / "index") is None
    shutil.copytree(folder / "run", folder / "unfinished")
    shutil.rmtree(folder / "unfinished" / "final")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != ".lock" and "data" not in p.relative_to(folder).parts
    }


def check(said: str | None, path: Path, may_go_on: bool) -> None:
    if said is None:
        assert may_go_on, f"{path.name}: the damage was not noticed"
        return
    assert "\n" not in said.strip(), said
    assert path.name in said or path.parent.name in said, f"the file is not named: {said}"
    assert len(said) < 1200, said


RUN_FILES = (
    *("config.yaml", "data.json", "metrics.jsonl", "evaluation-start.json", "checkpoints/rl-2/state.json"),
    "checkpoints/rl-2/optimizer.safetensors",
)
UNSEEN = {"values of other kinds"}
"""Of what is no JSON, the same as before."""
HARMLESS = {
    "metrics.jsonl": {"empty", "cut"},  # no lines, or a last one cut short
    "evaluation-start.json": {"an object"},  # nothing is known
    "rollouts/step-2.jsonl": {"cut"},
    "rollouts/step-2.tokens": {"values of other kinds"},
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    run = Path(shutil.copytree(made / "unfinished", tmp_path / "run"))
    damage(run / name, kind)
    before = contents(run)
    said = command("train", run, "--resume")
    check(said, run / name, kind in HARMLESS.get(name, set()) | (UNSEEN if name == "config.yaml" else set()))
    if said is not None:
        assert contents(run) == before, "a run that is refused stays as it is"
        assert RunFolder(run).checkpoints()[-1].step == 2


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["rollouts/step-2.jsonl", "rollouts/step-2.tokens", "metrics.jsonl", "config.yaml"])
def test_a_diagnosis(made: Path, tmp_path: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo.diagnose.run.save_figures", lambda report, folder: [])
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    damage(run / name, kind)
    said = command("diagnose", run, "--no-model")
    if said is not None and "no notes to diagnose" in said:
        said = None  # the toy has learnt nothing; everything was read by then
    check(said, run / name, kind in HARMLESS.get(name, set()) | UNSEEN)


AGENT_FILES = ("rollouts/memory.jsonl", "rollouts/memory.tokens", "rollouts/memory.notes.jsonl")
EVALUATION_FILES = ("config.yaml", "identity.json", "agents.json", *AGENT_FILES)
LONG_ENOUGH = {"a huge number", "nested", "binary"}
"""Arrays that nobody looks at while an evaluation goes on are as good as others."""
GOES_ON = {
    "config.yaml": UNSEEN,
    "rollouts/memory.tokens": {"cut", *LONG_ENOUGH, *UNSEEN},
    "agents.json": {"an object"},
    "rollouts/memory.jsonl": {"empty", "cut"},
    "rollouts/memory.notes.jsonl": {"empty", "cut"},
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", EVALUATION_FILES)
def test_an_evaluation_that_goes_on(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    out = Path(shutil.copytree(made / "evaluation", tmp_path / "evaluation"))
    damage(out / name, kind)
    before = contents(out)
    said = command("eval", made / "run", "--agents", "memory,react", "--out", out, "--samples", "2")
    check(said, out / name, kind in GOES_ON.get(name, set()))
    if said is not None:
        assert contents(out) == before, "what is refused stays as it is"


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["config.yaml", "agents.json", "rollouts/memory.jsonl", "rollouts/memory.notes.jsonl"])
def test_scores_and_comparisons(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    out = Path(shutil.copytree(made / "evaluation", tmp_path / "evaluation"))
    damage(out / name, kind)
    may_go_on = GOES_ON.get(name, set()) | (UNSEEN if name == "config.yaml" else set())
    for said in (command("score", out), command("compare", out, made / "evaluation")):
        check(said, out / name, kind in may_go_on)


INDEX_FILES = ("index.json", "corpus.json", "corpus.offsets.npy", "corpus.ids.npy", "corpus.urls.npy")
BM25_FILES = ("params.index.json", "vocab.index.json", "data.csc.index.npy", "indices.csc.index.npy")


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", [*INDEX_FILES, *(f"bm25/{name}" for name in BM25_FILES)])
def test_an_index(made: Path, tmp_path: Path, name: str, kind: str) -> None:
    index = Path(shutil.copytree(made / "index", tmp_path / "index"))
    damage(index / name, kind)
    may_go_on = name.endswith(".npy") and kind in UNSEEN
    check(command("search", index, "city"), index / name, may_go_on)
