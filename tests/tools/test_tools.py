"""From an action to a result: bounded retries, hostile arguments, long pages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from mempo.config.tools import AccessSettings, RetrySettings, SearchSettings
from mempo.retrieval.document import Document, Hit
from mempo.rollout.interfaces import Tool, ToolErrorKind, ToolResult
from mempo.tools.access import AccessTool
from mempo.tools.retrying import BadCall
from mempo.tools.search import SearchTool

NO_WAIT = RetrySettings(backoff_s=0)
PARIS = Document("1", "Paris", "The capital of France.", "http://x/paris")
LYON = Document("2", "Lyon", "A city.")


class Library:
    """A retriever that fails as often as asked, then finds what it has."""

    def __init__(self, documents: Sequence[Document] = (PARIS, LYON), failures: int = 0) -> None:
        self._documents = documents
        self._failures = failures
        self.calls: list[tuple[str, int]] = []

    def _try(self, what: str, top_k: int) -> None:
        self.calls.append((what, top_k))
        if len(self.calls) <= self._failures:
            raise ConnectionError(f"503 for {what!r}"[:40])

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        self._try(queries[0], top_k)
        return [[Hit(document, 1.0) for document in self._documents[:top_k]] for _ in queries]

    def access(self, urls: Sequence[str]) -> list[Document | None]:
        self._try(urls[0], 1)
        return [next((d for d in self._documents if d.url == url), None) for url in urls]


def search(argument: str, library: Library | None = None, **settings: object) -> ToolResult:
    tool = SearchTool(library or Library(), SearchSettings.model_validate({"retry": NO_WAIT, **settings}))
    return asyncio.run(tool.call(argument))


def access(argument: str, library: Library | None = None, **settings: object) -> ToolResult:
    tool = AccessTool(library or Library(), AccessSettings.model_validate({"retry": NO_WAIT, **settings}))
    return asyncio.run(tool.call(argument))


def test_both_are_tools() -> None:
    assert isinstance(SearchTool(Library()), Tool)
    assert isinstance(AccessTool(Library()), Tool)
    assert (SearchTool.name, AccessTool.name) == ("search", "access")


# --- search --------------------------------------------------------------------------------------------------------


def test_passages_are_numbered_with_titles() -> None:
    result = search("capital")
    assert result.passages == ("[1] Paris\nThe capital of France.", "[2] Lyon\nA city.")
    assert result.error is None
    assert not result.notice


def test_top_k_and_the_look_of_a_passage_are_settings() -> None:
    library = Library()
    result = search("capital", library, top_k=1, passage="{n}: {text} <{url}>")
    assert library.calls == [("capital", 1)]
    assert result.passages == ("1: The capital of France. <http://x/paris>",)


def test_a_look_that_cannot_be_filled_in_is_refused_at_once() -> None:
    for passage in ("{titel}", "{", "{0}", "{title.x}"):
        with pytest.raises(ValidationError, match="cannot be filled in"):
            SearchSettings(passage=passage)


def test_braces_in_a_document_are_text() -> None:
    braces = Document("1", "{n}", "{text} {nobody}")
    assert search("q", Library([braces])).passages == ("[1] {n}\n{text} {nobody}",)


def test_a_long_passage_is_cut_before_it_is_tokenised() -> None:
    result = search("q", Library([Document("1", "t", "x" * 10_000)]), max_passage_chars=50)
    assert result.passages == ("[1] t\n" + "x" * 50,)


def test_nothing_found_is_said_and_is_no_error() -> None:
    result = search("q", Library([]))
    assert (result.notice, result.passages, result.error) == ("nothing was found", (), None)


@pytest.mark.parametrize(
    ("query", "notice"),
    [
        ("", "the query is empty"),
        (" \n\t", "the query is empty"),
        ("\0", "the query is empty"),
        ("x" * 50_000, "the query has 50000 characters; at most 2000 are allowed"),
    ],
)
def test_a_bad_query_is_told_what_was_wrong_and_never_sent(query: str, notice: str) -> None:
    library = Library()
    result = search(query, library)
    assert result.error is ToolErrorKind.BAD_CALL
    assert notice in result.notice
    assert library.calls == []


def test_a_nul_in_a_query_becomes_a_space() -> None:
    library = Library()
    assert search("a\0b", library).error is None
    assert library.calls == [("a b", 5)]


def test_the_same_query_is_asked_once() -> None:
    library = Library()
    tool = SearchTool(library, SearchSettings(retry=NO_WAIT))

    async def twice() -> list[ToolResult]:
        return [await tool.call(" capital "), await tool.call("capital")]

    first, second = asyncio.run(twice())
    assert first == second
    assert len(library.calls) == 1


# --- access --------------------------------------------------------------------------------------------------------


def test_a_page_is_found_by_its_url() -> None:
    assert access("http://x/paris").passages == ("Paris\nThe capital of France.",)


@pytest.mark.parametrize("url", ["-1", "99999999999", "http://nowhere", "javascript:alert(1)", "\ud800"])
def test_an_unknown_url_is_a_bad_call(url: str) -> None:
    result = access(url)
    assert result.error is ToolErrorKind.BAD_CALL
    assert result.notice == "error: no page has this url"


@pytest.mark.parametrize(
    ("url", "notice"), [(" ", "the url is empty"), ("\0\0", "the url is empty"), ("x" * 50_000, "at most 2000")]
)
def test_a_bad_url_is_told_what_was_wrong(url: str, notice: str) -> None:
    library = Library()
    result = access(url, library)
    assert result.error is ToolErrorKind.BAD_CALL
    assert notice in result.notice
    assert library.calls == []


def test_a_long_page_is_cut() -> None:
    page = Document("1", "t", "x" * 100_000, "u")
    assert access("u", Library([page]), max_page_chars=10).passages == ("t\n" + "x" * 10,)


# --- failing servers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [search, access])
def test_a_server_that_fails_twice_is_asked_a_third_time(call: object) -> None:
    library = Library(failures=2)
    result = search("q", library) if call is search else access("http://x/paris", library)
    assert result.error is None
    assert len(library.calls) == 3


@pytest.mark.parametrize("call", [search, access])
def test_five_tries_then_an_observation_that_says_so(call: object) -> None:
    library = Library(failures=100)
    result = search("q", library) if call is search else access("u", library)
    assert len(library.calls) == 5
    assert result.error is ToolErrorKind.UNAVAILABLE
    assert result.notice.startswith("error: the tool is not available (5 tries failed; the last: ConnectionError: 503")


def test_a_failure_is_not_remembered() -> None:
    library = Library(failures=5)
    tool = SearchTool(library, SearchSettings(retry=NO_WAIT))

    async def twice() -> list[ToolResult]:
        return [await tool.call("q"), await tool.call("q")]

    assert [result.error for result in asyncio.run(twice())] == [ToolErrorKind.UNAVAILABLE, None]


def test_waits_double_up_to_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("mempo.tools.retrying.asyncio.sleep", note)
    retry = RetrySettings(tries=5, backoff_s=0.5, max_backoff_s=1.5)
    with monkeypatch.context() as patch:
        patch.setattr("mempo.http.retry.JITTER", 0)
        search("q", Library(failures=100), retry=retry)
    assert waits == [0.5, 1.0, 1.5, 1.5]
    waits.clear()
    search("q", Library(failures=100), retry=retry)
    shares = [wait / full for wait, full in zip(waits, (0.5, 1.0, 2.0, 4.0), strict=True)]
    assert all(0.5 <= share <= 1 for share in shares[:2])
    assert len(set(shares)) == 4


class Told(Exception):
    """A failure that says what helps."""

    def __init__(self, transient: bool, retry_after_s: float | None = None) -> None:
        super().__init__("told")
        self.transient = transient
        self.retry_after_s = retry_after_s


class Failing(Library):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def _try(self, what: str, top_k: int) -> None:
        super()._try(what, top_k)
        raise self._error


def test_a_failure_that_another_try_cannot_mend_is_not_tried_again() -> None:
    library = Failing(Told(transient=False))
    result = search("q", library)
    assert len(library.calls) == 1
    assert result.error is ToolErrorKind.UNAVAILABLE
    assert result.notice == "error: the tool is not available (1 try failed: Told: told)"


def test_a_server_may_ask_for_a_longer_wait_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("mempo.tools.retrying.asyncio.sleep", note)
    monkeypatch.setattr("mempo.http.retry.JITTER", 0)
    for asked, waited in ((3.0, 3.0), (3600.0, 8.0), (0.01, 0.5)):
        search("q", Failing(Told(True, asked)), retry=RetrySettings(tries=2))
        assert waits.pop() == waited


def test_a_wrong_call_is_the_policys_doing_and_not_tried_again() -> None:
    library = Failing(BadCall("no host has this name"))
    result = access("http://x", library)
    assert len(library.calls) == 1
    assert (result.notice, result.error) == ("error: no host has this name", ToolErrorKind.BAD_CALL)


def test_so_many_calls_at_once_and_no_more() -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    class Counting(Library):
        def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            time.sleep(0.005)
            with lock:
                under_way -= 1
            return [[] for _ in queries]

    async def many() -> None:
        tool = SearchTool(Counting(), SearchSettings(max_concurrent=40))
        await asyncio.gather(*(tool.call(str(n)) for n in range(80)))

    asyncio.run(many())
    assert 6 < most <= 40  # and not as many as the machine has cores


@pytest.mark.parametrize("settings", [{"tries": 0}, {"backoff_s": -1}, {"max_backoff_s": -0.1}])
def test_settings_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RetrySettings.model_validate(settings)
    with pytest.raises(ValidationError):
        SearchSettings(top_k=0)
