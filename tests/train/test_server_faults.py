"""Training against a retrieval server that dies and comes back, fails at random, hangs, or talks nonsense."""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Response

from mempo.config import resolve
from mempo.config.tools import RetrySettings, SearchSettings
from mempo.errors import UserError
from mempo.retrieval.client import HttpRetriever
from mempo.retrieval.corpus import Corpus, Document
from mempo.retrieval.document import Hit
from mempo.retrieval.index import Bm25Index
from mempo.retrieval.server.app import create_app
from mempo.setup import open_retriever
from mempo.storage.read_files import read_lines
from mempo.tools.search import SearchTool
from mempo.train.rl import RlSetup, train_rl
from tests.faults import Fault, FaultProxy, faulty, forward, reply, says, sometimes
from tests.retrieval.serving import serving
from tests.tiny import make_agent
from tests.train.fakes import NOTED_ANSWER, TOKENIZER, Speaker, questions, run_folder, settings, setup
from tests.train.small import quiet

pytestmark = pytest.mark.filterwarnings("ignore:a group has a single scored rollout")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    documents = [Document(str(n), f"City {n}", f"Paris is number{n}") for n in range(20)]
    Bm25Index.build(Corpus.from_documents(documents, folder / "c"), folder / "i")
    return folder / "i"


def speak(rng: random.Random) -> str:
    """Half of the turns search, each for something new; the others answer, right or wrong."""
    if rng.random() < 0.5:
        return f"<mem>n</mem><think>s</think><search>number{rng.randrange(20)} {rng.random()}</search>"
    return NOTED_ANSWER.replace("Paris", rng.choice(["Paris", "Rome"]))


def searching(retriever: Any, tries: int) -> RlSetup:
    retry = RetrySettings(tries=tries, backoff_s=0.001)
    tool = SearchTool(retriever, SearchSettings(top_k=2, retry=retry))
    return setup(Speaker(speak), questions(4), agent_of=make_agent(TOKENIZER, tools={"search": tool}))


class Watched:
    """A client that calls `before(n)` ahead of its n-th request."""

    def __init__(self, client: HttpRetriever, before: Callable[[int], None]) -> None:
        self._client = client
        self._before = before
        self._lock = threading.Lock()
        self.requests = 0

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        with self._lock:
            self.requests += 1
            self._before(self.requests)
        return self._client.retrieve(queries, top_k)


@contextmanager
def before_the_service(index: Path) -> Iterator[FaultProxy]:
    with serving(create_app(Bm25Index.load(index))) as url, faulty(forward(url)) as proxy:
        yield proxy


def test_a_server_killed_in_mid_training_and_started_again(index: Path, tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with before_the_service(index) as proxy, HttpRetriever(proxy.url, tries=1) as client:
        made = searching(Watched(client, lambda number: proxy.stop() if number == 5 else None), tries=2)
        train_rl(made, settings(steps=1, questions_per_step=4, save_every=1), run, quiet())
        proxy.start()
        train_rl(made, settings(steps=3, questions_per_step=4, save_every=1), run, quiet())
    first, *later = run.metrics()
    assert 0 < first["errors"] < first["rollouts"] == 16
    assert first["score"] is not None
    assert [step["errors"] for step in later] == [0, 0]
    assert [checkpoint.step for checkpoint in run.checkpoints()][-1] == 3


def test_a_server_that_fails_a_third_and_hangs_a_tenth_of_the_time_spoils_nothing(index: Path, tmp_path: Path) -> None:
    run, hits = run_folder(tmp_path), Counter[str]()
    with before_the_service(index) as proxy, HttpRetriever(proxy.url, timeout_s=0.3, tries=1) as client:
        proxy.fault = sometimes(("HTTP 500", 0.15), ("half a body", 0.15), ("is silent", 0.1), hits=hits)
        train_rl(searching(client, tries=12), settings(steps=2, questions_per_step=4), run, quiet())
    assert [step["errors"] for step in run.metrics()] == [0, 0]
    assert min(hits.values()) > 0
    assert len(hits) == 3


def test_failed_rollouts_are_in_no_baseline_and_no_average(index: Path, tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with before_the_service(index) as proxy, HttpRetriever(proxy.url, tries=1) as client:
        proxy.fault = sometimes(("HTTP 500", 0.4), seed=2)
        train_rl(searching(client, tries=1), settings(steps=1, questions_per_step=4), run, quiet())
    [step] = run.metrics()
    assert 0 < step["errors"] < step["rollouts"]
    assert step["tool_errors"] >= step["errors"]
    lines = read_lines(run.rollouts(1))
    failed, counted = ([line for line in lines if line["is_error"] is kind] for kind in (True, False))
    assert len(failed) == step["errors"]
    assert all(line["advantage"] is None and line["score"] is None for line in failed)
    assert step["score"] == pytest.approx(statistics.mean(line["score"] for line in counted))
    for place in range(4):
        group = [line for line in counted if line["question_id"] == f"q{place}"]
        mean = statistics.mean(line["score"] for line in group)
        for line in group:  # above or below the mean of those that count
            assert (
                math.copysign(1, line["advantage"]) == math.copysign(1, line["score"] - mean) or line["score"] == mean
            )


def test_a_step_of_which_most_failed_stops_with_the_words_of_the_server(index: Path, tmp_path: Path) -> None:
    run = run_folder(tmp_path)
    with before_the_service(index) as proxy, HttpRetriever(proxy.url, tries=1) as client:
        made = searching(client, tries=1)
        train_rl(made, settings(steps=1, questions_per_step=4, save_every=1), run, quiet())
        proxy.fault = Fault("failed", says(reply(b"the index is rebuilt until noon", "503 Busy")))
        with pytest.raises(
            UserError, match=r"more than the share of rl.max_failed_share 0\.1; the first: .*until noon"
        ):
            train_rl(made, settings(steps=2, questions_per_step=4, max_failed_share=0.1), run, quiet())
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>a proxy's page</html>", r"not JSON.*first bytes: <html>a proxy"),
        (b'{"result": []}', r"holds 0 entries for 1 queries.*status 200"),
    ],
)
def test_a_server_that_talks_nonsense_is_found_before_the_first_step(body: bytes, said: str, tmp_path: Path) -> None:
    app = FastAPI()

    @app.post("/retrieve")
    async def retrieve() -> Response:
        return Response(body, media_type="text/html")

    with serving(app) as url:
        config = resolve(None, [f"data.server={url}", "data.client.timeout_s=2"]).config
        with pytest.raises(UserError, match=said) as caught:
            open_retriever(config, None, tmp_path)
        assert f"{url}/retrieve" in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is it running"):
        open_retriever(config, None, tmp_path)


def test_by_configuration_alone_a_server_takes_the_place_of_an_index(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Bm25Index.load(index)
    local = open_retriever(resolve(None, [f"data.index={index}"]).config, None, tmp_path)
    assert local is not None
    with serving(create_app(opened, token="s3cret")) as url:
        config = resolve(None, [f"data.server={url}"]).config
        with pytest.raises(UserError, match="HTTP 401"):
            open_retriever(config, None, tmp_path)
        monkeypatch.setenv("MEMPO_RETRIEVAL_TOKEN", "s3cret")
        remote = open_retriever(config, None, tmp_path)
        assert remote is not None
        for query in ("number7", "Paris", "zz"):
            assert remote.retrieve([query], 3) == local.retrieve([query], 3)
    assert "s3cret" not in json.dumps(config.model_dump(mode="json"))
