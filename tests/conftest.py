import ipaddress
import os
import socket
import sys
from typing import Any

from hypothesis import settings

# Tiny models: a second thread costs more than it brings. Before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mempo  # noqa: F401 - sets the other OpenMP choices

settings.register_profile("mempo", deadline=None)  # a time limit would be a hidden timing assertion
settings.load_profile("mempo")


def is_this_machine(host: Any, of_address: bool) -> bool:
    """`of_address`: what is said of a number that is not of this machine: it needs no look-up, and leads elsewhere."""
    name = host.decode() if isinstance(host, bytes) else host
    if not name or name in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback or of_address
    except ValueError:
        return False


def no_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Tests reach this machine alone: a look-up or a connection that would leave it fails, as without a network."""
    is_look_up = event == "socket.getaddrinfo"
    if is_look_up:
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # else a socket in the file system
    else:
        return
    if not is_this_machine(host, of_address=is_look_up):
        raise socket.gaierror(socket.EAI_NONAME, f"no network in tests, and {host!r} is elsewhere")


sys.addaudithook(no_network)
