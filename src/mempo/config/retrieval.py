"""Settings of retrieval: its client and its server, encoders, and the building of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from mempo.config.base import Settings


class ClientSettings(Settings):
    """How a retrieval server is asked; how often it is asked again is each tool's own (`search.retry`)."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds of one try, from its first byte to the last of the reply."""
    max_concurrent: int = Field(default=64, ge=1)
    """Requests at the same time; others wait, and the wait does not count towards the time-out."""


class ServiceSettings(Settings):
    """Settings of `mempo serve`.

    A request over a limit is refused whole, and public clients send a whole batch of rollouts as one request: the
    limits stand where only a mistake or an attack reaches them.
    """

    default_top_k: int = Field(default=3, ge=1)
    """Passages per query when a request's `topk` is null or absent."""
    max_top_k: int = Field(default=1000, ge=1)
    """Most passages per query."""
    max_queries: int = Field(default=8192, ge=1)
    """Queries, or urls, of one request."""
    max_passages: int = Field(default=200_000, ge=1)
    """Passages that one request asks for: queries times top k."""
    max_query_chars: int = Field(default=65_536, ge=1)
    """Characters of one query or url."""
    max_body_bytes: int = Field(default=16 << 20, ge=1)
    """Of a request."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds in which the headers of a request must arrive, and then its body."""
    max_connections: int = Field(default=1000, ge=1)
    """Open connections of one worker; more are refused with status 503. Each takes a file descriptor."""
    max_batch_queries: int = Field(default=64, ge=1)
    """Queries, of one or several requests, that the index is asked at once. `mempo serve` takes 8 for a lexical
    index unless you set it, because larger batches do not make it faster."""
    max_waiting_queries: int = Field(default=16_384, ge=1)
    """Queries that may wait for the index; further requests are refused with status 503 and Retry-After."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Seconds after which a waiting request is refused with status 503: most clients have given up by then."""
    cache_mib: float = Field(default=64.0, ge=0)
    """Memory for answers to queries that were asked before, in MiB per worker; 0 keeps none."""
    drain_s: float = Field(default=30.0, gt=0)
    """Seconds that current requests have to finish when the service is told to stop."""

    @model_validator(mode="after")
    def _room_for_one(self) -> ServiceSettings:
        if self.max_waiting_queries < self.max_queries:
            raise ValueError(
                f"max_waiting_queries {self.max_waiting_queries} has no room for one request of max_queries "
                f"{self.max_queries}; raise the one or lower the other"
            )
        if self.default_top_k > self.max_top_k:
            raise ValueError(f"default_top_k {self.default_top_k} is above max_top_k {self.max_top_k}")
        return self


Pooling = Literal["mean", "cls", "last"]
Titles = Literal["plain", "quoted", "none"]


class EncoderSettings(Settings):
    """An encoder. A value left at None is taken from the family, else from the folder's files, else a default."""

    path: str
    """A folder with config.json, a tokenizer and *.safetensors; a hub name; `minilm`: the packaged all-MiniLM-L6-v2."""
    pooling: Pooling | None = None
    """`mean` over all tokens, `cls`: the first one, `last`: the last one. Default `mean`."""
    query_prefix: str | None = None
    """Put before every query. Default: that of the family, or nothing."""
    passage_prefix: str | None = None
    """Put before every passage. Default: that of the family, or nothing."""
    max_tokens: int | None = Field(default=None, ge=8)
    """Longer texts are cut; special tokens count. Default 512, or less if the model's window is smaller."""
    normalize: bool | None = None
    """Divide vectors by their length, so that the inner product is the cosine. Default true."""
    titles: Titles = "plain"
    """How a passage begins: with its title as a line, with the title in quotes (as in `contents` rows), or without."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the encoder's weights."""
    batch: int = Field(default=64, ge=1)
    """Texts encoded at once. It changes vectors only by rounding."""
    device: str = "auto"
    """`auto` takes CUDA where there is one."""

    def identity(self, weights_sha256: str) -> dict[str, Any]:
        """All that a vector depends on, of resolved settings: not where the encoder lies, how it is batched or run."""
        return {**self.model_dump(exclude={"path", "batch", "device"}), "weights_sha256": weights_sha256}


StoredAs = Literal["float32", "float16"]
Metric = Literal["inner_product", "l2"]


class DenseSettings(Settings):
    """How vectors are kept and searched."""

    factory: str = "Flat"
    """FAISS's factory string: Flat, SQ8, HNSW32, IVF4096,Flat, IVF4096,PQ96, ..."""
    metric: Metric = "inner_product"
    """For normalized vectors the inner product is the cosine."""
    train_sample: int | None = Field(default=None, ge=1)
    """Vectors to train on; default 64 for each centroid, at least 65 536, at most all."""
    seed: int = 0
    """Draws the training sample."""
    nprobe: int | None = Field(default=None, ge=1)
    """Lists of an IVF index that a search reads; default 1/16 of them, between 8 and 128."""
    ef_search: int | None = Field(default=None, ge=1)
    """How widely an HNSW graph is searched; default 64."""
    stored_as: StoredAs = "float32"
    """The vectors in the cache; float16 halves the disk they take."""


class BuildSettings(Settings):
    """Settings of `mempo index build`."""

    short_forms: ClassVar = {"encoder": "path"}

    kind: Literal["bm25", "tantivy", "dense", "hybrid"] = "bm25"
    """`bm25` and `tantivy` look up words, `dense` compares vectors, `hybrid` does both."""
    lexical: Literal["bm25", "tantivy"] = "bm25"
    """The lexical half of a hybrid."""
    title_weight: int = Field(default=2, ge=0)
    """How often a word in the title counts; of lexical indexes."""
    encoder: EncoderSettings | None = None
    """Makes the vectors of a dense or hybrid index. `encoder=minilm` alone is short for `encoder.path`."""
    dense: DenseSettings = DenseSettings()
    faiss_file: Path | None = None
    """A ready-made FAISS file of this corpus, such as e5_Flat.index, instead of encoding it."""
    cache: Path | None = None
    """Where vectors are kept between builds. Default: `$MEMPO_CACHE`, or else `~/.cache/mempo`."""
    keep_embeddings: bool = True
    """Keep the vectors in the cache, for other factories and for building the index again."""

    @model_validator(mode="after")
    def _vectors_have_an_encoder(self) -> BuildSettings:
        if self.kind in ("dense", "hybrid") and self.encoder is None:
            raise ValueError(
                f"an index of kind {self.kind!r} needs an encoder: its folder, a hub name or minilm (encoder=minilm)"
            )
        return self
