"""Which addresses are fetched: names, numbers, and numbers in disguise."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mempo.tools.retrying import BadCall
from mempo.tools.web_address import checked_url, is_public, public_addresses
from mempo.tools.web_errors import WebError


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # where clouds keep their secrets
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:53aa:64c:0:0:80ff:fffe",  # teredo of 127.0.0.1
        "no address",
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "begins with http"),
        ("paris", "begins with http"),
        ("ftp://example.org/", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("javascript:alert(1)", "begins with http"),
        ("http://", "names no host"),
        ("http://user:secret@example.org/", "user name"),
        ("http://example.org:22/", "port 22"),
        ("http://example.org:99999/", "port 99999"),
        ("http://example.org:x/", "no url"),
        ("http://exa\tmple.org/", "no url"),
        ("http://[::1", "no url"),
        ("http://\ud800/", "no url"),
    ],
)
def test_what_is_no_web_address_is_said(url: str, said: str) -> None:
    with pytest.raises(BadCall, match=said):
        checked_url(url, (80, 443))


def test_the_port_is_the_schemes_own_unless_named() -> None:
    ports = [checked_url(url, (80, 443, 8080))[1] for url in ("http://a/", "https://a/", "http://a:8080")]
    assert ports == [80, 443, 8080]
    assert str(checked_url("https://a.org/x?y=1#z", (443,))[0]) == "https://a.org/x?y=1"
    assert checked_url("http://bücher.example/", (80,))[0].raw_host == b"xn--bcher-kva.example"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "::1", "10.1.2.3"]
)
def test_ways_to_write_a_private_host(host: str) -> None:
    with pytest.raises(BadCall, match=r"not on the public internet|no host has this name"):
        public_addresses(host, 80)


def _answer(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr("mempo.tools.web_address.socket.getaddrinfo", resolve)


def test_every_address_of_a_host_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, "93.184.216.34", "93.184.216.34", "8.8.8.8")
    assert public_addresses("example.org", 80) == ["93.184.216.34", "8.8.8.8"]
    for inside in ("127.0.0.1", "::ffff:10.0.0.1"):
        _answer(monkeypatch, "93.184.216.34", inside)
        with pytest.raises(BadCall, match="public internet"):
            public_addresses("example.org", 80)
    _answer(monkeypatch)
    with pytest.raises(BadCall):
        public_addresses("example.org", 80)


def test_a_name_nobody_has_and_a_name_service_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> Any:
        def resolve(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(number, "said the system")

        return resolve

    monkeypatch.setattr("mempo.tools.web_address.socket.getaddrinfo", fail(socket.EAI_NONAME))
    with pytest.raises(BadCall, match="no host has this name"):
        public_addresses("example.org", 80)
    monkeypatch.setattr("mempo.tools.web_address.socket.getaddrinfo", fail(socket.EAI_AGAIN))
    with pytest.raises(WebError) as caught:
        public_addresses("example.org", 80)
    assert caught.value.transient
