"""Every client goes through every way in which a server fails: it is done in time, a failure is never a reply, the
message says who it was, and what comes after the fault is as good as what came before."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults import FAULTS, faulty, sometimes
from tests.http.clients import CLIENTS, KEYS, READ_TEXT, Told

DEADLINE_S = 2.5
ROOM_S = 3.0
"""For threads to be woken on a machine that is busy with other work."""


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "a-key-of-ours")


OF_THE_PAGE = {"nothing", "HTTP 404"}
"""A reading service says so of the page that the policy wants."""


def outcome(client: str, name: str) -> str:
    found = {"late": "late", "failed": "failed", "none": "good"}.get(FAULTS[name].leads_to)
    if found is None:
        is_text = client in READ_TEXT or (client, name) == ("web_search", "JSON with nothing in it")  # no results
        return "good" if is_text else "failed"
    return found


@pytest.mark.parametrize("name", FAULTS)
def test_every_client_goes_through_every_fault(name: str) -> None:
    """All clients at once, so that they are measured in one wait."""
    with faulty() as proxy, ThreadPoolExecutor(len(CLIENTS)) as pool:
        asks = {client: make(proxy.url, DEADLINE_S) for client, make in CLIENTS.items()}

        def ask(client: str) -> tuple[str, float, Told]:
            began = time.monotonic()
            told = asks[client]()
            took_s = time.monotonic() - began
            late = not told.good and f"within {DEADLINE_S} s" in told.text
            return "good" if told.good else "late" if late else "failed", took_s, told

        def everybody() -> dict[str, tuple[str, float, Told]]:
            return dict(zip(CLIENTS, pool.map(ask, CLIENTS), strict=True))

        before = everybody()
        proxy.fault = FAULTS[name]
        during = everybody()
        proxy.fault = None
        after = everybody()
    for good in (before, after):
        assert {client: kind for client, (kind, _, _) in good.items()} == dict.fromkeys(CLIENTS, "good"), good
    assert {client: told.text for client, (*_, told) in before.items()} == {
        client: told.text for client, (*_, told) in after.items()
    }
    kinds = {client: kind for client, (kind, _, _) in during.items()}
    assert kinds == {client: outcome(client, name) for client in CLIENTS}, during
    for client, (kind, took_s, told) in during.items():
        assert took_s <= 1.1 * DEADLINE_S + ROOM_S, (client, took_s)
        assert took_s >= DEADLINE_S or kind != "late", (client, took_s)
        of_the_page = client == "web_page" or (client == "page_service" and name in OF_THE_PAGE)
        if kind != "good" and not of_the_page:  # there, the policy knows what it asked for
            assert proxy.url in told.text, (client, told)


@pytest.mark.parametrize("name", ["resets", "HTTP 500", "half a body"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_third_of_failures_is_nothing_to_a_client_that_tries_again(client: str, name: str) -> None:
    with faulty() as proxy:
        ask = CLIENTS[client](proxy.url, 20.0, tries=15)
        right = ask()
        proxy.fault = sometimes((name, 0.3))
        assert [ask() for _ in range(20)] == [right] * 20
        assert proxy.requests > 21
    assert right.good
