"""What an index of passages needs: on disk, mapped, and in memory of its own, per million."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

from mempo.envs.registry import make_environment
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.index import Bm25Index, open_index

_WORDS = 100


def report_memory(work: Path, passages: int) -> None:
    """Prints the growth from a tenth of `passages` to all of them, scaled to a million."""
    small, large = passages // 10, passages
    sizes = [needs(build(work / str(count), count)) for count in (small, large)]
    print(f"per million passages of {_WORDS} words (BM25, from {small} to {large}):")
    for name in sizes[0]:
        per_million = (sizes[1][name] - sizes[0][name]) / (large - small) * 1e6
        print(f"  {name:42}{per_million / (1 << 20):8.0f} MiB")


def build(folder: Path, count: int) -> Path:
    """Passages like those of an encyclopedia: words drawn from the atlas, and some that few passages have."""
    rng = random.Random(0)
    known = sorted({word for document in make_environment("atlas", {}).documents() for word in document.text.split()})

    def passage(n: int) -> Document:
        words = [known[int(len(known) * rng.random() ** 3)] for _ in range(_WORDS - 4)]
        words += [f"name{rng.randrange(count)}" for _ in range(4)]
        return Document(str(n), f"Title {n}", " ".join(words))

    corpus = Corpus.from_documents((passage(n) for n in range(count)), folder / "corpus")
    Bm25Index.build(corpus, folder / "index")
    return folder


def needs(folder: Path) -> dict[str, int]:
    """Bytes; of a fresh process that opened the index and answered some queries."""
    script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import memory; memory.open_and_ask()"
    found = subprocess.run(
        [sys.executable, "-c", script, str(folder / "index")], capture_output=True, text=True, check=True
    )
    own, mapped = map(int, found.stdout.split())
    index = sum(file.stat().st_size for file in (folder / "index").rglob("*") if file.is_file())
    text = (folder / "corpus" / "corpus.jsonl").stat().st_size
    return {
        "text on disk": text,
        "index on disk, look-ups included": index,
        "memory of each worker": own,
        "mapped files in memory, shared by workers": mapped,
    }


def open_and_ask() -> None:
    """Prints bytes of private memory and of mapped files, of this process."""
    index = open_index(sys.argv[1])
    index.retrieve([index.corpus[n].text[:80] for n in range(0, len(index.corpus), len(index.corpus) // 100)], 5)
    status = Path("/proc/self/status").read_text()
    own, mapped = (int(m[1]) * 1024 for key in ("RssAnon", "RssFile") if (m := re.search(rf"{key}:\s+(\d+)", status)))
    print(own, mapped)
