"""Which addresses a policy may have fetched: http and https, the usual ports, machines of the public internet.

What is checked is what is connected to. A host is resolved once, every address it has must be public, and the
connection goes to one of these addresses; asking the name service again in between would let it change its mind.

What a policy asks for is its own doing: a url that cannot be read, a host that nobody has, a site that does not answer.
Only a network that is down is infrastructure, which shows in a name service that does not even find `CONTROL_HOST`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from yarl import URL

from mempo.http.addresses import RESOLVING, Resolver, system_addresses
from mempo.http.errors import HttpError
from mempo.tools.call import BadCall

CONTROL_HOST = "example.com"
"""Kept by the name service's own authority; it is only looked up."""

_CONTROL_SHARE = 0.1
"""Of the time-out of a request: so long the look-up of the control host may take on top."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # all that was ever given out of IPv6
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")  # not all versions of Python know it
_ISATAP = (0x00005EFE, 0x02005EFE)
_HOST = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)
_MOST_HOST_CHARS = 254


def checked_url(url: str, ports: Sequence[int]) -> tuple[URL, int]:
    """The url as it will be asked for, and its port. Raises BadCall: no web address, a password in it, another port."""
    try:
        if not url.isprintable():  # what a parser would leave out
            raise ValueError(url)
        parsed = URL(url).with_fragment(None)
        host, port = parsed.host, parsed.port or 0  # `host` reads names in punycode
        if host and not _can_be_host(str(parsed.raw_host)):
            raise ValueError(host)
    except Exception:  # whatever a parser makes of it, it is what the policy wrote
        raise BadCall("this is not a url") from None
    if parsed.scheme not in ("http", "https"):
        raise BadCall("a url begins with http:// or https://")
    if not host:
        raise BadCall("the url names no host")
    if parsed.user is not None or parsed.password is not None:
        raise BadCall("a url with a user name is not fetched")
    if port not in ports:
        raise BadCall(f"port {port} is not fetched from; allowed: {', '.join(map(str, ports))}")
    return parsed, port


def _can_be_host(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host)) and "%" not in host
    except ValueError:
        return len(host) <= _MOST_HOST_CHARS and _HOST.fullmatch(host) is not None


def public_addresses(host: str, port: int) -> Sequence[str]:
    """A Resolver that asks the system, and answers with public addresses only. Raises BadCall where there is none, or
    one that may not be reached; OSError when the name service does not answer."""
    try:
        addresses = system_addresses(host, port)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise OSError(f"the name service does not answer for {host}") from None
        raise BadCall("no host has this name") from None
    except (ValueError, OSError):
        raise BadCall("no host has this name") from None
    if not addresses or not all(map(is_public, addresses)):
        raise BadCall("this host is not on the public internet")
    return addresses


def check_host(url: URL, port: int, resolve: Resolver, timeout_s: float) -> None:
    """For a service that fetches in our place. Raises BadCall as `resolve` does, and as `failed_site`."""
    try:
        RESOLVING.submit(resolve, str(url.raw_host), port).result(timeout_s)
    except OSError:
        reason = "the name service does not answer"
        raise failed_site(HttpError("web page", "refused", str(url), reason), resolve, timeout_s) from None


def failed_site(error: HttpError, resolve: Resolver, timeout_s: float) -> Exception:
    """What a failure of the site that the policy chose is to be raised as: its bad call, after it was tried again, or
    the error where the network is down."""
    try:
        RESOLVING.submit(resolve, CONTROL_HOST, 80).result(_CONTROL_SHARE * timeout_s)
    except (OSError, BadCall):
        return error
    return BadCall(f"the site does not answer: {error.reason}", transient=True)


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and so does the IPv4 address that it may carry."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        inner = (
            ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or (last if ip in _NAT64 else None)
        )
        if inner is not None:
            return is_public(str(inner))
        if (int(ip) >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(str(last)):
            return False
        if ip not in _UNICAST or ip in _DOCUMENTATION:
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified)
