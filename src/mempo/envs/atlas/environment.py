"""The atlas as an `Environment`, and as the files that `mempo environment atlas` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mempo.envs.atlas.documents import Rendering, check_rendering, documents
from mempo.envs.atlas.facts import AtlasError
from mempo.envs.atlas.objectives import FORMS, Form
from mempo.envs.atlas.questions import questions
from mempo.envs.atlas.schema import ATTRIBUTES
from mempo.envs.atlas.split import TEST_FRACTION, Split
from mempo.envs.atlas.subset import EVERYTHING, Subset, atlas
from mempo.envs.made_by import made_by_environment
from mempo.retrieval.corpus import Document
from mempo.rollout.question import Question
from mempo.storage.outputs import output_files


@dataclass(frozen=True)
class AtlasEnvironment:
    """Real facts about countries, cities, elements, laureates and prizes, as documents and questions."""

    name = "atlas"  # not a field: all atlases have it

    rendering: Rendering = "prose"
    forms: tuple[Form, ...] = FORMS
    subset: Subset = EVERYTHING
    test_fraction: float = TEST_FRACTION

    def __post_init__(self) -> None:
        check_rendering(self.rendering)

    def documents(self) -> Sequence[Document]:
        return documents(self.rendering, self.subset)

    def questions(self, split: str, count: int, objectives: int | Sequence[int] = 1, seed: int = 0) -> list[Question]:
        """See `mempo.envs.atlas.questions.questions`."""
        if split not in ("train", "test"):
            raise AtlasError(f"the atlas has no split {split!r}; choose train or test")
        return questions(
            split=split,
            count=count,
            objectives=objectives,
            seed=seed,
            rendering=self.rendering,
            forms=self.forms,
            subset=self.subset,
            test_fraction=self.test_fraction,
        )

    def names(self) -> tuple[str, ...]:
        """Every name and every value that can be an answer, in order of appearance: what a policy learns to copy."""
        found: list[str] = []
        for entity in atlas(self.subset).entities:
            found.append(entity.name)
            found += [f.value for f in entity.facts if ATTRIBUTES[entity.kind, f.attribute].question]
        return tuple(dict.fromkeys(found))

    def vocabulary(self) -> tuple[str, ...]:
        """Every word, split at white space, of all documents, in order of appearance; punctuation stays on its word."""
        words = (word for document in self.documents() for word in f"{document.title} {document.text}".split())
        return tuple(dict.fromkeys(words))


def write(
    out_dir: Path | str,
    environment: AtlasEnvironment | None = None,
    *,
    train: int = 2000,
    test: int = 200,
    objectives: int | Sequence[int] = 1,
    seed: int = 0,
    force: bool = False,
) -> Mapping[str, int]:
    """Write `corpus.jsonl`, `train.jsonl` and `test.jsonl`; returns the number of lines of each. What is there already
    is treated as `mempo.storage.outputs` says.

    Corpus rows are `{"id", "contents": "\\"Title\\"\\nbody", "url"}`, question rows
    `{"id", "question", "answer", "meta"}`; the answer is a list of aliases, or a list of such lists for several
    objectives.

    Raises:
        AtlasError: when so many questions cannot be made; UserError: files that may not be written over. Nothing is
            written then.
    """
    environment = environment or AtlasEnvironment()
    splits: tuple[tuple[Split, int], ...] = (("train", train), ("test", test))
    rows: dict[str, list[dict[str, Any]]] = {
        "corpus.jsonl": [
            {"id": d.id, "contents": f'"{d.title}"\n{d.text}', "url": d.url} for d in environment.documents()
        ]
    }
    for split, count in splits:
        made = environment.questions(split, count, objectives, seed)
        rows[f"{split}.jsonl"] = [
            {"id": q.id, "question": q.text, "answer": q.gold, "meta": dict(q.meta)} for q in made
        ]
    made_by = made_by_environment("atlas", environment, train, test, objectives, seed)
    with output_files(Path(out_dir), "environment", made_by, force, replaces=True) as folder:
        for name, lines in rows.items():
            _write_jsonl(folder / name, lines)
    return {name: len(lines) for name, lines in rows.items()}


def _write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
