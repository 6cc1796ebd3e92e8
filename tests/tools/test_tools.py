"""From an action to a result: bounded retries, hostile arguments, long pages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from mempo.config.tools import AccessSettings, RetrySettings, SearchSettings
from mempo.retrieval.document import Document, Hit
from mempo.rollout.interfaces import Tool, ToolErrorKind, ToolResult
from mempo.tools.access import AccessTool
from mempo.tools.call import BadCall
from mempo.tools.search import SearchTool

NO_WAIT = RetrySettings(backoff_s=0)
PARIS = Document("1", "Paris", "The capital of France.", "http://x/paris")
LYON = Document("2", "Lyon", "A city.")


class Library:
    """A retriever that fails as often as asked, then finds what it has."""

    def __init__(
        self,
        documents: Sequence[Document] = (PARIS, LYON),
        failures: int = 0,
        error: Exception = OSError("503"),
    ) -> None:
        self._documents, self._failures, self._error = documents, failures, error
        self.calls: list[tuple[str, int]] = []

    def _try(self, what: str, top_k: int) -> None:
        self.calls.append((what, top_k))
        if len(self.calls) <= self._failures:
            raise self._error

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


@pytest.mark.parametrize(("call", "name"), [(search, "query"), (access, "url")])
@pytest.mark.parametrize(
    ("argument", "notice"),
    [
        ("", "the {} is empty"),
        (" \n\t", "the {} is empty"),
        ("\0\0", "the {} is empty"),
        ("x" * 50_000, "the {} has 50000 characters; at most 2000 are allowed"),
    ],
)
def test_a_bad_argument_is_told_what_was_wrong_and_never_sent(call: Any, name: str, argument: str, notice: str) -> None:
    library = Library()
    result = call(argument, library)
    assert (result.error, result.notice) == (ToolErrorKind.BAD_CALL, f"error: {notice.format(name)}")
    assert library.calls == []


def test_a_long_page_is_cut() -> None:
    page = Document("1", "t", "x" * 100_000, "u")
    assert access("u", Library([page]), max_page_chars=10).passages == ("t\n" + "x" * 10,)


# --- failing servers -----------------------------------------------------------------------------------------------


class Told(Exception):
    """A failure that says what helps."""

    def __init__(self, transient: bool, retry_after_s: float | None = None) -> None:
        super().__init__("told")
        self.transient = transient
        self.retry_after_s = retry_after_s


GONE = OSError("503")


@pytest.mark.parametrize("call", [search, access])
@pytest.mark.parametrize(
    ("error", "failures", "calls", "kind", "notice"),
    [
        (GONE, 2, 3, None, ""),
        (
            GONE,
            9,
            5,
            "unavailable",
            "error: the tool is not available (5 tries failed; the last: OSError: 503)",
        ),
        (Told(False), 9, 1, "unavailable", "error: the tool is not available (1 try failed: Told: told)"),
        (BadCall("no host has this name"), 9, 1, "bad_call", "error: no host has this name"),
        (BadCall("the site fails", transient=True), 9, 5, "bad_call", "error: the site fails"),
    ],
)
def test_what_may_help_is_tried_again(
    call: Any, error: Exception, failures: int, calls: int, kind: str | None, notice: str
) -> None:
    library = Library(failures=failures, error=error)
    result = call("http://x/paris", library)
    assert len(library.calls) == calls
    assert result.error == (kind and ToolErrorKind(kind))
    assert result.notice == notice


def test_a_failure_is_not_remembered() -> None:
    tool = SearchTool(Library(failures=5), SearchSettings(retry=NO_WAIT))

    async def twice() -> list[ToolResult]:
        return [await tool.call("q"), await tool.call("q")]

    assert [result.error for result in asyncio.run(twice())] == [ToolErrorKind.UNAVAILABLE, None]


@pytest.mark.parametrize(
    ("error", "policy", "waited"),
    [
        (GONE, {"backoff_s": 0.5, "max_backoff_s": 1.5}, [0.5, 1.0, 1.5, 1.5]),
        (Told(True, 3.0), {"tries": 2}, [3.0]),
        (Told(True, 3600.0), {"tries": 2}, [8.0]),
        (Told(True, 0.01), {"tries": 2}, [0.5]),
    ],
)
def test_waits_double_and_a_server_may_ask_for_longer_up_to_the_limit(
    error: Exception, policy: dict[str, Any], waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("mempo.http.retry.asyncio.sleep", note)
    monkeypatch.setattr("mempo.http.retry.JITTER", 0)
    search("q", Library(failures=9, error=error), retry=RetrySettings(**policy))
    assert waits == waited


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
