"""Which addresses a policy may have fetched: http and https, the usual ports, machines of the public internet.

What is checked is what is connected to. A host is resolved once, every address it has must be public, and the
connection goes to one of these addresses; asking the name service again in between would let it change its mind.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence

import httpx

from mempo.tools.retrying import BadCall
from mempo.tools.web_errors import WebError

Resolver = Callable[[str, int], Sequence[str]]
"""From host and port to IP addresses; raises BadCall where there is none, or one that may not be reached."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}


def checked_url(url: str, ports: Sequence[int]) -> tuple[httpx.URL, int]:
    """The url as it will be asked for, and its port. Raises BadCall: no web address, a password in it, another port."""
    try:
        parsed = httpx.URL(url)
        port = parsed.port or _PORTS.get(parsed.scheme, 0)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise BadCall("this is no url") from None
    if parsed.scheme not in _PORTS:
        raise BadCall("a url begins with http:// or https://")
    if not parsed.host:
        raise BadCall("the url names no host")
    if parsed.userinfo:
        raise BadCall("a url with a user name is not fetched")
    if port not in ports:
        raise BadCall(f"port {port} is not fetched from; allowed: {', '.join(map(str, ports))}")
    return parsed.copy_with(fragment=None), port


def public_addresses(host: str, port: int) -> list[str]:
    """A Resolver that asks the system."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise WebError(host, "the name service does not answer", transient=True) from None
        raise BadCall("no host has this name") from None
    except (UnicodeError, OSError):
        raise BadCall("no host has this name") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not addresses or not all(is_public(address) for address in addresses):
        raise BadCall("this host is not on the public internet")
    return addresses


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and so does the IPv4 address that it may carry."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)
