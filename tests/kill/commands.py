"""The commands that are killed, and what must be true of their folders: while they are at work, and at their end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open

from mempo.engine.model import save_policy
from mempo.retrieval.index import open_index
from mempo.rollout.protocol import TurnGrammar
from mempo.storage.read_files import read_lines
from mempo.storage.rollouts import load_rollouts
from mempo.storage.run_folder import RunFolder
from mempo.study.record import read_records
from tests.kill.harness import Words, Work, names
from tests.retrieval.encoders import tiny_bert
from tests.study.small import study_file
from tests.tiny import make_tokenizer, tiny_llama
from tests.train.small import SMALL

STEPS = ("sft.steps=3", "sft.save_every=1", "rl.steps=3", "rl.save_every=1", "evaluate.questions=1")
_TIMES = ("seconds", "ended", "when", "resumed", "wall", "cpu", "mtime_ns", "source", "is_local", "local_files_only")
"""The last two are transformers' word for a tokenizer that was read from a folder, as in a resumed run."""
_WITH_TIMES = {"report.html", "commands.jsonl", "server.json", "tables.md", "results.jsonl", ".mempo.json"}
"""Files that say when and how long."""


# --- training ------------------------------------------------------------------------------------------------------


def train(name: str, *settings: str, on_model: bool = False) -> Work:
    def prepare(folder: Path) -> None:
        if on_model:
            save_policy(tiny_llama(make_tokenizer(), max_position_embeddings=2048), folder / "model")

    def words(folder: Path) -> Words:
        run = folder / "run"
        if (run / "config.yaml").exists():
            return ("train", str(run), "--resume")
        path = (f"model.path={folder / 'model'}",) if on_model else ()
        return ("train", "quickstart", *SMALL, *STEPS, *settings, *path, f"output={run}")

    def done(folder: Path) -> frozenset[str]:
        return steps_saved(folder / "run")

    def whole(folder: Path) -> None:
        assert_whole_run(folder / "run", every=not any("save_every=2" in one for one in settings))

    return Work(name, words, done, assert_same_run, whole, prepare)


def steps_saved(run: Path) -> frozenset[str]:
    """`sft 1`, `sft 2`, `rl 1`, … as far as the newest checkpoint goes, and `end`."""
    checkpoints = RunFolder(run).checkpoints()
    steps = [f"{stage} {step}" for stage in ("sft", "rl") for step in range(1, 4)]
    newest = f"{checkpoints[-1].stage} {checkpoints[-1].step}" if checkpoints else None
    found = steps[: steps.index(newest) + 1] if newest else []
    return frozenset([*found, *(["end"] if (run / "final").exists() else [])])


def assert_whole_run(run: Path, every: bool) -> None:
    for folder in [*(c.path for c in RunFolder(run).checkpoints()), run / "final", run / "start"]:
        if folder.exists():
            assert_whole_model(folder)
    if not (run / "metrics.jsonl").exists():
        return
    measured = [(line["stage"], line["step"]) for line in read_lines(run / "metrics.jsonl")]
    assert measured == sorted(set(measured), key=lambda one: (one[0] == "rl", one[1])), "in order, none twice"
    saved = steps_saved(run)
    if every and saved:  # at most the step whose checkpoint was being written
        assert len([one for one in measured if f"{one[0]} {one[1]}" not in saved]) <= 1
    for file in (run / "rollouts").glob("step-*.jsonl"):
        assert file.with_suffix(".tokens").exists()
        assert len(read_lines(file)) == 8


def assert_whole_model(folder: Path) -> None:
    assert {"config.json", "tokenizer.json"} <= names(folder) or "adapter_config.json" in names(folder)
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:  # refuses a file that is shorter than its head says
            for name in tensors.keys():  # noqa: SIM118
                tensors.get_slice(name)
    if folder.parent.name == "checkpoints":
        state = json.loads((folder / "state.json").read_text())
        assert f"{state['stage']}-{state['step']}" == folder.name
        assert (folder / "optimizer.safetensors").exists()


def assert_same_run(folder: Path, straight: Path) -> None:
    assert_same_files(folder, straight)
    page = folder / "run/report.html"
    assert not page.exists() or page.read_text("utf-8").rstrip().endswith("</html>")


