"""What an index needs against what is free: the arithmetic, the one line, and where the numbers come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.errors import UserError
from mempo.retrieval.corpus import Corpus
from mempo.retrieval.dense_build import build_need
from mempo.retrieval.document import Document
from mempo.retrieval.faiss import size_of
from mempo.retrieval.index import Bm25Index, memory_need
from mempo.retrieval.memory_need import MemoryNeed, files_bytes, free_bytes, size


def test_the_line() -> None:
    need = MemoryNeed("index wiki", {"vectors": 64_559_075_328, "encoder": 438_000_000, "words": 0}, 20 * 2**30)
    assert need.line() == "index wiki: needs 60.5 GiB (vectors 60.1 GiB, encoder 418 MiB), 20.0 GiB free"
    assert not need.fits
    with pytest.raises(UserError, match=r"needs 60\.5 GiB .*20\.0 GiB free; buy more"):
        need.refuse_unless_fits("buy more")


def test_what_fits_is_not_refused() -> None:
    MemoryNeed("x", {"a": 10, "b": 5}, 15).refuse_unless_fits("")
    unknown = MemoryNeed("x", {"a": 10**15}, None)
    unknown.refuse_unless_fits("")
    assert unknown.line().endswith("free memory unknown")
    assert not MemoryNeed("x", {"a": 10, "b": 6}, 15).fits


def test_sizes_as_people_read_them() -> None:
    assert [size(n) for n in (0, 2048, 2**20, 250 * 2**20, 2**30 * 3 // 2)] == [
        "0 KiB",
        "2 KiB",
        "1.0 MiB",
        "250 MiB",
        "1.5 GiB",
    ]


def test_the_published_sizes_of_wiki_18() -> None:
    gigabytes = {
        factory: size_of(factory, 768).of(21_015_324) / 1e9
        for factory in ("Flat", "SQfp16", "SQ8", "IVF4096,PQ96", "HNSW64")
    }
    assert gigabytes == pytest.approx(
        {"Flat": 64.6, "SQfp16": 32.3, "SQ8": 16.1, "IVF4096,PQ96": 2.2, "HNSW64": 75.7}, rel=0.01
    )


def test_building_counts_the_sample() -> None:
    need = build_need(1000, 32, "SQ8", 500)
    assert need.parts == {"index": 1000 * 32, "training sample": 500 * 32 * 4}


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_free_memory_of_the_machine_and_of_a_container(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    write(proc, "meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert free_bytes(proc, group) == 8000 * 1024
    write(group, "memory.max", "max\n")
    write(group, "memory.current", "1\n")
    assert free_bytes(proc, group) == 8000 * 1024, "no limit"
    write(group, "memory.max", "5000000\n")
    write(group, "memory.current", "4000000\n")
    assert free_bytes(proc, group) == 1_000_000
    write(group, "memory.stat", "anon 1\ninactive_file 500000\n")
    assert free_bytes(proc, group) == 1_500_000, "cached files can be dropped"
    write(group, "memory.current", "9000000\n")
    assert free_bytes(proc, group) == 0


def test_the_older_kind_of_container(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable: 8000 kB\n")
    write(tmp_path, "cgroup/memory/memory.limit_in_bytes", "3000\n")
    write(tmp_path, "cgroup/memory/memory.usage_in_bytes", "1000\n")
    assert free_bytes(tmp_path / "proc", tmp_path / "cgroup") == 2000


def test_an_index_of_words(tmp_path: Path) -> None:
    corpus = Corpus.from_documents([Document(str(i), f"t{i}", "some text") for i in range(10)], tmp_path / "c")
    Bm25Index.build(corpus, tmp_path / "i")
    assert memory_need(tmp_path / "i").parts == {"look-ups": 400, "words": files_bytes(tmp_path / "i" / "bm25")}
