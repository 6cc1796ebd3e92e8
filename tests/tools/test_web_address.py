"""Which addresses are fetched: names, numbers, and numbers in disguise."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from yarl import URL

from mempo.config.tools import WebPageSettings
from mempo.tools.call import BadCall
from mempo.tools.web_address import checked_url, is_public, public_addresses
from mempo.tools.web_fetch import Fetcher

PUBLIC = """
93.184.216.34 2606:2800:220:1:248:1893:25c8:1946 64:ff9b::808:808 2a00::5efe:808:808 ::ffff:8.8.8.8 2002:808:808::1
3ffe::1
"""
PRIVATE = """
127.0.0.1 127.255.255.254 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 255.255.255.255
224.0.0.1 240.0.0.1 192.0.2.1 198.18.0.1
:: ::1 fe80::1 fe80::1%eth0 fc00::1 ff02::1 2001:db8::1 fec0::1 feff::1 3fff::1 3fff:fff::1 5f00::1 100::1 4000::1
::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:53aa:64c:0:0:80ff:fffe ::7f00:1 ::808:808
::ffff:0:7f00:1 64:ff9b:1::7f00:1 64:ff9b::a00:1 2a00::5efe:7f00:1 2a00:1450:4001:81b:0:5efe:c0a8:101
2a00::200:5efe:a00:1 2002:a00:1::1 2002:c0a8:101::1 2001:0:53aa:64c::f5ff:fffe fe80::5efe:808:808
"""
"""IPv4 (169.254.169.254 is where clouds keep their secrets); IPv6 of every range; and IPv4 within it: mapped,
translated, compatible, 6to4, Teredo, NAT64, ISATAP."""


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", [*PRIVATE.split(), "no address"])
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
        ("http://example.org:99999/", "not a url"),
        ("http://example.org:x/", "not a url"),
        ("http://exa\tmple.org/", "not a url"),
        ("http://[::1", "not a url"),
        ("http://\ud800/", "not a url"),
        ("http://xn--/", "not a url"),
        ("http://xn--a/", "not a url"),
        ("http://[::1]x/", "not a url"),
        ("http://[zz]/", "not a url"),
        ("http:///path", "names no host"),
        ("http://:80/", "not a url|names no host"),
        ("http://?q", "names no host"),
        ("http://example.org:-1/", "not a url|port -1"),
        ("http://example.org:٣/", "not a url|port 3"),
        ("http://a b/", "not a url"),
        ("http://a\x7f/", "not a url"),
        ("http://a\r\nhost: b/", "not a url"),
        ("http://a%00b/", "not a url"),
        ("http://" + "a" * 64 + ".org/", "not a url"),
        ("http://" + "a." * 130 + "org/", "not a url"),
        ("http://a..org/", "not a url"),
        ("http://[fe80::1%25eth0]/", "not a url"),
        ("http://\u200b/", "not a url|no host"),
        ("http://a\u202eb/", "not a url"),
        ("http://" + "ä" * 2000 + "/", "not a url"),
        ("http://user@/", "not a url|names no host"),
        ("https://@:@/", "not a url|names no host"),
        ("//example.org/", "begins with http"),
        ("http:example.org", "names no host"),
        ("http:\\\\example.org", "not a url|names no host"),
    ],
)
def test_what_is_no_web_address_is_said(url: str, said: str) -> None:
    with pytest.raises(BadCall, match=said):
        checked_url(url, (80, 443))


@pytest.mark.parametrize("url", ["http://xn--zzzzzzzz99999/x", "http://[v1.x]/"])
def test_a_name_that_nobody_has_is_for_the_name_service_to_refuse(url: str) -> None:
    assert checked_url(url, (80,))[1] == 80


def test_the_port_is_the_schemes_own_unless_named() -> None:
    ports = [checked_url(url, (80, 443, 8080))[1] for url in ("http://a/", "https://a/", "http://a:8080")]
    assert ports == [80, 443, 8080]
    assert str(checked_url("https://a.org/x?y=1#z", (443,))[0]) == "https://a.org/x?y=1"
    assert checked_url("http://bücher.example/", (80,))[0].raw_host == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "::1", "10.1.2.3"]
)
def test_ways_to_write_a_private_host(host: str) -> None:
    with pytest.raises(BadCall, match=r"not on the public internet|no host has this name"):
        public_addresses(host, 80)


def _answer(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr("mempo.http.addresses.socket.getaddrinfo", resolve)


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

    monkeypatch.setattr("mempo.http.addresses.socket.getaddrinfo", fail(socket.EAI_NONAME))
    with pytest.raises(BadCall, match="no host has this name"):
        public_addresses("example.org", 80)
    monkeypatch.setattr("mempo.http.addresses.socket.getaddrinfo", fail(socket.EAI_AGAIN))
    with pytest.raises(OSError, match="does not answer"):
        public_addresses("example.org", 80)


HOSTILE = "\x00\t /\\\"'@:[]%?#.-_~\x7f\u00e4\u00df\u0130\u200b\u202e\ud800\uff0e\U0001f600" + "a1x"


def test_no_text_is_more_than_a_bad_call() -> None:
    """From an address to a connection: whatever the policy writes, it is its own doing and never infrastructure."""

    def resolve(host: str, port: int) -> Sequence[str]:
        host.encode("ascii")
        return public_addresses(host, port) if not host.strip("0123456789.:x") else ["127.0.0.1"]

    rng = random.Random(0)
    fetcher = Fetcher(WebPageSettings(timeout_s=1.0, ports=(9,)), resolve)
    for n in range(3000):
        text = "".join(rng.choices(HOSTILE, k=rng.randrange(1, 12)))
        url = rng.choice(["http://", "https://", "http:", "xn--", "http://xn--", "http://[", "http://a:9/"]) + text
        try:
            parsed, port = checked_url(url, (80, 443, 9))
        except BadCall:
            continue
        assert parsed.host
        assert URL(str(parsed)) == parsed
        if n % 10 == 0 and port == 9:
            with pytest.raises(BadCall):
                fetcher.fetch(url)


@pytest.mark.parametrize("host", ["a" * 64, "a" * 5000, "a..b", ".", "-", "a" * 60 + ".b" * 400, "a\0b"])
def test_a_name_that_no_host_can_have(host: str) -> None:
    with pytest.raises(BadCall, match=r"no host has this name|not on the public internet"):
        public_addresses(host, 80)