def assert_same_files(folder: Path, straight: Path, below: str = "") -> None:
    """Bit for bit, but for times."""
    for path in (straight / below).rglob("*"):
        other = folder / path.relative_to(straight)
        if path.is_dir() or path.name in _WITH_TIMES or path.suffix == ".log" or not other.exists():
            continue
        match path.suffix:
            case ".json" | ".yaml":
                one, two = (_read(file, root) for file, root in ((path, straight), (other, folder)))
                assert one == two, other
            case ".jsonl" if not path.name.startswith("step-"):
                assert _rows(path) == _rows(other), other
            case ".png":
                pass
            case _:
                assert path.read_bytes() == other.read_bytes(), other


def _read(file: Path, root: Path) -> Any:
    text = file.read_text("utf-8").replace(str(root), "ROOT")
    return without_times(yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text))


def _rows(file: Path) -> list[Any]:
    return [without_times(row) for row in read_lines(file)]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if str(key).split("/")[0] not in _TIMES}
        return {key: without_times(item) for key, item in kept.items()}
    if isinstance(value, list):
        same = [without_times(item) for item in value]
        return sorted(same) if all(isinstance(item, str) for item in same) else same  # some are sets, as peft's
    return value


# --- evaluation ----------------------------------------------------------------------------------------------------

AGENTS = ("memory", "react")


def evaluation() -> Work:
    tokenizer = make_tokenizer()

    def prepare(folder: Path) -> None:
        rows = [{"id": f"q{n}", "question": f"question {n}?", "answer": ["Paris"]} for n in range(30)]
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        (folder / "corpus.jsonl").write_text('{"title": "city 1", "text": "Paris"}\n', "utf-8")
        (folder / "mine.yaml").write_text(
            "data: {test: test.jsonl, corpus: corpus.jsonl}\nprompt: {template: plain}\n"
            "limits: {max_context_tokens: 300, max_turns: 3, max_turn_tokens: 12, min_turn_tokens: 4}\n"
            "evaluate: {max_in_flight: 4}\nmodel: {threads: 1}\n",
            "utf-8",
        )
        save_policy(tiny_llama(tokenizer), folder / "model")

    def words(folder: Path) -> Words:
        made = ("eval", "model", "--config", "mine.yaml", "--agents", ",".join(AGENTS), "--samples", "2")
        return (*made, "--out", str(folder / "out"))

    def keys(folder: Path, name: str) -> list[str]:
        file = folder / f"out/rollouts/{name}.jsonl"
        return [f"{name} {row['question_id']} {row['rollout']}" for row in (read_lines(file) if file.exists() else [])]

    def done(folder: Path) -> frozenset[str]:
        return frozenset(key for name in AGENTS for key in keys(folder, name))

    def whole(folder: Path) -> None:
        for name in AGENTS:
            assert len(keys(folder, name)) == len(set(keys(folder, name))), "none twice"

    def same(folder: Path, straight: Path) -> None:
        for name in AGENTS:
            assert len(keys(folder, name)) == 60
            here, there = (played(root / f"out/rollouts/{name}.jsonl") for root in (folder, straight))
            assert [facts for facts, _ in here] == [facts for facts, _ in there]
            for one, two in zip(here, there, strict=True):  # rollouts are batched with others after a kill
                np.testing.assert_allclose(one[1], two[1], atol=1e-4)
        for file in ("evaluation.json", "agents.json", "identity.json", "config.yaml"):
            assert _read(folder / "out" / file, folder) == _read(straight / "out" / file, straight)
        assert (folder / "out/tables/table.csv").exists()

    def played(file: Path) -> list[tuple[Any, list[float]]]:
        """What was asked, sampled and scored, and log-probs, in the order of the questions; rollouts end in any."""
        trajectories, rows, _ = load_rollouts(file, tokenizer, TurnGrammar())
        found = []
        for trajectory, row in zip(trajectories, rows, strict=True):
            facts = without_times({key: value for key, value in row.items() if key not in ("turns", "question_ids")})
            ids = [(turn.prompt_ids, turn.generated_ids) for turn in trajectory.turns]
            logprobs = [value for turn in trajectory.turns for value in turn.logprobs]
            found.append(((trajectory.question_id, trajectory.rollout, facts, ids), logprobs))
        return sorted(found, key=lambda one: one[0][:2])

    return Work("evaluation", words, done, same, whole, prepare)


# --- indexes -------------------------------------------------------------------------------------------------------


