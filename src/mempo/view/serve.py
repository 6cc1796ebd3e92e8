"""`mempo view`: the pages behind a socket, until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

import uvicorn

from mempo.errors import UserError
from mempo.view.app import create_app
from mempo.view.folder import ViewedFolder, open_folders

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


def serve(
    runs: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 0,
    tokenizer: str | None = None,
    say: Callable[[str], None] = print,
    open_browser: bool = False,
) -> None:
    """Answer until told to stop. `port` 0 takes a free one. Bound to anything but loopback, addresses hold a secret.

    Raises:
        UserError: a folder that is no run, an address that cannot be listened on.
    """
    folders = open_folders(runs, tokenizer)
    token = None if host in LOOPBACK_HOSTS else secrets.token_urlsafe(24)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"cannot listen on {host} port {port} ({error.strerror or error}); choose another") from error
    with listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/{token + '/' if token else ''}"
        say(f"{address}  (Ctrl-C ends it)")
        if token:
            say(f"{host} can be reached from other machines: whoever knows the address can read these runs")
        if open_browser:
            webbrowser.open(address)
        Thread(target=_warm, args=(folders[0],), daemon=True).start()
        config = uvicorn.Config(
            create_app(folders, token), log_level="warning", access_log=False, server_header=False, proxy_headers=False
        )
        uvicorn.Server(config).run(sockets=[listener])


def _warm(folder: ViewedFolder) -> None:
    """The libraries of a tokenizer take seconds to load, which a reader of the first page does not wait for."""
    with suppress(UserError):  # said where the tokenizer is needed
        folder.tokenizer()
