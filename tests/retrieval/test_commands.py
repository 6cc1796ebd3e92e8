"""`mempo index`: every kind from the command line, killed builds that go on, and mistakes as one line."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import mempo.cli.main
from mempo.config import resolve
from mempo.config.retrieval import BuildSettings, EncoderSettings
from mempo.errors import UserError
from mempo.retrieval.build import build_index
from mempo.retrieval.encoder import TransformersEncoder
from mempo.retrieval.errors import CorpusError
from mempo.retrieval.index import open_index
from mempo.setup import open_retriever
from tests.retrieval.encoders import tiny_bert

ROWS = [{"id": str(i), "title": f"T{i}", "text": "the capital of france is paris " + "a b c " * i} for i in range(12)]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMPO_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mempo", *map(str, arguments)])
        code = 0
        try:
            mempo.cli.main.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return code, str(out), str(err)

    return call


def test_the_index_of_a_table_holds_its_text(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "psgs_w100.tsv"
    path.write_text("id\ttext\ttitle\n7\tparis is in france\tP\n8\trome\tR\n", encoding="utf-8")
    assert cli("index", "build", path, "--out", tmp_path / "i")[0] == 0
    path.unlink()
    assert open_index(tmp_path / "i").retrieve(["france"], 1)[0][0].document.id == "7"


@pytest.mark.parametrize("kind", ["bm25", "tantivy", "dense", "hybrid"])
def test_every_kind(cli: Any, corpus: Path, tmp_path: Path, kind: str) -> None:
    encoder = (f"encoder={tiny_bert(tmp_path / 'bert')}",) if kind in ("dense", "hybrid") else ()
    code, out, err = cli("index", "build", corpus, "--out", tmp_path / "i", f"kind={kind}", *encoder)
    assert (code, out[:24]) == (0, "12 documents are indexed"), err
    code, out, _ = cli("search", tmp_path / "i", "capital of france", "--top-k", "2")
    assert (code, out.count("\n[")) == (0, 1), out
    code, out, _ = cli("index", "info", tmp_path / "i")
    assert code == 0
    assert f"index {tmp_path / 'i'}: needs " in out
    rows = json.loads(cli("index", "info", tmp_path / "i", "--json")[1])
    assert (rows["kind"], rows["documents"]) == (kind, 12)
    if encoder:
        prefix = "dense: " if kind == "hybrid" else ""
        assert (rows[f"{prefix}factory"], rows[f"{prefix}encoder.path"]) == ("Flat", str(tmp_path / "bert"))


def test_options_reach_the_index(cli: Any, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bert = tiny_bert(tmp_path / "bert")
    options = ["kind=dense", "dense.factory=IVF2,SQ8", "dense.metric=l2", "dense.nprobe=2", "dense.train_sample=10"]
    options += ["dense.stored_as=float16", "encoder.pooling=cls", "encoder.query_prefix='query:'"]
    options += ["encoder.max_tokens=16", "encoder.normalize=false", "encoder.titles=quoted", "encoder.batch=3"]
    code, _, err = cli("index", "build", corpus, "--out", tmp_path / "i", *options, f"encoder={bert}")
    assert code == 0, err
    assert "IVF2,SQ8: trained on 10 vectors" in caplog.text
    side = json.loads((tmp_path / "i" / "index.json").read_text())["parameters"]
    assert (side["factory"], side["metric"], side["search"]) == ("IVF2,SQ8", "l2", {"nprobe": 2})
    assert side["trained_on"] == 10
    expected = {"pooling": "cls", "query_prefix": "query:", "max_tokens": 16, "normalize": False, "titles": "quoted"}
    assert {key: side["encoder"][key] for key in expected} == expected


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("kind=bm25", "title_weight=5", "title_weight 2 → 5"),
        ("kind=tantivy", "title_weight=5", "title_weight 2 → 5"),
        ("kind=dense", "dense.factory=SQ8", "factory 'Flat' → 'SQ8'"),
        ("kind=dense", "dense.metric=l2", "metric 'inner_product' → 'l2'"),
        ("kind=hybrid", "lexical=tantivy", "lexical 'bm25' → 'tantivy'"),
        ("kind=hybrid", "dense.factory=SQ8", "factory 'Flat' → 'SQ8'"),
    ],
)
def test_an_index_made_otherwise_is_not_replaced(
    cli: Any, corpus: Path, tmp_path: Path, first: str, second: str, said: str
) -> None:
    encoder = (f"encoder={tiny_bert(tmp_path / 'bert')}",) if first in ("kind=dense", "kind=hybrid") else ()
    command = ("index", "build", corpus, "--out", tmp_path / "i", first, *encoder)
    assert cli(*command)[0] == 0
    before = (tmp_path / "i" / "index.json").read_bytes()
    code, _, err = cli(*command, second)
    assert code == 2
    assert f"with other settings ({said}); name another folder, or --force" in err
    assert (tmp_path / "i" / "index.json").read_bytes() == before
    assert cli(*command)[0] == 0, "the same command may"
    assert cli(*command, second, "--force")[0] == 0


@pytest.mark.parametrize("kind", ["tantivy", "dense", "hybrid"])
def test_a_run_opens_any_kind(corpus: Path, tmp_path: Path, kind: Any) -> None:
    bert = tiny_bert(tmp_path / "bert")
    encoder = None if kind == "tantivy" else EncoderSettings(path=str(bert))
    build_index(corpus, tmp_path / "i", BuildSettings(kind=kind, encoder=encoder))
    config = resolve(None, [f"data.index={tmp_path / 'i'}"]).config
    retriever = open_retriever(config, None, tmp_path)
    assert retriever is not None
    assert len(retriever.retrieve(["paris"], 2)[0]) == 2
    if encoder is not None:
        shutil.rmtree(bert)
        with pytest.raises(UserError, match=r"no encoder folder .* \(its place is encoder\.path in "):
            open_retriever(config, None, tmp_path)


def test_a_ready_made_file(cli: Any, corpus: Path, tmp_path: Path) -> None:
    bert = tiny_bert(tmp_path / "bert")
    cli("index", "build", corpus, "--out", tmp_path / "one", "kind=dense", f"encoder={bert}")
    (tmp_path / "one" / "vectors.faiss").rename(tmp_path / "e5_Flat.index")
    ready = (f"faiss_file={tmp_path / 'e5_Flat.index'}", f"encoder={bert}")
    code, out, err = cli("index", "build", corpus, "--out", tmp_path / "two", "kind=hybrid", *ready)
    assert (code, "12 documents" in out) == (0, True), err
    side = json.loads((tmp_path / "two" / "dense" / "index.json").read_text())["parameters"]
    assert side["agreement"] > 0.999
    assert cli("search", tmp_path / "two", "paris")[0] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("kind=bm52", "kind: Input should be 'bm25'.*did you mean 'bm25'"),
        ("kind=dense", "'dense' needs an encoder"),
        ("knd=dense", "unknown key 'knd'; did you mean 'kind'"),
        ("encoder=minilm", "encoder would do nothing for an index of kind bm25.*use kind dense or hybrid"),
        ("cache=x", "cache would do nothing for an index of kind bm25"),
        ("kind=dense encoder=./nowhere", r"no encoder folder '\./nowhere'"),
        ("kind=dense encoder=BERT lexical=tantivy", "lexical would do nothing.*the one half of kind hybrid"),
        ("kind=dense encoder=BERT title_weight=3", "title_weight would do nothing"),
        ("kind=dense encoder=BERT faiss_file=x dense.factory=SQ8", "dense.factory would do nothing beside faiss_file"),
        ("kind=dense encoder=BERT encoder.pooling=max", "encoder.pooling: Input should be 'mean', 'cls' or 'last'"),
        ("kind=dense encoder=BERT encoder.max_tokens=64", "max_tokens is 64 but the encoder .* sees 32; set 32"),
        ("kind=dense encoder=BERT dense.factory=IVF64,Flat", "needs at least 64 vectors .* there are 12"),
        ("kind=dense encoder=BERT faiss_file=none", "FAISS file none does not exist"),
    ],
)
def test_mistakes_are_one_line(cli: Any, corpus: Path, tmp_path: Path, options: str, said: str) -> None:
    words = options.replace("BERT", str(tiny_bert(tmp_path / "bert"))).split()
    code, _, err = cli("index", "build", corpus, "--out", tmp_path / "i", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert re.search(said, err), err
    assert not (tmp_path / "i").exists()


def test_a_killed_build_goes_on(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    settings = BuildSettings(
        kind="hybrid", encoder=EncoderSettings(path=str(tiny_bert(tmp_path / "bert"))), cache=tmp_path / "cache"
    )
    monkeypatch.setattr("mempo.retrieval.embeddings.embed_corpus.__defaults__", ("float32", lambda *_: None, 5))
    expected = build_index(
        corpus, tmp_path / "whole", settings.model_copy(update={"cache": tmp_path / "other"})
    ).retrieve(["paris"], 5)
    passages, calls = TransformersEncoder.passages, []

    def counted(self: TransformersEncoder, texts: Any) -> Any:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(len(texts))
        return passages(self, texts)

    monkeypatch.setattr(TransformersEncoder, "passages", counted)
    stop = 2
    with pytest.raises(KeyboardInterrupt):
        build_index(packed, tmp_path / "i", settings)
    assert calls == [5, 5]
    assert (tmp_path / ".i.corpus" / "corpus.jsonl").is_file()
    assert not (tmp_path / "i").exists()
    stop, calls = 99, []
    built = build_index(packed, tmp_path / "i", settings)
    assert calls == [2], "only what was missing"
    assert built.retrieve(["paris"], 5) == expected
    assert not (tmp_path / ".i.corpus").exists()
    assert (tmp_path / "i" / "corpus.jsonl").read_bytes() == corpus.read_bytes()
    packed.unlink()
    assert open_index(tmp_path / "i").retrieve(["paris"], 5) == expected


def test_a_broken_packed_corpus_leaves_nothing(tmp_path: Path) -> None:
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"text": "a"}\n{"text"\n'))
    with pytest.raises(CorpusError, match="line 2"):
        build_index(packed, tmp_path / "i", BuildSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl.gz"]


def test_vectors_may_be_dropped(cli: Any, corpus: Path, tmp_path: Path) -> None:
    options = ("kind=dense", f"encoder={tiny_bert(tmp_path / 'bert')}", f"cache={tmp_path / 'vectors'}")
    cli("index", "build", corpus, "--out", tmp_path / "i", *options)
    assert len(list((tmp_path / "vectors" / "embeddings").iterdir())) == 1
    cli("index", "build", corpus, "--out", tmp_path / "i", *options, "keep_embeddings=false")
    assert list((tmp_path / "vectors" / "embeddings").iterdir()) == []
    assert cli("search", tmp_path / "i", "paris")[0] == 0