def index(kind: str, over_another: bool = False) -> Work:
    """Of a compressed corpus; `over_another`: an index stands there, which answers until the new one does."""
    with_vectors = kind in ("dense", "hybrid")
    documents = 4500 if with_vectors else 3000  # three chunks of vectors

    def prepare(folder: Path) -> None:
        import gzip

        rows = [{"id": str(n), "title": f"t{n}", "text": f"city number{n} a b c"} for n in range(documents)]
        with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        if with_vectors:
            tiny_bert(folder / "bert")
        if over_another:
            (folder / "old.jsonl").write_text('{"id": "x", "title": "x", "text": "number7"}\n', "utf-8")
            from mempo.cli.index import build

            build(folder / "old.jsonl", folder / "index", [f"kind={kind}"])

    def words(folder: Path) -> Words:
        made = ("index", "build", str(folder / "corpus.jsonl.gz"), "--out", str(folder / "index"), f"kind={kind}")
        if with_vectors:
            made = (*made, f"encoder={folder / 'bert'}", f"cache={folder / 'cache'}", "keep_embeddings=true")
        return (*made, "--force") if over_another else made

    def done(folder: Path) -> frozenset[str]:
        sides = [json.loads(file.read_text()) for file in folder.glob("cache/embeddings/*/embeddings.json")]
        vectors = [f"vectors {n}" for side in sides for n in range(0, side["done"], 100)]
        return frozenset([*vectors, *(["index"] if (folder / "index/index.json").exists() else [])])

    def whole(folder: Path) -> None:
        if over_another or (folder / "index").exists():
            hits = open_index(folder / "index").retrieve(["number7"], 1)[0]
            assert [hit.document.id for hit in hits] in (["7"], ["x"]) or with_vectors

    def same(folder: Path, straight: Path) -> None:
        here, there = (open_index(root / "index") for root in (folder, straight))
        queries = [f"city number{n}" for n in range(0, documents, 300)]
        assert len(here.corpus) == documents
        assert here.retrieve(queries, 5) == there.retrieve(queries, 5)
        if kind != "tantivy":  # which names its files at random
            assert_same_files(folder, straight, "index")
        for file in straight.glob("cache/embeddings/*/vectors.bin"):
            assert (folder / file.relative_to(straight)).read_bytes() == file.read_bytes()

    return Work(f"index of {kind}{' over another' if over_another else ''}", words, done, same, whole, prepare)


# --- studies -------------------------------------------------------------------------------------------------------


def study(workers: int) -> Work:
    def prepare(folder: Path) -> None:
        study_file(folder, set=[*SMALL, *STEPS, "sft.steps=2", "rl.steps=2", "sft.demos=6"], seeds=[0])

    def words(folder: Path) -> Words:
        return ("study", str(folder / "small.yaml"), "--out", str(folder / "out"), "--workers", str(workers))

    def done(folder: Path) -> frozenset[str]:
        results = folder / "out/results.jsonl"
        ended = read_records(folder / "out") if results.exists() else {}
        return frozenset(ended)

    def whole(folder: Path) -> None:
        for run in (folder / "out/runs").glob("*/config.yaml"):
            assert_whole_run(run.parent, every=True)

    def same(folder: Path, straight: Path) -> None:
        lines = [read_lines(root / "out/results.jsonl") for root in (folder, straight)]
        assert [len(one) for one in lines] == [3, 3]
        one, two = (sorted(map(str, map(_plain, found))) for found in lines)
        assert one == two
        assert_same_files(folder, straight, "out/runs")

    return Work(f"study with {workers}", words, done, same, whole, prepare)


def _plain(record: dict[str, Any]) -> Any:
    return sorted(without_times(record).items())


WORKS: dict[str, tuple[Callable[[], Work], float]] = {
    "train": (lambda: train("training"), 0.21),
    "kl": (
        lambda: train(
            "training with KL",
            "rl.loss={kl: k2, kl_coef: 0.05}",
            "memory.baseline=full",
            "memory.full_policy=reference",
            "rl.save_every=2",
            "rl.updates_per_step=2",
        ),
        0.14,
    ),
    "lora": (
        lambda: train(
            "training of adapters",
            "toy=null",
            "model.lora={rank: 4, alpha: 8}",
            "prompt.template=plain",
            "limits.max_context_tokens=512",
            "limits.max_turns=3",
            "limits.max_turn_tokens=16",
            "data.objectives=[1]",
            on_model=True,
        ),
        0.14,
    ),
    "eval": (evaluation, 0.16),
    "bm25": (lambda: index("bm25"), 0.05),
    "bm25-over": (lambda: index("bm25", over_another=True), 0.05),
    "tantivy": (lambda: index("tantivy"), 0.05),
    "dense": (lambda: index("dense"), 0.05),
    "hybrid": (lambda: index("hybrid"), 0.05),
    "study": (lambda: study(1), 0.07),
    "study-workers": (lambda: study(2), 0.03),
}
"""Commands, and each one's share of the kills."""
